//! An opener of a file of a volume.
//!
//! Invariant: Z1 all changes of the file go through [`forebay_vfs::OpenFile`], which updates its
//! times and drops its privileges. Only reads use the mapping in the cache directly. Z4 an error
//! that a layer below returns for a call on the file names the path that it was opened by.
//!
//! No locks.

use crate::volume::Volume;
use forebay_base::buf::AlignedBuf;
use forebay_base::task::block_on;
use forebay_base::{Error, ErrorKind, IoFlags, Result};
use forebay_iomap::{Handle, MappedFile};
use forebay_vfs::{
    Attr, Extent, Fallocate, FileSystem, Ino, OpenFileRef, OpenFlags, Privileges, Seek, SetAttr,
};
use std::path::Path;
use std::sync::{Arc, OnceLock};

pub(crate) struct VolumeOpener {
    /// The mapping and this opener's read-ahead, for pins.
    reader: OnceLock<(Arc<MappedFile>, Handle)>,
    file: OpenFileRef,
    /// The path that the caller opened the file by.
    path: Arc<Path>,
    /// Dropped last: a volume stays open for as long as its files.
    pub volume: Volume,
}

impl Drop for VolumeOpener {
    fn drop(&mut self) {
        if let Some((file, handle)) = self.reader.take() {
            file.close_handle(&handle);
        }
    }
}

impl VolumeOpener {
    pub fn new(file: OpenFileRef, path: Arc<Path>, volume: Volume) -> Self {
        Self { reader: OnceLock::new(), file, path, volume }
    }

    /// The result of a call of the layer below; an error names the path (Z4).
    #[inline]
    pub fn named<T>(&self, done: Result<T>) -> Result<T> {
        done.map_err(|error| self.named_error(error))
    }

    #[cold]
    pub fn named_error(&self, error: Error) -> Error {
        error.with_opened_path(&self.path, &format!("{:?}", self.ino()))
    }

    /// Another opener of the same file, with streams and a view of write errors of its own.
    pub fn reopen(&self) -> Result<Self> {
        let flags = self.file.flags() & (OpenFlags::READ | OpenFlags::WRITE);
        let file = self.named(block_on(self.fs().open(self.ino(), flags)))?;
        Ok(Self::new(file, self.path.clone(), self.volume.clone()))
    }

    fn fs(&self) -> &dyn FileSystem {
        &*self.volume.open.fs
    }

    pub fn ino(&self) -> Ino {
        self.file.ino()
    }

    pub fn readable(&self) -> bool {
        self.file.flags().contains(OpenFlags::READ)
    }

    pub fn writable(&self) -> bool {
        self.file.flags().contains(OpenFlags::WRITE)
    }

    pub fn try_read(&self, offset: u64, dst: &mut [u8], flags: IoFlags) -> Option<Result<usize>> {
        Some(self.named(self.file.try_read(offset, dst, flags)?))
    }

    #[inline]
    pub fn read_slice(&self, offset: u64, dst: &mut [u8], flags: IoFlags) -> Result<usize> {
        self.named(self.file.read_slice(offset, dst, flags))
    }

    /// Reads as a future, and gives the buffer back.
    pub async fn read(
        &self,
        offset: u64,
        buf: AlignedBuf,
        flags: IoFlags,
    ) -> (AlignedBuf, Result<usize>) {
        let (buf, read) = self.file.read(offset, buf, flags).await;
        (buf, self.named(read))
    }

    pub async fn sync(&self, data_only: bool) -> Result<()> {
        self.named(self.file.sync(data_only).await)
    }

    pub fn sync_here(&self, data_only: bool) -> Result<()> {
        self.named(self.file.sync_here(data_only))
    }

    pub async fn seek(&self, what: Seek, offset: u64) -> Result<u64> {
        self.named(self.file.seek(what, offset).await)
    }

    /// The mapping and a handle on it, for a pin of a range, after a mount of the volume has
    /// written back its stores into maps of the range (coherent.Z3). Errors: `BadHandle` if it is
    /// not open for reading, `IsDirectory` and `InvalidInput` for inodes without content,
    /// `WouldBlock` with `NOWAIT` if the call has to wait. The caller names the path.
    pub fn reader_of(
        &self,
        offset: u64,
        len: u64,
        flags: IoFlags,
    ) -> Result<&(Arc<MappedFile>, Handle)> {
        let reader = self.reader(flags)?;
        self.file.hand_over(offset, len, flags)?;
        Ok(reader)
    }

    fn reader(&self, flags: IoFlags) -> Result<&(Arc<MappedFile>, Handle)> {
        if let Some(reader) = self.reader.get() {
            return Ok(reader);
        }
        // An empty read: an open file holds its mapping from its first read on.
        self.file.read_slice(0, &mut [], flags & IoFlags::NOWAIT)?;
        let file = self.mapped()?;
        let handle = file.open_handle();
        Ok(self.reader.get_or_init(|| (file, handle)))
    }

    /// Its mapping in the cache. Errors: `IsDirectory` and `InvalidInput` for inodes without
    /// content.
    pub fn mapped(&self) -> Result<Arc<MappedFile>> {
        self.named(self.volume.open.volume.mapped_file(self.ino()))
    }

    /// A mount may hold back stores to ranges that are holes in `found`, which begins at `offset`.
    /// Has them written (coherent.Z3 of [`forebay_vfs::coherent`]). If there may have been some,
    /// returns the end of `found`: the caller has to look that range up again. Holes behind that
    /// end are not handed over.
    pub async fn hand_over_holes(&self, offset: u64, found: &[Extent]) -> Option<u64> {
        let (mut end, mut holes) = (offset, Vec::new());
        for extent in found {
            let start = end;
            end += extent.len;
            if extent.hole {
                holes.push(start..end);
            }
        }
        self.file.hand_over_holes(&holes).await.then_some(end)
    }

    pub fn try_write(&self, offset: u64, src: &[u8], flags: IoFlags) -> Option<Result<usize>> {
        let done = self.file.try_write(offset, src, flags, Privileges::Drop)?;
        Some(self.named(done).map(|wrote| wrote.len))
    }

    /// Writes and blocks. Returns the offset of the bytes written, and their number.
    pub fn write_slice(&self, offset: u64, src: &[u8], flags: IoFlags) -> Result<(u64, usize)> {
        let wrote = self.named(self.file.write_slice(offset, src, flags, Privileges::Drop))?;
        Ok((wrote.offset, wrote.len))
    }

    /// Writes as a future, and gives the buffer back. Returns as `write_slice` does.
    pub async fn write(
        &self,
        offset: u64,
        buf: AlignedBuf,
        flags: IoFlags,
    ) -> (AlignedBuf, Result<(u64, usize)>) {
        let (buf, wrote) = self.file.write(offset, buf, flags, Privileges::Drop).await;
        (buf, self.named(wrote).map(|wrote| (wrote.offset, wrote.len)))
    }

    pub fn set_len(&self, size: u64) -> Result<()> {
        let done = match self.writable() {
            true => block_on(self.fs().setattr(self.ino(), &SetAttr::size(size))).map(drop),
            false => Err(Error::new(ErrorKind::BadHandle, "set size", "not opened for writing")),
        };
        self.named(done)
    }

    pub fn metadata(&self) -> Result<Attr> {
        self.named(block_on(self.fs().getattr(self.ino())))
    }

    pub async fn fallocate(&self, how: Fallocate, offset: u64, len: u64) -> Result<()> {
        self.named(self.file.fallocate(how, offset, len, Privileges::Drop).await)
    }

    /// The path of the image, and the number of the inode.
    pub fn name(&self) -> String {
        format!("file {:?} of {}", self.ino(), self.volume.path().display())
    }
}
