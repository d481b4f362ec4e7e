//! The kernel's variants: one file through pread and pwrite, buffered, with O_DIRECT or
//! RWF_DONTCACHE.

use crate::harness::load::Target;
use forebay_base::{Error, Result};
use rustix::fs::{Advice, fadvise};
use rustix::io::{ReadWriteFlags, preadv2, pwritev2};
use std::fs::File;
use std::io::{IoSlice, IoSliceMut};
use std::path::Path;

/// RWF_DONTCACHE of Linux 6.14.
pub const DONTCACHE: ReadWriteFlags = ReadWriteFlags::from_bits_retain(0x80);

/// Opens a file for reading without readahead.
pub fn open_random(path: &Path) -> Result<File> {
    let file = File::open(path).map_err(|e| Error::from_io("open", e).with_path(path))?;
    let advised = fadvise(&file, 0, None, Advice::Random);
    advised.map_err(|e| Error::from_io("fadvise", e.into()))?;
    Ok(file)
}

/// A file that is read and written through the kernel.
pub struct KernelFile {
    /// The open file, with or without O_DIRECT.
    pub file: File,
    /// Flags of each call.
    pub flags: ReadWriteFlags,
}

impl KernelFile {
    /// Plain pread and pwrite.
    pub fn new(file: File) -> Self {
        Self { file, flags: ReadWriteFlags::empty() }
    }

    /// preadv2 and pwritev2 with RWF_DONTCACHE; an error if the kernel or the file system refuses
    /// it.
    pub fn dontcache(file: File) -> Result<Self> {
        let target = Self { file, flags: DONTCACHE };
        target.read(&mut [0u8; 4096], 0)?;
        Ok(target)
    }
}

impl Target for KernelFile {
    #[inline]
    fn read(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let len = buf.len();
        let got = preadv2(&self.file, &mut [IoSliceMut::new(buf)], offset, self.flags);
        whole("read", got, len, offset)
    }

    #[inline]
    fn write(&self, buf: &[u8], offset: u64) -> Result<()> {
        let put = pwritev2(&self.file, &[IoSlice::new(buf)], offset, self.flags);
        whole("write", put, buf.len(), offset)
    }
}

fn whole(op: &'static str, done: rustix::io::Result<usize>, len: usize, at: u64) -> Result<()> {
    match done {
        Ok(n) if n == len => Ok(()),
        Ok(n) => {
            let text = format!("{n} of {len} bytes");
            Err(Error::new(forebay_base::ErrorKind::Io, op, text).with_range(at, len as u64))
        }
        Err(e) => Err(Error::from_io(op, e.into()).with_range(at, len as u64)),
    }
}
