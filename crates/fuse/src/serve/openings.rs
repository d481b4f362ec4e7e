//! Openings and the kernel's cache: which openings use it, what Forebay's cache keeps of their
//! content, and which pages are dropped behind them.
//!
//! Invariants: O1 every reply to an open has KEEP_CACHE: an open drops no page, and each change
//! drops the pages that it makes stale. O2 with `cache=kernel`, a request by which the kernel fills
//! its cache, or writes pages that it keeps, carries `HELD_ABOVE` (the cache above Forebay's keeps
//! the content). O3 an uncached opening leaves no page in the kernel's cache that was read or
//! written through it, except mapped pages.
//!
//! Lock: a handle's ranges; the queue of drops and its locks are taken under it.

use super::{Core, Outcome, read_flags, sync_flags};
use crate::drops::ALL;
use crate::handles::{Caching, Handle};
use crate::inodes::Mark;
use crate::ioctl::{MODE_CACHED, MODE_UNCACHED};
use crate::options::{CacheMode, SMALL_BYTES};
use crate::proto::consts::{FOpen, READ_LOCKOWNER, WRITE_CACHE, open};
use crate::proto::request::{ReadIn, WriteIn};
use forebay_base::IoFlags;
use forebay_vfs::{Attr, FileKind};
use std::ops::Range;

fn is_fill(io: &ReadIn) -> bool {
    io.read_flags & READ_LOCKOWNER == 0
}

/// Whether these flags open a file for reading only.
pub(super) fn reads_only(flags: u32) -> bool {
    flags & (open::ACCMODE | open::TRUNC) == 0
}

/// The flags of the reply to an open (O1).
pub(super) fn fopen(caching: Caching) -> FOpen {
    let kept = FOpen::KEEP_CACHE | FOpen::NOFLUSH;
    match caching.is_cached {
        true => kept,
        false => kept | FOpen::DIRECT_IO | FOpen::PARALLEL_DIRECT_WRITES,
    }
}

impl Core {
    /// How the kernel has to treat an opening in this mode.
    pub(super) fn caching(&self, attr: &Attr, flags: u32, mode: u32) -> Caching {
        if attr.kind != FileKind::File {
            return Caching::default();
        }
        let reads_only = reads_only(flags);
        let is_small = self.cache == CacheMode::Small && attr.size <= SMALL_BYTES;
        let drops_at_end = self.cache != CacheMode::Kernel && !is_small;
        // A map needs pages in the kernel's cache. An opening that bypasses that cache would make
        // the kernel drop those pages when the opening is mapped, too.
        let is_mapped = || attr.perm & 0o111 != 0 || self.inodes.marked(attr.ino, Mark::Mapped);
        let is_cached = match mode {
            MODE_CACHED => match self.cache {
                // The kernel sends two requests for a cached write across a page that is not up to
                // date. The library could append between the two parts of an append. An opening for
                // reading appends nothing.
                CacheMode::Kernel => reads_only || flags & open::APPEND == 0,
                CacheMode::Own | CacheMode::Small => reads_only && (is_small || is_mapped()),
            },
            // Such openings use the kernel's read-ahead; their pages are dropped behind the reader.
            MODE_UNCACHED => reads_only && flags & super::o_direct() == 0,
            _ => false,
        };
        Caching { is_cached, drops_at_end, is_program: attr.perm & 0o111 != 0 }
    }

    /// Whether the kernel's cache keeps what this opening reads and writes (O2).
    fn is_held_above(&self, handle: &Handle) -> bool {
        let is_kept = self.cache == CacheMode::Kernel && handle.caching.is_cached;
        is_kept && handle.mode() == MODE_CACHED
    }

    pub(super) fn flags_of_read(&self, handle: &Handle, io: &ReadIn) -> IoFlags {
        let flags = read_flags(io.flags) | handle.mode_flags();
        match is_fill(io) && self.is_held_above(handle) {
            true => flags | IoFlags::HELD_ABOVE,
            false => flags,
        }
    }

    pub(super) fn flags_of_kind(&self, handle: &Handle, io: &WriteIn) -> IoFlags {
        // Pages into which programs have stored through a map; any handle of the file may carry
        // them.
        if io.write_flags & WRITE_CACHE != 0 {
            return match self.cache {
                CacheMode::Kernel => IoFlags::HELD_ABOVE,
                CacheMode::Own | CacheMode::Small => IoFlags::empty(),
            };
        }
        let direct = read_flags(io.flags);
        let flags = direct | sync_flags(io.flags) | handle.mode_flags();
        match direct.is_empty() && self.is_held_above(handle) {
            true => flags | IoFlags::HELD_ABOVE,
            false => flags,
        }
    }

    /// Called once for each read, by the reader thread that receives it. A read without a lock
    /// owner fills the kernel's cache.
    pub(super) fn note_fill(&self, handle: &Handle, io: &ReadIn) {
        if !is_fill(io) {
            return;
        }
        // If the kernel does not cache this opening's reads, the request comes from a page fault of
        // a map. After a drop every access would read mapped pages again, so they stay.
        let is_uncached = handle.mode() == MODE_UNCACHED && handle.caching.is_cached;
        self.inodes.mark_fill(handle.file.ino(), !is_uncached);
        self.fills.add(u64::from(io.size));
        let end = io.offset.saturating_add(u64::from(io.size));
        self.notifier.refills().reading(handle.file.ino().0, io.offset..end);
        if !is_uncached {
            return;
        }
        self.drop_behind(handle, io.offset..end);
    }

    /// Called before a write takes effect: pages that are written through the kernel's cache stay
    /// there, without a read. The mark that the opening has set may be gone, because the kernel has
    /// dropped all content since.
    pub(super) fn note_write(&self, handle: &Handle, io: &WriteIn) {
        if handle.caching.is_cached && io.write_flags & WRITE_CACHE == 0 {
            self.inodes.mark_fill(handle.file.ino(), false);
        }
    }

    /// Records a range that a read or write has put into the kernel's cache and that has to be
    /// dropped (O3).
    pub(super) fn drop_behind(&self, handle: &Handle, range: Range<u64>) {
        let mut behind = handle.behind.lock();
        behind.push(range);
        while let Some(old) = behind.pop_old(!handle.caching.is_program) {
            self.drop_range(handle, old);
        }
    }

    fn drop_range(&self, handle: &Handle, range: Range<u64>) {
        self.notifier.drops().push(&self.inodes, handle.file.ino().0, range);
    }

    /// The kernel has closed an opening: pages that must not stay in the kernel's cache are queued
    /// to be dropped. The answer does not wait for that (drop.D2).
    pub(super) fn release(&self, fh: u64) -> Outcome {
        self.trees.remove(fh);
        let Some(handle) = self.handles.remove(fh) else { return Outcome::done() };
        let ino = handle.file.ino();
        let is_last = handle.caching.drops_at_end && !self.handles.has_open(ino);
        if is_last && self.inodes.marked(ino, Mark::Content) {
            self.inodes.take(ino, Mark::Mapped);
            self.drop_range(&handle, ALL);
            return Outcome::done();
        }
        let mut behind = handle.behind.lock();
        while let Some(oldest) = behind.pop() {
            self.drop_range(&handle, oldest);
        }
        Outcome::done()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ioctl::MODE_DIRECT;
    use crate::notify::Notice;
    use crate::options::Options;
    use crate::proto::consts::{Valid, WRITE_KILL_SUIDGID, opcode};
    use crate::proto::request::{CopyIn, Header, SetAttrIn};
    use forebay_base::buf::AlignedBuf;
    use forebay_base::task::block_on;
    use forebay_base::world::RealWorld;
    use forebay_testkit::mem_fs::MemFs;
    use forebay_vfs::coherent::{Change, Observer};
    use forebay_vfs::{Ino, Name, NewInode, OpenFlags};
    use std::future::Future;
    use std::sync::Arc;
    use std::task::{Context, Waker};

    fn core(cache: CacheMode) -> (Arc<Core>, Attr) {
        let options = Options { cache, ..Options::default() };
        let fs = Arc::new(MemFs::default());
        let core = Core::new(fs, RealWorld::new(), Default::default(), &options);
        let (name, new) = (Name::new(b"f").unwrap(), NewInode::of(FileKind::File, 0o600));
        let attr = block_on(core.fs.mknod(Ino::ROOT, name, &new)).unwrap();
        core.inodes.told(attr.ino);
        (core, attr)
    }

    fn opened(core: &Core, attr: &Attr, flags: u32, mode: u32) -> u64 {
        let both = OpenFlags::READ | OpenFlags::WRITE;
        let file = block_on(core.fs.open(attr.ino, both)).unwrap();
        let caching = core.caching(attr, flags, mode);
        core.handles.add(Handle::new(file, IoFlags::empty(), mode, caching))
    }

    /// Which openings use the kernel's cache, by mode.
    #[test]
    fn openings_are_cached_by_the_kernel_as_the_mode_says() {
        for cache in [CacheMode::Own, CacheMode::Small, CacheMode::Kernel] {
            let (core, plain) = core(cache);
            let large = Attr { size: SMALL_BYTES + 1, ..plain };
            let is_cached = |attr: &Attr, flags| {
                let caching = core.caching(attr, flags, MODE_CACHED);
                let fopen = fopen(caching);
                assert!(fopen.contains(FOpen::KEEP_CACHE), "O1");
                assert_eq!(fopen.contains(FOpen::DIRECT_IO), !caching.is_cached);
                caching.is_cached
            };
            let all = cache == CacheMode::Kernel;
            assert!(!is_cached(&Attr { kind: FileKind::Fifo, ..plain }, 0));
            assert_eq!(is_cached(&plain, 0), cache != CacheMode::Own, "{cache:?}");
            assert_eq!(is_cached(&large, 0), all, "{cache:?}");
            assert_eq!(is_cached(&plain, open::RDWR), all, "{cache:?}");
            assert_eq!(is_cached(&plain, open::TRUNC), all, "{cache:?}");
            assert!(!is_cached(&plain, open::RDWR | open::APPEND), "each append is one request");
            assert_eq!(is_cached(&large, open::APPEND), all, "{cache:?}: a reader appends nothing");
            // Executables, and files of which the kernel has mapped pages, use the kernel's cache.
            let program = Attr { perm: 0o755, ..large };
            assert!(is_cached(&program, 0));
            assert_eq!(is_cached(&program, open::RDWR), all, "{cache:?}");
            core.inodes.mark(plain.ino, Mark::Content);
            assert_eq!(is_cached(&large, 0), all, "{cache:?}: by an uncached opening");
            core.inodes.mark(plain.ino, Mark::Mapped);
            assert!(is_cached(&large, 0));
        }
    }

    /// Uncached openings for reading use the kernel's read-ahead; uncached writers and direct
    /// openings do not.
    #[test]
    fn uncached_openings_for_reading_go_through_the_kernels_cache() {
        for cache in [CacheMode::Own, CacheMode::Small, CacheMode::Kernel] {
            let (core, attr) = core(cache);
            let is_cached = |flags, mode| core.caching(&attr, flags, mode).is_cached;
            assert!(is_cached(0, MODE_UNCACHED));
            assert!(!is_cached(open::RDWR, MODE_UNCACHED) && !is_cached(0, MODE_DIRECT));
            assert!(!is_cached(super::super::o_direct(), MODE_UNCACHED));
        }
    }

    /// O2, also for write-back of mapped pages.
    #[test]
    fn kernel_cache_requests_bypass_cache_with_cache_kernel_only() {
        let read = |fh, read_flags| ReadIn { fh, offset: 0, size: 4096, read_flags, flags: 0 };
        let write = |fh, flags, write_flags| WriteIn { fh, offset: 0, size: 3, write_flags, flags };
        let none = IoFlags::empty();
        for (cache, above) in [
            (CacheMode::Own, none),
            (CacheMode::Small, none),
            (CacheMode::Kernel, IoFlags::HELD_ABOVE),
        ] {
            let (core, attr) = core(cache);
            let fh = opened(&core, &attr, open::RDWR, MODE_CACHED);
            let handle = core.handle(fh).unwrap();
            assert_eq!(core.flags_of_read(&handle, &read(fh, 0)), above);
            assert_eq!(core.flags_of_read(&handle, &read(fh, READ_LOCKOWNER)), none);
            assert_eq!(core.flags_of_kind(&handle, &write(fh, 2, 0)), above);
            assert_eq!(core.flags_of_kind(&handle, &write(fh, 2, WRITE_KILL_SUIDGID)), above);
            assert_eq!(core.flags_of_kind(&handle, &write(fh, 2, WRITE_CACHE)), above);
            let direct = write(fh, super::super::o_direct(), 0);
            let flags = core.flags_of_kind(&handle, &direct);
            assert_eq!(flags, IoFlags::DIRECT | IoFlags::FALLBACK);
            assert!(handle.set_mode(MODE_UNCACHED));
            assert_eq!(core.flags_of_read(&handle, &read(fh, 0)), IoFlags::UNCACHED);
            assert_eq!(core.flags_of_kind(&handle, &write(fh, 2, 0)), IoFlags::UNCACHED);
        }
    }

    /// O3: exactly the ranges that were read through an uncached opening are dropped at its
    /// release.
    #[test]
    fn release_of_an_uncached_opening_drops_what_it_has_read() {
        let (core, attr) = core(CacheMode::Kernel);
        let uncached = opened(&core, &attr, 0, MODE_UNCACHED);
        let other = opened(&core, &attr, 0, MODE_CACHED);
        let read = |fh, offset, read_flags| {
            let io = ReadIn { fh, offset, size: 4096, read_flags, flags: 0 };
            core.note_fill(&core.handle(fh).unwrap(), &io);
        };
        read(uncached, 8192, 0);
        read(other, 0, 0);
        read(uncached, 40_960, READ_LOCKOWNER);
        read(uncached, 12_288, 0);
        assert_eq!(core.fills.totals(), (3, 3 * 4096));
        assert_eq!(core.notifier.drops().queued(), []);
        core.release(uncached);
        core.release(other);
        assert_eq!(core.notifier.drops().queued(), [(attr.ino.0, 8192..16_384)]);
    }

    /// O3 for writes: an ioctl makes a cached opening uncached, but the kernel keeps its written
    /// pages. It locks each page until the answer, so a range is dropped only after later requests.
    #[test]
    fn writes_of_an_opening_made_uncached_are_dropped() {
        let (core, attr) = core(CacheMode::Kernel);
        let fh = opened(&core, &attr, open::RDWR, MODE_CACHED);
        let write = |offset, write_flags| {
            let io = WriteIn { fh, offset, size: 4096, write_flags, flags: 2 };
            assert!(matches!(core.write_now(&io, &[7; 4096]), Some(Ok(_))));
        };
        write(0, 0);
        assert!(core.handle(fh).unwrap().set_mode(MODE_UNCACHED));
        (2..2048).for_each(|page| write(page * 4096, 0));
        write(4096, WRITE_CACHE);
        let most = 2048 * 4096 - (4 << 20);
        let queued = core.notifier.drops().queued();
        assert!(queued[0].1.start == 8192 && queued[0].1.end <= most, "{queued:?}");
        core.release(fh);
        assert_eq!(core.notifier.drops().queued(), [(attr.ino.0, 8192..2048 * 4096)]);
    }

    /// ret.R4: a request after whose answer the kernel may drop stores is counted before the
    /// answer; other writes are not counted.
    #[test]
    fn writes_and_truncations_of_stores_are_counted() {
        let (core, attr) = core(CacheMode::Kernel);
        let fh = opened(&core, &attr, open::RDWR, MODE_CACHED);
        let counted = || core.store_writes(attr.ino);
        let write = |write_flags| {
            let io = WriteIn { fh, offset: 0, size: 4096, write_flags, flags: 2 };
            assert!(matches!(core.write_now(&io, &[7; 4096]), Some(Ok(_))));
            counted()
        };
        assert_eq!((write(0), write(WRITE_CACHE)), (0, 1));
        let io = WriteIn { fh, offset: 0, size: 1, write_flags: WRITE_CACHE, flags: 2 };
        block_on(core.write(io, AlignedBuf::copy_of(b"x"))).unwrap();
        assert_eq!(counted(), 2);
        let (size, none) = (100, (0, 0));
        let set = |valid| {
            let (mode, uid, gid) = (0o600, 0, 0);
            let set = SetAttrIn { valid, size, atime: none, mtime: none, mode, uid, gid };
            block_on(core.setattr(attr.ino, &set)).unwrap();
            counted()
        };
        assert_eq!((set(Valid::MODE), set(Valid::SIZE)), (2, 3));
        let header = Header::parse(&[0; 40]).unwrap();
        let allocate = |mode| {
            block_on(core.fallocate(&header, fh, (0, 4096), mode)).unwrap();
            counted()
        };
        let (keep_size, punch, zero) = (1, 2, 0x10);
        assert_eq!(allocate(keep_size), 3, "the kernel drops nothing");
        assert_eq!((allocate(punch | keep_size), allocate(zero)), (4, 5));
        let (name, new) = (Name::new(b"g").unwrap(), NewInode::of(FileKind::File, 0o600));
        let target = block_on(core.fs.mknod(Ino::ROOT, name, &new)).unwrap();
        let copy = CopyIn {
            fh_in: fh,
            offset_in: 0,
            node_out: target.ino.0,
            fh_out: opened(&core, &target, open::RDWR, MODE_CACHED),
            offset_out: 0,
            len: 100,
            flags: 0,
            wide: false,
        };
        block_on(core.copy(&header, &copy)).unwrap();
        assert_eq!((counted(), core.store_writes(target.ino)), (5, 1), "of the target");
    }

    /// Opens a file for reading and writing by a message of the kernel; returns the opening's
    /// number.
    fn opened_by_message(core: &Arc<Core>, ino: Ino) -> u64 {
        let mut message = vec![0; 48];
        message[..4].copy_from_slice(&48_u32.to_le_bytes());
        message[4..8].copy_from_slice(&opcode::OPEN.to_le_bytes());
        message[16..24].copy_from_slice(&ino.0.to_le_bytes());
        message[40..44].copy_from_slice(&open::RDWR.to_le_bytes());
        let outcome = block_on(core.clone().serve(crate::serve::Work::Other(message)));
        outcome.undo.opened.expect("it is opened")
    }

    /// inodes.N3, inodes.N4. The story: the queue of drops was full, so the kernel dropped all
    /// pages of a file that a program had open for writing. What the program wrote then was in the
    /// kernel's cache, and no mark said so. A change by the library was reported as one of
    /// attributes only, and programs went on reading the bytes from before it.
    #[test]
    fn write_after_a_drop_of_all_content_marks_it_again() {
        for (cache, is_kept) in [(CacheMode::Kernel, true), (CacheMode::Own, false)] {
            let (core, attr) = core(cache);
            let (ino, fh) = (attr.ino, opened_by_message(&core, attr.ino));
            let has_content = || core.inodes.marked(ino, Mark::Content);
            assert_eq!(has_content(), is_kept, "{cache:?}: by the opening");
            let io = WriteIn { fh, offset: 0, size: 4096, write_flags: 0, flags: 2 };
            let write = || assert!(matches!(core.write_now(&io, &[7; 4096]), Some(Ok(_))));
            core.inodes.drop_content(ino, || {});
            assert!(!has_content());
            write();
            assert_eq!((has_content(), core.holds_back(ino)), (is_kept, is_kept), "{cache:?}");
            core.changed(&Change::content(ino, 0, 4096));
            let wanted = match is_kept {
                true => Notice::content(ino.0, 0, 4096),
                false => Notice::attributes(ino.0),
            };
            assert_eq!(core.notifier.queued(), [wanted], "{cache:?}");
            core.inodes.drop_content(ino, write);
            assert_eq!(has_content(), is_kept, "{cache:?}: N4, written while it is dropped");
            core.inodes.drop_content(ino, || {});
            block_on(core.write(io, AlignedBuf::copy_of(&[7; 4096]))).unwrap();
            assert_eq!(has_content(), is_kept, "{cache:?}: by a task");
        }
    }

    /// The story: a program read its text again and again under `forebay run --uncached`, because
    /// each page was dropped a few faults later. So did a program that had mapped a file for
    /// writing.
    #[test]
    fn mapped_pages_of_uncached_openings_are_not_dropped_behind_faults() {
        let (core, attr) = core(CacheMode::Own);
        let fault = |fh, page: u64| {
            let offset = page * 131_072;
            let io = ReadIn { fh, offset, size: 131_072, read_flags: 0, flags: 0 };
            core.note_fill(&core.handle(fh).unwrap(), &io);
        };
        let program = Attr { perm: 0o755, ..attr };
        let text = opened(&core, &program, 0, MODE_UNCACHED);
        let map = opened(&core, &attr, open::RDWR, MODE_UNCACHED);
        for page in 0..160 {
            fault(text, page * 7 % 160);
            fault(map, page);
        }
        assert_eq!(core.notifier.drops().queued(), []);
        core.release(text);
        assert_eq!(core.notifier.drops().queued(), [(attr.ino.0, 0..160 * 131_072)]);
        core.release(map);
        assert_eq!(core.notifier.drops().queued(), [(attr.ino.0, ALL)]);
    }

    /// With `cache=own` the kernel keeps mapped pages as long as the file is open.
    #[test]
    fn last_release_of_mapped_file_drops_pages_with_cache_own() {
        for (cache, drops) in [(CacheMode::Own, true), (CacheMode::Kernel, false)] {
            let (core, attr) = core(cache);
            let (a, b) =
                (opened(&core, &attr, 0, MODE_CACHED), opened(&core, &attr, 0, MODE_CACHED));
            let io = ReadIn { fh: a, offset: 0, size: 4096, read_flags: 0, flags: 0 };
            core.note_fill(&core.handle(a).unwrap(), &io);
            core.release(a);
            assert_eq!(core.notifier.drops().queued(), [], "{cache:?}: it is open");
            core.release(b);
            let wanted = drops.then_some((attr.ino.0, ALL));
            assert_eq!(core.notifier.drops().queued(), Vec::from_iter(wanted), "{cache:?}");
        }
    }

    /// The `RELEASE` message of an opening.
    fn release_message(ino: Ino, fh: u64) -> crate::serve::Work {
        let mut message = vec![0; 64];
        message[..4].copy_from_slice(&64_u32.to_le_bytes());
        message[4..8].copy_from_slice(&opcode::RELEASE.to_le_bytes());
        message[16..24].copy_from_slice(&ino.0.to_le_bytes());
        message[40..48].copy_from_slice(&fh.to_le_bytes());
        crate::serve::Work::Other(message)
    }

    /// A model of the kernel. A `RELEASE` takes one of a few background slots until its answer. The
    /// `READ` of a page waits for a slot with its page locked. The thread that drops pages waits
    /// for that page. The story: the mount hung because releases waited for that thread.
    #[test]
    fn release_during_a_stuck_notice_leaves_slots_to_reads() {
        const SLOTS: usize = 4;
        let (core, attr) = core(CacheMode::Kernel);
        let handles: Vec<u64> = (0..8).map(|_| opened(&core, &attr, 0, MODE_UNCACHED)).collect();
        for (at, fh) in (0..).zip(&handles) {
            for n in 0..1280 {
                let offset = (n * 8 + at) * 8192;
                let io = ReadIn { fh: *fh, offset, size: 4096, read_flags: 0, flags: 0 };
                core.note_fill(&core.handle(*fh).unwrap(), &io);
            }
        }
        let (mut slots, mut cx) = (Vec::new(), Context::from_waker(Waker::noop()));
        for fh in handles {
            if slots.len() == SLOTS {
                break;
            }
            let mut release = Box::pin(core.clone().serve(release_message(attr.ino, fh)));
            if release.as_mut().poll(&mut cx).is_pending() {
                slots.push(release);
            }
        }
        assert!(slots.len() < SLOTS, "no slot for the READ of the locked page");
    }
}
