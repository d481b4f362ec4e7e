//! Changes of a tree: keys, with the values that they are to have.
//!
//! No locks.

use super::WHAT;
use crate::format::item::{Item, MAX_VALUE_BYTES};
use crate::format::key::{Key, KeyBytes};
use crate::format::place::Geometry;
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
