//! One measurement: the hot thread alone, then during the stream, and the result.
//!
//! Invariants: O1 the hot thread first reads with NOWAIT, so each miss is counted exactly; then it
//! repeats the read without NOWAIT. O2 a hot block counts as evicted once for each miss during the
//! stream, and once if it is missing at the end.

use crate::harness::image::Rng;
use crate::report::model::Report;
use forebay_base::Result;
use forebay_base::buf::AlignedBuf;
use serde_json::{Value, json};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Bytes of a hot read.
pub const BLOCK: usize = 4096;

/// The operations that the two threads need.
pub trait HotTarget: Sync {
    /// Reads a block if it is cached; false if it is not.
    fn try_hot(&self, buf: &mut [u8], offset: u64) -> Result<bool>;
    /// Reads a block; may wait for the disk.
    fn hot(&self, buf: &mut [u8], offset: u64) -> Result<()>;
    /// Reads a piece of the stream.
    fn stream(&self, buf: &mut [u8], offset: u64) -> Result<()>;
    /// Number of cached 4 KiB blocks in the range.
    fn resident(&self, offset: u64, len: u64) -> Result<u64>;
    /// Nanoseconds spent in reclaim so far; 0 if unknown.
    fn reclaim_nanos(&self) -> u64;
}

/// Sizes and times.
#[derive(Clone, Copy, Debug)]
pub struct HotSpec {
    /// Bytes of the hot set, at the start of the file.
    pub hot: u64,
    /// Bytes of the file.
    pub size: u64,
    /// Bytes to stream, cyclically through the rest of the file.
    pub stream: u64,
    /// Bytes of one read of the stream.
    pub piece: usize,
    /// How long the hot thread runs before the stream.
    pub alone: Duration,
}

/// Result of a measurement.
#[derive(Clone, Copy, Debug, Default)]
pub struct HotResult {
    pub(super) reads_alone: u64,
    pub(super) hits_alone: u64,
    pub(super) reads_during: u64,
    pub(super) hits_during: u64,
    pub(super) resident_before: u64,
    pub(super) resident_after: u64,
    pub(super) seconds_alone: f64,
    pub(super) seconds_during: f64,
    pub(super) stream_bytes: u64,
    pub(super) reclaim_nanos: u64,
}

impl HotSpec {
    /// A worker's job.
    pub fn to_json(self, path: &Path, dontcache: bool) -> Value {
        json!({ "job": "hotset", "path": path, "dontcache": dontcache, "hot": self.hot,
            "size": self.size, "stream": self.stream, "piece": self.piece,
            "millis": self.alone.as_millis() as u64 })
    }

    /// From a worker's job.
    pub fn from_json(job: &Value) -> Self {
        let count = |key: &str| job[key].as_u64().unwrap_or(0);
        let alone = Duration::from_millis(count("millis"));
        let piece = count("piece") as usize;
        Self { hot: count("hot"), size: count("size"), stream: count("stream"), piece, alone }
    }
}

impl HotResult {
    /// Encodes the result for the pipe to the parent.
    pub fn to_json(self) -> Value {
        json!({ "counts": [self.reads_alone, self.hits_alone, self.reads_during,
            self.hits_during, self.resident_before, self.resident_after, self.stream_bytes,
            self.reclaim_nanos], "seconds": [self.seconds_alone, self.seconds_during] })
    }

    /// Decodes a result from the pipe.
    pub fn from_json(answer: &Value) -> Self {
        let count = |index: usize| answer["counts"][index].as_u64().unwrap_or(0);
        Self {
            reads_alone: count(0),
            hits_alone: count(1),
            reads_during: count(2),
            hits_during: count(3),
            resident_before: count(4),
            resident_after: count(5),
            stream_bytes: count(6),
            reclaim_nanos: count(7),
            seconds_alone: answer["seconds"][0].as_f64().unwrap_or(0.0),
            seconds_during: answer["seconds"][1].as_f64().unwrap_or(0.0),
        }
    }

    /// Loss of hit ratio during the stream, percentage points.
    pub fn hit_delta_points(&self) -> f64 {
        let alone = self.hits_alone as f64 / self.reads_alone.max(1) as f64;
        let during = self.hits_during as f64 / self.reads_during.max(1) as f64;
        (alone - during) * 100.0
    }

    /// Number of hot blocks evicted by the stream (O2).
    pub fn evicted_blocks(&self) -> u64 {
        let gone = self.resident_before.saturating_sub(self.resident_after);
        gone + (self.reads_during - self.hits_during)
    }

    /// Share of one core that reclaim took during the stream.
    pub fn reclaim_cpu_share(&self) -> f64 {
        self.reclaim_nanos as f64 / 1e9 / self.seconds_during.max(1e-9)
    }

    /// Share of the hot set that is not cached afterwards, percent.
    pub fn lost_percent(&self) -> f64 {
        let gone = self.resident_before.saturating_sub(self.resident_after);
        gone as f64 / self.resident_before.max(1) as f64 * 100.0
    }

    /// Hot reads per second during the stream.
    pub fn rate_during(&self) -> f64 {
        self.reads_during as f64 / self.seconds_during.max(1e-9)
    }
}

/// Adds the rows of one variant, with a value for each round.
pub fn add_rows(report: &mut Report, variant: &str, rounds: &[HotResult]) {
    let mut row = |metric: &str, unit, value: &dyn Fn(&HotResult) -> f64| {
        let values: Vec<f64> = rounds.iter().map(value).collect();
        report.row(variant, &format!("hot_set_{metric}"), unit, &values);
    };
    row("hit_delta", "points", &HotResult::hit_delta_points);
    row("evicted", "blocks", &|r| r.evicted_blocks() as f64);
    row("lost", "%", &HotResult::lost_percent);
    row("resident_before", "blocks", &|r| r.resident_before as f64);
    row("resident_after", "blocks", &|r| r.resident_after as f64);
    row("rate_alone", "1/s", &|r| r.reads_alone as f64 / r.seconds_alone.max(1e-9));
    row("rate_during", "1/s", &HotResult::rate_during);
    row("stream", "MiB/s", &|r| r.stream_bytes as f64 / 1048576.0 / r.seconds_during.max(1e-9));
}

/// Warms the hot set, then reads it alone for some time, then during the stream.
pub fn measure(target: &dyn HotTarget, spec: &HotSpec) -> Result<HotResult> {
    let mut result = HotResult::default();
    let mut buf = AlignedBuf::new(BLOCK);
    for _ in 0..3 {
        for offset in (0..spec.hot).step_by(BLOCK) {
            target.hot(&mut buf, offset)?;
        }
    }
    let until = Instant::now() + spec.alone;
    let alone = hit(target, spec.hot, 1, || Instant::now() >= until)?;
    (result.reads_alone, result.hits_alone, result.seconds_alone) = alone;
    result.resident_before = target.resident(0, spec.hot)?;
    let reclaim_before = target.reclaim_nanos();
    let done = AtomicBool::new(false);
    let (during, streamed) = std::thread::scope(|scope| {
        let stop = || done.load(Ordering::Relaxed);
        let hot = scope.spawn(move || hit(target, spec.hot, 2, stop));
        let streamed = stream(target, spec);
        done.store(true, Ordering::Relaxed);
        (hot.join().expect("the hot thread returns"), streamed)
    });
    (result.reads_during, result.hits_during, result.seconds_during) = during?;
    result.stream_bytes = streamed?;
    result.reclaim_nanos = target.reclaim_nanos() - reclaim_before;
    result.resident_after = target.resident(0, spec.hot)?;
    Ok(result)
}

/// Random reads of the hot set until `stop`; returns reads, hits and seconds.
fn hit(
    target: &dyn HotTarget,
    hot: u64,
    seed: u64,
    stop: impl Fn() -> bool,
) -> Result<(u64, u64, f64)> {
    let (mut reads, mut hits) = (0, 0);
    let mut rng = Rng::new(seed);
    let mut buf = AlignedBuf::new(BLOCK);
    let start = Instant::now();
    while !stop() {
        for _ in 0..32 {
            let offset = rng.below(hot / BLOCK as u64) * BLOCK as u64;
            reads += 1;
            if target.try_hot(&mut buf, offset)? {
                hits += 1;
            } else {
                target.hot(&mut buf, offset)?;
            }
        }
    }
    Ok((reads, hits, start.elapsed().as_secs_f64()))
}

fn stream(target: &dyn HotTarget, spec: &HotSpec) -> Result<u64> {
    let mut buf = AlignedBuf::new(spec.piece);
    let piece = spec.piece as u64;
    let (mut offset, mut done) = (spec.hot, 0);
    while done < spec.stream {
        if offset + piece > spec.size {
            offset = spec.hot;
        }
        target.stream(&mut buf, offset)?;
        offset += piece;
        done += piece;
    }
    Ok(done)
}
