//! Results of a bench: rows, ratios, bars, and parts that were not run. They are printed as a table
//! and written as one JSON object (`bench`, `machine`, `rows`, `ratios`, `bars`, `notes`,
//! `not_run`, `failed`, `summaries`, `plots`). The page of [`crate::report::html`] is made from
//! such objects alone.

use crate::report::lack::is_lack;
use forebay_base::{Error, Result};
use serde_json::{Value, json};
use std::fmt::Write;
use std::path::Path;

/// Which side of a bar is good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Good {
    /// The value must reach the bar.
    AtLeast,
    /// The value must not exceed the bar.
    AtMost,
    /// The value must stay below the bar.
    Below,
    /// The value must equal the bar, apart from rounding.
    Exactly,
}

impl Good {
    fn holds(self, value: f64, bar: f64) -> bool {
        match self {
            Self::AtLeast => value >= bar,
            Self::AtMost => value <= bar,
            Self::Below => value < bar,
            Self::Exactly => (value - bar).abs() < 1e-9,
        }
    }

    fn sign(self) -> &'static str {
        match self {
            Self::AtLeast => ">=",
            Self::AtMost => "<=",
            Self::Below => "<",
            Self::Exactly => "==",
        }
    }
}

#[derive(Clone, Debug)]
struct Row {
    variant: String,
    metric: String,
    unit: &'static str,
    values: Vec<f64>,
}

#[derive(Clone, Debug)]
struct Bar {
    name: String,
    value: f64,
    bar: f64,
    good: Good,
}

impl Bar {
    fn met(&self) -> Option<bool> {
        self.value.is_finite().then(|| self.good.holds(self.value, self.bar))
    }
}

/// Forebay over one rival in one cell of a table.
#[derive(Clone, Debug)]
struct Cell {
    rival: String,
    cell: String,
    value: f64,
}

/// One behaviour on one line: its promise, and its figure by strategy. Figures are texts with their
/// unit, "-" if there is none.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Name of the bench.
    pub behaviour: &'static str,
    /// The promise, in a few words.
    pub promise: String,
    /// Figure with the strategy of the kernel before its patch.
    pub baseline: String,
    /// Figure with the strategy of the kernel patch.
    pub patch: String,
    /// Figure with Forebay's strategy.
    pub ours: String,
    /// Figure of the kernel of this machine.
    pub kernel: String,
}

/// A plot for the page: bars (one value each) or lines (a value per x).
#[derive(Clone, Debug, Default)]
pub struct Plot {
    /// Name of the bench that it belongs to.
    pub behaviour: &'static str,
    /// The title of the plot.
    pub title: String,
    /// Unit of the values.
    pub unit: String,
    /// Label and values of each series; one value makes a bar, more make a line.
    pub series: Vec<(String, Vec<f64>)>,
    /// Unit of the x axis of lines.
    pub x: String,
    /// Marks on the x axis of lines: label and position.
    pub marks: Vec<(String, f64)>,
}

/// Results of one bench, or of several under the name `all`.
#[derive(Clone, Debug, Default)]
pub struct Report {
    rows: Vec<Row>,
    ratios: Vec<(String, f64)>,
    bars: Vec<Bar>,
    notes: Vec<String>,
    not_run: Vec<(String, String)>,
    failed: Vec<(String, String)>,
    cells: Vec<Cell>,
    /// A quick run shows figures without judging them.
    pub quick: bool,
    /// A line for each behaviour.
    pub summaries: Vec<Summary>,
    /// Plots for the page.
    pub plots: Vec<Plot>,
}

/// Median of the values; NaN if there are none.
pub fn median(values: &[f64]) -> f64 {
    quantile(values, 0.5)
}

/// The `q` quantile (0..=1), interpolated linearly; NaN if there are no values.
pub fn quantile(values: &[f64], q: f64) -> f64 {
    let mut sorted: Vec<f64> = values.iter().copied().filter(|v| v.is_finite()).collect();
    if sorted.is_empty() {
        return f64::NAN;
    }
    sorted.sort_by(f64::total_cmp);
    let at = (sorted.len() - 1) as f64 * q;
    let (low, high) = (sorted[at.floor() as usize], sorted[at.ceil() as usize]);
    low + (high - low) * at.fract()
}

impl Report {
    /// An empty report.
    pub fn new(quick: bool) -> Self {
        Self { quick, ..Self::default() }
    }

    /// Adds a row: one metric of one variant, with a value per round.
    pub fn row(&mut self, variant: &str, metric: &str, unit: &'static str, values: &[f64]) {
        if values.iter().any(|v| v.is_finite()) {
            let (variant, metric) = (variant.to_string(), metric.to_string());
            self.rows.push(Row { variant, metric, unit, values: values.to_vec() });
        }
    }

    /// Adds a ratio without a bar.
    pub fn ratio(&mut self, name: &str, value: f64) {
        self.ratios.push((name.to_string(), value));
    }

    /// Adds a ratio with its bar.
    pub fn ratio_with_bar(&mut self, name: &str, value: f64, good: Good, bar: f64) {
        self.ratio(name, value);
        self.bars.push(Bar { name: name.to_string(), value, bar, good });
    }

    /// Adds a ratio with a bar by which this run cannot be judged; the caller adds a note with the
    /// reason.
    pub fn ratio_unjudged(&mut self, name: &str, value: f64, good: Good, bar: f64) {
        self.ratio(name, value);
        self.bars.push(Bar { name: name.to_string(), value: f64::NAN, bar, good });
    }

    /// Adds a ratio of Forebay to a rival in one cell; more is better. The best and the worst cell
    /// of each rival are shown together.
    pub fn cell(&mut self, rival: &str, cell: &str, value: f64) {
        self.cells.push(Cell { rival: rival.to_string(), cell: cell.to_string(), value });
    }

    fn cells(&self) -> Vec<Value> {
        let cells = self.cells.iter();
        let of = |c: &Cell| json!({ "rival": c.rival, "cell": c.cell, "value": c.value });
        cells.map(of).collect()
    }

    /// Adds a remark that a reader needs to judge the figures.
    pub fn note(&mut self, text: impl Into<String>) {
        self.notes.push(text.into());
    }

    /// Reports a part that was not run, and why.
    pub fn not_run(&mut self, what: &str, why: impl std::fmt::Display) {
        self.not_run.push((what.to_string(), why.to_string()));
    }

    /// Reports a part that ended with an error: as not run if the machine lacks something,
    /// otherwise as failed.
    pub fn left_out(&mut self, what: &str, e: impl std::borrow::Borrow<Error>) {
        let e = e.borrow();
        if is_lack(e) { self.not_run(what, e) } else { self.fail(what, e) }
    }

    /// Reports a failure: the bench has failed.
    pub fn fail(&mut self, what: &str, why: impl std::fmt::Display) {
        self.failed.push((what.to_string(), why.to_string()));
    }

    /// Number of failures.
    pub fn failed(&self) -> usize {
        self.failed.len()
    }

    /// Adds everything from another report.
    pub fn absorb(&mut self, other: Report) {
        self.rows.extend(other.rows);
        self.ratios.extend(other.ratios);
        self.bars.extend(other.bars);
        self.notes.extend(other.notes);
        self.not_run.extend(other.not_run);
        self.failed.extend(other.failed);
        self.cells.extend(other.cells);
        self.summaries.extend(other.summaries);
        self.plots.extend(other.plots);
    }

    /// Number of missed bars. A ratio whose variants did not run is not a miss.
    pub fn missed(&self) -> usize {
        self.bars.iter().filter(|bar| self.met(bar) == Some(false)).count()
    }

    /// Number of bars that were not judged: a variant did not run, or the run was a quick one.
    pub fn unjudged(&self) -> usize {
        self.bars.iter().filter(|bar| self.met(bar).is_none()).count()
    }

    fn met(&self, bar: &Bar) -> Option<bool> {
        bar.met().filter(|_| !self.quick)
    }

    /// The results as a table for readers.
    pub fn table(&self) -> String {
        let mut out = String::new();
        let wide = |f: fn(&Row) -> usize| self.rows.iter().map(f).max().unwrap_or(7).max(7);
        let (variant, metric) = (wide(|r| r.variant.len()), wide(|r| r.metric.len()));
        let _ = writeln!(
            out,
            "{:variant$}  {:metric$}  {:>12} {:>12} {:>12}  {:7} runs",
            "variant", "metric", "median", "min", "max", "unit"
        );
        for row in &self.rows {
            let (low, mid, high) = spread(&row.values);
            let (low, mid, high) = (number(low), number(mid), number(high));
            let _ = writeln!(
                out,
                "{:variant$}  {:metric$}  {mid:>12} {low:>12} {high:>12}  {:7} {}",
                row.variant,
                row.metric,
                row.unit,
                row.values.len()
            );
        }
        for (name, value) in &self.ratios {
            let (shown, verdict) = match self.bars.iter().find(|bar| bar.name == *name) {
                Some(bar) => {
                    (number_with_bar(*value, bar.bar), verdict(bar, value.is_finite(), self.quick))
                }
                None => (number(*value), String::new()),
            };
            let _ = writeln!(out, "ratio  {name:42} {shown:>10}{verdict}");
        }
        for Extremes { rival, count, ahead, worst, best } in
            extremes(&json!({ "cells": self.cells() }))
        {
            let (low, high) = (number(worst.1), number(best.1));
            let _ = writeln!(
                out,
                "cells  over {rival}, ahead in {ahead} of {count}: worst {low} ({}), best {high} ({})",
                worst.0, best.0
            );
        }
        self.notes.iter().for_each(|note| out.push_str(&format!("note   {note}\n")));
        for (what, why) in &self.not_run {
            let _ = writeln!(out, "not run  {what}: {why}");
        }
        for (what, why) in &self.failed {
            let _ = writeln!(out, "FAILED  {what}: {why}");
        }
        out
    }

    /// The results as a JSON object.
    pub fn to_json(&self, bench: &str, machine: Value) -> Value {
        let rows = self.rows.iter().map(|row| {
            let (low, mid, high) = spread(&row.values);
            json!({ "variant": row.variant, "metric": row.metric, "unit": row.unit,
                "median": mid, "min": low, "max": high, "runs": row.values.len() })
        });
        let ratios =
            self.ratios.iter().map(|(name, value)| json!({ "name": name, "value": value }));
        let bars = self.bars.iter().map(|bar| {
            json!({ "name": bar.name, "value": bar.value, "bar": bar.bar, "good": bar.good.sign(),
                "met": self.met(bar) })
        });
        let said = |list: &[(String, String)]| -> Vec<Value> {
            list.iter().map(|(what, why)| json!({ "what": what, "why": why })).collect()
        };
        json!({
            "bench": bench,
            "machine": machine,
            "rows": rows.collect::<Vec<_>>(),
            "ratios": ratios.collect::<Vec<_>>(),
            "bars": bars.collect::<Vec<_>>(),
            "cells": self.cells(),
            "notes": self.notes,
            "not_run": said(&self.not_run),
            "failed": said(&self.failed),
            "summaries": self.summaries.iter().map(Summary::to_json).collect::<Vec<_>>(),
            "plots": self.plots.iter().map(Plot::to_json).collect::<Vec<_>>(),
        })
    }
}

impl Summary {
    fn to_json(&self) -> Value {
        json!({ "behaviour": self.behaviour, "promise": self.promise, "baseline": self.baseline,
            "patch": self.patch, "ours": self.ours, "kernel": self.kernel })
    }
}

impl Plot {
    fn to_json(&self) -> Value {
        let series = self.series.iter();
        let series = series.map(|(label, values)| json!({ "label": label, "values": values }));
        let marks = self.marks.iter().map(|(word, at)| json!({ "word": word, "at": at }));
        json!({ "behaviour": self.behaviour, "title": self.title, "unit": self.unit, "x": self.x,
            "series": series.collect::<Vec<_>>(), "marks": marks.collect::<Vec<_>>() })
    }
}

/// Describes the machine in one line, for the head of the table.
pub fn machine_line(machine: &Value) -> String {
    let text = |key: &str| machine[key].as_str().unwrap_or("?").to_string();
    format!(
        "{}, {} CPUs, {} GiB, Linux {}, memory cgroups {}, {} on {}, {} build",
        text("cpu"),
        machine["cpus"],
        machine["memory_bytes"].as_u64().unwrap_or(0) >> 30,
        text("kernel"),
        text("memory_cgroups"),
        text("file_system"),
        text("device"),
        text("build")
    )
}

/// Results against one rival: the number of cells, the worst and the best, each with its name.
#[derive(Clone, Debug, PartialEq)]
pub struct Extremes {
    /// Name of the rival.
    pub rival: String,
    /// Number of cells.
    pub count: usize,
    /// Number of cells in which Forebay is at least equal.
    pub ahead: usize,
    /// Name and value of Forebay's worst cell.
    pub worst: (String, f64),
    /// Name and value of Forebay's best cell.
    pub best: (String, f64),
}

/// The rivals in a bench's JSON object, in order, with their extreme cells.
pub fn extremes(found: &Value) -> Vec<Extremes> {
    let mut all: Vec<Extremes> = Vec::new();
    for cell in found["cells"].as_array().into_iter().flatten() {
        let text = |key: &str| cell[key].as_str().unwrap_or_default().to_string();
        let Some(value) = cell["value"].as_f64() else { continue };
        let (rival, this) = (text("rival"), (text("cell"), value));
        let Some(own) = all.iter_mut().find(|e| e.rival == rival) else {
            let ahead = usize::from(value >= 1.0);
            all.push(Extremes { rival, count: 1, ahead, worst: this.clone(), best: this });
            continue;
        };
        own.count += 1;
        own.ahead += usize::from(value >= 1.0);
        if value < own.worst.1 {
            own.worst = this;
        } else if value > own.best.1 {
            own.best = this;
        }
    }
    all
}

/// Writes a JSON object to a file.
pub fn write_json(path: &Path, json: &Value) -> Result<()> {
    let written = std::fs::write(path, format!("{json:#}\n"));
    written.map_err(|e| Error::from_io("write", e).with_path(path))
}

fn verdict(bar: &Bar, ran: bool, quick: bool) -> String {
    let met = match bar.met() {
        _ if ran && quick => "",
        None if ran => "not judged",
        Some(true) => "met",
        Some(false) => "MISS",
        None => "not run",
    };
    format!("   bar {} {}  {met}", bar.good.sign(), bar.bar).trim_end().to_string()
}

fn spread(values: &[f64]) -> (f64, f64, f64) {
    (quantile(values, 0.0), median(values), quantile(values, 1.0))
}

/// Formats a value for tables; `n/a` if it is not finite.
pub fn number(value: f64) -> String {
    match value.abs() {
        v if !v.is_finite() => "n/a".into(),
        v if v >= 1000.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.3}"),
    }
}

/// Formats a value next to its bar, with enough digits to show on which side of the bar it is. So
/// 0.9796 is never shown as the 0.98 that it missed.
pub fn number_with_bar(value: f64, bar: f64) -> String {
    let side = |shown: &str| shown.parse::<f64>().ok().and_then(|v| v.partial_cmp(&bar));
    let mut shown = number(value);
    for digits in 1..=9 {
        if !value.is_finite() || side(&shown) == value.partial_cmp(&bar) {
            break;
        }
        let more = format!("{value:.digits$}");
        shown = if more.len() > shown.len() { more } else { shown };
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missed_bar_is_reported() {
        let mut report = Report::default();
        report.row("ours", "read_ns", "ns", &[3.0, 1.0, 2.0]);
        report.ratio_with_bar("read_vs_kernel", 1.5, Good::AtLeast, 1.7);
        report.ratio_with_bar("hot_set_evicted_blocks", 0.0, Good::AtMost, 0.0);
        report.ratio_with_bar("not_a_number", f64::NAN, Good::Below, 1.0);
        report.not_run("nbd row", "no fio");
        assert_eq!((report.missed(), report.unjudged()), (1, 1));
        let table = report.table();
        assert!(table.contains("1.500   bar >= 1.7  MISS"), "{table}");
        assert!(table.contains("not run  nbd row: no fio"), "{table}");
        let json = report.to_json("hit", json!({}));
        assert_eq!(json["rows"][0]["median"], 2.0);
        assert_eq!(json["bars"][1]["met"], true);
        assert_eq!(json["ratios"][2]["value"], Value::Null);
    }

    #[test]
    fn narrow_miss_is_not_rounded_into_met() {
        assert_eq!(number_with_bar(0.9796, 0.98), "0.9796");
        assert_eq!(number_with_bar(0.97996, 0.98), "0.97996");
        assert_eq!(number_with_bar(0.98, 0.98), "0.980");
        assert_eq!(number_with_bar(0.977, 0.98), "0.977");
        assert_eq!(number_with_bar(1.00004, 1.0), "1.00004");
        assert_eq!(number_with_bar(19.96, 20.0), "19.96");
        assert_eq!(number_with_bar(f64::NAN, 1.0), "n/a");
    }

    #[test]
    fn quick_run_shows_figures_without_verdict() {
        let mut report = Report { quick: true, ..Report::default() };
        report.ratio_with_bar("read_vs_kernel", 1.5, Good::AtLeast, 1.7);
        assert_eq!((report.missed(), report.unjudged()), (0, 1));
        let table = report.table();
        assert!(table.contains("1.500   bar >= 1.7\n") && !table.contains("MISS"), "{table}");
        assert_eq!(report.to_json("hit", json!({}))["bars"][0]["met"], Value::Null);
    }

    #[test]
    fn table_shows_worst_and_best_cell() {
        let mut report = Report::default();
        for (cell, value) in [("reads", 1.5), ("writes", 0.5), ("both", 0.75), ("none", f64::NAN)] {
            report.cell("the kernel", cell, value);
        }
        let table = report.table();
        let line =
            "cells  over the kernel, ahead in 1 of 3: worst 0.500 (writes), best 1.500 (reads)";
        assert!(table.contains(line), "{table}");
        assert_eq!(report.to_json("hit", json!({}))["cells"][1]["cell"], "writes");
    }

    /// The story: a median of 57.05 was read back from a file as 57.04999.. The page showed 57.1
    /// when it was made directly, and 57.0 when it was made from the saved result.
    #[test]
    fn numbers_survive_json_unchanged() {
        let mut seed = 1;
        let draws = (0..20_000).map(|_| forebay_base::world::split_mix(&mut seed));
        let drawn = draws.map(|d| (d % 1_000_000) as f64 / 1e4 * 1.0000000000000002);
        for value in [57.05, 0.1 + 0.2].into_iter().chain(drawn) {
            let text = json!({ "value": value }).to_string();
            let back: Value = serde_json::from_str(&text).unwrap();
            assert_eq!(back["value"].as_f64().unwrap().to_bits(), value.to_bits(), "{text}");
        }
    }

    #[test]
    fn lines_and_pictures_are_in_the_json() {
        let mut report = Report::default();
        let series = vec![("ours".to_string(), vec![1.0, f64::NAN])];
        report.plots.push(Plot { behaviour: "hit", series, ..Plot::default() });
        report.summaries.push(Summary { ours: "3 ms".into(), ..Summary::default() });
        let json = report.to_json("hit", json!({}));
        assert_eq!(json["plots"][0]["series"][0]["values"], json!([1.0, null]));
        assert_eq!(json["summaries"][0]["ours"], "3 ms");
    }

    #[test]
    fn quantiles_between_neighbours() {
        assert_eq!(median(&[1.0, 2.0, 3.0, 4.0]), 2.5);
        assert_eq!(quantile(&[5.0, 1.0], 0.0), 1.0);
        assert!(median(&[]).is_nan());
    }
}
