//! `names`: ten thousand, a hundred thousand and a million files are created, looked up and
//! removed, in the order of their names.
//!
//! Invariants: N1 the time of a creation or removal includes the sync. N2 files are in directories
//! of [`EACH`], so that directories have the same size for any number of files. N3 in addition,
//! without bars: files drawn at random from all are looked up and removed, so that their names are
//! mostly not in memory.

use super::places::{self, Ground, Place, Who};
use crate::harness::backing::Backing;
use crate::harness::image::Rng;
use crate::harness::meter::resident_bytes;
use crate::harness::options::Options;
use crate::report::model::{Good, Report, median};
use crate::rivals::loopdev::FsKind;
use crate::rivals::volume::OurVolume;
use forebay_base::task::block_on;
use forebay_base::units::{GIB, KIB, MIB};
use forebay_base::{Error, Result};
use forebay_vfs::{FileKind, FileSystem, Ino, Name, NewInode};
use std::path::PathBuf;
use std::time::Instant;

/// Files per directory.
pub const EACH: u64 = 10_000;

/// Most files that are looked up and removed in random order.
const DRAWN: u64 = 10_000;
/// Size of Forebay's cache. The kernel has no cgroup here, because its limit would not hold the
/// inodes.
const BUDGET: u64 = 256 * MIB;

/// Runs the part. `--size` is the largest number of files.
pub fn run(options: &Options, report: &mut Report) -> Result<()> {
    let most = options.size.unwrap_or(if options.quick { 3000 } else { 1_000_000 });
    let few = if options.quick { 500 } else { EACH };
    let image_bytes = if options.quick { 96 * MIB } else { most * 4 * KIB + GIB };
    let ground = Ground { options, part: "names", image_bytes, budget: BUDGET, dirty_limit: None };
    let who = [Who::Volume, Who::Loop(FsKind::Xfs)];
    let mut counts = vec![few];
    counts.extend([few * 10, most].into_iter().filter(|count| *count > few && *count <= most));
    counts.dedup();
    report.note(format!("names: {counts:?} files without content, in directories of {EACH}"));
    let mut ends = Vec::new();
    for place in places::all(&ground, &who, &[Backing::Sparse], report) {
        let mut tree = Tree::of(&place).expect("neither of them is the host's");
        tree.make_directories(most)?;
        let mut all = Vec::new();
        for count in &counts {
            // Small numbers are repeated, so that their total time is as long as that of many
            // files.
            let rounds = options.rounds_or(1, (most / count).clamp(1, 7) as usize);
            let rates = (0..rounds).map(|n| tree.all(*count, n as u64));
            all.push(rates.collect::<Result<Vec<_>>>()?);
        }
        add(report, place.name, &counts, &all);
        ends.push(all.pop().expect("a count"));
        if place.ours().is_some() {
            let held = resident_bytes(std::process::id()).unwrap_or(0) as f64 / MIB as f64;
            report
                .note(format!("names: the process holds {held:.0} MiB behind it, the cache in it"));
        }
    }
    if let [ours, xfs] = &ends[..] {
        for (what, figure) in FIGURES {
            let of = |rates: &Vec<Rates>| median(&rates.iter().map(figure).collect::<Vec<_>>());
            report.ratio(&format!("names_{what}_vs_xfs"), of(ours) / of(xfs));
        }
    }
    Ok(())
}

type Figure = fn(&Rates) -> f64;

const FIGURES: [(&str, Figure); 5] = [
    ("create", |r| r.create),
    ("stat", |r| r.stat),
    ("unlink", |r| r.unlink),
    ("stat_drawn", |r| r.stat_drawn),
    ("unlink_drawn", |r| r.unlink_drawn),
];

fn add(report: &mut Report, name: &str, counts: &[u64], all: &[Vec<Rates>]) {
    for (what, figure) in FIGURES {
        let of = |rates: &Vec<Rates>| rates.iter().map(figure).collect::<Vec<f64>>();
        for (count, rates) in counts.iter().zip(all) {
            report.row(name, &format!("names_{what}_{count}"), "1/s", &of(rates));
        }
        let (Some(few), Some(many)) = (all.first(), all.last()) else { continue };
        let ratio = median(&of(many)) / median(&of(few));
        match (name.starts_with("volume"), what) {
            (true, "create" | "stat" | "unlink") => {
                let name = format!("{what}_at_many_vs_few");
                report.ratio_with_bar(&name, ratio, Good::AtLeast, 0.7);
            }
            (true, _) => report.ratio(&format!("{what}_at_many_vs_few"), ratio),
            _ => report.ratio(&format!("xfs_{what}_at_many_vs_few"), ratio),
        }
    }
}

/// Operations per second.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rates {
    /// Creation.
    pub create: f64,
    /// Lookup with attributes.
    pub stat: f64,
    /// Removal.
    pub unlink: f64,
    /// Lookup in random order (N3).
    pub stat_drawn: f64,
    /// Removal in random order (N3).
    pub unlink_drawn: f64,
}

/// The names on one file system.
pub enum Tree<'a> {
    /// On a volume of Forebay: its directories.
    Ours(&'a OurVolume, Vec<Ino>),
    /// Below a directory of a mounted file system.
    Kernel(PathBuf),
}

impl<'a> Tree<'a> {
    /// The names on a place; `None` if that is a directory of the host.
    pub fn of(place: &'a Place) -> Option<Self> {
        match place.ours() {
            Some(volume) => Some(Self::Ours(volume, Vec::new())),
            None => place.path("names").map(Self::Kernel),
        }
    }

    /// Creates the directories that `count` files need.
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

    /// Creates the files `from..to`; returns the rate per second.
    pub fn create_all(&self, from: u64, to: u64) -> Result<f64> {
        self.timed(to - from, || (from..to).try_for_each(|n| self.create(n)))
    }

    /// Looks up `count` files drawn from `all`; returns the rate per second.
    pub fn stat_some(&self, count: u64, all: u64, seed: u64) -> Result<f64> {
        let mut rng = Rng::new(seed);
        let start = Instant::now();
        (0..count).try_for_each(|_| self.stat(rng.below(all)))?;
        Ok(count as f64 / start.elapsed().as_secs_f64())
    }

    /// Removes `count` files drawn from `all`; returns the rate per second, and their numbers.
    pub fn unlink_some(&self, count: u64, all: u64, seed: u64) -> Result<(f64, Vec<u64>)> {
        let chosen = draw(count, all, seed);
        let rate = self.timed(count, || chosen.iter().try_for_each(|n| self.unlink(*n)))?;
        Ok((rate, chosen))
    }

    /// The rate of `work` on `count` files, with the sync after it (N1).
    fn timed(&self, count: u64, work: impl FnOnce() -> Result<()>) -> Result<f64> {
        self.sync()?;
        let start = Instant::now();
        work()?;
        self.sync()?;
        Ok(count as f64 / start.elapsed().as_secs_f64())
    }

    /// Runs all steps with `count` files, and removes all of them.
    fn all(&self, count: u64, seed: u64) -> Result<Rates> {
        let create = self.create_all(0, count)?;
        let start = Instant::now();
        (0..count).try_for_each(|n| self.stat(n))?;
        let stat = count as f64 / start.elapsed().as_secs_f64();
        let stat_drawn = self.stat_some(count.min(DRAWN), count, seed)?;
        let (unlink_drawn, gone) = self.unlink_some(count.min(DRAWN) / 2, count, seed)?;
        gone.iter().try_for_each(|n| self.create(*n))?;
        let unlink = self.timed(count, || (0..count).try_for_each(|n| self.unlink(n)))?;
        Ok(Rates { create, stat, unlink, stat_drawn, unlink_drawn })
    }
}

fn path_of(root: &std::path::Path, n: u64) -> PathBuf {
    root.join(format!("d{}/file{n}", n / EACH))
}

/// `count` different numbers below `all`, in random order.
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

    /// N3: each number is drawn at most once.
    #[test]
    fn drawn_numbers_are_distinct() {
        let mut drawn = draw(100, 120, 5);
        drawn.sort_unstable();
        drawn.dedup();
        assert!(drawn.len() == 100 && drawn.iter().all(|n| *n < 120), "N3");
        let folder = |n| path_of(std::path::Path::new("/"), n).parent().unwrap().to_owned();
        assert_ne!(folder(EACH - 1), folder(EACH), "N2");
    }
}
