//! How the file of an image is made: sparse, preallocated, or written.
//!
//! Invariants: B1 an image is complete and durable before anything is timed on it. B2 written
//! blocks are not discarded when a file system is made on the image: see
//! [`crate::rivals::loopdev`].

use forebay_base::buf::AlignedBuf;
use forebay_base::{Error, Result};
use rustix::fs::{FallocateFlags, OFlags, fallocate};
use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Allocation of an image's blocks on the host before the first write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backing {
    /// No blocks, only a size.
    Sparse,
    /// All blocks allocated and unwritten: the first write to each makes the host change its extent
    /// map.
    Preallocated,
    /// All blocks written ("warm").
    Written,
}

impl Backing {
    /// All variants.
    pub const ALL: [Self; 3] = [Self::Written, Self::Sparse, Self::Preallocated];

    /// Makes a file of `size` bytes.
    pub fn make(self, path: &Path, size: u64) -> Result<()> {
        let fail = |e| Error::from_io("make image", e).with_path(path);
        let mut options = File::options();
        options.create(true).truncate(true).write(true);
        let file = options.open(path).map_err(fail)?;
        file.set_len(size).map_err(fail)?;
        match self {
            Self::Sparse => {}
            Self::Preallocated => {
                fallocate(&file, FallocateFlags::empty(), 0, size).map_err(|e| fail(e.into()))?;
            }
            Self::Written => write_all(path, size).map_err(fail)?,
        }
        file.sync_all().map_err(fail)
    }
}

fn write_all(path: &Path, size: u64) -> std::io::Result<()> {
    let mut options = File::options();
    options.write(true);
    let direct = options.clone().custom_flags(OFlags::DIRECT.bits() as i32).open(path);
    let file = direct.or_else(|_| options.open(path))?;
    let mut chunk = AlignedBuf::new(4 << 20);
    // Not zeros, so that no layer below stores a hole.
    chunk.fill(0xa5);
    let len = chunk.len() as u64;
    for at in (0..size / len).map(|n| n * len) {
        file.write_all_at(&chunk, at)?;
    }
    let rest = (size % len) as usize;
    file.write_all_at(&chunk[..rest], size - rest as u64)
}

/// An image file, removed on drop unless it is to be kept.
pub struct BackedImage {
    path: PathBuf,
    keep: bool,
}

impl BackedImage {
    /// Makes `dir/forebay-bench-NAME-PID.img`.
    pub fn create(dir: &Path, name: &str, size: u64, backing: Backing, keep: bool) -> Result<Self> {
        let path = dir.join(format!("forebay-bench-{name}-{}.img", std::process::id()));
        let image = Self { path, keep };
        backing.make(&image.path, size)?;
        Ok(image)
    }

    /// The path of the image.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for BackedImage {
    fn drop(&mut self) {
        if !self.keep {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn backing_decides_blocks_and_drop_removes_file() {
        let dir = std::env::temp_dir();
        for (backing, name) in Backing::ALL.into_iter().zip(["written", "sparse", "preallocated"]) {
            let image = BackedImage::create(&dir, name, 5 << 20, backing, false).unwrap();
            let meta = std::fs::metadata(image.path()).unwrap();
            assert_eq!(meta.len(), 5 << 20);
            assert_eq!(meta.blocks() * 512 >= 5 << 20, backing != Backing::Sparse, "B1: {name}");
            let first = std::fs::read(image.path()).unwrap()[(5 << 20) - 1];
            assert_eq!(first == 0xa5, backing == Backing::Written);
            let path = image.path().to_path_buf();
            drop(image);
            assert!(!path.exists());
        }
    }
}
