//! `attach`: random 4 KiB reads at depth 32 of the block device that `forebay attach` makes of a
//! raw image, all of it cached. The rivals are a loop device on a file of an empty FUSE server, and
//! the kernel's loop device, buffered and direct, on an image of the same size.
//!
//! All variants use the same client: fio with libaio and O_DIRECT, one job. Before the first slice
//! the image is completely in Forebay's cache, and the file below `kernel-loop-buffered` in the
//! page cache. `kernel-loop-direct` caches nothing and reads the disk at each request. It has its
//! own image, because no page of its file may be in the page cache.

use super::read::compare;
use crate::harness::alternate::{Plan, Turn, Variant, alternate};
use crate::harness::image::Image;
use crate::harness::load::{Slice, Target};
use crate::harness::meter::MachineTime;
use crate::harness::options::Options;
use crate::report::lack::not_installed;
use crate::report::model::{Good, Report};
use crate::rivals::attached::Attached;
use crate::rivals::empty::Empty;
use crate::rivals::fio;
use crate::rivals::kernel::KernelFile;
use crate::rivals::loopdev::LoopDev;
use crate::rivals::server::program_exists;
use forebay_base::buf::AlignedBuf;
use forebay_base::units::{MIB, format_size};
use forebay_base::{Error, ErrorKind, Result};
use rustix::fs::OFlags;
use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const DEPTH: u32 = 32;
const SECTOR: u32 = 4096;

/// Runs the part.
pub fn run(options: &Options, report: &mut Report) -> Result<()> {
    if !program_exists("fio") {
        return Err(not_installed("fio", "Debian's package fio has it"));
    }
    let size = options.size_or(32 * MIB, 512 * MIB);
    let image = Image::create(&options.dir, "attach", size, options.keep)?;
    let for_buffered = Image::create(&options.dir, "attach-buffered", size, options.keep)?;
    let for_direct = Image::create(&options.dir, "attach-direct", size, options.keep)?;
    let cache = (2 * size + 64 * MIB).to_string();
    let words = ["--cache-size", &cache, "--aio", &options.aio, "--mode", "cached"];
    let ours = Attached::new(image.path(), &words)?;
    read_through(ours.path(), size)?;
    let empty = Empty::plain(&options.dir, "attach")?;
    let file = empty.path().join("disk");
    let made = File::create(&file).and_then(|file| file.set_len(size));
    made.map_err(|e| Error::from_io("make", e).with_path(&file))?;
    let devices = [
        ("mount", Ok(ours.path().to_path_buf()), None),
        loop_on("empty-fuse", &file, true),
        loop_on("kernel-loop-buffered", for_buffered.path(), false),
        loop_on("kernel-loop-direct", for_direct.path(), true),
    ];
    for (name, path, _) in &devices {
        if let (&"kernel-loop-buffered", Ok(path)) = (name, path) {
            read_through(path, size)?;
        }
    }
    let mut variants = Vec::new();
    for (name, path, _) in &devices {
        match path {
            Ok(path) => variants.push(Variant::new(name, move |turn: &Turn| one(path, turn))),
            Err(e) => report.left_out(&format!("mount attach on {name}"), e),
        }
    }
    let plan = Plan::simple(options, options.rounds_or(1, 7), options.millis(200, 1500));
    let outcome = alternate(&mut variants, &plan)?;
    drop(variants);
    let prefix = "attach_randread";
    outcome.add_rows(report, prefix);
    let ratio = |rival| outcome.ratio("mount", rival);
    report.ratio_with_bar(&format!("{prefix}_vs_empty"), ratio("empty-fuse"), Good::AtLeast, 0.8);
    let name = format!("{prefix}_vs_loop");
    report.ratio_with_bar(&name, ratio("kernel-loop-direct"), Good::AtLeast, 1.0);
    report.ratio(&format!("{prefix}_vs_loop_buffered"), ratio("kernel-loop-buffered"));
    compare(&outcome, report, "attached: 4 KiB random reads, depth 32, ours cached");
    report.note(format!("mount attach: an image of {}, `mount` is the device", format_size(size)));
    // The loop devices are detached before their images are removed.
    drop(devices);
    Ok(())
}

/// Name, path of the device, and the loop device that provides it.
type Device = (&'static str, Result<PathBuf>, Option<LoopDev>);

fn loop_on(name: &'static str, file: &Path, direct: bool) -> Device {
    match LoopDev::attach_with(file, direct, Some(SECTOR)) {
        Ok(device) => (name, Ok(device.path().to_path_buf()), Some(device)),
        Err(e) => (name, Err(e), None),
    }
}

/// Reads the complete device with O_DIRECT, so that the cache below it is warm.
fn read_through(device: &Path, size: u64) -> Result<()> {
    let mut options = File::options();
    options.read(true).custom_flags(OFlags::DIRECT.bits() as i32);
    let file = options.open(device).map_err(|e| Error::from_io("open", e).with_path(device))?;
    let (file, mut buf) = (KernelFile::new(file), AlignedBuf::new(MIB as usize));
    for _ in 0..2 {
        (0..size).step_by(buf.len()).try_for_each(|at| file.read(&mut buf, at))?;
    }
    Ok(())
}

/// Runs one slice of fio.
fn one(device: &Path, turn: &Turn) -> Result<Slice> {
    let millis = turn.time.as_millis();
    let mut command = Command::new("fio");
    command.args(["--name=job", "--ioengine=libaio", "--direct=1", "--rw=randread", "--bs=4k"]);
    command.args(["--thread=1", "--norandommap=1", "--randrepeat=0", "--time_based=1"]);
    command.args(["--allow_file_create=0", "--readonly"]);
    command.arg(format!("--filename={}", device.display()));
    command.arg(format!("--iodepth={DEPTH}")).arg(format!("--randseed={}", turn.seed));
    command.arg(format!("--runtime={millis}ms"));
    let before = MachineTime::now();
    let mut slice = fio::run_command(command, Duration::from_millis(millis as u64))?
        .pop()
        .filter(|slice| slice.ops > 0)
        .ok_or_else(|| Error::new(ErrorKind::Io, "fio", "it transferred nothing"))?;
    slice.machine.cpu_seconds = MachineTime::now().busy_seconds_since(&before);
    Ok(slice)
}
