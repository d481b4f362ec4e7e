//! What a run of `database` backs up, and its sizes, times and places.

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
    /// Other files, as fast as the disk gives them.
    Fast,
}

impl Form {
    pub const ALL: [Self; 4] = [Self::Files, Self::Itself, Self::Brisk, Self::Fast];

    /// Its name as a part.
    pub fn name(self) -> &'static str {
        match self {
            Self::Files => "files",
            Self::Itself => "itself",
            Self::Brisk => "brisk",
            Self::Fast => "fast",
        }
    }

    /// Bytes a second of the backup, if it has a pace.
    pub fn pace(self) -> Option<u64> {
        match self {
            Self::Files | Self::Itself => Some(PACE),
            Self::Brisk => Some(BRISK),
            Self::Fast => None,
        }
    }

    /// What is backed up, and how fast, in words.
    pub fn words(self) -> String {
        let what = if self == Self::Itself { "the database itself" } else { "other files" };
        match self.pace() {
            Some(pace) => format!("{what} at {} MB/s", pace / 1_000_000),
            None => format!("{what}, as fast as the disk gives them"),
        }
    }
}

/// Steps of a run, of which a quarter are alone.
const STEPS: u32 = 80;
/// Bytes a second of a backup that has a pace.
const PACE: u64 = 200_000_000;
/// The same of a brisk one: what one flash disk gives.
const BRISK: u64 = 1_000_000_000;
/// Bytes a second that a disk is expected to give at most; a faster backup ends earlier.
const DISK: u64 = 1_000_000_000;
/// A run is judged from so many seconds and rounds on.
pub const SECONDS_MIN: f64 = 20.0;
pub const ROUNDS_MIN: usize = 5;

/// Sizes, times and places of the runs with one budget.
#[derive(Debug, Clone)]
pub struct Setting {
    /// Bytes of our cache, and of the kernel's.
    pub budget: u64,
    /// Of one run, alone, during the backup and after it.
    pub seconds: f64,
    pub rounds: usize,
    /// Bytes of the other files.
    pub files_bytes: u64,
    pub folder: PathBuf,
}

impl Setting {
    /// Rows, each of which fills a page: four times the budget.
    pub fn rows(&self) -> u64 {
        self.budget * 4 / data::PAGE as u64
    }

    /// 65 % of the budget.
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

    /// What a backup reads at its pace in two thirds of a run: 2.5 GiB in 20 s; 12.5 GiB of a disk
    /// that gives 1 GB/s. The database once.
    pub fn backup_bytes(&self, form: Form) -> u64 {
        let pace = form.pace().unwrap_or(DISK);
        let bytes = (pace as f64 * self.seconds * 0.67) as u64;
        match form {
            Form::Files | Form::Brisk | Form::Fast => bytes,
            Form::Itself => bytes.min(self.rows() * data::PAGE as u64),
        }
    }

    /// The time after which a backup stops where it is: a disk that gives a fifth of its rate must
    /// not make a run five times as long.
    pub fn backup_limit(&self) -> Duration {
        Duration::from_secs_f64(self.seconds * 1.5)
    }

    pub fn step(&self) -> Duration {
        Duration::from_secs_f64(self.seconds) / STEPS
    }

    /// Steps alone and steps after the backup.
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
