//! `random`: random 4 KiB buffered writes over a file far larger than the cache, timed until all is
//! synced and the file system is closed cleanly.
//!
//! Invariants: R1 the time of a slice includes the clean close: a volume's checkpoint, the unmount
//! of a loop device's file system; the host's remains mounted. R2 a slice begins with nothing
//! cached. R3 the kernel's variants run in a memory cgroup of Forebay's budget each.

use super::overwrite::{Overwrite, Overwritten};
use super::places::{self, ALL, Ground, Place, Who};
use crate::harness::alternate::{Outcome, Plan, Turn, Variant, alternate};
use crate::harness::backing::Backing;
use crate::harness::load::Slice;
use crate::harness::meter::Usage;
use crate::harness::options::Options;
use crate::report::model::{Good, Report};
use crate::rivals::loopdev::FsKind;
use crate::rivals::volume::OurVolume;
use crate::rivals::worker::Worker;
use forebay_base::units::{GIB, KIB, MIB, format_size};
use forebay_base::{Error, ErrorKind, Result};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Instant;

const BLOCK: u64 = 4 * KIB;
const FILE: &str = "random";

/// By variant: bytes dirtied, bytes written to the device, and the part of these that Forebay's
/// cleaner moved.
type Bytes = RefCell<BTreeMap<&'static str, (u64, u64, u64)>>;

/// Runs the part.
pub fn run(options: &Options, report: &mut Report) -> Result<()> {
    let size = options.size_or(32 * MIB, 4 * GIB);
    let (total, budget) = (size / 2, if options.quick { 64 * MIB } else { 256 * MIB });
    let rounds = options.rounds_or(1, 2);
    // The volume writes to free segments, and cleaning is not measured here. So the image has space
    // for all rounds, and for the free space that the cleaner maintains.
    let spare = (total * rounds as u64).min(6 * GIB) + GIB / 8 + size / 4;
    let (part, image_bytes) = ("random", size + spare);
    let ground = Ground { options, part, image_bytes, budget, dirty_limit: None };
    let mut places = places::all(&ground, &ALL, &[Backing::Sparse], report);
    if !options.quick {
        // Only these two also use a preallocated image; the slow file systems would take too long.
        let who = [Who::Volume, Who::Loop(FsKind::Xfs)];
        places.extend(places::all(&ground, &who, &[Backing::Preallocated], report));
    }
    let mut workers = Vec::new();
    for place in &places {
        place.fill(FILE, size)?;
        let start = |_| Worker::start(&format!("random-{}", place.name), budget);
        workers.push(place.path(FILE).map(start));
    }
    let bytes = Bytes::default();
    let mut variants = Vec::new();
    for (place, worker) in places.iter_mut().zip(workers) {
        let worker = match worker {
            Some(Err(e)) => {
                report.left_out(&format!("random on {} in a memory cgroup", place.name), e);
                continue;
            }
            Some(Ok(worker)) => Some(worker),
            None => None,
        };
        variants.push(variant(place, worker, size, total, &bytes));
    }
    let plan = Plan::simple(options, rounds, options.millis(1, 1));
    let outcome = alternate(&mut variants, &plan)?;
    drop(variants);
    outcome.add_rows(report, "random");
    for (name, (dirtied, written, moved)) in bytes.borrow().iter() {
        let value = *written as f64 / *dirtied as f64;
        report.row(name, "random_written_per_byte_dirtied", "x", &[value]);
        if name.starts_with("volume") {
            // These bytes are included in the bytes written, but no client wrote them.
            let moved = *moved as f64 / MIB as f64;
            report.row(name, "random_moved_by_cleaner", "MiB", &[moved]);
        }
        if *name == "volume-sparse" {
            let name = "write_amplification_volume_unsynced";
            report.ratio_with_bar(name, value, Good::AtMost, 1.10);
        }
    }
    ratios(&outcome, report);
    report.note(format!(
        "random: {} of 4 KiB writes over a file of {}, budget and memory cgroups of {}, until synced and \
         closed cleanly",
        format_size(total),
        format_size(size),
        format_size(budget)
    ));
    report.plots.push(outcome.rates_plot("volume", "4 KiB random writes until synced and closed"));
    Ok(())
}

fn variant<'a>(
    place: &'a mut Place,
    mut worker: Option<Worker>,
    size: u64,
    total: u64,
    bytes: &'a Bytes,
) -> Variant<'a> {
    let name = place.name;
    Variant::new(name, move |turn: &Turn| {
        // Nothing is cached after this (R2).
        place.reopen()?;
        let spec = Overwrite {
            len: size,
            block: BLOCK,
            total,
            window: total,
            seed: turn.seed,
            skewed: false,
        };
        let (before, machine) = (place.device_bytes()?, Usage::of_machine());
        let start = Instant::now();
        let done = match &mut worker {
            Some(worker) => {
                let path = place.path(FILE).expect("the kernel's has a path");
                Overwritten::from_json(&worker.ask(&spec.job(&path))?)
            }
            None => {
                let file = place.file(FILE, false)?;
                spec.run(&*file)?
            }
        };
        let moved_bytes = place.ours().map_or(0, OurVolume::moved_bytes);
        let written = place.closed_bytes()?;
        let seconds = start.elapsed().as_secs_f64();
        place.open()?;
        if done.bytes() != total {
            let text = format!("{} of {total} bytes", done.bytes());
            return Err(Error::new(ErrorKind::Io, "overwrite", text));
        }
        let mut all = bytes.borrow_mut();
        let sum = all.entry(name).or_insert((0, 0, 0));
        *sum = (sum.0 + total, sum.1 + written - before, sum.2 + moved_bytes);
        Ok(Slice {
            ops: total / BLOCK,
            bytes: total,
            seconds,
            machine: Usage::of_machine().since(&machine),
            hist: done.hist,
            ..Slice::default()
        })
    })
}

/// A rival and its bar.
const BARS: [(&str, &str, f64); 3] =
    [("xfs", "xfs-on-loop", 1.3), ("host", "host", 1.7), ("btrfs", "btrfs-on-loop", 10.0)];

fn ratios(outcome: &Outcome, report: &mut Report) {
    for suffix in ["sparse", "prealloc"] {
        let ours = format!("volume-{suffix}");
        for (label, rival, bar) in BARS {
            let theirs =
                if rival == "host" { rival.to_string() } else { format!("{rival}-{suffix}") };
            let name = match suffix {
                "sparse" => format!("random_vs_{label}"),
                _ => format!("random_vs_{label}_{suffix}"),
            };
            let ratio = outcome.ratio(&ours, &theirs);
            if suffix == "sparse" || ratio.is_finite() {
                report.ratio_with_bar(&name, ratio, Good::AtLeast, bar);
            }
        }
    }
    let rivals = [
        ("host", "the host's file system"),
        ("xfs-on-loop-sparse", "kernel xfs on loop"),
        ("ext4-on-loop-sparse", "kernel ext4 on loop"),
        ("btrfs-on-loop-sparse", "kernel btrfs on loop"),
    ];
    outcome.compare(report, "4 KiB random writes, synced at the end", "volume-sparse", &rivals);
}
