//! The verifying device under concurrent writers: it checksums blocks of 512 bytes when a write-out
//! is submitted and again when it completes.

use crate::harness::image::Rng;
use crate::harness::options::Options;
use forebay::{Cache, CacheConfig, File, IoFlags, OpenOptions, StablePages, StableStrategy};
use forebay_base::Result;
use forebay_base::world::RealWorld;
use forebay_block::RamDevice;
use forebay_testkit::target::{ChecksumDevice, ChecksumStats, DelayDevice, DelayOptions};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const SIZE: u64 = 16 << 20;
const WRITERS: u64 = 2;

/// A file on a verifying device that is slow enough for writers to hit blocks in flight.
pub struct Verified {
    device: Arc<ChecksumDevice>,
    cache: Cache,
    file: File,
}

impl Verified {
    /// A cache with block state per `block_size` bytes.
    pub fn new(options: &Options, block_size: u32) -> Result<Self> {
        let config = CacheConfig::with_budget(4 * SIZE).aio(options.aio.parse()?);
        let cache = Cache::new(config)?;
        let delays = DelayOptions { per_io: Duration::from_micros(60), ..DelayOptions::default() };
        let slow = DelayDevice::new(Arc::new(RamDevice::new(SIZE)), &RealWorld::new(), delays);
        let device = ChecksumDevice::new(slow);
        let raw = OpenOptions::read_write().block_size(block_size).clone();
        let file = raw.open_device(&cache, device.clone())?;
        Ok(Self { device, cache, file })
    }

    /// Writes at random with this strategy until `blocks` were checked, or until `limit`; returns
    /// the device's counts.
    pub fn run(
        &self,
        strategy: StableStrategy,
        stable: StablePages,
        blocks: u64,
        limit: Duration,
    ) -> Result<ChecksumStats> {
        self.cache.tune("stable", &strategy.to_string())?;
        self.file.set_stable_pages(stable)?;
        let before = self.device.stats();
        let (stop, deadline) = (AtomicBool::new(false), Instant::now() + limit);
        std::thread::scope(|scope| {
            let writers: Vec<_> = (0..WRITERS)
                .map(|n| {
                    let stop = &stop;
                    scope.spawn(move || self.write(n + blocks, stop))
                })
                .collect();
            let checked = || self.device.stats().checked_writes - before.checked_writes;
            let mut flushed = Ok(());
            while flushed.is_ok() && checked() < blocks && Instant::now() < deadline {
                flushed = self.file.sync_data();
            }
            stop.store(true, Ordering::Relaxed);
            let written = writers.into_iter().map(|w| w.join().expect("a writer returns"));
            written.fold(flushed, Result::and)
        })?;
        self.file.sync_data()?;
        let after = self.device.stats();
        Ok(ChecksumStats {
            checked_writes: after.checked_writes - before.checked_writes,
            mismatches: after.mismatches - before.mismatches,
            checked_reads: after.checked_reads - before.checked_reads,
            corrupt_reads: after.corrupt_reads - before.corrupt_reads,
        })
    }

    fn write(&self, seed: u64, stop: &AtomicBool) -> Result<()> {
        let mut rng = Rng::new(seed);
        let mut bytes = vec![0; 64 << 10];
        while !stop.load(Ordering::Relaxed) {
            let draw = rng.draw();
            // Small writes hit parts of large ones that are in flight.
            let len = 1 + rng.below(if draw & 2 == 0 { 64 << 10 } else { 3000 });
            let part = &mut bytes[..len as usize];
            part[0] = draw as u8;
            part[len as usize - 1] = (draw >> 8) as u8;
            if draw % 64 == 1 {
                part.fill((draw >> 16) as u8);
            }
            let flags = match draw >> 24 & 15 {
                0 => IoFlags::START_WRITEBACK,
                1 => IoFlags::UNCACHED,
                _ => IoFlags::empty(),
            };
            let at = rng.below(SIZE - len);
            match draw >> 32 & 255 {
                0 => self.file.zero(at, len)?,
                _ => drop(self.file.write_at_with(part, at, flags)?),
            }
        }
        Ok(())
    }
}

impl Drop for Verified {
    fn drop(&mut self) {
        // The device is dropped as well, so an error of the last flush is ignored.
        drop(self.file.sync_data());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s2_verifier_sees_changes_only_without_need() {
        let options = Options::default();
        let (limit, off) = (Duration::from_secs(20), StablePages::Off);
        for block_size in [512, 4096] {
            let verified = Verified::new(&options, block_size).unwrap();
            for &strategy in StableStrategy::ALL {
                let seen = verified.run(strategy, StablePages::Auto, 40_000, limit).unwrap();
                assert!(seen.checked_writes > 0);
                assert_eq!((seen.mismatches, seen.corrupt_reads), (0, 0), "{strategy}");
            }
            let mut changed = 0;
            for _ in 0..20 {
                if changed == 0 {
                    changed +=
                        verified.run(StableStrategy::Cow, off, 40_000, limit).unwrap().mismatches;
                }
            }
            assert!(changed > 0, "forced off, and nothing changed in flight: it cannot fail");
        }
    }
}
