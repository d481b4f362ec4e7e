//! `dirty`: sub-page dirty tracking. What a small change costs that is made durable at once: bytes that
//! reach the device for each byte changed, and synced writes per second.
//!
//! Reading order: `subject` (who writes and syncs) with `counted`,
//! `drive` (one slice), then the parts: the `dd` line, the `fio` line, the 8 jobs, the delay
//! device, and fio through NBD.
//!
//! Invariants: Y1 bytes are counted where they leave for the device: ours by a device around the
//! image, bare O_DIRECT by the kernel's count of our process, a file system's (metadata and journal
//! included) by the kernel's count of the block device below. Y2 in the fio parts all of a file is
//! cached before the first slice, for every variant that caches. Y3 an operation is a write and
//! the sync that makes it durable; its latency is that of both.

mod counted;
mod delay;
mod drive;
mod lines;
mod nbd;
mod subject;

use crate::options::Options;
use crate::report::{Good, Plot, Report, Summary, median, number};
use forebay_base::Result;
use forebay_base::units::{KIB, MIB};
use lines::Tally;

/// Folios of the machines that the patch was made on.
const SMALL: u64 = 64 * KIB;
/// The largest there are.
const LARGE: u64 = 2 * MIB;
/// Bytes of a write.
const WRITE: u64 = 4 * KIB;

/// Runs all parts, or the one that is asked for.
pub fn run(options: &Options) -> Result<Report> {
    let mut report = Report::default();
    let mut found = Found::default();
    if options.wants("dd") {
        lines::dd(options, &mut report, &mut found)?;
    }
    if options.wants("fio") {
        lines::fio(options, &mut report, &mut found)?;
    }
    if options.wants("jobs") {
        lines::jobs(options, &mut report)?;
    }
    if options.wants("delay") {
        delay::run(options, &mut report)?;
    }
    if options.wants("nbd") {
        nbd::run(options, &mut report)?;
    }
    found.add_to(&mut report);
    Ok(report)
}

/// What the line and the pictures are made of: per variant operations per second and bytes written per
/// byte changed.
#[derive(Default)]
struct Found {
    fio: Vec<(&'static str, f64, f64)>,
    dd: Vec<(String, f64)>,
}

impl Found {
    fn note(&mut self, name: &'static str, rates: &[f64], tally: &Tally) {
        self.fio.push((name, median(rates), tally.amplification()));
    }

    fn text(&self, name: &str) -> String {
        match self.fio.iter().find(|f| f.0 == name) {
            Some((_, rate, times)) => format!("{} IOPS, {}x", number(*rate), number(*times)),
            None => "-".into(),
        }
    }

    fn add_to(self, report: &mut Report) {
        if !self.fio.is_empty() {
            report.summaries.push(Summary {
                behaviour: "dirty",
                promise: "4 KiB changed is 4 KiB written, whatever the folio".into(),
                baseline: self.text("ours-folio-64k"),
                patch: format!("{} (a raw image: as ours)", self.text("ours-block-64k")),
                ours: self.text("ours-block-64k"),
                kernel: format!("ext4 {}; xfs {}", self.text("ext4"), self.text("xfs-on-loop")),
            });
            let plot = |title: &str, unit: &str, value: fn(&(&str, f64, f64)) -> f64| Plot {
                behaviour: "dirty",
                title: title.into(),
                unit: unit.into(),
                series: self.fio.iter().map(|f| (f.0.to_string(), vec![value(f)])).collect(),
                x: String::new(),
            };
            let rates = plot("4 KiB random writes, each synced", "operations/s", |f| f.1);
            let bytes = plot("the same: bytes written per byte changed", "x", |f| f.2);
            report.plots.extend([rates, bytes]);
        }
        if !self.dd.is_empty() {
            report.plots.push(Plot {
                behaviour: "dirty",
                title: "dd bs=4k count=16 oflag=sync: bytes written per byte changed".into(),
                unit: "x".into(),
                series: self.dd.into_iter().map(|(name, v)| (name, vec![v])).collect(),
                x: String::new(),
            });
        }
    }
}

/// A bar that a figure has to meet on the point.
fn exactly(report: &mut Report, name: &str, value: f64, bar: f64) {
    report.ratio_with_bar(name, value, Good::Exactly, bar);
}
