//! `names`: many files of 4 KiB, in directories of [`EACH`]. They are created, looked up, listed as
//! by `ls -l`, read and removed; before each step after the first the caches are dropped.
//!
//! Invariants: N1 the time of a creation or removal includes the sync. Each step handles each file
//! once, in order of creation; only the listing has its own order.

use super::ground::{self, ALL, Ground, Plot};
use super::read::RIVALS;
use crate::harness::alternate::{Plan, Turn, Variant, alternate};
use crate::harness::backing::Backing;
use crate::harness::load::Slice;
use crate::harness::options::Options;
use crate::report::model::{Good, Report, median};
use forebay_base::units::{GIB, MIB};
use forebay_base::{Error, ErrorKind, Result};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

/// Files per directory.
const EACH: u64 = 10_000;
/// Size of a file, bytes.
const SIZE: usize = 4096;

/// A step, the rival of its bar, and the bar. What the empty server does with names is the most
/// that any file system in a process can do. Content comes from the disk, of which it has none.
const STEPS: [(&str, &str, f64); 5] = [
    ("create", "empty", 0.7),
    ("stat", "empty", 0.9),
    ("ls", "empty", 0.8),
    ("read", "xfs", 0.8),
    ("remove", "empty", 0.9),
];

/// Seconds by variant and step, one value per round.
type Times = BTreeMap<(&'static str, &'static str), Vec<f64>>;

/// Runs the part.
pub fn run(options: &Options, report: &mut Report) -> Result<()> {
    let count = if options.quick { 400 } else { 50_000 };
    let image = if options.quick { 192 * MIB } else { 3 * GIB };
    let cache = if options.quick { 64 * MIB } else { 256 * MIB };
    let plot = Plot { options, part: "names", image: (image, Backing::Sparse), cache };
    let mut grounds = ground::all(&plot, &ALL, report);
    let times = RefCell::new(Times::new());
    let mut variants: Vec<Variant<'_>> = Vec::new();
    for ground in &mut grounds {
        let times = &times;
        variants.push(Variant::new(ground.name, move |_: &Turn| {
            let (name, start) = (ground.name, Instant::now());
            for (step, seconds) in all_steps(ground, count)? {
                times.borrow_mut().entry((name, step)).or_default().push(seconds);
            }
            let seconds = start.elapsed().as_secs_f64();
            Ok(Slice { ops: count, seconds, ..Slice::default() })
        }));
    }
    let plan = Plan::simple(options, options.rounds_or(1, 5), options.millis(1, 1));
    // A slice consists of all steps; the results are the times of the steps.
    alternate(&mut variants, &plan)?;
    drop(variants);
    tell(report, &times.into_inner(), count);
    Ok(())
}

/// Runs all steps on one file system; returns the seconds of each.
fn all_steps(ground: &mut Ground, count: u64) -> Result<Vec<(&'static str, f64)>> {
    let root = ground.path().join("names");
    let mut found = vec![("create", timed(ground, true, || make(&root, count))?)];
    if ground.forgets_names() {
        let steps: [(_, &dyn Fn() -> Result<()>); 3] = [
            ("stat", &|| (0..count).try_for_each(|n| look(&root, n))),
            ("ls", &|| list(&root, count)),
            ("read", &|| (0..count).try_for_each(|n| read(&root, n))),
        ];
        for (name, step) in steps {
            ground.remount()?;
            found.push((name, timed(ground, false, step)?));
        }
        ground.remount()?;
    }
    found.push(("remove", timed(ground, true, || remove(&root, count))?));
    Ok(found)
}

/// The seconds of `work`, with the sync if it is `durable` (N1).
fn timed(ground: &Ground, durable: bool, work: impl FnOnce() -> Result<()>) -> Result<f64> {
    let start = Instant::now();
    work()?;
    if durable {
        ground.sync()?;
    }
    Ok(start.elapsed().as_secs_f64())
}

fn directory(root: &Path, n: u64) -> PathBuf {
    root.join(format!("d{}", n / EACH))
}

fn path_of(root: &Path, n: u64) -> PathBuf {
    directory(root, n).join(format!("file{n}"))
}

fn make(root: &Path, count: u64) -> Result<()> {
    let mut content = [0x5a; SIZE];
    for n in 0..count {
        if n % EACH == 0 {
            let dir = directory(root, n);
            std::fs::create_dir_all(&dir).map_err(|e| Error::from_io("mkdir", e).with_path(dir))?;
        }
        content[..8].copy_from_slice(&n.to_le_bytes());
        let path = path_of(root, n);
        let made = std::fs::File::create_new(&path).and_then(|mut file| file.write_all(&content));
        made.map_err(|e| Error::from_io("create", e).with_path(path))?;
    }
    Ok(())
}

fn look(root: &Path, n: u64) -> Result<()> {
    let path = path_of(root, n);
    let size = std::fs::symlink_metadata(&path).map(|meta| meta.len());
    expect(&path, size, SIZE as u64)
}

fn read(root: &Path, n: u64) -> Result<()> {
    let path = path_of(root, n);
    let mut content = [0; SIZE];
    let done = std::fs::File::open(&path).and_then(|mut file| file.read_exact(&mut content));
    expect(&path, done.map(|()| SIZE as u64), SIZE as u64)
}

fn expect(path: &Path, found: std::io::Result<u64>, wanted: u64) -> Result<()> {
    match found {
        Ok(found) if found == wanted => Ok(()),
        Ok(found) => {
            let text = format!("{found} bytes");
            Err(Error::new(ErrorKind::Io, "look at", text).with_path(path))
        }
        Err(e) => Err(Error::from_io("look at", e).with_path(path)),
    }
}

/// Runs `ls -l` on each directory, and checks the number of lines.
fn list(root: &Path, count: u64) -> Result<()> {
    let mut lines = 0;
    for n in (0..count).step_by(EACH as usize) {
        let mut command = Command::new("ls");
        command.arg("-l").arg(directory(root, n)).env("LC_ALL", "C").stdin(Stdio::null());
        let out = command.output().map_err(|e| Error::from_io("ls", e))?;
        if !out.status.success() {
            let said = String::from_utf8_lossy(&out.stderr).trim().to_string();
            return Err(Error::new(ErrorKind::Io, "ls", said));
        }
        // The first line of `ls -l` is the total.
        lines += out.stdout.iter().filter(|byte| **byte == b'\n').count() as u64 - 1;
    }
    expect(root, Ok(lines), count)
}

fn remove(root: &Path, count: u64) -> Result<()> {
    for n in 0..count {
        let path = path_of(root, n);
        std::fs::remove_file(&path).map_err(|e| Error::from_io("unlink", e).with_path(path))?;
    }
    for n in (0..count).step_by(EACH as usize) {
        let dir = directory(root, n);
        std::fs::remove_dir(&dir).map_err(|e| Error::from_io("rmdir", e).with_path(dir))?;
    }
    Ok(())
}

fn tell(report: &mut Report, times: &Times, count: u64) {
    for ((variant, step), seconds) in times {
        let rates: Vec<f64> = seconds.iter().map(|s| count as f64 / s.max(1e-9)).collect();
        report.row(variant, &format!("mount_{step}_rate"), "1/s", &rates);
    }
    // Seconds of the rival over those of Forebay, by round.
    let ratio = |ours: &'static str, step: &'static str, rival: &'static str| {
        let of = |who| times.get(&(who, step)).map_or(&[][..], Vec::as_slice);
        let pairs = of(ours).iter().zip(of(rival)).map(|(a, b)| b / a.max(1e-9));
        median(&pairs.collect::<Vec<_>>())
    };
    for (step, judged, bar) in STEPS {
        let of = |rival| ratio("mount", step, rival);
        for (rival, short) in [("xfs-on-loop", "xfs"), ("empty-fuse", "empty")] {
            let name = format!("mount_{step}_vs_{short}");
            match short == judged {
                true => report.ratio_with_bar(&name, of(rival), Good::AtLeast, bar),
                false => report.ratio(&name, of(rival)),
            }
        }
        let allows = ratio("empty-fuse", step, "xfs-on-loop");
        report.ratio(&format!("empty_{step}_vs_xfs"), allows);
        for (variant, rival) in RIVALS {
            let value = of(variant);
            if value.is_finite() {
                report.cell(rival, &format!("on a mount, small files: {step}"), value);
            }
        }
    }
    report.note(format!(
        "mount names: {count} files of 4 KiB, {EACH} in a directory; the host's names cannot be made cold \
         without everybody's, so it has no cold cells"
    ));
}
