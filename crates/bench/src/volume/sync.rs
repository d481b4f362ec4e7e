//! `sync`: random 4 KiB writes, each synced, by one thread and by sixteen, each with its own file.
//! Also the bytes written to the device per byte dirtied.
//!
//! Invariants: S1 each file is completely cached before the first slice. S2 an operation is a write
//! and its fsync, or in other cells its fdatasync. For the kernel's file systems an fdatasync of
//! overwritten blocks is only a flush of the device: it writes no journal. S3 the amplification
//! comes from a separate run that ends with a clean close, with all checkpoints. It includes bytes
//! moved by the cleaner, which are also a separate row; with space for all writes they are few or
//! none.

use super::places::{self, ALL, Ground, Place, Synced, Who};
use crate::dirty::Subject;
use crate::dirty::drive::{self, Cost, JOBS};
use crate::harness::alternate::Outcome;
use crate::harness::backing::Backing;
use crate::harness::image::Rng;
use crate::harness::options::Options;
use crate::report::model::{Good, Report};
use crate::rivals::loopdev::FsKind;
use crate::rivals::volume::OurVolume;
use forebay_base::Result;
use forebay_base::units::{GIB, KIB, MIB, format_size};

/// Jobs, whether fdatasync is used, and the name of the figures.
const CELLS: [(usize, bool, &str); 4] =
    [(1, false, "sync"), (JOBS, false, "sync16"), (1, true, "dsync"), (JOBS, true, "dsync16")];
const WRITE: u64 = 4 * KIB;

/// A rival and its bars: with one job, with sixteen.
const BARS: [(&str, &str, f64, f64); 3] = [
    ("xfs", "xfs-on-loop", 1.3, 1.5),
    ("host", "host", 1.0, 1.1),
    ("btrfs", "btrfs-on-loop", 5.0, 20.0),
];

/// The bar against XFS on new sparse images.
const SPARSE_XFS: f64 = 1.0;

/// Runs the part.
pub fn run(options: &Options, report: &mut Report) -> Result<()> {
    rates(options, report)?;
    amplification(options, report)
}

fn rates(options: &Options, report: &mut Report) -> Result<()> {
    let size = options.size_or(16 * MIB, 512 * MIB);
    let each = (size / JOBS as u64).max(MIB);
    // The volume writes to free segments, so it needs space for the writes of all slices.
    let spare = if options.quick { 96 * MIB } else { 3 * GIB };
    let ground = Ground {
        options,
        part: "sync",
        image_bytes: size + each * JOBS as u64 + spare,
        budget: 2 * (size + each * JOBS as u64) + 96 * MIB,
        dirty_limit: None,
    };
    let backings = if options.quick { &Backing::ALL[..2] } else { &Backing::ALL };
    let places = places::all(&ground, &ALL, backings, report);
    for place in &places {
        place.fill(&drive::file_of(0, 1), size)?;
        (0..JOBS).try_for_each(|job| place.fill(&drive::file_of(job, JOBS), each))?;
    }
    for cell @ (jobs, data_only, prefix) in CELLS {
        let size = if jobs == 1 { size } else { each };
        let outcome = alternated(options, &places, cell, size)?;
        outcome.add_rows(report, prefix);
        outcome.add_notes(report, prefix, "host");
        ratios(&outcome, cell, report);
        let title = title(jobs, data_only);
        report.plots.push(outcome.rates_plot("volume", title));
    }
    report.note(format!(
        "sync: a file of {}, 16 of {}, images of {}; a name without a suffix is a written image",
        format_size(size),
        format_size(each),
        format_size(ground.image_bytes)
    ));
    Ok(())
}

fn title(jobs: usize, data_only: bool) -> String {
    let how = if data_only { "fdatasync" } else { "fsync" };
    format!("4 KiB random writes, each with {how}, {jobs} at a time")
}

fn alternated(
    options: &Options,
    places: &[Place],
    (jobs, data_only, _): (usize, bool, &str),
    size: u64,
) -> Result<Outcome> {
    let mut subjects = Vec::new();
    for place in places {
        let file = |job| place.file(&drive::file_of(job, jobs), false);
        let files = (0..jobs).map(file).collect::<Result<_>>()?;
        subjects.push((place.name, Synced { place, files, data_only }));
    }
    drive::in_turns(options, &subjects, (jobs, size), Cost::Own)
}

fn ratios(outcome: &Outcome, (jobs, data_only, prefix): (usize, bool, &str), report: &mut Report) {
    for (label, rival, one, many) in BARS {
        let bar = if jobs == 1 { one } else { many };
        let (name, ratio) = (format!("{prefix}_vs_{label}"), outcome.ratio("volume", rival));
        match data_only {
            true => report.ratio(&name, ratio),
            false => report.ratio_with_bar(&name, ratio, Good::AtLeast, bar),
        }
        for (ours, suffix) in [("volume-sparse", "sparse"), ("volume-prealloc", "prealloc")] {
            let theirs = if rival == "host" { "host".into() } else { format!("{rival}-{suffix}") };
            let ratio = outcome.ratio(ours, &theirs);
            let name = format!("{prefix}_vs_{label}_{suffix}");
            if ratio.is_finite() && !data_only && (label, suffix) == ("xfs", "sparse") {
                report.ratio_with_bar(&name, ratio, Good::AtLeast, SPARSE_XFS);
            } else if ratio.is_finite() {
                report.ratio(&name, ratio);
            }
        }
    }
    let rivals = [
        ("host", "the host's file system"),
        ("xfs-on-loop", "kernel xfs on loop"),
        ("ext4-on-loop", "kernel ext4 on loop"),
        ("btrfs-on-loop", "kernel btrfs on loop"),
    ];
    outcome.compare(report, &title(jobs, data_only), "volume", &rivals);
}

/// Bytes written to the device per byte dirtied, with a sync after every 4 KiB.
fn amplification(options: &Options, report: &mut Report) -> Result<()> {
    let quick: &[(u64, &str, f64)] = &[(16 * MIB, "1g", 2.1)];
    let full: &[(u64, &str, f64)] = &[(GIB, "1g", 2.1), (4 * GIB, "4g", 2.25)];
    for (size, name, bar) in if options.quick { quick } else { full } {
        let mut who = vec![Who::Volume];
        if !options.quick && *name == "1g" {
            who.extend([FsKind::Xfs, FsKind::Btrfs].map(Who::Loop));
        }
        for who in who {
            let dirtied = match (options.quick, who) {
                (true, _) => 4 * MIB,
                // The rivals are slower, and their ratio converges after fewer bytes.
                (false, Who::Loop(_)) => 64 * MIB,
                (false, _) => GIB,
            };
            let ground = Ground {
                options,
                part: "amplification",
                image_bytes: 2 * size + 3 * dirtied + 64 * MIB,
                budget: 256 * MIB,
                dirty_limit: None,
            };
            let metric = format!("synced_{name}_written_per_byte_dirtied");
            match amplified(&ground, who, *size, dirtied) {
                Ok((value, moved_bytes)) => {
                    report.row(who.name(Backing::Sparse), &metric, "x", &[value]);
                    if who == Who::Volume {
                        let moved = moved_bytes as f64 / MIB as f64;
                        let metric = format!("synced_{name}_moved_by_cleaner");
                        report.row(who.name(Backing::Sparse), &metric, "MiB", &[moved]);
                        let ratio = format!("write_amplification_volume_synced_{name}");
                        report.ratio_with_bar(&ratio, value, Good::AtMost, *bar);
                    }
                }
                Err(e) => report.left_out(&format!("{metric} of {who:?}"), e),
            }
        }
    }
    Ok(())
}

/// Bytes written per byte dirtied, and bytes that Forebay's cleaner moved.
fn amplified(ground: &Ground<'_>, who: Who, size: u64, dirtied: u64) -> Result<(f64, u64)> {
    let mut place = Place::new(ground, who, Backing::Sparse)?;
    place.fill("file", size)?;
    place.reopen()?;
    let before = place.device_bytes()?;
    let files = vec![place.file("file", false)?];
    let subject = Synced { place: &place, files, data_only: true };
    let mut rng = Rng::new(size);
    let mut buf = vec![0x5a; WRITE as usize];
    for _ in 0..dirtied / WRITE {
        buf[..8].copy_from_slice(&rng.draw().to_le_bytes());
        subject.write_synced(0, &buf, rng.below(size / WRITE) * WRITE)?;
    }
    drop(subject);
    let moved_bytes = place.ours().map_or(0, OurVolume::moved_bytes);
    let written = place.closed_bytes()? - before;
    Ok((written as f64 / dirtied as f64, moved_bytes))
}
