//! Entries of a directory, by name and by cookie.
//!
//! Invariants: C1 a cookie is the name's hash and a number that tells names of one hash apart; it
//! stays as long as the entry, also when the entry's inode is replaced. So a listing, in the order
//! of cookies, returns each entry exactly once that exists all the time. The cookie of a new name
//! may be anywhere, so a caller that renames all the time still reaches the end. C2 names and
//! cookies hold the same entries.
//!
//! No locks.

use forebay_base::{Error, ErrorKind, Result};
use forebay_vfs::name::Name;
use forebay_vfs::rules::Child;
use forebay_vfs::types::{Cookie, DirEntry, Ino};
use std::collections::BTreeMap;
use std::ops::Bound;

/// Bits of a cookie that tell names of one hash apart.
const TELL_APART_BITS: u32 = 16;
/// Most bits that a hash has in a cookie.
pub const HASH_BITS_MAX: u32 = 46;

/// A directory's entries.
#[derive(Clone, Default)]
pub struct Directory {
    names: BTreeMap<Box<[u8]>, u64>,
    entries: BTreeMap<u64, (Box<[u8]>, Child)>,
}

/// FNV-1a (Fowler, Noll, Vo), its halves folded.
fn hash(name: &[u8], bits: u32) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    for byte in name {
        hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    }
    (hash ^ (hash >> 32)) & ((1 << bits) - 1)
}

impl Directory {
    /// Entries.
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// What `name` denotes.
    pub fn get(&self, name: Name<'_>) -> Option<Child> {
        let cookie = self.names.get(name.as_bytes())?;
        self.entries.get(cookie).map(|(_, target)| *target)
    }

    /// `NoSpace` if no cookie is free for a new entry `name`. Hashes have `bits` bits.
    pub fn check_room(&self, name: Name<'_>, bits: u32) -> Result<()> {
        self.cookie_for(name, bits).map(drop)
    }

    fn cookie_for(&self, name: Name<'_>, bits: u32) -> Result<u64> {
        let first = Cookie::FIRST.0 + (hash(name.as_bytes(), bits) << TELL_APART_BITS);
        let end = first + (1 << TELL_APART_BITS);
        let taken = self.entries.range(first..end).zip(first..);
        let cookie = first + taken.take_while(|((at, _), n)| *at == n).count() as u64;
        match cookie < end {
            true => Ok(cookie),
            false => Err(Error::new(ErrorKind::NoSpace, "add entry", "too many of one hash")),
        }
    }

    /// Adds an entry, or gives an existing one another inode.
    pub fn set(&mut self, name: Name<'_>, target: Child, bits: u32) -> Result<()> {
        let cookie = match self.names.get(name.as_bytes()) {
            Some(cookie) => *cookie,
            None => self.cookie_for(name, bits)?,
        };
        self.names.insert(name.as_bytes().into(), cookie);
        self.entries.insert(cookie, (name.as_bytes().into(), target));
        debug_assert_eq!(self.names.len(), self.entries.len(), "C2: the same entries");
        Ok(())
    }

    /// Takes an entry out.
    pub fn remove(&mut self, name: Name<'_>) {
        if let Some(cookie) = self.names.remove(name.as_bytes()) {
            self.entries.remove(&cookie);
        }
        debug_assert_eq!(self.names.len(), self.entries.len(), "C2: the same entries");
    }

    /// Up to `max` entries after `after`.
    pub fn list(&self, after: Cookie, max: usize) -> Vec<DirEntry> {
        let rest = (Bound::Excluded(after.0), Bound::Unbounded);
        let entry = |(cookie, (name, (ino, kind))): (&u64, &(Box<[u8]>, Child))| DirEntry {
            cookie: Cookie(*cookie),
            ino: *ino,
            kind: *kind,
            name: name.clone(),
        };
        self.entries.range(rest).take(max).map(entry).collect()
    }

    /// All names, in order.
    pub fn names(&self) -> impl Iterator<Item = (&[u8], Ino)> {
        self.names.iter().filter_map(|(name, cookie)| {
            self.entries.get(cookie).map(|(_, (ino, _))| (&**name, *ino))
        })
    }
}
