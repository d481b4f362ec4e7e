//! Common to all parts: sizes, the tally of bytes, and the data of the summary line and the plots.

use crate::report::model::{Good, Plot, Report, Summary, median, number};
use forebay_base::units::{KIB, MIB};
use std::cell::Cell;

/// Folio size of the machines on which the kernel patch for sub-page dirty tracking was developed.
pub const SMALL: u64 = 64 * KIB;
/// Largest folio size.
pub const LARGE: u64 = 2 * MIB;
/// Size of a write, bytes.
pub const WRITE: u64 = 4 * KIB;

/// Bytes changed and bytes that the device was asked to write.
#[derive(Default)]
pub struct Tally {
    changed: Cell<u64>,
    written: Cell<u64>,
}

impl Tally {
    /// Bytes written per byte changed.
    pub fn amplification(&self) -> f64 {
        self.written.get() as f64 / self.changed.get() as f64
    }

    /// Adds to both counts.
    pub fn add(&self, changed: u64, written: u64) {
        self.changed.set(self.changed.get() + changed);
        self.written.set(self.written.get() + written);
    }
}

/// Data of the summary line and the plots: per variant, operations per second and bytes written per
/// byte changed.
#[derive(Default)]
pub struct Found {
    /// Results of the part `fio`.
    pub fio: Vec<(&'static str, f64, f64)>,
    /// Results of the part `dd`.
    pub dd: Vec<(String, f64)>,
}

impl Found {
    /// Adds a variant's results of the part `fio`.
    pub fn note(&mut self, name: &'static str, rates: &[f64], tally: &Tally) {
        self.fio.push((name, median(rates), tally.amplification()));
    }

    fn text(&self, name: &str) -> String {
        match self.fio.iter().find(|f| f.0 == name) {
            Some((_, rate, times)) => format!("{} IOPS, {}x", number(*rate), number(*times)),
            None => "-".into(),
        }
    }

    /// Adds the summary line and the plots.
    pub fn add_to(self, report: &mut Report) {
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
                ..Plot::default()
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
                ..Plot::default()
            });
        }
    }
}

/// Adds a ratio whose bar is an exact value.
pub fn exactly(report: &mut Report, name: &str, value: f64, bar: f64) {
    report.ratio_with_bar(name, value, Good::Exactly, bar);
}
