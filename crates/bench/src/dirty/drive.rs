//! One slice: jobs that write at random offsets, and sync each write before the next. And
//! alternating slices of several subjects.

use super::subject::Subject;
use crate::harness::alternate::{Outcome, Plan, Turn, Variant, alternate, whole_machine};
use crate::harness::hist::Hist;
use crate::harness::image::Rng;
use crate::harness::load::Slice;
use crate::harness::meter::Usage;
use crate::harness::options::Options;
use forebay_base::Result;
use forebay_base::buf::AlignedBuf;
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// Parameters of a slice.
#[derive(Clone, Copy)]
pub struct Drive {
    /// Jobs, each with its own file and thread.
    pub jobs: usize,
    /// Bytes of each file.
    pub size: u64,
    /// Duration.
    pub time: Duration,
    /// Seed of the offsets.
    pub seed: u64,
}

/// Number of jobs in parts with many jobs, each with its own file.
pub const JOBS: usize = 16;

/// Name of the file of job `job` out of `jobs`.
pub fn file_of(job: usize, jobs: usize) -> String {
    if jobs == 1 { "one".to_string() } else { format!("many{job}") }
}

/// Scope of the CPU time that is charged to a slice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cost {
    /// This process: it does all the work.
    Own,
    /// The machine: a daemon does a part of the work.
    Machine,
}

/// Alternates slices of the subjects, with `jobs` jobs on files of `size` bytes. A round counts
/// only if the host was steady.
pub fn in_turns<S: Subject>(
    options: &Options,
    subjects: &[(&'static str, S)],
    (jobs, size): (usize, u64),
    cost: Cost,
) -> Result<Outcome> {
    let variants = subjects.iter().map(|(name, subject)| {
        Variant::new(name, move |turn: &Turn| {
            let one = || run(subject, &Drive { jobs, size, time: turn.time, seed: turn.seed });
            if cost == Cost::Machine { whole_machine(one) } else { one() }
        })
    });
    let plan = Plan {
        cycles: if options.quick { 1 } else { 3 },
        passes: if options.quick { 1 } else { 3 },
        gate: Some("host"),
        repeats_max: if options.quick { 0 } else { 2 },
        ..Plan::simple(options, options.rounds_or(1, 5), options.millis(40, 450))
    };
    alternate(&mut variants.collect::<Vec<_>>(), &plan)
}

/// Runs one slice; its result includes the bytes of the operations.
pub fn run(subject: &(dyn Subject + '_), drive: &Drive) -> Result<Slice> {
    let before = Usage::own();
    let barrier = Barrier::new(drive.jobs);
    let start = Instant::now();
    let parts: Vec<Result<Part>> = std::thread::scope(|scope| {
        let barrier = &barrier;
        let spawn = |job| scope.spawn(move || one_job(subject, drive, job, barrier));
        let handles: Vec<_> = (0..drive.jobs).map(spawn).collect();
        handles.into_iter().map(|h| h.join().expect("a job returns")).collect()
    });
    let mut slice = Slice { seconds: start.elapsed().as_secs_f64(), ..Slice::default() };
    for part in parts {
        let part = part?;
        slice.ops += part.ops;
        slice.hist.merge(&part.hist);
    }
    slice.bytes = slice.ops * subject.unit();
    slice.usage = Usage::own().since(&before);
    Ok(slice)
}

struct Part {
    ops: u64,
    hist: Hist,
}

fn one_job(subject: &dyn Subject, drive: &Drive, job: usize, barrier: &Barrier) -> Result<Part> {
    let unit = subject.unit();
    let mut buf = AlignedBuf::new(unit as usize);
    let mut rng = Rng::new(drive.seed.wrapping_add(job as u64 * 7919));
    let mut hist = Hist::default();
    let mut ops = 0u64;
    barrier.wait();
    let start = Instant::now();
    let mut now = start;
    while now - start < drive.time {
        let offset = rng.below(drive.size / unit) * unit;
        // No two writes are equal, so that no device can save a write of unchanged data.
        buf[..8].copy_from_slice(&rng.draw().to_le_bytes());
        subject.write_synced(job, &buf, offset)?;
        ops += 1;
        let after = Instant::now();
        hist.record((after - now).as_nanos() as u64);
        now = after;
    }
    Ok(Part { ops, hist })
}
