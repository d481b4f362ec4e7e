//! The columns, sizes and results of the part.

use super::backup::{self, How};
use super::figures::Run;
use crate::rivals::mounted::words_of_environment;
use forebay_base::units::MIB;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// A variant: a cache for the database, with a method of backup.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Column {
    /// XFS; database and tar in one memory cgroup.
    Xfs,
    /// Forebay; ordinary tar.
    Forebay,
    /// XFS; tar in its own cgroup.
    XfsApart,
    /// Forebay; tar under `forebay run --uncached`.
    ForebayUncached,
    /// XFS; the backup reads with O_DIRECT.
    XfsDirect,
}

pub const COLUMNS: [Column; 5] =
    [Column::Xfs, Column::Forebay, Column::XfsApart, Column::ForebayUncached, Column::XfsDirect];

impl Column {
    pub fn name(self) -> &'static str {
        match self {
            Self::Xfs => "xfs",
            Self::Forebay => "forebay",
            Self::XfsApart => "xfs-tar-apart",
            Self::ForebayUncached => "forebay-uncached",
            Self::XfsDirect => "xfs-direct-reader",
        }
    }

    pub fn is_ours(self) -> bool {
        matches!(self, Self::Forebay | Self::ForebayUncached)
    }

    pub fn how(self) -> How {
        match self {
            Self::ForebayUncached => How::Uncached,
            Self::XfsDirect => How::Direct,
            _ => How::Tar,
        }
    }
}

/// Sizes and times.
pub struct Setting {
    /// Size of Forebay's cache, and of the page cache in the cgroup, bytes.
    pub cache: u64,
    /// Scale factor of pgbench's tables.
    pub scale: u32,
    /// Size of the files that are backed up, bytes.
    pub backup: u64,
    /// Pace of the backup, bytes per second.
    pub pace: u64,
    /// Seconds alone and during the backup, both without [`SETTLING`].
    pub seconds: (u64, u64),
    pub rounds: usize,
    pub bin: PathBuf,
    /// Directory for sockets and logs.
    pub folder: PathBuf,
}

impl Setting {
    /// Size of PostgreSQL's shared buffers, which are small on purpose.
    pub fn buffers_mib(&self) -> u64 {
        (self.cache / 16 / MIB).max(2)
    }

    /// `cache_size` of our mount, bytes. The daemon is in the cgroup, so with `cache=own` it leaves
    /// a part to its own memory. Else the kernel caches content, and it gets a quarter, as by
    /// default.
    pub fn daemon_cache(&self) -> u64 {
        let own = words_of_environment().is_some_and(|words| words.contains("cache=own"));
        (self.cache / 4 * if own { 3 } else { 1 }).max(32 * MIB)
    }

    /// Whether the run is too short to be judged (pgbench.N6).
    pub fn is_short(&self) -> bool {
        self.seconds.1 < SECONDS_MIN || self.rounds < ROUNDS_MIN
    }
}

/// Memory of a cgroup for tar alone, bytes.
pub const TAR_MEMORY: u64 = 64 * MIB;
/// Memory in the database's cgroup for tar, if it runs there, and for other memory that the kernel
/// charges, bytes.
pub const SLACK: u64 = 8 * MIB;
/// Seconds of pgbench that do not count: its clients connect and plan, and their memory is measured
/// (pgbench.N5).
pub const SETTLING: u64 = 1;
/// Least seconds during the backup of a run that is judged; below, the least number of rounds.
pub const SECONDS_MIN: u64 = 20;
/// Least seconds during the backup that can be requested.
pub const SECONDS_LEAST: u64 = 5;
pub const ROUNDS_MIN: usize = 3;
/// Least share of its pace at which a backup is judged.
pub const PACE_SHARE_MIN: f64 = 0.9;

/// Result of one column with one load.
pub struct Figures {
    pub run: Run,
    pub backup: backup::Done,
    /// CPU seconds during the backup: of the database, of Forebay's process, of the whole machine,
    /// of pgbench.
    pub cpu: [f64; 4],
    /// Mean share of the tables that is cached, sampled during the backup. pgbench draws its rows
    /// uniformly, so this is the hit ratio of its reads.
    pub hits: f64,
    /// The same share at the start and at the end of the backup.
    pub cached: [f64; 2],
    /// Limit of the memory cgroup, bytes; 0 if there is none.
    pub limit: u64,
}

impl Figures {
    /// Percent of the tables that the backup took out of the cache.
    pub fn lost_percent(&self) -> f64 {
        (self.cached[0] - self.cached[1]).max(0.0) * 100.0
    }

    /// CPU of the machine for a byte of the backup, ns; that of the database and of pgbench does
    /// not count.
    pub fn cpu_per_byte(&self) -> f64 {
        let bytes = self.backup.rate * 1e6 * self.backup.seconds;
        (self.cpu[2] - self.cpu[0] - self.cpu[3]) * 1e9 / bytes.max(1.0)
    }
}

pub type Found = BTreeMap<(Column, &'static str), Vec<Figures>>;
