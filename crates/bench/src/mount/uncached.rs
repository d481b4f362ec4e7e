//! `uncached`: one thread reads a hot set of a quarter of `cache_size` at random through the mount,
//! while another reads ten times the cache. The stream is read uncached, by each method that a
//! program has for that, and by ordinary reads.
//!
//! Each stream has a fresh mount, and the complete hot set is cached before it begins. Evicted
//! blocks are all that the cache evicts during the stream, and hot blocks that are missing at the
//! end.

use crate::harness::image::Rng;
use crate::harness::load::Target;
use crate::harness::options::Options;
use crate::report::model::{Good, Report};
use crate::rivals::kernel::KernelFile;
use crate::rivals::mounted::{Mounted, Mounting, call, forebay};
use crate::rivals::server::forebay_binary;
use forebay_base::buf::AlignedBuf;
use forebay_base::units::{KIB, MIB, format_size};
use forebay_base::{Error, ErrorKind, Result};
use forebay_block::ioctl;
use forebay_fuse::ioctl::{MODE_UNCACHED, SET_MODE};
use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const HOT: &str = "hot";
const STREAM: &str = "stream";
const BLOCK: usize = (4 * KIB) as usize;

/// How the stream is read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum StreamMode {
    /// By 1 MiB, through an opening that an ioctl has made uncached.
    Ioctl,
    /// By 1 MiB, of a file whose policy is `uncached`.
    Policy,
    /// By tar, 10,240 bytes at a time, under `forebay run --uncached`.
    Run,
    /// By tar, with ordinary reads.
    Plain,
}

const MODES: [(&str, StreamMode); 4] = [
    ("mount-ioctl", StreamMode::Ioctl),
    ("mount-policy", StreamMode::Policy),
    ("mount-run", StreamMode::Run),
    ("mount-cached-stream", StreamMode::Plain),
];

/// Result of a stream.
#[derive(Default)]
struct Found {
    alone: f64,
    during: f64,
    evicted: f64,
    stream_rate: f64,
    left: f64,
}

/// Runs the part.
pub fn run(options: &Options, report: &mut Report) -> Result<()> {
    // Requests, counts and buffers also take a part of this memory.
    let cache = if options.quick { 64 * MIB } else { 192 * MIB };
    let (hot, stream) = (cache / 4, cache * if options.quick { 2 } else { 10 });
    // The hot set is counted in Forebay's cache, so that cache has to keep it.
    let how = Mounting::new(stream + 8 * hot + 256 * MIB, cache, &options.aio).with("cache=own");
    let mounted = Mounted::new(&options.dir, "uncached", how)?;
    fill(&mounted.path().join(HOT), hot)?;
    fill(&mounted.path().join(STREAM), stream)?;
    for (name, mode) in MODES {
        let mut rounds = Vec::new();
        for _ in 0..options.rounds_or(1, 3) {
            rounds.push(one(options, &mounted, mode, hot)?);
        }
        let mut row = |metric: &str, unit, of: &dyn Fn(&Found) -> f64| {
            let values: Vec<f64> = rounds.iter().map(of).collect();
            report.row(name, &format!("mount_hot_set_{metric}"), unit, &values);
        };
        row("rate_alone", "1/s", &|f| f.alone);
        row("rate_beside", "1/s", &|f| f.during);
        row("evicted", "blocks", &|f| f.evicted);
        row("stream", "MiB/s", &|f| f.stream_rate);
        row("stream_left", "blocks", &|f| f.left);
        let most = rounds.iter().map(|f| f.evicted).fold(0.0, f64::max);
        let mode = name.trim_start_matches("mount-").replace('-', "_");
        let ratio = format!("mount_hot_set_evicted_blocks_{mode}");
        match mode.as_str() {
            "cached_stream" => report.ratio(&ratio, most),
            _ => report.ratio_with_bar(&ratio, most, Good::AtMost, 0.0),
        }
    }
    report.note(format!(
        "mount uncached: cache_size {}, hot set {}, stream {}",
        format_size(cache),
        format_size(hot),
        format_size(stream)
    ));
    Ok(())
}

fn fill(path: &Path, size: u64) -> Result<()> {
    let file = crate::harness::image::open_with(path, rustix::fs::OFlags::CREATE)?;
    crate::volume::places::write_all(&KernelFile::new(file), size, size)?;
    let file = File::open(path).map_err(|e| Error::from_io("open", e))?;
    file.sync_all().map_err(|e| Error::from_io("fsync", e))
}

fn open(path: &Path) -> Result<KernelFile> {
    let file = File::open(path).map_err(|e| Error::from_io("open", e).with_path(path))?;
    Ok(KernelFile::new(file))
}

/// Measures one stream.
fn one(options: &Options, mounted: &Mounted, mode: StreamMode, hot: u64) -> Result<Found> {
    mounted.remount()?;
    let (hot_path, stream_path) = (mounted.path().join(HOT), mounted.path().join(STREAM));
    let policy = if mode == StreamMode::Policy { "uncached" } else { "cached" };
    forebay(&["policy".as_ref(), stream_path.as_os_str(), policy.as_ref()])?;
    let file = open(&hot_path)?;
    super::read::read_all(&file, hot)?;
    let until = Instant::now() + options.millis(150, 2000);
    let alone = hit(&file, hot, || Instant::now() >= until)?;
    let evicted = || mounted.counter("evicted_blocks");
    let (evicted_before, hot_before) = (evicted()?, mounted.cached_bytes(&hot_path)?);
    if hot_before != hot {
        let text = format!("{hot_before} of {hot} bytes of the hot set were cached before");
        return Err(Error::new(ErrorKind::Io, "warm", text));
    }
    let over = AtomicBool::new(false);
    let (during, streamed) = std::thread::scope(|scope| {
        let (over, file) = (&over, &file);
        let hot = scope.spawn(move || hit(file, hot, || over.load(Ordering::Relaxed)));
        let streamed = stream(mounted, &stream_path, mode);
        over.store(true, Ordering::Relaxed);
        (hot.join().expect("the hot thread returns"), streamed)
    });
    let (bytes, time) = streamed?;
    let missing = hot_before.saturating_sub(mounted.cached_bytes(&hot_path)?) / BLOCK as u64;
    // The file is opened again, so that its remaining cached bytes can be queried.
    let opened = open(&stream_path)?;
    let left = mounted.cached_bytes(&stream_path)? / BLOCK as u64;
    drop(opened);
    Ok(Found {
        alone,
        during: during?,
        evicted: (evicted()? - evicted_before + missing) as f64,
        stream_rate: bytes as f64 / MIB as f64 / time.as_secs_f64().max(1e-9),
        left: left as f64,
    })
}

/// Random reads of the hot set until `stop`; returns the rate per second.
fn hit(file: &KernelFile, hot: u64, stop: impl Fn() -> bool) -> Result<f64> {
    let (mut rng, mut buf, mut reads) = (Rng::new(hot), AlignedBuf::new(BLOCK), 0_u64);
    let start = Instant::now();
    while !stop() {
        for _ in 0..32 {
            file.read(&mut buf, rng.below(hot / BLOCK as u64) * BLOCK as u64)?;
        }
        reads += 32;
    }
    Ok(reads as f64 / start.elapsed().as_secs_f64().max(1e-9))
}

/// Reads the complete stream; returns bytes and duration.
fn stream(mounted: &Mounted, path: &Path, mode: StreamMode) -> Result<(u64, Duration)> {
    let size = std::fs::metadata(path).map_err(|e| Error::from_io("stat", e))?.len();
    let start = Instant::now();
    match mode {
        StreamMode::Ioctl | StreamMode::Policy => {
            let file = open(path)?;
            if mode == StreamMode::Ioctl {
                let set = ioctl::set(&file.file, SET_MODE, MODE_UNCACHED);
                set.map_err(|e| Error::from_io("ioctl", e))?;
            }
            let mut buf = AlignedBuf::new(MIB as usize);
            (0..size).step_by(buf.len()).try_for_each(|at| file.read(&mut buf, at))?;
        }
        StreamMode::Run => {
            let line = "\"$0\" run --uncached --on \"$1\" -- tar -C \"$1\" -cf - \"$2\" | wc -c";
            whole(&shell(line, forebay_binary()?.as_ref(), mounted)?, size)?;
        }
        StreamMode::Plain => {
            let line = "tar -C \"$1\" -cf - \"$2\" | wc -c";
            whole(&shell(line, "sh".as_ref(), mounted)?, size)?;
        }
    }
    Ok((size, start.elapsed()))
}

/// Whether an archive, whose size `wc -c` printed, contains the complete stream.
fn whole(said: &str, size: u64) -> Result<()> {
    match said.trim().parse::<u64>() {
        Ok(bytes) if bytes > size => Ok(()),
        _ => Err(Error::new(ErrorKind::Io, "tar", format!("{} bytes of {size}", said.trim()))),
    }
}

fn shell(line: &str, first: &Path, mounted: &Mounted) -> Result<String> {
    let line = format!("set -o pipefail; {line}");
    let at = mounted.path();
    let words = ["-c".as_ref(), line.as_ref(), first.as_os_str(), at.as_os_str(), STREAM.as_ref()];
    call("bash", &words)
}

#[cfg(test)]
mod tests {
    use super::whole;

    /// The story: a tar that ended at once left the hot set alone, and met the bar, because the
    /// size of its archive was not checked.
    #[test]
    fn truncated_archive_is_an_error() {
        assert!(whole("1056768\n", 1 << 20).is_ok(), "with its head and padding");
        for said in ["0\n", "", "1048576", "10240"] {
            assert!(whole(said, 1 << 20).is_err(), "{said}");
        }
    }
}
