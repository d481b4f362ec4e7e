//! fio's nbd engine as the client: runs fio and parses its JSON.

use crate::harness::alternate::Turn;
use crate::harness::load::Slice;
use crate::harness::meter::Usage;
use crate::report::lack::not_started;
use forebay_base::{Error, ErrorKind, Result};
use serde_json::Value;
use std::io::Read;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Time beyond its run time that fio may take to start, connect and report.
const GRACE: Duration = Duration::from_secs(120);

/// One fio job against an NBD server.
#[derive(Clone, Debug)]
pub struct FioJob {
    /// fio's `rw`: randread, randrw, read, write ..
    pub rw: &'static str,
    /// Bytes of a request.
    pub block: u64,
    /// Requests in flight on each connection.
    pub depth: u32,
    /// Connections.
    pub connections: u32,
    /// Duration.
    pub millis: u64,
    /// Most bytes that all connections together transfer; 0: limited only by time.
    pub bytes_max: u64,
    /// Seed of the offsets.
    pub seed: u64,
}

/// Whether fio is installed with its nbd engine.
pub fn available() -> Result<()> {
    let output = Command::new("fio").arg("--enghelp").stderr(Stdio::null()).output();
    let output = output.map_err(|e| not_started("fio", e))?;
    if String::from_utf8_lossy(&output.stdout).lines().any(|line| line.trim() == "nbd") {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Unsupported, "fio", "it has no nbd engine"))
}

/// A scratch file that is removed on drop.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        static SERIAL: AtomicU64 = AtomicU64::new(0);
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        let name = format!("forebay-bench-fio-{}-{serial}.json", std::process::id());
        Self(std::env::temp_dir().join(name))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

impl FioJob {
    /// One request of 4 KiB at a time on one connection, limited only by time.
    pub fn single(rw: &'static str, turn: &Turn) -> Self {
        let (millis, seed) = (turn.time.as_millis() as u64, turn.seed);
        Self { rw, block: 4096, depth: 1, connections: 1, millis, bytes_max: 0, seed }
    }

    fn add_to(&self, command: &mut Command, name: &str, uri: &str) {
        command.arg(format!("--name={name}")).args(["--ioengine=nbd", "--norandommap=1"]);
        // Threads instead of processes, so that a signal to fio ends all jobs.
        command.args(["--randrepeat=0", "--group_reporting=1", "--rwmixread=70", "--thread=1"]);
        command.arg(format!("--uri={uri}")).arg(format!("--rw={}", self.rw));
        command.arg(format!("--bs={}", self.block)).arg(format!("--iodepth={}", self.depth));
        command.arg(format!("--numjobs={}", self.connections));
        command.arg(format!("--randseed={}", self.seed));
        command.arg(format!("--runtime={}ms", self.millis));
        if self.bytes_max > 0 {
            let each = (self.bytes_max / u64::from(self.connections)).max(self.block);
            command.arg(format!("--io_size={each}"));
        } else {
            command.arg("--time_based=1");
        }
    }
}

/// Runs the jobs at the same time and returns one slice for each, with reads and writes together.
/// The slices contain operations, time and latencies; the caller adds the usage.
pub fn run(jobs: &[FioJob], uri: &str, cpu: Option<usize>) -> Result<Vec<Slice>> {
    run_with(jobs, uri, cpu, &[])
}

/// As [`run`], with further options for every job.
pub fn run_with(
    jobs: &[FioJob],
    uri: &str,
    cpu: Option<usize>,
    more: &[&str],
) -> Result<Vec<Slice>> {
    let mut command = Command::new("fio");
    for (index, job) in jobs.iter().enumerate() {
        job.add_to(&mut command, &format!("job{index}"), uri);
        command.arg("--new_group=1").args(more);
        if let Some(cpu) = cpu {
            command.arg(format!("--cpus_allowed={cpu}"));
        }
    }
    let time = jobs.iter().map(|job| job.millis).max().unwrap_or(0);
    let found = run_command(command, Duration::from_millis(time))?;
    if found.len() != jobs.len() || found.iter().any(|slice| slice.ops == 0) {
        return Err(Error::new(ErrorKind::Io, "fio", "a job transferred nothing"));
    }
    Ok(found)
}

/// Runs fio with these arguments, for `time` and a grace period, and parses its JSON. Returns one
/// slice for each of its groups.
pub fn run_command(mut command: Command, time: Duration) -> Result<Vec<Slice>> {
    let scratch = Scratch::new();
    command.arg("--output-format=json+").arg("--output").arg(&scratch.0);
    run_to_end(command, time + GRACE)?;
    let text = std::fs::read_to_string(&scratch.0).map_err(|e| Error::from_io("read", e))?;
    // fio may print warnings before the JSON.
    let start = text.find('{').unwrap_or(0);
    let bad =
        |e: serde_json::Error| Error::new(ErrorKind::Corrupt, "read fio's JSON", e.to_string());
    let json: Value = serde_json::from_str(&text[start..]).map_err(bad)?;
    Ok(json["jobs"].as_array().into_iter().flatten().map(slice_of).collect())
}

/// Waits for fio, and kills it after `limit`: its nbd engine never returns from a server that has
/// ended.
fn run_to_end(mut command: Command, limit: Duration) -> Result<()> {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|e| not_started("fio", e))?;
    let deadline = Instant::now() + limit;
    let status = loop {
        if let Some(status) = child.try_wait().map_err(|e| Error::from_io("wait for fio", e))? {
            break status;
        }
        if Instant::now() >= deadline {
            let _ = child.kill();
            let _ = child.wait();
            let text = format!("killed because it did not end within {limit:?}");
            return Err(Error::new(ErrorKind::Io, "fio", text));
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    if status.success() {
        return Ok(());
    }
    let mut said = String::new();
    if let Some(mut pipe) = child.stderr.take() {
        let _ = pipe.read_to_string(&mut said);
    }
    let text = said.lines().next().unwrap_or("no message").to_string();
    Err(Error::new(ErrorKind::Io, "fio", format!("{status}: {text}")))
}

/// The latencies are those of the syncs, if the job had any.
fn slice_of(job: &Value) -> Slice {
    let mut slice = Slice { usage: Usage::default(), ..Slice::default() };
    for direction in ["read", "write"] {
        let part = &job[direction];
        slice.ops += part["total_ios"].as_u64().unwrap_or(0);
        slice.bytes += part["io_bytes"].as_u64().unwrap_or(0);
        slice.seconds = slice.seconds.max(part["runtime"].as_f64().unwrap_or(0.0) / 1e3);
        if job["sync"]["total_ios"].as_u64().unwrap_or(0) == 0 {
            record(&mut slice, &part["clat_ns"]["bins"]);
        }
    }
    record(&mut slice, &job["sync"]["lat_ns"]["bins"]);
    slice
}

fn record(slice: &mut Slice, bins: &Value) {
    for (nanos, count) in bins.as_object().into_iter().flatten() {
        slice.hist.record_n(nanos.parse().unwrap_or(0), count.as_u64().unwrap_or(0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn reads_and_writes_of_a_job_add_up() {
        let job = json!({
            "read": { "total_ios": 3, "io_bytes": 12288, "runtime": 500,
                "clat_ns": { "bins": { "1000": 2, "9000": 1 } } },
            "write": { "total_ios": 1, "io_bytes": 4096, "runtime": 499 },
        });
        let slice = slice_of(&job);
        assert_eq!((slice.ops, slice.bytes, slice.seconds), (4, 16384, 0.5));
        assert_eq!(slice.hist.count(), 3);
        assert!(slice.hist.max().abs_diff(9000) < 90, "{}", slice.hist.max());
        let job = json!({
            "write": { "total_ios": 2, "io_bytes": 8192, "runtime": 100,
                "clat_ns": { "bins": { "10": 2 } } },
            "sync": { "total_ios": 2, "lat_ns": { "bins": { "7000": 2 } } },
        });
        assert_eq!((slice_of(&job).ops, slice_of(&job).hist.percentile(50.0) > 6000), (2, true));
    }
}
