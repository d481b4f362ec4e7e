//! Parameters of a run of `database`: what is backed up, sizes, times and paths.

use super::data;
use forebay_base::{Error, Result};
use std::path::PathBuf;
use std::time::Duration;

/// What is backed up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Form {
    /// Other files, at 200 MB/s.
    Files,
    /// The database, at 200 MB/s.
    Itself,
    /// Other files, at 1 GB/s.
    Brisk,
    /// Other files, as fast as the disk delivers them.
    Fast,
}

impl Form {
    pub const ALL: [Self; 4] = [Self::Files, Self::Itself, Self::Brisk, Self::Fast];

    /// The name of this form of the bench.
    pub fn name(self) -> &'static str {
        match self {
            Self::Files => "files",
            Self::Itself => "itself",
            Self::Brisk => "brisk",
            Self::Fast => "fast",
        }
    }

    /// Pace of the backup in bytes per second, if it has one.
    pub fn pace(self) -> Option<u64> {
        match self {
            Self::Files | Self::Itself => Some(PACE),
            Self::Brisk => Some(BRISK),
            Self::Fast => None,
        }
    }

    /// Files and pace of the backup, in words.
    pub fn words(self) -> String {
        let what = if self == Self::Itself { "the database itself" } else { "other files" };
        match self.pace() {
            Some(pace) => format!("{what} at {} MB/s", pace / 1_000_000),
            None => format!("{what}, as fast as the disk gives them"),
        }
    }
}

/// Steps of a run; a quarter of them are before the backup.
const STEPS: u32 = 80;
/// Pace of an ordinary backup, bytes per second.
const PACE: u64 = 200_000_000;
/// Pace of a brisk backup: the rate of one flash disk.
const BRISK: u64 = 1_000_000_000;
/// Rate at which a disk is expected to deliver at most; on a faster disk the backup ends earlier.
const DISK: u64 = 1_000_000_000;
/// Least seconds and rounds of a run that is judged.
pub const SECONDS_MIN: f64 = 20.0;
pub const ROUNDS_MIN: usize = 5;

/// Sizes, times and places of the runs with one budget.
#[derive(Debug, Clone)]
pub struct Setting {
    /// Size of Forebay's cache, and of the kernel's, bytes.
    pub budget: u64,
    /// Seconds of one run: alone, during the backup and after it.
    pub seconds: f64,
    pub rounds: usize,
    /// Total size of the other files, bytes.
    pub files_bytes: u64,
    pub folder: PathBuf,
}

impl Setting {
    /// Number of rows, each of which fills a page: four times the budget.
    pub fn rows(&self) -> u64 {
        self.budget * 4 / data::PAGE as u64
    }

    /// Number of hot pages: 65 % of the budget.
    pub fn hot_pages(&self) -> usize {
        (self.budget * 65 / 100 / data::PAGE as u64) as usize
    }

    pub fn database(&self) -> PathBuf {
        self.folder.join("data.db")
    }

    pub fn hot_file(&self) -> PathBuf {
        self.folder.join("hot")
    }

    pub fn files(&self) -> PathBuf {
        self.folder.join("files")
    }

    pub fn backed_up(&self, form: Form) -> PathBuf {
        match form {
            Form::Files | Form::Brisk | Form::Fast => self.files(),
            Form::Itself => self.database(),
        }
    }

    /// Bytes that a backup reads in two thirds of a run: 2.5 GiB in 20 s at its pace, 12.5 GiB of a
    /// disk with 1 GB/s. The database is read once.
    pub fn backup_bytes(&self, form: Form) -> u64 {
        let pace = form.pace().unwrap_or(DISK);
        let bytes = (pace as f64 * self.seconds * 0.67) as u64;
        match form {
            Form::Files | Form::Brisk | Form::Fast => bytes,
            Form::Itself => bytes.min(self.rows() * data::PAGE as u64),
        }
    }

    /// Time after which a backup is stopped: on a disk with a fifth of the expected rate a run must
    /// not take five times as long.
    pub fn backup_limit(&self) -> Duration {
        Duration::from_secs_f64(self.seconds * 1.5)
    }

    pub fn step(&self) -> Duration {
        Duration::from_secs_f64(self.seconds) / STEPS
    }

    /// Numbers of steps before and after the backup.
    pub fn steps(&self) -> (usize, usize) {
        (STEPS as usize / 4, STEPS as usize / 12)
    }

    pub fn is_short(&self) -> bool {
        self.seconds < SECONDS_MIN || self.rounds < ROUNDS_MIN
    }

    pub fn drop_cached(&self) -> Result<()> {
        data::drop_cached(&self.database())?;
        let fail = |e| Error::from_io("list", e).with_path(self.files());
        for entry in std::fs::read_dir(self.files()).map_err(fail)? {
            data::drop_cached(&entry.map_err(fail)?.path())?;
        }
        Ok(())
    }

    pub fn make(&self) -> Result<()> {
        let fail = |e| Error::from_io("make", e).with_path(&self.folder);
        std::fs::create_dir(&self.folder).map_err(fail)?;
        data::make_database(&self.database(), self.rows())?;
        let hot = data::draw_hot_set(&self.database(), self.hot_pages(), 1)?;
        data::save_hot_set(&self.hot_file(), &hot)?;
        data::make_files(&self.files(), self.files_bytes)
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use forebay_base::units::MIB;

    pub fn setting(budget: u64, seconds: f64, rounds: usize) -> Setting {
        let folder = "/nowhere".into();
        Setting { budget, seconds, rounds, files_bytes: 0, folder }
    }

    #[test]
    fn full_form_has_the_sizes_that_are_promised() {
        let full = setting(256 * MIB, SECONDS_MIN, ROUNDS_MIN);
        assert_eq!(full.rows(), 262_144, "1 GiB of pages of 4 KiB");
        assert_eq!(full.hot_pages() as u64 * 4096 * 100 / full.budget, 64, "65 %, rounded down");
        assert_eq!(full.backup_bytes(Form::Files) / MIB, 2555);
        assert_eq!(full.backup_bytes(Form::Itself), 1024 * MIB);
        assert_eq!((full.step(), full.steps()), (Duration::from_millis(250), (20, 6)));
        assert!(!full.is_short());
        assert!(setting(256 * MIB, 19.0, 5).is_short() && setting(256 * MIB, 20.0, 4).is_short());
    }
}
