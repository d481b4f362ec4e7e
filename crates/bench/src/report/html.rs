//! The HTML page of results: tables, charts, verdicts, and the command of each bench.
//!
//! Invariants: W1 the page loads nothing: style and charts are embedded, there is no script. W2
//! every text from a result is escaped. W3 a missing or invalid value in a saved result shows as
//! `n/a` and never panics. W4 a quick run is marked at the top and at its bench. W5 ratios,
//! metrics and variants are labelled in words; the id, which the documents name, is the title of
//! the label.

use crate::report::chart::{self, Chart, draw, escape};
use crate::report::five::{self, BEHAVIOURS, COLUMNS};
use crate::report::model::{Extremes, extremes, machine_line, number, number_with_bar};
use crate::report::words;
use serde_json::Value;
use std::fmt::Write;

const STYLE: &str = include_str!("page.css");
/// Benches other than the five behaviours, in their fixed order.
const MORE: [(&str, &str); 3] =
    [("hit", "More: cached data"), ("nbd", "More: over NBD"), ("memcg", "More: memory bound")];
const QUICK: &str = "Quick run: small and short: not for quoting.";

/// The page for one JSON object per bench.
pub fn page(found: &[Value]) -> String {
    let mut out = String::new();
    out.push_str("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n");
    out.push_str("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n");
    let _ =
        write!(out, "<title>Forebay benches</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n");
    head(&mut out, found);
    five_rows(&mut out, found);
    for (n, behaviour) in BEHAVIOURS.iter().enumerate() {
        let title = format!("{}. {}", n + 1, behaviour.title);
        section(&mut out, behaviour.bench, &title, behaviour.promise, found);
    }
    let others = found.iter().filter_map(|value| value["bench"].as_str());
    let known = |name: &str| MORE.iter().find(|(bench, _)| *bench == name);
    let shown = |name: &str| BEHAVIOURS.iter().any(|b| b.bench == name);
    for name in others.filter(|name| !shown(name)) {
        let title = known(name).map_or_else(|| format!("More: {name}"), |(_, t)| (*t).to_string());
        section(&mut out, name, &title, "", found);
    }
    out.push_str("</body>\n</html>\n");
    out
}

/// The text under a key; empty if there is none.
fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().map_or(&[], Vec::as_slice)
}

/// A number for readers, with thousands separated.
fn figure(value: &Value) -> String {
    let plain = number(value.as_f64().unwrap_or(f64::NAN));
    let digits = plain.trim_start_matches('-');
    if digits.len() < 5 || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return plain;
    }
    let mut out = plain[..plain.len() - digits.len()].to_string();
    for (n, digit) in digits.chars().enumerate() {
        if n > 0 && (digits.len() - n).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

fn head(out: &mut String, found: &[Value]) {
    let _ = writeln!(out, "<h1>Forebay benches</h1>");
    let mut machines: Vec<String> = Vec::new();
    for value in found {
        let line = machine_line(&value["machine"]);
        if !machines.contains(&line) {
            machines.push(line);
        }
    }
    let dates: Vec<&str> =
        found.iter().map(|v| text(v, "date")).filter(|date| !date.is_empty()).collect();
    let (first, last) = (dates.iter().min(), dates.iter().max());
    let when = match (first, last) {
        (Some(first), Some(last)) if first != last => format!("{first} to {last}"),
        (Some(first), _) => (*first).to_string(),
        _ => "no date".to_string(),
    };
    let mut versions: Vec<&str> = found.iter().map(|value| text(value, "version")).collect();
    versions.sort_unstable();
    versions.dedup();
    let versions = escape(&versions.join(", "));
    let _ = writeln!(out, "<p class=\"soft\">Forebay {versions}, {}</p>", escape(&when));
    for line in machines {
        let _ = writeln!(out, "<p class=\"soft\">{}</p>", escape(&line));
    }
    let is_quick = |value: &&Value| value["quick"] == true;
    let quick: Vec<&str> = found.iter().filter(is_quick).map(|v| text(v, "bench")).collect();
    if !quick.is_empty() {
        let all = quick.len() == found.len();
        let of = if all { String::new() } else { format!(" ({})", escape(&quick.join(", "))) };
        let _ = writeln!(
            out,
            "<p class=\"quick\"><b>{QUICK}</b>{of} It shows that the benches work.</p>"
        );
    }
    out.push_str("<nav>");
    let names = found.iter().filter_map(|value| value["bench"].as_str());
    for name in names.map(escape) {
        let _ = write!(out, "<a href=\"#{name}\">{name}</a> ");
    }
    out.push_str("</nav>\n");
}

fn five_rows(out: &mut String, found: &[Value]) {
    out.push_str("<table class=\"five\">\n<thead><tr><th></th>");
    for name in COLUMNS {
        let _ = write!(out, "<th>{name}</th>");
    }
    out.push_str("</tr></thead>\n<tbody>\n");
    for line in five::lines(found) {
        let _ = write!(out, "<tr><td><a href=\"#{0}\"><b>{0}</b></a></td>", line.bench);
        for (name, column) in COLUMNS.iter().zip(&line.columns) {
            let (column, missed) = (escape(column), *name == "ours" && !line.missed.is_empty());
            let _ = write!(out, "<td data-name=\"{name}\">{column}");
            if missed {
                for missed in &line.missed {
                    let _ =
                        write!(out, "<br><span class=\"miss\">MISS</span> {}", with_code(missed));
                }
            }
            out.push_str("</td>");
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</tbody>\n</table>\n");
}

fn section(out: &mut String, bench: &str, title: &str, promise: &str, found: &[Value]) {
    let _ = writeln!(out, "<h2 id=\"{}\">{}</h2>", escape(bench), escape(title));
    let own = found.iter().find(|value| value["bench"] == bench);
    let summary =
        own.and_then(|own| list(own, "summaries").iter().find(|s| s["behaviour"] == bench));
    let promise = summary.map(|s| text(s, "promise")).filter(|p| !p.is_empty()).unwrap_or(promise);
    if !promise.is_empty() {
        let _ = writeln!(out, "<p>Promise: {}</p>", escape(promise));
    }
    let Some(own) = own else {
        let _ = writeln!(out, "<p class=\"soft\">not run</p>");
        return;
    };
    let _ = writeln!(out, "<p class=\"soft\">{}</p>", escape(text(own, "title")));
    if own["quick"] == true {
        let _ = writeln!(out, "<p class=\"soft\"><b>{QUICK}</b></p>");
    }
    let _ = writeln!(out, "<pre>{}</pre>", escape(text(own, "command")));
    ratios(out, bench, own);
    cells(out, own);
    pictures(out, bench, own);
    rows(out, own);
    items(out, own);
}

/// The first cell of a row: a label, with the id that it describes as its title (W5).
fn labelled(id: &str, label: &str) -> String {
    format!("<td title=\"{}\">{}</td>", escape(id), with_code(label))
}

/// A label as HTML, with its code spans.
fn with_code(label: &str) -> String {
    let pieces = label.split('`').map(escape).enumerate();
    let marked = pieces.map(|(n, piece)| match n % 2 {
        1 => format!("<code>{piece}</code>"),
        _ => piece,
    });
    marked.collect()
}

/// Every ratio, and its distance from its bar.
fn ratios(out: &mut String, bench: &str, own: &Value) {
    let (ratios, bars) = (list(own, "ratios"), list(own, "bars"));
    if ratios.is_empty() {
        return;
    }
    out.push_str("<h3>Ratios</h3>\n<div class=\"wide\"><table class=\"ratios\">\n");
    out.push_str("<tr><th>ratio</th><th class=\"n\">value</th><th class=\"n\">bar</th>");
    out.push_str("<th></th><th></th></tr>\n");
    for ratio in ratios {
        let name = text(ratio, "name");
        let label = labelled(name, &words::of_ratio(bench, name));
        let mut value = figure(&ratio["value"]);
        let Some(bar) = bars.iter().find(|bar| bar["name"] == name) else {
            let _ = writeln!(
                out,
                "<tr>{label}<td class=\"n\">{value}</td><td></td><td></td><td></td></tr>"
            );
            continue;
        };
        if let (Some(is), Some(limit)) = (ratio["value"].as_f64(), bar["bar"].as_f64())
            && is.abs() < 1000.0
        {
            value = number_with_bar(is, limit);
        }
        let (class, verdict) = match bar["met"].as_bool() {
            Some(true) => ("met", "<span class=\"good\">met</span>"),
            Some(false) => ("missed", "<span class=\"miss\">MISS</span>"),
            None if own["quick"] == true && ratio["value"].is_number() => ("unjudged", ""),
            None => ("unjudged", "not run"),
        };
        let _ = writeln!(
            out,
            "<tr class=\"{class}\">{label}<td class=\"n\">{value}</td>\
             <td class=\"n\">{} {}</td><td>{verdict}</td><td>{}</td></tr>",
            escape(text(bar, "good")),
            figure_of_bar(&bar["bar"]),
            meter(ratio["value"].as_f64(), bar["bar"].as_f64())
        );
    }
    out.push_str("</table></div>\n");
}

/// For each rival the worst and the best cell.
fn cells(out: &mut String, own: &Value) {
    let all = extremes(own);
    if all.is_empty() {
        return;
    }
    out.push_str("<h3>Worst and best cell</h3>\n<div class=\"wide\"><table>\n");
    out.push_str("<tr><th>ours over</th><th>ahead in</th><th class=\"n\">worst</th><th></th>");
    out.push_str("<th class=\"n\">best</th><th></th></tr>\n");
    for Extremes { rival, count, ahead, worst, best } in all {
        let _ = write!(out, "<tr><td>{}</td><td>{ahead} of {count}</td>", escape(&rival));
        for (cell, value) in [worst, best] {
            let value = number(value);
            let cell = with_code(&words::of_text(&cell));
            let _ = write!(out, "<td class=\"n\">{value}</td><td>{cell}</td>");
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</table></div>\n");
}

/// A bar as it was set: `0.97`, `1`, `250`.
fn figure_of_bar(bar: &Value) -> String {
    bar.as_f64().map_or_else(|| "n/a".to_string(), |bar| bar.to_string())
}

/// A meter of the value, with the bar as a mark in the middle; empty if there is no scale.
fn meter(value: Option<f64>, bar: Option<f64>) -> String {
    let (Some(value), Some(bar)) = (value, bar) else { return String::new() };
    if bar <= 0.0 || value < 0.0 {
        return String::new();
    }
    let percent = (value / bar * 50.0).min(100.0);
    format!("<span class=\"meter\"><i style=\"width:{percent:.1}%\"></i><b></b></span>")
}

fn pictures(out: &mut String, bench: &str, own: &Value) {
    out.push_str("<div class=\"pictures\">\n");
    for plot in list(own, "plots").iter().filter(|plot| plot["behaviour"] == bench) {
        let svg = picture(plot, |_| true, draw);
        if !svg.is_empty() {
            let title = with_code(&words::of_text(text(plot, "title")));
            let _ = writeln!(out, "<figure><figcaption>{title}</figcaption>\n{svg}</figure>");
        }
    }
    out.push_str("</div>\n");
}

/// Draws a plot of the JSON as SVG text, with the series that are `wanted`.
fn picture(
    plot: &Value,
    wanted: impl Fn(&str) -> bool,
    draw: impl Fn(&Chart<'_>) -> String,
) -> String {
    let series = list(plot, "series").iter().filter(|series| wanted(text(series, "label")));
    let series = series.map(|series| {
        let values = list(series, "values").iter().map(|v| v.as_f64().unwrap_or(f64::NAN));
        (text(series, "label").to_string(), values.collect())
    });
    let series: Vec<(String, Vec<f64>)> = series.collect();
    let (title, unit, x) = (text(plot, "title"), text(plot, "unit"), text(plot, "x"));
    let marks = list(plot, "marks")
        .iter()
        .map(|mark| (text(mark, "word").to_string(), mark["at"].as_f64().unwrap_or(f64::NAN)));
    let marks: Vec<(String, f64)> = marks.collect();
    draw(&Chart { title, unit, x, series: &series, marks: &marks })
}

/// The first plot of saved results as a complete file, with the named series, or all if none is
/// named. `None`: there is no plot, or no such series.
pub fn first_picture(found: &[Value], series: &[String]) -> Option<String> {
    let plot = found.iter().flat_map(|own| list(own, "plots")).next()?;
    let all = series.is_empty();
    let wanted = |label: &str| all || series.iter().any(|wanted| wanted == label);
    let svg = picture(plot, wanted, chart::file);
    Some(svg).filter(|svg| !svg.is_empty())
}

fn rows(out: &mut String, own: &Value) {
    let rows = list(own, "rows");
    if rows.is_empty() {
        return;
    }
    let open = if rows.len() <= 24 { " open" } else { "" };
    let _ = writeln!(out, "<details{open}><summary>All {} rows</summary>", rows.len());
    out.push_str("<div class=\"wide\"><table class=\"rows\">\n<tr><th>variant</th><th>metric</th>");
    for name in ["median", "min", "max"] {
        let _ = write!(out, "<th class=\"n\">{name}</th>");
    }
    out.push_str("<th>unit</th><th class=\"n\">runs</th></tr>\n");
    for row in rows {
        let (variant, metric) = (text(row, "variant"), text(row, "metric"));
        let variant = labelled(variant, &words::of_variant(variant));
        let (metric, unit) = (labelled(metric, &words::of_id(metric)), escape(text(row, "unit")));
        let [mid, low, high] = ["median", "min", "max"].map(|key| figure(&row[key]));
        let runs = row["runs"].as_u64().unwrap_or(0);
        let _ = writeln!(
            out,
            "<tr>{variant}{metric}<td class=\"n\"><b>{mid}</b></td>\
             <td class=\"n\">{low}</td><td class=\"n\">{high}</td><td>{unit}</td>\
             <td class=\"n\">{runs}</td></tr>"
        );
    }
    out.push_str("</table></div></details>\n");
}

/// Parts that were not run or failed, and the notes.
fn items(out: &mut String, own: &Value) {
    for (name, title) in [("not_run", "Not run"), ("failed", "Failed")] {
        let items = list(own, name);
        if items.is_empty() {
            continue;
        }
        let _ = write!(out, "<h3>{title}</h3>\n<ul>\n");
        for item in items {
            let what = with_code(&words::of_text(text(item, "what")));
            let why = escape(text(item, "why"));
            let _ = writeln!(out, "<li><b>{what}</b>: {why}</li>");
        }
        out.push_str("</ul>\n");
    }
    let notes = list(own, "notes");
    if !notes.is_empty() {
        out.push_str("<h3>Notes</h3>\n<ul>\n");
        for note in notes.iter().filter_map(Value::as_str) {
            let _ = writeln!(out, "<li>{}</li>", escape(note));
        }
        out.push_str("</ul>\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::model::{Good, Plot, Report};
    use crate::report::results::describe;
    use serde_json::json;

    fn result(quick: bool) -> Value {
        let mut report = Report::default();
        report.row("ours<b>", "rate", "1/s", &[1234567.0, f64::NAN]);
        report.row("gone", "rate", "1/s", &[f64::NAN]);
        report.ratio_with_bar("met_ratio", 2.0, Good::AtLeast, 1.0);
        report.ratio_with_bar("missed_ratio", 0.5, Good::AtLeast, 0.97);
        report.ratio_with_bar("no_ratio", f64::NAN, Good::AtMost, 0.0);
        report.note("a < b & \"c\"");
        report.not_run("<script>alert(1)</script>", "it's not here");
        let series = vec![("ours".to_string(), vec![1.0]), ("x".to_string(), vec![f64::NAN])];
        let (title, unit) = ("rate <1>".into(), "1/s".into());
        report.plots.push(Plot { behaviour: "dirty", title, unit, series, ..Plot::default() });
        let flag = if quick { "--quick" } else { "--lines" };
        let args = ["--dir", "a<b", flag].map(str::to_string);
        describe("dirty", "what <it> is", &args, &report, json!({ "cpu": "Xeon <3>", "cpus": 2 }))
    }

    /// W1, W2: text from results is escaped, and nothing is loaded.
    #[test]
    fn text_from_results_is_escaped() {
        let page = page(&[result(false)]);
        for bad in
            ["<script", "ours<b>", "a < b", "rate <1>", "what <it>", "a<b", "Xeon <3>", "NaN"]
        {
            assert!(!page.contains(bad), "{bad}");
        }
        for good in ["&lt;script&gt;", "ours&lt;b&gt;", "a &lt; b &amp; &quot;c&quot;", "it&#39;s"]
        {
            assert!(page.contains(good), "{good}");
        }
        assert!(page.contains("1,234,567") && page.contains("no value"), "{page}");
        assert!(!page.contains("http:") && !page.contains("https:"), "nothing from elsewhere");
        assert!(!page.contains("not for quoting"), "it was no quick run");
    }

    /// W4: verdicts are marked, and a quick run is, too.
    #[test]
    fn verdicts_are_marked() {
        let page = page(&[result(true)]);
        let line = |name: &str| {
            let cell = format!("<td title=\"{name}\">{}</td>", name.replace('_', " "));
            page.lines().find(|line| line.contains(&cell)).unwrap()
        };
        assert!(line("met_ratio").contains("class=\"good\">met"));
        assert!(line("met_ratio").contains("width:100.0%"));
        assert!(line("missed_ratio").starts_with("<tr class=\"missed\">"));
        assert!(line("missed_ratio").contains("class=\"miss\">MISS"));
        assert!(line("no_ratio").contains("n/a") && line("no_ratio").contains("not run"));
        assert!(
            page.contains("MISS</span> missed ratio: 0.500 (&gt;= 0.97)"),
            "the five rows say it"
        );
        assert_eq!(page.matches("not for quoting").count(), 2, "at the top and at the bench");
        assert!(page.contains("forebay bench dirty --dir &#39;a&lt;b&#39; --quick"));
        assert_eq!(page.matches("<svg").count(), page.matches("</svg>").count());
        assert_eq!(
            page.matches("<p class=\"soft\">not run</p>").count(),
            4,
            "the other behaviours"
        );
    }

    /// W5: the story: the page showed `write_amplification_raw` where a reader needs words.
    #[test]
    fn labels_are_words_and_ids_their_titles() {
        let mut report = Report::default();
        report.row("ours", "seqread_p99_9", "us", &[1.0]);
        report.ratio_with_bar("write_amplification_raw", 1.5, Good::Exactly, 1.0);
        report.ratio("write_amplification_dd_folio_mode", 8.5);
        report.ratio("memcg_kills_io_uring", 0.0);
        report.not_run("seqread_part on xfs", "no fio");
        report.cell("waiting", "disk, 10x2m_waves", 1.0);
        let page = page(&[describe("dirty", "x", &[], &report, json!({}))]);
        for (id, label) in [
            ("seqread_p99_9", "sequential reads p99.9"),
            ("write_amplification_raw", "bytes written per byte changed, random writes of 4 KiB"),
            (
                "write_amplification_dd_folio_mode",
                "bytes written per byte changed dd written back by folio",
            ),
            ("memcg_kills_io_uring", "memcg kills <code>io_uring</code>"),
        ] {
            let cell = format!("<td title=\"{id}\">{label}</td>");
            assert!(page.contains(&cell), "W5, {id}: {page}");
        }
        assert!(page.contains("<b>sequential reads part on xfs</b>"), "W5: {page}");
        assert!(page.contains("<td>disk, 10 writers of 2 MiB waves</td>"), "W5: {page}");
        assert!(page.contains("MISS</span> bytes written per byte changed, random"), "W5: {page}");
    }

    /// W3: invalid results give a page without a panic.
    #[test]
    fn odd_results_make_a_page() {
        let odd = json!({ "bench": "x<y", "rows": [{}, 3, null], "ratios": [{ "name": 1 }], "bars": 7,
            "plots": [{ "behaviour": "x<y", "series": [{ "label": 3, "values": ["a", null] }] }],
            "summaries": [{}], "notes": [1, "fine"], "not_run": [{}] });
        let page = page(&[odd, json!(null)]);
        assert!(page.contains("More: x&lt;y") && page.contains("fine"));
        assert!(!page.contains("x<y") && !page.contains("NaN"));
    }
}
