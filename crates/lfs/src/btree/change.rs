//! Changes of a tree: keys with their new values.
//!
//! No locks.

use super::WHAT;
use crate::format::item::{Item, MAX_VALUE_BYTES};
use crate::format::key::{Key, KeyBytes};
use crate::format::place::Geometry;
use forebay_base::Result;
use forebay_base::codec::Writer;
use forebay_base::task::BoxFuture;

/// A change of one key.
#[derive(Debug, Clone)]
pub struct Change {
    key: KeyBytes,
    value: Option<Box<[u8]>>,
}

impl Change {
    /// Sets the value of a key. `InvalidInput` for a value that does not belong to the key.
    pub fn put(key: Key, item: &Item<'_>, geometry: &Geometry) -> Result<Self> {
        let mut value = [0; MAX_VALUE_BYTES];
        let mut w = Writer::new(WHAT, &mut value);
        item.encode_into(key, &mut w, geometry)?;
        let value = Some(w.written().into());
        Ok(Self { key: key.to_bytes(), value })
    }

    /// Removes a key, if it exists.
    pub fn delete(key: Key) -> Self {
        Self { key: key.to_bytes(), value: None }
    }

    /// A change with key and value in stored form.
    pub(crate) fn stored(key: KeyBytes, value: Option<Box<[u8]>>) -> Self {
        Self { key, value }
    }

    /// Key and value in stored form.
    pub(crate) fn into_stored(self) -> (KeyBytes, Option<Box<[u8]>>) {
        (self.key, self.value)
    }

    /// The key in stored form.
    pub fn key(&self) -> &[u8] {
        self.key.as_slice()
    }

    /// The new value in stored form; `None`: the key is removed.
    pub fn value(&self) -> Option<&[u8]> {
        self.value.as_deref()
    }
}

/// Changes in ascending order of their keys, each key once.
pub trait Changes: Send {
    /// The next change. It may read the old tree, for example to split an extent that is partly
    /// overwritten.
    fn next(&mut self) -> BoxFuture<'_, Result<Option<Change>>>;
}

/// Changes from any iterator.
impl<I: Iterator<Item = Change> + Send> Changes for I {
    fn next(&mut self) -> BoxFuture<'_, Result<Option<Change>>> {
        let next = Iterator::next(self);
        Box::pin(std::future::ready(Ok(next)))
    }
}
