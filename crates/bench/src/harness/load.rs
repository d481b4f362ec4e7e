//! One slice of load: threads that read or write a target for some time.
//!
//! Invariants: L1 every variant of a round gets the same seed, so the same offsets. L2 all threads
//! stop at one deadline; an operation that began before it is counted.

use crate::harness::hist::Hist;
use crate::harness::image::Rng;
use crate::harness::meter::Usage;
use forebay_base::Result;
use forebay_base::buf::AlignedBuf;
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// The file, device or memory that a slice reads or writes.
pub trait Target {
    /// Reads until `buf` is full.
    fn read(&self, buf: &mut [u8], offset: u64) -> Result<()>;

    /// Writes all of `buf`.
    fn write(&self, buf: &[u8], offset: u64) -> Result<()>;
}

/// Order of the offsets of a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// Random block-aligned offsets in the range.
    Random,
    /// Each block once, from the start of the range on; the threads share them.
    Sequential,
}

/// Parameters of a slice.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Writes instead of reads.
    pub write: bool,
    /// Order of the offsets.
    pub pattern: Pattern,
    /// Threads, each with one operation at a time.
    pub threads: usize,
    /// Bytes per operation.
    pub block: usize,
    /// First byte of the range.
    pub start: u64,
    /// Bytes of the range.
    pub len: u64,
    /// Duration; a sequential slice ends earlier, at the end of its range.
    pub time: Duration,
    /// Seed of the offsets.
    pub seed: u64,
    /// One operation in this many is timed.
    pub sample_every: u32,
}

/// Result of a slice.
#[derive(Debug, Default)]
pub struct Slice {
    /// Number of operations.
    pub ops: u64,
    /// Bytes read or written.
    pub bytes: u64,
    /// Wall-clock seconds.
    pub seconds: f64,
    /// CPU time and context switches of the process.
    pub usage: Usage,
    /// Usage of the whole machine, if it was measured: it includes clients and kernel threads. All
    /// switches are counted as voluntary.
    pub machine: Usage,
    /// Latencies of the sampled operations.
    pub hist: Hist,
}

impl Slice {
    /// Operations per second.
    pub fn rate(&self) -> f64 {
        self.ops as f64 / self.seconds.max(1e-9)
    }

    /// Adds another slice of the same variant.
    pub fn merge(&mut self, other: &Slice) {
        self.ops += other.ops;
        self.bytes += other.bytes;
        self.seconds += other.seconds;
        self.usage.add(&other.usage);
        self.machine.add(&other.machine);
        self.hist.merge(&other.hist);
    }
}

/// Runs one slice on `load.threads` threads of its own.
pub fn run(target: &(dyn Target + Sync), load: &Load) -> Result<Slice> {
    let before = Usage::own();
    let barrier = Barrier::new(load.threads);
    let parts: Vec<Result<Part>> = std::thread::scope(|scope| {
        let spawn = |index| {
            let barrier = &barrier;
            scope.spawn(move || one_thread(target, load, index, Some(barrier)))
        };
        let handles: Vec<_> = (0..load.threads).map(spawn).collect();
        handles.into_iter().map(|h| h.join().expect("a load thread returns")).collect()
    });
    sum_up(parts.into_iter().collect::<Result<Vec<_>>>()?, load, &before)
}

/// Runs one slice on the calling thread, whatever `load.threads` says.
pub fn run_in_caller(target: &dyn Target, load: &Load) -> Result<Slice> {
    let before = Usage::own();
    let load = Load { threads: 1, ..*load };
    let part = one_thread(target, &load, 0, None)?;
    sum_up(vec![part], &load, &before)
}

fn sum_up(parts: Vec<Part>, load: &Load, before: &Usage) -> Result<Slice> {
    let start = parts.iter().map(|part| part.start).min();
    let end = parts.iter().map(|part| part.end).max();
    let mut slice = Slice { usage: Usage::own().since(before), ..Slice::default() };
    for part in &parts {
        slice.ops += part.ops;
        slice.hist.merge(&part.hist);
    }
    slice.bytes = slice.ops * load.block as u64;
    slice.seconds = start.zip(end).map_or(0.0, |(start, end)| (end - start).as_secs_f64());
    Ok(slice)
}

struct Part {
    ops: u64,
    start: Instant,
    end: Instant,
    hist: Hist,
}

fn one_thread(
    target: &(impl Target + ?Sized),
    load: &Load,
    index: usize,
    barrier: Option<&Barrier>,
) -> Result<Part> {
    let mut buf = AlignedBuf::new(load.block);
    buf.fill(index as u8 | 1);
    let mut rng = Rng::new(load.seed.wrapping_add(index as u64 * 7919));
    let blocks = load.len / load.block as u64;
    let mut hist = Hist::default();
    if let Some(barrier) = barrier {
        barrier.wait();
    }
    let start = Instant::now();
    let deadline = start + load.time;
    let (mut ops, mut now) = (0u64, start);
    while now < deadline {
        for turn in 0..load.sample_every {
            let block = match load.pattern {
                Pattern::Random => rng.below(blocks),
                Pattern::Sequential => ops * load.threads as u64 + index as u64,
            };
            if block >= blocks {
                return Ok(Part { ops, start, end: Instant::now(), hist });
            }
            let offset = load.start + block * load.block as u64;
            let timed = (turn == 0).then(Instant::now);
            if load.write {
                target.write(&buf, offset)?;
            } else {
                target.read(&mut buf, offset)?;
            }
            std::hint::black_box(&buf[0]);
            ops += 1;
            if let Some(from) = timed {
                hist.record(from.elapsed().as_nanos() as u64);
            }
        }
        now = Instant::now();
    }
    Ok(Part { ops, start, end: now, hist })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    struct Count(AtomicU64);

    impl Target for Count {
        fn read(&self, _: &mut [u8], offset: u64) -> Result<()> {
            assert!((4096..8192 + 4096).contains(&offset) && offset.is_multiple_of(512));
            self.0.fetch_add(1, Ordering::Relaxed);
            Ok(())
        }
        fn write(&self, _: &[u8], _: u64) -> Result<()> {
            unreachable!("this slice reads")
        }
    }

    /// A target that records the offsets of its reads.
    struct Places(std::sync::Mutex<Vec<u64>>);

    impl Target for Places {
        fn read(&self, _: &mut [u8], offset: u64) -> Result<()> {
            self.0.lock().unwrap().push(offset);
            Ok(())
        }
        fn write(&self, _: &[u8], _: u64) -> Result<()> {
            unreachable!("this slice reads")
        }
    }

    /// L1: equal seeds give equal offsets.
    #[test]
    fn same_seed_draws_same_offsets() {
        let places = |seed| {
            let target = Places(std::sync::Mutex::default());
            let (write, pattern, time) = (false, Pattern::Random, Duration::from_millis(1));
            let (threads, block, start, len, sample_every) = (1, 512, 0, 1 << 30, 64);
            let load =
                Load { write, pattern, threads, block, start, len, time, seed, sample_every };
            run_in_caller(&target, &load).unwrap();
            let mut places = target.0.into_inner().unwrap();
            places.truncate(64);
            places
        };
        assert_eq!(places(5), places(5));
        assert_eq!(places(5).len(), 64);
        assert_ne!(places(5), places(6));
    }

    #[test]
    fn sequential_slice_covers_range_once() {
        let target = Count(AtomicU64::new(0));
        let load = Load {
            write: false,
            pattern: Pattern::Sequential,
            threads: 3,
            block: 512,
            start: 4096,
            len: 8192,
            time: Duration::from_secs(60),
            seed: 1,
            sample_every: 4,
        };
        let slice = run(&target, &load).unwrap();
        assert_eq!((slice.ops, slice.bytes), (16, 8192));
        assert_eq!(target.0.load(Ordering::Relaxed), 16);
        assert!(slice.hist.count() >= 3);
    }
}
