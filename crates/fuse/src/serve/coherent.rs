//! Reports changes by other front ends in the process to the kernel. See [`forebay_vfs::coherent`].
//!
//! Invariants: K1 a change raises `epoch` before it checks whether the kernel may have cached what
//! it made stale; an answer marks the inode before it checks `epoch`. So at least one of them sees
//! the other. K2 an answer during which a change happened is not cached. K3 another front end may
//! have changed a file since the kernel learned its size, or may be about to change it. Then an
//! `O_APPEND` goes to the daemon's end of file, not the kernel's. K4 the kernel's size of a file is
//! at least what other front ends have made it.
//!
//! No locks.

use super::Core;
use crate::handles::Handle;
use crate::inodes::Mark;
use crate::ioctl::MODE_UNCACHED;
use crate::notify::Notice;
use crate::proto::consts::WRITE_CACHE;
use crate::proto::reply::Valid;
use crate::proto::request::WriteIn;
use forebay_base::sync::atomic::Ordering;
use forebay_base::task::BoxFuture;
use forebay_vfs::coherent::{Change, Observer, Ticket};
use forebay_vfs::types::{S_ISGID, S_ISUID};
use forebay_vfs::{Attr, FileKind, FileSystem, Ino, NotifyingFs, OpenFileRef, Privileges, Wrote};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// A file system to be mounted, and the wrapper for other front ends, if there are any.
pub struct Served {
    pub(crate) fs: Arc<dyn FileSystem>,
    pub(crate) notifying: Option<Arc<NotifyingFs>>,
}

impl From<Arc<dyn FileSystem>> for Served {
    fn from(fs: Arc<dyn FileSystem>) -> Self {
        Self { fs, notifying: None }
    }
}

impl From<Arc<NotifyingFs>> for Served {
    fn from(notifying: Arc<NotifyingFs>) -> Self {
        Self { fs: notifying.inner().clone(), notifying: Some(notifying) }
    }
}

impl Core {
    /// The number of changes by other front ends.
    pub(super) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::SeqCst)
    }

    /// How long the kernel may cache attributes that were read when the epoch was `seen` (K2).
    pub(super) fn valid(&self, attr: &Attr, seen: u64) -> Valid {
        self.inodes.mark(attr.ino, Mark::Attributes);
        if attr.kind == FileKind::File && attr.perm & (S_ISUID | S_ISGID) != 0 {
            self.inodes.mark(attr.ino, Mark::SetId);
        }
        let valid = super::valid(attr);
        match self.epoch() == seen && !self.changes.any(attr.ino) {
            true => valid,
            false => {
                // Perhaps this file was changed while the kernel did not know it.
                self.inodes.mark(attr.ino, Mark::Shared);
                Valid { attr: Duration::ZERO, ..valid }
            }
        }
    }

    /// Whether an append has to find the end of file itself, because another front end writes the
    /// file (K3).
    pub(super) fn others_write(&self, ino: Ino) -> bool {
        self.inodes.marked(ino, Mark::Shared)
    }

    /// Called after a change of content that may have dropped set-id bits. The kernel asks again
    /// for times and size, but not for a cached mode. So it is notified before the answer leaves:
    /// afterwards the writer could execute the file with the old mode.
    pub(super) fn after_drop(&self, ino: Ino, privileges: Privileges) {
        if privileges == Privileges::Drop && self.inodes.take(ino, Mark::SetId) {
            self.notifier.tell_attributes(ino.0);
        }
    }

    /// Whether a reader may have cached old bytes in the range of a cached write ([`refills`]).
    ///
    /// [`refills`]: crate::refills
    fn has_old_bytes(&self, handle: &Handle, io: &WriteIn) -> bool {
        let range = io.offset..io.offset.saturating_add(u64::from(io.size));
        let is_ordered = io.flags & super::o_direct() == 0;
        self.notifier.refills().has_old_bytes(handle.file.ino().0, range, is_ordered)
    }

    /// After a write of a program the kernel's cached pages may be stale. For a write that bypasses
    /// its cache, the kernel drops the range before the request, but may have read it again. An
    /// append may have gone to another offset.
    pub(super) fn after_write(&self, handle: &Handle, io: &WriteIn, done: &Wrote) {
        let ino = handle.file.ino();
        if io.write_flags & WRITE_CACHE != 0 {
            // Counted before the answer, because after it the kernel may drop the page (ret.R4).
            self.notifier.retriever().count_store_write(ino.0);
            return;
        }
        if handle.caching.is_cached && handle.mode() == MODE_UNCACHED {
            // The kernel keeps the written pages. They are dropped after the answer (openings.O3).
            self.drop_behind(handle, done.offset..done.offset + done.len as u64);
        }
        let may_be_stale = match handle.caching.is_cached {
            true => self.has_old_bytes(handle, io) || done.len < io.size as usize,
            false => self.inodes.marked(ino, Mark::Content),
        };
        if done.offset != io.offset {
            self.notifier.queue_stale(ino.0, done.offset.min(io.offset), u64::MAX);
        } else if may_be_stale {
            self.notifier.queue_stale(ino.0, io.offset, u64::from(io.size));
        }
    }

    /// Reports the range of a failed write of a program as stale: the kernel may keep the pages
    /// that the write has filled.
    pub(super) fn after_failed_write(&self, handle: &Handle, io: &WriteIn) {
        if handle.caching.is_cached && io.write_flags & WRITE_CACHE == 0 {
            self.has_old_bytes(handle, io);
            self.notifier.queue_stale(handle.file.ino().0, io.offset, u64::from(io.size));
        }
    }

    fn give(&self, notice: Notice) -> Ticket {
        Ticket(self.notifier.give(notice))
    }
}

impl Observer for Core {
    fn knows(&self, ino: Ino) -> bool {
        self.inodes.knows(ino)
    }

    fn keep(&self, file: OpenFileRef) {
        self.inodes.keep(file);
    }

    fn holds_back(&self, ino: Ino) -> bool {
        // A shared map that can be written keeps its file open for reading and writing.
        self.inodes.marked(ino, Mark::Content) && self.handles.has_writer(ino)
    }

    fn hand_over(&self, ino: Ino, offset: u64, len: u64) -> Ticket {
        self.give(Notice::content(ino.0, offset, len))
    }

    fn differing<'a>(
        &'a self,
        ino: Ino,
        offset: u64,
        bytes: &'a [u8],
    ) -> BoxFuture<'a, Vec<Range<u64>>> {
        Box::pin(self.notifier.retriever().differing(ino.0, offset, bytes))
    }

    fn store_writes(&self, ino: Ino) -> u64 {
        self.notifier.retriever().store_writes(ino.0)
    }

    fn will_change(&self, ino: Ino) -> BoxFuture<'_, ()> {
        self.changes.begin(ino);
        self.epoch.fetch_add(1, Ordering::SeqCst);
        self.inodes.mark(ino, Mark::Shared);
        Box::pin(self.appends.none(ino))
    }

    fn change_over(&self, ino: Ino) {
        self.changes.end(ino);
    }

    fn will_change_name(&self, dir: Ino, name: &[u8]) -> BoxFuture<'_, ()> {
        self.removals.begin_change(dir, name);
        let name: Box<[u8]> = name.into();
        Box::pin(async move { self.removals.none(dir, &name).await })
    }

    fn name_change_over(&self, dir: Ino, name: &[u8]) {
        self.removals.end_change(dir, name);
    }

    fn changed(&self, change: &Change) -> Ticket {
        self.epoch.fetch_add(1, Ordering::SeqCst);
        match change {
            Change::Content { ino, offset, len, end } => {
                self.inodes.mark(*ino, Mark::Shared);
                let attributes = self.inodes.take(*ino, Mark::Attributes);
                if let Some((size, byte)) = *end {
                    // Some system calls use the kernel's cached size, however old, so that size is
                    // raised. Before that, pages with zeros behind the old end are dropped: what is
                    // read meanwhile has the new bytes. The page of the last byte may have zeros of
                    // the kernel, so it is dropped again afterwards.
                    let content = Notice::content(ino.0, (*offset).min(size - 1), u64::MAX);
                    if self.inodes.marked(*ino, Mark::Content) {
                        self.give(content.clone());
                    }
                    self.give(Notice::Store { node: ino.0, offset: size - 1, byte });
                    self.give(content)
                } else if self.inodes.marked(*ino, Mark::Content) {
                    self.give(Notice::content(ino.0, *offset, *len))
                } else if attributes {
                    self.give(Notice::attributes(ino.0))
                } else {
                    Ticket::default()
                }
            }
            Change::Attributes(ino) if self.inodes.take(*ino, Mark::Attributes) => {
                self.give(Notice::attributes(ino.0))
            }
            Change::Entry { dir, name, gone } if self.inodes.knows(*dir) => {
                if *dir != Ino::ROOT && self.inodes.marked(*dir, Mark::Listed) {
                    // For openings that may read its cached listing again (listing.D1).
                    self.give(Notice::content(dir.0, 0, u64::MAX));
                }
                let (dir, name) = (dir.0, name.clone());
                self.give(match gone {
                    Some(ino) => Notice::Delete { dir, node: ino.0, name },
                    None => Notice::Entry { dir, name },
                })
            }
            Change::Attributes(_) | Change::Entry { .. } => Ticket::default(),
        }
    }

    fn room(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.notifier.room())
    }

    fn told(&self, ticket: Ticket) -> BoxFuture<'_, ()> {
        Box::pin(self.notifier.gone(ticket.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ioctl::MODE_CACHED;
    use crate::options::{CacheMode, Options};
    use crate::proto::consts::{opcode, open};
    use crate::proto::request::ReadIn;
    use forebay_base::IoFlags;
    use forebay_base::buf::AlignedBuf;
    use forebay_base::task::block_on;
    use forebay_base::world::RealWorld;
    use forebay_testkit::mem_fs::MemFs;
    use forebay_vfs::{Name, NewInode, OpenFlags};
    use std::task::{Context, Waker};

    fn core() -> (Arc<Core>, Ino) {
        let (fs, options) = (Arc::new(MemFs::default()), Options::default());
        let core = Core::new(fs, RealWorld::new(), Default::default(), &options);
        let ino = Ino(7);
        core.inodes.told(ino);
        (core, ino)
    }

    /// K1, K2: a change is reported if the kernel may have cached what it made stale, and an answer
    /// during which it happened is not cached.
    #[test]
    fn k1_k2_change_during_answer_prevents_caching() {
        let (core, ino) = core();
        let attr = Attr { ino, ..block_on(core.fs.getattr(Ino::ROOT)).unwrap() };
        let seen = core.epoch();
        assert!(!core.valid(&attr, seen).attr.is_zero());
        assert_eq!(core.changed(&Change::Attributes(ino)), Ticket(1));
        assert_eq!(core.changed(&Change::Attributes(ino)), Ticket(0), "it has been told");
        assert!(core.valid(&attr, seen).attr.is_zero(), "asked for before the change");
        assert_eq!(core.changed(&Change::Attributes(ino)), Ticket(2), "and marked all the same");
        assert_eq!(core.changed(&Change::content(ino, 5, 3)), Ticket(0), "it has none of that");
        core.inodes.mark(ino, Mark::Content);
        assert_eq!(core.changed(&Change::content(ino, 5, 3)), Ticket(3));
        assert_eq!(core.changed(&Change::content(ino, 5, 3)), Ticket(4), "it may be reading again");
        let [attributes, content] = [Notice::attributes(7), Notice::content(7, 5, 3)];
        let told = [attributes.clone(), attributes, content.clone(), content];
        assert_eq!(core.notifier.queued(), told);
    }

    /// The story: after a write that dropped set-id bits, the kernel showed the old mode for up to
    /// a day to programs that asked for the mode alone.
    #[test]
    fn mode_changed_by_write_is_read_again() {
        let (core, ino) = core();
        let root = block_on(core.fs.getattr(Ino::ROOT)).unwrap();
        let plain = Attr { ino, kind: FileKind::File, perm: 0o755, ..root };
        core.valid(&plain, 0);
        core.after_drop(ino, Privileges::Drop);
        assert_eq!(core.notifier.queued(), []);
        core.valid(&Attr { perm: 0o4755, ..plain }, 0);
        core.after_drop(ino, Privileges::Keep);
        assert_eq!(core.notifier.queued(), []);
        core.after_drop(ino, Privileges::Drop);
        core.after_drop(ino, Privileges::Drop);
        assert_eq!(core.notifier.queued(), [Notice::attributes(7)], "once");
    }

    /// K3, K4: if another front end writes, the daemon decides the end of file, and the kernel's
    /// size is raised to it.
    #[test]
    fn k3_k4_daemon_decides_end_of_shared_file() {
        let (core, ino) = core();
        assert!(!core.others_write(ino));
        block_on(core.will_change(ino));
        assert!(
            core.others_write(ino),
            "before it is done: the kernel's end may be passed any time"
        );
        let (core, ino) = self::core();
        let grown = Change::Content { ino, offset: 90, len: 10, end: Some((100, 8)) };
        assert_eq!(core.changed(&grown), Ticket(2));
        assert!(core.others_write(ino));
        let store = Notice::Store { node: 7, offset: 99, byte: 8 };
        assert_eq!(core.notifier.queued(), [store, Notice::content(7, 90, u64::MAX)]);
        core.inodes.mark(ino, Mark::Content);
        assert_eq!(core.changed(&grown), Ticket(5));
        let store = Notice::Store { node: 7, offset: 99, byte: 8 };
        let content = Notice::content(7, 90, u64::MAX);
        // A cached page of the old end has zeros behind it. If the page were dropped only after the
        // size was raised, programs could read these zeros.
        assert_eq!(core.notifier.queued()[2..], [content.clone(), store, content]);
        let unknown = Change::Content { ino: Ino(8), offset: 90, len: 10, end: None };
        let seen = core.epoch();
        assert_eq!(core.changed(&unknown), Ticket(0));
        // Parts of a long append may arrive in any order; without another writer they keep the
        // kernel's offsets.
        core.inodes.told(Ino(9));
        assert!(!core.others_write(Ino(9)), "no other interface has changed this one");
        // The kernel looked the file up in the meantime, and got the old size.
        let root = block_on(core.fs.getattr(Ino::ROOT)).unwrap();
        core.inodes.told(Ino(8));
        core.valid(&Attr { ino: Ino(8), kind: FileKind::File, ..root }, seen);
        assert!(core.others_write(Ino(8)));
    }

    /// The story: the library began to append to a file that the kernel did not know, so marking it
    /// had no effect. A program then looked the file up with the old size, and appended over the
    /// library's bytes. K3, K4, appends.K6.
    #[test]
    fn k6_inode_looked_up_during_change_is_marked() {
        let (core, _) = core();
        let root = block_on(core.fs.getattr(Ino::ROOT)).unwrap();
        let attr = |ino| Attr { ino: Ino(ino), kind: FileKind::File, ..root };
        block_on(core.will_change(Ino(9)));
        block_on(core.will_change(Ino(9)));
        assert!(!core.others_write(Ino(9)), "the kernel does not know it");
        for once in [false, true] {
            core.inodes.told(Ino(9));
            assert!(core.valid(&attr(9), core.epoch()).attr.is_zero(), "its size is about to go");
            assert!(core.others_write(Ino(9)));
            core.inodes.forgot(Ino(9), 1);
            if !once {
                core.changed(&Change::content(Ino(9), 0, u64::MAX));
                core.change_over(Ino(9));
            }
        }
        core.inodes.told(Ino(10));
        assert!(!core.valid(&attr(10), core.epoch()).attr.is_zero(), "another file");
        core.changed(&Change::content(Ino(9), 0, u64::MAX));
        core.change_over(Ino(9));
        core.inodes.told(Ino(9));
        assert!(!core.valid(&attr(9), core.epoch()).attr.is_zero(), "it is over");
        assert!(!core.others_write(Ino(9)) && !core.others_write(Ino(10)));
    }

    /// The story: pages written through the kernel's cache stay there without a `READ`. A change by
    /// the library was reported as one of attributes only, so programs read stale pages.
    #[test]
    fn written_through_data_is_in_kernel_cache() {
        for (mode, kept) in [(CacheMode::Kernel, true), (CacheMode::Own, false)] {
            let options = Options { cache: mode, ..Options::default() };
            let fs = Arc::new(MemFs::default());
            let core = Core::new(fs, RealWorld::new(), Default::default(), &options);
            let mut message = vec![0; 40 + 16];
            message[40] = 2;
            message[44..46].copy_from_slice(&0o600_u16.to_le_bytes());
            message.extend_from_slice(b"f\0");
            let len = message.len() as u32;
            message[..4].copy_from_slice(&len.to_le_bytes());
            message[4..8].copy_from_slice(&opcode::CREATE.to_le_bytes());
            message[16] = 1;
            block_on(core.clone().serve(crate::serve::Work::Other(message)));
            let name = forebay_vfs::Name::new(b"f").unwrap();
            let ino = block_on(core.fs.lookup(Ino::ROOT, name)).unwrap().ino;
            assert!(core.inodes.knows(ino));
            core.changed(&Change::content(ino, 4096, 4096));
            let told =
                if kept { Notice::content(ino.0, 4096, 4096) } else { Notice::attributes(ino.0) };
            assert_eq!(core.notifier.queued(), [told]);
            assert_eq!(core.holds_back(ino), kept);
        }
    }

    /// A file of 8 KiB zeros that a program has open for reading and writing through the kernel's
    /// cache, and the number of that opening.
    fn cached_writer(core: &Core) -> (Ino, u64) {
        let (name, new) = (Name::new(b"f").unwrap(), NewInode::of(FileKind::File, 0o600));
        let flags = OpenFlags::READ | OpenFlags::WRITE;
        let (attr, file) = block_on(core.fs.create(Ino::ROOT, name, &new, flags)).unwrap();
        file.write_slice(0, &[0; 8192], IoFlags::empty(), Privileges::Keep).unwrap();
        core.inodes.told(attr.ino);
        let caching = core.caching(&attr, open::RDWR, MODE_CACHED);
        assert!(caching.is_cached);
        let fh = core.handles.add(Handle::new(file, IoFlags::empty(), MODE_CACHED, caching));
        (attr.ino, fh)
    }

    fn kernel_core() -> Arc<Core> {
        let options = Options { cache: CacheMode::Kernel, ..Options::default() };
        Core::new(Arc::new(MemFs::default()), RealWorld::new(), Default::default(), &options)
    }

    /// refill.F1. The kernel fills and unlocks its pages before it sends a cached write. Earlier, a
    /// notice dropped such a page, a read filled it again with the bytes from before the write, and
    /// the write took effect. Programs read the old bytes until the page was evicted.
    #[test]
    fn page_read_during_cached_write_is_dropped_after_write() {
        for (read_at, is_queued) in [(0, true), (4096, false)] {
            let core = kernel_core();
            let (ino, fh) = cached_writer(&core);
            let busy = core.write_ranges.try_lock(ino, 0, 1).unwrap();
            let io = WriteIn { fh, offset: 0, size: 4096, write_flags: 0, flags: 2 };
            let mut write = Box::pin(core.write(io, AlignedBuf::copy_of(&[7; 4096])));
            let mut cx = Context::from_waker(Waker::noop());
            assert!(write.as_mut().poll(&mut cx).is_pending());
            core.hand_over(ino, 0, 4096);
            core.notifier.deliver_all();
            let read = ReadIn { fh, offset: read_at, size: 4096, read_flags: 0, flags: 0 };
            let mut bytes = [1; 4096];
            assert_eq!(core.read_now(&read, &mut bytes).unwrap().unwrap(), 4096);
            assert_eq!(bytes, [0; 4096], "from before the write");
            drop(busy);
            block_on(write).unwrap();
            let wanted = is_queued.then(|| Notice::content(ino.0, 0, 4096));
            assert_eq!(core.notifier.queued(), Vec::from_iter(wanted), "read at {read_at}");
        }
    }

    /// The kernel keeps the pages of a cached write that failed: newer kernels do not forget that
    /// they are up to date. Without a notice, programs would read bytes that are not in the file.
    #[test]
    fn failed_or_short_cached_write_drops_its_range() {
        let core = kernel_core();
        let (ino, fh) = cached_writer(&core);
        let caching = core.handle(fh).unwrap().caching;
        let reader = block_on(core.fs.open(ino, OpenFlags::READ)).unwrap();
        let add = |caching| {
            let handle = Handle::new(reader.clone(), IoFlags::empty(), MODE_CACHED, caching);
            core.handles.add(handle)
        };
        let (cached, direct) = (add(caching), add(Default::default()));
        let io = |fh, write_flags| WriteIn { fh, offset: 4096, size: 4096, write_flags, flags: 2 };
        let take_queued = || {
            let queued = core.notifier.queued();
            core.notifier.deliver_all();
            queued
        };
        let failed = |io: WriteIn| {
            assert!(core.write_now(&io, &[7; 4096]).is_none_or(|done| done.is_err()));
            let now = take_queued();
            assert!(core.write_here(&io, &[7; 4096]).is_err());
            let here = take_queued();
            assert!(block_on(core.write(io, AlignedBuf::copy_of(&[7; 4096]))).is_err());
            [here, take_queued(), now]
        };
        let range = || vec![Notice::content(ino.0, 4096, 4096)];
        assert_eq!(failed(io(cached, 0))[..2], [range(), range()]);
        assert_eq!(failed(io(cached, WRITE_CACHE)), [vec![], vec![], vec![]]);
        assert_eq!(failed(io(direct, 0)), [vec![], vec![], vec![]]);
        // A write of fewer bytes than were sent.
        let short = core.write_now(&io(fh, 0), &[7; 100]);
        assert!(short.is_some_and(|done| done.is_ok()));
        assert_eq!(take_queued(), range());
    }
}
