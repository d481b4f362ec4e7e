//! Work of the kernel's variants that needs a memory cgroup runs in a child process, because a
//! cgroup charges page cache to processes. The child is this program, started with `__worker`. It
//! reads one JSON object per line from its standard input, a job, and answers each with one line.
//! This module is the parent's side, `jobs` is the child's.
//!
//! Invariant: W1 the child joins its cgroup before it opens a file.

use crate::harness::hist::Hist;
use crate::harness::load::{Load, Pattern, Slice};
use crate::harness::meter::Usage;
use forebay_base::{Error, ErrorKind, Result};
use forebay_testkit::cgroup::Memcg;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// First argument of the child.
pub const WORKER: &str = "__worker";

/// A child in a memory cgroup.
pub struct Worker {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    /// The cgroup of the child, if it has one. It is removed after the child has ended.
    group: Option<Memcg>,
}

/// The command that starts this program with a first argument that [`crate::helper_process`] knows.
/// A test starts the example `bench`, which is built with it.
pub fn program(first: &str) -> Option<Command> {
    let exe = std::env::current_exe().ok()?;
    let is_test = exe.parent()?.file_name().is_some_and(|name| name == "deps");
    let program = match is_test {
        true => exe.parent()?.parent()?.join("examples/bench"),
        false => exe,
    };
    program.exists().then(|| {
        let mut command = Command::new(program);
        command.arg(first);
        command
    })
}

impl Worker {
    /// Starts a child in a new memory cgroup with a limit in bytes.
    pub fn start(name: &str, limit: u64) -> Result<Self> {
        Self::start_in(Some(Memcg::create(name, limit)?))
    }

    /// Starts a child without a cgroup of its own.
    pub fn free() -> Result<Self> {
        Self::start_in(None)
    }

    fn start_in(group: Option<Memcg>) -> Result<Self> {
        let none = || Error::new(ErrorKind::NotFound, "start worker", "no program to start");
        let mut command = program(WORKER).ok_or_else(none)?;
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(|e| Error::from_io("start worker", e))?;
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().expect("stdout is piped"));
        let worker = Self { child, input, output, group };
        if let Some(group) = &worker.group {
            group.add(worker.child.id())?;
        }
        Ok(worker)
    }

    /// The memory cgroup of the child, if it has one.
    pub fn group(&self) -> Option<&Memcg> {
        self.group.as_ref()
    }

    /// The process id of the child.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Ends it with SIGKILL, and waits until it has ended.
    pub fn kill(mut self) -> Result<()> {
        self.child.kill().map_err(|e| Error::from_io("kill worker", e))
    }

    /// Sends a job and returns its answer.
    pub fn ask(&mut self, job: &Value) -> Result<Value> {
        let fail = |e| Error::from_io("ask worker", e);
        let input = self.input.as_mut().expect("open until drop");
        writeln!(input, "{job}").and_then(|()| input.flush()).map_err(fail)?;
        let mut line = String::new();
        self.output.read_line(&mut line).map_err(fail)?;
        let answer: Value = serde_json::from_str(&line).unwrap_or(Value::Null);
        match (&answer, answer["error"].as_str()) {
            (Value::Null, _) => Err(Error::new(ErrorKind::Io, "ask worker", "it ended")),
            (_, Some(text)) => Err(Error::new(ErrorKind::Io, "worker", text)),
            _ => Ok(answer),
        }
    }

    /// One slice of random reads of a file through the page cache.
    pub fn randread(&mut self, path: &Path, load: &Load) -> Result<Slice> {
        let job = json!({ "job": "randread", "path": path, "threads": load.threads,
            "block": load.block, "len": load.len, "seed": load.seed,
            "millis": load.time.as_millis() as u64 });
        Ok(slice_from(&self.ask(&job)?))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        drop(self.input.take());
        let _ = self.child.wait();
    }
}

impl Worker {
    /// One slice over several files of `each` bytes, through the page cache; a slice of writes ends
    /// with fdatasync.
    pub fn set_slice(
        &mut self,
        paths: &[PathBuf],
        each: u64,
        load: &Load,
        dontcache: bool,
    ) -> Result<Slice> {
        let job = json!({ "job": "set", "paths": paths, "each": each, "threads": load.threads,
            "block": load.block, "len": load.len, "seed": load.seed, "write": load.write,
            "dontcache": dontcache, "random": load.pattern == Pattern::Random,
            "millis": load.time.as_millis() as u64 });
        Ok(slice_from(&self.ask(&job)?))
    }
}

/// Encodes a slice for the pipe.
pub fn slice_to(slice: &Slice) -> Value {
    json!({ "ops": slice.ops, "bytes": slice.bytes, "seconds": slice.seconds,
        "cpu": slice.usage.cpu_seconds, "voluntary": slice.usage.voluntary,
        "involuntary": slice.usage.involuntary, "hist": slice.hist.occupied() })
}

fn slice_from(answer: &Value) -> Slice {
    let count = |key: &str| answer[key].as_u64().unwrap_or(0);
    let real = |key: &str| answer[key].as_f64().unwrap_or(0.0);
    let mut hist = Hist::default();
    for pair in answer["hist"].as_array().into_iter().flatten() {
        hist.record_n(pair[0].as_u64().unwrap_or(0), pair[1].as_u64().unwrap_or(0));
    }
    let (voluntary, involuntary) = (count("voluntary"), count("involuntary"));
    let usage = Usage { cpu_seconds: real("cpu"), voluntary, involuntary };
    let (ops, bytes, seconds) = (count("ops"), count("bytes"), real("seconds"));
    Slice { ops, bytes, seconds, usage, hist, ..Slice::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slice_survives_pipe() {
        let mut slice = Slice { ops: 10, bytes: 40960, seconds: 0.5, ..Slice::default() };
        (1..=10).for_each(|n| slice.hist.record(n));
        let back = slice_from(&slice_to(&slice));
        assert_eq!((back.ops, back.bytes, back.seconds), (10, 40960, 0.5));
        assert_eq!(back.hist.percentile(50.0), slice.hist.percentile(50.0));
    }
}
