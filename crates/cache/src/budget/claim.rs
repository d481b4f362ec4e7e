//! Memory outside the cache that is part of its budget: a volume's memory for its tree, names and
//! changes. It reduces the frames, as the memory of files does (`fit`), and is reported part by
//! part.
//!
//! Invariants: J1 the claimed total is the sum of the claims of all parts; it reduces the frames,
//! by at most three quarters of the budget. J2 a dropped claim claims nothing.
//!
//! Lock: that of the list of claims, a leaf.

use crate::cache::PageCache;
use crate::shares::{Claimed, Row};
use forebay_base::sync::Arc;
use forebay_base::sync::atomic::{AtomicU64, Ordering};

/// Parts of the budget that a user other than the cache claims.
pub struct Claim {
    cache: Arc<PageCache>,
    parts: std::sync::Arc<Claimed>,
    /// The total when the frames were last adjusted.
    told: AtomicU64,
}

impl Claim {
    /// A claim with these parts, of 0 bytes each.
    pub fn new(cache: &Arc<PageCache>, parts: &[&'static str]) -> std::sync::Arc<Self> {
        let parts = std::sync::Arc::new(Claimed::new(parts));
        let mut claims = cache.claims.lock();
        claims.retain(|claim| claim.strong_count() > 0);
        claims.push(std::sync::Arc::downgrade(&parts));
        drop(claims);
        std::sync::Arc::new(Self { cache: cache.clone(), parts, told: AtomicU64::new(0) })
    }

    /// Sets the bytes of each part in use. Call it while holding no lock: it may start a background
    /// task that adjusts the frames.
    pub fn set(&self, parts: &[u64]) {
        debug_assert_eq!(parts.len(), self.parts.0.len(), "J1: all parts");
        let mut all = 0;
        for (part, now) in self.parts.0.iter().zip(parts) {
            let was = part.now.swap(*now, Ordering::Relaxed);
            self.cache.claimed.fetch_add(now.wrapping_sub(was), Ordering::Relaxed);
            all += now;
        }
        let told = self.told.load(Ordering::Relaxed);
        if all.abs_diff(told) >= self.cache.claim_step() / 4 {
            self.told.store(all, Ordering::Relaxed);
            self.cache.fit_files();
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        // A dropped claim claims nothing (J2).
        for part in &self.parts.0 {
            let was = part.now.swap(0, Ordering::Relaxed);
            self.cache.claimed.fetch_sub(was, Ordering::Relaxed);
        }
        self.cache.fit_files();
    }
}

impl PageCache {
    /// Claimed bytes that reduce the frames: at most three quarters of the budget (J1).
    pub(crate) fn claimed_beyond(&self) -> u64 {
        self.claimed.load(Ordering::Relaxed).min(self.budget_bytes() / 4 * 3)
    }

    /// Bytes of the whole budget.
    pub fn budget_bytes(&self) -> u64 {
        self.sizes.budget()
    }

    /// Bytes of frames that no content uses.
    pub fn free_bytes(&self) -> u64 {
        (self.frames.lock().free() * crate::FRAME_SIZE) as u64
    }

    /// Parts of the budget that are claimed.
    pub(crate) fn claim_rows(&self) -> Vec<Row> {
        let claims = self.claims.lock().clone();
        let claims = claims.iter().filter_map(std::sync::Weak::upgrade);
        claims.flat_map(|claim| claim.rows().collect::<Vec<_>>()).collect()
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use crate::Config;
    use forebay_base::units::MIB;
    use forebay_base::world::RealWorld;

    /// The story: a volume's own memory was in addition to the budget: 72 MiB on top of 256 MiB.
    #[test]
    fn j1_j2_claim_reduces_frames_until_dropped() {
        let config = Config { huge_pages: false, ..Config::with_budget(64 * MIB) };
        let cache = PageCache::new(config, RealWorld::with_seed(1)).unwrap();
        let frames = || cache.stats().frames_total * 4096;
        let wait = |done: &dyn Fn() -> bool| {
            let start = std::time::Instant::now();
            while !done() && start.elapsed() < std::time::Duration::from_secs(300) {
                std::thread::yield_now();
            }
            done()
        };
        let whole = frames();
        let claim = Claim::new(&cache, &["tree", "names"]);
        claim.set(&[0, 1]);
        assert_eq!(frames(), whole, "a little is not told");
        claim.set(&[9 * MIB, 7 * MIB]);
        assert!(wait(&|| frames() <= whole - 16 * MIB), "J1: {} of {whole}", frames());
        assert!(frames() >= whole - 18 * MIB, "in steps of 1 MiB");
        let rows = cache.budget();
        assert!(rows.contains(&("tree".into(), 9 * MIB, 9 * MIB)), "{rows:?}");
        assert!(rows.contains(&("names".into(), 7 * MIB, 7 * MIB)), "{rows:?}");
        claim.set(&[40 * MIB, 0]);
        assert!(wait(&|| frames() <= whole - 40 * MIB), "J1: more than half");
        claim.set(&[60 * MIB, 0]);
        let least = (whole / 4).max(whole.saturating_sub(48 * MIB));
        assert!(wait(&|| frames() <= least + MIB), "J1: three quarters");
        assert!(frames() + 2 * MIB >= least, "J1: three quarters at most");
        drop(claim);
        assert!(wait(&|| frames() == whole), "J2: {} of {whole}", frames());
        assert_eq!(cache.claim_rows(), [], "J2");
        assert_eq!(cache.claimed.load(Ordering::Relaxed), 0, "J2");
    }
}
