//! Sequential cold reads by one thread. Forebay reads through its cache, uncached with requests of
//! four sizes, and with O_DIRECT at depth 4. The kernel reads buffered and with RWF_DONTCACHE. Each
//! variant has its best readahead setting.
//!
//! Invariants: Q1 each slice reads one window of the file once, from a cold cache; all variants of
//! a cycle use the same window. Q2 the disk's readahead setting is restored.

use super::setting::Setting;
use crate::harness::alternate::{Plan, Turn, Variant, alternate};
use crate::harness::image::drop_file_cache;
use crate::harness::load::{Load, Pattern, Slice, run, run_in_caller};
use crate::harness::machine::queue_dir;
use crate::harness::options::Options;
use crate::report::model::{Good, Report, median};
use crate::rivals::kernel::{DONTCACHE, KernelFile};
use crate::rivals::ours::{Flagged, Ours};
use forebay_base::{Error, IoFlags, Result};
use rustix::fs::{Advice, OFlags, fadvise};
use rustix::io::ReadWriteFlags;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// The disk's readahead setting. A shell restores it (Q2) when its input ends, which also happens
/// if this process is killed.
struct ReadAhead {
    file: PathBuf,
    before: String,
    restorer: Child,
}

const RESTORE: &str = "trap '' INT TERM HUP; read _; echo \"$1\" > \"$0\"";

impl ReadAhead {
    fn of(dir: &Path) -> Option<Self> {
        Self::on(PathBuf::from(queue_dir(dir)?).join("read_ahead_kb"))
    }

    fn on(file: PathBuf) -> Option<Self> {
        let before = std::fs::read_to_string(&file).ok()?.trim().to_string();
        // Writing the old value shows whether the setting may be changed at all.
        std::fs::write(&file, &before).ok()?;
        let mut command = Command::new("sh");
        command.args(["-c", RESTORE]).arg(&file).arg(&before).stdin(Stdio::piped());
        let restorer = command.stdout(Stdio::null()).spawn().ok()?;
        Some(Self { file, before, restorer })
    }

    fn set(&self, kib: &str) -> Result<()> {
        std::fs::write(&self.file, kib).map_err(|e| Error::from_io("set", e).with_path(&self.file))
    }
}

impl Drop for ReadAhead {
    fn drop(&mut self) {
        drop(self.restorer.stdin.take());
        let _ = self.restorer.wait();
    }
}

struct Seq<'a> {
    setting: &'a Setting,
    window: u64,
}

impl Seq<'_> {
    fn load(&self, turn: &Turn, threads: usize, block: usize) -> Load {
        let windows = (self.setting.bypass.size() / self.window).max(1);
        Load {
            write: false,
            pattern: Pattern::Sequential,
            threads,
            block,
            start: turn.cycle % windows * self.window,
            len: self.window,
            time: Duration::from_secs(3600),
            seed: 0,
            sample_every: 1,
        }
    }

    /// The kernel's buffered read of one cold window by a fresh opener.
    fn buffered(&self, turn: &Turn, block: usize, flags: ReadWriteFlags) -> Result<Slice> {
        let path = self.setting.cached.path();
        let file = File::open(path).map_err(|e| Error::from_io("open", e).with_path(path))?;
        drop_file_cache(&file).map_err(|e| Error::from_io("drop cache", e))?;
        let advised = fadvise(&file, 0, None, Advice::Sequential);
        advised.map_err(|e| Error::from_io("fadvise", e.into()))?;
        run_in_caller(&KernelFile { file, flags }, &self.load(turn, 1, block))
    }

    /// Forebay's read of one cold window by a fresh opener.
    fn ours(&self, turn: &Turn, block: usize, ours: &Ours, flags: IoFlags) -> Result<Slice> {
        ours.cache.drop_clean();
        let target: Flagged = ours.with(flags);
        run_in_caller(&target, &self.load(turn, 1, block))
    }

    /// The readahead setting, KiB, with which the kernel's buffered read is fastest; it stays set.
    fn best_readahead(&self, disk: &ReadAhead, block: usize, quick: bool) -> Result<String> {
        let mut values = vec![disk.before.as_str(), "1024"];
        if !quick {
            values.extend(["128", "512", "2048", "4096", "8192", "16384"]);
        }
        let mut best = (f64::NEG_INFINITY, disk.before.clone());
        for value in values {
            disk.set(value)?;
            let mut rates = Vec::new();
            for cycle in 0..if quick { 1 } else { 3 } {
                let turn = Turn { seed: 0, cycle, time: Duration::ZERO };
                rates.push(self.buffered(&turn, block, ReadWriteFlags::empty())?.rate());
            }
            if median(&rates) > best.0 {
                best = (median(&rates), value.to_string());
            }
        }
        disk.set(&best.1)?;
        Ok(best.1)
    }
}

/// Runs all request sizes.
pub fn run_parts(options: &Options, setting: &Setting, report: &mut Report) -> Result<()> {
    let window = if options.quick { 32 << 20 } else { 256 << 20 };
    let seq = Seq { setting, window: setting.bypass.size().min(window) };
    let disk = ReadAhead::of(&options.dir);
    if disk.is_none() {
        report.not_run("search for the best read_ahead_kb", "the disk's queue is not writable");
    }
    let tune = |block: usize, report: &mut Report| -> Result<()> {
        let Some(disk) = &disk else { return Ok(()) };
        let best = seq.best_readahead(disk, block, options.quick)?;
        let kib = block >> 10;
        report.note(format!(
            "kernel-buffered at {kib} KiB with its best read_ahead_kb {best} (was {}) and \
             POSIX_FADV_SEQUENTIAL",
            disk.before
        ));
        Ok(())
    };
    for (block, suffix) in SIZES {
        tune(block, report)?;
        if block == 1 << 20 {
            megabytes(options, &seq, report)?;
        }
        past_the_cache(options, &seq, block, suffix, report)?;
    }
    Ok(())
}

/// Request sizes, and their names in ratios.
const SIZES: [(usize, &str); 4] =
    [(64 << 10, "64k"), (128 << 10, "128k"), (1 << 20, "1m"), (4 << 20, "4m")];

fn plan(options: &Options, gate: &'static str) -> Plan {
    Plan {
        cycles: if options.quick { 2 } else { 3 },
        gate: Some(gate),
        repeats_max: if options.quick { 1 } else { 3 },
        ..Plan::simple(options, options.rounds_or(2, 4), Duration::ZERO)
    }
}

/// 1 MiB reads through the caches.
fn megabytes(options: &Options, seq: &Seq<'_>, report: &mut Report) -> Result<()> {
    const BLOCK: usize = 1 << 20;
    let setting = seq.setting;
    let direct = KernelFile::new(setting.bypass.open(OFlags::DIRECT)?);
    let filling = Ours::open(options, setting.cached.path(), setting.budget)?;
    let cached = IoFlags::empty();
    let mut variants = [
        Variant::new("direct-qd4", |turn| run(&direct, &seq.load(turn, 4, BLOCK))),
        Variant::new("direct-qd1", |turn| run_in_caller(&direct, &seq.load(turn, 1, BLOCK))),
        Variant::new("kernel-buffered", |turn| seq.buffered(turn, BLOCK, ReadWriteFlags::empty())),
        Variant::new("ours-cached", |turn| seq.ours(turn, BLOCK, &filling, cached)),
    ];
    let outcome = alternate(&mut variants, &plan(options, "direct-qd4"))?;
    drop(variants);
    outcome.add_rows(report, "seqread");
    outcome.add_notes(report, "seqread", "direct-qd4");
    let ratio = |other| outcome.ratio("ours-cached", other);
    let at_least = Good::AtLeast;
    report.ratio_with_bar("seqread_vs_direct_qd4", ratio("direct-qd4"), at_least, 0.85);
    report.ratio_with_bar("seqread_vs_kernel_buffered", ratio("kernel-buffered"), at_least, 1.0);
    let rivals =
        [("direct-qd4", "O_DIRECT, four at a time"), ("kernel-buffered", "kernel buffered")];
    outcome.compare(report, "sequential reads by 1m, cached", "ours-cached", &rivals);
    Ok(())
}

/// Uncached reads with requests of one size.
fn past_the_cache(
    options: &Options,
    seq: &Seq<'_>,
    block: usize,
    suffix: &str,
    report: &mut Report,
) -> Result<()> {
    let setting = seq.setting;
    let direct = KernelFile::new(setting.bypass.open(OFlags::DIRECT)?);
    let passing = Ours::open(options, setting.bypass.path(), setting.budget)?;
    let flags = IoFlags::UNCACHED;
    let mut variants = vec![
        Variant::new("direct-qd4", |turn| run(&direct, &seq.load(turn, 4, block))),
        Variant::new("kernel-buffered", |turn| seq.buffered(turn, block, ReadWriteFlags::empty())),
        Variant::new("ours-uncached", |turn| seq.ours(turn, block, &passing, flags)),
    ];
    match KernelFile::dontcache(setting.cached.open(OFlags::empty())?) {
        Ok(_) => {
            variants.push(Variant::new("dontcache", |turn| seq.buffered(turn, block, DONTCACHE)));
        }
        Err(e) => report.left_out(&format!("dontcache, sequential reads by {suffix}"), e),
    }
    let outcome = alternate(&mut variants, &plan(options, "direct-qd4"))?;
    drop(variants);
    outcome.add_rows(report, &format!("uncached_seqread_{suffix}"));
    outcome.add_notes(report, &format!("uncached_seqread_{suffix}"), "direct-qd4");
    for (other, rival) in [("kernel_buffered", "kernel-buffered"), ("dontcache", "dontcache")] {
        let name = format!("uncached_seqread_{suffix}_vs_{other}");
        report.ratio_with_bar(&name, outcome.ratio("ours-uncached", rival), Good::AtLeast, 1.0);
    }
    let cell = format!("sequential reads by {suffix}");
    let rivals = [
        ("direct-qd4", "O_DIRECT, four at a time"),
        ("kernel-buffered", "kernel buffered"),
        ("dontcache", "RWF_DONTCACHE"),
    ];
    outcome.compare(report, &cell, "ours-uncached", &rivals);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropped_read_ahead_restores_setting() {
        let name = format!("forebay-bench-readahead-{}", std::process::id());
        let file = std::env::temp_dir().join(name);
        std::fs::write(&file, "128\n").unwrap();
        let disk = ReadAhead::on(file.clone()).unwrap();
        disk.set("4096").unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "4096");
        drop(disk);
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "128\n");
        std::fs::remove_file(&file).unwrap();
    }
}
