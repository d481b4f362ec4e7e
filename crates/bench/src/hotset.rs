//! A hot set of half the budget, hit by one thread while another streams ten times the budget.
//! The question is what the stream does to the hot set.
//!
//! Invariants: O1 the hot thread asks with NOWAIT first, so each miss is counted exactly; a miss
//! is then read the ordinary way. O2 a hot block counts as evicted once for each miss during the
//! stream, and once if it is missing at the end.

use crate::harness::image::{Image, Rng};
use crate::harness::load::Target;
use crate::harness::options::Options;
use crate::harness::sys::mincore_bytes;
use crate::report::model::{Good, Report};
use crate::rivals::kernel::{DONTCACHE, KernelFile, open_random};
use crate::rivals::ours::{Flagged, Ours};
use crate::rivals::worker::Worker;
use forebay_base::buf::AlignedBuf;
use forebay_base::{Error, ErrorKind, IoFlags, Result};
use rustix::io::{Errno, ReadWriteFlags, preadv2};
use serde_json::{Value, json};
use std::fs::File;
use std::io::IoSliceMut;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const BLOCK: usize = 4096;

/// What the two threads need.
pub trait HotTarget: Sync {
    /// Reads a block if it is cached; false if not.
    fn try_hot(&self, buf: &mut [u8], offset: u64) -> Result<bool>;
    /// Reads a block, waiting for the disk if need be.
    fn hot(&self, buf: &mut [u8], offset: u64) -> Result<()>;
    /// Reads a piece of the stream.
    fn stream(&self, buf: &mut [u8], offset: u64) -> Result<()>;
    /// Cached blocks of 4 KiB in the range.
    fn resident(&self, offset: u64, len: u64) -> Result<u64>;
    /// Nanoseconds spent in reclaim so far; 0 where that is unknown.
    fn reclaim_nanos(&self) -> u64;
}

/// Geometry and times.
#[derive(Clone, Copy, Debug)]
pub struct HotSpec {
    /// Bytes of the hot set, at the start of the file.
    pub hot: u64,
    /// Bytes of the file.
    pub size: u64,
    /// Bytes to stream, round and round through the rest of the file.
    pub stream: u64,
    /// Bytes of one read of the stream.
    pub piece: usize,
    /// How long the hot thread runs alone, before.
    pub alone: Duration,
}

/// What happened.
#[derive(Clone, Copy, Debug, Default)]
pub struct HotResult {
    reads_alone: u64,
    hits_alone: u64,
    reads_during: u64,
    hits_during: u64,
    resident_before: u64,
    resident_after: u64,
    seconds_alone: f64,
    seconds_during: f64,
    stream_bytes: u64,
    reclaim_nanos: u64,
}

impl HotSpec {
    fn to_json(self, path: &Path, dontcache: bool) -> Value {
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
    /// For the pipe.
    pub fn to_json(self) -> Value {
        json!({ "counts": [self.reads_alone, self.hits_alone, self.reads_during,
            self.hits_during, self.resident_before, self.resident_after, self.stream_bytes,
            self.reclaim_nanos], "seconds": [self.seconds_alone, self.seconds_during] })
    }

    fn from_json(answer: &Value) -> Self {
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

    /// Points of hit ratio lost to the stream.
    pub fn hit_delta_points(&self) -> f64 {
        let alone = self.hits_alone as f64 / self.reads_alone.max(1) as f64;
        let during = self.hits_during as f64 / self.reads_during.max(1) as f64;
        (alone - during) * 100.0
    }

    /// Hot blocks lost to the stream (O2).
    pub fn evicted_blocks(&self) -> u64 {
        let gone = self.resident_before.saturating_sub(self.resident_after);
        gone + (self.reads_during - self.hits_during)
    }

    /// Share of one core that reclaim took during the stream.
    pub fn reclaim_cpu_share(&self) -> f64 {
        self.reclaim_nanos as f64 / 1e9 / self.seconds_during.max(1e-9)
    }

    fn add_rows(&self, report: &mut Report, variant: &str) {
        let mut row = |metric: &str, unit, value: f64| {
            report.row(variant, &format!("hot_set_{metric}"), unit, &[value]);
        };
        row("hit_delta", "points", self.hit_delta_points());
        row("evicted", "blocks", self.evicted_blocks() as f64);
        row("resident_before", "blocks", self.resident_before as f64);
        row("resident_after", "blocks", self.resident_after as f64);
        row("rate_alone", "1/s", self.reads_alone as f64 / self.seconds_alone.max(1e-9));
        row("rate_during", "1/s", self.reads_during as f64 / self.seconds_during.max(1e-9));
        let stream = self.stream_bytes as f64 / 1048576.0 / self.seconds_during.max(1e-9);
        row("stream", "MiB/s", stream);
    }
}

/// Warms the hot set, hits it alone for a while, then beside the stream.
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

/// Random reads of the hot set until `stop`: reads, hits, seconds.
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

struct OursHot {
    ours: Ours,
    hot: Flagged,
    try_hot: Flagged,
    stream: Flagged,
}

impl HotTarget for OursHot {
    fn try_hot(&self, buf: &mut [u8], offset: u64) -> Result<bool> {
        match self.try_hot.read(buf, offset) {
            Ok(()) => Ok(true),
            Err(e) if e.kind() == ErrorKind::WouldBlock => Ok(false),
            Err(e) => Err(e),
        }
    }

    fn hot(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.hot.read(buf, offset)
    }

    fn stream(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.stream.read(buf, offset)
    }

    fn resident(&self, offset: u64, len: u64) -> Result<u64> {
        Ok(self.ours.resident_4k(offset, len))
    }

    fn reclaim_nanos(&self) -> u64 {
        self.ours.cache.stats().reclaim_nanos
    }
}

/// The kernel's page cache, in whatever cgroup this process is in.
pub struct KernelHot {
    file: File,
    hot: KernelFile,
    stream: KernelFile,
}

impl KernelHot {
    /// Opens the file for the hot thread and for the stream.
    pub fn open(path: &Path, dontcache: bool) -> Result<Self> {
        let open = || File::open(path).map_err(|e| Error::from_io("open", e).with_path(path));
        let hot = KernelFile::new(open_random(path)?);
        let flags = if dontcache { DONTCACHE } else { ReadWriteFlags::empty() };
        Ok(Self { file: open()?, hot, stream: KernelFile { file: open()?, flags } })
    }
}

impl HotTarget for KernelHot {
    fn try_hot(&self, buf: &mut [u8], offset: u64) -> Result<bool> {
        let mut slices = [IoSliceMut::new(buf)];
        match preadv2(&self.hot.file, &mut slices, offset, ReadWriteFlags::NOWAIT) {
            Ok(n) => Ok(n == BLOCK),
            Err(Errno::AGAIN) => Ok(false),
            Err(e) => Err(Error::from_io("read", e.into())),
        }
    }

    fn hot(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.hot.read(buf, offset)
    }

    fn stream(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.stream.read(buf, offset)
    }

    fn resident(&self, offset: u64, len: u64) -> Result<u64> {
        let bytes = mincore_bytes(&self.file, offset, len);
        Ok(bytes.map_err(|e| Error::from_io("mincore", e))? / BLOCK as u64)
    }

    fn reclaim_nanos(&self) -> u64 {
        0
    }
}

/// Runs ours and the kernel's, each with a stream that asks not to be cached, an ordinary one,
/// and `dd bs=4k`.
pub fn run(options: &Options, image: &Image, budget: u64, report: &mut Report) -> Result<()> {
    let spec = HotSpec {
        hot: budget / 2,
        size: image.size(),
        stream: budget * 10,
        piece: 1 << 20,
        alone: options.millis(300, 2000),
    };
    let kinds = [("uncached", true, 1 << 20), ("cached", false, 1 << 20), ("dd4k", false, BLOCK)];
    for (kind, bypass, piece) in kinds {
        let spec = HotSpec { piece, ..spec };
        let flags = if bypass { IoFlags::UNCACHED } else { IoFlags::empty() };
        let name = format!("ours-beside-{kind}-stream");
        let (result, promoted) = ours(options, image, budget, &spec, flags)?;
        result.add_rows(report, &name);
        report.row(&name, "hot_set_promoted", "folios", &[promoted as f64]);
        add_ratios(report, kind, &result, budget);
        let name = format!("kernel-beside-{kind}-stream");
        match kernel(image, budget, &spec, bypass) {
            Ok(result) => result.add_rows(report, &name),
            Err(e) => report.not_run(&format!("{name} in a memory cgroup of {budget} bytes"), e),
        }
    }
    Ok(())
}

fn add_ratios(report: &mut Report, kind: &str, result: &HotResult, budget: u64) {
    let (delta, evicted) = (result.hit_delta_points(), result.evicted_blocks() as f64);
    let reclaim = result.reclaim_cpu_share();
    let small_queue = (budget / 10 / BLOCK as u64) as f64;
    if kind == "uncached" {
        report.ratio_with_bar("hot_set_hit_delta_points", delta, Good::Below, 1.0);
        report.ratio_with_bar("hot_set_evicted_blocks", evicted, Good::AtMost, 0.0);
        report.ratio_with_bar("reclaim_cpu_share", reclaim, Good::Below, 0.01);
        return;
    }
    let name = |what: &str| format!("{what}_{kind}_stream");
    report.ratio_with_bar(&name("hot_set_hit_delta_points"), delta, Good::Below, 1.0);
    let evicted_name = name("hot_set_evicted_blocks");
    report.ratio_with_bar(&evicted_name, evicted, Good::AtMost, small_queue);
    report.ratio(&name("reclaim_cpu_share"), reclaim);
}

/// What happened, and how many folios moved up to the main queue in all.
fn ours(
    options: &Options,
    image: &Image,
    budget: u64,
    spec: &HotSpec,
    flags: IoFlags,
) -> Result<(HotResult, u64)> {
    let ours = Ours::open(options, image.path(), budget)?;
    let (hot, stream) = (ours.with(IoFlags::empty()), ours.with(flags));
    let try_hot = Flagged { file: hot.file.clone(), flags: IoFlags::NOWAIT };
    let target = OursHot { ours, hot, try_hot, stream };
    let result = measure(&target, spec)?;
    Ok((result, target.ours.cache.stats().promoted))
}

fn kernel(image: &Image, budget: u64, spec: &HotSpec, dontcache: bool) -> Result<HotResult> {
    let file = image.open(rustix::fs::OFlags::empty())?;
    crate::harness::image::drop_file_cache(&file).map_err(|e| Error::from_io("drop cache", e))?;
    let mut worker = Worker::start("hotset", budget)?;
    let answer = worker.ask(&spec.to_json(image.path(), dontcache))?;
    Ok(HotResult::from_json(&answer))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_cache_is_measured_and_survives_the_pipe() {
        let image = Image::create(&std::env::temp_dir(), "hot", 4 << 20, false).unwrap();
        let spec = HotSpec {
            hot: 1 << 20,
            size: 4 << 20,
            stream: 4 << 20,
            piece: 64 << 10,
            alone: Duration::from_millis(5),
        };
        let spec = HotSpec::from_json(&spec.to_json(image.path(), false));
        let target = KernelHot::open(image.path(), false).unwrap();
        let result = HotResult::from_json(&measure(&target, &spec).unwrap().to_json());
        assert!(result.reads_alone >= result.hits_alone && result.hits_alone > 0);
        assert_eq!(result.stream_bytes, 4 << 20);
        assert!(result.resident_before <= 256);
    }
}
