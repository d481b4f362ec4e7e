//! The caches that are measured: Forebay's, or the kernel's in the cgroup of this process.

use super::measure::{BLOCK, HotTarget};
use crate::harness::load::Target;
use crate::harness::sys::mincore_bytes;
use crate::rivals::kernel::{DONTCACHE, KernelFile, open_random};
use crate::rivals::ours::{Flagged, Ours};
use forebay_base::{Error, ErrorKind, IoFlags, Result};
use rustix::io::{Errno, ReadWriteFlags, preadv2};
use std::fs::File;
use std::io::IoSliceMut;
use std::path::Path;

/// Forebay: its own cache, and a stream with its own flags.
pub struct OursHot {
    /// The cache and its image.
    pub ours: Ours,
    hot: Flagged,
    try_hot: Flagged,
    stream: Flagged,
}

impl OursHot {
    /// The hot thread reads without flags, the stream with these.
    pub fn new(ours: Ours, stream: IoFlags) -> Self {
        let (hot, stream) = (ours.with(IoFlags::empty()), ours.with(stream));
        let try_hot = Flagged { file: hot.file.clone(), flags: IoFlags::NOWAIT };
        Self { ours, hot, try_hot, stream }
    }
}

impl HotTarget for OursHot {
    fn try_hot(&self, buf: &mut [u8], offset: u64) -> Result<bool> {
        match self.try_hot.read(buf, offset) {
            Ok(()) => Ok(true),
            Err(e) if e.kind() == ErrorKind::WouldBlock => Ok(false),
            Err(e) => Err(e),
        }
    }

    fn hot(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.hot.read(buf, offset)
    }

    fn stream(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.stream.read(buf, offset)
    }

    fn resident(&self, offset: u64, len: u64) -> Result<u64> {
        Ok(self.ours.resident_4k(offset, len))
    }

    fn reclaim_nanos(&self) -> u64 {
        self.ours.cache.stats().reclaim_nanos
    }
}

/// The kernel's page cache, in the cgroup of this process.
pub struct KernelHot {
    file: File,
    hot: KernelFile,
    stream: KernelFile,
}

impl KernelHot {
    /// Opens the file for the hot thread and for the stream.
    pub fn open(path: &Path, dontcache: bool) -> Result<Self> {
        let open = || File::open(path).map_err(|e| Error::from_io("open", e).with_path(path));
        let hot = KernelFile::new(open_random(path)?);
        let flags = if dontcache { DONTCACHE } else { ReadWriteFlags::empty() };
        Ok(Self { file: open()?, hot, stream: KernelFile { file: open()?, flags } })
    }
}

impl HotTarget for KernelHot {
    fn try_hot(&self, buf: &mut [u8], offset: u64) -> Result<bool> {
        let mut slices = [IoSliceMut::new(buf)];
        match preadv2(&self.hot.file, &mut slices, offset, ReadWriteFlags::NOWAIT) {
            Ok(n) => Ok(n == BLOCK),
            Err(Errno::AGAIN) => Ok(false),
            Err(e) => Err(Error::from_io("read", e.into())),
        }
    }

    fn hot(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.hot.read(buf, offset)
    }

    fn stream(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.stream.read(buf, offset)
    }

    fn resident(&self, offset: u64, len: u64) -> Result<u64> {
        let bytes = mincore_bytes(&self.file, offset, len);
        Ok(bytes.map_err(|e| Error::from_io("mincore", e))? / BLOCK as u64)
    }

    fn reclaim_nanos(&self) -> u64 {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::super::measure::{HotResult, HotSpec, measure};
    use super::*;
    use crate::harness::image::Image;
    use std::time::Duration;

    #[test]
    fn kernel_result_survives_pipe() {
        let image = Image::create(&std::env::temp_dir(), "hot", 4 << 20, false).unwrap();
        let spec = HotSpec {
            hot: 1 << 20,
            size: 4 << 20,
            stream: 4 << 20,
            piece: 64 << 10,
            alone: Duration::from_millis(5),
        };
        let spec = HotSpec::from_json(&spec.to_json(image.path(), false));
        let target = KernelHot::open(image.path(), false).unwrap();
        let result = HotResult::from_json(&measure(&target, &spec).unwrap().to_json());
        assert!(result.reads_alone >= result.hits_alone && result.hits_alone > 0);
        assert_eq!(result.stream_bytes, 4 << 20);
        assert!(result.resident_before <= 256);
    }
}
