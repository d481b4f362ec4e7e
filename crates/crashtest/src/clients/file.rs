//! What clients read and write: a file of a volume, or a raw image that is mapped in place.
//!
//! No locks.

use forebay_base::buf::AlignedBuf;
use forebay_base::{IoFlags, Result};
use forebay_iomap::file::ZeroFlags;
use forebay_iomap::{Handle, MappedFile, Source, Target};
use forebay_lfs::Volume;
use forebay_vfs::{Fallocate, FileSystem, Ino, OpenFileRef, Privileges, SetAttr};
use std::ops::Range;
use std::sync::Arc;

/// The inode that stands for a raw image.
pub const IMAGE: u64 = 0;

/// An opened file. Clones share the handle.
#[derive(Clone)]
pub enum Opened {
    /// Of a volume.
    File(Volume, OpenFileRef),
    /// A raw image.
    Image(Arc<MappedFile>, Arc<Handle>),
}

impl Opened {
    /// Which file it is.
    pub fn ino(&self) -> u64 {
        match self {
            Self::File(_, file) => file.ino().0,
            Self::Image(..) => IMAGE,
        }
    }

    /// Writes, and says where.
    pub async fn write(&self, at: u64, mut buf: AlignedBuf, flags: IoFlags) -> Result<Range<u64>> {
        match self {
            Self::File(_, file) => {
                let wrote = file.write(at, buf, flags, Privileges::Keep).await.1?;
                Ok(wrote.offset..wrote.offset + wrote.len as u64)
            }
            Self::Image(file, handle) => {
                let len = file.write(handle, at, Source::Owned(&mut buf), flags).await?;
                Ok(at..at + len as u64)
            }
        }
    }

    /// Reads.
    pub async fn read(&self, at: u64, len: u64, flags: IoFlags) -> Result<Vec<u8>> {
        let mut buf = AlignedBuf::new(len as usize);
        match self {
            Self::File(_, file) => {
                let (buf, len) = file.read(at, buf, flags).await;
                Ok(buf[..len?].to_vec())
            }
            Self::Image(file, handle) => {
                let len = file.read(handle, at, Target::Owned(&mut buf), flags).await?;
                Ok(buf[..len].to_vec())
            }
        }
    }

    /// Makes zeros of a range.
    pub async fn zero(&self, at: u64, len: u64, punch: bool) -> Result<()> {
        match self {
            Self::File(_, file) => {
                let zero = Fallocate::ZeroRange { keep_size: true };
                let how = if punch { Fallocate::PunchHole } else { zero };
                file.fallocate(how, at, len, Privileges::Keep).await
            }
            Self::Image(file, _) => {
                let flags = ZeroFlags { keep_allocated: !punch, fast_only: false };
                file.zero(at, len, flags).await
            }
        }
    }

    /// Sets the size.
    pub async fn truncate(&self, to: u64) -> Result<()> {
        match self {
            Self::File(volume, file) => {
                let set = SetAttr { privileges: Privileges::Keep, ..SetAttr::size(to) };
                volume.setattr(Ino(file.ino().0), &set).await.map(drop)
            }
            Self::Image(file, _) => file.set_len(to).await,
        }
    }

    /// Makes it durable.
    pub async fn sync(&self, data_only: bool) -> Result<()> {
        match self {
            Self::File(_, file) => file.sync(data_only).await,
            Self::Image(file, handle) => file.sync(handle).await,
        }
    }
}
