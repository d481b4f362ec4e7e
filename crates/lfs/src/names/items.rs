//! Changes of names and attributes since the last checkpoint, as items of the tree in stored form.
//! [`crate::names::load`] reads them.
//!
//! Invariants: A11 the items of the newest durable checkpoint's tree, with the frozen and then the
//! active items over them, have exactly the state of all records. Times that are ahead of the log
//! (state.S14) are not included. A12 the name of an attribute keeps its cookie as long as it
//! exists. The cookie of a new name follows from the existing names, so that replay assigns the
//! same one.
//!
//! No locks: the volume's state lock covers it.

use crate::btree::Change;
use crate::format::item::{CHUNK_BYTES, Item};
use crate::format::key::{Key, KeyBytes};
use crate::format::place::Geometry;
use forebay_base::Result;
use std::collections::BTreeMap;
use std::ops::Range;

/// Items by key; `None`: the key is removed.
#[derive(Debug, Default, Clone)]
pub(crate) struct Items {
    list: BTreeMap<KeyBytes, Option<Box<[u8]>>>,
    bytes: u64,
}

impl Items {
    /// Number of items.
    pub fn len(&self) -> u64 {
        self.list.len() as u64
    }

    /// Bytes of their values.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The change of a key: none, a removal, or a new value.
    pub fn get(&self, key: Key) -> Option<Option<&[u8]>> {
        self.list.get(&key.to_bytes()).map(|value| value.as_deref())
    }

    /// The changes of a range of keys.
    pub fn range(
        &self,
        keys: &Range<KeyBytes>,
    ) -> impl Iterator<Item = (&KeyBytes, Option<&[u8]>)> {
        let found = (keys.start < keys.end).then(|| self.list.range(keys.start..keys.end));
        found.into_iter().flatten().map(|(key, value)| (key, value.as_deref()))
    }

    /// Sets the change of a key: a new value, or a removal.
    pub fn put(&mut self, key: KeyBytes, value: Option<Box<[u8]>>) {
        self.bytes += value.as_ref().map_or(0, |value| value.len() as u64);
        if let Some(old) = self.list.insert(key, value).flatten() {
            self.bytes -= old.len() as u64;
        }
    }

    /// Removes the change of a key.
    pub fn forget(&mut self, key: &KeyBytes) {
        if let Some(old) = self.list.remove(key).flatten() {
            self.bytes -= old.len() as u64;
        }
    }

    /// Adds the items of `newer` over these.
    pub fn put_over(&mut self, newer: Self) {
        for (key, value) in newer.list {
            self.put(key, value);
        }
    }

    /// The changes in order of keys.
    pub fn changes(&self) -> impl Iterator<Item = Change> + Send + '_ {
        self.list.iter().map(|(key, value)| Change::stored(*key, value.clone()))
    }

    /// Sets the item of a key.
    pub fn item(&mut self, key: Key, item: &Item<'_>, geometry: &Geometry) -> Result<()> {
        let (key, value) = Change::put(key, item, geometry)?.into_stored();
        self.put(key, value);
        Ok(())
    }

    /// Removes a key.
    pub fn nothing(&mut self, key: Key) {
        self.put(key.to_bytes(), None);
    }
}

/// Number of items for a value of this length.
pub(crate) fn pieces(len: usize) -> u16 {
    len.div_ceil(CHUNK_BYTES) as u16
}
