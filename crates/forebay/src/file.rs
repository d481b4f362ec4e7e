//! An open file: a raw image, a device object or a file of a volume.
//!
//! Reading order: this file has the calls; `options` says how a file is opened, and `open` opens a
//! raw image; `raw` and `inside` are the two kinds of opener behind it; `pin` reads without a copy;
//! `vectored` and `stream` are other forms of the calls; `by_path` has the calls of a volume that
//! open a file of it.
//!
//! No locks.

mod by_path;
mod inside;
mod open;
mod options;
mod pin;
mod raw;
mod stream;
mod vectored;

pub use options::OpenOptions;
pub use stream::Stream;

use crate::map::{Residency, extents, residency};
use crate::volume::Volume;
use forebay_base::buf::AlignedBuf;
use forebay_base::task::block_on;
use forebay_base::{Error, ErrorKind, IoFlags, Result};
use forebay_block::{DirectIo, FileIdentity};
use forebay_cache::strategy::StablePages;
use forebay_iomap::MappedFile;
use forebay_vfs::{Attr, Extent, Fallocate, Ino, Seek};
use inside::VolumeOpener;
use raw::RawOpener;
use std::fmt;
use std::sync::Arc;

/// The two kinds of opener.
pub(crate) enum Kind {
    Raw(RawOpener),
    Volume(VolumeOpener),
}

pub(crate) struct Opener {
    pub kind: Kind,
    /// Flags of every read, and of every write.
    read_flags: IoFlags,
    write_flags: IoFlags,
}

/// An open file: a raw image or a file of a [`Volume`]. [`OpenOptions`] opens it.
///
/// The calls block the calling thread, take an offset and may be made from any number of threads.
/// Those that end in `_async` return a future instead, on any executor; [`File::stream`] has a
/// position and is [`std::io::Read`], [`std::io::Write`] and [`std::io::Seek`].
///
/// A write is complete once the cache has it; a sync makes it durable. Clones share one opener:
/// its read-ahead and the write errors that it has seen. [`File::reopen`] makes another opener.
/// Dropping the last opener of a raw image writes it out and can only log an error:
/// [`File::close`] reports it.
#[derive(Clone)]
pub struct File {
    pub(crate) opener: Arc<Opener>,
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("File")
            .field("name", &self.name())
            .field("readable", &self.readable())
            .field("writable", &self.writable())
            .finish_non_exhaustive()
    }
}

/// `UnexpectedEof` if fewer bytes were read than wanted.
fn read_whole(done: usize, wanted: usize, offset: u64) -> Result<()> {
    if done == wanted {
        return Ok(());
    }
    let text = format!("{done} of {wanted} bytes, then the file ends");
    Err(Error::new(ErrorKind::UnexpectedEof, "read", text).with_range(offset, wanted as u64))
}

fn of_raw<T>(op: &'static str) -> Result<T> {
    Err(Error::new(ErrorKind::Unsupported, op, "a file of a volume, not a raw image"))
}

impl File {
    pub(crate) fn of(kind: Kind, io_flags: IoFlags) -> Self {
        let (read_flags, write_flags) = (io_flags - IoFlags::WRITE_ONLY, io_flags);
        Self { opener: Arc::new(Opener { kind, read_flags, write_flags }) }
    }

    pub(crate) fn kind(&self) -> &Kind {
        &self.opener.kind
    }

    /// Reads at `offset` through the cache. Returns the bytes read: fewer than asked only at the
    /// end of the file. Reads of a sequential stream, and those at offset 0, read ahead: up to
    /// `readahead_max` bytes behind the range become cached, partly after the call has returned.
    #[inline]
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        self.read_at_with(buf, offset, IoFlags::empty())
    }

    /// [`File::read_at`] with flags. Errors: `BadHandle` if not opened for reading, `Unsupported`
    /// flags, `Unaligned` with `DIRECT`, `WouldBlock` with `NOWAIT`, `Corrupt` for blocks that
    /// fail their checksum, I/O.
    #[inline]
    pub fn read_at_with(&self, buf: &mut [u8], offset: u64, flags: IoFlags) -> Result<usize> {
        let flags = flags | self.opener.read_flags;
        match &self.opener.kind {
            Kind::Raw(raw) => raw.read_slice(offset, buf, flags),
            Kind::Volume(inside) => inside.read_slice(offset, buf, flags),
        }
    }

    /// Fills `buf` from `offset`. Errors: `UnexpectedEof` if the file ends before, and those of
    /// [`File::read_at_with`].
    pub fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.read_exact_at_with(buf, offset, IoFlags::empty())
    }

    /// [`File::read_exact_at`] with flags.
    pub fn read_exact_at_with(&self, buf: &mut [u8], offset: u64, flags: IoFlags) -> Result<()> {
        let mut done = 0;
        while done < buf.len() {
            match self.read_at_with(&mut buf[done..], offset.saturating_add(done as u64), flags)? {
                0 => break,
                read => done += read,
            }
        }
        read_whole(done, buf.len(), offset)
    }

    /// Writes at `offset` into the cache, to be written back later. Returns the bytes written:
    /// fewer than asked only where a volume runs out of space, or with `NOWAIT`.
    #[inline]
    pub fn write_at(&self, buf: &[u8], offset: u64) -> Result<usize> {
        self.write_at_with(buf, offset, IoFlags::empty())
    }

    /// [`File::write_at`] with flags. Errors: `BadHandle` if not opened for writing, `NoSpace`,
    /// also past the end of an image that cannot grow, `Unsupported` flags, `Unaligned` with
    /// `DIRECT`, `WouldBlock` with `NOWAIT`, I/O.
    pub fn write_at_with(&self, buf: &[u8], offset: u64, flags: IoFlags) -> Result<usize> {
        let flags = flags | self.opener.write_flags;
        match &self.opener.kind {
            Kind::Raw(raw) => raw.write_slice(offset, buf, flags),
            Kind::Volume(inside) => inside.write_slice(offset, buf, flags).map(|(_, len)| len),
        }
    }

    /// Writes all of `buf` at `offset`. Errors: those of [`File::write_at_with`]; a part may be
    /// written then.
    pub fn write_all_at(&self, buf: &[u8], offset: u64) -> Result<()> {
        self.write_all_at_with(buf, offset, IoFlags::empty())
    }

    /// [`File::write_all_at`] with flags.
    pub fn write_all_at_with(&self, buf: &[u8], offset: u64, flags: IoFlags) -> Result<()> {
        let mut done = 0;
        while done < buf.len() {
            match self.write_at_with(&buf[done..], offset.saturating_add(done as u64), flags)? {
                0 => return Err(Error::new(ErrorKind::NoSpace, "write", "no space for the rest")),
                wrote => done += wrote,
            }
        }
        Ok(())
    }

    /// Writes `buf` at the end of the file, in one step with other appends. Returns where the
    /// bytes are. Errors: those of [`File::write_at_with`]; `NoSpace` also if only a part of it
    /// has space.
    pub fn append(&self, buf: &[u8], flags: IoFlags) -> Result<u64> {
        let flags = flags | self.opener.write_flags | IoFlags::APPEND;
        let (offset, len) = match &self.opener.kind {
            Kind::Raw(raw) => raw.append_slice(buf, flags)?,
            Kind::Volume(inside) => inside.write_slice(0, buf, flags)?,
        };
        appended(offset, len, buf.len())
    }

    /// Reads if it can without waiting; `None` otherwise.
    pub(crate) fn try_read(
        &self,
        offset: u64,
        dst: &mut [u8],
        flags: IoFlags,
    ) -> Option<Result<usize>> {
        let flags = flags | self.opener.read_flags;
        match &self.opener.kind {
            Kind::Raw(raw) => raw.try_read(offset, dst, flags),
            Kind::Volume(inside) => inside.try_read(offset, dst, flags),
        }
    }

    /// Writes if it can without waiting; `None` otherwise.
    pub(crate) fn try_write(
        &self,
        offset: u64,
        src: &[u8],
        flags: IoFlags,
    ) -> Option<Result<usize>> {
        let flags = flags | self.opener.write_flags;
        match &self.opener.kind {
            Kind::Raw(raw) => raw.try_write(offset, src, flags),
            Kind::Volume(inside) => inside.try_write(offset, src, flags),
        }
    }

    /// [`File::read_at_with`] as a future. Gives the buffer back, and how many bytes of it were
    /// read. Dropping the future is safe at any time: the device keeps the buffer until it is done
    /// with it.
    pub async fn read_at_async(
        &self,
        mut buf: AlignedBuf,
        offset: u64,
        flags: IoFlags,
    ) -> (AlignedBuf, Result<usize>) {
        let flags = flags | self.opener.read_flags;
        match &self.opener.kind {
            Kind::Raw(raw) => {
                let done = raw.read(offset, &mut buf, flags).await;
                (buf, done)
            }
            Kind::Volume(inside) => inside.read(offset, buf, flags).await,
        }
    }

    /// [`File::write_at_with`] as a future. Gives the buffer back, and how many bytes of it were
    /// written. If the future is dropped the write may still take effect.
    pub async fn write_at_async(
        &self,
        buf: AlignedBuf,
        offset: u64,
        flags: IoFlags,
    ) -> (AlignedBuf, Result<usize>) {
        let (buf, done) = self.write_placed(buf, offset, flags).await;
        (buf, done.map(|(_, len)| len))
    }

    /// [`File::append`] as a future. Gives the buffer back, and where its bytes are.
    pub async fn append_async(&self, buf: AlignedBuf, flags: IoFlags) -> (AlignedBuf, Result<u64>) {
        let (buf, done) = self.write_placed(buf, 0, flags | IoFlags::APPEND).await;
        let done = done.and_then(|(offset, len)| appended(offset, len, buf.len()));
        (buf, done)
    }

    async fn write_placed(
        &self,
        mut buf: AlignedBuf,
        offset: u64,
        flags: IoFlags,
    ) -> (AlignedBuf, Result<(u64, usize)>) {
        let flags = flags | self.opener.write_flags;
        match &self.opener.kind {
            Kind::Raw(raw) => {
                let done = raw.write(offset, &mut buf, flags).await;
                (buf, done)
            }
            Kind::Volume(inside) => inside.write(offset, buf, flags).await,
        }
    }

    /// [`File::sync_data`] as a future.
    pub async fn sync_data_async(&self) -> Result<()> {
        match &self.opener.kind {
            Kind::Raw(raw) => raw.sync().await,
            Kind::Volume(inside) => inside.sync(true).await,
        }
    }

    /// [`File::sync_all`] as a future.
    pub async fn sync_all_async(&self) -> Result<()> {
        match &self.opener.kind {
            Kind::Raw(raw) => raw.sync().await,
            Kind::Volume(inside) => inside.sync(false).await,
        }
    }

    /// Makes everything written so far durable, with the metadata to find it. An error is reported
    /// once to each opener; the bytes are kept and tried again.
    pub fn sync_data(&self) -> Result<()> {
        match &self.opener.kind {
            Kind::Raw(raw) => raw.sync_here(),
            Kind::Volume(inside) => inside.sync_here(true),
        }
    }

    /// Makes durable what [`File::sync_data`] does, and also times and all other attributes, which
    /// only a file of a volume has.
    pub fn sync_all(&self) -> Result<()> {
        match &self.opener.kind {
            Kind::Raw(raw) => raw.sync_here(),
            Kind::Volume(inside) => inside.sync_here(false),
        }
    }

    /// Makes everything durable and drops this opener. Reports what dropping it can only log.
    /// Clones of it stay open; the bytes of a failed write-out are kept and tried again.
    pub fn close(self) -> Result<()> {
        if self.writable() { self.sync_all() } else { Ok(()) }
    }

    /// Size in bytes.
    pub fn size(&self) -> Result<u64> {
        match &self.opener.kind {
            Kind::Raw(raw) => Ok(raw.file.size()),
            Kind::Volume(inside) => inside.metadata().map(|attr| attr.size),
        }
    }

    /// Sets the size in bytes: bytes behind it are gone, bytes added read as zeros. Errors:
    /// `BadHandle` if not opened for writing, `Unsupported` where the size is fixed (block
    /// devices, images with a size limit), I/O.
    pub fn set_len(&self, size: u64) -> Result<()> {
        match &self.opener.kind {
            Kind::Raw(raw) => raw.set_len(size),
            Kind::Volume(inside) => inside.set_len(size),
        }
    }

    /// Allocates, punches or zeroes a range, as fallocate(2). No call sets space aside: a later
    /// write may still find none. Errors: `InvalidInput` for an empty range, `BadHandle` if not
    /// opened for writing, `FileTooLarge`, `Unsupported` where the size is fixed, I/O.
    pub fn fallocate(&self, how: Fallocate, offset: u64, len: u64) -> Result<()> {
        if len == 0 {
            return Err(Error::new(ErrorKind::InvalidInput, "fallocate", "an empty range"));
        }
        match &self.opener.kind {
            Kind::Raw(raw) => block_on(raw.fallocate(how, offset, len)),
            Kind::Volume(inside) => block_on(inside.fallocate(how, offset, len)),
        }
    }

    /// The range reads as zeros afterwards, and its space is given back where that is possible.
    /// The size stays as it is; the part of the range past the end is ignored.
    pub fn trim(&self, offset: u64, len: u64) -> Result<()> {
        self.make_zero(Fallocate::PunchHole, offset, len)
    }

    /// The range reads as zeros afterwards; a raw image keeps its space allocated. The size stays
    /// as it is, as for [`File::trim`].
    pub fn zero(&self, offset: u64, len: u64) -> Result<()> {
        self.make_zero(Fallocate::ZeroRange { keep_size: true }, offset, len)
    }

    fn make_zero(&self, how: Fallocate, offset: u64, len: u64) -> Result<()> {
        match len {
            0 => self.check_writable("zero"),
            _ => self.fallocate(how, offset, len),
        }
    }

    /// The first offset from `offset` on that may hold data, or that is in a hole. Errors:
    /// `PastEnd` if none follows.
    pub fn seek(&self, what: Seek, offset: u64) -> Result<u64> {
        match &self.opener.kind {
            Kind::Raw(raw) => block_on(raw.seek(what, offset)),
            Kind::Volume(inside) => block_on(inside.seek(what, offset)),
        }
    }

    /// The extents of a range: which runs hold data. Dirty blocks in the cache count as data.
    /// Errors: `OutOfRange` past the end.
    pub fn extents(&self, offset: u64, len: u64) -> Result<Vec<Extent>> {
        block_on(self.extents_of(&*self.mapped()?, offset, len, usize::MAX))
    }

    /// [`File::extents`] as a future. `mapped`: this file's mapping. Returns at most `max` extents.
    pub(crate) async fn extents_of(
        &self,
        mapped: &MappedFile,
        offset: u64,
        len: u64,
        max: usize,
    ) -> Result<Vec<Extent>> {
        let found = extents(mapped, offset, len, max).await;
        let Kind::Volume(inside) = &self.opener.kind else { return found };
        let found = inside.named(found)?;
        match inside.hand_over_holes(offset, &found).await {
            Some(end) => inside.named(extents(mapped, offset, end - offset, max).await),
            None => Ok(found),
        }
    }

    /// Which blocks of a range are cached at this moment. Read-ahead may still be adding blocks.
    pub fn residency(&self, offset: u64, len: u64) -> Result<Residency> {
        Ok(residency(&*self.mapped()?, offset, len))
    }

    /// Reads what is missing of a range into the cache, as far as frames can be had without
    /// waiting for them. Returns once the last reads are issued. Read errors are left to the
    /// reader of the range.
    pub fn prefetch(&self, offset: u64, len: u64) -> Result<()> {
        if !self.readable() {
            return Err(Error::new(ErrorKind::BadHandle, "prefetch", "not opened for reading"));
        }
        block_on(self.mapped()?.prefetch(offset, len));
        Ok(())
    }

    /// Evicts the clean blocks of a range that no request uses, recently read ones too. Dirty
    /// blocks stay.
    pub fn drop_clean(&self, offset: u64, len: u64) -> Result<()> {
        let file = self.mapped()?;
        let end = offset.saturating_add(len).min(file.size());
        file.cache.drop_range(&file.mapping, offset.min(end)..end);
        Ok(())
    }

    /// A reader and writer with a position of its own, which begins at 0.
    #[must_use]
    pub fn stream(&self) -> Stream {
        Stream::new(self.clone())
    }

    /// A new opener of the same file, with read-ahead and a view of write errors of its own.
    pub fn reopen(&self) -> Result<Self> {
        let kind = match &self.opener.kind {
            Kind::Raw(raw) => Kind::Raw(raw.reopen()),
            Kind::Volume(inside) => Kind::Volume(inside.reopen()?),
        };
        Ok(Self::of(kind, self.opener.write_flags))
    }

    /// Whether it was opened for reading.
    pub fn readable(&self) -> bool {
        match &self.opener.kind {
            Kind::Raw(raw) => raw.access.readable,
            Kind::Volume(inside) => inside.readable(),
        }
    }

    /// Whether it was opened for writing.
    pub fn writable(&self) -> bool {
        match &self.opener.kind {
            Kind::Raw(raw) => raw.access.writable,
            Kind::Volume(inside) => inside.writable(),
        }
    }

    pub(crate) fn check_writable(&self, op: &'static str) -> Result<()> {
        match self.writable() {
            true => Ok(()),
            false => Err(Error::new(ErrorKind::BadHandle, op, "not opened for writing")),
        }
    }

    /// The volume of the file; `None` for a raw image.
    pub fn volume(&self) -> Option<&Volume> {
        match &self.opener.kind {
            Kind::Raw(_) => None,
            Kind::Volume(inside) => Some(&inside.volume),
        }
    }

    /// Number of its inode in the volume; `None` for a raw image.
    pub fn ino(&self) -> Option<Ino> {
        match &self.opener.kind {
            Kind::Raw(_) => None,
            Kind::Volume(inside) => Some(inside.ino()),
        }
    }

    /// Device and inode of the host file that was opened, whatever its path leads to by now. For a
    /// block device its number and 0. `None` for a device object and a file of a volume.
    pub fn host_inode(&self) -> Option<(u64, u64)> {
        let Kind::Raw(raw) = &self.opener.kind else { return None };
        Some(match raw.identity()? {
            FileIdentity::Inode(dev, ino) => (dev, ino),
            FileIdentity::Block(number) => (number, 0),
        })
    }

    /// Attributes. `Unsupported` for a raw image, whose attributes are the host's.
    pub fn metadata(&self) -> Result<Attr> {
        match &self.opener.kind {
            Kind::Raw(_) => {
                let text = "a raw image has the attributes of its file on the host";
                Err(Error::new(ErrorKind::Unsupported, "read attributes", text))
            }
            Kind::Volume(inside) => inside.metadata(),
        }
    }

    /// A name for messages: the path of the image, or the inode and the volume.
    pub(crate) fn name(&self) -> String {
        match &self.opener.kind {
            Kind::Raw(raw) => raw.file.device().name(),
            Kind::Volume(inside) => inside.name(),
        }
    }

    /// Its mapping in the cache. Errors: `IsDirectory` and `InvalidInput` for inodes without
    /// content.
    pub(crate) fn mapped(&self) -> Result<Arc<MappedFile>> {
        match &self.opener.kind {
            Kind::Raw(raw) => Ok(raw.file.clone()),
            Kind::Volume(inside) => inside.mapped(),
        }
    }

    /// Block size of the cache for this file, bytes: the unit of its dirty and uptodate state.
    pub fn block_size(&self) -> Result<u32> {
        Ok(self.mapped()?.mapping.block_size() as u32)
    }

    /// Accepted bytes whose write-out failed. The cache keeps them and tries again.
    pub fn failed_bytes(&self) -> Result<u64> {
        Ok(self.mapped()?.mapping.failed_bytes())
    }

    /// Discards the data of a raw image that could not be written: reads there return the device's
    /// bytes again. Returns the bytes dropped. Only this call and dropping the cache lose accepted
    /// data.
    pub fn discard_failed(&self) -> Result<u64> {
        match &self.opener.kind {
            Kind::Raw(raw) => raw.discard_failed(),
            Kind::Volume(_) => of_raw("discard"),
        }
    }

    /// Switches direct I/O below the cache while the file is in use; in a volume, below all of it.
    /// Dirty data is flushed first. While direct I/O is on, no range of the image is dirty in the
    /// system's page cache. Whether the image is eligible is determined anew. Errors: `Unsupported`
    /// for an image that is not eligible, or a device object.
    pub fn set_direct_io(&self, mode: DirectIo) -> Result<()> {
        match &self.opener.kind {
            Kind::Raw(raw) => raw.set_direct_io(mode),
            Kind::Volume(inside) => inside.volume.set_direct_io(mode),
        }
    }

    /// With the mode `Auto`: switches direct I/O if what is below the image has changed, so that
    /// the decision differs now. Returns whether it switched. A front end calls this now and then.
    /// Does nothing during another switch.
    pub fn refresh_direct_io(&self) -> Result<bool> {
        match &self.opener.kind {
            Kind::Raw(raw) => raw.refresh_direct_io(),
            Kind::Volume(inside) => inside.volume.refresh_direct_io(),
        }
    }

    /// Whether direct I/O is on below the cache, and why.
    pub fn direct_io(&self) -> (bool, String) {
        match &self.opener.kind {
            Kind::Raw(raw) => raw.direct_io(),
            Kind::Volume(inside) => inside.volume.direct_io(),
        }
    }

    /// The mode of direct I/O that was set last; `Off` for a device object.
    pub fn direct_io_mode(&self) -> DirectIo {
        match &self.opener.kind {
            Kind::Raw(raw) => raw.direct_io_mode(),
            Kind::Volume(inside) => inside.volume.direct_io_mode(),
        }
    }

    /// Whether the cache keeps this file's bytes from changing while in flight, and why: what its
    /// device needs now, unless [`File::set_stable_pages`] overrides it.
    pub fn stable_pages_required(&self) -> Result<(bool, &'static str)> {
        let need = self.mapped()?.stable_need();
        Ok((need.required, need.reason))
    }

    /// Whether the device below needs stable bytes now, and why.
    pub fn device_stable_pages_required(&self) -> (bool, &'static str) {
        match &self.opener.kind {
            Kind::Raw(raw) => {
                let need = raw.file.device().limits().stable_writes;
                (need.required, need.reason)
            }
            Kind::Volume(inside) => inside.volume.device_stable_pages_required(),
        }
    }

    /// Whether the cache's setting `stable_pages` decides about stable bytes (`Auto`) or this call
    /// does. Applies from the next write on, for all openers of the file. `Off` is `Unsupported`
    /// for files with checksums.
    pub fn set_stable_pages(&self, to: StablePages) -> Result<()> {
        self.mapped()?.set_stable_pages(to)
    }

    /// What is in force: the value that [`File::set_stable_pages`] set last, unless it is `Auto`;
    /// then the setting of the cache. `Auto`: the device decides.
    pub fn stable_pages(&self) -> Result<StablePages> {
        Ok(self.mapped()?.stable_pages())
    }
}

fn appended(offset: u64, len: usize, wanted: usize) -> Result<u64> {
    if len == wanted {
        return Ok(offset);
    }
    let text = format!("space for {len} of {wanted} bytes");
    Err(Error::new(ErrorKind::NoSpace, "append", text).with_range(offset, wanted as u64))
}
