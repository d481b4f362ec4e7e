//! `hit`: cached 4 KiB reads at random places of a file in a volume, over those of a raw image, by
//! one thread and by two. Both have the library's defaults, and share a cache that holds them. Both
//! are read to the end before, and `hit_misses` counts reads that were not cached all the same.

use crate::harness::alternate::{Plan, Turn, Variant, alternate};
use crate::harness::backing::{BackedImage, Backing};
use crate::harness::image::Image;
use crate::harness::load::{self, Load, Pattern, Target};
use crate::harness::options::Options;
use crate::report::model::{Good, Report};
use crate::rivals::ours::{Flagged, Ours};
use forebay::{CreateVolume, Volume, VolumeOptions};
use forebay_base::units::{MIB, format_size};
use forebay_base::{IoFlags, Result};
use std::time::Duration;

/// Least rate over that of the raw image.
const BAR: f64 = 0.95;
const THREADS: [(usize, &str); 2] = [(1, "hit_read"), (2, "hit_read_two")];

/// Runs the part.
pub fn run(options: &Options, report: &mut Report) -> Result<()> {
    let size = options.size_or(16 * MIB, 512 * MIB);
    let raw = Image::create(&options.dir, "volume-hit-raw", size, options.keep)?;
    let ours = Ours::open(options, raw.path(), 3 * size + 96 * MIB)?;
    let bytes = (2 * size).max(96 * MIB);
    let keep = options.keep;
    let image = BackedImage::create(&options.dir, "volume-hit", bytes, Backing::Sparse, keep)?;
    // A sparse file of the full size counts as content.
    Volume::create(image.path(), &CreateVolume::default().force(true))?;
    let open = || Volume::open(&ours.cache, image.path(), &VolumeOptions::default());
    let volume = open()?;
    let raw = ours.with(IoFlags::empty());
    let content = Flagged { file: volume.create_file("/file")?, flags: IoFlags::empty() };
    fill(&content, size)?;
    drop(content);
    // Its last checkpoint comes now, not during a slice.
    volume.close()?;
    let volume = open()?;
    let file = Flagged { file: volume.open_file("/file")?, flags: IoFlags::empty() };
    warm(&[&raw, &file], size)?;
    let before = ours.cache.stats();
    for (threads, prefix) in THREADS {
        alternated(options, report, (&raw, &file), (threads, prefix, size))?;
    }
    let missed = ours.cache.stats().misses - before.misses;
    report.ratio_with_bar("hit_misses", missed as f64, Good::AtMost, 0.0);
    report.note(format!("volume hit: a file of {}", format_size(size)));
    drop(file);
    volume.close()
}

fn alternated(
    options: &Options,
    report: &mut Report,
    (raw, file): (&Flagged, &Flagged),
    (threads, prefix, size): (usize, &str, u64),
) -> Result<()> {
    let slice = |target: &Flagged, turn: &Turn| load::run(target, &reads(threads, size, turn));
    let mut variants = [
        Variant::new("raw", |turn| slice(raw, turn)),
        Variant::new("volume", |turn| slice(file, turn)),
    ];
    let plan = Plan {
        cycles: if options.quick { 2 } else { 5 },
        ..Plan::simple(options, options.rounds_or(3, 9), options.millis(25, 200))
    };
    let outcome = alternate(&mut variants, &plan)?;
    outcome.add_rows(report, prefix);
    outcome.add_notes(report, prefix, "raw");
    let ratio = outcome.ratio("volume", "raw");
    report.ratio_with_bar(&format!("{prefix}_vs_raw"), ratio, Good::AtLeast, BAR);
    Ok(())
}

fn reads(threads: usize, size: u64, turn: &Turn) -> Load {
    Load {
        write: false,
        pattern: Pattern::Random,
        threads,
        block: 4096,
        start: 0,
        len: size,
        time: turn.time,
        seed: turn.seed,
        sample_every: 64,
    }
}

fn fill(file: &Flagged, size: u64) -> Result<()> {
    let chunk = vec![0x5a; MIB as usize];
    (0..size).step_by(chunk.len()).try_for_each(|at| file.write(&chunk, at))
}

/// Reads both twice, so that all of them is cached.
fn warm(targets: &[&Flagged], size: u64) -> Result<()> {
    let turn = Turn { seed: 0, cycle: 0, time: Duration::from_secs(3600) };
    let load = Load { pattern: Pattern::Sequential, block: 1 << 20, ..reads(1, size, &turn) };
    for target in targets.iter().chain(targets) {
        load::run(*target, &load)?;
    }
    Ok(())
}
