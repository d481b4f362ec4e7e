//! `loop`: the eight cells of the table in the kernel patch for direct I/O of loop devices (16 jobs
//! and 1 job; randread, read, randwrite, write), by fio over NBD. The image is opened with O_DIRECT
//! and without, with `--mode cached` in both. The kernel's loop device is measured for comparison,
//! as well as memory and context switches. `attached` has the same cells on an ext4 above `attach`.
//!
//! Invariants: B1 each slice starts cold, with its own server or loop device and the image out of
//! the page cache. B2 the server, or fio on a loop device, runs in a memory cgroup of budget + 256
//! MiB, which is less than any job layout covers. B3 a slice of writes ends when they are synced.
//! B4 the usage is that of all threads of the server. For the kernel's loop device it is that of
//! the kernel workers that submit its I/O and write back. `machine_..` covers the whole machine
//! with the clients, for both.

mod attached;
mod fio;

use self::fio::{BUDGET, GROWTH_MIB, Jobs, LAYOUTS, OVERHEAD, PATTERNS, Place, nbd_flush};
use crate::harness::alternate::{Outcome, Plan, Turn, Variant, alternate};
use crate::harness::image::{Image, drop_file_cache};
use crate::harness::load::Slice;
use crate::rivals::fio as client;
use crate::rivals::loopdev::LoopDev;
use forebay_testkit::cgroup::Memcg;

use crate::harness::meter::{Usage, Watch, resident_bytes};
use crate::harness::options::Options;
use crate::harness::sys::page_cache_bytes;
use crate::report::model::{Good, Plot, Report, Summary, median};
use crate::rivals::server::{Kind, Server, forebay_binary};
use forebay_base::units::{MIB, format_size};
use forebay_base::{Error, Result};
use rustix::fs::OFlags;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::File;

const ON: &str = "ours-direct-io-on";
const OFF: &str = "ours-direct-io-off";
/// The parts that use one image without a file system.
const PARTS_OF_IMAGE: [&str; 4] = ["cells", "depth", "memory", "sparse"];

/// Memory at the end of a slice, bytes: cached pages of the image; and resident memory of the
/// server, or cached pages of the loop device.
#[derive(Clone, Copy, Default)]
struct Memory {
    cached: u64,
    resident: u64,
}

struct Bench<'a> {
    options: &'a Options,
    image: Image,
    file: File,
    /// By variant: the maximum over the ends of its slices.
    memory: RefCell<BTreeMap<&'static str, Memory>>,
}

/// Runs all parts.
pub fn run(options: &Options) -> Result<Report> {
    let mut report = Report::default();
    if options.wants("attached")
        && let Err(e) = attached::run(options, &mut report)
    {
        report.left_out("loop attached", e);
    }
    if PARTS_OF_IMAGE.iter().all(|part| !options.wants(part)) {
        return Ok(report);
    }
    if let Err(e) = client::available().and_then(|()| forebay_binary()) {
        report.left_out("loop", e);
        return Ok(report);
    }
    let size = options.size_or(64 << 20, 3200 << 20);
    let image = Image::create(&options.dir, "loop", size, options.keep)?;
    let file = image.open(OFlags::empty())?;
    let bench = Bench { options, image, file, memory: RefCell::default() };
    let whole = 6400 * MIB;
    report.note(format!(
        "loop: image {}, so 16 jobs x {} and 1 job x {}: the patch's sizes by {:.2}; budget {}, \
         cgroup {}",
        format_size(size),
        format_size(size / 16),
        format_size(size / 8 * 5),
        size as f64 / whole as f64,
        format_size(BUDGET),
        format_size(BUDGET + OVERHEAD)
    ));
    if let Err(e) = Memcg::create("loop-probe", BUDGET + OVERHEAD) {
        report.left_out("memory cgroups of loop; slices ran without", e);
    }
    let mut cells = Vec::new();
    if options.wants("cells") {
        for (suffix, count, part, of) in LAYOUTS {
            for (rw, bar) in PATTERNS {
                let jobs = Jobs { rw, count, each: size / of * part, ..Jobs::default() };
                let outcome = bench.cell(&jobs, &mut report)?;
                bench.add_cell(&outcome, rw, suffix, bar, &mut report);
                cells.push((format!("{rw}, {suffix}"), outcome.ratio(ON, OFF)));
            }
        }
        bench.add_cell_memory(&cells, &mut report);
    }
    if options.wants("depth") {
        bench.depth(&mut report)?;
    }
    if options.wants("memory") {
        bench.stream(&cells, &mut report)?;
    }
    // This part is the last because it deallocates the image's blocks.
    if options.wants("sparse") {
        bench.sparse(&mut report)?;
    }
    Ok(report)
}

impl Bench<'_> {
    fn kind(&self, direct_io: &str, mode: &'static str) -> Kind {
        let more = vec!["--direct-io".into(), direct_io.into()];
        Kind::Ours { cache: BUDGET, mode, aio: self.options.aio.clone(), more }
    }

    fn group(&self) -> Option<Memcg> {
        Memcg::create("loop", BUDGET + OVERHEAD).ok()
    }

    fn start_cold(&self) -> Result<()> {
        drop_file_cache(&self.file).map_err(|e| Error::from_io("drop cache", e))
    }

    fn image_cached(&self) -> Result<u64> {
        let found = page_cache_bytes(&self.file, 0, self.image.size());
        found.map_err(|e| Error::from_io("page cache", e))
    }

    /// One slice over NBD.
    fn ours(
        &self,
        name: &'static str,
        kind: &Kind,
        jobs: &Jobs,
        group: Option<Memcg>,
    ) -> Result<Slice> {
        self.start_cold()?;
        let procs = group.as_ref().map(Memcg::procs);
        let server = Server::start(kind, self.image.path(), None, procs.as_deref())?;
        let socket = server.socket();
        let (mut watch, machine) = (Watch::start(server.pid()), Usage::of_machine());
        let mut most = 0;
        let look = || {
            watch.look();
            most = most.max(self.image_cached().unwrap_or(0));
        };
        let mut slice = jobs.run(&Place::Nbd(&socket), None, look, || nbd_flush(&socket))?;
        slice.usage = watch.used();
        slice.machine = Usage::of_machine().since(&machine);
        let cached = most.max(self.image_cached()?);
        let resident = resident_bytes(server.pid()).unwrap_or(0);
        self.remember(name, Memory { cached, resident });
        // The server has to end before its cgroup is removed.
        drop(server);
        Ok(slice)
    }

    /// One slice on a loop device.
    fn kernel(&self, name: &'static str, direct: bool, jobs: &Jobs) -> Result<Slice> {
        self.start_cold()?;
        let group = self.group();
        let procs = group.as_ref().map(Memcg::procs);
        let device = LoopDev::attach(self.image.path(), direct)?;
        let fail = |e| Error::from_io("loop device", e).with_path(device.path());
        let held = File::open(device.path()).map_err(fail)?;
        let sync = || held.sync_data().map_err(fail);
        let place = Place::Device(device.path());
        let (mut watch, machine) = (Watch::kworkers(), Usage::of_machine());
        let mut slice = jobs.run(&place, procs.as_deref(), || {}, sync)?;
        slice.usage = watch.used();
        slice.machine = Usage::of_machine().since(&machine);
        let above = page_cache_bytes(&held, 0, self.image.size()).map_err(fail)?;
        self.remember(name, Memory { cached: self.image_cached()?, resident: above });
        drop(held);
        Ok(slice)
    }

    fn remember(&self, name: &'static str, now: Memory) {
        let mut all = self.memory.borrow_mut();
        let most = all.entry(name).or_default();
        most.cached = most.cached.max(now.cached);
        most.resident = most.resident.max(now.resident);
    }

    fn plan(&self) -> Plan {
        Plan::simple(self.options, self.options.rounds_or(1, 5), self.options.millis(60, 1000))
    }

    fn cell(&self, jobs: &Jobs, report: &mut Report) -> Result<Outcome> {
        let at = |turn: &Turn| jobs.for_turn(turn.time, turn.seed);
        let (on, off) = (self.kind("on", "cached"), self.kind("off", "cached"));
        let mut variants = vec![
            Variant::new(ON, |turn| self.ours(ON, &on, &at(turn), self.group())),
            Variant::new(OFF, |turn| self.ours(OFF, &off, &at(turn), self.group())),
        ];
        for (name, direct) in [("kernel-loop-buffered", false), ("kernel-loop-direct", true)] {
            // A quick run only checks once that the kernel's rows work.
            if self.options.quick && (jobs.rw != "randwrite" || jobs.count > 1) {
                continue;
            }
            match LoopDev::attach(self.image.path(), direct) {
                Ok(_) => variants
                    .push(Variant::new(name, move |turn| self.kernel(name, direct, &at(turn)))),
                Err(e) => report.left_out(name, e),
            }
        }
        alternate(&mut variants, &self.plan())
    }

    fn add_cell(&self, outcome: &Outcome, rw: &str, suffix: &str, bar: f64, report: &mut Report) {
        outcome.add_rows(report, &format!("{rw}_{suffix}"));
        let name = format!("{rw}_vs_buffered_{suffix}");
        report.ratio_with_bar(&name, outcome.ratio(ON, OFF), Good::AtLeast, bar);
        let cell = format!("{rw}, {suffix}");
        let rivals = [
            (OFF, "itself with --direct-io off"),
            ("kernel-loop-buffered", "kernel loop, buffered"),
            ("kernel-loop-direct", "kernel loop, direct I/O"),
        ];
        outcome.compare(report, &cell, ON, &rivals);
    }

    /// Adds the memory of the cells, and for each pattern the worse ratio under the pattern's name.
    fn add_cell_memory(&self, cells: &[(String, f64)], report: &mut Report) {
        for (rw, _) in PATTERNS {
            let prefix = format!("{rw}, ");
            let of = cells.iter().filter(|(name, _)| name.starts_with(&prefix)).map(|c| c.1);
            report.ratio(&format!("{rw}_vs_buffered"), of.fold(f64::NAN, f64::min));
        }
        for (name, memory) in self.memory.borrow().iter() {
            let mib = |bytes: u64| bytes as f64 / MIB as f64;
            report.row(name, "cells_image_in_page_cache", "MiB", &[mib(memory.cached)]);
            let what = if name.starts_with("ours") { "server_rss" } else { "device_in_page_cache" };
            report.row(name, &format!("cells_{what}"), "MiB", &[mib(memory.resident)]);
        }
    }

    /// One connection at depth 16: context switches, and the remaining modes.
    fn depth(&self, report: &mut Report) -> Result<()> {
        let each = self.image.size();
        let jobs = Jobs { rw: "randread", count: 1, depth: 16, each, ..Jobs::default() };
        let at = |turn: &Turn| jobs.for_turn(turn.time, turn.seed);
        let kinds = [
            (ON, self.kind("on", "cached")),
            (OFF, self.kind("off", "cached")),
            ("ours-mode-uncached", self.kind("on", "uncached")),
            ("ours-mode-direct", self.kind("on", "direct")),
        ];
        let mut variants: Vec<Variant<'_>> = Vec::new();
        for (name, kind) in &kinds {
            let run = move |turn: &Turn| self.ours(name, kind, &at(turn), self.group());
            variants.push(Variant::new(name, run));
        }
        let outcome = alternate(&mut variants, &self.plan())?;
        drop(variants);
        outcome.add_rows(report, "randread_depth16");
        let switches = |name| {
            let per_io =
                |s: &Slice| (s.usage.voluntary + s.usage.involuntary) as f64 / s.ops.max(1) as f64;
            outcome.per_round(name).iter().map(per_io).collect::<Vec<f64>>()
        };
        let (on, off) = (switches(ON), switches(OFF));
        report.ratio_with_bar("switches_per_io", median(&on), Good::AtMost, 0.5);
        let pairs: Vec<f64> = on.iter().zip(&off).map(|(a, b)| a / b.max(1e-9)).collect();
        report.ratio_with_bar("switches_vs_buffered", median(&pairs), Good::Below, 1.0);
        Ok(())
    }

    /// Random writes into a file without blocks, submitted by the event loop and by workers.
    fn sparse(&self, report: &mut Report) -> Result<()> {
        let size = self.image.size();
        let jobs = Jobs { rw: "randwrite", count: 1, depth: 16, each: size, ..Jobs::default() };
        let at = |turn: &Turn| jobs.for_turn(turn.time, turn.seed);
        let engines = [("ours-sparse-uring", "io_uring"), ("ours-sparse-threads", "threads")];
        let mut variants: Vec<Variant<'_>> = Vec::new();
        for (name, aio) in engines {
            let more = vec!["--direct-io".into(), "on".into()];
            let kind = Kind::Ours { cache: BUDGET, mode: "direct", aio: aio.into(), more };
            variants.push(Variant::new(name, move |turn| {
                // Makes the file sparse again, with its length unchanged.
                let cut = self.file.set_len(0).and_then(|()| self.file.set_len(size));
                cut.map_err(|e| Error::from_io("make sparse", e))?;
                self.ours(name, &kind, &at(turn), self.group())
            }));
        }
        let outcome = alternate(&mut variants, &self.plan())?;
        drop(variants);
        outcome.add_rows(report, "sparse_randwrite_depth16");
        let ratio = outcome.ratio("ours-sparse-uring", "ours-sparse-threads");
        report.ratio("sparse_randwrite_uring_vs_threads", ratio);
        Ok(())
    }

    /// Reads the whole image and writes a part of it outside of any cgroup; measures what stays in
    /// the page cache.
    fn stream(&self, cells: &[(String, f64)], report: &mut Report) -> Result<()> {
        let size = self.image.size();
        let jobs =
            |rw, each| Jobs { rw, block: MIB, count: 1, depth: 4, each, millis: 60_000, seed: 0 };
        let mut used = BTreeMap::new();
        for (name, direct_io) in [(ON, "on"), (OFF, "off")] {
            let kind = self.kind(direct_io, "cached");
            for (rw, each) in [("read", size), ("write", size / 4)] {
                self.memory.borrow_mut().remove(name);
                let slice = self.ours(name, &kind, &jobs(rw, each), None)?;
                let memory = self.memory.borrow()[name];
                let (cached, mib) = (memory.cached as f64 / MIB as f64, MIB as f64);
                report.row(name, &format!("stream_{rw}_page_cache_growth"), "MiB", &[cached]);
                report.row(name, &format!("stream_{rw}_moved"), "MiB", &[slice.bytes as f64 / mib]);
                let all = (memory.cached + memory.resident) as f64 / mib;
                report.row(name, &format!("stream_{rw}_memory_used"), "MiB", &[all]);
                let entry: &mut (f64, f64) = used.entry(name).or_default();
                *entry = (entry.0.max(cached), entry.1.max(all));
            }
        }
        let (on, off) = (used[ON], used[OFF]);
        report.ratio_with_bar("direct_cache_growth_mib", on.0, Good::AtMost, GROWTH_MIB);
        report.ratio("memory_used_share", on.1 / off.1.max(1e-9));
        self.summarize(cells, on, off, report);
        Ok(())
    }

    fn summarize(
        &self,
        cells: &[(String, f64)],
        on: (f64, f64),
        off: (f64, f64),
        report: &mut Report,
    ) {
        let of = |name: &str| cells.iter().find(|c| c.0 == name).map_or(f64::NAN, |c| c.1);
        let (many, one) = (of("randwrite, 16jobs"), of("randwrite, 1job"));
        let kernel = self.memory.borrow().get("kernel-loop-buffered").copied();
        report.summaries.push(Summary {
            behaviour: "loop",
            promise: "no second copy in the kernel's cache, and no slower for it".into(),
            baseline: format!("{:.0} MiB cached below", off.0),
            patch: format!("{:.0} MiB; randwrite {many:.2}x, {one:.2}x", on.0),
            ours: "the same, by request: cached, uncached or direct".into(),
            kernel: kernel.map_or("-".into(), |m| {
                let (below, above) = (m.cached / MIB, m.resident / MIB);
                format!("loop, buffered: {below} + {above} MiB in its cgroup")
            }),
        });
        report.plots.push(Plot {
            behaviour: "loop",
            title: "rate with direct-io on over off".into(),
            unit: "ratio".into(),
            series: cells.iter().map(|(name, ratio)| (name.clone(), vec![*ratio])).collect(),
            ..Plot::default()
        });
        report.plots.push(Plot {
            behaviour: "loop",
            title: "memory used after a stream through the whole image".into(),
            unit: "MiB".into(),
            series: vec![("on".into(), vec![on.1]), ("off".into(), vec![off.1])],
            ..Plot::default()
        });
    }
}
