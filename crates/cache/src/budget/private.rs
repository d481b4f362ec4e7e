//! Memory outside the arena that requests in flight need for a while: counted, and bounded by its
//! share of the budget.
//!
//! Invariant: V1 the bytes of all permits are within the limit ([`PageCache::private_limit`]) when
//! a permit is given, with one exception: while there is no other, a permit may be larger.
//!
//! Lock rule: a caller that waits for a permit holds no lock and no other permit: one permit covers
//! all buffers of a request at a time. It may hold a range of a file exclusively, because a
//! permit's holder waits for the device only.

use crate::cache::PageCache;
use crate::shares::{ERROR_BYTES, ErrorGrant, Row, RowSource};
use forebay_base::sync::atomic::Ordering;

/// Memory of a closed file with blocks in the cache, bytes: its hot part (`table/owners.rs`), and
/// its entry in the registry of the layer above. An open file takes it, too.
const KNOWN_BYTES: u64 = 256;

/// Bytes of a share that spare write-out records may take.
fn records_limit(share: u64) -> u64 {
    share / 8
}

/// Bytes of a share that are for requests if files take `files` bytes.
fn private_limit_with_files(share: u64, files: u64) -> u64 {
    share - (files + records_limit(share)).min(share / 4 * 3)
}

/// Permission to use `bytes` bytes of private memory; given back on drop.
#[must_use]
pub struct Permit<'a> {
    cache: &'a PageCache,
    bytes: u64,
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        self.cache.counters.private_bytes.fetch_sub(self.bytes, Ordering::SeqCst);
        self.cache.private_wait.wake_all();
    }
}

impl<'a> Permit<'a> {
    /// A permit for a request that may outlive the task that waits for it.
    pub fn keep(self, cache: &'a forebay_base::sync::Arc<PageCache>) -> OwnedPermit {
        assert!(std::ptr::eq(self.cache, &**cache), "a permit of the same cache");
        OwnedPermit { bytes: std::mem::ManuallyDrop::new(self).bytes, cache: cache.clone() }
    }
}

/// [`Permit`], of a cache that it keeps alive.
pub struct OwnedPermit {
    cache: forebay_base::sync::Arc<PageCache>,
    bytes: u64,
}

impl Drop for OwnedPermit {
    fn drop(&mut self) {
        drop(Permit { cache: &self.cache, bytes: self.bytes });
    }
}

impl PageCache {
    /// Bytes that open files take in addition to their blocks, and unreported errors of closed
    /// ones.
    pub fn file_bytes(&self) -> u64 {
        self.files.load(Ordering::Relaxed)
    }

    /// Bytes for known files, open or with blocks in the cache.
    pub fn known_bytes(&self) -> u64 {
        self.owners.files() as u64 * KNOWN_BYTES
    }

    /// Bytes that files take beyond three quarters of a share of `io_reserve` bytes, with records
    /// at their maximum. They are taken from the frames ([`PageCache::fit_files`]).
    pub(crate) fn files_beyond(&self, io_reserve: u64) -> u64 {
        let taken = self.file_bytes() + self.known_bytes() + io_reserve / 8;
        taken.saturating_sub(io_reserve / 4 * 3)
    }

    /// Space for the error of a closed file, counted with the open files. `None` if such errors
    /// already take an eighth of the share of requests and files.
    pub fn error_grant(&self) -> Option<ErrorGrant> {
        let most = self.sizes.io_reserve() / 8;
        let more = |held: u64| (held + ERROR_BYTES <= most).then_some(held + ERROR_BYTES);
        self.errors.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        self.files.fetch_add(ERROR_BYTES, Ordering::Relaxed);
        Some(ErrorGrant::of(&self.errors, &self.files))
    }

    /// Maximum of private memory: the share, less the memory of files and the maximum of write-out
    /// records, but at least a quarter of the share.
    pub fn private_limit(&self) -> u64 {
        private_limit_with_files(self.sizes.io_reserve(), self.file_bytes() + self.known_bytes())
    }

    /// Loads each counter of the share of requests and files once, so that value and bound agree.
    pub(crate) fn share_rows(&self) -> [Row; 4] {
        let share = self.sizes.io_reserve();
        let (files, known) = (self.file_bytes(), self.known_bytes());
        let records = self.record_bytes();
        let private = self.counters.private_bytes.load(Ordering::Relaxed);
        // Open files take precedence; other known files have the rest of their part. The bound of
        // each is its use, since requests may use the remainder.
        let part = share / 4 * 3 - records_limit(share) + self.taken_off_frames();
        let files_bound = files.min(part);
        let known_bound = known.min(part - files_bound);
        let row = |what: &str, now, bound| (what.to_string(), now, bound);
        [
            row("open files", files, files_bound),
            row("files known", known, known_bound),
            row("spare records of write-out", records, records_limit(share)),
            row(
                "buffers of requests in flight",
                private,
                private_limit_with_files(share, files + known),
            ),
        ]
    }

    /// Bytes of write-out records kept for reuse.
    pub fn record_bytes(&self) -> u64 {
        self.records.load(Ordering::Relaxed)
    }

    /// A record of write-out, counted with `counted` bytes, is now kept with `bytes`; 0 if it is in
    /// use or freed. Returns whether it may be kept: all kept records take at most an eighth of the
    /// share. If it may not, the caller frees it, and it is not counted.
    pub fn count_record(&self, counted: &mut u64, bytes: u64) -> bool {
        let (before, most) = (*counted, records_limit(self.sizes.io_reserve()));
        let change = |all: u64| {
            let all = all - before + bytes;
            (bytes == 0 || all <= most).then_some(all)
        };
        let kept = self.records.fetch_update(Ordering::Relaxed, Ordering::Relaxed, change).is_ok();
        if !kept {
            self.records.fetch_sub(before, Ordering::Relaxed);
        }
        *counted = if kept { bytes } else { 0 };
        kept
    }

    /// Permits the use of `bytes` bytes; waits for other permits to end while the share is used up.
    pub async fn private(&self, bytes: u64) -> Permit<'_> {
        self.private_wait.wait_until(|| self.try_private(bytes)).await
    }

    /// A permit, if it can be had without waiting.
    pub fn try_private(&self, bytes: u64) -> Option<Permit<'_>> {
        let counter = &self.counters.private_bytes;
        let mut held = counter.load(Ordering::SeqCst);
        loop {
            if held > 0 && held + bytes > self.private_limit() {
                return None;
            }
            let taken =
                counter.compare_exchange(held, held + bytes, Ordering::SeqCst, Ordering::SeqCst);
            match taken {
                Ok(_) => break,
                Err(now) => held = now,
            }
        }
        self.counters.private_bytes_max.fetch_max(held + bytes, Ordering::Relaxed);
        Some(Permit { cache: self, bytes })
    }

    /// Adds parts to [`PageCache::budget`] that are not the cache's own.
    pub fn add_rows(&self, source: RowSource) {
        self.more_rows.lock().push(source);
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use crate::{Config, PageCache};
    use forebay_base::task::block_on;
    use forebay_base::world::RealWorld;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// The story: private memory was counted but not limited, so a thousand private writes took a
    /// gigabyte at a budget of sixteen megabytes.
    #[test]
    fn v1_permits_stay_within_share_and_all_are_served() {
        let config = Config { huge_pages: false, ..Config::with_budget(16 << 20) };
        let cache = PageCache::new(config, RealWorld::with_seed(1)).unwrap();
        let (limit, most) = (cache.private_limit(), AtomicU64::new(0));
        assert_eq!(limit, (1 << 20) / 8 * 7, "records may have the rest");
        std::thread::scope(|scope| {
            for i in 0..16u64 {
                let (cache, most) = (&cache, &most);
                scope.spawn(move || {
                    for j in 0..200 {
                        let permit = block_on(cache.private((i * 77 + j) % 5 * (300 << 10)));
                        most.fetch_max(cache.stats().private_bytes, Ordering::Relaxed);
                        std::thread::yield_now();
                        drop(permit);
                    }
                });
            }
        });
        // A permit that is the only one may exceed the share.
        assert!(most.into_inner() <= limit.max(1200 << 10));
        assert_eq!(cache.stats().private_bytes, 0);
        let alone = cache.try_private(limit * 2).unwrap();
        assert!(cache.try_private(1).is_none());
        drop(alone);
        assert!(cache.try_private(limit).is_some());
    }

    #[test]
    fn open_files_counted_leave_rest_to_requests() {
        let config = Config { huge_pages: false, ..Config::with_budget(16 << 20) };
        let cache = PageCache::new(config, RealWorld::with_seed(1)).unwrap();
        let all: Vec<_> = (0..100).map(|_| cache.new_mapping(4096, 0)).collect();
        let each = cache.file_bytes() / 100;
        assert!(each > 1024 && each * 100 == cache.file_bytes());
        let requests_and_files = (1 << 20) / 8 * 7;
        let taken = cache.file_bytes() + cache.known_bytes();
        assert_eq!(cache.private_limit() + taken, requests_and_files);
        let rows = cache.budget();
        assert!(rows.contains(&("open files".into(), each * 100, each * 100)), "{rows:?}");
        drop(all);
        assert_eq!((cache.file_bytes(), cache.private_limit()), (0, requests_and_files));
    }

    /// The story: the report loaded a counter twice, for the value and for the bound, and printed
    /// "spare records uses 30456 of 23640". A bound equal to the value would be useless, too.
    #[test]
    fn budget_rows_read_during_changes_stay_within_bounds() {
        let config = Config { huge_pages: false, ..Config::with_budget(16 << 20) };
        let cache = PageCache::new(config, RealWorld::with_seed(1)).unwrap();
        let over = std::sync::atomic::AtomicBool::new(false);
        let eighth = (1 << 20) / 8;
        std::thread::scope(|scope| {
            for i in 1..=2u64 {
                let (cache, over) = (&cache, &over);
                scope.spawn(move || {
                    while !over.load(Ordering::Relaxed) {
                        let mut counted = 0;
                        let kept = cache.count_record(&mut counted, eighth / 4 * (i + 1));
                        assert!(!kept || cache.record_bytes() <= eighth, "kept above the bound");
                        cache.count_record(&mut counted, 0);
                    }
                });
            }
            let wrong = (0..20_000).find_map(|_| {
                let rows = cache.budget();
                let sum: u64 = rows.iter().map(|row| row.2).sum();
                let row = rows.into_iter().find(|(_, now, bound)| now > bound);
                row.or_else(|| (sum > 16 << 20).then(|| ("all bounds".into(), sum, 16 << 20)))
            });
            over.store(true, Ordering::Relaxed);
            assert_eq!(wrong, None, "what, now, bound");
        });
        assert_eq!(cache.record_bytes(), 0);
        let rows = cache.budget();
        let records = rows.iter().find(|row| row.0 == "spare records of write-out").unwrap();
        assert_eq!((records.1, records.2), (0, eighth), "the bound is not the value");
    }

    /// Files beyond their part of the budget take from the frames. Until that has happened the
    /// report shows them above their bound.
    #[test]
    fn budget_row_of_files_shows_excess() {
        let config = Config { huge_pages: false, ..Config::with_budget(16 << 20) };
        let cache = PageCache::new(config, RealWorld::with_seed(1)).unwrap();
        let over = |cache: &PageCache| {
            let rows = cache.budget();
            let row = rows.iter().find(|row| row.0 == "open files").unwrap();
            row.1 > row.2
        };
        let few: Vec<_> = (0..100).map(|_| cache.new_mapping(4096, 0)).collect();
        assert!(!over(&cache), "within the part of files");
        let many: Vec<_> = (0..1000).map(|_| cache.new_mapping(4096, 0)).collect();
        assert!(over(&cache), "nothing has come off the frames yet");
        drop((few, many));
        assert!(!over(&cache));
    }

    #[test]
    fn errors_of_closed_files_are_counted_with_files_and_bounded() {
        let config = Config { huge_pages: false, ..Config::with_budget(16 << 20) };
        let cache = PageCache::new(config, RealWorld::with_seed(1)).unwrap();
        let held: Vec<_> = std::iter::from_fn(|| cache.error_grant()).collect();
        assert_eq!((held.len(), cache.file_bytes()), (128, 128 << 10), "an eighth of 1 MiB");
        assert_eq!(cache.private_limit() + cache.file_bytes(), (1 << 20) / 8 * 7);
        drop(held);
        assert_eq!(cache.file_bytes(), 0);
        assert!(cache.error_grant().is_some());
    }

    #[test]
    fn budget_shows_parts_of_other_users() {
        let config = Config { huge_pages: false, ..Config::with_budget(16 << 20) };
        let cache = PageCache::new(config, RealWorld::with_seed(1)).unwrap();
        cache.add_rows(Arc::new(|| vec![("clients".into(), 3, 5)]));
        assert_eq!(cache.budget().last(), Some(&("clients".into(), 3, 5)));
    }
}
