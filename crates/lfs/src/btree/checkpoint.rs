//! Merges all changes since the last checkpoint into the trees; returns the new roots.
//!
//! ```text
//!   freeze overlay > checkpoint(..) > flush > slots name the new roots > flush
//!                      a second checkpoint is durable: `freed` is free
//!                      any step fails: the old roots hold, `taken` is given back
//! ```
//! Invariants: B71 when [`checkpoint`] returns without an error, every node below the new roots is
//! written in both copies; a flush makes them durable. B72 until then, and if it fails or is
//! dropped, the old roots read as before: nothing of them is overwritten. B73 when it returns, also
//! with an error, no write of a node is in flight.
//!
//! No locks.

use super::Tree;
use super::change::Changes;
use super::merge::Merged;
use super::write::Ledger;
use crate::format::superblock::TreeRoot;
use forebay_base::Result;

/// A tree and its changes.
pub struct TreeChanges<'a> {
    /// The root of the tree.
    pub root: TreeRoot,
    /// The changes.
    pub changes: &'a mut dyn Changes,
}

/// Merges the changes of each tree, one tree after the other, as checkpoint `birth`. The ledger is
/// complete also after an error.
pub async fn checkpoint(
    tree: &Tree,
    trees: &mut [TreeChanges<'_>],
    birth: u64,
    ledger: &mut Ledger,
) -> Result<Vec<Merged>> {
    let mut out = Vec::with_capacity(trees.len());
    for TreeChanges { root, changes } in trees {
        out.push(tree.merge(root, &mut **changes, birth, ledger).await?);
    }
    Ok(out)
}
