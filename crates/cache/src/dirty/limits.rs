//! The dirty limits of a cache, and the bytes that count against them: plain numbers, one set for
//! the whole cache and one for each flush domain.
//!
//! Limits count bytes of dirty *blocks* (lineage.D17). Below `background` only the age limit causes
//! write-out; above it flushers write and writers pause; at `limit` writers wait in a queue.
//!
//! Invariants: W1 used = healthy + failed = dirty + in write-out. W2 a block is counted failed from
//! the failure of its write-out until it is written or dropped, never twice. W3 healthy bytes stay
//! below `limit` plus a quarter of it. Failed ones stay below `limit` plus the bytes that were
//! healthy when their device failed. Both together leave a quarter of the memory for other uses.
//!
//! No locks.

use crate::config::Config;
use forebay_base::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};
use forebay_base::world::Nanos;

/// Write-out of uncached writes starts after this time at the latest, ns.
pub(crate) const UNCACHED_AGE: Nanos = 100_000_000;

/// Counts of the bytes that are not durable yet, of one domain or of all.
#[derive(Default)]
pub(crate) struct Gauge {
    /// Dirty or in write-out, and not failed.
    healthy: AtomicI64,
    writeback: AtomicI64,
    unflushed: AtomicI64,
    failed: AtomicI64,
}

impl Gauge {
    /// Adds bytes that are dirty or in write-out, or takes some away; returns the healthy bytes
    /// before.
    pub(crate) fn use_more(&self, bytes: i64) -> i64 {
        self.healthy.fetch_add(bytes, Ordering::Relaxed)
    }

    pub(crate) fn write_more(&self, bytes: i64) {
        self.writeback.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn keep_more(&self, bytes: i64) {
        self.unflushed.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Moves bytes in use to failed, or back; returns the healthy bytes and the failed bytes
    /// before.
    pub(crate) fn fail_more(&self, bytes: i64) -> (i64, i64) {
        let was = self.failed.fetch_add(bytes, Ordering::Relaxed);
        debug_assert!(was + bytes >= 0, "W2: {was} bytes failed, {bytes} more");
        (self.healthy.fetch_sub(bytes, Ordering::Relaxed), was)
    }

    fn get(value: &AtomicI64) -> u64 {
        value.load(Ordering::Relaxed).max(0) as u64
    }

    pub(crate) fn used(&self) -> u64 {
        (self.healthy.load(Ordering::Relaxed) + self.failed.load(Ordering::Relaxed)).max(0) as u64
    }

    pub(crate) fn writeback(&self) -> u64 {
        Self::get(&self.writeback)
    }

    pub(crate) fn unflushed(&self) -> u64 {
        Self::get(&self.unflushed)
    }

    pub(crate) fn failed(&self) -> u64 {
        Self::get(&self.failed)
    }

    pub(crate) fn dirty(&self) -> u64 {
        self.used().saturating_sub(self.writeback())
    }

    /// Bytes in use that have not failed. Failed ones have a limit of their own
    /// ([`Limits::refuses`]).
    pub(crate) fn healthy(&self) -> u64 {
        Self::get(&self.healthy)
    }
}

/// The limits of a cache.
pub struct Limits {
    /// Start of background write-out, bytes.
    pub background: AtomicU64,
    /// Writers wait above this, bytes.
    pub limit: AtomicU64,
    /// Age limit of dirty blocks, 1/100 s.
    pub expire_centisecs: AtomicU32,
    /// Window of uncached writes to one file, bytes: a quarter of it, dirty, starts its write-out.
    pub uncached_window: AtomicU64,
    /// Bytes that dirty blocks may fill at most, failed or not: three quarters of the frames.
    room: AtomicU64,
    /// Of all domains together.
    pub(crate) total: Gauge,
    /// Number of domains with healthy bytes that are dirty or in write-out.
    pub(crate) active: AtomicI64,
    /// Number of domains with failed bytes.
    pub(crate) failing: AtomicI64,
    /// Folios with dirty blocks.
    pub(crate) dirty_folios: AtomicI64,
}

/// What a domain may use, bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Share {
    /// Its writers pause and its flusher writes above this.
    pub background: u64,
    /// Its writers wait above this.
    pub limit: u64,
    /// Its writers do not wait below this, however much the other domains hold.
    pub floor: u64,
    /// What all domains together may use; a domain that has more than its floor waits above it.
    pub all: u64,
}

impl Limits {
    pub(crate) fn new(config: &Config, arena: u64) -> Self {
        let limit = config.dirty_bytes.unwrap_or(arena / 5);
        let background = config.dirty_background_bytes.unwrap_or(arena / 10).min(limit);
        Self {
            background: AtomicU64::new(background),
            limit: AtomicU64::new(limit),
            expire_centisecs: AtomicU32::new(config.dirty_expire_centisecs),
            uncached_window: AtomicU64::new(u64::from(config.uncached_window_bytes)),
            room: AtomicU64::new(arena / 4 * 3),
            total: Gauge::default(),
            active: AtomicI64::new(0),
            failing: AtomicI64::new(0),
            dirty_folios: AtomicI64::new(0),
        }
    }

    /// The age limit of dirty blocks.
    pub(crate) fn expire_nanos(&self) -> Nanos {
        u64::from(self.expire_centisecs.load(Ordering::Relaxed)) * 10_000_000
    }

    /// Adapts to a new size of the memory for cached bytes.
    pub fn set_arena(&self, bytes: u64) {
        self.room.store(bytes / 4 * 3, Ordering::Relaxed);
    }

    /// Background limit and limit for healthy bytes: reduced where failed bytes would else leave
    /// too little memory (W3).
    pub(crate) fn for_healthy(&self) -> (u64, u64) {
        let limit = self.limit.load(Ordering::Relaxed);
        let background = self.background.load(Ordering::Relaxed);
        let failed = self.total.failed();
        if failed == 0 {
            return (background, limit);
        }
        let room = self.room.load(Ordering::Relaxed).saturating_sub(failed);
        let less = limit.min(room.max(limit / 8));
        let scaled = u128::from(background) * u128::from(less) / u128::from(limit.max(1));
        (scaled as u64, less)
    }

    /// Whether a domain with `own` failed bytes refuses writes, because all domains together fill
    /// the part of the limit for failed bytes. That part is half of the limit for files that fail
    /// themselves, three quarters for other files of their domains. `doomed`: bytes of a failing
    /// file that will fail too. A domain that fails when that part is full may still have a
    /// sixteenth of the limit (for other files: an eighth), divided by the number of failing
    /// domains, until all failed bytes reach the limit (W3).
    pub(crate) fn refuses(&self, own: u64, doomed: Option<u64>) -> bool {
        let limit = self.limit.load(Ordering::Relaxed);
        let others = self.total.failed().saturating_sub(own);
        let own = own + doomed.unwrap_or(0);
        let domains = self.failing.load(Ordering::Relaxed).max(1) as u64;
        let (part, late) = match doomed {
            Some(_) => (limit / 2, limit / 16),
            None => (limit / 4 * 3, limit / 8),
        };
        others + own >= limit || own >= part.saturating_sub(others).max(late / domains)
    }

    /// The share of a domain; `idle` if it has nothing in use yet.
    pub(crate) fn share(&self, idle: bool) -> Share {
        let (background, all) = self.for_healthy();
        let active = self.active.load(Ordering::Relaxed).max(0) as u64 + u64::from(idle);
        let active = active.max(1);
        let limit = all / active;
        Share { background: background / active, limit, floor: limit / 4, all }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn failed_bytes_reduce_limits_only_when_memory_is_short() {
        let config = Config { dirty_bytes: Some(1000), ..Config::with_budget(1 << 20) };
        let config = Config { dirty_background_bytes: Some(600), ..config };
        let limits = Limits::new(&config, 4000);
        limits.total.use_more(5000);
        limits.total.fail_more(250);
        assert_eq!(limits.for_healthy(), (600, 1000), "W3");
        limits.total.fail_more(2250);
        assert_eq!(limits.for_healthy(), (300, 500), "W3");
        limits.total.fail_more(2000);
        assert_eq!(limits.for_healthy(), (75, 125), "W3");
        assert_eq!((limits.total.used(), limits.total.healthy()), (5000, 500), "W1");
        limits.set_arena(40_000);
        limits.active.store(4, Ordering::Relaxed);
        let share = Share { background: 150, limit: 250, floor: 62, all: 1000 };
        assert_eq!(limits.share(false), share);
        assert_eq!(limits.share(true).limit, 200, "a newcomer counts itself");
    }

    /// The story: the part of late domains was divided by the domains with *healthy* dirty bytes,
    /// and each failing domain had a quarter of its own for healthy files. So five dead devices
    /// held one and a half times the limit.
    #[test]
    fn failing_domains_share_refusal_limit() {
        let config = Config { dirty_bytes: Some(1600), ..Config::with_budget(1 << 20) };
        let limits = Limits::new(&config, 16_000);
        let (fails, healthy) = (Some(0), None);
        let more = |bytes: i64, domains: i64| {
            limits.total.use_more(bytes);
            limits.total.fail_more(bytes);
            limits.failing.store(domains, Ordering::Relaxed);
        };
        more(799, 1);
        assert!(!limits.refuses(799, fails) && !limits.refuses(799, healthy));
        more(1, 1);
        assert!(limits.refuses(800, fails), "a file that fails, at a half");
        assert!(!limits.refuses(800, healthy), "its neighbour has some more");
        more(400, 1);
        assert!(limits.refuses(1200, healthy), "but no more than three quarters");
        // Another domain comes late.
        limits.active.store(7, Ordering::Relaxed);
        more(49, 2);
        assert!(!limits.refuses(49, fails) && limits.refuses(50, fails), "half of a sixteenth");
        assert!(!limits.refuses(99, healthy) && limits.refuses(100, healthy), "half of an eighth");
        more(10, 5);
        assert!(!limits.refuses(19, fails) && limits.refuses(20, fails), "a fifth of it");
        more(341, 5);
        assert!(
            limits.refuses(1, fails) && limits.refuses(1, healthy),
            "never more than the limit"
        );
    }
}
