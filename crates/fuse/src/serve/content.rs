//! Reads, writes and other requests on open files.
//!
//! Invariants: B1 a read or write that the file can answer without waiting is answered on the
//! reader thread. B2 each flag of a request is passed on or decided here. Unaligned `O_DIRECT`
//! falls back; the write that carries `O_DSYNC` or `O_SYNC` honours it. `O_APPEND` uses the
//! kernel's offset, or the daemon's end of file if another front end writes the file. B3 two
//! overlapping `WRITE`s take effect one after the other; see [`super::ranges`].
//!
//! No locks.

use super::appends::Counted;
use super::ranges::WriteRange;
use super::{Answer, Core, Outcome, Undo, fail, privileges};
use crate::device::PAYLOAD_MAX;
use crate::handles::Handle;
use crate::ioctl::{GET_MODE, SET_MODE, SET_TREE_MODE, mode_flags};
use crate::options::CacheMode;
use crate::proto::consts::{WRITE_CACHE, WRITE_KILL_SUIDGID, open};
use crate::proto::reply::Body;
use crate::proto::request::{CopyIn, Header, IoctlIn, ReadIn, WriteIn};
use crate::trees::{Added, look};
use forebay_base::buf::AlignedBuf;
use forebay_base::task::block_on;
use forebay_base::{ErrorKind, IoFlags, Result};
use forebay_vfs::copy::copy_range;
use forebay_vfs::{Fallocate, Privileges, Seek, Wrote};

/// Most bytes that one `COPY_FILE_RANGE` copies; the program repeats the call for the rest.
const COPY_MAX: u64 = 16 << 20;
const SEEK_DATA: u32 = 3;
const SEEK_HOLE: u32 = 4;
/// Errno: the daemon cannot see the caller's pid.
const EREMOTE: i32 = 66;
/// Errno: too many registrations.
const EMFILE: i32 = 24;
/// Errno: no such ioctl.
const ENOTTY: i32 = 25;

/// A program sees a failed read of a mapped page as SIGBUS alone, so the log names the cause.
fn log_failed_read(handle: &Handle, io: &ReadIn, error: &forebay_base::Error) {
    log::info!(
        "{:?}: a read of {} bytes at {} failed: {error}",
        handle.file.ino(),
        io.size,
        io.offset
    );
}

fn privileges_of(io: &WriteIn) -> Privileges {
    privileges(io.write_flags & WRITE_KILL_SUIDGID != 0)
}

impl Core {
    /// A read that needs no waiting: returns the number of bytes in `dst`. `None`: it has to wait.
    pub fn read_now(&self, io: &ReadIn, dst: &mut [u8]) -> Option<Result<usize>> {
        let handle = match self.handle(io.fh) {
            Ok(handle) => handle,
            Err(e) => return Some(Err(e)),
        };
        self.note_fill(&handle, io);
        let size = (io.size as usize).min(dst.len());
        handle.file.try_read(io.offset, &mut dst[..size], self.flags_of_read(&handle, io))
    }

    /// A write that needs no waiting. `None`: it has to wait.
    pub fn write_now(&self, io: &WriteIn, src: &[u8]) -> Option<Result<Outcome>> {
        let handle = match self.handle(io.fh) {
            Ok(handle) => handle,
            Err(e) => return Some(Err(e)),
        };
        self.note_write(&handle, io);
        let (flags, _counted) = self.flags_of_write(&handle, io);
        let _range = match flags.contains(IoFlags::APPEND) {
            true => None,
            false => {
                Some(self.write_ranges.try_lock(handle.file.ino(), io.offset, src.len() as u64)?)
            }
        };
        let done = handle.file.try_write(io.offset, src, flags, privileges_of(io))?;
        Some(self.wrote(&handle, io, done))
    }

    /// A read by a thread that may wait, after [`Core::read_now`]: returns the number of bytes in
    /// `dst`.
    pub fn read_here(&self, io: &ReadIn, dst: &mut [u8]) -> Result<usize> {
        let handle = self.handle(io.fh)?;
        let size = (io.size as usize).min(dst.len());
        let flags = self.flags_of_read(&handle, io);
        let done = handle.file.wait_read(io.offset, &mut dst[..size], flags);
        done.inspect_err(|error| log_failed_read(&handle, io, error))
    }

    /// A write by a thread that may wait, after [`Core::write_now`].
    pub fn write_here(&self, io: &WriteIn, src: &[u8]) -> Result<Outcome> {
        let handle = self.handle(io.fh)?;
        let (flags, _counted) = self.flags_of_write(&handle, io);
        let _range = block_on(self.write_range(&handle, io.offset, src.len(), flags));
        let done = handle.file.wait_write(io.offset, src, flags, privileges_of(io));
        self.wrote(&handle, io, done)
    }

    /// The flags of a write. The caller keeps the second value until the write is done
    /// (appends.K5).
    fn flags_of_write(&self, handle: &Handle, io: &WriteIn) -> (IoFlags, Option<Counted<'_>>) {
        let flags = self.flags_of_kind(handle, io);
        if io.flags & open::APPEND == 0 || io.write_flags & WRITE_CACHE != 0 {
            return (flags, None);
        }
        let ino = handle.file.ino();
        let counted = self.appends.count(ino);
        match self.others_write(ino) {
            true => (flags | IoFlags::APPEND, None),
            false => (flags, Some(counted)),
        }
    }

    /// Waits for the range of a write, until no earlier overlapping write is in progress (B3). An
    /// append that finds the end of file itself gets its range from the file.
    async fn write_range(
        &self,
        handle: &Handle,
        offset: u64,
        len: usize,
        flags: IoFlags,
    ) -> Option<WriteRange<'_>> {
        match flags.contains(IoFlags::APPEND) {
            true => None,
            false => Some(self.write_ranges.lock(handle.file.ino(), offset, len as u64).await),
        }
    }

    fn wrote(&self, handle: &Handle, io: &WriteIn, done: Result<Wrote>) -> Result<Outcome> {
        let done = done.inspect_err(|_| self.after_failed_write(handle, io))?;
        self.after_drop(handle.file.ino(), privileges_of(io));
        self.after_write(handle, io, &done);
        Ok(Outcome { answer: Answer::Wrote(done.len as u32), undo: Undo::default() })
    }

    pub(super) async fn read(&self, io: ReadIn) -> Result<Outcome> {
        let handle = self.handle(io.fh)?;
        let buf = self.spares.take((io.size as usize).min(PAYLOAD_MAX));
        let (buf, done) = handle.file.read(io.offset, buf, self.flags_of_read(&handle, &io)).await;
        let len = done.inspect_err(|error| log_failed_read(&handle, &io, error))?;
        Ok(Outcome { answer: Answer::Data(buf, len), undo: Undo::default() })
    }

    pub(super) async fn write(&self, io: WriteIn, data: AlignedBuf) -> Result<Outcome> {
        let handle = self.handle(io.fh)?;
        self.note_write(&handle, &io);
        let (flags, _counted) = self.flags_of_write(&handle, &io);
        let _range = self.write_range(&handle, io.offset, data.len(), flags).await;
        let (data, done) = handle.file.write(io.offset, data, flags, privileges_of(&io)).await;
        self.spares.give(data);
        self.wrote(&handle, &io, done)
    }

    pub(super) async fn fallocate(
        &self,
        header: &Header,
        fh: u64,
        (offset, len): (u64, u64),
        mode: u32,
    ) -> Result<Outcome> {
        let handle = self.handle(fh)?;
        let how = Fallocate::from_linux(mode)?;
        // `FALLOCATE` carries no kill flag; root keeps set-id bits, as with CAP_FSETID.
        let privileges = privileges(header.uid != 0);
        handle.file.fallocate(how, offset, len, privileges).await?;
        if matches!(how, Fallocate::PunchHole | Fallocate::ZeroRange { .. }) {
            // The kernel drops the range, with stores into maps that were not written back
            // (ret.R4).
            self.notifier.retriever().count_store_write(handle.file.ino().0);
        }
        self.after_drop(handle.file.ino(), privileges);
        if !handle.sync.is_empty() {
            handle.file.sync(handle.sync == IoFlags::DSYNC).await?;
        }
        Ok(Outcome::done())
    }

    pub(super) async fn lseek(&self, fh: u64, offset: u64, whence: u32) -> Result<Outcome> {
        let what = match whence {
            SEEK_DATA => Seek::Data,
            SEEK_HOLE => Seek::Hole,
            _ => return fail(ErrorKind::InvalidInput, "lseek", "no such whence"),
        };
        let found = self.handle(fh)?.file.seek(what, offset).await?;
        let mut body = Body::new();
        body.u64(found);
        Ok(Outcome::body(body))
    }

    pub(super) async fn copy(&self, header: &Header, copy: &CopyIn) -> Result<Outcome> {
        if copy.flags != 0 {
            return fail(ErrorKind::InvalidInput, "copy", "no such flags");
        }
        let (from, to) = (self.handle(copy.fh_in)?, self.handle(copy.fh_out)?);
        let len = copy.len.min(COPY_MAX);
        // cp(1) and cat(1) copy this way, so the flags of either opening hold for the copy.
        let mut flags = to.sync | from.mode_flags() | to.mode_flags();
        if self.cache == CacheMode::Kernel && !flags.intersects(IoFlags::UNCACHED | IoFlags::DIRECT)
        {
            flags |= IoFlags::HELD_ABOVE;
        }
        let done = copy_range(
            &*self.fs,
            (&*from.file, copy.offset_in),
            (&*to.file, copy.offset_out),
            len,
            flags,
            privileges(header.uid != 0),
        )
        .await?;
        // The kernel drops the range of the target, with stores into maps that were not written
        // back (ret.R4).
        self.notifier.retriever().count_store_write(to.file.ino().0);
        self.after_drop(to.file.ino(), privileges(header.uid != 0));
        let mut body = Body::new();
        match copy.wide {
            true => body.u64(done),
            false => body.size_out(done as u32),
        };
        Ok(Outcome::body(body))
    }

    pub(super) fn ioctl(&self, header: &Header, ioctl: &IoctlIn<'_>) -> Result<Outcome> {
        let mut body = Body::new();
        let mode = ioctl.input.first_chunk().map(|b| u32::from_le_bytes(*b));
        match ioctl.cmd {
            SET_MODE => {
                let handle = self.handle(ioctl.fh)?;
                if !mode.is_some_and(|mode| handle.set_mode(mode)) {
                    return fail(ErrorKind::Unsupported, "ioctl", "no such mode");
                }
                body.ioctl_out(&[]);
            }
            SET_TREE_MODE => {
                let Some(mode) = mode.filter(|mode| mode_flags(*mode).is_some()) else {
                    return fail(ErrorKind::Unsupported, "ioctl", "no such mode");
                };
                match self.trees.add(ioctl.fh, header.pid, mode, look) {
                    Added::Done => body.ioctl_out(&[]),
                    // The daemon could not identify the processes of this tree.
                    Added::Unseen => return Ok(Outcome::errno(EREMOTE)),
                    Added::TooMany => return Ok(Outcome::errno(EMFILE)),
                };
            }
            GET_MODE => {
                body.ioctl_out(&self.handle(ioctl.fh)?.mode().to_le_bytes());
            }
            _ => return Ok(Outcome::errno(ENOTTY)),
        }
        Ok(Outcome::body(body))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handles::Caching;
    use crate::inodes::Mark;
    use crate::ioctl::MODE_CACHED;
    use crate::proto::consts::opcode;
    use crate::serve::o_direct;
    use forebay_base::sync::Mutex;
    use forebay_base::task::{BoxFuture, yield_now};
    use forebay_base::world::RealWorld;
    use forebay_testkit::mem_fs::MemFs;
    use forebay_vfs::coherent::Observer;
    use forebay_vfs::{FileKind, Ino, Name, NewInode, OpenFlags};
    use forebay_vfs::{OpenFile, ReadResult, WriteResult};
    use std::sync::Arc;
    use std::task::{Context, Waker};

    /// A file that carries out a write in two halves, as the cache does with a write to two folios.
    struct Halves(Mutex<Vec<u8>>);

    impl OpenFile for Halves {
        fn ino(&self) -> Ino {
            Ino(7)
        }
        fn flags(&self) -> OpenFlags {
            OpenFlags::READ | OpenFlags::WRITE
        }
        fn read(&self, _: u64, buf: AlignedBuf, _: IoFlags) -> BoxFuture<'_, ReadResult> {
            Box::pin(async move { (buf, Ok(0)) })
        }
        fn write(
            &self,
            offset: u64,
            buf: AlignedBuf,
            _: IoFlags,
            _: Privileges,
        ) -> BoxFuture<'_, WriteResult> {
            Box::pin(async move {
                let (at, len) = (offset as usize, buf.len());
                for half in [0..len / 2, len / 2..len] {
                    let bytes = &buf[half.clone()];
                    self.0.lock()[at + half.start..at + half.end].copy_from_slice(bytes);
                    yield_now().await;
                }
                (buf, Ok(Wrote { offset, len }))
            })
        }
        fn try_write(
            &self,
            offset: u64,
            src: &[u8],
            _: IoFlags,
            _: Privileges,
        ) -> Option<Result<Wrote>> {
            let at = offset as usize;
            self.0.lock()[at..at + src.len()].copy_from_slice(src);
            Some(Ok(Wrote { offset, len: src.len() }))
        }
        fn fallocate(
            &self,
            _: Fallocate,
            _: u64,
            _: u64,
            _: Privileges,
        ) -> BoxFuture<'_, Result<()>> {
            Box::pin(async { Ok(()) })
        }
        fn seek(&self, _: Seek, offset: u64) -> BoxFuture<'_, Result<u64>> {
            Box::pin(async move { Ok(offset) })
        }
        fn sync(&self, _: bool) -> BoxFuture<'_, Result<()>> {
            Box::pin(async { Ok(()) })
        }
    }

    /// B3. The story: the kernel sends writes to one file in parallel, and each is carried out
    /// folio by folio. Two overlapping writes left a mix of both.
    #[test]
    fn overlapping_writes_on_their_way_leave_the_later_one() {
        let core = core(CacheMode::Own);
        let file = Arc::new(Halves(Mutex::new(vec![0; 8192])));
        let handle = Handle::new(file.clone(), IoFlags::empty(), MODE_CACHED, Caching::default());
        let fh = core.handles.add(handle);
        let write = |offset, byte| {
            let io = WriteIn { offset, size: 4096, ..write_in(fh, 0, 2) };
            Box::pin(core.write(io, AlignedBuf::copy_of(&[byte; 4096])))
        };
        let mut cx = Context::from_waker(Waker::noop());
        let (mut first, mut second, mut apart) = (write(0, 1), write(0, 2), write(4096, 3));
        assert!(first.as_mut().poll(&mut cx).is_pending());
        assert!(second.as_mut().poll(&mut cx).is_pending());
        assert!(core.write_now(&write_in(fh, 0, 2), b"abc").is_none(), "it has to wait");
        let beyond = WriteIn { offset: 100, ..write_in(fh, 0, 2) };
        assert!(core.write_now(&beyond, b"abc").is_none(), "in the middle, too");
        let apart_now = WriteIn { offset: 8189, ..write_in(fh, 0, 2) };
        assert!(core.write_now(&apart_now, b"abc").is_some(), "this one meets none");
        assert!(apart.as_mut().poll(&mut cx).is_pending());
        assert!(file.0.lock()[4096] == 3, "one that overlaps none is carried out meanwhile");
        let mut is_over = false;
        while second.as_mut().poll(&mut cx).is_pending() {
            if !is_over {
                is_over = first.as_mut().poll(&mut cx).is_ready();
            }
        }
        let found = file.0.lock()[..4096].to_vec();
        assert_eq!((found[0], found[4095]), (2, 2), "first and last byte");
        block_on(apart).unwrap();
    }

    /// B3: a write by a thread that may wait comes after an overlapping write in progress.
    #[test]
    fn blocking_write_waits_for_overlapping_write_in_progress() {
        let core = core(CacheMode::Own);
        let file = Arc::new(Halves(Mutex::new(vec![0; 8192])));
        let handle = Handle::new(file.clone(), IoFlags::empty(), MODE_CACHED, Caching::default());
        let fh = core.handles.add(handle);
        let io = WriteIn { size: 4096, ..write_in(fh, 0, 2) };
        let mut first = Box::pin(core.write(io, AlignedBuf::copy_of(&[1; 4096])));
        let mut cx = Context::from_waker(Waker::noop());
        assert!(first.as_mut().poll(&mut cx).is_pending());
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| core.write_here(&write_in(fh, 0, 2), b"abc").map(drop));
            // Wait until its range is queued; from then on it can only wait.
            while core.write_ranges.waiting(Ino(7)) == 0 && !thread.is_finished() {
                std::thread::yield_now();
            }
            let is_overtaken = file.0.lock()[0] != 1;
            while first.as_mut().poll(&mut cx).is_pending() {}
            thread.join().unwrap().unwrap();
            assert!(!is_overtaken, "it has overtaken the first one");
        });
        assert_eq!(file.0.lock()[..4], *b"abc\x01");
    }

    /// A file on which every request has to wait; it counts the attempts.
    #[derive(Default)]
    struct Waits(Mutex<[u32; 2]>);

    impl OpenFile for Waits {
        fn ino(&self) -> Ino {
            Ino(7)
        }
        fn flags(&self) -> OpenFlags {
            OpenFlags::READ | OpenFlags::WRITE
        }
        fn write(
            &self,
            offset: u64,
            buf: AlignedBuf,
            _: IoFlags,
            _: Privileges,
        ) -> BoxFuture<'_, WriteResult> {
            let len = buf.len();
            Box::pin(async move { (buf, Ok(Wrote { offset, len })) })
        }
        fn fallocate(
            &self,
            _: Fallocate,
            _: u64,
            _: u64,
            _: Privileges,
        ) -> BoxFuture<'_, Result<()>> {
            Box::pin(async { Ok(()) })
        }
        fn seek(&self, _: Seek, offset: u64) -> BoxFuture<'_, Result<u64>> {
            Box::pin(async move { Ok(offset) })
        }
        fn sync(&self, _: bool) -> BoxFuture<'_, Result<()>> {
            Box::pin(async { Ok(()) })
        }
        fn try_read(&self, _: u64, _: &mut [u8], _: IoFlags) -> Option<Result<usize>> {
            self.0.lock()[0] += 1;
            None
        }
        fn read(&self, _: u64, buf: AlignedBuf, _: IoFlags) -> BoxFuture<'_, ReadResult> {
            let len = buf.len();
            Box::pin(async move { (buf, Ok(len)) })
        }
        fn try_write(&self, _: u64, _: &[u8], _: IoFlags, _: Privileges) -> Option<Result<Wrote>> {
            self.0.lock()[1] += 1;
            None
        }
    }

    /// The story: a request that had to wait tried its fast path twice. The first try of a read had
    /// advanced its read-ahead stream, so the second found nothing to read ahead.
    #[test]
    fn request_that_waits_is_tried_once() {
        let core = core(CacheMode::Own);
        let file = Arc::new(Waits::default());
        let handle = Handle::new(file.clone(), IoFlags::empty(), MODE_CACHED, Caching::default());
        let fh = core.handles.add(handle);
        let (io, mut bytes) = (ReadIn { fh, offset: 0, size: 9, read_flags: 2, flags: 0 }, [0; 16]);
        assert!(core.read_now(&io, &mut bytes).is_none());
        assert_eq!(core.read_here(&io, &mut bytes).unwrap(), 9);
        assert!(core.write_now(&write_in(fh, 2, 0), b"abc").is_none());
        assert!(core.write_here(&write_in(fh, 2, 0), b"abc").is_ok());
        assert_eq!(*file.0.lock(), [1, 1], "tries of the read and of the write");
    }

    fn core(mode: CacheMode) -> Arc<Core> {
        let options = crate::Options { cache: mode, ..Default::default() };
        Core::new(Arc::new(MemFs::default()), RealWorld::new(), Default::default(), &options)
    }

    /// Creates and opens a file; returns its handle.
    fn opened(core: &Core) -> u64 {
        let new = NewInode::of(FileKind::File, 0o600);
        let flags = OpenFlags::READ | OpenFlags::WRITE;
        let made = block_on(core.fs.create(Ino::ROOT, Name::new(b"f").unwrap(), &new, flags));
        let (_, file) = made.unwrap();
        core.handles.add(Handle::new(file, IoFlags::empty(), MODE_CACHED, Caching::default()))
    }

    fn write_in(fh: u64, flags: u32, write_flags: u32) -> WriteIn {
        WriteIn { fh, offset: 0, size: 3, write_flags, flags }
    }

    /// B1: what the file can answer at once needs no future.
    #[test]
    fn b1_hits_are_answered_at_once() {
        let core = core(CacheMode::Small);
        let fh = opened(&core);
        assert!(matches!(core.write_now(&write_in(fh, 2, 0), b"abc"), Some(Ok(_))));
        let io = ReadIn { fh, offset: 1, size: 9, read_flags: 2, flags: 0 };
        let mut bytes = [0; 16];
        assert_eq!(core.read_now(&io, &mut bytes).unwrap().unwrap(), 2);
        assert_eq!(bytes[..2], *b"bc");
        let unknown = ReadIn { fh: fh + 1, ..io };
        let e = core.read_now(&unknown, &mut bytes).unwrap().unwrap_err();
        assert_eq!(e.kind(), ErrorKind::BadHandle);
    }

    /// The story: a copy was counted with the 96 bytes of its message, but took 1 MiB of memory.
    /// With many at a time the process exceeded its `cache_size` and 64 MiB.
    #[test]
    fn request_memory_is_counted() {
        let message = |code: u32, size: u32| {
            let len: u32 = if size == 0 { 96 } else { 80 };
            let mut message = vec![0; len as usize];
            message[..4].copy_from_slice(&len.to_le_bytes());
            message[4..8].copy_from_slice(&code.to_le_bytes());
            message[56..60].copy_from_slice(&size.to_le_bytes());
            crate::serve::Work::Other(message).bytes()
        };
        assert_eq!(message(opcode::COPY_FILE_RANGE, 0), 96 + (2 << 20));
        assert_eq!(message(opcode::COPY_FILE_RANGE_64, 0), 96 + (2 << 20));
        assert_eq!(message(opcode::READDIRPLUS, 5000), 80 + 5000);
        assert_eq!(message(opcode::READDIR, u32::MAX), 80 + PAYLOAD_MAX as u64);
        assert_eq!(message(opcode::GETATTR, 5000), 80);
    }

    /// B2: the kernel's flags and those of the opening's mode are passed on.
    #[test]
    fn b2_every_flag_is_passed_on() {
        let core = core(CacheMode::Small);
        let fh = opened(&core);
        let handle = core.handle(fh).unwrap();
        let of = |flags, kind| core.flags_of_write(&handle, &write_in(fh, flags, kind)).0;
        let direct = IoFlags::DIRECT | IoFlags::FALLBACK;
        assert_eq!(of(2, 2), IoFlags::empty());
        assert_eq!(of(o_direct() | open::DSYNC, 2), direct | IoFlags::DSYNC);
        assert_eq!(of(open::DSYNC | open::SYNC_ONLY, 2), IoFlags::SYNC);
        assert_eq!(of(open::APPEND, 2), IoFlags::empty(), "its place is the kernel's");
        assert_eq!(of(o_direct() | open::DSYNC, WRITE_CACHE), IoFlags::empty());
        core.inodes.told(handle.file.ino());
        core.inodes.mark(handle.file.ino(), Mark::Shared);
        assert_eq!(of(open::APPEND, 2), IoFlags::APPEND, "another interface has written");
        assert_eq!(of(open::APPEND, WRITE_CACHE), IoFlags::empty());
        assert_eq!(of(2, 2), IoFlags::empty(), "an append by `RWF_APPEND` says nothing of it");
        assert!(handle.set_mode(crate::ioctl::MODE_UNCACHED));
        assert_eq!(of(open::DSYNC, 2), IoFlags::UNCACHED | IoFlags::DSYNC);
        let read = ReadIn { fh, offset: 0, size: 1, read_flags: 0, flags: o_direct() };
        assert_eq!(core.flags_of_read(&handle, &read), direct | IoFlags::UNCACHED);
        assert_eq!(privileges_of(&write_in(fh, 0, WRITE_KILL_SUIDGID)), Privileges::Drop);
        assert_eq!(privileges_of(&write_in(fh, 0, 2)), Privileges::Keep);
    }

    /// appends.K5. The story: a program appended while the library made its first change to the
    /// file. The kernel had chosen the append's offset before, so one overwrote the other.
    #[test]
    fn k5_first_foreign_change_waits_for_earlier_appends() {
        let core = core(CacheMode::Own);
        let fh = opened(&core);
        let handle = core.handle(fh).unwrap();
        let ino = handle.file.ino();
        core.inodes.told(ino);
        let append = write_in(fh, open::APPEND, 2);
        let (flags, counted) = core.flags_of_write(&handle, &append);
        assert!(flags.is_empty() && counted.is_some());
        let mut change = std::pin::pin!(core.will_change(ino));
        let mut context = Context::from_waker(Waker::noop());
        assert!(change.as_mut().poll(&mut context).is_pending(), "it is on its way");
        let (flags, later) = core.flags_of_write(&handle, &append);
        assert!(flags == IoFlags::APPEND && later.is_none(), "this one looks for the end");
        assert!(change.as_mut().poll(&mut context).is_pending());
        drop(counted);
        assert!(change.as_mut().poll(&mut context).is_ready());
        block_on(core.will_change(ino));
    }
}
