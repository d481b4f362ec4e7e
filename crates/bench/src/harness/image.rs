//! Test images: files of incompressible, non-repeating data, removed at the end.
//!
//! Invariant: I1 a new image is completely written, synced, and out of the page cache.

use forebay_base::buf::AlignedBuf;
use forebay_base::world::split_mix;
use forebay_base::{Error, Result};
use rustix::fs::{Advice, OFlags, fadvise};
use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

const CHUNK: usize = 1 << 20;

/// A file of a bench. Removed on drop unless it is to be kept.
pub struct Image {
    path: PathBuf,
    size: u64,
    keep: bool,
}

/// Removes images in `dir` that killed benches have left: those whose process has ended.
pub fn sweep(dir: &Path) {
    for path in leftovers(dir, "forebay-bench-", ".img") {
        let _ = std::fs::remove_file(path);
    }
}

/// Entries of `dir` named `PREFIX..-PID SUFFIX` whose process has ended.
pub fn leftovers(dir: &Path, prefix: &str, suffix: &str) -> Vec<PathBuf> {
    let is_left = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let middle = name.strip_prefix(prefix).and_then(|name| name.strip_suffix(suffix));
        let pid = middle.and_then(|m| m.rsplit('-').next()).and_then(|p| p.parse::<u32>().ok());
        pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists())
    };
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(is_left).collect()
}

/// Pseudo-random numbers from a seed.
#[derive(Clone, Copy, Debug)]
pub struct Rng(u64);

impl Rng {
    /// A generator; any seed is valid.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64-bit number.
    #[inline]
    pub fn draw(&mut self) -> u64 {
        split_mix(&mut self.0)
    }

    /// A number below `bound`, which is not 0.
    #[inline]
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.draw()) * u128::from(bound)) >> 64) as u64
    }
}

impl Image {
    /// Writes `dir/forebay-bench-NAME-PID.img` with `size` bytes, a multiple of 1 MiB.
    pub fn create(dir: &Path, name: &str, size: u64, keep: bool) -> Result<Self> {
        let path = dir.join(format!("forebay-bench-{name}-{}.img", std::process::id()));
        let image = Self { path, size, keep };
        let fail = |e| Error::from_io("create image", e).with_path(&image.path);
        let file = image.open_for_fill().map_err(fail)?;
        let mut rng = Rng::new(size ^ name.len() as u64);
        let mut chunk = AlignedBuf::new(CHUNK);
        for at in (0..size).step_by(CHUNK) {
            for word in chunk.chunks_exact_mut(8) {
                word.copy_from_slice(&rng.draw().to_le_bytes());
            }
            file.write_all_at(&chunk, at).map_err(fail)?;
        }
        file.sync_all().map_err(fail)?;
        drop_file_cache(&file).map_err(fail)?;
        Ok(image)
    }

    fn open_for_fill(&self) -> std::io::Result<File> {
        let mut options = File::options();
        options.create(true).truncate(true).write(true);
        let direct = options.clone().custom_flags(OFlags::DIRECT.bits() as i32).open(&self.path);
        direct.or_else(|_| options.open(&self.path))
    }

    /// The path of the image.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The size of the image, bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Opens it for reading and writing, with further flags.
    pub fn open(&self, flags: OFlags) -> Result<File> {
        open_with(&self.path, flags)
    }
}

/// Opens a file for reading and writing with further flags.
pub fn open_with(path: &Path, flags: OFlags) -> Result<File> {
    let mut options = File::options();
    options.read(true).write(true).custom_flags(flags.bits() as i32);
    options.open(path).map_err(|e| Error::from_io("open", e).with_path(path))
}

/// Writes a file back and drops its pages from the kernel's cache.
pub fn drop_file_cache(file: &File) -> std::io::Result<()> {
    file.sync_data()?;
    Ok(fadvise(file, 0, None, Advice::DontNeed)?)
}

/// Drops all clean pages of the machine; false if this process may not.
pub fn drop_all_caches() -> bool {
    rustix::fs::sync();
    std::fs::write("/proc/sys/vm/drop_caches", "1").is_ok()
}

impl Drop for Image {
    fn drop(&mut self) {
        if !self.keep {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_of_different_blocks_and_gone_at_the_end() {
        let image = Image::create(&std::env::temp_dir(), "self", 2 << 20, false).unwrap();
        let bytes = std::fs::read(image.path()).unwrap();
        assert_eq!(bytes.len() as u64, image.size());
        let mut firsts: Vec<_> = bytes.chunks(4096).map(|block| block[..8].to_vec()).collect();
        firsts.sort();
        firsts.dedup();
        assert_eq!(firsts.len(), 512);
        let path = image.path().to_path_buf();
        drop(image);
        assert!(!path.exists());
    }

    #[test]
    fn sweep_removes_files_of_dead_processes_only() {
        let dir = std::env::temp_dir().join(format!("forebay-bench-sweep-{}", std::process::id()));
        std::fs::create_dir(&dir).unwrap();
        let own = format!("forebay-bench-x-{}.img", std::process::id());
        // Process ids are below 2^22.
        for name in ["forebay-bench-x-4194305.img", own.as_str(), "disk-4194305.img"] {
            std::fs::write(dir.join(name), "").unwrap();
        }
        sweep(&dir);
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 2);
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn random_numbers_stay_below_their_bound() {
        let mut rng = Rng::new(1);
        assert!((0..1000).all(|_| rng.below(7) < 7));
    }
}
