//! Many at once: writers above the limits, uncached writers among buffered ones, readers beside them.
//! All times are the simulated world's.

use crate::lab::{Lab, NONE};
use forebay_base::IoFlags;
use forebay_base::buf::AlignedBuf;
use forebay_base::task::WaitQueue;
use forebay_base::world::{Nanos, World, split_mix};
use forebay_cache::Config;
use forebay_iomap::identity::Identity;
use forebay_iomap::{MappedFile, Source};
use forebay_sim::SimConfig;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A disk that takes milliseconds, so that limits are reached.
fn slow(size: u64) -> SimConfig {
    SimConfig { latency: (4_000_000, 6_000_000), ..Lab::sim(size) }
}

#[test]
fn experiment_pause() {
    let config = Config {
        dirty_bytes: Some(2 << 20),
        dirty_background_bytes: Some(512 << 10),
        ..Config::with_budget(16 << 20)
    };
    let lab = Lab::new(config, 4096, slow(32 << 20));
    lab.run(async {
        let mut most = 0;
        let mut times = Vec::new();
        for i in 0..4096u64 {
            let start = lab.world.now();
            lab.write(i * 16384 % (32 << 20), &[1; 16384], NONE).await;
            times.push(lab.world.now() - start);
            if i > 1024 {
                let s = lab.cache.stats();
                most = most.max(s.dirty_bytes + s.writeback_bytes);
            }
        }
        times.sort_unstable();
        eprintln!("most {most} total {} p50 {} p90 {} p99 {} max {}", lab.world.now(), times[2048], times[3686], times[4055], times[4095]);
    });
}
