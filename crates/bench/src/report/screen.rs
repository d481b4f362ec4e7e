//! A short summary of saved results for newcomers: `bench report --screen`.
//!
//! Invariants: S1 a line whose figures are missing says so; nothing is judged. S2 each of the five
//! behaviours has its line.

use super::five;
use serde_json::Value;

/// The median of a row.
fn row(found: &[Value], bench: &str, variant: &str, metric: &str) -> Option<f64> {
    let own = found.iter().find(|value| value["bench"] == bench)?;
    let rows = own["rows"].as_array()?;
    let row = rows.iter().find(|row| row["variant"] == variant && row["metric"] == metric)?;
    row["median"].as_f64()
}

/// Formats a rate: `2.0 M/s`, `61 k/s`.
fn rate(value: f64) -> String {
    match value {
        v if v >= 1e6 => format!("{:.1} M/s", v / 1e6),
        v if v >= 1e5 => format!("{:.2} M/s", v / 1e6),
        v if v >= 1e3 => format!("{:.0} k/s", v / 1e3),
        v => format!("{v:.0}/s"),
    }
}

fn two(label: &str, ours: Option<String>, other: Option<String>, whose: &str) -> String {
    let text = |value: Option<String>| value.unwrap_or_else(|| "not run".into());
    format!("{label:34} {:>9}   {whose} {}", text(ours), text(other))
}

/// The lines of the five behaviours, and of the database if it was run.
pub fn lines(found: &[Value]) -> Vec<String> {
    let database = database(found);
    let only = !database.is_empty() && found.iter().all(|value| value["bench"] == "database");
    let mut lines = Vec::new();
    if !only {
        lines.extend(five::shown(found).lines().map(str::to_string));
        lines.extend(behaviours(found));
    }
    lines.extend(database);
    lines
}

/// Columns of the bench `database`, in the order of the summary.
const COLUMNS: [&str; 10] = [
    "ours",
    "ours-uncached",
    "xfs-tar",
    "xfs-mmap-tar",
    "xfs-nocache",
    "xfs-drop-behind",
    "xfs-direct",
    "xfs-dontcache",
    "xfs-tar-apart",
    "sqlite-cache",
];
/// The kernel's columns with a measure against the backup.
const BEST: std::ops::Range<usize> = 4..9;
/// Share of its hot set that the kernel must lose for a comparison, percent.
const GATE: f64 = 20.0;

/// The advantage of Forebay over the kernel during the backup, or that there is none; then a table
/// of the columns.
fn database(found: &[Value]) -> Vec<String> {
    if found.iter().all(|value| value["bench"] != "database") {
        return Vec::new();
    }
    // The form of the backup without a pace, if it was run: most backups have none.
    let of = |form: &'static str| {
        move |column: &str, metric: &str| {
            row(found, "database", column, &format!("{form}_{metric}"))
        }
    };
    let fast = of("fast")("ours", "lookups_during").is_some();
    let number = of(if fast { "fast" } else { "files" });
    let mut lines = headline(&number);
    lines.push(format!(
        "{:16} {:>9} {:>9} {:>7} {:>9} {:>9} {:>12}",
        "lookups", "alone", "during", "share", "p99 us", "hot lost", "backup MB/s"
    ));
    for column in COLUMNS {
        let (Some(alone), Some(during)) =
            (number(column, "lookups_alone"), number(column, "lookups_during"))
        else {
            lines.push(format!("{column:16}  not run"));
            continue;
        };
        let lost = number(column, "hot_set_lost").map_or("-".into(), |v| format!("{v:.1} %"));
        lines.push(format!(
            "{column:16} {:>9} {:>9} {:>7.2} {:>9.0} {lost:>9} {:>12.0}",
            rate(alone),
            rate(during),
            during / alone.max(1e-9),
            number(column, "p99_during").unwrap_or(f64::NAN),
            number(column, "backup_rate").unwrap_or(f64::NAN),
        ));
    }
    lines
}

/// The advantage with its figures, and the kernel's best method.
fn headline(number: &dyn Fn(&str, &str) -> Option<f64>) -> Vec<String> {
    let (during, alone) = ("lookups_during", "lookups_alone");
    let (Some(ours), Some(before)) = (number("ours", during), number("ours", alone)) else {
        return vec!["SQLite during a backup: not run".to_string()];
    };
    let kept = ours / before.max(1e-9) * 100.0;
    let own = format!("  Forebay {} lookups, {kept:.0} % of alone", rate(ours));
    let Some(tar) = number("xfs-tar", during) else {
        let verdict =
            "SQLite during a backup: the kernel's columns were not run, nothing to compare";
        return vec![verdict.to_string(), own];
    };
    let lost = number("xfs-tar", "hot_set_lost");
    let verdict = match ours / tar.max(1e-9) {
        _ if lost.is_none() => "the kernel's hot set is unknown: nothing to compare".to_string(),
        _ if lost < Some(GATE) => "the kernel kept its hot set: nothing to compare".to_string(),
        times if times > 1.0 => {
            format!("Forebay is {times:.2} times as fast as the kernel during tar")
        }
        times => format!("Forebay did no better than the kernel during tar: {times:.2} times"),
    };
    let best = COLUMNS[BEST].iter().filter_map(|name| Some((*name, number(name, during)?)));
    let best = best.max_by(|a, b| a.1.total_cmp(&b.1));
    let best = best.map_or("  the kernel's best way was not run".to_string(), |(name, other)| {
        let times = ours / other.max(1e-9);
        format!("  the kernel's best way, {name}: {}; Forebay {times:.2} times that", rate(other))
    });
    let lost = lost.map_or("an unknown part".into(), |lost| format!("{lost:.0} %"));
    vec![
        format!("SQLite during a backup: {verdict}"),
        format!("{own}; the kernel during tar {}, {lost} of its hot set lost", rate(tar)),
        best,
    ]
}

fn behaviours(found: &[Value]) -> Vec<String> {
    let hot = |who: &str, stream: &str, metric: &str| {
        let variant = format!("{who}-during-{stream}-stream");
        row(found, "uncached", &variant, &format!("hot_set_{metric}"))
    };
    let percent = |value: Option<f64>| value.map(|v| format!("{v:.0} %"));
    let times = |value: Option<f64>| value.map(|v| format!("{v:.2}"));
    let millis = |value: Option<f64>| value.map(|v| format!("{:.2} ms", v / 1e3));
    let mib = |value: Option<f64>| value.map(|v| format!("{v:.0} MiB"));
    let kernel = "the kernel's cache";
    let written = |variant| row(found, "dirty", variant, "fsync_written_per_byte_changed");
    let longest = |variant| row(found, "stable", variant, "delay_max");
    let below = |variant| row(found, "loop", variant, "stream_read_page_cache_growth");
    let torn = |variant| row(found, "alloc", variant, "delay_10x2m_waves_extents_per_request");
    let pieces = |value: Option<f64>| value.map(|v| format!("{v:.1}"));
    vec![
        two(
            "hot set during a scan, reads",
            hot("ours", "cached", "rate_during").map(rate),
            hot("kernel", "cached", "rate_during").map(rate),
            kernel,
        ),
        two(
            "of that set lost to the scan",
            percent(hot("ours", "cached", "lost")),
            percent(hot("kernel", "cached", "lost")),
            kernel,
        ),
        two(
            "bytes written per byte changed",
            times(written("ours-block-64k")),
            times(written("ours-folio-64k")),
            "by folio of 64 KiB",
        ),
        two(
            "longest write under write-out",
            millis(longest("cow")),
            millis(longest("wait")),
            "waiting for it",
        ),
        two(
            "second copy of an image below us",
            mib(below("ours-direct-io-on")),
            mib(below("ours-direct-io-off")),
            "opened buffered",
        ),
        two(
            "pieces of a write of 2 MiB, 10 writers",
            pieces(torn("reserve")),
            pieces(torn("interleaved")),
            "block by block",
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// S1, S2: figures that exist are shown, and missing ones are reported.
    #[test]
    fn missing_figures_are_reported() {
        let row = |variant: &str, metric: &str, median: f64| -> Value {
            let (variant, metric) = (json!(variant), json!(metric));
            json!({ "variant": variant, "metric": metric, "median": median })
        };
        let rows = [
            row("ours-during-cached-stream", "hot_set_rate_during", 2_040_000.0),
            row("kernel-during-cached-stream", "hot_set_rate_during", 98_000.0),
        ];
        let lines = lines(&[json!({ "bench": "uncached", "rows": rows })]);
        // S2. The story: the fifth behaviour had no line, and the table of all five was not shown.
        for bench in ["dirty", "loop", "stable", "uncached", "alloc"] {
            assert!(lines.iter().any(|line| line.starts_with(bench)), "{bench}: {lines:?}");
        }
        let lines = &lines[lines.len() - 6..];
        assert!(lines[0].contains("2.0 M/s   the kernel's cache 98 k/s"), "{lines:?}");
        assert!(lines[2].contains("not run") && lines[5].contains("2 MiB"), "{lines:?}");
        assert!(lines.iter().all(|line| line.len() < 100));
    }

    fn of_database(rows: &[(&str, &str, f64)]) -> Vec<String> {
        let row = |(variant, metric, median): &(&str, &str, f64)| {
            let metric = format!("files_{metric}");
            json!({ "variant": variant, "metric": metric, "median": median })
        };
        let rows: Vec<Value> = rows.iter().map(row).collect();
        lines(&[json!({ "bench": "database", "rows": rows })])
    }

    #[test]
    fn database_headline_names_winner() {
        let (alone, during) = ("lookups_alone", "lookups_during");
        let mut rows = vec![("ours", alone, 250_000.0), ("ours", during, 240_000.0)];
        let head = of_database(&rows);
        assert!(head[0].ends_with("not run, nothing to compare"), "{head:?}");
        assert_eq!(head[1], "  Forebay 0.24 M/s lookups, 96 % of alone");
        rows.extend([("xfs-tar", alone, 2e5), ("xfs-tar", during, 6e4)]);
        rows.push(("xfs-tar", "hot_set_lost", 41.0));
        rows.extend([("xfs-direct", during, 2e5), ("xfs-nocache", during, 1e5)]);
        let shown = of_database(&rows);
        let verdict = "Forebay is 4.00 times as fast as the kernel during tar";
        assert_eq!(shown[0], format!("SQLite during a backup: {verdict}"));
        assert!(shown[1].ends_with("the kernel during tar 60 k/s, 41 % of its hot set lost"));
        assert!(shown[2].contains("xfs-direct: 0.20 M/s; Forebay 1.20 times that"), "{shown:?}");
        assert_eq!(shown.len(), 4 + COLUMNS.len(), "{shown:?}");
        assert!(shown[4].starts_with("ours ") && shown[4].contains("0.96"), "{shown:?}");
        assert_eq!(shown[5], format!("{:16}  not run", "ours-uncached"));
        assert!(shown.iter().all(|line| line.len() <= 100), "{shown:?}");
    }

    #[test]
    fn backup_without_pace_is_shown_where_it_was_run() {
        let row = |metric: &str, median: f64| {
            let variant = "ours";
            json!({ "variant": variant, "metric": metric, "median": median })
        };
        let mut rows = vec![row("files_lookups_alone", 2e5), row("files_lookups_during", 1e5)];
        let shown = |rows: &[Value]| {
            let report = json!({ "bench": "database", "rows": rows });
            lines(&[report])[1].clone()
        };
        assert!(shown(&rows).contains("50 % of alone"), "{}", shown(&rows));
        rows.extend([row("fast_lookups_alone", 2e5), row("fast_lookups_during", 5e4)]);
        assert!(shown(&rows).contains("25 % of alone"), "{}", shown(&rows));
    }

    #[test]
    fn database_headline_reports_no_advantage() {
        let of = |tar: f64, lost: f64| {
            let (alone, during) = ("lookups_alone", "lookups_during");
            of_database(&[
                ("ours", alone, 1e5),
                ("ours", during, 1e5),
                ("xfs-tar", during, tar),
                ("xfs-tar", "hot_set_lost", lost),
            ])
        };
        assert!(of(2e5, 30.0)[0].ends_with("no better than the kernel during tar: 0.50 times"));
        assert!(of(5e4, 19.0)[0].ends_with("kept its hot set: nothing to compare"));
        // Not measured (S1). The story: it counted as a hot set that was kept.
        let unknown = of(5e4, f64::NAN);
        assert!(unknown[0].ends_with("hot set is unknown: nothing to compare"), "{unknown:?}");
        assert!(unknown[1].ends_with("an unknown part of its hot set lost"), "{unknown:?}");
        assert_eq!(lines(&[]).iter().filter(|line| line.contains("SQLite")).count(), 0);
    }
}
