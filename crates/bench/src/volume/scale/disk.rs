//! A disk in memory of any size. Zeros take no memory, so a volume with content of zeros takes that
//! of its tree and its log.
//!
//! Every request completes inside `submit`, on the caller's thread. The content is in a file in
//! memory that the process has not mapped, so it is no part of its resident memory.

use forebay_base::{Error, Result};
use forebay_block::check::{SECTOR, check_bio};
use forebay_block::{Bio, BioOp, BlockDevice, Limits, StableWrites};
use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, ftruncate, memfd_create};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, PoisonError};

/// The most bytes of a request.
const MOST: u64 = 4 << 20;

/// A disk in memory of any size, whose zeros take no memory.
pub struct SparseDisk {
    file: File,
    size: u64,
    /// The bytes of the request in progress.
    bytes: Mutex<Vec<u8>>,
}

impl SparseDisk {
    /// A disk of `size` bytes of zeros.
    pub fn new(size: u64) -> Result<Self> {
        let fail = |e: rustix::io::Errno| Error::from_io("make a file in memory", e.into());
        let file = memfd_create("forebay-bench-scale", MemfdFlags::CLOEXEC).map_err(fail)?;
        ftruncate(&file, size).map_err(fail)?;
        Ok(Self { file: file.into(), size, bytes: Mutex::default() })
    }

    fn zero(&self, offset: u64, len: u64) -> std::io::Result<()> {
        let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        Ok(fallocate(&self.file, how, offset, len)?)
    }

    fn run(&self, bio: &mut Bio) -> Result<()> {
        check_bio(bio, &self.limits(), self.size)?;
        let mut bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        let len = bio.len as usize;
        if bytes.len() < len && matches!(bio.op, BioOp::Read | BioOp::Write) {
            bytes.resize(len, 0);
        }
        let len = len.min(bytes.len());
        let bytes = &mut bytes[..len];
        let done = match bio.op {
            BioOp::Read => self.file.read_exact_at(bytes, bio.offset).map(|()| {
                bio.data.copy_in(0, bytes);
            }),
            BioOp::Write => {
                bio.data.copy_out(0, bytes);
                match bytes.iter().all(|byte| *byte == 0) {
                    true => self.zero(bio.offset, bio.len),
                    false => self.file.write_all_at(bytes, bio.offset),
                }
            }
            BioOp::Flush => Ok(()),
            BioOp::Discard | BioOp::WriteZeroes => self.zero(bio.offset, bio.len),
        };
        done.map_err(|e| Error::from_io("use the disk in memory", e))
    }
}

impl BlockDevice for SparseDisk {
    fn name(&self) -> String {
        "sparse".into()
    }

    fn limits(&self) -> Limits {
        let reason = "the disk takes a copy at submission";
        Limits {
            logical_block: SECTOR,
            physical_block: 4096,
            memory_align: 1,
            max_transfer: MOST as u32,
            max_segments: 1024,
            stable_writes: StableWrites { required: false, reason },
            discard: true,
            write_zeroes: true,
            read_only: false,
        }
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn submit(&self, mut bio: Bio) {
        let result = self.run(&mut bio);
        bio.complete(result);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_block::BioFlags;

    #[test]
    fn zeros_take_no_memory_and_overwrite_data() {
        let disk = SparseDisk::new(1 << 40).unwrap();
        let blocks = || disk.file.metadata().map(|m| std::os::unix::fs::MetadataExt::blocks(&m));
        let write = |bytes: &[u8], at| disk.write_from(at, bytes, BioFlags::empty()).unwrap();
        let end = (1 << 40) - 8192;
        write(&[0; 1 << 20], 1 << 30);
        assert_eq!(blocks().unwrap(), 0, "zeros");
        write(&[7; 8192], end);
        write(&[0; 4096], end);
        let mut back = [1; 8192];
        disk.read_into(end, &mut back).unwrap();
        assert_eq!((back[0], back[4095], back[4096], back[8191]), (0, 0, 7, 7));
        assert_eq!(blocks().unwrap(), 8, "a page");
    }
}
