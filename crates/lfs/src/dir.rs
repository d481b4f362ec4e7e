//! Entries of a directory in memory, by name and by cookie.
//!
//! Invariants: C11 a cookie is the name's hash and a number that tells names of one hash apart; it stays as
//! long as the entry, also when the entry's inode is replaced, and it is in the log: replay makes no choice.
//! C12 names and cookies hold the same entries.
//!
//! No locks: the volume's state lock covers it.

use crate::format::inode::FileType;
use crate::format::key::{Cookie, NameHash};
use forebay_base::{Error, ErrorKind, Result};
use std::collections::BTreeMap;
use std::ops::Bound;

/// What an entry says of its inode.
pub(crate) type Child = (u64, FileType);

/// See the module.
#[derive(Debug, Clone, Default)]
pub(crate) struct Directory {
    names: BTreeMap<Box<[u8]>, Cookie>,
    entries: BTreeMap<Cookie, (Box<[u8]>, Child)>,
}

impl Directory {
    /// Entries.
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// Cookie and inode of a name.
    pub fn get(&self, name: &[u8]) -> Option<(Cookie, Child)> {
        let cookie = *self.names.get(name)?;
        self.entries.get(&cookie).map(|(_, child)| (cookie, *child))
    }

    /// The cookie for a new entry: `NoSpace` if too many names have its hash.
    pub fn cookie_for(&self, name: &[u8], nonce: &[u8; 16]) -> Result<Cookie> {
        let hash = NameHash::new(nonce, name);
        let taken = self.entries.range(Cookie::new(hash, 0)..=Cookie::new(hash, u16::MAX));
        let mut free = 0u16;
        for (cookie, _) in taken {
            if *cookie != Cookie::new(hash, free) {
                break;
            }
            free = match free.checked_add(1) {
                Some(next) => next,
                None => {
                    let text = "too many names of one hash";
                    return Err(Error::new(ErrorKind::NoSpace, "add entry", text));
                }
            };
        }
        Ok(Cookie::new(hash, free))
    }

    /// Puts an entry.
    pub fn set(&mut self, cookie: Cookie, name: &[u8], child: Child) {
        self.remove(name);
        self.names.insert(name.into(), cookie);
        self.entries.insert(cookie, (name.into(), child));
        debug_assert_eq!(self.names.len(), self.entries.len(), "C12: the same entries");
    }

    /// Takes an entry out.
    pub fn remove(&mut self, name: &[u8]) {
        if let Some(cookie) = self.names.remove(name) {
            self.entries.remove(&cookie);
        }
    }

    /// Up to `max` entries behind the cookie `after`: cookie, name, inode.
    pub fn list<'a>(
        &'a self,
        after: u64,
        max: usize,
    ) -> impl Iterator<Item = (u64, &'a [u8], Child)> {
        let from = match Cookie::from_u64(after) {
            Some(after) => Bound::Excluded(after),
            // Before the first cookie, or behind the last.
            None if after <= i64::MAX as u64 => Bound::Unbounded,
            None => return None.into_iter().flatten(),
        };
        let entries = self.entries.range((from, Bound::Unbounded)).take(max);
        let entry = |(cookie, (name, child)): (&Cookie, &'a (Box<[u8]>, Child))| {
            (cookie.to_u64(), &**name, *child)
        };
        Some(entries.map(entry)).into_iter().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// C11: a cookie stays with its entry, and a gap is filled again.
    #[test]
    fn c11_cookies_stay() {
        let mut dir = Directory::default();
        let nonce = [7; 16];
        let first = dir.cookie_for(b"a", &nonce).unwrap();
        dir.set(first, b"a", (2, FileType::Regular));
        let next = dir.cookie_for(b"a", &nonce).unwrap();
        assert_eq!(next.to_u64(), first.to_u64() + 1, "the place is taken");
        dir.set(first, b"a", (3, FileType::Fifo));
        assert_eq!(dir.get(b"a"), Some((first, (3, FileType::Fifo))));
        let behind = |after: u64| dir.list(after, 9).count();
        assert_eq!((dir.len(), behind(0), behind(first.to_u64()), behind(u64::MAX)), (1, 1, 0, 0));
        dir.remove(b"a");
        assert_eq!((dir.len(), dir.cookie_for(b"a", &nonce).unwrap()), (0, first));
    }
}
