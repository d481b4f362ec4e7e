//! A healthy file, alone and next to a file whose device fails all writes, on the same cache.
//!
//! Invariants: K1 before the first slice the failing file has dirty data that cannot be written,
//! and its writer continues. K2 its device works again at the end, so that nothing waits for it for
//! ever.

use crate::harness::alternate::{Plan, Turn, Variant, alternate};
use crate::harness::image::{Image, Rng};
use crate::harness::load::{Load, Pattern, Slice, run as run_slice};
use crate::harness::options::Options;
use crate::report::model::{Good, Report};
use crate::rivals::ours::{Flagged, Ours};
use forebay::{File, IoFlags, OpenOptions};
use forebay_base::units::MIB;
use forebay_base::{Error, ErrorKind, Result};
use forebay_block::{BioOp, RamDevice};
use forebay_testkit::target::{ErrorDevice, Fault};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const ALONE: &str = "healthy-alone";
const WITH_DEAD: &str = "healthy-with-dead";
/// Size of the failing device, and the pause between two writes to it.
const DEAD: u64 = 64 * MIB;
const PAUSE: Duration = Duration::from_micros(200);

/// One slice of the healthy file: random writes of 4 KiB, then a sync, which is included in the
/// time.
fn slice(healthy: &Flagged, size: u64, turn: &Turn) -> Result<Slice> {
    let load = Load {
        write: true,
        pattern: Pattern::Random,
        threads: 1,
        block: 4096,
        start: 0,
        len: size,
        time: turn.time,
        seed: turn.seed << 20,
        sample_every: 1,
    };
    let start = Instant::now();
    let mut slice = run_slice(healthy, &load)?;
    healthy.file.sync_data()?;
    slice.seconds = start.elapsed().as_secs_f64();
    Ok(slice)
}

/// Writes to the failing file until it is told to stop; errors are ignored.
fn write_dead(file: &File, stop: &AtomicBool, tried: &AtomicU64) {
    let (mut rng, block) = (Rng::new(7), [0x5a; 4096]);
    while !stop.load(Ordering::Relaxed) {
        let at = rng.below(DEAD / 4096) * 4096;
        // The error is reported by this call or by the next sync; only the healthy file is
        // measured.
        let _ = file.write_at(&block, at);
        tried.fetch_add(1, Ordering::Relaxed);
        std::thread::sleep(PAUSE);
    }
}

/// Runs the part.
pub fn run(options: &Options, report: &mut Report) -> Result<()> {
    let size = if options.quick { 16 * MIB } else { 256 * MIB };
    let budget = if options.quick { 32 * MIB } else { 256 * MIB };
    let (one, two) = (
        Image::create(&options.dir, "files-alone", size, options.keep)?,
        Image::create(&options.dir, "files-with-dead", size, options.keep)?,
    );
    let alone = Ours::open(options, one.path(), budget)?;
    let with_dead = Ours::open(options, two.path(), budget)?;
    let device = ErrorDevice::new(Arc::new(RamDevice::new(DEAD)));
    let dead = OpenOptions::read_write().open_device(&with_dead.cache, device.clone())?;
    device.arm(Fault { ops: vec![BioOp::Write], ..Fault::default() });
    let targets =
        [(ALONE, alone.with(IoFlags::empty())), (WITH_DEAD, with_dead.with(IoFlags::empty()))];
    // K1: the file has dirty data that a sync cannot write.
    for at in (0..budget / 16).step_by(4096) {
        dead.write_at(&[0xa5; 4096], at)?;
    }
    if dead.sync_data().is_ok() {
        let text = "the sync of a file on a device that fails all writes succeeded";
        return Err(Error::new(ErrorKind::Corrupt, "sync", text));
    }
    let (stop, tried) = (AtomicBool::new(false), AtomicU64::new(0));
    let outcome = std::thread::scope(|scope| {
        scope.spawn(|| write_dead(&dead, &stop, &tried));
        let variant = |(name, target): &(&'static str, Flagged)| {
            let target = Flagged { file: target.file.clone(), flags: target.flags };
            Variant::new(name, move |turn| slice(&target, size, turn))
        };
        let mut variants: Vec<Variant<'_>> = targets.iter().map(variant).collect();
        let outcome = alternate(&mut variants, &plan(options));
        device.clear();
        stop.store(true, Ordering::Relaxed);
        outcome
    })?;
    outcome.add_rows(report, "healthy_write");
    let ratio = outcome.ratio(WITH_DEAD, ALONE);
    report.ratio_with_bar("healthy_beside_dead_vs_alone", ratio, Good::AtLeast, 0.9);
    let (injected, tried) = (device.injected(), tried.load(Ordering::Relaxed));
    report.note(format!("dead device: {injected} requests failed, its writer wrote {tried} times"));
    Ok(())
}

fn plan(options: &Options) -> Plan {
    Plan {
        cycles: if options.quick { 1 } else { 2 },
        ..Plan::simple(options, options.rounds_or(1, 7), options.millis(100, 800))
    }
}
