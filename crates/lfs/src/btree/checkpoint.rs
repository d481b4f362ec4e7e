//! What a checkpoint asks of the trees: all changes since the last one merged in, new roots out.
//!
//! ```text
//!   freeze the overlay > checkpoint(..) > flush > slots name the new roots > flush > `freed` is free
//!                          any step fails: the old roots hold, `taken` is given back
//! ```
//! Invariants: B71 when [`checkpoint`] is over without an error, every node below the new roots is written,
//! in both copies; it is durable after a flush. B72 until then, and if it fails or is dropped, the old
//! roots read as before: nothing of them is overwritten. B73 when it is over, with an error too, no node is
//! on its way to the device any more.
//!
//! No locks.

use super::Tree;
use super::change::Changes;
use super::merge::Merged;
use super::write::Ledger;
use crate::format::superblock::TreeRoot;
use forebay_base::Result;

/// A tree and what changes in it.
pub struct TreeChanges<'a> {
    /// Its root.
    pub root: TreeRoot,
    /// The changes.
    pub changes: &'a mut dyn Changes,
}

/// Merges the changes of each tree, one tree after the other, as checkpoint `birth`. Fills the ledger also
/// when it fails.
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
