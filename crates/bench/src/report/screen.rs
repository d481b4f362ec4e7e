//! What a newcomer wants to see, in a few lines, from saved results: `bench report --screen`.
//!
//! Invariant: S1 a line whose figures are not there says so; nothing is judged.

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

/// The lines.
pub fn lines(found: &[Value]) -> Vec<String> {
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
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// S1.
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
        assert!(lines[0].contains("2.0 M/s   the kernel's cache 98 k/s"), "{lines:?}");
        assert!(lines[2].contains("not run"), "{lines:?}");
        assert!(lines.iter().all(|line| line.len() < 100));
    }
}
