//! `alloc`: several programs write 2 MiB at a time with O_DIRECT through a mount, each its own
//! file. The kernel splits each such write into several concurrent requests. The part counts the
//! runs of the image into which a write ends up.
//!
//! Invariants: A1 a run is contiguous on the image, also if the volume's map splits it; a write in
//! one run counts one. A2 all writers begin each write at the same moment.

use crate::harness::options::Options;
use crate::report::model::{Good, Report};
use crate::rivals::mounted::{Mounted, Mounting, forebay_json};
use forebay_base::buf::AlignedBuf;
use forebay_base::units::{GIB, MIB, format_size};
use forebay_base::{Error, Result};
use rustix::fs::OFlags;
use serde_json::Value;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Barrier;
use std::time::Instant;

const REQUEST: u64 = 2 * MIB;
const WRITERS: usize = 4;
/// Bytes by which the buffer of the unaligned cell misses a page boundary.
const OFF: usize = 16;
/// O_DIRECT, which differs between architectures.
const DIRECT: OFlags = OFlags::DIRECT;

/// Runs it.
pub fn run(options: &Options, report: &mut Report) -> Result<()> {
    let count = if options.quick { 6 } else { 64 };
    let size = 3 * WRITERS as u64 * count * REQUEST + 256 * MIB;
    let mounted = Mounted::new(
        &options.dir,
        "alloc",
        Mounting::new(size.max(2 * GIB), 128 * MIB, &options.aio),
    )?;
    for (name, off) in [("aligned", 0), ("unaligned", OFF)] {
        let seconds = write(&mounted.path(), name, count, off)?;
        let mut runs = Vec::new();
        for writer in 0..WRITERS {
            let file = format!("{}:/{name}{writer}", mounted.image().display());
            let found = forebay_json(&["extents".as_ref(), "--json".as_ref(), file.as_ref()])?;
            runs.push(runs_per_request(&pieces(&found), count * REQUEST));
        }
        let mean = runs.iter().sum::<f64>() / runs.len() as f64;
        report.row("mount", &format!("mount_alloc_{name}_extents_per_request"), "1", &runs);
        let rate = (WRITERS as u64 * count * REQUEST / MIB) as f64 / seconds;
        report.row("mount", &format!("mount_alloc_{name}_throughput"), "MiB/s", &[rate]);
        match off {
            0 => report.ratio_with_bar("mount_extents_per_request", mean, Good::AtMost, 1.1),
            _ => report.ratio("mount_extents_per_request_unaligned", mean),
        }
    }
    report.note(format!(
        "mount alloc: {WRITERS} writers, {count} requests of {} each, O_DIRECT; unaligned: buffers {OFF} \
         bytes past the start of a page",
        format_size(REQUEST)
    ));
    Ok(())
}

/// Runs all writers (A2); returns the seconds.
fn write(at: &Path, name: &str, count: u64, off: usize) -> Result<f64> {
    let wave = Barrier::new(WRITERS);
    let start = Instant::now();
    let done: Vec<Result<()>> = std::thread::scope(|scope| {
        let wave = &wave;
        let spawn = |writer: usize| {
            let path = at.join(format!("{name}{writer}"));
            scope.spawn(move || one(&path, (count, off), wave))
        };
        let handles: Vec<_> = (0..WRITERS).map(spawn).collect();
        handles.into_iter().map(|h| h.join().expect("a writer returns")).collect()
    });
    done.into_iter().collect::<Result<Vec<()>>>()?;
    Ok(start.elapsed().as_secs_f64())
}

fn one(path: &Path, (count, off): (u64, usize), wave: &Barrier) -> Result<()> {
    let opened = crate::harness::image::open_with(path, OFlags::CREATE | DIRECT);
    let mut buf = AlignedBuf::new(REQUEST as usize + 4096);
    for (n, byte) in buf.iter_mut().enumerate() {
        *byte = (n as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()[0];
    }
    let mut failed = opened.as_ref().err().map(|e| e.to_string());
    for n in 0..count {
        // The other writers wait at the barrier for this one, too.
        wave.wait();
        if let (None, Ok(file)) = (&failed, &opened) {
            let part = &buf[off..off + REQUEST as usize];
            failed = file.write_all_at(part, n * REQUEST).err().map(|e| e.to_string());
        }
    }
    match failed {
        None => opened?.sync_all().map_err(|e| Error::from_io("fsync", e)),
        Some(text) => {
            opened?;
            Err(Error::new(forebay_base::ErrorKind::Io, "write", text).with_path(path))
        }
    }
}

/// The pieces of a file in file order: file offset, image offset, length.
fn pieces(found: &Value) -> Vec<(u64, Option<u64>, u64)> {
    let all = found["extents"].as_array().into_iter().flatten();
    let number = |value: &Value| value.as_u64();
    let mut pieces: Vec<_> = all
        .filter_map(|e| {
            Some((number(&e["logical"])?, number(&e["physical"]), number(&e["length"])?))
        })
        .collect();
    pieces.sort_unstable();
    pieces
}

/// Mean number of runs per write (A1).
fn runs_per_request(pieces: &[(u64, Option<u64>, u64)], size: u64) -> f64 {
    let requests = size / REQUEST;
    let mut runs = 0;
    for n in 0..requests {
        let (from, to) = (n * REQUEST, (n + 1) * REQUEST);
        let mut expected = None;
        for (logical, physical, len) in pieces {
            let (low, high) = ((*logical).max(from), (logical + len).min(to));
            if low >= high {
                continue;
            }
            let begins = physical.map(|at| at + (low - logical));
            runs += u64::from(begins.is_none() || begins != expected);
            expected = begins.map(|at| at + (high - low));
        }
    }
    runs as f64 / requests.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// A1: contiguous pieces on the image are one run; a write in two places has two.
    #[test]
    fn a1_adjacent_extents_are_one_run() {
        let half = REQUEST / 2;
        let one = [(0, Some(half), half), (half, Some(2 * half), half)];
        assert_eq!(runs_per_request(&one, REQUEST), 1.0);
        let torn = [(0, Some(half), half), (half, Some(9 * half), half)];
        assert_eq!(runs_per_request(&torn, REQUEST), 2.0);
        // A long run counts one for each of its writes.
        assert_eq!(runs_per_request(&[(0, Some(0), 3 * REQUEST)], 3 * REQUEST), 1.0);
        let found = json!({ "extents": [
            { "logical": half, "physical": 7, "length": half },
            { "logical": 0, "physical": null, "length": half } ] });
        assert_eq!(pieces(&found), [(0, None, half), (half, Some(7), half)]);
    }
}
