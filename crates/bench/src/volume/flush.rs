//! Reads during a full flush: random 4 KiB reads of an uncached file, alone, and while all dirty
//! data that the cache may hold is written back.
//!
//! Invariants: F1 only reads that began during the flush count. No variant writes back before it:
//! Forebay's limits are twice the dirty data, and the kernel's depend on the memory of the machine.
//! F2 the kernel's reader uses O_DIRECT, Forebay's `UNCACHED`: every read goes to the device.

use super::places::{self, Ground, Opened, Place, Who};
use crate::harness::alternate::{Plan, Turn, Variant, alternate};
use crate::harness::backing::Backing;
use crate::harness::image::Rng;
use crate::harness::load::Slice;
use crate::harness::meter::Usage;
use crate::harness::options::Options;
use crate::report::model::{Good, Report};
use crate::rivals::loopdev::FsKind;
use forebay::IoFlags;
use forebay_base::Result;
use forebay_base::buf::AlignedBuf;
use forebay_base::units::{GIB, KIB, MIB};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

const COLD: &str = "cold";
const DIRTY: &str = "dirty";
const BLOCK: u64 = 4 * KIB;

/// A variant, and the names of its two slices.
const NAMES: [(&str, &str, &str); 3] = [
    ("volume-sparse", "volume-idle", "volume-flushing"),
    ("xfs-on-loop-sparse", "xfs-on-loop-idle", "xfs-on-loop-flushing"),
    ("host", "host-idle", "host-flushing"),
];

/// Runs the part.
pub fn run(options: &Options, report: &mut Report) -> Result<()> {
    let (cold, dirty) = if options.quick { (32 * MIB, 8 * MIB) } else { (GIB, 48 * MIB) };
    let budget = if options.quick { 64 * MIB } else { 256 * MIB };
    let spare = if options.quick { 256 * MIB } else { 8 * GIB };
    let ground = Ground {
        options,
        part: "flush",
        image_bytes: cold + dirty + spare,
        budget,
        dirty_limit: Some(2 * dirty),
    };
    let who = [Who::Volume, Who::Loop(FsKind::Xfs), Who::Host];
    let mut places = places::all(&ground, &who, &[Backing::Sparse], report);
    for place in &mut places {
        place.fill(COLD, cold)?;
        place.fill(DIRTY, dirty)?;
        place.reopen()?;
    }
    let mut variants = Vec::new();
    for place in &places {
        let (_, idle, flushing) = *NAMES.iter().find(|n| n.0 == place.name).expect("named above");
        for (name, is_flushing) in [(idle, false), (flushing, true)] {
            variants.push(Variant::new(name, move |turn: &Turn| {
                slice(place, (cold, dirty), is_flushing, turn)
            }));
        }
    }
    let plan = Plan::simple(options, options.rounds_or(1, 5), options.millis(80, 3000));
    let outcome = alternate(&mut variants, &plan)?;
    drop(variants);
    outcome.add_rows(report, "read_beside_flush");
    let p999 = |s: &Slice| s.hist.percentile(99.9) as f64;
    for (_, idle, flushing) in NAMES {
        let ratio = outcome.ratio_of(flushing, idle, p999);
        match flushing {
            "volume-flushing" => {
                let name = "read_p999_beside_flush_vs_idle";
                report.ratio_with_bar(name, ratio, Good::AtMost, 3.0);
            }
            "xfs-on-loop-flushing" => report.ratio("xfs_read_p999_beside_flush_vs_idle", ratio),
            _ => {}
        }
    }
    Ok(())
}

fn reader(place: &Place) -> Result<Box<dyn Opened + Send>> {
    match place.ours() {
        Some(volume) => Ok(Box::new(volume.file(COLD)?.with(IoFlags::UNCACHED))),
        None => place.file(COLD, true),
    }
}

fn slice(
    place: &Place,
    (cold, dirty): (u64, u64),
    is_flushing: bool,
    turn: &Turn,
) -> Result<Slice> {
    let (reads, writes) = (reader(place)?, place.file(DIRTY, false)?);
    let (flushing, stop) = (AtomicBool::new(!is_flushing), AtomicBool::new(false));
    let before = Usage::own();
    let start = Instant::now();
    let mut out = Slice::default();
    std::thread::scope(|scope| {
        let (flushing, stop, writes) = (&flushing, &stop, &*writes);
        let flusher =
            is_flushing.then(|| scope.spawn(move || flush(writes, dirty, flushing, stop)));
        let mut rng = Rng::new(turn.seed);
        let mut buf = AlignedBuf::new(BLOCK as usize);
        let read = (|| {
            // In a quick run a flush may end before a read begins, so some reads are waited for.
            while start.elapsed() < turn.time || out.ops < 10 {
                let counts = flushing.load(Ordering::Relaxed);
                let from = Instant::now();
                reads.read(&mut buf, rng.below(cold / BLOCK) * BLOCK)?;
                if counts {
                    let took = from.elapsed();
                    out.hist.record(took.as_nanos() as u64);
                    out.seconds += took.as_secs_f64();
                    out.ops += 1;
                }
            }
            Ok(())
        })();
        stop.store(true, Ordering::Relaxed);
        let flushed = flusher.map_or(Ok(()), |f| f.join().expect("the flusher returns"));
        read.and(flushed)
    })?;
    out.bytes = out.ops * BLOCK;
    out.usage = Usage::own().since(&before);
    Ok(out)
}

/// Dirties the complete file and flushes it, repeatedly, until told to stop.
fn flush(file: &dyn Opened, dirty: u64, flushing: &AtomicBool, stop: &AtomicBool) -> Result<()> {
    let mut seed = 0;
    while !stop.load(Ordering::Relaxed) {
        places::write_all(file, dirty, seed)?;
        flushing.store(true, Ordering::Relaxed);
        let synced = file.sync();
        flushing.store(false, Ordering::Relaxed);
        synced?;
        seed += 1;
    }
    Ok(())
}
