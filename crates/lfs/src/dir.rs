//! Entries of a directory in memory, by name and by cookie.
//!
//! Invariants: C1 a cookie is the name's hash and a number that tells names of one hash apart; it stays as long
//! as the entry, also when the entry's inode is replaced, and it is in the log: replay makes no choice.
//! C2 names and cookies hold the same entries.
//!
//! No locks: the volume's state lock covers it.

use crate::format::inode::FileType;
use forebay_base::checksum::crc32c_append;
use forebay_base::{Error, ErrorKind, Result};
use forebay_vfs::Cookie;
use std::collections::BTreeMap;
use std::ops::Bound;

/// Bits of a cookie that tell names of one hash apart.
const TELL_APART_BITS: u32 = 16;

/// What an entry says of its inode.
pub(crate) type Child = (u64, FileType);

/// See the module.
#[derive(Debug, Clone, Default)]
pub(crate) struct Directory {
    names: BTreeMap<Box<[u8]>, u64>,
    entries: BTreeMap<u64, (Box<[u8]>, Child)>,
}

impl Directory {
    /// Entries.
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// Cookie and inode of a name.
    pub fn get(&self, name: &[u8]) -> Option<(u64, Child)> {
        let cookie = *self.names.get(name)?;
        self.entries.get(&cookie).map(|(_, child)| (cookie, *child))
    }

    /// The cookie for a new entry: `NoSpace` if too many names have its hash.
    pub fn cookie_for(&self, name: &[u8], seed: u32) -> Result<u64> {
        let hash = u64::from(crc32c_append(seed, name));
        let first = Cookie::FIRST.0 + (hash << TELL_APART_BITS);
        let end = first + (1 << TELL_APART_BITS);
        let taken = self.entries.range(first..end).zip(first..);
        let cookie = first + taken.take_while(|((at, _), n)| *at == n).count() as u64;
        match cookie < end {
            true => Ok(cookie),
            false => Err(Error::new(ErrorKind::NoSpace, "add entry", "too many of one hash")),
        }
    }

    /// Puts an entry.
    pub fn set(&mut self, cookie: u64, name: &[u8], child: Child) {
        self.remove(name);
        self.names.insert(name.into(), cookie);
        self.entries.insert(cookie, (name.into(), child));
        debug_assert_eq!(self.names.len(), self.entries.len(), "C2: the same entries");
    }

    /// Takes an entry out.
    pub fn remove(&mut self, name: &[u8]) {
        if let Some(cookie) = self.names.remove(name) {
            self.entries.remove(&cookie);
        }
    }

    /// Up to `max` entries behind the cookie `after`: cookie, name, inode.
    pub fn list(&self, after: u64, max: usize) -> impl Iterator<Item = (u64, &[u8], Child)> {
        let rest = (Bound::Excluded(after), Bound::Unbounded);
        let entries = self.entries.range(rest).take(max);
        entries.map(|(cookie, (name, child))| (*cookie, &**name, *child))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// C1: names of one hash lie side by side, and a gap is filled again.
    #[test]
    fn c1_cookies_stay() {
        let mut dir = Directory::default();
        let first = dir.cookie_for(b"a", 7).unwrap();
        dir.set(first, b"a", (2, FileType::Regular));
        assert_eq!(dir.cookie_for(b"a", 7).unwrap(), first + 1, "the place is taken");
        dir.set(first, b"a", (3, FileType::Fifo));
        assert_eq!(dir.get(b"a"), Some((first, (3, FileType::Fifo))));
        assert_eq!((dir.len(), dir.list(0, 9).count(), dir.list(first, 9).count()), (1, 1, 0));
        dir.remove(b"a");
        assert_eq!((dir.len(), dir.cookie_for(b"a", 7).unwrap()), (0, first));
    }
}
