//! `resize`: the cache is shrunk and grown (`tune cache_size=`) while one client reads and writes
//! checksummed data over NBD and another keeps a hot set warm.
//!
//! Invariants: Z1 when the cache shrinks, the hot set is completely cached, was just read, and fits
//! into the smaller cache. Z2 the bench never waits for a fixed time, but for the state of memory,
//! fio and the hot set. Z3 the hot set is not read between the two counts of its cached blocks, so
//! that an evicted block is not loaded again.

mod turns;

use crate::harness::image::Image;
use crate::harness::meter::{looking, resident_bytes};
use crate::harness::options::Options;
use crate::report::model::{Good, Report};
use crate::rivals::connection::Connection;
use crate::rivals::fio;
use crate::rivals::server::{Kind, Server, forebay_binary};
use forebay_base::units::{GIB, KIB, MIB, format_size};
use forebay_base::{Error, ErrorKind, Result};
use serde_json::Value;
use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use turns::Turns;

const KNOB: &str = "cache_size";
const PIECE: u64 = 256 * KIB;
/// Memory that may remain in addition to the cache.
const OVERHEAD: u64 = 32 * MIB;
/// Longest wait for memory to be returned to the system.
const PATIENCE: Duration = Duration::from_secs(60);

/// Sizes, bytes.
struct Sizes {
    large: u64,
    small: u64,
    hot: u64,
    image: u64,
    times: usize,
}

impl Sizes {
    fn of(options: &Options) -> Self {
        let times = options.rounds_or(1, 3);
        if options.quick {
            let (large, small) = (128 * MIB, 32 * MIB);
            return Self { large, small, hot: 16 * MIB, image: 128 * MIB, times };
        }
        let (large, small) = (4 * GIB, 256 * MIB);
        Self { large, small, hot: 128 * MIB, image: 2 * GIB, times }
    }
}

struct Bench<'a> {
    image: &'a Image,
    server: Server,
    control: PathBuf,
    sizes: Sizes,
}

/// Result of the bench.
#[derive(Default)]
struct Found {
    shrink_seconds: Vec<f64>,
    grow_seconds: Vec<f64>,
    hot: Vec<f64>,
    lost: Vec<f64>,
    resident: Vec<f64>,
}

/// Runs the bench.
pub fn run(options: &Options) -> Result<Report> {
    let mut report = Report::default();
    if let Err(e) = fio::available().and_then(|()| forebay_binary().map(drop)) {
        report.left_out("resize", e);
        return Ok(report);
    }
    let sizes = Sizes::of(options);
    let image = Image::create(&options.dir, "resize", sizes.image, options.keep)?;
    let control = options.dir.join(format!("forebay-bench-ctl-{}", std::process::id()));
    let more = vec!["--control".into(), control.display().to_string()];
    let kind = Kind::Ours { cache: sizes.large, mode: "cached", aio: options.aio.clone(), more };
    let server = Server::start(&kind, image.path(), None, None)?;
    let bench = Bench { image: &image, server, control, sizes };
    bench.wait_for_control()?;
    report.note(format!(
        "resize: {} to {} and back, hot set {}, image {}",
        format_size(bench.sizes.large),
        format_size(bench.sizes.small),
        format_size(bench.sizes.hot),
        format_size(bench.sizes.image)
    ));
    bench.tune(bench.sizes.large)?;
    let (found, errors) = bench.under_load(options)?;
    if let Some(error) = &errors {
        report.note(format!("resize: {error}"));
    }
    add(&mut report, &found, f64::from(u8::from(errors.is_some())));
    Ok(report)
}

fn add(report: &mut Report, found: &Found, errors: f64) {
    report.row("ours", "resize_shrink", "s", &found.shrink_seconds);
    report.row("ours", "resize_grow", "s", &found.grow_seconds);
    report.row("ours", "resize_resident_after_shrink", "MiB", &found.resident);
    report.row("ours", "resize_hot_blocks_before", "blocks", &found.hot);
    report.row("ours", "resize_hot_blocks_lost", "blocks", &found.lost);
    let most = |values: &[f64]| values.iter().copied().fold(f64::NAN, f64::max);
    let at_most = Good::AtMost;
    report.ratio_with_bar("resize_errors", errors, at_most, 0.0);
    let name = "resize_seconds_until_memory_is_back";
    report.ratio_with_bar(name, most(&found.shrink_seconds), at_most, 5.0);
    report.ratio_with_bar("resize_hot_blocks_lost", most(&found.lost), at_most, 0.0);
}

/// Blocks of a hot set of `bytes` that were cached before and are not cached after. Error: the set
/// was not completely cached before (Z1), so there is no result.
fn lost(bytes: u64, before: u64, after: u64) -> Result<u64> {
    if before != bytes / 4096 {
        let text = format!("{before} of {} blocks of the hot set were cached", bytes / 4096);
        return Err(Error::new(ErrorKind::Corrupt, "resize", text));
    }
    Ok(before.saturating_sub(after))
}

impl Bench<'_> {
    fn command(&self, words: &[&str]) -> Result<String> {
        let mut command = Command::new(forebay_binary()?);
        command.args(words).arg("--control").arg(&self.control);
        let output = command.output().map_err(|e| Error::from_io("run forebay", e))?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let said = String::from_utf8_lossy(&output.stderr).trim().to_string();
        Err(Error::new(ErrorKind::Io, "run forebay", said))
    }

    /// The server may answer NBD shortly before it listens on its control socket.
    fn wait_for_control(&self) -> Result<()> {
        let start = Instant::now();
        while !self.control.exists() {
            if start.elapsed() > PATIENCE {
                let text = "the server has no control socket";
                return Err(Error::new(ErrorKind::NotFound, "resize", text));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    fn tune(&self, bytes: u64) -> Result<()> {
        self.command(&["tune", &format!("{KNOB}={bytes}")]).map(drop)
    }

    /// Number of 4 KiB blocks of the hot set that are cached.
    fn hot_blocks(&self) -> Result<u64> {
        let path = self.image.path().display().to_string();
        let text = self.command(&["fincore", "--json", "--runs", &path])?;
        let found: Value = serde_json::from_str(&text)
            .map_err(|e| Error::new(ErrorKind::Corrupt, "read fincore", e.to_string()))?;
        let runs = found["runs"].as_array().into_iter().flatten();
        let number = |value: &Value| value.as_u64().unwrap_or(0);
        let inside = runs.map(|run| {
            let (start, len) = (number(&run[0]), number(&run[1]));
            (start + len).min(self.sizes.hot).saturating_sub(start)
        });
        Ok(inside.sum::<u64>() / 4096)
    }

    fn read_all(&self, connection: &mut Connection, from: u64, to: u64) -> Result<()> {
        let mut buf = vec![0; PIECE as usize];
        (from..to).step_by(PIECE as usize).try_for_each(|at| connection.read(&mut buf, at))
    }

    /// fio writes and verifies everything behind the hot set, and one thread keeps the hot set
    /// warm. The cache is resized meanwhile, until fio ends or all repetitions are done. The second
    /// value is an error of fio.
    fn under_load(&self, options: &Options) -> Result<(Found, Option<String>)> {
        let mut connection = Connection::open(&self.server.socket())?;
        for _ in 0..3 {
            self.read_all(&mut connection, 0, self.sizes.hot)?;
        }
        self.read_all(&mut connection, self.sizes.hot, self.sizes.image)?;
        let (found, over) = (RefCell::new(Found::default()), AtomicBool::new(false));
        let turns = Turns::default();
        let verified = std::thread::scope(|scope| {
            let (over, turns) = (&over, &turns);
            let hot = scope.spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    turns.round(|| self.read_all(&mut connection, 0, self.sizes.hot))?;
                }
                Ok::<(), Error>(())
            });
            let mut resized = Ok(());
            let load = || self.verify(options);
            let resize = || {
                if resized.is_ok() && found.borrow().grow_seconds.len() < self.sizes.times {
                    resized = self.once(turns, &mut found.borrow_mut());
                }
            };
            let verified = looking(Duration::from_millis(100), resize, load);
            over.store(true, Ordering::Relaxed);
            let hot = hot.join().expect("the hot thread returns");
            resized.and(hot).map(|()| verified)
        })?;
        Ok((found.into_inner(), verified.err().map(|e| e.to_string())))
    }

    /// Shrinks the cache and grows it again.
    fn once(&self, turns: &Turns, found: &mut Found) -> Result<()> {
        turns.still(|| self.shrink(found))?;
        let start = Instant::now();
        self.tune(self.sizes.large)?;
        found.grow_seconds.push(start.elapsed().as_secs_f64());
        Ok(())
    }

    /// Shrinks the cache while no thread reads the hot set (Z3).
    fn shrink(&self, found: &mut Found) -> Result<()> {
        let before = self.hot_blocks()?;
        let start = Instant::now();
        self.tune(self.sizes.small)?;
        let limit = self.sizes.small + OVERHEAD;
        let resident = || resident_bytes(self.server.pid()).unwrap_or(0);
        while resident() > limit && start.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(2));
        }
        found.shrink_seconds.push(start.elapsed().as_secs_f64());
        found.resident.push(resident() as f64 / MIB as f64);
        found.hot.push(before as f64);
        found.lost.push(lost(self.sizes.hot, before, self.hot_blocks()?)? as f64);
        Ok(())
    }

    /// Random writes with a checksum in each block, which fio verifies during the run and at the
    /// end.
    fn verify(&self, options: &Options) -> Result<()> {
        let size = self.sizes.image - self.sizes.hot;
        let bytes = if options.quick { size / 2 } else { size };
        let mut command = Command::new("fio");
        command.args(["--name=verify", "--ioengine=nbd", "--rw=randrw", "--bs=4k"]);
        command.args(["--iodepth=16", "--verify=crc32c", "--verify_fatal=1", "--thread=1"]);
        command.args(["--verify_backlog=1024", "--verify_state_save=0", "--randseed=7"]);
        command.arg(format!("--uri=nbd+unix:///?socket={}", self.server.socket().display()));
        command.arg(format!("--offset={}", self.sizes.hot)).arg(format!("--size={size}"));
        command.arg(format!("--io_size={bytes}"));
        fio::run_command(command, Duration::from_secs(600)).map(drop)
    }
}

impl Drop for Bench<'_> {
    fn drop(&mut self) {
        // A server that ends in good order removes its control socket; this covers other ends.
        let _ = std::fs::remove_file(Path::new(&self.control));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The story: a hot set that was not cached could lose nothing, and met the bar.
    #[test]
    fn z1_partly_cached_set_is_not_judged() {
        assert_eq!(lost(16 * MIB, 4096, 4000).unwrap(), 96);
        assert_eq!(lost(16 * MIB, 4096, 4096).unwrap(), 0);
        assert!(lost(16 * MIB, 0, 0).is_err() && lost(16 * MIB, 4095, 4095).is_err());
    }
}
