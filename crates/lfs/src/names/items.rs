//! Names and attributes as items of the tree: what changed since the last checkpoint, in the form in which it
//! is stored. How it comes back is in [`crate::names::load`].
//!
//! Invariants: A11 what is in the tree below the newest durable checkpoint, with the frozen items over it and
//! the active ones over those, is what all records say, no more: times that are ahead of the log (S14) are
//! not among it. A12 a name of an attribute keeps its cookie as long as it is there; which one it gets
//! follows from the names that are there, so that replay gives the same.
//!
//! No locks: the volume's state lock covers it.

use crate::btree::Change;
use crate::format::item::{CHUNK_BYTES, Item};
use crate::format::key::{Key, KeyBytes};
use crate::format::place::Geometry;
use forebay_base::Result;
use std::collections::BTreeMap;
use std::ops::Range;

/// Items by key; none: there is to be nothing.
#[derive(Debug, Default, Clone)]
pub(crate) struct Items {
    list: BTreeMap<KeyBytes, Option<Box<[u8]>>>,
    bytes: u64,
}

impl Items {
    /// How many.
    pub fn len(&self) -> u64 {
        self.list.len() as u64
    }

    /// Bytes of values.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// What is said of a key: nothing, that there is nothing, or a value.
    pub fn get(&self, key: Key) -> Option<Option<&[u8]>> {
        self.list.get(&key.to_bytes()).map(|value| value.as_deref())
    }

    /// What is said of a range of keys.
    pub fn range(
        &self,
        keys: &Range<KeyBytes>,
    ) -> impl Iterator<Item = (&KeyBytes, Option<&[u8]>)> {
        let found = (keys.start < keys.end).then(|| self.list.range(keys.start..keys.end));
        found.into_iter().flatten().map(|(key, value)| (key, value.as_deref()))
    }

    /// Says what is under a key.
    pub fn put(&mut self, key: KeyBytes, value: Option<Box<[u8]>>) {
        self.bytes += value.as_ref().map_or(0, |value| value.len() as u64);
        if let Some(old) = self.list.insert(key, value).flatten() {
            self.bytes -= old.len() as u64;
        }
    }

    /// Says nothing of a key any more.
    pub fn forget(&mut self, key: &KeyBytes) {
        if let Some(old) = self.list.remove(key).flatten() {
            self.bytes -= old.len() as u64;
        }
    }

    /// What `newer` says, before what is said here.
    pub fn put_over(&mut self, newer: Self) {
        for (key, value) in newer.list {
            self.put(key, value);
        }
    }

    /// In the order of keys.
    pub fn changes(&self) -> impl Iterator<Item = Change> + Send + '_ {
        self.list.iter().map(|(key, value)| Change::stored(*key, value.clone()))
    }

    /// Says which item is under a key.
    pub fn item(&mut self, key: Key, item: &Item<'_>, geometry: &Geometry) -> Result<()> {
        let change = Change::put(key, item, geometry)?;
        self.put(key.to_bytes(), change.value().map(Into::into));
        Ok(())
    }

    /// There is to be nothing under a key.
    pub fn nothing(&mut self, key: Key) {
        self.put(key.to_bytes(), None);
    }
}

/// Items that so many bytes of a value take.
pub(crate) fn pieces(len: usize) -> u16 {
    len.div_ceil(CHUNK_BYTES) as u16
}
