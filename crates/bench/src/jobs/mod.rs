//! The child's side of [`crate::rivals::worker`]: carries out one job for each line of its standard
//! input.
//!
//! Invariant: W2 a job that fails is answered with an error, and does not affect the next job.

use crate::database::lookups;
use crate::harness::load::{Load, Pattern, Slice, run};
use crate::hotset::measure::{HotSpec, measure};
use crate::hotset::targets::KernelHot;
use crate::rivals::fileset::{kernel_parts, timed};
use crate::rivals::kernel::{DONTCACHE, KernelFile, open_random};
use crate::rivals::worker::slice_to;
use crate::uncached::compete;
use crate::volume;
use forebay_base::{Error, ErrorKind, Result};
use rustix::fs::{Advice, fadvise};
use rustix::io::ReadWriteFlags;
use serde_json::{Value, json};
use std::io::BufRead;
use std::path::PathBuf;
use std::time::Duration;

fn count(job: &Value, key: &str) -> u64 {
    job[key].as_u64().unwrap_or(0)
}

/// The random reads that a job asks for.
fn load_of(job: &Value) -> Load {
    Load {
        write: false,
        pattern: Pattern::Random,
        threads: count(job, "threads") as usize,
        block: count(job, "block") as usize,
        start: 0,
        len: count(job, "len"),
        time: Duration::from_millis(count(job, "millis")),
        seed: count(job, "seed"),
        sample_every: 1,
    }
}

/// The child's side of [`crate::rivals::worker::Worker::set_slice`].
fn set_job(job: &Value) -> Result<Slice> {
    let paths = job["paths"].as_array().into_iter().flatten();
    let paths: Vec<PathBuf> = paths.filter_map(|p| p.as_str().map(PathBuf::from)).collect();
    let pattern = if job["random"] == true { Pattern::Random } else { Pattern::Sequential };
    let load = Load { write: job["write"] == true, pattern, ..load_of(job) };
    let dontcache = job["dontcache"] == true;
    let flags = if dontcache { DONTCACHE } else { ReadWriteFlags::empty() };
    let open = rustix::fs::OFlags::empty();
    let parts = kernel_parts(&paths, count(job, "each"), open, flags)?;
    if load.write {
        return timed(&parts, &load, || parts.sync());
    }
    for part in &parts.parts {
        let advised = fadvise(&part.file, 0, None, Advice::Random);
        advised.map_err(|e| Error::from_io("fadvise", e.into()))?;
    }
    run(&parts, &load)
}

/// The child's main loop: answers jobs until its input ends. Returns the exit code.
pub fn serve() -> u8 {
    let mut open: Option<(PathBuf, KernelFile)> = None;
    let mut database = lookups::State::default();
    for line in std::io::stdin().lock().lines() {
        let Ok(line) = line else { return 1 };
        let job: Value = serde_json::from_str(&line).unwrap_or(Value::Null);
        let done = match job["job"] == "database" {
            true => database.work(&job),
            false => do_job(&job, &mut open),
        };
        let answer = done.unwrap_or_else(|e| json!({ "error": e.to_string() }));
        println!("{answer}");
    }
    0
}

fn do_job(job: &Value, open: &mut Option<(PathBuf, KernelFile)>) -> Result<Value> {
    let path = PathBuf::from(job["path"].as_str().unwrap_or_default());
    match job["job"].as_str() {
        Some("randread") => {
            if open.as_ref().is_none_or(|(was, _)| *was != path) {
                *open = Some((path.clone(), KernelFile::new(open_random(&path)?)));
            }
            let (_, file) = open.as_ref().expect("opened above");
            Ok(slice_to(&run(file, &load_of(job))?))
        }
        Some("set") => set_job(job).map(|slice| slice_to(&slice)),
        Some("overwrite") => volume::overwrite_job(job),
        Some("touch") => volume::touch_job(job),
        Some("log") => volume::log_job(job),
        Some("recover") => volume::recover_job(job),
        Some("scale") => volume::scale_job(job),
        Some("compete") => compete::compete_job(job),
        Some("hotset") => {
            let target = KernelHot::open(&path, job["dontcache"] == true)?;
            measure(&target, &HotSpec::from_json(job)).map(|result| result.to_json())
        }
        _ => Err(Error::new(ErrorKind::Unsupported, "worker", format!("job {job}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_job_is_an_error() {
        assert!(do_job(&json!({ "job": "nonsense" }), &mut None).is_err());
    }
}
