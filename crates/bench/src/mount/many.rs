//! `many`: the memory of the daemon with a tree of two million files. The library makes them. Then
//! programs walk the tree on a mount, change one file in ten, and remove all.
//!
//! Invariants: M1 memory is RssAnon and RssShmem of the daemon, sampled every 20 ms from its first
//! request to the end of the last step. M2 a step that changes something ends when it is durable.
//! M3 the volume is checked at the end.

use super::ground::sync_at;
use crate::harness::meter::{looking, resident_bytes};
use crate::harness::options::Options;
use crate::report::lack::not_started;
use crate::report::model::{Good, Report};
use crate::rivals::mounted::{Mounted, Mounting, forebay};
use crate::rivals::volume::{OurVolume, VolumeSpec};
use forebay_base::task::block_on;
use forebay_base::units::{GIB, KIB, MIB};
use forebay_base::{Error, ErrorKind, Result};
use forebay_vfs::{FileKind, FileSystem, Ino, Name, NewInode};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Files per directory.
const EACH: u64 = 10_000;
/// Of so many files one has content, which is changed.
const CONTENT: u64 = 10;
const CACHE: u64 = 64 * MIB;
/// Goal: memory beyond the cache, MiB.
const OVER_MIB: f64 = 64.0;

/// A step, in the order in which they run.
type Step = (&'static str, fn(&Path, u64) -> Result<()>);

const STEPS: [Step; 3] = [("walk", walk), ("change", change), ("remove", remove)];

/// Runs the part. `--size` with `--part many` is the number of files.
pub fn run(options: &Options, report: &mut Report) -> Result<()> {
    let default = if options.quick { 50_000 } else { 2_000_000 };
    let given = options.size.filter(|_| options.part.as_deref() == Some("many"));
    let count = given.unwrap_or(default);
    let image = count * 4 * KIB + if options.quick { 256 * MIB } else { 4 * GIB };
    let mut how = Mounting::new(image, CACHE, &options.aio);
    if options.quick {
        // The default exceeds the number of files, and would never take effect.
        how = how.with("inodes=16384");
    }
    let mounted = Mounted::new(&options.dir, "many", how)?;
    let start = Instant::now();
    mounted.unmounted(|store| make(store, (image, count), &options.aio))?;
    report.row("mount", "mount_many_make_seconds", "s", &[start.elapsed().as_secs_f64()]);
    let (pid, root) = (mounted.pid()?, mounted.path());
    let mut most = 0;
    for (name, step) in STEPS {
        let (mut peak, start) = (0, Instant::now());
        let look = || peak = peak.max(resident_bytes(pid).unwrap_or(0));
        looking(Duration::from_millis(20), look, || step(&root, count))?;
        let seconds = start.elapsed().as_secs_f64();
        report.row("mount", &format!("mount_many_{name}_seconds"), "s", &[seconds]);
        let memory = format!("mount_many_{name}_daemon_memory");
        report.row("mount", &memory, "MiB", &[peak as f64 / MIB as f64]);
        most = most.max(peak);
        if name == "walk" {
            report.row("mount", "mount_many_inodes_known", "1", &[inodes_kept(&root)?]);
        }
    }
    if mounted.pid()? != pid {
        return Err(Error::new(ErrorKind::Io, "many", "another process serves the mount"));
    }
    let over = (most as f64 - CACHE as f64) / MIB as f64;
    report.ratio_with_bar("mount_many_memory_over_cache_mib", over, Good::AtMost, OVER_MIB);
    mounted.fsck()?;
    report.note(format!(
        "mount many: {count} files, {EACH} in a directory, one in {CONTENT} with content, \
         cache_size {} MiB",
        CACHE / MIB
    ));
    Ok(())
}

/// Inodes that the daemon keeps for the kernel, which `inodes=` bounds. The kernel forgets inodes
/// some time after it is asked to, so this waits until the number no longer changes.
fn inodes_kept(root: &Path) -> Result<f64> {
    let (mut before, mut now) = (f64::NAN, inodes_known(root)?);
    for _ in 0..20 {
        if before == now {
            break;
        }
        std::thread::sleep(Duration::from_millis(250));
        (before, now) = (now, inodes_known(root)?);
    }
    Ok(now)
}

fn inodes_known(root: &Path) -> Result<f64> {
    let said = forebay(&["stat".as_ref(), "--json".as_ref(), root.as_os_str()])?;
    let said: Value = serde_json::from_str(&said)
        .map_err(|e| Error::new(ErrorKind::Io, "stat", e.to_string()).with_path(root))?;
    let known = said["mounts"][0]["inodes_known"].as_f64();
    known.ok_or_else(|| Error::new(ErrorKind::Io, "stat", "no number of inodes").with_path(root))
}

fn directory(root: &Path, dir: u64) -> PathBuf {
    root.join(format!("d{dir}"))
}

/// Makes the files through the library.
fn make(store: &Path, (image, count): (u64, u64), aio: &str) -> Result<()> {
    let volume = OurVolume::open(store, &VolumeSpec::new(aio, image, 256 * MIB)?)?;
    let block = [0x77; 4 * KIB as usize];
    for dir in 0..count.div_ceil(EACH) {
        let (name, new) = (format!("d{dir}"), NewInode::of(FileKind::Directory, 0o755));
        let made = volume.volume.mkdir(Ino::ROOT, Name::new(name.as_bytes())?, &new);
        let ino = block_on(made)?.ino;
        for n in dir * EACH..((dir + 1) * EACH).min(count) {
            let file = volume.file_in(ino, &format!("file{n}"))?;
            if n % CONTENT == 0 {
                crate::harness::load::Target::write(&file, &block, 0)?;
            }
        }
    }
    volume.close()
}

/// find(1) asks for the size of each file.
fn walk(root: &Path, count: u64) -> Result<()> {
    let mut find = Command::new("find");
    find.arg(root).args(["-type", "f", "-printf", "%s\n"]).stdin(Stdio::null());
    let mut child = find.stdout(Stdio::piped()).spawn().map_err(|e| not_started("find", e))?;
    let lines = BufReader::new(child.stdout.take().expect("stdout is piped")).split(b'\n');
    let found = lines.map_while(|line| line.ok()).count() as u64;
    let status = child.wait().map_err(|e| Error::from_io("wait", e))?;
    if status.success() && found == count {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Io, "find", format!("{status}, {found} files of {count}")))
}

fn change(root: &Path, count: u64) -> Result<()> {
    for n in (0..count).step_by(CONTENT as usize) {
        let path = directory(root, n / EACH).join(format!("file{n}"));
        let file = std::fs::File::options().write(true).open(&path);
        file.and_then(|file| file.write_all_at(&n.to_le_bytes(), 100))
            .map_err(|e| Error::from_io("change", e).with_path(path))?;
    }
    sync_at(root)
}

fn remove(root: &Path, count: u64) -> Result<()> {
    for dir in 0..count.div_ceil(EACH) {
        let path = directory(root, dir);
        std::fs::remove_dir_all(&path).map_err(|e| Error::from_io("remove", e).with_path(path))?;
    }
    sync_at(root)
}
