//! `kernel`: what the kernel's cache keeps of a mount with `cache=own|small|kernel`, by access
//! pattern. The patterns are small files opened, read and closed repeatedly, and random
//! reads, sequential reads and random writes of a large file. The part also measures how much of
//! the large file is then in both caches.
//!
//! All modes serve one volume in turns, each time mounted anew and warmed. The large file stays
//! open from its warming to the end of its slices. The small files are opened by each read, because
//! the open is part of the measurement.

use super::read::read_all;
use crate::harness::alternate::{Outcome, Plan, Turn, Variant, alternate, whole_machine};
use crate::harness::hist::Hist;
use crate::harness::image::{Rng, open_with};
use crate::harness::load::{Load, Pattern, Slice, run_in_caller};
use crate::harness::options::Options;
use crate::harness::sys::page_cache_bytes;
use crate::report::model::Report;
use crate::rivals::kernel::KernelFile;
use crate::rivals::mounted::{Mounted, Mounting};
use crate::volume::places::{Opened, write_all};
use forebay_base::units::{KIB, MIB, format_size};
use forebay_base::{Error, Result};
use rustix::fs::OFlags;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;
use std::time::Instant;

/// The large file.
pub const LARGE: &str = "large";
/// Names of rows, and the value of `cache` for each.
const MODES: [(&str, &str); 3] =
    [("mount-own", "own"), ("mount-small", "small"), ("mount-kernel", "kernel")];
/// Number of small files, and size of each.
const FILES: u64 = 1000;
const EACH: usize = (16 * KIB) as usize;

/// The access patterns.
const CELLS: [&str; 4] = ["small_files", "randread", "seqread", "randwrite"];

/// Runs the part.
pub fn run(options: &Options, report: &mut Report) -> Result<()> {
    let size = options.size_or(16 * MIB, 256 * MIB);
    let all = run_at(options, size, report)?;
    for cell in CELLS {
        let outcome = &all[cell];
        for (mode, other) in [("small", "own"), ("kernel", "own"), ("kernel", "small")] {
            let of = |mode: &str| format!("mount-{mode}");
            let ratio = outcome.ratio(&of(mode), &of(other));
            report.ratio(&format!("kernel_cache_{mode}_vs_{other}_{cell}"), ratio);
        }
    }
    report.note(format!(
        "mount kernel: a file of {}, {FILES} of {}",
        format_size(size),
        format_size(EACH as u64)
    ));
    Ok(())
}

/// Measures each pattern.
fn run_at(
    options: &Options,
    size: u64,
    report: &mut Report,
) -> Result<BTreeMap<&'static str, Outcome>> {
    let spare = if options.quick { 128 * MIB } else { 2048 * MIB };
    let how = Mounting::new(4 * size + spare, 2 * size + 96 * MIB, &options.aio);
    let mounted = RefCell::new(Mounted::new(&options.dir, "kernel", how)?);
    let at = mounted.borrow().path();
    fill(&at, size)?;
    let twice = RefCell::new(BTreeMap::new());
    let mut all = BTreeMap::new();
    for cell in CELLS {
        let variants = MODES.iter().map(|(name, mode)| {
            let (mounted, twice, at) = (&mounted, &twice, &at);
            Variant::new(name, move |turn: &Turn| {
                mounted.borrow_mut().remount_with(&format!(",cache={mode}"))?;
                let (slice, kept) = one(at, cell, size, turn)?;
                if cell == "randread" {
                    let both = kept.min(mounted.borrow().cached_bytes(&at.join(LARGE))?);
                    twice.borrow_mut().insert(*name, both as f64 / MIB as f64);
                }
                Ok(slice)
            })
        });
        let mut variants: Vec<_> = variants.collect();
        let outcome = alternate(&mut variants, &plan(options))?;
        drop(variants);
        outcome.add_rows(report, &format!("kernel_cache_{cell}"));
        all.insert(cell, outcome);
    }
    for (name, mib) in &twice.into_inner() {
        report.row(name, "kernel_cache_held_twice", "MiB", &[*mib]);
    }
    Ok(all)
}

fn plan(options: &Options) -> Plan {
    Plan::simple(options, options.rounds_or(1, 5), options.millis(60, 800))
}

fn fill(at: &Path, size: u64) -> Result<()> {
    let file = KernelFile::new(open_with(&at.join(LARGE), OFlags::CREATE)?);
    write_all(&file, size, size)?;
    file.sync()?;
    for n in 0..FILES {
        let path = at.join(format!("small{n}"));
        std::fs::write(&path, vec![n as u8; EACH])
            .map_err(|e| Error::from_io("write", e).with_path(path))?;
    }
    super::ground::sync_at(at)
}

/// One slice after warming, and the bytes of the large file in the kernel's cache at its end.
fn one(at: &Path, cell: &str, size: u64, turn: &Turn) -> Result<(Slice, u64)> {
    if cell == "small_files" {
        (0..2 * FILES).try_for_each(|n| small(at, n % FILES))?;
        return Ok((whole_machine(|| small_slice(at, turn))?, 0));
    }
    let write = cell == "randwrite";
    let path = at.join(LARGE);
    let fail = |e| Error::from_io("open", e).with_path(&path);
    // Opened for reading only in read slices, because the cache mode depends on that.
    let opened = std::fs::File::options().read(true).write(write).open(&path);
    let file = KernelFile::new(opened.map_err(fail)?);
    read_all(&file, size)?;
    let random = cell != "seqread";
    let load = Load {
        write,
        pattern: if random { Pattern::Random } else { Pattern::Sequential },
        threads: 1,
        block: if random { 4 * KIB } else { 128 * KIB } as usize,
        start: 0,
        len: size,
        time: turn.time,
        seed: turn.seed,
        sample_every: 8,
    };
    let slice = whole_machine(|| run_in_caller(&file, &load))?;
    let kept = page_cache_bytes(&file.file, 0, size).map_err(fail)?;
    if write {
        file.sync()?;
    }
    Ok((slice, kept))
}

fn small(at: &Path, n: u64) -> Result<()> {
    let path = at.join(format!("small{n}"));
    let mut content = [0; EACH];
    let done = std::fs::File::open(&path).and_then(|mut file| file.read_exact(&mut content));
    done.map_err(|e| Error::from_io("read", e).with_path(path))
}

fn small_slice(at: &Path, turn: &Turn) -> Result<Slice> {
    let (mut rng, mut hist) = (Rng::new(turn.seed), Hist::default());
    let (start, mut ops) = (Instant::now(), 0);
    let mut now = start;
    while now - start < turn.time {
        small(at, rng.below(FILES))?;
        ops += 1;
        let after = Instant::now();
        hist.record((after - now).as_nanos() as u64);
        now = after;
    }
    let seconds = start.elapsed().as_secs_f64();
    Ok(Slice { ops, bytes: ops * EACH as u64, seconds, hist, ..Slice::default() })
}

/// For the rows of `hit`: a mount with this value of `kernel_cache=`, with a file [`LARGE`] of
/// `size` bytes, not cached.
pub fn filled(options: &Options, label: &str, size: u64, mode: &str) -> Result<Mounted> {
    let how = Mounting::new(4 * size + 128 * MIB, 2 * size + 96 * MIB, &options.aio);
    let mut mounted = Mounted::new(&options.dir, label, how)?;
    fill(&mounted.path(), size)?;
    mounted.remount_with(&format!(",cache={mode}"))?;
    Ok(mounted)
}
