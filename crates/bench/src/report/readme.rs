//! The tables of `docs/figures.md` as markdown, from saved results. First, per bench and rival, the
//! worst and the best cell and the number of cells in which Forebay is ahead. Then the figures of
//! [`ENGINE`] and [`VOLUMES`], with their goals, and every other goal that was missed. Then CPU and
//! rates of the NBD servers.
//!
//! Invariants: R1 only values of the results are shown. A listed figure without a value says so, a
//! server without one has no row. R2 a figure that missed its goal is shown in bold, with enough
//! digits to show the miss. R3 a quick run is refused, because its figures must not be quoted.

use crate::report::figures::{ENGINE, Fact, VOLUMES};
use crate::report::model::{Extremes, extremes, machine_line, number, number_with_bar};
use crate::report::words;
use serde_json::Value;
use std::fmt::Write;

/// The markdown. Errors are texts for the user.
pub fn markdown(found: &[Value]) -> Result<String, String> {
    let quick = found.iter().find(|value| value["quick"] == true);
    if let Some(quick) = quick {
        return Err(format!("{}: a quick run gives no figures to quote", quick["bench"]));
    }
    let mut out = String::new();
    let mut machines: Vec<String> = found.iter().map(|v| machine_line(&v["machine"])).collect();
    machines.dedup();
    let _ =
        writeln!(out, "{}; medians of one run each, `forebay bench NAME`:\n", machines.join("; "));
    out.push_str("| `bench` | ours over | worst cell | best cell | ours ahead in |\n");
    out.push_str("|---|---|---|---|---|\n");
    for value in found {
        let bench = value["bench"].as_str().unwrap_or("?");
        for Extremes { rival, count, ahead, worst, best } in extremes(value) {
            let cell = |(name, value): &(String, f64)| format!("{} ({name})", times(*value));
            let _ = writeln!(
                out,
                "| `{bench}` | {rival} | {} | {} | {ahead} of {count} |",
                cell(&worst),
                cell(&best)
            );
        }
    }
    out.push_str("\n| `bench` | figure | value | goal |\n|---|---|---|---|\n");
    for (bench, name, what) in facts(found) {
        let own = found.iter().find(|value| value["bench"] == *bench);
        let ratio = own.and_then(|own| named(own, "ratios", name));
        let value = ratio.and_then(|ratio| ratio["value"].as_f64());
        let (shown, goal) = match (value, own.and_then(|own| named(own, "bars", name))) {
            (None, _) => ("not run".into(), String::new()),
            (Some(value), None) => (number(value), String::new()),
            (Some(value), Some(bar)) => judged(value, bar),
        };
        let _ = writeln!(out, "| `{bench}` | {what} | {shown} | {goal} |");
    }
    put_missed(&mut out, found);
    put_servers(&mut out, found);
    Ok(out)
}

/// The figures of each group of which at least one bench was run.
fn facts(found: &[Value]) -> impl Iterator<Item = &'static Fact> {
    let is_run = |fact: &Fact| found.iter().any(|value| value["bench"] == fact.0);
    let groups = [ENGINE, VOLUMES].map(|group| if group.iter().any(is_run) { group } else { &[] });
    groups.into_iter().flatten()
}

fn named<'a>(own: &'a Value, list: &str, name: &str) -> Option<&'a Value> {
    own[list].as_array()?.iter().find(|item| item["name"] == name)
}

/// A value and its bar, with the digits and the mark of R2.
fn judged(value: f64, bar: &Value) -> (String, String) {
    let limit = bar["bar"].as_f64().unwrap_or(f64::NAN);
    let shown = number_with_bar(value, limit);
    let shown = if bar["met"] == false { format!("**{shown}**") } else { shown };
    let judged = if bar["met"].is_null() { ", not judged" } else { "" };
    (shown, format!("{} {limit}{judged}", bar["good"].as_str().unwrap_or("?")))
}

/// Adds every other goal that was missed (R2).
fn put_missed(out: &mut String, found: &[Value]) {
    for own in found {
        let bench = own["bench"].as_str().unwrap_or("?");
        for bar in own["bars"].as_array().into_iter().flatten().filter(|bar| bar["met"] == false) {
            let name = bar["name"].as_str().unwrap_or("?");
            if facts(found).any(|fact| (fact.0, fact.1) == (bench, name)) {
                continue;
            }
            let (shown, goal) = judged(bar["value"].as_f64().unwrap_or(f64::NAN), bar);
            let _ = writeln!(out, "| `{bench}` | {} | {shown} | {goal} |", words::of_id(name));
        }
    }
}

/// Adds CPU usage and rate of each server; the rate is often limited by one core of the client.
fn put_servers(out: &mut String, found: &[Value]) {
    let Some(own) = found.iter().find(|value| value["bench"] == "nbd") else { return };
    let rows: Vec<&Value> = own["rows"].as_array().into_iter().flatten().collect();
    let mut first = true;
    for row in &rows {
        let Some(cell) = row["metric"].as_str().and_then(|m| m.strip_suffix("_cpu_per_io")) else {
            continue;
        };
        let rate = rows.iter().find(|other| {
            other["variant"] == row["variant"] && other["metric"] == format!("{cell}_rate")
        });
        let (Some(cpu), Some(rate)) =
            (row["median"].as_f64(), rate.and_then(|rate| rate["median"].as_f64()))
        else {
            continue;
        };
        if std::mem::take(&mut first) {
            out.push_str(
                "\n| NBD cell | server | requests/s | CPU of the server per request, us |\n",
            );
            out.push_str("|---|---|---|---|\n");
        }
        let (cell, server) = (words::of_id(cell), row["variant"].as_str().unwrap_or("?"));
        let _ = writeln!(out, "| {cell} | {server} | {} | {} |", number(rate), number(cpu));
    }
}

/// Formats a ratio of rates: two digits, or enough to show on which side of 1 it is.
fn times(value: f64) -> String {
    let short = if value >= 10.0 { format!("{value:.0}") } else { format!("{value:.2}") };
    let side = |v: f64| v.partial_cmp(&1.0);
    let same = short.parse::<f64>().is_ok_and(|v| side(v) == side(value));
    if same { format!("{short}x") } else { format!("{}x", number_with_bar(value, 1.0)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// R1, R2, R3: the worst and best cells and missed goals are shown.
    #[test]
    fn markdown_shows_extremes_and_missed_goals() {
        let cells = [("reads", 1.25), ("writes", 0.9996), ("both", 24.7)];
        let cells = cells.map(|(cell, v)| json!({ "rival": "the loop", "cell": cell, "value": v }));
        let name = "randwrite_p999_vs_dontcache";
        let found = json!({ "bench": "uncached", "quick": false, "machine": {}, "cells": cells,
            "ratios": [{ "name": name, "value": 1.004 }],
            "bars": [{ "name": name, "value": 1.004, "bar": 1.0, "good": "<=", "met": false },
                { "name": "seqwrite_vs_all", "value": 0.96, "bar": 1.0, "good": ">=", "met": false },
                { "name": "another", "value": 2.0, "bar": 1.0, "good": ">=", "met": true }] });
        let text = markdown(std::slice::from_ref(&found)).unwrap();
        let row = "| `uncached` | the loop | 0.9996x (writes) | 25x (both) | 2 of 3 |";
        assert!(text.contains(row), "{text}");
        let row = "| `uncached` | p99.9 of a random write, over RWF_DONTCACHE | **1.004** | <= 1 |";
        assert!(text.contains(row), "{text}");
        // The story: a missed goal without a line of its own was not shown anywhere.
        assert!(
            text.contains("| `uncached` | sequential writes, over all | **0.960** | >= 1 |"),
            "{text}"
        );
        assert!(!text.contains("another") && text.matches("1.004").count() == 1, "{text}");
        let row = "| `memcg` | kills in a memory cgroup of budget + 64 MiB | not run |  |";
        assert!(text.contains(row), "R1: {text}");
        assert!(!text.contains("`mount`"), "a group of which nothing was run: {text}");
        assert!(!text.contains("NBD cell"), "R1");
        let variant = "qemu-nbd";
        let row = |metric: &str, value: f64| json!({ "variant": variant, "metric": metric, "median": value });
        let nbd = json!({ "bench": "nbd", "quick": false, "machine": {},
            "rows": [row("nbd_miss_c1_rate", 51234.0), row("nbd_miss_c1_cpu_per_io", 12.5),
                row("nbd_hit_c4_cpu_per_io", 3.0)] });
        let text = markdown(&[nbd]).unwrap();
        assert!(text.contains("| NBD miss, 1 connection | qemu-nbd | 51234 | 12.5 |"), "{text}");
        assert!(!text.contains("c4"), "R1: without its rate");
        let mut quick = found;
        quick["quick"] = true.into();
        assert!(markdown(&[quick]).is_err());
    }
}
