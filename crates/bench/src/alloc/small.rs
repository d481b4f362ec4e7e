//! Random 4 KiB readers and writers, 1, 8 and 16 of each: the overhead of an allocation strategy if
//! there is nothing to gain. In memory, where the CPU is the limit, and on the disk. The strategy
//! `serialized`, that of a kernel patch, also runs with a threshold of 1: the patch got its
//! threshold because of the loss that this shows.

use super::fixture::Fixture;
use super::load::{create, pattern, write};
use super::strategies::STRATEGIES;
use crate::harness::alternate::{Plan, Turn, Variant, alternate};
use crate::harness::hist::Hist;
use crate::harness::image::Rng;
use crate::harness::load::Slice;
use crate::harness::meter::Usage;
use crate::harness::options::Options;
use crate::report::model::{Good, Report};
use forebay_base::task::block_on;
use forebay_base::units::{GIB, KIB, MIB};
use forebay_base::{IoFlags, Result};
use forebay_lfs::{AllocMode, Volume};
use forebay_vfs::OpenFileRef;
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// Bytes of each file.
const FILE: u64 = 16 * MIB;
const BLOCK: u64 = 4 * KIB;

/// All [`STRATEGIES`], and `serialized` with a threshold that serializes every request.
const VARIANTS: [(&str, AllocMode, u32); 4] =
    [STRATEGIES[0], STRATEGIES[1], ("serialized-1", AllocMode::Serialized, 1), STRATEGIES[2]];

struct Job {
    ops: u64,
    hist: Hist,
}

fn one(file: &OpenFileRef, writes: bool, seed: u64, end: Instant) -> Result<Job> {
    let mut buf = pattern(seed, BLOCK);
    let (mut rng, mut ops, mut hist) = (Rng::new(seed), 0, Hist::default());
    loop {
        let from = Instant::now();
        if from >= end {
            return Ok(Job { ops, hist });
        }
        let at = rng.below(FILE / BLOCK) * BLOCK;
        buf = if writes {
            block_on(write(file, buf, at, IoFlags::DIRECT))?
        } else {
            let (back, done) = block_on(file.read(at, buf, IoFlags::DIRECT));
            done.map(|_| back)?
        };
        ops += 1;
        if ops % 16 == 0 {
            hist.record(from.elapsed().as_nanos() as u64);
        }
    }
}

/// Runs `writers` and `readers` for `time`, each on its own file; returns the results of both.
fn mix(
    volume: &Volume,
    writers: usize,
    readers: usize,
    time: Duration,
    seed: u64,
) -> Result<Slice> {
    let mut files = Vec::new();
    for n in 0..writers.max(readers) {
        let (_, file) = block_on(create(volume, &format!("f{n}")))?;
        let mut buf = pattern(n as u64, 2 * MIB);
        for at in (0..FILE).step_by(2 << 20) {
            buf = block_on(write(&file, buf, at, IoFlags::DIRECT))?;
        }
        files.push(file);
    }
    block_on(forebay_vfs::FileSystem::syncfs(volume))?;
    let (barrier, before) = (Barrier::new(writers + readers + 1), Usage::own());
    let (jobs, begin) = std::thread::scope(|scope| {
        let barrier = &barrier;
        let spawn = |n: usize| {
            let (writes, file) = (n < writers, files[n % files.len()].clone());
            scope.spawn(move || {
                barrier.wait();
                one(&file, writes, seed + n as u64, Instant::now() + time)
            })
        };
        let handles: Vec<_> = (0..writers + readers).map(spawn).collect();
        barrier.wait();
        let begin = Instant::now();
        let jobs: Vec<Result<Job>> =
            handles.into_iter().map(|job| job.join().expect("a job returns")).collect();
        (jobs, begin)
    });
    let mut slice = Slice { usage: Usage::own().since(&before), ..Slice::default() };
    slice.seconds = begin.elapsed().as_secs_f64();
    for (n, job) in jobs.into_iter().enumerate() {
        let job = job?;
        if n < writers {
            slice.ops += job.ops;
            slice.hist.merge(&job.hist);
        }
    }
    slice.bytes = slice.ops * BLOCK;
    Ok(slice)
}

/// Measures all variants with these numbers of writers and readers; returns the ratio of `reserve`
/// to `interleaved`, and that of `serialized` with threshold 1 to threshold 64.
fn cell(
    options: &Options,
    fixture: &Fixture,
    (prefix, writers, readers): (&str, usize, usize),
    report: &mut Report,
) -> Result<(f64, f64)> {
    let mut variants = Vec::new();
    for (name, mode, pages) in VARIANTS {
        variants.push(Variant::new(name, move |turn: &Turn| {
            let volume = fixture.fresh(mode, pages)?;
            let slice = mix(&volume, writers, readers, turn.time, turn.seed)?;
            block_on(volume.close())?;
            Ok(slice)
        }));
    }
    let plan = Plan::simple(options, options.rounds_or(1, 7), options.millis(30, 500));
    let outcome = alternate(&mut variants, &plan)?;
    drop(variants);
    outcome.add_rows(report, prefix);
    let ours = outcome.ratio("reserve", "interleaved");
    let threshold = outcome.ratio("serialized-1", "serialized");
    report.ratio(&format!("{prefix}_reserve_vs_interleaved"), ours);
    Ok((ours, threshold))
}

/// Runs the part.
pub fn run(options: &Options, report: &mut Report) -> Result<()> {
    let counts: &[usize] = if options.quick { &[2] } else { &[1, 8, 16] };
    let memory = Fixture::memory(2 * GIB);
    let disk = Fixture::disk(options, options.size_or(512 * MIB, 3 * GIB))?;
    let (mut least, mut thresholds) = (f64::INFINITY, Vec::new());
    for count in counts {
        for (place, fixture) in [("memory", &memory), ("disk", &disk)] {
            let prefix = format!("small_{place}_{count}r{count}w");
            let (ours, threshold) = cell(options, fixture, (&prefix, *count, *count), report)?;
            thresholds.push(threshold);
            if place == "disk" {
                least = least.min(ours);
            }
        }
    }
    report.ratio_with_bar("small_writes_vs_interleaved", least, Good::AtLeast, 0.95);
    let worst = thresholds.iter().copied().fold(f64::INFINITY, f64::min);
    let verdict = if worst < 0.75 { "reproduced" } else { "not reproduced" };
    report.note(format!(
        "the loss that made the patch's author add a threshold (small writes at 0.48 with all of them \
         serialised): {verdict} here, at worst {worst:.2} with a threshold of 1 against 64"
    ));
    Ok(())
}
