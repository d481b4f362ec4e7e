//! An opener of a file of a volume.
//!
//! Invariant: Z1 what changes the file goes through [`forebay_vfs::OpenFile`], which keeps its
//! times and drops its privileges; the mapping in the cache is only read.
//!
//! No locks.

use crate::volume::Volume;
use forebay_base::buf::AlignedBuf;
use forebay_base::task::block_on;
use forebay_base::{Error, ErrorKind, IoFlags, Result};
use forebay_iomap::MappedFile;
use forebay_vfs::{
    Attr, Fallocate, FileSystem, Ino, OpenFile, OpenFileRef, OpenFlags, Privileges, SetAttr,
};
use std::sync::Arc;

pub(crate) struct VolumeOpener {
    file: OpenFileRef,
    /// Dropped last: a volume is open for as long as its files are.
    pub volume: Volume,
}

impl VolumeOpener {
    pub fn new(file: OpenFileRef, volume: Volume) -> Self {
        Self { file, volume }
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

    /// Its mapping in the cache. `IsDirectory` and `InvalidInput` for what has no content.
    pub fn mapped(&self) -> Result<Arc<MappedFile>> {
        self.volume.open.volume.mapped_file(self.ino())
    }

    pub fn try_write(&self, offset: u64, src: &[u8], flags: IoFlags) -> Option<Result<usize>> {
        let done = self.file.try_write(offset, src, flags, Privileges::Drop)?;
        Some(done.map(|wrote| wrote.len))
    }

    /// Returns where the bytes went, and how many.
    pub fn write_slice(&self, offset: u64, src: &[u8], flags: IoFlags) -> Result<(u64, usize)> {
        let wrote = self.file.write_slice(offset, src, flags, Privileges::Drop)?;
        Ok((wrote.offset, wrote.len))
    }

    /// As `write_slice`, without blocking; gives the buffer back.
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
