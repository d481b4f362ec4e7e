//! The kernel's rows that need a memory cgroup run in a child process, because a cgroup charges
//! page cache to processes. The child is this same program, started with `__worker`, and takes
//! one JSON object per line on its standard input: a job; it answers each with one line.
//!
//! Invariant: W1 the child joins its cgroup before it opens a file.

use crate::cgroup::Memcg;
use crate::fileset::kernel_parts;
use crate::hotset::{self, HotSpec};
use crate::kernel::{DONTCACHE, KernelFile};
use crate::load::{Load, Pattern, Slice, run};
use crate::meter::Usage;
use crate::uncached_writes;
use forebay_base::hist::Hist;
use forebay_base::{Error, ErrorKind, Result};
use rustix::fs::{Advice, fadvise};
use rustix::io::ReadWriteFlags;
use serde_json::{Value, json};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

/// First argument of the child.
pub const WORKER: &str = "__worker";

/// A child in a memory cgroup.
pub struct Worker {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    /// Its cgroup. Dropped after the child has ended (C1).
    pub group: Memcg,
}

/// How to start this program as a worker: the example itself, the command line's `bench`, or,
/// from a test, the example that was built beside it.
fn worker_command() -> Option<Command> {
    let exe = std::env::current_exe().ok()?;
    let with = |path: &Path, args: &[&str]| {
        let mut command = Command::new(path);
        command.args(args);
        command
    };
    match exe.file_name()?.to_str()? {
        "bench" => Some(with(&exe, &[WORKER])),
        "forebay" => Some(with(&exe, &["bench", WORKER])),
        _ => {
            let example: PathBuf = exe.parent()?.parent()?.join("examples/bench");
            example.exists().then(|| with(&example, &[WORKER]))
        }
    }
}

impl Worker {
    /// Starts a child in a new memory cgroup with a limit in bytes.
    pub fn start(name: &str, limit: u64) -> Result<Self> {
        let group = Memcg::create(name, limit)?;
        let none = || Error::new(ErrorKind::NotFound, "start worker", "no program to start");
        let mut command = worker_command().ok_or_else(none)?;
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(|e| Error::from_io("start worker", e))?;
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().expect("stdout is piped"));
        let worker = Self { child, input, output, group };
        worker.group.add(worker.child.id())?;
        Ok(worker)
    }

    /// Has one job done.
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
    /// One slice over several files of `each` bytes, through the page cache; writes end with
    /// fdatasync.
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

/// The child's side of [`Worker::set_slice`].
fn set_here(job: &Value) -> Result<Slice> {
    let count = |key: &str| job[key].as_u64().unwrap_or(0);
    let paths = job["paths"].as_array().into_iter().flatten();
    let paths: Vec<PathBuf> = paths.filter_map(|p| p.as_str().map(PathBuf::from)).collect();
    let random = job["random"] == true;
    let load = Load {
        write: job["write"] == true,
        pattern: if random { Pattern::Random } else { Pattern::Sequential },
        threads: count("threads") as usize,
        block: count("block") as usize,
        start: 0,
        len: count("len"),
        time: Duration::from_millis(count("millis")),
        seed: count("seed"),
        sample_every: 1,
    };
    let dontcache = job["dontcache"] == true;
    let flags = if dontcache { DONTCACHE } else { ReadWriteFlags::empty() };
    let open = rustix::fs::OFlags::empty();
    let parts = kernel_parts(&paths, count("each"), open, flags)?;
    if load.write {
        return uncached_writes::timed(&parts, &load, || parts.sync());
    }
    for part in &parts.parts {
        let advised = fadvise(&part.file, 0, None, Advice::Random);
        advised.map_err(|e| Error::from_io("fadvise", e.into()))?;
    }
    run(&parts, &load)
}

fn slice_to(slice: &Slice) -> Value {
    json!({ "ops": slice.ops, "bytes": slice.bytes, "seconds": slice.seconds,
        "cpu": slice.usage.cpu_seconds, "voluntary": slice.usage.voluntary,
        "involuntary": slice.usage.involuntary, "hist": slice.hist.occupied() })
}

fn slice_from(answer: &Value) -> Slice {
    let count = |key: &str| answer[key].as_u64().unwrap_or(0);
    let real = |key: &str| answer[key].as_f64().unwrap_or(0.0);
    let hist = Hist::new();
    for pair in answer["hist"].as_array().into_iter().flatten() {
        hist.record_n(pair[0].as_u64().unwrap_or(0), pair[1].as_u64().unwrap_or(0));
    }
    let (voluntary, involuntary) = (count("voluntary"), count("involuntary"));
    let usage = Usage { cpu_seconds: real("cpu"), voluntary, involuntary };
    Slice { ops: count("ops"), bytes: count("bytes"), seconds: real("seconds"), usage, hist }
}

/// The child's side: answers until its input ends. Returns the exit code.
pub fn serve() -> i32 {
    let mut open: Option<(PathBuf, KernelFile)> = None;
    for line in std::io::stdin().lock().lines() {
        let Ok(line) = line else { return 1 };
        let job: Value = serde_json::from_str(&line).unwrap_or(Value::Null);
        let answer = do_job(&job, &mut open).unwrap_or_else(|e| json!({ "error": e.to_string() }));
        println!("{answer}");
    }
    0
}

fn do_job(job: &Value, open: &mut Option<(PathBuf, KernelFile)>) -> Result<Value> {
    let path = PathBuf::from(job["path"].as_str().unwrap_or_default());
    let count = |key: &str| job[key].as_u64().unwrap_or(0);
    match job["job"].as_str() {
        Some("randread") => {
            if open.as_ref().is_none_or(|(was, _)| *was != path) {
                *open = Some((path.clone(), KernelFile::new(open_random(&path)?)));
            }
            let (_, file) = open.as_ref().expect("opened above");
            let load = Load {
                write: false,
                pattern: Pattern::Random,
                threads: count("threads") as usize,
                block: count("block") as usize,
                start: 0,
                len: count("len"),
                time: Duration::from_millis(count("millis")),
                seed: count("seed"),
                sample_every: 1,
            };
            Ok(slice_to(&run(file, &load)?))
        }
        Some("set") => set_here(job).map(|slice| slice_to(&slice)),
        Some("compete") => uncached_writes::compete_here(job),
        Some("hotset") => {
            let target = hotset::KernelHot::open(&path, job["dontcache"] == true)?;
            hotset::measure(&target, &HotSpec::from_json(job)).map(|result| result.to_json())
        }
        _ => Err(Error::new(ErrorKind::Unsupported, "worker", format!("job {job}"))),
    }
}

/// Opens a file for reading without readahead.
pub fn open_random(path: &Path) -> Result<File> {
    let file = File::open(path).map_err(|e| Error::from_io("open", e).with_path(path))?;
    let advised = fadvise(&file, 0, None, Advice::Random);
    advised.map_err(|e| Error::from_io("fadvise", e.into()))?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_survives_the_pipe() {
        let slice = Slice { ops: 10, bytes: 40960, seconds: 0.5, ..Slice::default() };
        (1..=10).for_each(|n| slice.hist.record(n));
        let back = slice_from(&slice_to(&slice));
        assert_eq!((back.ops, back.bytes, back.seconds), (10, 40960, 0.5));
        assert_eq!(back.hist.percentile(50.0), slice.hist.percentile(50.0));
        assert!(do_job(&json!({ "job": "nonsense" }), &mut None).is_err());
    }
}
