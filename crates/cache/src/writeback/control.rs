//! Control of write-back: how much may be dirty, who waits, when write-out starts.
//!
//! Limits count bytes of dirty *blocks* (D17). Below `background` nothing happens but the age
//! limit; above it flushers write and writers pause at their pace; at `limit` writers wait in line
//! ([`super::line`]).

use super::line::{Line, Pace};
use crate::config::Config;
use crate::mapping::Mapping;
use forebay_base::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};
use forebay_base::sync::{Arc, Mutex, Weak};
use forebay_base::task::{BoxFuture, WaitQueue};
use forebay_base::world::Nanos;
use std::ops::Range;

/// Which dirty folios a pass takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Which {
    /// All.
    All,
    /// Those with dirt of uncached writes.
    Uncached,
    /// Those dirty since before this time.
    Before(Nanos),
}

/// One pass of write-out.
#[derive(Debug, Clone)]
pub struct WriteOutPass {
    /// Bytes of the file.
    pub range: Range<u64>,
    /// Which folios.
    pub which: Which,
    /// Stop after about this many bytes.
    pub max_bytes: u64,
    /// A sync: blocks dirty *and* in write-out are waited for and written again; otherwise they
    /// are left for the next pass.
    pub sync: bool,
    /// Write with FUA: durable when done.
    pub fua: bool,
}

/// Writes dirty folios out. Implemented by the layer above.
pub trait WriteOut: Send + Sync {
    /// Issues the pass; returns the bytes issued. Does not wait for completion.
    fn write_out(self: std::sync::Arc<Self>, pass: WriteOutPass) -> BoxFuture<'static, u64>;

    /// Flushes the device, so that what was written out need not be kept any longer.
    fn flush(self: std::sync::Arc<Self>) -> BoxFuture<'static, ()>;
}

/// Dirty limits in bytes as the owner asked for them; none: a share of the cache, whatever its size.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct DirtyWishes {
    pub limit: Option<u64>,
    pub background: Option<u64>,
}

/// The limits and what counts against them.
pub struct DirtyControl {
    /// Start of background write-out, bytes.
    pub background: AtomicU64,
    /// Writers wait above this, bytes.
    pub limit: AtomicU64,
    /// Age limit of dirt, 1/100 s.
    pub expire_centisecs: AtomicU32,
    /// Uncached dirt of one file that starts its write-out, bytes.
    pub uncached_window: AtomicU64,
    pub(super) dirty: AtomicI64,
    pub(super) writeback: AtomicI64,
    pub(super) unflushed: AtomicI64,
    pub(super) progress: WaitQueue,
    flushers: Mutex<Vec<Weak<Mapping>>>,
    pub(crate) line: Mutex<Line>,
    pub(crate) pace: Mutex<Pace>,
    /// Writers in `line`.
    pub(crate) waiting: AtomicU32,
    pub(crate) last_kick: AtomicU64,
}

impl DirtyControl {
    pub(crate) fn new(config: &Config, arena: u64) -> Self {
        let limit = config.dirty_bytes.unwrap_or(arena / 5);
        let background = config.dirty_background_bytes.unwrap_or(arena / 10).min(limit);
        Self {
            background: AtomicU64::new(background),
            limit: AtomicU64::new(limit),
            expire_centisecs: AtomicU32::new(config.dirty_expire_centisecs),
            uncached_window: AtomicU64::new(u64::from(config.uncached_window_bytes)),
            dirty: AtomicI64::new(0),
            writeback: AtomicI64::new(0),
            unflushed: AtomicI64::new(0),
            progress: WaitQueue::new(),
            flushers: Mutex::default(),
            line: Mutex::default(),
            pace: Mutex::default(),
            waiting: AtomicU32::new(0),
            last_kick: AtomicU64::new(0),
        }
    }

    /// The age limit of dirt.
    pub(crate) fn expire_nanos(&self) -> Nanos {
        u64::from(self.expire_centisecs.load(Ordering::Relaxed)) * 10_000_000
    }

    /// Bytes dirty.
    pub fn dirty_bytes(&self) -> u64 {
        self.dirty.load(Ordering::Relaxed).max(0) as u64
    }

    /// Bytes in write-out.
    pub fn writeback_bytes(&self) -> u64 {
        self.writeback.load(Ordering::Relaxed).max(0) as u64
    }

    /// Bytes written out and kept until the next flush, of all files.
    pub fn unflushed_bytes(&self) -> u64 {
        self.unflushed.load(Ordering::Relaxed).max(0) as u64
    }

    pub(crate) fn used(&self) -> u64 {
        self.dirty_bytes() + self.writeback_bytes()
    }

    pub(crate) fn limits(&self) -> (u64, u64) {
        (self.background.load(Ordering::Relaxed), self.limit.load(Ordering::Relaxed))
    }

    pub(crate) fn add_dirty(&self, bytes: u64) {
        self.dirty.fetch_add(bytes as i64, Ordering::Relaxed);
    }

    pub(crate) fn sub_dirty(&self, bytes: u64) {
        self.dirty.fetch_sub(bytes as i64, Ordering::Relaxed);
        self.wake_writers(false);
    }

    /// Whether a writer may dirty more without pausing.
    #[inline]
    pub fn free_run(&self) -> bool {
        self.used() <= self.limits().0 && self.waiting.load(Ordering::SeqCst) == 0
    }

    /// Whether a writer may dirty more without waiting.
    pub(crate) fn below_limit(&self) -> bool {
        self.used() <= self.limits().1 && self.waiting.load(Ordering::SeqCst) == 0
    }

    /// Whether flushers should be writing.
    pub fn above_background(&self) -> bool {
        self.used() > self.background.load(Ordering::Relaxed)
    }

    /// Asks every flusher to look.
    pub fn kick_all(&self) {
        let flushers: Vec<_> = self.flushers.lock().iter().filter_map(Weak::upgrade).collect();
        flushers.iter().for_each(|m| m.kick_flusher());
    }

    /// Folios with dirty blocks, of all files.
    pub(crate) fn dirty_folios(&self) -> u64 {
        let files: Vec<_> = self.flushers.lock().iter().filter_map(Weak::upgrade).collect();
        files.iter().map(|m| m.dirty.lock().len() as u64).sum()
    }

    /// A file that has a flusher, from now on.
    pub fn register(&self, mapping: &Arc<Mapping>) {
        let mut flushers = self.flushers.lock();
        flushers.retain(|f| f.upgrade().is_some());
        flushers.push(Arc::downgrade(mapping));
    }
}
