//! An opener of a file of a volume.
//!
//! Invariant: Z1 all changes of the file go through [`forebay_vfs::OpenFile`], which updates its
//! times and drops its privileges. Only reads use the mapping in the cache directly.
//!
//! No locks.

use crate::volume::Volume;
use forebay_base::buf::AlignedBuf;
use forebay_base::task::block_on;
use forebay_base::{Error, ErrorKind, IoFlags, Result};
use forebay_iomap::{Handle, MappedFile};
use forebay_vfs::{
    Attr, Extent, Fallocate, FileSystem, Ino, OpenFile, OpenFileRef, OpenFlags, Privileges, SetAttr,
};
use std::sync::{Arc, OnceLock};

pub(crate) struct VolumeOpener {
    /// The mapping and this opener's read-ahead, for pins.
    reader: OnceLock<(Arc<MappedFile>, Handle)>,
    file: OpenFileRef,
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
    pub fn new(file: OpenFileRef, volume: Volume) -> Self {
        Self { reader: OnceLock::new(), file, volume }
    }

    /// Another opener of the same file, with streams and a view of write errors of its own.
    pub fn reopen(&self) -> Result<Self> {
        let flags = self.file.flags() & (OpenFlags::READ | OpenFlags::WRITE);
        let file = block_on(self.fs().open(self.ino(), flags))?;
        Ok(Self::new(file, self.volume.clone()))
    }

    fn fs(&self) -> &dyn FileSystem {
        &*self.volume.open.fs
    }

    pub fn open(&self) -> &dyn OpenFile {
        &*self.file
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

    /// The mapping and a handle on it, for a pin. Errors: `BadHandle` if it is not open for
    /// reading, `IsDirectory` and `InvalidInput` for inodes without content, `WouldBlock` with
    /// `NOWAIT` if the first use has to wait.
    pub fn reader(&self, flags: IoFlags) -> Result<&(Arc<MappedFile>, Handle)> {
        if let Some(reader) = self.reader.get() {
            return Ok(reader);
        }
        // An empty read: from its first read on the open file keeps its mapping.
        self.file.read_slice(0, &mut [], flags & IoFlags::NOWAIT)?;
        let file = self.mapped()?;
        let handle = file.open_handle();
        Ok(self.reader.get_or_init(|| (file, handle)))
    }

    /// Its mapping in the cache. Errors: `IsDirectory` and `InvalidInput` for inodes without
    /// content.
    pub fn mapped(&self) -> Result<Arc<MappedFile>> {
        self.volume.open.volume.mapped_file(self.ino())
    }

    /// A mount may hold stores back of what is a hole here. They are written first (Z3 of
    /// [`forebay_vfs::beside`]). The end of `found`, which begins at `offset`, if it has to be
    /// looked up again for that; nothing was handed over of later holes.
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
        Some(done.map(|wrote| wrote.len))
    }

    /// Writes and blocks. Returns the offset of the bytes written, and their number.
    pub fn write_slice(&self, offset: u64, src: &[u8], flags: IoFlags) -> Result<(u64, usize)> {
        let wrote = self.file.write_slice(offset, src, flags, Privileges::Drop)?;
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
        (buf, wrote.map(|wrote| (wrote.offset, wrote.len)))
    }

    pub fn set_len(&self, size: u64) -> Result<()> {
        if !self.writable() {
            return Err(Error::new(ErrorKind::BadHandle, "set size", "not opened for writing"));
        }
        block_on(self.fs().setattr(self.ino(), &SetAttr::size(size))).map(drop)
    }

    pub fn metadata(&self) -> Result<Attr> {
        block_on(self.fs().getattr(self.ino()))
    }

    pub async fn fallocate(&self, how: Fallocate, offset: u64, len: u64) -> Result<()> {
        self.file.fallocate(how, offset, len, Privileges::Drop).await
    }

    /// The path of the image, and the number of the inode.
    pub fn name(&self) -> String {
        format!("file {:?} of {}", self.ino(), self.volume.path().display())
    }
}
