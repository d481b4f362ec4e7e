//! What a newcomer wants to see, in a few lines, from saved results: `bench report --screen`.
//!
//! Invariants: S1 a line whose figures are not there says so; nothing is judged. S2 each of the five
//! behaviours has its line.

use super::five;
use serde_json::Value;

/// A row's median.
fn row(found: &[Value], bench: &str, variant: &str, metric: &str) -> Option<f64> {
    let own = found.iter().find(|value| value["bench"] == bench)?;
    let rows = own["rows"].as_array()?;
    let row = rows.iter().find(|row| row["variant"] == variant && row["metric"] == metric)?;
    row["median"].as_f64()
}

/// A rate for people: `2.0 M/s`, `61 k/s`.
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

/// The lines: of the five behaviours, and of the database if it was run.
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

/// Columns of the bench `database`.
const COLUMNS: [&str; 5] =
    ["xfs", "xfs-tar-apart", "xfs-direct-reader", "forebay", "forebay-uncached"];

/// A table of the columns of the bench `database`, and its pictures.
fn database(found: &[Value]) -> Vec<String> {
    let Some(own) = found.iter().find(|value| value["bench"] == "database") else {
        return Vec::new();
    };
    let mut lines = Vec::new();
    for (load, title) in [("select", "pgbench -S"), ("tpcb", "pgbench, TPC-B")] {
        let number = |column: &str, metric: &str| {
            row(found, "database", column, &format!("{load}_{metric}"))
        };
        if COLUMNS.iter().all(|column| number(column, "tps_alone").is_none()) {
            lines.push(format!("{title:18}  not run"));
            continue;
        }
        lines.push(format!(
            "{title:18} {:>8} {:>8} {:>9} {:>9} {:>7} {:>7}  CPU %: {:>4} {:>6} {:>7} {:>7}",
            "tps",
            "beside",
            "p99 us",
            "beside",
            "hits",
            "MB/s",
            "db",
            "backup",
            "forebay",
            "machine"
        ));
        for column in COLUMNS {
            let Some(alone) = number(column, "tps_alone") else {
                lines.push(format!("{column:18}  not run"));
                continue;
            };
            let text =
                |metric: &str| number(column, metric).map_or("-".into(), |v| format!("{v:.0}"));
            lines.push(format!(
                "{column:18} {alone:>8.0} {:>8} {:>9} {:>9} {:>6}% {:>7}         {:>4} {:>6} {:>7} {:>7}",
                text("tps_beside"),
                text("p99_alone"),
                text("p99_beside"),
                text("hit_ratio"),
                text("backup_rate"),
                text("cpu_database"),
                text("cpu_backup"),
                text("cpu_forebay"),
                text("cpu_machine"),
            ));
        }
    }
    let notes = own["notes"].as_array().into_iter().flatten().filter_map(Value::as_str);
    // What others did meanwhile is not of the picture.
    let own_notes = notes.filter(|note| !note.starts_with("database: others"));
    lines.extend(own_notes.map(str::to_string));
    lines
}

fn behaviours(found: &[Value]) -> Vec<String> {
    let hot = |who: &str, stream: &str, metric: &str| {
        let variant = format!("{who}-beside-{stream}-stream");
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
            "hot set beside a scan, reads",
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

    /// S1, S2.
    #[test]
    fn what_is_there_is_shown_and_what_is_not_is_said() {
        let row = |variant: &str, metric: &str, median: f64| -> Value {
            let (variant, metric) = (json!(variant), json!(metric));
            json!({ "variant": variant, "metric": metric, "median": median })
        };
        let rows = [
            row("ours-beside-cached-stream", "hot_set_rate_during", 2_040_000.0),
            row("kernel-beside-cached-stream", "hot_set_rate_during", 98_000.0),
        ];
        let lines = lines(&[json!({ "bench": "uncached", "rows": rows })]);
        // S2. The fifth behaviour had no line, and the table of all five was not shown.
        for bench in ["dirty", "loop", "stable", "uncached", "alloc"] {
            assert!(lines.iter().any(|line| line.starts_with(bench)), "{bench}: {lines:?}");
        }
        let lines = &lines[lines.len() - 6..];
        assert!(lines[0].contains("2.0 M/s   the kernel's cache 98 k/s"), "{lines:?}");
        assert!(lines[2].contains("not run") && lines[5].contains("2 MiB"), "{lines:?}");
        assert!(lines.iter().all(|line| line.len() < 100));
    }

    #[test]
    fn the_database_has_a_table() {
        let row = |variant: &str, metric: &str, median: f64| -> Value {
            let (variant, metric) = (json!(variant), json!(metric));
            json!({ "variant": variant, "metric": metric, "median": median })
        };
        let rows =
            [row("xfs", "select_tps_alone", 44000.0), row("xfs", "select_tps_beside", 7000.0)];
        let notes = ["xfs @@@|...", "database: others used 3 %"];
        let lines = lines(&[json!({ "bench": "database", "rows": rows, "notes": notes })]);
        // S1. Columns that had not run were passed over, under heads with nothing below.
        let head = |line: &&String| line.contains("CPU %");
        assert_eq!(lines.iter().filter(head).count(), 1, "{lines:?}");
        for (at, column) in COLUMNS.iter().enumerate().skip(1) {
            assert_eq!(lines[at + 1], format!("{column:18}  not run"));
        }
        assert_eq!(lines[6], format!("{:18}  not run", "pgbench, TPC-B"));
        assert_eq!(lines.len(), 8, "a head, five columns, the other load, a picture: {lines:?}");
        assert!(lines[1].starts_with("xfs") && lines[1].contains("44000     7000"), "{lines:?}");
        assert!(lines.iter().all(|line| line.len() < 120), "{lines:?}");
    }
}
