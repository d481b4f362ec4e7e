//! Comparison of two runs of the same benches: the change of each cell and each judged ratio.
//!
//! Invariants: C1 a change is new over old, inverted where less is better, so that below 1 is
//! worse. C2 the worst change comes first. C3 a change within the noise of its bench is not
//! flagged; figures of only one run are listed. C4 quick runs are refused.

use crate::report::model::{median, number};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write;

/// Least noise of a bench: two runs of the same program differ by this much.
const NOISE_MIN: f64 = 0.03;

/// Figures of a bench by name, each with its value and whether less is better.
type Figures = BTreeMap<String, (f64, bool)>;

/// The noise of a bench in a run: the median over its rows of the relative spread of its rounds.
fn noise(found: &Value) -> f64 {
    let rows = found["rows"].as_array().into_iter().flatten();
    let spread = |row: &Value| {
        let of = |key: &str| row[key].as_f64().filter(|v| v.is_finite());
        let (low, mid, high) = (of("min")?, of("median")?, of("max")?);
        (mid > 0.0 && row["runs"].as_u64()? > 1).then(|| (high - low) / mid / 2.0)
    };
    let spreads: Vec<f64> = rows.filter_map(spread).collect();
    if spreads.is_empty() { NOISE_MIN } else { median(&spreads).max(NOISE_MIN) }
}

/// The cells, and the ratios that have a bar: for others neither direction is better.
fn figures(found: &Value) -> Figures {
    let list = |key: &str| found[key].as_array().cloned().unwrap_or_default();
    let text = |item: &Value, key: &str| item[key].as_str().unwrap_or("?").to_string();
    let mut all = Figures::new();
    for cell in list("cells") {
        if let Some(value) = cell["value"].as_f64() {
            all.insert(
                format!("{}: {}", text(&cell, "rival"), text(&cell, "cell")),
                (value, false),
            );
        }
    }
    for bar in list("bars") {
        let less = matches!(bar["good"].as_str(), Some("<=" | "<"));
        if let Some(value) = bar["value"].as_f64() {
            all.insert(text(&bar, "name"), (value, less));
        }
    }
    all
}

/// One figure with its values in both runs.
struct Moved {
    bench: String,
    what: String,
    old: f64,
    new: f64,
    change: f64,
    noise: f64,
}

/// The change of a figure (C1). If one of the values is 0, it is 1 or infinite.
fn change(old: f64, new: f64, less: bool) -> f64 {
    let (from, to) = if less { (new, old) } else { (old, new) };
    if from == to { 1.0 } else { to / from }
}

/// The table, and the number of figures that are worse outside the noise. Errors are texts for the
/// user.
pub fn table(old: &[Value], new: &[Value]) -> Result<(String, usize), String> {
    if let Some(quick) = old.iter().chain(new).find(|value| value["quick"] == true) {
        return Err(format!("{}: a quick run gives no figures to compare", quick["bench"]));
    }
    let (mut moved, mut only) = (Vec::new(), Vec::new());
    for before in old {
        let name = before["bench"].as_str().unwrap_or("?").to_string();
        let Some(after) = new.iter().find(|value| value["bench"] == before["bench"]) else {
            only.push(format!("{name}: old run only"));
            continue;
        };
        let (noise, mut now) = (noise(before).max(noise(after)), figures(after));
        for (what, (old, less)) in figures(before) {
            let Some((new, _)) = now.remove(&what) else {
                only.push(format!("{name}, {what}: old run only"));
                continue;
            };
            let change = change(old, new, less);
            moved.push(Moved { bench: name.clone(), what, old, new, change, noise });
        }
        only.extend(now.into_keys().map(|what| format!("{name}, {what}: new run only")));
    }
    let fresh = new.iter().filter(|value| !old.iter().any(|o| o["bench"] == value["bench"]));
    only.extend(
        fresh.map(|value| format!("{}: new run only", value["bench"].as_str().unwrap_or("?"))),
    );
    if moved.is_empty() {
        return Err("the two have no figure in common".into());
    }
    moved.sort_by(|a, b| a.change.total_cmp(&b.change));
    Ok(show(&moved, &only))
}

fn show(moved: &[Moved], only: &[String]) -> (String, usize) {
    let mut out = String::from("| change | `bench` | figure | old | new | noise | |\n");
    out.push_str("|---|---|---|---|---|---|---|\n");
    let mut worse = 0;
    for Moved { bench, what, old, new, change, noise } in moved {
        let flag = if *change < 1.0 - noise {
            worse += 1;
            "WORSE"
        } else if *change > 1.0 + noise {
            "better"
        } else {
            ""
        };
        let _ = writeln!(
            out,
            "| {} | `{bench}` | {what} | {} | {} | {:.0} % | {flag} |",
            number(*change),
            number(*old),
            number(*new),
            noise * 100.0
        );
    }
    only.iter().for_each(|line| out.push_str(&format!("\n{line}")));
    let _ = writeln!(out, "\n{worse} of {} figures are worse outside the noise", moved.len());
    (out, worse)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn run(reads: f64, latency: f64, spread: f64) -> Value {
        json!({ "bench": "uncached", "quick": false,
            "rows": [{ "min": 100.0 - spread, "median": 100.0, "max": 100.0 + spread, "runs": 5 }],
            "cells": [{ "rival": "O_DIRECT", "cell": "reads", "value": reads },
                { "rival": "O_DIRECT", "cell": "writes", "value": 2.0 }],
            "bars": [{ "name": "p999", "value": latency, "bar": 1.0, "good": "<=", "met": true }] })
    }

    /// C1..C4. The story: without a comparison, a regression was noticed only by readers who
    /// remembered the old figure.
    #[test]
    fn worst_change_comes_first_and_noise_is_unflagged() {
        let (text, worse) = table(&[run(1.0, 0.5, 1.0)], &[run(0.9, 1.0, 1.0)]).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[2].starts_with("| 0.500 | `uncached` | p999 | 0.500 | 1.000 | 3 % | WORSE"));
        assert!(lines[3].starts_with("| 0.900 | `uncached` | O_DIRECT: reads |"), "{text}");
        assert!(lines[3].contains("WORSE") && !lines[4].contains("WORSE"), "{text}");
        assert_eq!(worse, 2);
        // The same change in a run whose rounds spread by 15 %.
        let (text, worse) = table(&[run(1.0, 0.5, 15.0)], &[run(0.9, 0.4, 1.0)]).unwrap();
        assert!(worse == 0 && text.contains("better") && text.contains("15 %"), "{text}");
        let mut other = run(1.0, 0.5, 1.0);
        other["cells"].as_array_mut().unwrap().pop();
        let (text, _) = table(&[run(1.0, 0.5, 1.0)], &[other]).unwrap();
        assert!(text.contains("uncached, O_DIRECT: writes: old run only"), "{text}");
        let mut quick = run(1.0, 0.5, 1.0);
        quick["quick"] = true.into();
        assert!(table(&[quick], &[run(1.0, 0.5, 1.0)]).is_err());
        assert!(table(&[], &[run(1.0, 0.5, 1.0)]).is_err());
    }

    #[test]
    fn change_from_zero_is_infinite_or_none() {
        assert_eq!(change(0.0, 0.0, true), 1.0);
        assert_eq!(change(0.0, 3.0, true), 0.0);
        assert!(change(3.0, 0.0, true).is_infinite() && change(0.0, 2.0, false).is_infinite());
    }
}
