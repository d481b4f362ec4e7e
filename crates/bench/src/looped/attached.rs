//! The part `attached` of `loop`: the loop patch's own measurement. fio with psync through the
//! kernel's cache, in 16 files and in one, on an ext4 above the device of `forebay attach` with its
//! default options. The kernel's loop device is measured for comparison, buffered and direct.
//!
//! Each slice attaches the same image anew, and mounts the same ext4 with the same files, so it
//! starts with nothing cached. fio runs in a memory cgroup that is smaller than the files, and that
//! is charged with what the kernel caches of them. A slice of writes ends when they are synced. The
//! memory of a slice is its highest sum of all caches and of the server, looked at every 50 ms.
//! Machine CPU and switches cover everything, for all variants.

use super::fio::{BUDGET, GROWTH_MIB, Jobs, LAYOUTS, OVERHEAD, PATTERNS, Place};
use crate::harness::alternate::{Outcome, Plan, Turn, Variant, alternate};
use crate::harness::backing::Backing;
use crate::harness::image::{Rng, drop_file_cache, open_with};
use crate::harness::load::Slice;
use crate::harness::meter::{Usage, Watch, resident_bytes};
use crate::harness::options::Options;
use crate::harness::sys::page_cache_bytes;
use crate::report::lack::not_installed;
use crate::report::model::{Good, Report, median};
use crate::rivals::attached::Attached;
use crate::rivals::loopdev::{Folder, FsKind, LoopDev, unmount};
use crate::rivals::mounted::call;
use crate::rivals::server::program_exists;
use forebay_base::units::{MIB, format_size};
use forebay_base::{Error, Result};
use forebay_testkit::cgroup::Memcg;
use rustix::fs::OFlags;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

const OURS: &str = "attach";
const DIRECT: &str = "kernel-loop-direct";
const BUFFERED: &str = "kernel-loop-buffered";
const SECTOR: u32 = 4096;
/// Bars by layout: rate over that of the kernel's loop device with direct I/O.
const BARS: [f64; LAYOUTS.len()] = [0.8, 0.5];
/// Bar: MiB of memory in addition to that of the kernel's loop device with direct I/O and
/// `--cache-size`.
const MEMORY_MIB: f64 = 32.0;
/// Names of the files by layout: each job has one.
const FILES: [&str; LAYOUTS.len()] = ["many", "one"];

/// Bytes at one time.
#[derive(Clone, Copy, Default)]
struct Memory {
    /// Pages of the ext4's files and of its device.
    above: u64,
    /// Pages of the image.
    below: u64,
    /// Memory of the process that serves the device.
    server: u64,
}

type Figure = fn(&Memory) -> u64;

impl Memory {
    fn sum(&self) -> u64 {
        self.above + self.below + self.server
    }
}

/// A device, detached on drop.
enum Device {
    Ours(Attached),
    Kernel(LoopDev),
}

/// The mounted ext4. Drop unmounts it and detaches its device.
struct Above {
    at: PathBuf,
    device: Option<Device>,
}

struct Bench<'a> {
    options: &'a Options,
    folder: Folder,
    size: u64,
    /// By variant and layout, for each slice since the last cell.
    memory: RefCell<BTreeMap<&'static str, Vec<Memory>>>,
}

/// Runs the part.
pub fn run(options: &Options, report: &mut Report) -> Result<()> {
    for (program, package) in [("fio", "fio"), ("mkfs.ext4", "e2fsprogs")] {
        if !program_exists(program) {
            return Err(not_installed(program, format!("Debian's package {package} has it")));
        }
    }
    let size = options.size_or(64 * MIB, 1600 * MIB);
    let folder = Folder::new(&options.dir, "attached")?;
    let bench = Bench { options, folder, size, memory: RefCell::default() };
    bench.make()?;
    report.note(format!(
        "loop attached: 16 files of {} and one of {} on an ext4, fio in a memory cgroup of {}, \
         `attach --cache-size {}`",
        format_size(size / 16),
        format_size(size / 8 * 5),
        format_size(bench.limit()),
        format_size(BUDGET)
    ));
    let mut worst = Worst::default();
    for (layout, (suffix, count, part, of)) in LAYOUTS.into_iter().enumerate() {
        for (rw, _) in PATTERNS {
            // A quick run only checks that the variants work.
            if options.quick && rw != "randwrite" {
                continue;
            }
            let jobs = Jobs { rw, count, each: size / of * part, ..Jobs::default() };
            bench.memory.borrow_mut().clear();
            let outcome = bench.cell(&jobs, FILES[layout])?;
            bench.add_cell(&outcome, (rw, suffix, BARS[layout]), report);
            bench.add_memory(rw, suffix, &mut worst, report);
        }
    }
    let name = "attached_memory_over_loop_direct_mib";
    let bar = MEMORY_MIB + mib(BUDGET);
    report.ratio_with_bar(name, worst.over_direct, Good::AtMost, bar);
    report.ratio_with_bar(
        "attached_image_in_page_cache_mib",
        worst.below,
        Good::AtMost,
        GROWTH_MIB,
    );
    Ok(())
}

/// The worst of all cells, MiB.
#[derive(Default)]
struct Worst {
    over_direct: f64,
    below: f64,
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / MIB as f64
}

fn name_of(files: &str, job: u32) -> String {
    format!("{files}.{job}")
}

impl Bench<'_> {
    /// Limit of fio's memory cgroup, bytes.
    fn limit(&self) -> u64 {
        if self.options.quick { OVERHEAD } else { BUDGET + OVERHEAD }
    }

    /// Makes the image, the ext4 in it, and its files.
    fn make(&self) -> Result<()> {
        let image = self.folder.image();
        Backing::Written.make(&image, self.size / 8 * 13 + self.size / 8 + 64 * MIB)?;
        let device = LoopDev::attach_with(&image, true, Some(SECTOR))?;
        FsKind::Ext4.make(device.path().as_os_str())?;
        let above = Above::mount(&self.folder, Device::Kernel(device))?;
        let mut rng = Rng::new(self.size);
        for ((_, count, part, of), files) in LAYOUTS.into_iter().zip(FILES) {
            for job in 0..count {
                let path = self.folder.mount().join(name_of(files, job));
                fill(&path, self.size / of * part, &mut rng)?;
            }
        }
        above.end()
    }

    /// Attaches the image as this variant does.
    fn attach(&self, name: &str) -> Result<Device> {
        let image = self.folder.image();
        drop_file_cache(&open_with(&image, OFlags::empty())?)
            .map_err(|e| Error::from_io("drop cache", e))?;
        if name != OURS {
            let device = LoopDev::attach_with(&image, name == DIRECT, Some(SECTOR))?;
            return Ok(Device::Kernel(device));
        }
        let cache = BUDGET.to_string();
        let words = ["--cache-size", &cache, "--aio", &self.options.aio];
        Ok(Device::Ours(Attached::new(&image, &words)?))
    }

    fn slice(&self, name: &'static str, jobs: &Jobs, files: &'static str) -> Result<Slice> {
        let device = self.attach(name)?;
        let server = match &device {
            Device::Ours(device) => Some(device.pid()?),
            Device::Kernel(_) => None,
        };
        let above = Above::mount(&self.folder, device)?;
        let open = |path: &Path| open_with(path, OFlags::empty());
        let image = open(&self.folder.image())?;
        let mut cached = vec![open(above.device())?];
        for job in 0..jobs.count {
            cached.push(open(&self.folder.mount().join(name_of(files, job)))?);
        }
        let group = Memcg::create("attached", self.limit()).ok();
        let procs = group.as_ref().map(Memcg::procs);
        let mut watch = server.map_or_else(Watch::kworkers, Watch::start);
        let (machine, mut most) = (Usage::of_machine(), Memory::default());
        let mut look = || {
            watch.look();
            let now = memory(&cached, &image, server);
            most = if now.sum() > most.sum() { now } else { most };
        };
        let mount = File::open(self.folder.mount()).map_err(|e| Error::from_io("open", e))?;
        let sync = || rustix::fs::syncfs(&mount).map_err(|e| Error::from_io("sync", e.into()));
        let place = self.folder.mount();
        let place = Place::Files(&place, files);
        let mut slice = jobs.run(&place, procs.as_deref(), &mut look, sync)?;
        look();
        slice.usage = watch.used();
        slice.machine = Usage::of_machine().since(&machine);
        self.memory.borrow_mut().entry(name).or_default().push(most);
        drop((cached, mount));
        above.end().map(|()| slice)
    }

    fn cell(&self, jobs: &Jobs, files: &'static str) -> Result<Outcome> {
        let mut variants: Vec<Variant<'_>> = Vec::new();
        for name in [OURS, BUFFERED, DIRECT] {
            variants.push(Variant::new(name, move |turn: &Turn| {
                self.slice(name, &jobs.for_turn(turn.time, turn.seed), files)
            }));
        }
        let rounds = self.options.rounds_or(1, 3);
        alternate(&mut variants, &Plan::simple(self.options, rounds, self.options.millis(60, 1500)))
    }

    fn add_cell(
        &self,
        outcome: &Outcome,
        (rw, suffix, bar): (&str, &str, f64),
        report: &mut Report,
    ) {
        outcome.add_rows(report, &format!("attached_{rw}_{suffix}"));
        let ratio = outcome.ratio(OURS, DIRECT);
        let name = format!("attached_{rw}_vs_loop_direct_{suffix}");
        report.ratio_with_bar(&name, ratio, Good::AtLeast, bar);
        let ratio = outcome.ratio(OURS, BUFFERED);
        report.ratio(&format!("attached_{rw}_vs_loop_buffered_{suffix}"), ratio);
        let per_op = |value: f64, slice: &Slice| value / slice.ops.max(1) as f64;
        let cpu = outcome.ratio_of(OURS, DIRECT, |s| per_op(s.machine.cpu_seconds, s));
        report.ratio(&format!("attached_{rw}_cpu_vs_loop_direct_{suffix}"), cpu);
        for rival in [DIRECT, BUFFERED] {
            let switches = outcome.ratio_of(OURS, rival, |s| per_op(s.machine.voluntary as f64, s));
            let rival = rival.trim_start_matches("kernel-").replace('-', "_");
            report.ratio(&format!("attached_{rw}_switches_vs_{rival}_{suffix}"), switches);
        }
        let rivals = [
            (BUFFERED, "kernel loop, buffered, below an ext4"),
            (DIRECT, "kernel loop, direct I/O, below an ext4"),
        ];
        outcome.compare(report, &format!("{rw}, {suffix}"), OURS, &rivals);
    }

    fn add_memory(&self, rw: &str, suffix: &str, worst: &mut Worst, report: &mut Report) {
        let all = self.memory.borrow();
        let of = |name: &str, figure: Figure| {
            let slices = all.get(name).into_iter().flatten();
            slices.map(|memory| mib(figure(memory))).collect::<Vec<f64>>()
        };
        for name in all.keys() {
            let figures: [(&str, Figure); 4] = [
                ("memory", Memory::sum),
                ("cached_above", |m| m.above),
                ("image_in_page_cache", |m| m.below),
                ("server_memory", |m| m.server),
            ];
            for (what, figure) in figures {
                let metric = format!("attached_{rw}_{suffix}_{what}");
                report.row(name, &metric, "MiB", &of(name, figure));
            }
        }
        let over = median(&of(OURS, Memory::sum)) - median(&of(DIRECT, Memory::sum));
        worst.over_direct = worst.over_direct.max(over);
        let below = of(OURS, |m| m.below).into_iter().fold(0.0, f64::max);
        worst.below = worst.below.max(below);
    }
}

fn memory(cached: &[File], image: &File, server: Option<u32>) -> Memory {
    let pages = |file: &File| {
        let len = rustix::fs::seek(file, rustix::fs::SeekFrom::End(0)).unwrap_or(0);
        page_cache_bytes(file, 0, len).unwrap_or(0)
    };
    Memory {
        above: cached.iter().map(pages).sum(),
        below: pages(image),
        server: server.and_then(resident_bytes).unwrap_or(0),
    }
}

/// Writes a file of random bytes.
fn fill(path: &PathBuf, size: u64, rng: &mut Rng) -> Result<()> {
    let fail = |e| Error::from_io("write", e).with_path(path);
    let mut file = File::create(path).map_err(fail)?;
    let mut chunk = vec![0; MIB as usize];
    let mut left = size;
    while left > 0 {
        chunk.chunks_exact_mut(8).for_each(|word| {
            word.copy_from_slice(&rng.draw().to_le_bytes());
        });
        let part = left.min(chunk.len() as u64);
        file.write_all(&chunk[..part as usize]).map_err(fail)?;
        left -= part;
    }
    file.sync_all().map_err(fail)
}

impl Above {
    fn mount(folder: &Folder, device: Device) -> Result<Self> {
        let this = Self { at: folder.mount(), device: Some(device) };
        let (kind, options) = (OsStr::new("ext4"), OsStr::new("noatime"));
        let (device, at) = (this.device().as_os_str(), this.at.as_os_str());
        call("mount", &["-t".as_ref(), kind, "-o".as_ref(), options, device, at])?;
        Ok(this)
    }

    fn device(&self) -> &Path {
        match self.device.as_ref().expect("there until the end") {
            Device::Ours(device) => device.path(),
            Device::Kernel(device) => device.path(),
        }
    }

    /// Unmounts it, and says whether that has worked.
    fn end(mut self) -> Result<()> {
        let ended = call("umount", &[self.at.as_os_str()]);
        drop(self.device.take());
        ended.map(drop)
    }
}

impl Drop for Above {
    fn drop(&mut self) {
        unmount(&self.at);
        drop(self.device.take());
    }
}
