//! The load of the part `fio` on a simulated device of known speed: 50 us per request, 100 MB/s, no
//! volatile cache.
//!
//! Invariant: a request begins when the bytes of earlier requests have been transferred at 100
//! MB/s, and takes 50 us from then on. Latency and transfer overlap, as on a real device, so they
//! do not add up. Requests complete in order. A flush takes no time, because there is no volatile
//! cache.
//!
//! `DelayDevice` of the test kit models another disk: latency and transfer add up, and requests
//! are served one at a time. System timers complete them, which are late by more than the 50 us to
//! be measured. This device spins for the last part of the wait instead.

use super::drive::{self, Drive};
use super::figures::{SMALL, WRITE};
use super::subject::{Subject, fill, new_cache};
use crate::harness::alternate::{Plan, Turn, Variant, alternate};
use crate::harness::options::Options;
use crate::report::model::{Good, Report};
use crate::rivals::counted::Counted;
use forebay::{Cache, DirtyTracking, File, OpenOptions};
use forebay_base::Result;
use forebay_base::units::MIB;
use forebay_block::{Bio, BioFlags, BioOp, BlockDevice, Limits, RamDevice};
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Latency of a request.
const PER_IO: Duration = Duration::from_micros(50);
/// Bytes per second.
const RATE: u64 = 100_000_000;
/// System timers are at most this late; that time is spent spinning.
const LATE: Duration = Duration::from_micros(300);

struct Shared {
    lower: RamDevice,
    paid: Mutex<Instant>,
    queue: Mutex<(VecDeque<(Instant, Bio)>, bool)>,
    changed: Condvar,
}

/// A device in memory with this speed.
struct Paced {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

fn wait_until(at: Instant) {
    let left = at.saturating_duration_since(Instant::now());
    if left > LATE {
        std::thread::sleep(left - LATE);
    }
    while Instant::now() < at {
        std::hint::spin_loop();
    }
}

impl Shared {
    /// Books the transfer of a request that arrives now; returns when the request completes.
    fn book(&self, len: u64) -> Instant {
        let mut paid = lock(&self.paid);
        let begin = (*paid).max(Instant::now());
        *paid = begin + Duration::from_nanos(len * 1_000_000_000 / RATE);
        begin + PER_IO
    }

    fn serve(&self) {
        let mut queue = lock(&self.queue);
        loop {
            if let Some((at, bio)) = queue.0.pop_front() {
                drop(queue);
                wait_until(at);
                self.lower.submit(bio);
                queue = lock(&self.queue);
            } else if queue.1 {
                return;
            } else {
                queue = self.changed.wait(queue).unwrap_or_else(|p| p.into_inner());
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|p| p.into_inner())
}

impl Paced {
    fn new(size: u64) -> Self {
        let shared = Arc::new(Shared {
            lower: RamDevice::new(size),
            paid: Mutex::new(Instant::now()),
            queue: Mutex::default(),
            changed: Condvar::new(),
        });
        let theirs = shared.clone();
        let thread = std::thread::spawn(move || theirs.serve());
        Self { shared, thread: Some(thread) }
    }
}

impl Drop for Paced {
    fn drop(&mut self) {
        lock(&self.shared.queue).1 = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl BlockDevice for Paced {
    fn name(&self) -> String {
        "50 us, 100 MB/s".into()
    }

    fn limits(&self) -> Limits {
        self.shared.lower.limits()
    }

    fn size(&self) -> u64 {
        self.shared.lower.size()
    }

    fn submit(&self, bio: Bio) {
        if bio.op == BioOp::Flush {
            return self.shared.lower.submit(bio);
        }
        let at = self.shared.book(bio.len);
        lock(&self.shared.queue).0.push_back((at, bio));
        self.shared.changed.notify_all();
    }

    fn execute(&self, bio: Bio) {
        if bio.op != BioOp::Flush {
            wait_until(self.shared.book(bio.len));
        }
        self.shared.lower.submit(bio);
    }

    fn read_into(&self, offset: u64, dst: &mut [u8]) -> Result<()> {
        wait_until(self.shared.book(dst.len() as u64));
        self.shared.lower.read_into(offset, dst)
    }

    fn write_from(&self, offset: u64, src: &[u8], flags: BioFlags) -> Result<()> {
        wait_until(self.shared.book(src.len() as u64));
        self.shared.lower.write_from(offset, src, flags)
    }
}

/// Forebay on such a device. The cache is dropped before the device.
struct Ours {
    file: File,
    cache: Cache,
    device: Arc<Counted>,
}

impl Ours {
    fn new(options: &Options, size: u64, tracking: DirtyTracking) -> Result<Self> {
        let device = Counted::new(Arc::new(Paced::new(size)));
        let cache = new_cache(options, size, SMALL, tracking)?;
        let file = OpenOptions::read_write().open_device(&cache, device.clone())?;
        fill(&file)?;
        Ok(Self { file, cache, device })
    }
}

impl Drop for Ours {
    fn drop(&mut self) {
        // The slices have synced everything, so the shutdown has nothing to report.
        let _ = self.cache.shutdown();
    }
}

impl Subject for Ours {
    fn write_synced(&self, _: usize, buf: &[u8], offset: u64) -> Result<()> {
        self.file.write_at(buf, offset)?;
        self.file.sync_data()
    }

    fn device_bytes(&self) -> Result<u64> {
        Ok(self.device.written())
    }
}

/// The device without a cache.
struct Bare {
    device: Arc<Counted>,
    unit: u64,
}

impl Subject for Bare {
    fn write_synced(&self, _: usize, buf: &[u8], offset: u64) -> Result<()> {
        self.device.write_from(offset, buf, BioFlags::SYNC)
    }

    fn device_bytes(&self) -> Result<u64> {
        Ok(self.device.written())
    }

    fn unit(&self) -> u64 {
        self.unit
    }
}

/// Runs the part.
pub fn run(options: &Options, report: &mut Report) -> Result<()> {
    let size = if options.quick { 4 * MIB } else { 32 * MIB };
    let bare = |unit| Bare { device: Counted::new(Arc::new(Paced::new(size))), unit };
    let (small, large) = (bare(WRITE), bare(SMALL));
    let block = Ours::new(options, size, DirtyTracking::Block)?;
    let folio = Ours::new(options, size, DirtyTracking::Folio)?;
    let subjects: [(&'static str, &dyn Subject); 4] = [
        ("device-4k", &small),
        ("device-64k", &large),
        ("ours-block-64k", &block),
        ("ours-folio-64k", &folio),
    ];
    let mut variants = Vec::new();
    for (name, subject) in subjects {
        variants.push(Variant::new(name, move |turn: &Turn| {
            let (time, seed) = (turn.time, turn.seed);
            drive::run(subject, &Drive { jobs: 1, size, time, seed })
        }));
    }
    let plan = Plan {
        passes: 2,
        ..Plan::simple(options, options.rounds_or(1, 7), options.millis(40, 600))
    };
    let outcome = alternate(&mut variants, &plan)?;
    drop(variants);
    outcome.add_rows(report, "fsync_delay_device");
    let ratio = outcome.ratio("ours-block-64k", "ours-folio-64k");
    report.ratio_with_bar("fsync_iops_vs_folio_delay_device", ratio, Good::AtLeast, 8.0);
    let cell = "1 job, folios of 64 KiB, a device of 50 us and 100 MB/s";
    let folio = [("ours-folio-64k", "written back by folio")];
    outcome.compare(report, cell, "ours-block-64k", &folio);
    outcome.compare(report, cell, "ours-block-64k", &[("device-4k", "O_DIRECT")]);
    let title = "4 KiB random writes, each synced, 50 us and 100 MB/s, folios of 64 KiB";
    report.plots.push(outcome.rates_plot("dirty", title));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_paid_for_and_requests_end_in_order() {
        let device = Paced::new(1 << 20);
        let begin = Instant::now();
        let first = device.shared.book(1_000_000);
        let second = device.shared.book(4096);
        assert!(first >= begin + PER_IO);
        assert_eq!(second - first, Duration::from_millis(10));
        device.write_from(0, &[7; 4096], BioFlags::SYNC).unwrap();
        assert!(begin.elapsed() >= Duration::from_millis(10));
        let mut back = [0; 4096];
        device.read_into(0, &mut back).unwrap();
        assert_eq!(back, [7; 4096]);
    }
}
