//! The metrics in Prometheus' text format (0.0.4): base units, and the unit in each name.
//!
//! Invariants: M1 a name consists of letters, digits and underscores; each metric has a type and a
//! help text. M2 a counter's name ends in `_total`; times are in seconds, amounts in bytes, in
//! blocks or in a count of objects.

use crate::source::{Number, Source};
use forebay::Described;
use forebay::latency::{BUCKETS, Taken, bound_nanos};
use std::fmt::Write;

/// All metrics of a source.
pub fn text(source: &dyn Source, uptime_seconds: f64) -> String {
    let mut out = String::new();
    let what = label(source.what());
    let version = env!("CARGO_PKG_VERSION");
    head(&mut out, "forebay_info", "gauge", "Version and front end of the process, as labels.");
    let _ = writeln!(out, "forebay_info{{version=\"{version}\",what=\"{what}\"}} 1");
    let mut one = |name: &str, kind: &str, help: &str, value: f64| {
        head(&mut out, name, kind, help);
        let _ = writeln!(out, "{name} {value}");
    };
    let help = "Seconds since the process began to serve metrics.";
    one("forebay_uptime_seconds", "gauge", help, uptime_seconds);
    let healthy = f64::from(u8::from(source.health().is_ok()));
    let help = "0 while accepted bytes cannot be written, else 1.";
    one("forebay_healthy", "gauge", help, healthy);
    let stats = source.stats();
    for figure in stats.described() {
        let (name, kind) = cache_name(&figure);
        let help = figure.help.replace(", ns.", ", seconds.");
        one(&name, kind, &help, figure.value as f64 / scale_of(figure.name));
    }
    let help = "Bytes written for each byte that was dirty.";
    one("forebay_write_amplification_ratio", "gauge", help, stats.write_amplification());
    if let Some(front) = source.front() {
        for number in front.numbers() {
            let (name, kind) = front_name(front.name(), &number);
            one(&name, kind, number.help, number.value as f64 / scale_of(number.name));
        }
        out.push_str(&front.more_metrics());
    }
    let helps = [
        "Time that a read took which waited for the device, seconds.",
        "Time that a write-out took, seconds.",
        "Time that a flush of a device took, seconds.",
    ];
    for ((name, taken), help) in source.latencies().into_iter().zip(helps) {
        histogram(&mut out, name, help, &taken);
    }
    out
}

fn head(out: &mut String, name: &str, kind: &str, help: &str) {
    let help = help.replace('\\', "\\\\").replace('\n', " ");
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

/// A value of a label.
pub fn label(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

fn scale_of(field: &str) -> f64 {
    if field.ends_with("_nanos") { 1e9 } else { 1.0 }
}

/// Name and type.
fn cache_name(figure: &Described) -> (String, &'static str) {
    let base = match figure.name {
        "hits" | "misses" => format!("{}_blocks", figure.name),
        "frames_total" => "frames".to_string(),
        field => field.replace("_nanos", "_seconds"),
    };
    let name = format!("forebay_{base}");
    if figure.is_gauge { (name, "gauge") } else { (format!("{name}_total"), "counter") }
}

/// Name and type.
fn front_name(what: &str, number: &Number) -> (String, &'static str) {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
    let what: String = what.chars().map(plain).collect();
    let field: String = number.name.chars().map(plain).collect();
    let name = format!("forebay_{what}_{}", field.replace("_nanos", "_seconds"));
    if number.counts { (format!("{name}_total"), "counter") } else { (name, "gauge") }
}

/// Writes a histogram: how many values are up to each bound, how many there are, and their sum.
fn histogram(out: &mut String, name: &str, help: &str, taken: &Taken) {
    let name = format!("forebay_{name}_seconds");
    head(out, &name, "histogram", help);
    let mut sum = 0;
    for (bucket, count) in taken.counts.iter().enumerate().take(BUCKETS - 1) {
        sum += count;
        let bound = bound_nanos(bucket) as f64 / 1e9;
        let _ = writeln!(out, "{name}_bucket{{le=\"{bound}\"}} {sum}");
    }
    let all = taken.count();
    let _ = writeln!(out, "{name}_bucket{{le=\"+Inf\"}} {all}");
    let _ = writeln!(out, "{name}_sum {}\n{name}_count {all}", taken.nanos as f64 / 1e9);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CacheSource, FrontEnd};
    use forebay::{Cache, CacheConfig, OpenOptions};
    use std::collections::BTreeSet;

    struct Polls;

    impl FrontEnd for Polls {
        fn name(&self) -> &str {
            "a b"
        }

        fn numbers(&self) -> Vec<Number> {
            vec![
                Number::counter("poll_nanos", "CPU time.", 1_500_000_000),
                Number::gauge("clients", "Now.", 3),
            ]
        }
    }

    /// M1, M2: each metric of a source is checked.
    #[test]
    fn m1_m2_names_say_type_and_unit() {
        let cache = Cache::new(CacheConfig::with_budget(8 << 20)).unwrap();
        let source = CacheSource::new("a\"b", &cache).with_front(std::sync::Arc::new(Polls));
        let text = text(&source, 2.5);
        let mut seen = BTreeSet::new();
        let mut typed = (String::new(), String::new());
        for line in text.lines() {
            if let Some(help) = line.strip_prefix("# HELP ") {
                assert!(!help.ends_with(", ns."), "{help}: the value is in seconds");
            }
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').unwrap();
                assert!(seen.insert(name.to_string()), "{name} twice");
                typed = (name.to_string(), kind.to_string());
            }
            if line.starts_with('#') {
                continue;
            }
            let (name, value) = line.rsplit_once(' ').unwrap();
            assert!(value.parse::<f64>().is_ok_and(f64::is_finite), "{line}");
            let name = name.split('{').next().unwrap();
            assert!(name.starts_with(&typed.0), "{line} below the type of {}", typed.0);
            assert!(
                name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_' || b.is_ascii_digit())
            );
            assert!(!name.contains("nanos"), "{name}");
            assert_eq!(typed.1 == "counter", name.ends_with("_total"), "{line}");
        }
        assert!(text.contains("what=\"a\\\"b\""), "labels are escaped");
        let counts = "# HELP forebay_a_b_poll_seconds_total CPU time.\n\
                      # TYPE forebay_a_b_poll_seconds_total counter\n\
                      forebay_a_b_poll_seconds_total 1.5\n";
        assert!(text.contains(counts), "{text}");
        assert!(text.contains("# TYPE forebay_a_b_clients gauge\nforebay_a_b_clients 3\n"));
        assert!(!text.contains("untyped"));
        assert!(text.contains("forebay_hits_blocks_total 0\n"));
        assert!(text.contains("forebay_read_wait_seconds_bucket{le=\"+Inf\"} 0\n"));
        assert!(text.contains("forebay_throttled_seconds_total 0\n"));
    }

    #[test]
    fn waits_are_in_their_histogram() {
        let cache = Cache::new(CacheConfig::with_budget(8 << 20)).unwrap();
        let path = std::env::temp_dir().join(format!("forebay-metrics-{}", std::process::id()));
        let options = OpenOptions::read_write().create(true).create_size(1 << 20).clone();
        let file = options.open(&cache, &path).unwrap();
        file.read_at(&mut [0; 4096], 0).unwrap();
        file.read_at(&mut [0; 4096], 0).unwrap();
        let text = text(&CacheSource::new("library", &cache), 0.0);
        assert!(text.contains("forebay_read_wait_seconds_count 1\n"), "a hit is not waited for");
        std::fs::remove_file(&path).unwrap();
    }
}
