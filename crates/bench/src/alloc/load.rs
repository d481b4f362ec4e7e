//! The writers of a slice: some direct and some buffered ones, each with its own file on a volume.

use super::strategies::REQUEST;
use crate::harness::hist::Hist;
use crate::harness::load::Slice;
use crate::harness::meter::Usage;
use forebay_base::buf::AlignedBuf;
use forebay_base::task::block_on;
use forebay_base::units::KIB;
use forebay_base::{IoFlags, Result};
use forebay_lfs::Volume;
use forebay_vfs::{FileKind, FileSystem, Ino, Name, NewInode, OpenFileRef, OpenFlags, Privileges};
use std::sync::Barrier;
use std::time::Instant;

/// The work of a slice.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    /// The name of the shape in rows.
    pub name: &'static str,
    /// Direct writers.
    pub direct: usize,
    /// Concurrent buffered writers.
    pub buffered: usize,
    /// Bytes of a request.
    pub request: u64,
    /// Requests of each writer.
    pub count: u64,
    /// All writers begin each request at the same moment.
    pub waves: bool,
}

impl Shape {
    /// Requests of 2 MiB.
    pub const fn large(name: &'static str, direct: usize, buffered: usize, count: u64) -> Self {
        Self { name, direct, buffered, request: REQUEST, count, waves: false }
    }

    /// Direct appends of 4 KiB.
    pub const fn appends(jobs: usize, count: u64) -> Self {
        let (request, waves) = (4 * KIB, false);
        Self { name: "append4k", direct: jobs, buffered: 0, request, count, waves }
    }

    /// Bytes that all writers write.
    pub fn bytes(&self) -> u64 {
        (self.direct + self.buffered) as u64 * self.request * self.count
    }

    /// Whether writer `n` is direct.
    pub fn is_direct(&self, n: usize) -> bool {
        n < self.direct
    }
}

/// Creates the file of a job.
pub async fn create(volume: &Volume, name: &str) -> Result<(Ino, OpenFileRef)> {
    let name = Name::new(name.as_bytes())?;
    let flags = OpenFlags::READ | OpenFlags::WRITE;
    let (attr, file) =
        volume.create(Ino::ROOT, name, &NewInode::of(FileKind::File, 0o644), flags).await?;
    Ok((attr.ino, file))
}

/// Writes one request; the caller gets the buffer back.
pub async fn write(
    file: &OpenFileRef,
    buf: AlignedBuf,
    offset: u64,
    flags: IoFlags,
) -> Result<AlignedBuf> {
    let (buf, done) = file.write(offset, buf, flags, Privileges::Keep).await;
    done.map(|_| buf)
}

/// A buffer of incompressible bytes, determined by `tag`.
pub fn pattern(tag: u64, len: u64) -> AlignedBuf {
    let mut buf = AlignedBuf::new(len as usize);
    let mut state = tag;
    for word in buf.chunks_exact_mut(8) {
        word.copy_from_slice(&forebay_base::world::split_mix(&mut state).to_le_bytes());
    }
    buf
}

/// Result of a slice.
pub struct Written {
    pub slice: Slice,
    /// For each job: its file, whether it is direct, and bytes per second.
    pub jobs: Vec<(Ino, bool, f64)>,
}

impl Written {
    /// Rate of the fastest direct writer over that of the slowest.
    pub fn fairness(&self) -> f64 {
        let rates = || self.jobs.iter().filter(|job| job.1).map(|job| job.2);
        rates().fold(0.0, f64::max) / rates().fold(f64::INFINITY, f64::min)
    }
}

struct Job {
    start: Instant,
    end: Instant,
    hist: Hist,
}

fn one(
    shape: &Shape,
    n: usize,
    file: &OpenFileRef,
    start: &Barrier,
    wave: &Barrier,
) -> Result<Job> {
    let direct = shape.is_direct(n);
    let flags = if direct { IoFlags::DIRECT } else { IoFlags::empty() };
    let mut buf = pattern(n as u64, shape.request);
    let mut hist = Hist::default();
    start.wait();
    let begin = Instant::now();
    let mut failed = None;
    for at in 0..shape.count {
        if shape.waves {
            wave.wait();
        }
        if failed.is_some() {
            continue;
        }
        let from = Instant::now();
        match block_on(write(file, buf, at * shape.request, flags)) {
            Ok(back) => buf = back,
            Err(error) => {
                // The other writers wait at the barrier for this one, too.
                failed = Some(error);
                buf = AlignedBuf::new(0);
            }
        }
        hist.record(from.elapsed().as_nanos() as u64);
    }
    if let Some(error) = failed {
        return Err(error);
    }
    if !direct {
        block_on(file.sync(true))?;
    }
    Ok(Job { start: begin, end: Instant::now(), hist })
}

/// Runs a shape with one thread for each job.
pub fn run(volume: &Volume, shape: &Shape) -> Result<Written> {
    let all = shape.direct + shape.buffered;
    let mut files = Vec::new();
    for n in 0..all {
        files.push(block_on(create(volume, &format!("job{n}")))?);
    }
    let (start, wave, before) = (Barrier::new(all), Barrier::new(all), Usage::own());
    let jobs: Vec<Result<Job>> = std::thread::scope(|scope| {
        let (start, wave) = (&start, &wave);
        let spawn = |(n, (_, file)): (usize, &(Ino, OpenFileRef))| {
            let file = file.clone();
            scope.spawn(move || one(shape, n, &file, start, wave))
        };
        let handles: Vec<_> = files.iter().enumerate().map(spawn).collect();
        handles.into_iter().map(|job| job.join().expect("a writer returns")).collect()
    });
    let jobs = jobs.into_iter().collect::<Result<Vec<Job>>>()?;
    let begin = jobs.iter().map(|job| job.start).min();
    let end = jobs.iter().map(|job| job.end).max();
    let mut slice = Slice { usage: Usage::own().since(&before), ..Slice::default() };
    slice.ops = all as u64 * shape.count;
    slice.bytes = shape.bytes();
    slice.seconds = begin.zip(end).map_or(0.0, |(begin, end)| (end - begin).as_secs_f64());
    let each = (shape.request * shape.count) as f64;
    let mut rates = Vec::new();
    for (n, job) in jobs.iter().enumerate() {
        slice.hist.merge(&job.hist);
        let seconds = (job.end - job.start).as_secs_f64().max(1e-9);
        rates.push((files[n].0, shape.is_direct(n), each / seconds));
    }
    Ok(Written { slice, jobs: rates })
}
