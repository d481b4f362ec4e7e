//! Control of write-back over all domains: the limits, the totals, and the list of domains.
//!
//! Invariant C-a: there is at most one domain of a key at a time.
//!
//! Lock: that of the list of domains, a leaf, not held while a flusher or writer is woken.

use super::domain::{Domain, DomainKey};
use super::limits::Limits;
use crate::config::Config;
use forebay_base::sync::atomic::{AtomicU64, Ordering};
use forebay_base::sync::{Arc, Mutex, Weak};
use forebay_base::world::Nanos;
use std::ops::Deref;

/// Writers at the limit wake all flushers, but at most once in this time while a write-out is in
/// flight.
const WAKE_EVERY: Nanos = 5_000_000;
/// A writer checks the limits, and waits at them, before each portion of at most this many bytes.
/// So each writer may exceed the limits by this much. A multiple of the block size.
pub const PORTION: u64 = 256 << 10;

/// Dirty limits in bytes as requested; `None`: a share of the cache, whatever its size.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct DirtyWishes {
    pub limit: Option<u64>,
    pub background: Option<u64>,
}

/// The domains of a cache, and their common limits, to which it dereferences.
pub struct DirtyControl {
    limits: Arc<Limits>,
    domains: Mutex<Vec<Weak<Domain>>>,
    last_kick: AtomicU64,
}

impl Deref for DirtyControl {
    type Target = Limits;
    fn deref(&self) -> &Limits {
        &self.limits
    }
}

impl DirtyControl {
    pub(crate) fn new(config: &Config, arena: u64) -> Self {
        let limits = Arc::new(Limits::new(config, arena));
        Self { limits, domains: Mutex::default(), last_kick: AtomicU64::new(0) }
    }

    /// The domain of `key`, made if there is none; `None` makes one for a file alone.
    pub fn domain(&self, key: Option<DomainKey>) -> Arc<Domain> {
        let mut domains = self.domains.lock();
        let mut found = None;
        domains.retain(|weak| {
            let Some(domain) = weak.upgrade() else { return false };
            if key.is_some() && domain.key() == key {
                assert!(found.is_none(), "C-a: two domains of {key:?}");
                found = Some(domain);
            }
            true
        });
        found.unwrap_or_else(|| {
            let domain = Domain::new(key, self.limits.clone());
            domains.push(Arc::downgrade(&domain));
            domain
        })
    }

    /// The domains that exist.
    pub fn domains(&self) -> Vec<Arc<Domain>> {
        self.domains.lock().iter().filter_map(Weak::upgrade).collect()
    }

    /// Bytes dirty.
    pub fn dirty_bytes(&self) -> u64 {
        self.total.dirty()
    }

    /// Bytes in write-out.
    pub fn writeback_bytes(&self) -> u64 {
        self.total.writeback()
    }

    /// Bytes written out and kept until the next flush, of all files.
    pub fn unflushed_bytes(&self) -> u64 {
        self.total.unflushed()
    }

    /// Bytes whose last write-out failed, of all files.
    pub fn failed_bytes(&self) -> u64 {
        self.total.failed()
    }

    pub(crate) fn dirty_limit(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }

    /// Folios with dirty blocks, of all files.
    pub(crate) fn dirty_folios(&self) -> u64 {
        self.dirty_folios.load(Ordering::Relaxed).max(0) as u64
    }

    /// Wakes every flusher.
    pub fn wake_all_flushers(&self) {
        self.domains().iter().for_each(|domain| domain.wake_flusher());
    }

    /// Wakes all waiting writers: the limits have changed.
    pub(crate) fn wake_all_writers(&self) {
        self.domains().iter().for_each(|domain| domain.wake_writers(true));
    }

    /// Wakes every flusher, unless that was done less than [`WAKE_EVERY`] ago and a write-out is in
    /// flight.
    pub(crate) fn wake_all_flushers_at(&self, now: Nanos) {
        let last = self.last_kick.load(Ordering::Relaxed);
        if self.writeback_bytes() > 0 && now < last.saturating_add(WAKE_EVERY) {
            return;
        }
        self.last_kick.store(now, Ordering::Relaxed);
        self.wake_all_flushers();
    }

    /// Bytes of a request for which a writer waits once: [`PORTION`], or less with a small limit.
    pub fn portion(&self) -> u64 {
        (self.dirty_limit() / 8).min(PORTION)
    }
}
