//! The table of the five behaviours: promise, baseline, patch, Forebay, kernel, and how many lines
//! of the checklist tests verify. It is made from JSON results.
//!
//! The tests column comes from `docs/lineage.md` at compile time; `cargo xtask lineage --check`
//! verifies that file.

use crate::report::model::number_with_bar;
use crate::report::words;
use serde_json::Value;
use std::fmt::Write;

/// The file that `cargo xtask lineage` writes.
const LINEAGE: &str = include_str!("../../../../docs/lineage.md");

/// One behaviour.
pub struct Behaviour {
    /// Name of its bench, and of its line in `docs/lineage.md`.
    pub bench: &'static str,
    /// The name of the behaviour in words.
    pub title: &'static str,
    /// The promise of the behaviour, for results that contain none.
    pub promise: &'static str,
}

/// The behaviours in their fixed order.
pub const BEHAVIOURS: [Behaviour; 5] = [
    Behaviour {
        bench: "dirty",
        title: "Sub-page dirty tracking",
        promise: "4 KiB changed is 4 KiB written, whatever the folio",
    },
    Behaviour {
        bench: "loop",
        title: "Loop with direct I/O",
        promise: "an image is cached once, not twice",
    },
    Behaviour {
        bench: "stable",
        title: "Stable pages only where needed",
        promise: "a writer does not wait for its own write-out",
    },
    Behaviour {
        bench: "uncached",
        title: "Uncached buffered I/O",
        promise: "what is cached is served and stays, the rest leaves nothing",
    },
    Behaviour {
        bench: "alloc",
        title: "Contiguous allocation for big direct writes",
        promise: "parallel writers get contiguous blocks",
    },
];

/// One line of the table, with every column as text.
#[derive(Debug)]
pub struct Line {
    /// Name of the bench.
    pub bench: &'static str,
    /// Promise, baseline, patch, ours, kernel, tests.
    pub columns: [String; 6],
    /// Missed ratios, each with its value and bar.
    pub missed: Vec<String>,
}

/// Names of the columns.
pub const COLUMNS: [&str; 6] = ["promise", "baseline", "patch", "ours", "kernel", "tests"];

/// The lines of all five behaviours, from these results.
pub fn lines(found: &[Value]) -> Vec<Line> {
    BEHAVIOURS.iter().map(|behaviour| line(behaviour, found)).collect()
}

fn line(behaviour: &Behaviour, found: &[Value]) -> Line {
    let bench = behaviour.bench;
    let own = found.iter().find(|value| value["bench"] == bench);
    let summaries = own.and_then(|own| own["summaries"].as_array());
    let summary = summaries.and_then(|list| list.iter().find(|s| s["behaviour"] == bench));
    let text = |key: &str, otherwise: &str| {
        let said = summary.and_then(|s| s[key].as_str()).filter(|text| !text.is_empty());
        said.unwrap_or(otherwise).to_string()
    };
    let columns = [
        text("promise", behaviour.promise),
        text("baseline", "-"),
        text("patch", "-"),
        text("ours", "not run"),
        text("kernel", "-"),
        tests_of(LINEAGE, bench),
    ];
    Line { bench, columns, missed: own.map(|own| missed(bench, own)).unwrap_or_default() }
}

/// The missed bars of one bench, as `label: value (>= bar)`.
fn missed(bench: &str, found: &Value) -> Vec<String> {
    let bars = found["bars"].as_array().into_iter().flatten();
    let missed = bars.filter(|bar| bar["met"] == false).map(|bar| {
        let limit = bar["bar"].as_f64().unwrap_or(f64::NAN);
        let value = bar["value"].as_f64().unwrap_or(f64::NAN);
        let value = number_with_bar(value, limit);
        let text = |key: &str| bar[key].as_str().unwrap_or("?");
        let label = words::of_ratio(bench, text("name"));
        format!("{label}: {value} ({} {limit})", text("good"))
    });
    missed.collect()
}

/// `n of m lines held`, from the table at the start of `docs/lineage.md`. Its rows are `| bench |
/// checklist | held | in spirit | not carried over | lines |`.
fn tests_of(lineage: &str, bench: &str) -> String {
    for row in lineage.lines() {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        if let ["", name, _, held, _, _, lines, ""] = cells[..]
            && name == bench
        {
            if lines == "to come" {
                return lines.to_string();
            }
            return format!("{held} of {lines} lines held");
        }
    }
    "-".to_string()
}

/// Widths of the name and the columns on a terminal; with two spaces between them 118 characters.
const WIDTHS: [usize; 7] = [8, 26, 15, 15, 15, 16, 11];

/// The table for a terminal, with a `MISS` below a line for each missed ratio.
pub fn table(found: &[Value]) -> String {
    table_of(found, true)
}

/// The table without verdicts, for quick runs.
pub fn shown(found: &[Value]) -> String {
    table_of(found, false)
}

fn table_of(found: &[Value], judged: bool) -> String {
    let mut out = String::new();
    let mut head = vec![""];
    head.extend(COLUMNS);
    put(&mut out, &head);
    out.push_str(&"-".repeat(WIDTHS.iter().sum::<usize>() + 2 * (WIDTHS.len() - 1)));
    out.push('\n');
    for line in lines(found) {
        let mut cells = vec![line.bench];
        cells.extend(line.columns.iter().map(String::as_str));
        put(&mut out, &cells);
        for missed in line.missed.iter().filter(|_| judged) {
            let _ = writeln!(out, "{:10}MISS {missed}", "");
        }
    }
    out
}

/// Appends one row, with each cell wrapped to its width.
fn put(out: &mut String, cells: &[&str]) {
    let broken: Vec<Vec<String>> =
        cells.iter().zip(WIDTHS).map(|(cell, width)| wrap(cell, width)).collect();
    let height = broken.iter().map(Vec::len).max().unwrap_or(0);
    for n in 0..height {
        let mut row = String::new();
        for (cell, width) in broken.iter().zip(WIDTHS) {
            let _ = write!(row, "{:width$}  ", cell.get(n).map_or("", String::as_str));
        }
        out.push_str(row.trim_end());
        out.push('\n');
    }
}

/// Wraps text to lines of at most `width` characters; a longer word gets its own line.
fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let last = lines.last_mut().expect("there is a line");
        if !last.is_empty() && last.chars().count() + 1 + word.chars().count() > width {
            lines.push(word.to_string());
        } else {
            last.push_str(if last.is_empty() { "" } else { " " });
            last.push_str(word);
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_behaviour_has_its_tests_counted() {
        for behaviour in &BEHAVIOURS {
            assert_ne!(tests_of(LINEAGE, behaviour.bench), "-", "{}", behaviour.bench);
        }
        let text =
            "| dirty | D1..D19 | 18 | 1 | 0 | 19 |\n| alloc | A1..A10 | - | - | - | to come |\n";
        assert_eq!(tests_of(text, "dirty"), "18 of 19 lines held");
        assert_eq!(tests_of(text, "alloc"), "to come");
        assert_eq!(tests_of(text, "loop"), "-");
    }

    #[test]
    fn five_lines_show_misses() {
        let bar =
            json!({ "name": "fsync_iops", "value": 3.0, "bar": 8.0, "good": ">=", "met": false });
        let good = json!({ "name": "fine", "value": 3.0, "bar": 1.0, "good": ">=", "met": true });
        let summary = json!({ "behaviour": "dirty", "promise": "little is written back",
            "baseline": "64 KiB", "patch": "4 KiB", "ours": "4.000 KiB", "kernel": "" });
        let found = json!({ "bench": "dirty", "bars": [bar, good], "summaries": [summary] });
        let table = table(&[found]);
        assert!(table.contains("MISS fsync IOPS: 3.000 (>= 8)"), "{table}");
        assert!(!table.contains("fine") && table.contains("4.000 KiB"), "{table}");
        assert_eq!(table.matches("not run").count(), 4, "{table}");
        assert!(table.lines().all(|line| line.chars().count() <= 118), "{table}");
    }

    #[test]
    fn wrap_breaks_between_words_only() {
        assert_eq!(wrap("a bb ccc", 4), ["a bb", "ccc"]);
        assert_eq!(wrap("longer than", 3), ["longer", "than"]);
        assert_eq!(wrap("", 3), [""]);
    }
}
