//! Uncached requests on a volume: random reads, and random and sequential writes of a file many
//! times the size of the cache. They are compared with O_DIRECT and RWF_DONTCACHE on the host's
//! file system, and with a raw image behind Forebay.
//!
//! Invariants: V1 a slice of writes ends when they are synced; latencies are of the calls alone. V2
//! nothing of the files is cached at the start of a slice; Forebay's variants have nothing cached
//! after it either.

use crate::harness::alternate::{Outcome, Plan, Turn, Variant, alternate};
use crate::harness::backing::{BackedImage, Backing};
use crate::harness::image::{Image, drop_file_cache};
use crate::harness::load::{Load, Pattern, Slice, Target, run as run_slice};
use crate::harness::options::Options;
use crate::report::model::{Good, Report};
use crate::rivals::kernel::KernelFile;
use crate::rivals::ours::{Flagged, Ours};
use crate::rivals::volume::{OurVolume, VolumeFile, VolumeSpec};
use forebay_base::units::{KIB, MIB, format_size};
use forebay_base::{Error, IoFlags, Result};
use rustix::fs::OFlags;
use std::time::{Duration, Instant};

const FILE: &str = "uncached";

/// One cell.
#[derive(Clone, Copy)]
struct Cell {
    name: &'static str,
    write: bool,
    block: u64,
    threads: usize,
    random: bool,
}

const CELLS: [Cell; 4] = [
    Cell { name: "randread_volume", write: false, block: 4 * KIB, threads: 16, random: true },
    Cell { name: "randwrite_volume", write: true, block: 4 * KIB, threads: 1, random: true },
    Cell { name: "write64k_volume", write: true, block: 64 * KIB, threads: 4, random: true },
    Cell { name: "seqwrite_volume", write: true, block: 128 * KIB, threads: 1, random: false },
];

/// A file that can be synced and whose cached data can be dropped.
trait Passing: Target + Sync {
    fn sync(&self) -> Result<()>;
}

impl Passing for VolumeFile {
    fn sync(&self) -> Result<()> {
        self.sync_data()
    }
}

impl Passing for Flagged {
    fn sync(&self) -> Result<()> {
        self.file.sync_data()
    }
}

impl Passing for KernelFile {
    fn sync(&self) -> Result<()> {
        self.file.sync_data().map_err(|e| Error::from_io("fdatasync", e))
    }
}

/// A volume with one file, of which nothing is cached.
struct OnVolume {
    file: VolumeFile,
    volume: OurVolume,
    _image: BackedImage,
}

impl OnVolume {
    fn new(options: &Options, size: u64, budget: u64, sums: bool) -> Result<Self> {
        let bytes = size + if options.quick { 192 * MIB } else { 6144 * MIB };
        let label = format!("uncached-volume-{sums}");
        let image =
            BackedImage::create(&options.dir, &label, bytes, Backing::Sparse, options.keep)?;
        let mut spec = VolumeSpec::new(&options.aio, bytes, budget)?;
        spec.sums = sums;
        let volume = OurVolume::create(image.path(), &spec)?;
        let (file, chunk) = (volume.file(FILE)?, vec![0x42; MIB as usize]);
        (0..size).step_by(chunk.len()).try_for_each(|at| file.write(&chunk, at))?;
        drop(file);
        let volume = volume.reopen()?;
        let file = volume.file(FILE)?.with(IoFlags::UNCACHED);
        Ok(Self { file, volume, _image: image })
    }

    /// Bytes of frames in use, after read-ahead of ended streams is complete; waits two seconds at
    /// most.
    fn resident_bytes(&self) -> u64 {
        let used = || {
            let stats = self.volume.cache.stats();
            (stats.frames_total - stats.frames_free) * 4096
        };
        let deadline = Instant::now() + Duration::from_secs(2);
        while used() > 0 && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        used()
    }
}

/// Runs the part.
pub fn run(options: &Options, budget: u64, report: &mut Report) -> Result<()> {
    let size = options.size_or(48 * MIB, 1536 * MIB);
    let image = Image::create(&options.dir, "uncached-raw", size, options.keep)?;
    let host = Image::create(&options.dir, "uncached-host", size, options.keep)?;
    let summed = OnVolume::new(options, size, budget, true)?;
    let plain = OnVolume::new(options, size, budget, false)?;
    let raw = Ours::open(options, image.path(), budget)?;
    let raw_file = raw.with(IoFlags::UNCACHED);
    let direct = KernelFile::new(host.open(OFlags::DIRECT)?);
    let dontcache = KernelFile::dontcache(host.open(OFlags::empty())?);
    if let Err(e) = &dontcache {
        report.left_out("dontcache, compared with the volume", e);
    }
    let mut grown = 0;
    for cell in CELLS {
        let one = |target: &dyn Passing, turn: &Turn| slice(target, &cell, options, size, turn);
        let mut variants = vec![
            Variant::new("direct", |turn| one(&direct, turn)),
            Variant::new("ours", |turn| one(&raw_file, turn)),
            Variant::new("volume", |turn| one(&summed.file, turn)),
            Variant::new("volume-nosums", |turn| one(&plain.file, turn)),
        ];
        if let Ok(target) = &dontcache {
            variants.push(Variant::new("dontcache", |turn| {
                let slice = one(target, turn)?;
                drop_file_cache(&target.file).map_err(|e| Error::from_io("drop cache", e))?;
                Ok(slice)
            }));
        }
        let outcome = alternate(&mut variants, &plan(options))?;
        drop(variants);
        outcome.add_rows(report, cell.name);
        add(&outcome, &cell, report);
        grown = grown.max(summed.resident_bytes()).max(plain.resident_bytes());
    }
    let name = "volume_resident_growth_bytes";
    report.ratio_with_bar(name, grown as f64, Good::AtMost, 0.0);
    report.note(format!(
        "volume: a file of {}, cache of {}; slices of writes end when synced",
        format_size(size),
        format_size(budget)
    ));
    Ok(())
}

fn plan(options: &Options) -> Plan {
    Plan {
        cycles: if options.quick { 1 } else { 2 },
        gate: Some("direct"),
        repeats_max: if options.quick { 0 } else { 2 },
        ..Plan::simple(options, options.rounds_or(1, 5), options.millis(50, 400))
    }
}

fn slice(
    target: &dyn Passing,
    cell: &Cell,
    options: &Options,
    size: u64,
    turn: &Turn,
) -> Result<Slice> {
    let most = if options.quick { 4 * MIB } else { 256 * MIB };
    let load = Load {
        write: cell.write,
        pattern: if cell.random { Pattern::Random } else { Pattern::Sequential },
        threads: cell.threads,
        block: cell.block as usize,
        start: 0,
        len: if cell.random { size } else { size.min(most) },
        time: if cell.random { turn.time } else { Duration::from_secs(60) },
        seed: turn.seed << 20,
        sample_every: 1,
    };
    let start = Instant::now();
    let mut slice = run_slice(&Borrowed(target), &load)?;
    if cell.write {
        target.sync()?;
        slice.seconds = start.elapsed().as_secs_f64();
    }
    Ok(slice)
}

struct Borrowed<'a>(&'a dyn Passing);

impl Target for Borrowed<'_> {
    fn read(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.0.read(buf, offset)
    }

    fn write(&self, buf: &[u8], offset: u64) -> Result<()> {
        self.0.write(buf, offset)
    }
}

fn add(outcome: &Outcome, cell: &Cell, report: &mut Report) {
    let name = cell.name;
    let (good, bar) = match (cell.write, cell.random) {
        (false, _) => (Good::AtLeast, 0.95),
        (true, _) => (Good::AtLeast, 1.0),
    };
    let ratio = outcome.ratio("volume", "dontcache");
    report.ratio_with_bar(&format!("{name}_vs_dontcache"), ratio, good, bar);
    for (suffix, other) in [("direct", "direct"), ("raw", "ours"), ("nosums", "volume-nosums")] {
        report.ratio(&format!("{name}_vs_{suffix}"), outcome.ratio("volume", other));
    }
    let order = if cell.random { "random" } else { "sequential" };
    let what = if cell.write { "writes" } else { "reads" };
    let cell = format!("a volume, {order} {} KiB {what}", cell.block / KIB);
    let rivals = [
        ("direct", "O_DIRECT"),
        ("dontcache", "RWF_DONTCACHE without a cgroup"),
        ("ours", "a raw image"),
    ];
    outcome.compare(report, &cell, "volume", &rivals);
}
