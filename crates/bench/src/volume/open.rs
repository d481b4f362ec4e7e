//! `open`: many files. Time to open after a clean close; memory while all files are accessed; and
//! recovery after a kill, per GiB of log.
//!
//! Invariants: O1 memory is RssAnon and RssShmem of a child that does nothing else, sampled every
//! 20 ms; its memory before it opens the volume is included. O2 the child that writes the log is
//! killed with SIGKILL and closes nothing. A file that is accessed again was closed in between, so
//! its reads from the device are the cost of that close. O3 no checkpoint falls into the log that
//! is recovered, so that all of it is read. If one does, the figure is not judged.

use super::names::{EACH, Tree};
use super::places::{self, Ground, Opened, Place, Who};
use crate::dirty::drive::{self, Drive};
use crate::harness::alternate::relative_deviation;
use crate::harness::backing::{BackedImage, Backing};
use crate::harness::load::Target;
use crate::harness::meter::{looking, resident_bytes};
use crate::harness::options::Options;
use crate::report::model::{Good, Report, median};
use crate::rivals::volume::{OurVolume, VolumeSpec};
use crate::rivals::worker::Worker;
use forebay_base::task::block_on;
use forebay_base::units::{GIB, KIB, MIB};
use forebay_base::{Error, ErrorKind, Result};
use forebay_vfs::{Cookie, FileKind, FileSystem, Ino, OpenFlags};
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::path::Path;
use std::time::{Duration, Instant};

const BUDGET: u64 = 256 * MIB;
const BLOCK: u64 = 4 * KIB;
/// Bar: memory beyond the budget, MiB.
const OVER_MIB: f64 = 32.0;
/// Files that are accessed again: they fit into the cache.
const AGAIN: usize = 10_000;
/// Jobs that write the log.
const JOBS: usize = 16;

/// Runs the part. `--size` is the number of files.
pub fn run(options: &Options, report: &mut Report) -> Result<()> {
    let many = options.size.unwrap_or(if options.quick { 3000 } else { 1_000_000 });
    report.note(format!("open: {many} files, a block each, cache of {} MiB", BUDGET / MIB));
    let image_bytes = if options.quick { 160 * MIB } else { many * 12 * KIB + 2 * GIB };
    let ground = Ground { options, part: "open", image_bytes, budget: BUDGET, dirty_limit: None };
    for mut place in places::all(&ground, &[Who::Volume], &[Backing::Sparse], report) {
        let mut tree = Tree::of(&place).expect("it is ours");
        tree.make_directories(many)?;
        tree.create_all(0, many)?;
        drop(tree);
        fill(&place, many)?;
        open_again(options, &mut place, report)?;
        touched(&mut place, many, report)?;
    }
    recovery(options, report)
}

/// Writes a block into every file.
fn fill(place: &Place, many: u64) -> Result<()> {
    let volume = place.ours().expect("ours");
    let block = vec![0x77; BLOCK as usize];
    for dir in 0..many.div_ceil(EACH) {
        let name = format!("d{dir}");
        let dir_ino =
            block_on(volume.volume.lookup(Ino::ROOT, forebay_vfs::Name::new(name.as_bytes())?))?
                .ino;
        for n in dir * EACH..((dir + 1) * EACH).min(many) {
            volume.file_in(dir_ino, &format!("file{n}"))?.write(&block, 0)?;
        }
    }
    volume.sync()
}

fn open_again(options: &Options, place: &mut Place, report: &mut Report) -> Result<()> {
    let mut seconds = Vec::new();
    for _ in 0..options.rounds_or(1, 5) {
        place.close()?;
        let start = Instant::now();
        place.open()?;
        // The volume counts as open when the first name is found.
        let volume = place.ours().expect("ours");
        block_on(volume.volume.lookup(Ino::ROOT, forebay_vfs::Name::new(b"d0")?))?;
        seconds.push(start.elapsed().as_secs_f64());
    }
    report.row("volume", "open_after_clean_stop", "s", &seconds);
    let name = "open_after_clean_stop_seconds";
    report.ratio_with_bar(name, median(&seconds), Good::Below, 1.0);
    Ok(())
}

/// Measures the memory of a child that accesses all files.
fn touched(place: &mut Place, many: u64, report: &mut Report) -> Result<()> {
    let path = place.image().expect("ours").to_path_buf();
    place.close()?;
    let mut worker = match Worker::free() {
        Ok(worker) => worker,
        Err(e) => {
            report.left_out("memory with many files touched", e);
            return place.open();
        }
    };
    let (pid, mut resident) = (worker.pid(), Vec::new());
    let job = json!({ "job": "touch", "path": path, "budget": BUDGET });
    let look = || resident.extend(resident_bytes(pid));
    let answer = looking(Duration::from_millis(20), look, || worker.ask(&job))?;
    drop(worker);
    place.open()?;
    if answer["files"].as_u64() != Some(many) {
        let text = format!("{answer}, there are {many} files");
        return Err(Error::new(ErrorKind::Corrupt, "touch", text));
    }
    let peak = resident.iter().copied().max().unwrap_or(0) as f64 / MIB as f64;
    report.row("volume", "touched_resident_peak", "MiB", &[peak]);
    let rate = answer["files"].as_f64().unwrap_or(0.0) / answer["seconds"].as_f64().unwrap_or(1.0);
    report.row("volume", "touched_rate", "1/s", &[rate]);
    let over = peak - (BUDGET / MIB) as f64;
    report.ratio_with_bar("touched_memory_over_budget_mib", over, Good::AtMost, OVER_MIB);
    let figure = |key: &str| answer[key].as_f64().unwrap_or(f64::NAN);
    report.row("volume", "touched_again_rate", "1/s", &[figure("again_rate")]);
    let share = figure("again_missed_share");
    report.ratio_with_bar("touched_again_missed_share", share, Good::AtMost, 0.01);
    Ok(())
}

fn open_job(job: &Value, checkpoints: bool) -> Result<OurVolume> {
    let path = Path::new(job["path"].as_str().unwrap_or_default());
    let bytes = std::fs::metadata(path).map_err(|e| Error::from_io("stat", e).with_path(path))?;
    let budget = job["budget"].as_u64().unwrap_or(BUDGET);
    let spec = VolumeSpec::new("auto", bytes.len(), budget)?;
    OurVolume::open(path, &VolumeSpec { checkpoints, ..spec })
}

/// The child's side: lists every directory of the root, and of each file reads the attributes and
/// the first block. Then it accesses the last files again.
pub fn touch_job(job: &Value) -> Result<Value> {
    let volume = open_job(job, true)?;
    let fs = &volume.volume;
    let start = Instant::now();
    let (mut files, mut buf, mut last_ones) = (0u64, vec![0; BLOCK as usize], VecDeque::new());
    let list = |dir, after| block_on(fs.readdir(dir, after, 1000));
    for dir in list(Ino::ROOT, Cookie::START)? {
        if dir.kind != FileKind::Directory {
            continue;
        }
        let mut after = Cookie::START;
        loop {
            let entries = list(dir.ino, after)?;
            let Some(last) = entries.last() else { break };
            after = last.cookie;
            for entry in &entries {
                let size = block_on(fs.getattr(entry.ino))?.size;
                let file = block_on(fs.open(entry.ino, OpenFlags::READ))?;
                let read = file.read_slice(0, &mut buf, forebay::IoFlags::empty())?;
                if (read as u64, buf[0]) != (size, 0x77) {
                    let text = format!("{:?}: {read} of {size} bytes", entry.ino);
                    return Err(Error::new(ErrorKind::Corrupt, "touch", text));
                }
                files += 1;
                last_ones.push_back(entry.ino);
                if last_ones.len() > AGAIN {
                    last_ones.pop_front();
                }
            }
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    let again = || -> Result<()> {
        let mut buf = vec![0; BLOCK as usize];
        for ino in &last_ones {
            let file = block_on(fs.open(*ino, OpenFlags::READ))?;
            file.read_slice(0, &mut buf, forebay::IoFlags::empty())?;
        }
        Ok(())
    };
    again()?;
    let (before, start) = (volume.cache.stats().miss_bytes, Instant::now());
    again()?;
    let again_rate = last_ones.len() as f64 / start.elapsed().as_secs_f64();
    let missed = (volume.cache.stats().miss_bytes - before) as f64;
    let share = missed / (last_ones.len() as u64 * BLOCK) as f64;
    Ok(json!({ "files": files, "seconds": seconds, "again_rate": again_rate,
        "again_missed_share": share }))
}

/// Time to open after a kill, per GiB of log since the checkpoint (O3).
fn recovery(options: &Options, report: &mut Report) -> Result<()> {
    let log = if options.quick { 4 * MIB } else { GIB };
    let size = (log / 8).max(16 * MIB);
    // A checkpoint is made when the log takes a twelfth of the volume.
    let bytes = (17 * log).max(128 * MIB) + size;
    let (mut seconds, mut written, mut peaks) = (Vec::new(), Vec::new(), Vec::new());
    let mut seen = 0;
    for _ in 0..options.rounds_or(1, 3) {
        let image =
            BackedImage::create(&options.dir, "recovery", bytes, Backing::Sparse, options.keep)?;
        let spec = VolumeSpec::new(&options.aio, bytes, BUDGET)?;
        let volume = OurVolume::create(image.path(), &spec)?;
        for job in 0..JOBS {
            let file = volume.file(&format!("f{job}"))?;
            places::write_all(&file, size / JOBS as u64, job as u64)?;
        }
        volume.close()?;
        let mut worker = match Worker::free() {
            Ok(worker) => worker,
            Err(e) => {
                report.left_out("recovery after a kill", e);
                return Ok(());
            }
        };
        let each = size / JOBS as u64;
        let path = image.path();
        let job = json!({ "job": "log", "path": path, "budget": BUDGET, "log": log, "each": each });
        let answer = worker.ask(&job)?;
        let number = |key: &str| answer[key].as_u64().unwrap_or(0);
        worker.kill()?;
        seen += number("checkpoints");
        let gib = number("log") as f64 / GIB as f64;
        let (took, peak) = recovered(path)?;
        written.push(gib);
        seconds.push(took / gib);
        peaks.push(peak);
    }
    report.row("volume", "recovery_log", "GiB", &written);
    report.row("volume", "recovery_per_gib", "s", &seconds);
    let (name, value) = ("recovery_seconds_per_gib", median(&seconds));
    match seen {
        0 => report.ratio_with_bar(name, value, Good::Below, 5.0),
        _ => report.ratio_unjudged(name, value, Good::Below, 5.0),
    }
    report.row("volume", "recovery_resident_peak", "MiB", &peaks);
    let over = peaks.iter().copied().fold(0.0, f64::max) - (BUDGET / MIB) as f64;
    report.ratio_with_bar("recovery_memory_over_budget_mib", over, Good::AtMost, OVER_MIB);
    let spread = relative_deviation(&seconds) * 100.0;
    report.note(format!(
        "recovery: rounds vary by {spread:.0} %; {seen} checkpoints fell into the log, with any it is \
         not judged"
    ));
    Ok(())
}

/// Opens a killed volume in a child (O1). Returns the seconds of the opening, and the peak of the
/// child's memory in MiB.
fn recovered(path: &Path) -> Result<(f64, f64)> {
    let mut worker = Worker::free()?;
    let (pid, mut resident) = (worker.pid(), Vec::new());
    let job = json!({ "job": "recover", "path": path, "budget": BUDGET });
    let look = || resident.extend(resident_bytes(pid));
    let answer = looking(Duration::from_millis(20), look, || worker.ask(&job))?;
    let peak = resident.iter().copied().max().unwrap_or(0) as f64 / MIB as f64;
    Ok((answer["seconds"].as_f64().unwrap_or(f64::NAN), peak))
}

/// The child's side: opens the volume, which recovers it, and closes it.
pub fn recover_job(job: &Value) -> Result<Value> {
    let start = Instant::now();
    let volume = open_job(job, true)?;
    let seconds = start.elapsed().as_secs_f64();
    volume.close()?;
    Ok(json!({ "seconds": seconds }))
}

/// The child's side: synced writes by many jobs until the log has a given size, counted as the
/// device's bytes less those written to files. Closes nothing (O2), and reports the checkpoints
/// made in that time (O3).
pub fn log_job(job: &Value) -> Result<Value> {
    let volume = open_job(job, false)?;
    let first = volume.checkpoint()?;
    let count = |key: &str| job[key].as_u64().unwrap_or(0);
    let files = (0..JOBS).map(|n| volume.file(&format!("f{n}"))).collect::<Result<Vec<_>>>()?;
    let files = files.into_iter().map(|file| Box::new(file) as Box<dyn Opened + Send>).collect();
    let subject = Synced { volume: &volume, files };
    let (mut seed, mut content) = (1, 0);
    let log = |content| volume.device_bytes().saturating_sub(content);
    while log(content) < count("log") {
        let (size, time) = (count("each"), Duration::from_millis(20));
        content += drive::run(&subject, &Drive { jobs: JOBS, size, time, seed })?.bytes;
        seed += 1;
    }
    let (log, checkpoints) = (log(content), volume.checkpoint()? - first);
    drop(subject);
    // The parent kills this process, and the volume must not be closed before.
    std::mem::forget(volume);
    Ok(json!({ "log": log, "checkpoints": checkpoints }))
}

struct Synced<'a> {
    volume: &'a OurVolume,
    files: Vec<Box<dyn Opened + Send>>,
}

impl crate::dirty::Subject for Synced<'_> {
    fn write_synced(&self, job: usize, buf: &[u8], offset: u64) -> Result<()> {
        self.files[job].write(buf, offset)?;
        self.files[job].sync()
    }

    fn device_bytes(&self) -> Result<u64> {
        Ok(self.volume.device_bytes())
    }
}
