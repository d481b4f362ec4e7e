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

use super::merge::Merged;
use super::write::Ledger;
use super::{Tree, WHAT};
use crate::format::item::{Item, MAX_VALUE_BYTES};
use crate::format::key::{Key, KeyBytes};
use crate::format::place::Geometry;
use crate::format::superblock::TreeRoot;
use forebay_base::Result;
use forebay_base::codec::Writer;
use forebay_base::task::BoxFuture;

/// What becomes of a key.
#[derive(Debug, Clone)]
pub struct Change {
    key: KeyBytes,
    value: Option<Box<[u8]>>,
}

impl Change {
    /// The key has this value from now on. `InvalidInput` for a value that is not one of the key's.
    pub fn put(key: Key, item: &Item<'_>, geometry: &Geometry) -> Result<Self> {
        let mut value = [0; MAX_VALUE_BYTES];
        let mut w = Writer::new(WHAT, &mut value);
        item.encode_into(key, &mut w, geometry)?;
        let value = Some(w.written().into());
        Ok(Self { key: key.to_bytes(), value })
    }

    /// There is nothing under the key from now on, if there was anything.
    pub fn delete(key: Key) -> Self {
        Self { key: key.to_bytes(), value: None }
    }

    /// A change of which both are in stored form.
    pub(crate) fn stored(key: KeyBytes, value: Option<Box<[u8]>>) -> Self {
        Self { key, value }
    }

    /// The key in stored form.
    pub fn key(&self) -> &[u8] {
        self.key.as_slice()
    }

    /// The value in stored form; none: there is to be nothing.
    pub fn value(&self) -> Option<&[u8]> {
        self.value.as_deref()
    }
}

/// Changes in rising order of their keys, each key once.
pub trait Changes: Send {
    /// The next one. It may read the old tree for it, such as to cut an extent that is overwritten in part.
    fn next(&mut self) -> BoxFuture<'_, Result<Option<Change>>>;
}

/// Changes from any iterator.
impl<I: Iterator<Item = Change> + Send> Changes for I {
    fn next(&mut self) -> BoxFuture<'_, Result<Option<Change>>> {
        let next = Iterator::next(self);
        Box::pin(std::future::ready(Ok(next)))
    }
}

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
