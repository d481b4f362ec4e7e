//! Entries of a directory in memory: some or all of them, by cookie.
//!
//! Invariants: C11 a cookie consists of the name's hash and a number that distinguishes names of
//! equal hash. It stays as long as the entry, also when the entry's inode is replaced, and it is in
//! the log, so that replay makes no choice. C12 an entry in memory is valid; a cookie that is
//! `known` and has no entry in memory does not exist. C13 evicted cookies are not known any more;
//! cookies that were loaded after a task began to wait for them are not evicted.
//!
//! No locks: the volume's state lock covers it.

use crate::format::inode::FileType;
use crate::format::key::{Cookie, NameHash};
use forebay_base::{Error, ErrorKind, Result};
use forebay_cache::rangeset::RangeSet;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry::Vacant;
use std::ops::Range;

/// The inode of an entry, with its type.
pub(crate) type Child = (u64, FileType);

/// Above the highest cookie.
pub(crate) const COOKIES_END: u64 = 1 << 63;
/// Approximate memory of an entry in addition to its name, with a range of known cookies, bytes.
const ENTRY_BYTES: usize = 96;

/// Entries of a directory in memory.
#[derive(Debug, Clone, Default)]
pub(crate) struct Directory {
    /// By cookie.
    entries: BTreeMap<u64, (Box<[u8]>, Child)>,
    known: RangeSet,
    /// Loaded ranges, with their times.
    loads: Vec<(u64, Range<u64>)>,
    bytes: usize,
    /// Eviction continues from this cookie on.
    hand: u64,
    /// Number of loads since the last eviction.
    load_count: u32,
}

/// The cookies that names of this hash may have.
fn cookies_of(hash: NameHash) -> Range<u64> {
    Cookie::new(hash, 0).to_u64()..Cookie::new(hash, u16::MAX).to_u64() + 1
}

impl Directory {
    /// A new directory, which is known to be empty.
    pub fn empty() -> Self {
        let mut dir = Self::default();
        dir.known.insert(0..COOKIES_END);
        dir
    }

    /// Approximate memory of its entries, bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    fn knows(&self, cookies: &Range<u64>) -> bool {
        cookies.is_empty() || self.known.within(cookies.clone()).next().as_ref() == Some(cookies)
    }

    /// Cookie and inode of a name. The outer `None`: it has to be loaded.
    pub fn get(&self, name: &[u8], hash: NameHash) -> Option<Option<(Cookie, Child)>> {
        let mut same = self.entries.range(cookies_of(hash));
        let found = same.find(|(_, (there, _))| **there == *name);
        match found.and_then(|(cookie, (_, child))| Some((Cookie::from_u64(*cookie)?, *child))) {
            Some(found) => Some(Some(found)),
            None => self.knows(&cookies_of(hash)).then_some(None),
        }
    }

    /// The cookie for a new entry: `NoSpace` if too many names have its hash. `None`: the names of
    /// this hash have to be loaded.
    pub fn cookie_for(&self, hash: NameHash) -> Option<Result<Cookie>> {
        if !self.knows(&cookies_of(hash)) {
            return None;
        }
        let cookies = cookies_of(hash);
        let taken = self.entries.range(cookies.clone()).zip(cookies);
        let taken = taken.take_while(|((there, _), number)| *there == number).count();
        let full = || Error::new(ErrorKind::NoSpace, "add entry", "too many names of one hash");
        Some(u16::try_from(taken).map(|nth| Cookie::new(hash, nth)).map_err(|_| full()))
    }

    /// Adds an entry.
    pub fn set(&mut self, cookie: Cookie, name: &[u8], child: Child) {
        self.forget(cookie.to_u64());
        self.bytes += ENTRY_BYTES + name.len();
        self.entries.insert(cookie.to_u64(), (name.into(), child));
    }

    /// Adds a loaded entry, unless it is in memory already.
    pub fn load(&mut self, cookie: Cookie, name: &[u8], child: Child) {
        if let Vacant(place) = self.entries.entry(cookie.to_u64()) {
            place.insert((name.into(), child));
            self.bytes += ENTRY_BYTES + name.len();
        }
    }

    /// Removes an entry.
    pub fn remove(&mut self, cookie: Cookie) {
        self.forget(cookie.to_u64());
    }

    fn forget(&mut self, cookie: u64) {
        if let Some((name, _)) = self.entries.remove(&cookie) {
            self.bytes -= ENTRY_BYTES + name.len();
        }
    }

    /// Records that all entries of these cookies were in memory at the cache's time `when`. No task
    /// waits for loads before `kept_from`.
    pub fn loaded(&mut self, cookies: Range<u64>, when: u64, kept_from: u64) {
        self.loads.retain(|(when, _)| *when >= kept_from);
        self.known.insert(cookies.clone());
        self.loads.push((when, cookies));
        self.load_count = self.load_count.saturating_add(1);
    }

    /// The first known cookie after those of this hash.
    pub fn known_behind(&self, hash: NameHash) -> Option<Cookie> {
        self.known.next_from(cookies_of(hash).end).and_then(Cookie::from_u64)
    }

    /// Number of loads since the last eviction.
    pub fn load_count(&self) -> u32 {
        self.load_count
    }

    /// Evicts about `most` entries, with the knowledge about them, except loads at `kept_from` or
    /// later (C13). Returns the freed bytes.
    pub fn let_go(&mut self, most: usize, kept_from: u64) -> usize {
        self.loads.retain(|(when, _)| *when >= kept_from);
        self.load_count = 0;
        let before = self.bytes;
        let behind = self.entries.range(self.hand..).nth(most);
        let upto = behind.map_or(COOKIES_END, |(cookie, _)| *cookie);
        let mut gone = RangeSet::default();
        gone.insert(self.hand..upto);
        self.hand = if upto == COOKIES_END { 0 } else { upto };
        for (_, kept) in &self.loads {
            gone.remove(kept.clone());
        }
        for range in gone.iter() {
            self.take_out(&range);
            self.known.remove(range);
        }
        before - self.bytes
    }

    /// Removes entries; those at the front, the usual case, in one step.
    fn take_out(&mut self, cookies: &Range<u64>) {
        if self.entries.range(..cookies.start).next().is_none() {
            let behind = self.entries.split_off(&cookies.end);
            let gone = std::mem::replace(&mut self.entries, behind);
            self.bytes -= gone.values().map(|(name, _)| ENTRY_BYTES + name.len()).sum::<usize>();
        } else {
            let inside: Vec<u64> = self.entries.range(cookies.clone()).map(|(c, _)| *c).collect();
            inside.into_iter().for_each(|cookie| self.forget(cookie));
        }
    }

    /// Whether nothing is in memory or known.
    pub fn is_vacant(&self) -> bool {
        self.entries.is_empty() && self.known.is_empty()
    }

    /// Up to `max` entries after the cookie `after`: cookie, name, inode. `None`: some have to be
    /// loaded.
    pub fn list<'a>(
        &'a self,
        after: u64,
        max: usize,
    ) -> Option<impl Iterator<Item = (u64, &'a [u8], Child)> + use<'a>> {
        let from = after.saturating_add(1).min(COOKIES_END);
        if !self.knows(&(from..COOKIES_END)) {
            return None;
        }
        let entry =
            |(cookie, (name, child)): (&u64, &'a (Box<[u8]>, Child))| (*cookie, &**name, *child);
        Some(self.entries.range(from..).take(max).map(entry))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(name: &[u8]) -> NameHash {
        NameHash::new(&[7; 16], name)
    }

    /// C11: a cookie stays with its entry, and a free cookie is used again.
    #[test]
    fn c11_cookies_stay() {
        let mut dir = Directory::empty();
        let first = dir.cookie_for(hash(b"a")).unwrap().unwrap();
        dir.set(first, b"a", (2, FileType::Regular));
        let next = dir.cookie_for(hash(b"a")).unwrap().unwrap();
        assert_eq!(next.to_u64(), first.to_u64() + 1, "the place is taken");
        dir.set(first, b"a", (3, FileType::Fifo));
        assert_eq!(dir.get(b"a", hash(b"a")), Some(Some((first, (3, FileType::Fifo)))));
        let behind = |after: u64| dir.list(after, 9).map(|entries| entries.count());
        assert_eq!(behind(0), Some(1));
        assert_eq!((behind(first.to_u64()), behind(u64::MAX)), (Some(0), Some(0)));
        dir.remove(first);
        assert_eq!(dir.cookie_for(hash(b"a")).unwrap().unwrap(), first);
        assert_eq!((dir.bytes(), dir.get(b"a", hash(b"a"))), (0, Some(None)));
    }

    /// C12, C13: evicted cookies are not known, and cookies for which a task waits stay.
    #[test]
    fn c12_c13_evicted_cookies_are_unknown_and_awaited_ones_stay() {
        let mut dir = Directory::empty();
        let names: Vec<Vec<u8>> = (0..100u32).map(|n| n.to_le_bytes().to_vec()).collect();
        for name in &names {
            let cookie = dir.cookie_for(hash(name)).unwrap().unwrap();
            dir.set(cookie, name, (2, FileType::Regular));
        }
        let kept = cookies_of(hash(&names[50]));
        dir.loaded(kept.clone(), 7, 7);
        let full = dir.bytes();
        assert!(dir.let_go(10, 7) > 0 && dir.bytes() < full);
        for _ in 0..12 {
            dir.let_go(10, 7);
        }
        assert!(matches!(dir.get(&names[50], hash(&names[50])), Some(Some(_))));
        assert_eq!(dir.get(&names[1], hash(&names[1])), None, "C12: it may be there");
        assert!(dir.cookie_for(hash(b"new")).is_none() && dir.list(0, 1).is_none());
        assert_eq!(dir.get(b"other", hash(&names[50])), Some(None), "known not to be there");
        let behind = |from: u64| {
            let hash = Cookie::from_u64(from).unwrap().hash();
            dir.known_behind(hash).map(Cookie::to_u64)
        };
        assert_eq!(behind(kept.start), None);
        assert_eq!(behind(Cookie::FIRST.to_u64()), Some(kept.start), "C12");
        for _ in 0..3 {
            dir.let_go(100, 8);
        }
        assert!(dir.is_vacant() && dir.bytes() == 0);
    }
}
