//! Making, looking up and removing files, where there are few and where there are many.
//!
//! Invariants: N1 what is made or removed is durable when its time ends. N2 files are in directories of
//! [`EACH`], and those that are looked up or removed are drawn among all.

use super::places::Place;
use crate::harness::image::Rng;
use crate::rivals::volume::OurVolume;
use forebay_base::task::block_on;
use forebay_base::{Error, Result};
use forebay_vfs::{FileKind, FileSystem, Ino, Name, NewInode};
use std::path::PathBuf;
use std::time::Instant;

/// Files of a directory.
pub const EACH: u64 = 10_000;

/// Operations per second.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rates {
    /// Made.
    pub create: f64,
    /// Looked up, with their attributes.
    pub stat: f64,
    /// Removed.
    pub unlink: f64,
}

/// Names of one place.
pub enum Tree<'a> {
    /// On a volume of ours: its directories.
    Ours(&'a OurVolume, Vec<Ino>),
    /// Below a directory of the kernel's.
    Kernel(PathBuf),
}

impl<'a> Tree<'a> {
    /// Of a place; `None` where names would go into a directory that is not ours.
    pub fn of(place: &'a Place) -> Option<Self> {
        match place.ours() {
            Some(volume) => Some(Self::Ours(volume, Vec::new())),
            None => place.path("names").map(Self::Kernel),
        }
    }

    /// Makes the directories that `count` files need.
    pub fn make_directories(&mut self, count: u64) -> Result<()> {
        for n in 0..count.div_ceil(EACH) {
            let name = format!("d{n}");
            match self {
                Self::Ours(volume, dirs) if dirs.len() as u64 <= n => {
                    let new = NewInode::of(FileKind::Directory, 0o755);
                    let name = Name::new(name.as_bytes())?;
                    dirs.push(block_on(volume.volume.mkdir(Ino::ROOT, name, &new))?.ino);
                }
                Self::Ours(..) => {}
                Self::Kernel(root) => {
                    let path = root.join(name);
                    let made = std::fs::create_dir_all(&path);
                    made.map_err(|e| Error::from_io("mkdir", e).with_path(path))?;
                }
            }
        }
        Ok(())
    }

    fn create(&self, n: u64) -> Result<()> {
        match self {
            Self::Ours(volume, dirs) => {
                let dir = dirs[(n / EACH) as usize];
                volume.file_in(dir, &format!("file{n}")).map(drop)
            }
            Self::Kernel(root) => {
                let path = path_of(root, n);
                let made = std::fs::File::create_new(&path);
                made.map(drop).map_err(|e| Error::from_io("create", e).with_path(path))
            }
        }
    }

    fn stat(&self, n: u64) -> Result<()> {
        match self {
            Self::Ours(volume, dirs) => {
                let name = format!("file{n}");
                let name = Name::new(name.as_bytes())?;
                block_on(volume.volume.lookup(dirs[(n / EACH) as usize], name)).map(drop)
            }
            Self::Kernel(root) => {
                let path = path_of(root, n);
                let found = std::fs::metadata(&path);
                found.map(drop).map_err(|e| Error::from_io("stat", e).with_path(path))
            }
        }
    }

    fn unlink(&self, n: u64) -> Result<()> {
        match self {
            Self::Ours(volume, dirs) => {
                let name = format!("file{n}");
                let name = Name::new(name.as_bytes())?;
                block_on(volume.volume.unlink(dirs[(n / EACH) as usize], name))
            }
            Self::Kernel(root) => {
                let path = path_of(root, n);
                let gone = std::fs::remove_file(&path);
                gone.map_err(|e| Error::from_io("unlink", e).with_path(path))
            }
        }
    }

    fn sync(&self) -> Result<()> {
        match self {
            Self::Ours(volume, _) => volume.sync(),
            Self::Kernel(root) => {
                let fail = |e| Error::from_io("syncfs", e).with_path(root);
                let dir = std::fs::File::open(root).map_err(fail)?;
                rustix::fs::syncfs(&dir).map_err(|e| fail(e.into()))
            }
        }
    }

    /// Makes files `from..to`; per second.
    pub fn create_all(&self, from: u64, to: u64) -> Result<f64> {
        self.timed(to - from, || (from..to).try_for_each(|n| self.create(n)))
    }

    /// Looks up `count` files drawn among `all`; per second.
    pub fn stat_some(&self, count: u64, all: u64, seed: u64) -> Result<f64> {
        let mut rng = Rng::new(seed);
        let start = Instant::now();
        (0..count).try_for_each(|_| self.stat(rng.below(all)))?;
        Ok(count as f64 / start.elapsed().as_secs_f64())
    }

    /// Removes `count` files drawn among `all`; per second, and which.
    pub fn unlink_some(&self, count: u64, all: u64, seed: u64) -> Result<(f64, Vec<u64>)> {
        let chosen = draw(count, all, seed);
        let rate = self.timed(count, || chosen.iter().try_for_each(|n| self.unlink(*n)))?;
        Ok((rate, chosen))
    }

    /// Removes files `from..to`, untimed.
    pub fn remove(&self, from: u64, to: u64) -> Result<()> {
        (from..to).try_for_each(|n| self.unlink(n))
    }

    /// Makes these again, untimed.
    pub fn restore(&self, files: &[u64]) -> Result<()> {
        files.iter().try_for_each(|n| self.create(*n))
    }

    /// N1.
    fn timed(&self, count: u64, work: impl FnOnce() -> Result<()>) -> Result<f64> {
        self.sync()?;
        let start = Instant::now();
        work()?;
        self.sync()?;
        Ok(count as f64 / start.elapsed().as_secs_f64())
    }

    /// All three where there are no more than `count` files: `EACH` of them or fewer at a time, all removed
    /// at the end.
    pub fn few(&self, count: u64, seed: u64) -> Result<Rates> {
        let create = self.create_all(0, count)?;
        let stat = self.stat_some(count, count, seed)?;
        let (unlink, _) = self.unlink_some(count, count, seed)?;
        Ok(Rates { create, stat, unlink })
    }
}

fn path_of(root: &std::path::Path, n: u64) -> PathBuf {
    root.join(format!("d{}/file{n}", n / EACH))
}

/// `count` different numbers below `all`, in no order.
fn draw(count: u64, all: u64, seed: u64) -> Vec<u64> {
    let mut rng = Rng::new(seed);
    let mut numbers: Vec<u64> = (0..all).collect();
    for at in 0..count.min(all) {
        numbers.swap(at as usize, (at + rng.below(all - at)) as usize);
    }
    numbers.truncate(count as usize);
    numbers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_drawn_is_drawn_once() {
        let mut drawn = draw(100, 120, 5);
        drawn.sort_unstable();
        drawn.dedup();
        assert!(drawn.len() == 100 && drawn.iter().all(|n| *n < 120), "N2");
    }
}
