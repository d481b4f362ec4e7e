//! Listings of directories.
//!
//! Offsets in a listing are the file system's cookies; the values below them stand for `.` and
//! `..`.
//!
//! The kernel may cache a listing. It drops its copy when a change goes through the mount, but
//! knows nothing of other changes. Invariants: D1 it is told to cache only while no other front end
//! has changed anything. D2 and only after a listing all of whose attributes it may keep for long:
//! a cached listing brings no attributes, and each one would be a request.
//!
//! No locks.

use super::{Answer, BLOCK_BYTES, Core, LONG, Outcome, Undo};
use crate::device::PAYLOAD_MAX;
use crate::inodes::Mark;
use crate::proto::reply::{Body, ENTRY_OUT_BYTES, dirent_bytes};
use crate::proto::request::ReadIn;
use forebay_base::{ErrorKind, Result};
use forebay_vfs::{Attr, Cookie, DirEntry, FileKind, Ino};

/// Offset after `.`, and after `..`.
const AFTER_SELF: u64 = 1;
const AFTER_PARENT: u64 = 2;
/// Most entries that are requested from the file system at a time.
const BATCH: usize = 128;

/// A listing in progress.
struct Listing<'a> {
    core: &'a Core,
    dir: Ino,
    body: Body,
    undo: Undo,
    max: usize,
    plus: bool,
    seen: u64,
}

impl Listing<'_> {
    /// Adds an entry, with attributes if given. False: the reply has no space for it.
    fn add(
        &mut self,
        ino: Ino,
        next: u64,
        kind: FileKind,
        name: &[u8],
        attr: Option<&Attr>,
    ) -> bool {
        let before = self.body.len();
        let mut told = None;
        if self.plus {
            if before + ENTRY_OUT_BYTES + dirent_bytes(name) > self.max {
                return false;
            }
            match attr {
                Some(attr) => {
                    // A mark needs an inode that is counted, so it is counted first (inodes.N3).
                    self.core.told(attr.ino, &mut self.undo);
                    told = Some(attr.ino);
                    let valid = self.core.valid(attr, self.seen);
                    if valid.attr < LONG {
                        self.core.inodes.take(self.dir, Mark::Settled);
                    }
                    self.body.entry_out(attr, &valid, BLOCK_BYTES)
                }
                None => self.body.no_entry_out(LONG),
            };
        }
        let fits = self.body.dirent(ino.0, next, kind, name, self.max);
        if !fits {
            self.body.truncate(before);
            if let Some(ino) = told {
                self.undo.inodes.pop();
                self.core.inodes.forgot(ino, 1);
            }
        }
        fits
    }

    /// Number of entries to request: about as many as fit, and one more, at most [`BATCH`].
    fn wanted(&self) -> usize {
        let attr = if self.plus { ENTRY_OUT_BYTES } else { 0 };
        let room = self.max.saturating_sub(self.body.len());
        (room / (attr + dirent_bytes(b"n")) + 1).min(BATCH)
    }

    /// Adds listed entries. False: the reply has no space for all of them.
    async fn entries(&mut self, entries: &[DirEntry]) -> Result<bool> {
        let mut attrs = Vec::new();
        if self.plus {
            let inos: Vec<Ino> = entries.iter().map(|entry| entry.ino).collect();
            attrs = self.core.fs.getattr_listed(&inos).await;
        }
        let mut attrs = attrs.into_iter();
        for entry in entries {
            let attr = match attrs.next().transpose() {
                Ok(attr) => attr,
                // The entry was removed meanwhile, so the kernel gets no attributes.
                Err(e) if matches!(e.kind(), ErrorKind::Stale | ErrorKind::NotFound) => None,
                Err(e) => return Err(e),
            };
            if attr.is_none() {
                self.core.inodes.take(self.dir, Mark::Settled);
            }
            if !self.add(entry.ino, entry.cookie.0, entry.kind, &entry.name, attr.as_ref()) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

impl Core {
    /// Whether the kernel may serve listings of the directory from its cache (D1, D2). With many
    /// inodes it forgets attributes, and then a listing that brings them costs less.
    pub(super) fn may_cache_listing(&self, dir: Ino) -> bool {
        // Of the root all marks count as set.
        if dir == Ino::ROOT || !self.inodes.marked(dir, Mark::Settled) {
            return false;
        }
        // Marked before the epoch is read (coherent.K1).
        self.inodes.mark(dir, Mark::Listed);
        self.epoch() == 0 && self.inodes.len() < self.inodes_max / 2
    }

    pub(super) async fn readdir(&self, dir: Ino, io: &ReadIn, plus: bool) -> Result<Outcome> {
        let max = (io.size as usize).min(PAYLOAD_MAX);
        let body = Body::with_capacity(max.min(64 << 10));
        let (undo, seen) = (Undo::default(), self.epoch());
        if plus && io.offset == 0 {
            self.inodes.mark(dir, Mark::Settled);
        }
        let mut listing = Listing { core: self, dir, body, undo, max, plus, seen };
        let done = self.list(dir, io.offset, &mut listing).await;
        let Listing { body, undo, .. } = listing;
        match done {
            Ok(()) => Ok(Outcome { answer: Answer::Body(body), undo }),
            Err(e) => {
                self.undo(undo);
                Err(e)
            }
        }
    }

    async fn list(&self, dir: Ino, offset: u64, listing: &mut Listing<'_>) -> Result<()> {
        if offset < AFTER_SELF && !listing.add(dir, AFTER_SELF, FileKind::Directory, b".", None) {
            return Ok(());
        }
        if offset < AFTER_PARENT {
            // A removed directory has no parent; its own number stands in, so that the listing
            // stays valid.
            let parent = match self.fs.parent(dir).await {
                Ok(parent) => parent,
                Err(e) if e.kind() == ErrorKind::NotFound => dir,
                Err(e) => return Err(e),
            };
            if !listing.add(parent, AFTER_PARENT, FileKind::Directory, b"..", None) {
                return Ok(());
            }
        }
        let mut after = Cookie(if offset <= AFTER_PARENT { Cookie::START.0 } else { offset });
        loop {
            let wanted = listing.wanted();
            let entries = self.fs.readdir(dir, after, wanted).await?;
            let Some(last) = entries.last() else { return Ok(()) };
            after = last.cookie;
            if !listing.entries(&entries).await? || entries.len() < wanted {
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::notify::Notice;
    use crate::options::Options;
    use forebay_base::task::block_on;
    use forebay_base::world::RealWorld;
    use forebay_testkit::mem_fs::{MemFs, MemOptions};
    use forebay_vfs::coherent::{Change, Observer};
    use forebay_vfs::{FileSystem, ManualClock, Name, NewInode};
    use std::sync::Arc;

    /// D1: a change by another front end makes the cached listing stale, and none is cached
    /// afterwards.
    #[test]
    fn d1_listing_is_cached_until_others_change_names() {
        let clock = Arc::new(ManualClock::default());
        let fs = Arc::new(MemFs::new(MemOptions { clock, ..MemOptions::default() }));
        let new = NewInode::of(FileKind::Directory, 0o755);
        let dir = block_on(fs.mkdir(Ino::ROOT, Name::new(b"dir").unwrap(), &new)).unwrap().ino;
        let core = Core::new(fs, RealWorld::new(), Default::default(), &Options::default());
        core.inodes.told(dir);
        assert!(!core.may_cache_listing(dir), "it was not listed");
        let io = ReadIn { fh: 0, offset: 0, size: 4096, read_flags: 0, flags: 0 };
        block_on(core.readdir(dir, &io, true)).unwrap();
        assert!(core.may_cache_listing(dir));
        assert!(!core.may_cache_listing(Ino::ROOT), "the root has no marks");
        core.changed(&Change::Entry { dir, name: (*b"name").into(), gone: None });
        assert!(!core.may_cache_listing(dir), "D1");
        let told = core.notifier.queued();
        assert_eq!(told.first(), Some(&Notice::content(dir.0, 0, u64::MAX)), "D1");
        core.inodes.take(dir, Mark::Settled);
        core.changed(&Change::Entry { dir, name: (*b"name").into(), gone: None });
        let told = core.notifier.queued();
        assert_eq!(told.get(2), told.first(), "D1: an opening may still have it");
        block_on(core.readdir(dir, &io, true)).unwrap();
        assert!(!core.may_cache_listing(dir), "D1: others may change it again");
    }
}
