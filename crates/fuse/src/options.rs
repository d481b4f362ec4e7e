//! Options of a mount.
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

/// Most bytes of spare buffers: as much as a reader has in progress by read-ahead, a few times.
const SPARE_BYTES_MAX: usize = 8 << 20;

/// Which of the two caches, the kernel's or Forebay's, keeps the content of files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CacheMode {
    /// Forebay's cache: every read and write is a request to the daemon. The kernel keeps mapped
    /// pages, and those of executables, until the last close.
    Own,
    /// As [`CacheMode::Own`], but the kernel also keeps files of up to [`SMALL_BYTES`] that were
    /// opened for reading only. Such a file may be in both caches.
    Small,
    /// The kernel's cache, for all openings but those with `O_DIRECT`. Writes are still requests to
    /// the daemon, and Forebay's cache keeps them until they are durable.
    #[default]
    Kernel,
}

/// Longest file that [`CacheMode::Small`] leaves to the kernel's cache, bytes.
pub const SMALL_BYTES: u64 = 128 << 10;

impl CacheMode {
    /// The values of the option `cache=`, in the order of the variants.
    pub const WORDS: [&'static str; 3] = ["own", "small", "kernel"];
    /// The values of the older option `kernel_cache=`, in the same order.
    pub const ALIASES: [&'static str; 3] = ["never", "small", "always"];
    const ALL: [Self; 3] = [Self::Own, Self::Small, Self::Kernel];

    /// The value of the option `cache=` for this mode.
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

/// How the mount is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Via {
    /// The first that works of: block device, plain, helper.
    #[default]
    Auto,
    /// Type `fuseblk.forebay` on a loop device of its own: umount(2) and sync(2) reach the daemon.
    /// Needs root.
    Block,
    /// Type `fuse.forebay`. Needs root.
    Plain,
    /// Type `fuse.forebay` by fusermount3, for any user.
    Helper,
}

/// The settings of a mount.
#[derive(Debug, Clone)]
pub struct Options {
    /// The source that the table of mounts shows, if the type permits a choice.
    pub source: String,
    /// Mount flags that the kernel applies by itself: read-only, no set-id, no devices, no
    /// execution, access times.
    pub flags: MountFlags,
    /// Whether other users have access; mode bits are checked. Always true of root's mounts.
    pub allow_other: bool,
    /// How the mount is made.
    pub via: Via,
    /// Which cache keeps the content of files.
    pub cache: CacheMode,
    /// The default mode of openings.
    pub mode: MountMode,
    /// The path of the daemon's control socket, which [`crate::CONTROL_ATTRIBUTE`] publishes.
    pub control: Option<PathBuf>,
    /// Reader threads, 1 to 64; `None`: as many as CPUs.
    pub threads: Option<usize>,
    /// Inodes that the kernel may know before it is asked to forget some; each takes 32 bytes in
    /// the daemon.
    pub inodes_max: usize,
    /// Bytes for requests that wait: data of writes and replies, and the kernel's own read-ahead
    /// and write-back. Above this limit the kernel holds its requests back.
    pub request_bytes: u64,
    /// The kernel's own requests (read-ahead, write-back, direct I/O of a loop device) in progress
    /// at a time, if more than `request_bytes` has space for at 1 MiB each: most are shorter.
    pub background_min: u16,
    /// Longest time from a request to its answer; later it is answered EIO. `None`: no limit.
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
            background_min: 4,
            request_timeout: None,
        }
    }
}

impl Options {
    /// Inodes that the kernel may know with a cache of `cache_bytes`: their counts take a
    /// thirty-second part of that.
    pub fn inodes_for(cache_bytes: u64) -> usize {
        (cache_bytes / 1024).clamp(1 << 14, 1 << 24) as usize
    }

    /// Bytes that the front end may use in addition to the cache. For each thread: two buffers, and
    /// one request above the limit of waiting requests (at most a copy). In addition: waiting
    /// requests, spare buffers, counts of inodes, and the queue of drops.
    pub fn memory_bound(&self) -> u64 {
        self.memory_rows(0, 0, 0, 0).iter().map(|(_, _, bound)| bound).sum()
    }

    /// The parts of [`Options::memory_bound`]: label, bytes now, bound in bytes. `waiting`: bytes
    /// of waiting requests; `spare`: bytes of spare buffers; `inodes`: known inodes; `drops`: bytes
    /// in the queue of drops.
    pub(crate) fn memory_rows(
        &self,
        waiting: u64,
        spare: u64,
        inodes: u64,
        drops: u64,
    ) -> Vec<(String, u64, u64)> {
        let threads = self.thread_count() as u64 * (2 * PAYLOAD_MAX as u64 + copy::MEMORY_BYTES);
        let row = |what: &str, now, bound| (what.to_string(), now, bound);
        vec![
            row("buffers of the mount's threads", threads, threads),
            row("requests of the mount that wait", waiting, self.payload_max()),
            row("spare buffers of requests", spare, self.spare_bytes() as u64),
            row("inodes that the kernel knows", inodes * 32, self.inodes_max as u64 * 32),
            row("ranges that the kernel is to drop", drops, QUEUE_BYTES),
        ]
    }

    /// Most bytes of requests that wait.
    pub(crate) fn payload_max(&self) -> u64 {
        u64::from(self.longest_requests()) * PAYLOAD_MAX as u64
    }

    /// Bytes of buffers that are kept for later requests.
    pub(crate) fn spare_bytes(&self) -> usize {
        SPARE_BYTES_MAX.min(self.payload_max() as usize)
    }

    /// Requests of the greatest length that `request_bytes` has space for.
    fn longest_requests(&self) -> u16 {
        (self.request_bytes / PAYLOAD_MAX as u64).clamp(4, 256) as u16
    }

    /// The kernel's own limit in seconds, 0 for none. It ends the whole connection, so the daemon's
    /// EIO has to come first. The kernel counts from the creation of a request. The request may
    /// wait one limit for space and one limit for its answer, and the daemon notices that up to an
    /// eighth of the limit later.
    pub(crate) fn kernel_timeout(&self) -> u16 {
        let Some(limit) = self.request_timeout else { return 0 };
        let seconds = limit.as_secs().max(REQUEST_TIMEOUT_SECONDS_MIN).saturating_mul(5) / 2;
        u16::try_from(seconds).unwrap_or(0)
    }

    /// Most requests of the kernel's own (read-ahead, write-back) in progress at a time.
    pub(crate) fn background(&self) -> u16 {
        self.longest_requests().max(self.background_min)
    }

    /// The number of reader threads.
    pub(crate) fn thread_count(&self) -> usize {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        self.threads.unwrap_or(processors).clamp(1, 64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel may have more short requests in progress than there is memory for long ones.
    #[test]
    fn background_min_raises_the_number_of_requests_alone() {
        let few = Options { request_bytes: 8 << 20, ..Options::default() };
        assert_eq!((few.background(), few.payload_max()), (8, 8 << 20));
        let many = Options { background_min: 128, ..few.clone() };
        assert_eq!((many.background(), many.payload_max()), (128, 8 << 20));
        assert_eq!(many.memory_bound(), few.memory_bound());
    }
}
