//! Three command lines of the kernel patches on the real disk: dd, fio with one job, fio with
//! eight.

use super::drive::{self, Drive};
use super::figures::{Found, LARGE, SMALL, Tally, WRITE, exactly};
use super::subject::{Bare, Buffered, Cached, Subject};
use super::volume::{OnVolume, add_synced};
use crate::harness::alternate::{Outcome, Plan, Turn, Variant, alternate};
use crate::harness::backing::Backing;
use crate::harness::image::Image;
use crate::harness::load::Slice;
use crate::harness::machine::{device_stat, sectors_written};
use crate::harness::options::Options;
use crate::report::model::{Good, Report, median};
use crate::rivals::loopdev::{FsKind, LoopFs, Making};
use forebay::DirtyTracking;
use forebay_base::Result;
use forebay_base::units::{KIB, MIB};
use std::path::PathBuf;

const JOBS: usize = 8;
/// Writes of one `dd`, as `count=16` says.
const DD_COUNT: u64 = 16;

/// Runs a slice, and adds the bytes that the device wrote during it to the tally.
fn counted_slice(tally: &Tally, subject: &dyn Subject, drive: &Drive) -> Result<Slice> {
    let before = subject.device_bytes()?;
    let slice = drive::run(subject, drive)?;
    tally.add(slice.bytes, subject.device_bytes()? - before);
    Ok(slice)
}

/// All subjects of a part, each with its name and its tally.
#[derive(Default)]
struct Field<'a> {
    subjects: Vec<(&'static str, Box<dyn Subject + 'a>, Tally)>,
}

impl<'a> Field<'a> {
    fn add(&mut self, name: &'static str, subject: impl Subject + 'a) {
        self.subjects.push((name, Box::new(subject), Tally::default()));
    }

    /// Alternates all subjects; adds rows and notes.
    fn run(&self, options: &Options, report: &mut Report, part: &Part) -> Result<Outcome> {
        let mut variants = Vec::new();
        for (name, subject, tally) in &self.subjects {
            variants.push(Variant::new(name, move |turn: &Turn| {
                let (time, seed) = (turn.time, turn.seed);
                counted_slice(
                    tally,
                    &**subject,
                    &Drive { jobs: part.jobs, size: part.size, time, seed },
                )
            }));
        }
        let outcome = alternate(&mut variants, &part.plan(options))?;
        drop(variants);
        outcome.add_rows(report, part.prefix);
        let metric = format!("{}_written_per_byte_changed", part.prefix);
        for (name, _, tally) in &self.subjects {
            report.row(name, &metric, "x", &[tally.amplification()]);
        }
        outcome.add_notes(report, part.prefix, "direct-4k");
        Ok(outcome)
    }

    fn tally(&self, name: &str) -> &Tally {
        let found = self.subjects.iter().find(|s| s.0 == name);
        &found.expect("a variant that always takes part").2
    }
}

struct Part {
    prefix: &'static str,
    jobs: usize,
    size: u64,
    /// Time of each variant in a cycle, milliseconds, without `--quick`.
    millis: u64,
}

impl Part {
    fn plan(&self, options: &Options) -> Plan {
        Plan {
            cycles: if options.quick { 1 } else { 3 },
            // Short turns, so that a stall of the disk affects all variants.
            passes: if options.quick { 1 } else { 5 },
            gate: Some("direct-4k"),
            repeats_max: if options.quick { 0 } else { 2 },
            ..Plan::simple(options, options.rounds_or(1, 5), options.millis(40, self.millis))
        }
    }
}

fn images(options: &Options, name: &str, count: usize, size: u64) -> Result<Vec<Image>> {
    let make = |i| Image::create(&options.dir, &format!("{name}{i}"), size, options.keep);
    (0..count).map(make).collect()
}

fn paths(images: &[Image]) -> Vec<PathBuf> {
    images.iter().map(|image| image.path().to_path_buf()).collect()
}

/// Loop devices with file systems for `bytes` bytes of files, as far as this host has them.
fn loops(options: &Options, report: &mut Report, bytes: u64) -> Vec<(&'static str, LoopFs)> {
    let kinds = [("xfs-on-loop", FsKind::Xfs), ("ext4-on-loop", FsKind::Ext4)];
    let (mut made, best) = (Vec::new(), Making::best(Backing::Written));
    for (name, kind) in kinds {
        match LoopFs::with(&options.dir, "dirty", bytes + 352 * MIB, kind, &best) {
            Ok(fs) => made.push((name, fs)),
            Err(e) => report.left_out(name, e),
        }
    }
    made
}

/// The first example of the kernel patch, `dd bs=4k count=16 oflag=sync` from the start of a file,
/// repeated at uncached offsets.
pub fn dd(options: &Options, report: &mut Report, found: &mut Found) -> Result<()> {
    let times: u64 = if options.quick { 4 } else { 32 };
    let images = images(options, "dirty-dd", 1, times * LARGE)?;
    let buf = vec![0x5a; WRITE as usize];
    let all = DD_COUNT * WRITE;
    let modes = [("ours-block", DirtyTracking::Block), ("ours-folio", DirtyTracking::Folio)];
    for (folio, size) in [(SMALL, "64k"), (LARGE, "2m")] {
        for (name, tracking) in modes {
            let ours = Cached::open(options, &images, folio, tracking)?;
            let tally = Tally::default();
            let start = std::time::Instant::now();
            for i in 0..times {
                let before = ours.device_bytes()?;
                ours.write_in_order(&buf, i * LARGE, DD_COUNT)?;
                tally.add(all, ours.device_bytes()? - before);
            }
            let rate = (times * DD_COUNT) as f64 / start.elapsed().as_secs_f64();
            let variant = format!("{name}-{size}");
            report.row(&variant, "dd_rate", "1/s", &[rate]);
            report.row(&variant, "dd_written_per_byte_changed", "x", &[tally.amplification()]);
            if folio == SMALL {
                match tracking {
                    DirtyTracking::Block => {
                        exactly(report, "write_amplification_dd", tally.amplification(), 1.0);
                    }
                    DirtyTracking::Folio => {
                        let name = "write_amplification_dd_folio_mode";
                        exactly(report, name, tally.amplification(), 8.5);
                    }
                }
            }
            found.dd.push((variant, tally.amplification()));
        }
    }
    for (name, fs) in loops(options, report, 64 * MIB) {
        let tally = Tally::default();
        let stat = device_stat(&fs.path())?;
        for i in 0..times.min(16) {
            let path = fs.path().join(format!("dd{i}"));
            let before = sectors_written(&stat)?;
            dd_kernel(&path, &buf)?;
            tally.add(all, sectors_written(&stat)? - before);
        }
        report.row(name, "dd_written_per_byte_changed", "x", &[tally.amplification()]);
        found.dd.push((name.into(), tally.amplification()));
    }
    Ok(())
}

fn dd_kernel(path: &std::path::Path, buf: &[u8]) -> Result<()> {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    let flags = rustix::fs::OFlags::SYNC.bits() as i32;
    let mut options = std::fs::File::options();
    let fail = |e| forebay_base::Error::from_io("dd", e).with_path(path);
    let file = options.create(true).truncate(true).write(true).custom_flags(flags).open(path);
    let mut file = file.map_err(fail)?;
    (0..DD_COUNT).try_for_each(|_| file.write_all(buf)).map_err(fail)
}

/// `fio --rw=randwrite --bs=4k --fsync=1` on a completely cached file of 128 MiB.
pub fn fio(options: &Options, report: &mut Report, found: &mut Found) -> Result<()> {
    let size = options.size_or(8 * MIB, 128 * MIB);
    let image = |name| images(options, name, 1, size);
    let (bare, small, large) = (image("dirty-bare")?, image("dirty-64k")?, image("dirty-2m")?);
    let (folio, folio_large) = (image("dirty-64k-folio")?, image("dirty-2m-folio")?);
    let host = image("dirty-ext4")?;
    let fs = loops(options, report, size);
    let mut field = Field::default();
    field.add("direct-4k", Bare::open(&bare, WRITE)?);
    field.add("direct-64k", Bare::open(&bare, SMALL)?);
    add_ours(&mut field, options, "ours-block-64k", &small, SMALL, DirtyTracking::Block)?;
    add_ours(&mut field, options, "ours-folio-64k", &folio, SMALL, DirtyTracking::Folio)?;
    add_ours(&mut field, options, "ours-block-2m", &large, LARGE, DirtyTracking::Block)?;
    add_ours(&mut field, options, "ours-folio-2m", &folio_large, LARGE, DirtyTracking::Folio)?;
    field.add("ext4", Buffered::open(&paths(&host))?);
    let on_loop = add_loops(&mut field, &fs, 1, size)?;
    let block = DirtyTracking::Block;
    let of = |label, tracking, sums| OnVolume::new(options, label, (1, size), tracking, sums);
    field.add("volume", of("dirty-volume", block, true)?);
    field.add("volume-nosums", of("dirty-volume-nosums", block, false)?);
    field.add("volume-folio-64k", of("dirty-volume-folio", DirtyTracking::Folio, true)?);
    let part = Part { prefix: "fsync", jobs: 1, size, millis: 450 };
    let outcome = field.run(options, report, &part)?;
    for (name, _, tally) in &field.subjects {
        let rates: Vec<f64> = outcome.per_round(name).iter().map(Slice::rate).collect();
        found.note(name, &rates, tally);
    }
    let raw = field.tally("ours-block-64k").amplification();
    exactly(report, "write_amplification_raw", raw, 1.0);
    let folio = field.tally("ours-folio-64k").amplification();
    exactly(report, "write_amplification_folio_mode", folio, (SMALL / WRITE) as f64);
    add_synced(report, field.tally("volume"), true);
    add_synced(report, field.tally("volume-nosums"), false);
    let name = "write_amplification_volume_folio_mode";
    report.ratio(name, field.tally("volume-folio-64k").amplification());
    fio_ratios(&outcome, report);
    drop(field);
    drop(on_loop);
    Ok(())
}

/// Variants that are compared with Forebay's block tracking.
const OTHERS: [(&str, &str); 4] = [
    ("direct-4k", "O_DIRECT"),
    ("ext4", "kernel ext4"),
    ("xfs-on-loop", "kernel xfs on loop"),
    ("ext4-on-loop", "kernel ext4 on loop"),
];

fn fio_ratios(outcome: &Outcome, report: &mut Report) {
    outcome.compare(report, "1 job", "ours-block-64k", &OTHERS);
    let folio = |folio| [(folio, "written back by folio")];
    let small = "1 job, folios of 64 KiB (the patch's own case)";
    outcome.compare(report, small, "ours-block-64k", &folio("ours-folio-64k"));
    let large = "1 job, folios of 2 MiB";
    outcome.compare(report, large, "ours-block-2m", &folio("ours-folio-2m"));
    let of = |ours, other| outcome.ratio(ours, other);
    report.ratio("fsync_iops_vs_folio", of("ours-block-64k", "ours-folio-64k"));
    let ours = outcome.ratios("ours-block-64k", "ours-folio-64k");
    let bare = outcome.ratios("direct-4k", "direct-64k");
    let by_round: Vec<f64> = ours.iter().zip(&bare).map(|(o, b)| o / b).collect();
    report.ratio_with_bar("fsync_iops_vs_raw_ratio", median(&by_round), Good::AtLeast, 0.95);
    report.ratio("fsync_iops_vs_ext4", of("ours-block-64k", "ext4"));
    report.ratio("fsync_iops_vs_xfs", of("ours-block-64k", "xfs-on-loop"));
    outcome.compare(report, "1 job, on a volume", "volume", &OTHERS);
    outcome.compare(report, "1 job, on a volume", "volume", &folio("volume-folio-64k"));
    report.ratio("fsync_iops_volume_vs_folio", of("volume", "volume-folio-64k"));
    report.ratio("fsync_iops_volume_vs_ext4", of("volume", "ext4"));
}

fn add_ours(
    field: &mut Field<'_>,
    options: &Options,
    name: &'static str,
    images: &[Image],
    folio: u64,
    tracking: DirtyTracking,
) -> Result<()> {
    let ours = Cached::open(options, images, folio, tracking)?;
    ours.fill()?;
    field.add(name, ours);
    Ok(())
}

/// Adds files on each file system. They are removed, and thus closed, before the file system is
/// unmounted.
fn add_loops(
    field: &mut Field<'_>,
    fs: &[(&'static str, LoopFs)],
    count: usize,
    size: u64,
) -> Result<Vec<Image>> {
    let mut all = Vec::new();
    for (name, fs) in fs {
        let make = |i| Image::create(&fs.path(), &format!("file{i}"), size, false);
        let images = (0..count).map(make).collect::<Result<Vec<_>>>()?;
        field.add(name, Buffered::open(&paths(&images))?);
        all.extend(images);
    }
    Ok(all)
}

/// The example of the kernel's patch series: `numjobs=8 rw=randwrite bs=4k fdatasync=1`, one file
/// per job, completely cached, folios of 2 MiB.
pub fn jobs(options: &Options, report: &mut Report) -> Result<()> {
    let size = options.size_or(16 * MIB, 128 * MIB) / JOBS as u64;
    let size = size.max(LARGE);
    let image = |name| images(options, name, JOBS, size);
    let (bare, block, folio) = (image("dirty-a")?, image("dirty-b")?, image("dirty-c")?);
    let host = image("dirty-d")?;
    let fs = loops(options, report, JOBS as u64 * size);
    let mut field = Field::default();
    field.add("direct-4k", Bare::open(&bare, WRITE)?);
    add_ours(&mut field, options, "ours-block-2m", &block, LARGE, DirtyTracking::Block)?;
    add_ours(&mut field, options, "ours-folio-2m", &folio, LARGE, DirtyTracking::Folio)?;
    field.add("ext4", Buffered::open(&paths(&host))?);
    let on_loop = add_loops(&mut field, &fs, JOBS, size)?;
    let part = Part { prefix: "fdatasync8", jobs: JOBS, size, millis: 300 };
    let outcome = field.run(options, report, &part)?;
    let ratio = outcome.ratio("ours-block-2m", "ours-folio-2m");
    report.ratio_with_bar("fdatasync8_vs_folio_2m", ratio, Good::AtLeast, 5.0);
    outcome.compare(report, "8 jobs", "ours-block-2m", &OTHERS);
    let folio = [("ours-folio-2m", "written back by folio")];
    outcome.compare(report, "8 jobs, folios of 2 MiB", "ours-block-2m", &folio);
    let title = format!("{JOBS} jobs, 4 KiB random writes, each synced, folios of 2 MiB");
    report.plots.push(outcome.rates_plot("dirty", title));
    report.note(format!("files: {JOBS} of {} KiB in the part with {JOBS} jobs", size / KIB));
    drop(field);
    drop(on_loop);
    Ok(())
}
