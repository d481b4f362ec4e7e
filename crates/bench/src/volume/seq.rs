//! `seq`: one file, written by 1 MiB until it is synced, and read cold; with checksums and without.
//! Reports CPU time per GiB. Also reads during a full flush ([`super::flush`]).
//!
//! Invariants: Q1 a read begins with nothing cached: the place was closed and opened again, and its
//! loop device is direct. Q2 no variant has a memory cgroup: the kernel's may fill the page cache.
//! Q3 the CPU time is that of the whole machine, since the kernel writes on its own threads.
//!
//! Each variant runs once before it is timed: in a virtual machine the first user of a page of
//! memory pays for its allocation, which would be chance.

use super::places::{self, Ground, Place, Who, write_all};
use crate::harness::alternate::{Outcome, Plan, Turn, Variant, alternate};
use crate::harness::backing::Backing;
use crate::harness::load::Slice;
use crate::harness::meter::Usage;
use crate::harness::options::Options;
use crate::report::model::{Good, Report};
use crate::rivals::loopdev::FsKind;
use forebay_base::Result;
use forebay_base::buf::AlignedBuf;
use forebay_base::units::{GIB, MIB, format_size};
use std::time::Instant;

const FILE: &str = "seq";
const FULL: [Who; 6] = [
    Who::Volume,
    Who::VolumeNoSums,
    Who::Loop(FsKind::Xfs),
    Who::Loop(FsKind::Ext4),
    Who::Loop(FsKind::Btrfs),
    Who::Host,
];
const QUICK: [Who; 4] = [Who::Volume, Who::VolumeNoSums, Who::Loop(FsKind::Xfs), Who::Host];

/// Runs the part.
pub fn run(options: &Options, report: &mut Report) -> Result<()> {
    let size = options.size_or(16 * MIB, GIB);
    let budget = if options.quick { 64 * MIB } else { 256 * MIB };
    let rounds = options.rounds_or(1, 5);
    let ground = Ground {
        options,
        part: "seq",
        image_bytes: (size * (rounds as u64 + 2)).max(128 * MIB),
        budget,
        dirty_limit: None,
    };
    let (who, backings): (&[_], &[_]) = match options.quick {
        true => (&QUICK, &[Backing::Sparse]),
        false => (&FULL, &[Backing::Sparse, Backing::Preallocated]),
    };
    let mut places = places::all(&ground, who, backings, report);
    // The first, untimed run of each variant.
    for place in &mut places {
        write_slice(place, size, 0)?;
    }
    let plan = Plan::simple(options, rounds, options.millis(1, 1));
    for (write, prefix) in [(true, "seqwrite"), (false, "seqread")] {
        let one = |place: &'_ mut Place, turn: &Turn| match write {
            true => write_slice(place, size, turn.seed),
            false => read_slice(place, size),
        };
        let variants = places.iter_mut().map(|place| {
            let name = place.name;
            Variant::new(name, move |turn: &Turn| one(place, turn))
        });
        let mut variants: Vec<_> = variants.collect();
        let outcome = alternate(&mut variants, &plan)?;
        drop(variants);
        outcome.add_rows(report, prefix);
        add(&outcome, prefix, &places, report);
        let title = format!("{prefix}: 1 MiB at a time");
        report.plots.push(outcome.rates_plot("volume", title));
    }
    let (size, image) = (format_size(size), format_size(ground.image_bytes));
    report.note(format!(
        "seq: a file of {size}, images of {image}, cache of ours {}; the kernel's read-ahead \
         as it comes, no advice",
        format_size(budget)
    ));
    drop(places);
    super::flush::run(options, report)
}

fn write_slice(place: &mut Place, size: u64, seed: u64) -> Result<Slice> {
    // In the first slice the file does not exist.
    let _ = place.unlink(FILE);
    let before = Usage::of_machine();
    let own = Usage::own();
    let start = Instant::now();
    let file = place.file(FILE, false)?;
    write_all(&*file, size, seed)?;
    file.sync()?;
    Ok(finished(start, size, &own, &before))
}

fn read_slice(place: &mut Place, size: u64) -> Result<Slice> {
    place.reopen()?;
    let file = place.file(FILE, false)?;
    let mut buf = AlignedBuf::new(MIB as usize);
    let before = Usage::of_machine();
    let own = Usage::own();
    let start = Instant::now();
    for at in (0..size).step_by(MIB as usize) {
        file.read(&mut buf, at)?;
        std::hint::black_box(&buf[0]);
    }
    Ok(finished(start, size, &own, &before))
}

fn finished(start: Instant, size: u64, own: &Usage, machine: &Usage) -> Slice {
    let seconds = start.elapsed().as_secs_f64();
    Slice {
        ops: size / MIB,
        bytes: size,
        seconds,
        usage: Usage::own().since(own),
        machine: Usage::of_machine().since(machine),
        ..Slice::default()
    }
}

fn add(outcome: &Outcome, prefix: &str, places: &[Place], report: &mut Report) {
    for place in places {
        let rounds = outcome.per_round(place.name);
        let of = |usage: fn(&Slice) -> &Usage| {
            let per_gib = |s: &Slice| usage(s).cpu_seconds * GIB as f64 / s.bytes.max(1) as f64;
            rounds.iter().map(per_gib).collect::<Vec<_>>()
        };
        let machine = of(|s| &s.machine);
        report.row(place.name, &format!("{prefix}_machine_cpu_per_gib"), "s", &machine);
        report.row(place.name, &format!("{prefix}_own_cpu_per_gib"), "s", &of(|s| &s.usage));
    }
    for suffix in ["sparse", "prealloc"] {
        let of = |who: &str| format!("{who}-{suffix}");
        let end = if suffix == "sparse" { "" } else { "_prealloc" };
        let ratio = outcome.ratio(&of("volume"), &of("xfs-on-loop"));
        let name = format!("{prefix}_vs_xfs{end}");
        report.ratio_with_bar(&name, ratio, Good::AtLeast, 1.0);
        let others = [
            ("host", "host".to_string()),
            ("btrfs", of("btrfs-on-loop")),
            ("nosums", of("volume-nosums")),
        ];
        for (label, other) in others {
            let ratio = outcome.ratio(&of("volume"), &other);
            if ratio.is_finite() {
                report.ratio(&format!("{prefix}_vs_{label}{end}"), ratio);
            }
        }
    }
    let rivals = [
        ("host", "the host's file system"),
        ("xfs-on-loop-sparse", "kernel xfs on loop"),
        ("ext4-on-loop-sparse", "kernel ext4 on loop"),
        ("btrfs-on-loop-sparse", "kernel btrfs on loop"),
    ];
    let cell = format!("{prefix}, 1 MiB at a time");
    outcome.compare(report, &cell, "volume-sparse", &rivals);
}
