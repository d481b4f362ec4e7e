//! pgbench's output, by second and by transaction, and a plot of it in lines of text.

use crate::report::model::quantile;
use std::path::Path;

/// Shades of a plot, from 0 to the maximum.
const SHADES: &[u8] = b" .:-=+*#%@";

/// A run of pgbench: alone for some time, then during the backup.
#[derive(Debug, Clone, Default)]
pub struct Run {
    /// Transactions in each second, in order.
    pub tps: Vec<f64>,
    /// Number of these seconds before the backup.
    pub alone: usize,
    /// Latencies before and during the backup, us.
    pub latencies: [Vec<f64>; 2],
}

impl Run {
    /// Median of the transactions per second, before or during the backup. The second in which the
    /// backup began counts to neither.
    pub fn median_tps(&self, during: bool) -> f64 {
        let (alone, rest) = self.tps.split_at(self.alone.min(self.tps.len()));
        let of = if during { rest.get(1..).unwrap_or_default() } else { alone };
        // If the run is too short for that, all seconds of the backup count.
        quantile(if of.is_empty() { rest } else { of }, 0.5)
    }

    /// 99th percentile of the latency, us; NaN if there are no transactions.
    pub fn p99(&self, during: bool) -> f64 {
        quantile(&self.latencies[usize::from(during)], 0.99)
    }
}

/// Transactions per second, from lines such as `progress: 3.0 s, 41.2 tps, ...`.
pub fn progress(text: &str) -> Vec<f64> {
    let line = |line: &str| {
        let mut parts = line.strip_prefix("progress: ")?.split(", ");
        parts.next()?.strip_suffix(" s")?.parse::<f64>().ok()?;
        parts.next()?.strip_suffix(" tps")?.parse().ok()
    };
    text.lines().filter_map(line).collect()
}

/// Latencies (us) from the time `from` until the start of the backup, and after it (seconds since
/// the epoch). They are read from the logs whose names begin with `prefix`, which are removed.
pub fn latencies(prefix: &Path, (from, during): (f64, f64)) -> [Vec<f64>; 2] {
    let mut found = [Vec::new(), Vec::new()];
    let (Some(folder), Some(name)) = (prefix.parent(), prefix.file_name()) else { return found };
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let mine = entry.file_name().to_string_lossy().starts_with(&*name.to_string_lossy());
        if !mine {
            continue;
        }
        for (at, micros) in logged(&std::fs::read_to_string(entry.path()).unwrap_or_default()) {
            if at >= from {
                found[usize::from(at >= during)].push(micros);
            }
        }
        let _removed = std::fs::remove_file(entry.path());
    }
    found
}

/// End of each transaction of a log (seconds since the epoch), and its latency (us), from lines
/// with the fields `client number time script epoch us`.
fn logged(text: &str) -> impl Iterator<Item = (f64, f64)> {
    text.lines().filter_map(|line| {
        let fields: Vec<f64> = line.split(' ').filter_map(|f| f.parse().ok()).collect();
        (fields.len() >= 6).then(|| (fields[4] + fields[5] / 1e6, fields[2]))
    })
}

/// A plot of the transactions per second of each run, all on one scale; `|` marks the start of the
/// backup.
pub fn picture(title: &str, runs: &[(String, Run)]) -> Vec<String> {
    let top = runs.iter().flat_map(|(_, run)| run.tps.iter().copied()).fold(0.0, f64::max);
    if top <= 0.0 {
        return Vec::new();
    }
    let name = runs.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let shade = |tps: &f64| {
        let at = (tps / top * (SHADES.len() - 1) as f64).round() as usize;
        // Three characters for each second, so that a shade can be recognized.
        char::from(SHADES[at.min(SHADES.len() - 1)]).to_string().repeat(3)
    };
    let mut lines = vec![format!("{title}, `@@@` is {top:.0} transactions in a second:")];
    lines.extend(runs.iter().map(|(label, run)| {
        let (alone, during) = run.tps.split_at(run.alone.min(run.tps.len()));
        let marks = |part: &[f64]| part.iter().map(shade).collect::<String>();
        format!(
            "{label:name$} {}|{} {:.0} -> {:.0}",
            marks(alone),
            marks(during),
            run.median_tps(false),
            run.median_tps(true)
        )
    }));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pgbench_output_is_parsed() {
        let text = "pgbench (15.14)\nprogress: 1.0 s, 40120.5 tps, lat 0.099 ms stddev 0.040, 0 failed\n\
                    progress: 2.0 s, 7.0 tps, lat 550.1 ms stddev 3.0, 0 failed\ntps = 3\n";
        assert_eq!(progress(text), [40120.5, 7.0]);
        let log = "0 1 250 0 1700000000 500000\n1 1 900 0 1700000001 0\nrubbish\n";
        let read: Vec<_> = logged(log).collect();
        assert_eq!(read, [(1_700_000_000.5, 250.0), (1_700_000_001.0, 900.0)]);
    }

    /// pgbench.N5: `from` is one second after the start.
    #[test]
    fn logs_are_split_at_backup_and_removed() {
        let dir = std::env::temp_dir().join(format!("forebay-pgbench-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("log.7"), "0 1 9 0 99 0\n0 1 5 0 100 0\n0 1 6 0 101 0\n").unwrap();
        std::fs::write(dir.join("log.7.1"), "1 1 7 0 103 0\n").unwrap();
        assert_eq!(latencies(&dir.join("log"), (100.0, 101.0)), [vec![5.0], vec![6.0, 7.0]]);
        std::fs::remove_dir(&dir).expect("nothing is left in it");
    }

    #[test]
    fn picture_shows_falling_rate() {
        let run = |tps: &[f64]| Run { tps: tps.to_vec(), alone: 2, ..Run::default() };
        let runs = vec![
            ("xfs".to_string(), run(&[100.0, 100.0, 60.0, 10.0, 10.0])),
            ("forebay".to_string(), run(&[90.0, 90.0, 90.0, 90.0, 90.0])),
        ];
        let lines = picture("select", &runs);
        assert_eq!(lines[1], "xfs     @@@@@@|+++...... 100 -> 10");
        assert!(lines[2].ends_with("90 -> 90"), "{lines:?}");
        assert!(picture("nothing", &[]).is_empty());
        assert_eq!(run(&[4.0, 6.0, 1.0]).median_tps(true), 1.0, "a short one");
    }
}
