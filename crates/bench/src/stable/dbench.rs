//! The real `dbench`: one run in some directory, and the table that it prints at its end, as the
//! kernel patch for stable pages quotes it.

use crate::report::lack::not_started;
use forebay_base::{Error, ErrorKind, Result};
use std::path::Path;
use std::process::{Command, Stdio};

/// Number of clients.
const CLIENTS: &str = "4";

/// An operation, with its count and times.
#[derive(Debug, Clone, PartialEq)]
pub struct Line {
    /// dbench's name for it.
    pub op: String,
    /// How often it was carried out.
    pub count: u64,
    /// Mean time, ms.
    pub avg: f64,
    /// Longest time, ms.
    pub max: f64,
}

/// The table that dbench prints at its end.
#[derive(Debug, Clone, PartialEq)]
pub struct Table {
    /// The operations, in dbench's order.
    pub lines: Vec<Line>,
    /// Throughput, MB/s.
    pub throughput: f64,
}

impl Table {
    fn parse(text: &str) -> Option<Self> {
        let mut table = Self { lines: Vec::new(), throughput: f64::NAN };
        for line in text.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            match words[..] {
                ["Throughput", rate, ..] => table.throughput = rate.parse().ok()?,
                [op, count, avg, max] => {
                    let (count, avg, max) = (count.parse(), avg.parse(), max.parse());
                    if let (Ok(count), Ok(avg), Ok(max)) = (count, avg, max) {
                        table.lines.push(Line { op: op.to_string(), count, avg, max });
                    }
                }
                _ => {}
            }
        }
        let whole = table.line("WriteX").is_some() && table.line("Flush").is_some();
        (whole && table.throughput.is_finite()).then_some(table)
    }

    /// The line of an operation.
    pub fn line(&self, op: &str) -> Option<&Line> {
        self.lines.iter().find(|line| line.op == op)
    }

    /// Longest time of an operation, ms.
    pub fn max(&self, op: &str) -> f64 {
        self.line(op).map_or(f64::NAN, |line| line.max)
    }

    /// Mean time of an operation, ms.
    pub fn avg(&self, op: &str) -> f64 {
        self.line(op).map_or(f64::NAN, |line| line.avg)
    }
}

/// Runs it below `at` for `seconds`, with four clients.
pub fn run(at: &Path, seconds: u64) -> Result<Table> {
    std::fs::create_dir_all(at).map_err(|e| Error::from_io("make", e).with_path(at))?;
    let mut command = Command::new("dbench");
    command.arg("-t").arg(seconds.to_string()).arg("-D").arg(at).arg(CLIENTS);
    let out = command.stdin(Stdio::null()).output().map_err(|e| not_started("dbench", e))?;
    Table::parse(&String::from_utf8_lossy(&out.stdout)).ok_or_else(|| {
        let said = String::from_utf8_lossy(&out.stderr);
        let text = format!("{}: {}", out.status, said.trim());
        Error::new(ErrorKind::Io, "dbench", text)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dbench_output_is_parsed() {
        let text = " Operation      Count    AvgLat    MaxLat\n \
                    ----------------------------------------\n \
                    WriteX         10963     0.154    33.114\n \
                    Flush            773    16.500   168.321\n\
                    Throughput 57.43 MB/sec  4 clients  4 procs  max_latency=59.8 ms\n";
        let table = Table::parse(text).unwrap();
        assert_eq!((table.lines.len(), table.throughput), (2, 57.43));
        assert_eq!((table.max("WriteX"), table.avg("Flush")), (33.114, 16.5));
        assert_eq!(table.line("WriteX").unwrap().count, 10963);
        assert_eq!(Table::parse("no such file"), None);
    }
}
