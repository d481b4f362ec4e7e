//! How a mount is made and served.
//!
//! No locks.

use crate::device::PAYLOAD_MAX;
use crate::drops::QUEUE_BYTES;
use crate::ioctl::MountMode;
use forebay_base::{Error, ErrorKind, Result};
use forebay_vfs::copy;
use rustix::mount::MountFlags;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// Least `request_timeout`, seconds: a large write or copy to a slow device has to end within it.
pub const REQUEST_TIMEOUT_SECONDS_MIN: u64 = 300;
/// Largest `request_timeout`, seconds: the kernel's own limit, which is longer, has 16 bits.
pub const REQUEST_TIMEOUT_SECONDS_MAX: u64 = 26_000;

/// Which of the two caches, the kernel's or ours, keeps the content of files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CacheMode {
    /// Ours: every read and write is a request to us. The kernel keeps mapped pages, and those of
    /// executables, until the last close.
    Own,
    /// As [`CacheMode::Own`], but the kernel also keeps files of up to [`SMALL_BYTES`] that were
    /// opened for reading only. Such files may be in both caches.
    Small,
    /// The kernel's, for all openings but those with `O_DIRECT`. Writes are still requests to us,
    /// and ours keeps them until they are durable.
    #[default]
    Kernel,
}

/// Longest file that [`CacheMode::Small`] leaves to the kernel's cache, bytes.
pub const SMALL_BYTES: u64 = 128 << 10;

impl CacheMode {
    /// Its words as values of `cache=`, in the order of the variants.
    pub const WORDS: [&'static str; 3] = ["own", "small", "kernel"];
    /// The words of `kernel_cache=` for the same, which said what the kernel may keep.
    pub const ALIASES: [&'static str; 3] = ["never", "small", "always"];
    const ALL: [Self; 3] = [Self::Own, Self::Small, Self::Kernel];

    /// Its word.
    pub fn word(self) -> &'static str {
        Self::WORDS[self as usize]
    }
}

impl FromStr for CacheMode {
    type Err = Error;
    fn from_str(word: &str) -> Result<Self> {
        let is_named = |mode: &&Self| {
            let at = **mode as usize;
            Self::WORDS[at] == word || Self::ALIASES[at] == word
        };
        Self::ALL.iter().find(is_named).copied().ok_or_else(|| {
            let text = format!("`{word}`: own, small or kernel");
            Error::new(ErrorKind::InvalidInput, "cache mode", text)
        })
    }
}

/// How the kernel is asked for the mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Via {
    /// The best that works: block device, then plain, then helper.
    #[default]
    Auto,
    /// Type `fuseblk.forebay` on a loop device of its own: umount(2) and sync(2) reach us. Needs root.
    Block,
    /// Type `fuse.forebay`. Needs root.
    Plain,
    /// Type `fuse.forebay` by fusermount3, for anybody.
    Helper,
}

/// The settings of a mount.
#[derive(Debug, Clone)]
pub struct Options {
    /// What the table of mounts shows as the source, where the type lets us choose.
    pub source: String,
    /// What the kernel keeps to itself: read-only, no set-id, no devices, no execution, times of access.
    pub flags: MountFlags,
    /// Other users may look in; rights are checked by mode bits. Root's mounts always allow it.
    pub allow_other: bool,
    /// How the kernel is asked.
    pub via: Via,
    /// Which cache keeps the content of files.
    pub cache: CacheMode,
    /// The mode of openings that have none of their own.
    pub mode: MountMode,
    /// Where the process can be asked; [`crate::CONTROL_ATTRIBUTE`] tells others.
    pub control: Option<PathBuf>,
    /// Reader threads, 1 to 64; none: as many as CPUs.
    pub threads: Option<usize>,
    /// Inodes that the kernel may know before it is asked to forget some; 32 bytes each here.
    pub inodes_max: usize,
    /// Bytes for requests that wait: what programs have handed over or will be answered with, and what the
    /// kernel reads and writes of its own accord. Beyond it the kernel keeps requests to itself.
    pub request_bytes: u64,
    /// Longest time to an answer: a request that takes longer ends with EIO. None: no limit.
    pub request_timeout: Option<Duration>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            source: "forebay".to_string(),
            flags: MountFlags::empty(),
            allow_other: false,
            via: Via::Auto,
            cache: CacheMode::default(),
            mode: MountMode::default(),
            control: None,
            threads: None,
            inodes_max: Self::inodes_for(256 << 20),
            request_bytes: 64 << 20,
            request_timeout: None,
        }
    }
}

impl Options {
    /// How many inodes the kernel may know where there are so many bytes for the cache: their
    /// counts take a thirty-second part.
    pub fn inodes_for(cache_bytes: u64) -> usize {
        (cache_bytes / 1024).clamp(1 << 14, 1 << 24) as usize
    }

    /// Bytes that the front end may use beside the cache: for each thread two buffers, a spare one and a
    /// request beyond the bound (a copy, at most), the requests that wait, counts of inodes.
    pub fn memory_bound(&self) -> u64 {
        self.memory_rows(0, 0, 0).iter().map(|(_, _, bound)| bound).sum()
    }

    /// Its parts: what, bytes now where `waiting` bytes of requests wait, `inodes` are known and the
    /// queue of drops has so many bytes, bound in bytes.
    pub(crate) fn memory_rows(
        &self,
        waiting: u64,
        inodes: u64,
        drops: u64,
    ) -> Vec<(String, u64, u64)> {
        let threads = self.thread_count() as u64 * (3 * PAYLOAD_MAX as u64 + copy::MEMORY_BYTES);
        let row = |what: &str, now, bound| (what.to_string(), now, bound);
        vec![
            row("buffers of the mount's threads", threads, threads),
            row("requests of the mount that wait", waiting, self.payload_max()),
            row("inodes that the kernel knows", inodes * 32, self.inodes_max as u64 * 32),
            row("ranges that the kernel is to drop", drops, QUEUE_BYTES),
        ]
    }

    /// Bytes of requests that wait.
    pub(crate) fn payload_max(&self) -> u64 {
        u64::from(self.background()) * PAYLOAD_MAX as u64
    }

    /// The kernel's own limit in seconds, 0 for none. It ends the whole connection, so the daemon's
    /// EIO has to come first. The kernel counts from when it made a request: that may wait for
    /// space as long as the limit, then for its answer as long again, and for an eighth of it until
    /// that is noticed.
    pub(crate) fn kernel_timeout(&self) -> u16 {
        let Some(limit) = self.request_timeout else { return 0 };
        let seconds = limit.as_secs().max(REQUEST_TIMEOUT_SECONDS_MIN).saturating_mul(5) / 2;
        u16::try_from(seconds).unwrap_or(0)
    }

    /// How many requests of its own accord the kernel may have under way.
    pub(crate) fn background(&self) -> u16 {
        (self.request_bytes / PAYLOAD_MAX as u64).clamp(4, 256) as u16
    }

    /// How many reader threads there are.
    pub(crate) fn thread_count(&self) -> usize {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        self.threads.unwrap_or(processors).clamp(1, 64)
    }
}
