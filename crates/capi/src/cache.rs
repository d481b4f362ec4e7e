//! `fby_cache`: one budget of memory, made, resized, tuned, counted, closed.
//!
//! Lock: that of [`crate::volumes`].

use crate::border::{border, invalid};
use crate::flags::only;
use crate::handle::{Kind, borrow, give, take};
use crate::sized::{Given, Plain, input, output, place, text};
use crate::volumes::Volumes;
use forebay::{Aio, Cache, CacheConfig, Error, ErrorKind, Result};
use forebay_base::fork;
use std::ffi::{c_char, c_int};
use std::sync::Arc;

/// A cache: one budget for all memory that grows with data or load. Any number of threads may use
/// it at once.
pub struct fby_cache {
    _opaque: (),
}

/// The cache. Open files, volumes, directories and pins of it hold a reference, too.
pub(crate) struct OpenCache {
    pub cache: Cache,
    pub volumes: Arc<Volumes>,
}

impl Kind for Arc<OpenCache> {
    type Handle = fby_cache;
    const NUMBER: u64 = 0x6662_795f_6361_6368;
    const NAME: &'static str = "an open cache";
}

/// io_uring where the system allows it, else threads.
pub const FBY_AIO_AUTO: u32 = 0;
/// io_uring, or -EOPNOTSUPP and the like.
pub const FBY_AIO_URING: u32 = 1;
/// A pool of threads.
pub const FBY_AIO_THREADS: u32 = 2;
/// Takes all memory of the budget at once, not as it is used.
pub const FBY_CACHE_PREFAULT: u32 = 1;

/// How a cache is made. A field that is 0 has its default.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fby_cache_config {
    /// Bytes for everything that grows with data or load. Default: the smaller of a quarter of
    /// memory and half of the limit of the memory cgroup, but at least 16 MiB. At least 1 MiB;
    /// blocks of files get what bookkeeping and requests in flight leave, about 9/10.
    pub budget: u64,
    /// Largest budget that fby_cache_resize can give it. Default: all of memory.
    pub budget_max: u64,
    /// Writers wait above this many dirty bytes. Default: a fifth of the cache.
    pub dirty_bytes: u64,
    /// Write-back starts above this many dirty bytes. Default: a tenth of the cache.
    pub dirty_background_bytes: u64,
    /// Dirty data older than this is written back, 1/100 s. Default: 500.
    pub dirty_expire_centisecs: u32,
    /// Bytes of a folio, a power of two from 4096 to 2097152. Default: 65536.
    pub folio_size: u32,
    /// Most bytes that a sequential reader is read ahead. Default: 2 MiB. `fby_cache_tune` turns
    /// read-ahead off: "readahead_max" to "0".
    pub readahead_max: u32,
    /// Window of uncached writes to a file, bytes: write-back starts when a quarter of it is dirty.
    pub uncached_window_bytes: u32,
    /// FBY_AIO_AUTO, FBY_AIO_URING or FBY_AIO_THREADS.
    pub aio: u32,
    /// FBY_CACHE_PREFAULT.
    pub flags: u32,
}

// SAFETY: numbers; four of 8 bytes and six of 4 leave no padding.
unsafe impl Plain for fby_cache_config {}

impl Given for fby_cache_config {
    /// Up to `aio`.
    const LEAST: usize = 52;
}

/// Counters since the cache was made, and gauges of now.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fby_stats {
    /// The budget, bytes.
    pub budget_bytes: u64,
    /// Bytes of frames for cached blocks.
    pub arena_bytes: u64,
    /// Frames of 4096 bytes.
    pub frames_total: u64,
    /// Those of them that hold nothing.
    pub frames_free: u64,
    /// Blocks found in the cache.
    pub hits: u64,
    /// Blocks that reads did not find.
    pub misses: u64,
    /// Bytes that readers waited for the device for.
    pub miss_bytes: u64,
    /// Blocks evicted by reclaim.
    pub evicted_blocks: u64,
    /// Bytes read ahead.
    pub readahead_bytes: u64,
    /// Bytes that uncached reads took from the device.
    pub uncached_read_bytes: u64,
    /// Bytes of uncached writes.
    pub uncached_write_bytes: u64,
    /// Bytes of direct reads.
    pub direct_read_bytes: u64,
    /// Bytes of direct writes.
    pub direct_write_bytes: u64,
    /// Bytes that writers made dirty.
    pub dirtied_bytes: u64,
    /// Bytes written back.
    pub written_bytes: u64,
    /// Bytes dirty now.
    pub dirty_bytes: u64,
    /// Bytes in write-back now.
    pub writeback_bytes: u64,
    /// Bytes whose write-back failed; they are kept and tried again.
    pub failed_bytes: u64,
    /// Errors of devices.
    pub io_errors: u64,
    /// Flushes sent to devices.
    pub flushes: u64,
}

// SAFETY: numbers of one size.
unsafe impl Plain for fby_stats {}

fn config_of(given: &fby_cache_config) -> Result<CacheConfig> {
    only("create a cache", given.flags, FBY_CACHE_PREFAULT)?;
    let mut config = match given.budget {
        0 => CacheConfig::default(),
        budget => CacheConfig::with_budget(budget),
    };
    config.aio = match given.aio {
        FBY_AIO_AUTO => Aio::Auto,
        FBY_AIO_URING => Aio::IoUring,
        FBY_AIO_THREADS => Aio::Threads,
        other => return Err(invalid("create a cache", format!("no engine has number {other}"))),
    };
    let some = |value: u64| (value != 0).then_some(value);
    config.budget_max = some(given.budget_max);
    config.dirty_bytes = some(given.dirty_bytes);
    config.dirty_background_bytes = some(given.dirty_background_bytes);
    config.prefault = given.flags & FBY_CACHE_PREFAULT != 0;
    for (field, value) in [
        (&mut config.dirty_expire_centisecs, given.dirty_expire_centisecs),
        (&mut config.folio_size, given.folio_size),
        (&mut config.readahead_max, given.readahead_max),
        (&mut config.uncached_window_bytes, given.uncached_window_bytes),
    ] {
        if value != 0 {
            *field = value;
        }
    }
    Ok(config)
}

/// Makes a cache. `config` NULL and `config_size` 0: all defaults. Errors: -EINVAL for numbers out
/// of range, -ENOMEM, -E2BIG for fields that this version does not know.
///
/// # Safety
/// `config` has `config_size` bytes, `cache` is a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fby_cache_create(
    config: *const fby_cache_config,
    config_size: usize,
    cache: *mut *mut fby_cache,
) -> c_int {
    border("fby_cache_create", || {
        let make = || {
            // SAFETY: the caller promises that `config_size` bytes can be read at `config`.
            let config = config_of(&unsafe { input(config, config_size)? })?;
            fork::enter()?;
            let (cache, volumes) = (Cache::new(config)?, Arc::default());
            Ok(give(Arc::new(OpenCache { cache, volumes })))
        };
        // SAFETY: the caller promises that a pointer can be written at `cache`.
        unsafe { place(cache, make) }
    })
}

/// Makes the budget `bytes`, up or down, while files are in use. Returns when memory that is not
/// covered any more has gone back to the system. Pins hold at most an eighth of the new size, too:
/// -EBUSY with their number, and the budget stays as it is, if a second passes in which only pins
/// stand in the way. -EBUSY after ten seconds for what else cannot be evicted. -EINVAL for a size
/// that a running cache cannot be given.
///
/// # Safety
/// `cache` is an open cache.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fby_cache_resize(cache: *mut fby_cache, bytes: u64) -> c_int {
    border("fby_cache_resize", || {
        // SAFETY: the caller promises that `cache` stays open until the call returns.
        let cache = unsafe { borrow::<Arc<OpenCache>>(cache)? };
        cache.cache.resize(bytes).map(|()| 0)
    })
}

/// Sets an option of a running cache, by the names and values of `forebay tune` ("dirty_bytes" to
/// "64M"): cache_size, dirty_bytes, dirty_background_bytes, dirty_expire_centisecs, readahead_max
/// (0: none), uncached_window, dirty_tracking, stable, stable_pages, uncached_strategy, and while
/// a volume is open serialized_dio_pages. -EINVAL for an unknown name, or a value that makes no
/// sense.
///
/// # Safety
/// `cache` is an open cache, `name` and `value` are strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fby_cache_tune(
    cache: *mut fby_cache,
    name: *const c_char,
    value: *const c_char,
) -> c_int {
    border("fby_cache_tune", || {
        // SAFETY: the caller promises that `cache` stays open until the call returns.
        let cache = unsafe { borrow::<Arc<OpenCache>>(cache)? };
        // SAFETY: the caller promises that `name` ends in a zero and does not change, and that
        // `value` ends in a zero and does not change.
        let (name, value) = unsafe { (text(name, "read a name")?, text(value, "read a value")?) };
        cache.cache.tune(name, value).map(|()| 0)
    })
}

/// Counters and gauges. Fills the smaller of `stats_size` and the size that the library knows, and
/// returns the latter.
///
/// # Safety
/// `cache` is an open cache, `stats` has `stats_size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fby_cache_stats(
    cache: *mut fby_cache,
    stats: *mut fby_stats,
    stats_size: usize,
) -> i64 {
    border("fby_cache_stats", || {
        // SAFETY: the caller promises that `cache` stays open until the call returns.
        let cache = unsafe { borrow::<Arc<OpenCache>>(cache)? };
        let now = cache.cache.stats();
        let filled = fby_stats {
            budget_bytes: now.budget_bytes,
            arena_bytes: now.arena_bytes,
            frames_total: now.frames_total,
            frames_free: now.frames_free,
            hits: now.hits,
            misses: now.misses,
            miss_bytes: now.miss_bytes,
            evicted_blocks: now.evicted_blocks,
            readahead_bytes: now.readahead_bytes,
            uncached_read_bytes: now.uncached_read_bytes,
            uncached_write_bytes: now.uncached_write_bytes,
            direct_read_bytes: now.direct_read_bytes,
            direct_write_bytes: now.direct_write_bytes,
            dirtied_bytes: now.dirtied_bytes,
            written_bytes: now.written_bytes,
            dirty_bytes: now.dirty_bytes,
            writeback_bytes: now.writeback_bytes,
            failed_bytes: cache.cache.failed_bytes(),
            io_errors: now.io_errors,
            flushes: now.flushes,
        };
        // SAFETY: the caller promises that `stats_size` bytes can be written at `stats`.
        unsafe { output(stats, stats_size, &filled) }
    })
}

/// Closes a cache. Its memory goes back to the system when the last thread of the library leaves
/// it, which may be a moment later. -EBUSY while files, directories, volumes or pins of it are
/// open; the cache stays open then. Another error: data of closed files could not be written back
/// and is lost; the handle is closed.
///
/// # Safety
/// `cache` is an open cache that no other thread uses.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fby_cache_close(cache: *mut fby_cache) -> c_int {
    border("fby_cache_close", || {
        // SAFETY: the caller promises that `cache` stays open until the call returns.
        let users = Arc::strong_count(unsafe { borrow::<Arc<OpenCache>>(cache)? }) - 1;
        if users > 0 {
            let text = format!("{users} files, directories, volumes or pins of it are open");
            return Err(Error::new(ErrorKind::Busy, "close a cache", text));
        }
        // SAFETY: the caller promises that `cache` is open, and no other call uses it; the
        // reference above has ended.
        let cache = unsafe { take::<Arc<OpenCache>>(cache)? };
        cache.cache.shutdown().map(|()| 0)
    })
}
