//! `random`: random 4 KiB buffered writes over a file far larger than the cache, timed until they
//! are synced. `seq`: one file, written by 1 MiB until it is synced, and read cold.
//!
//! A slice of writes includes the final fsync. In `random` a slice begins with nothing cached, and
//! each kernel variant runs in a memory cgroup of Forebay's budget. In `seq` reads begin cold, and
//! no variant has a cgroup. Each variant writes its file once before it is timed: the first user of
//! a page of memory pays for its allocation in a virtual machine.

use super::ground::{self, ALL, Ground, Plot, Who};
use super::read::compare;
use crate::harness::alternate::{Outcome, Plan, Turn, Variant, alternate};
use crate::harness::backing::Backing;
use crate::harness::load::{Slice, Target};
use crate::harness::meter::Usage;
use crate::harness::options::Options;
use crate::report::model::{Good, Report};
use crate::rivals::worker::Worker;
use crate::volume::overwrite::{Overwrite, Overwritten};
use crate::volume::places::{Opened, write_all};
use forebay_base::buf::AlignedBuf;
use forebay_base::units::{GIB, KIB, MIB, format_size};
use forebay_base::{Error, ErrorKind, Result};
use std::time::Instant;

const RANDOM: &str = "random";
const SEQ: &str = "seq";
const BLOCK: u64 = 4 * KIB;

fn plan(options: &Options, full: usize) -> Plan {
    Plan::simple(options, options.rounds_or(1, full), options.millis(1, 1))
}

/// The part `random`.
pub fn random(options: &Options, report: &mut Report) -> Result<()> {
    let size = options.size_or(32 * MIB, 2 * GIB);
    let (total, cache) = (size / 2, if options.quick { 64 * MIB } else { 256 * MIB });
    let plan = plan(options, 3);
    let spare = (total * plan.rounds as u64).min(4 * GIB) + GIB / 8;
    let plot = Plot { options, part: RANDOM, image: (size + spare, Backing::Sparse), cache };
    let mut grounds = ground::all(&plot, &ALL, report);
    let mut variants = Vec::new();
    for ground in &mut grounds {
        ground.fill(RANDOM, size)?;
        let kernels = [Who::Xfs, Who::Host].iter().any(|who| who.name() == ground.name);
        let worker = match kernels.then(|| Worker::start(&format!("mount-{}", ground.name), cache))
        {
            Some(Err(e)) => {
                report.left_out(&format!("mount random on {} in a memory cgroup", ground.name), e);
                continue;
            }
            worker => worker.transpose()?,
        };
        variants.push(random_variant(ground, worker, size, total));
    }
    let outcome = alternate(&mut variants, &plan)?;
    drop(variants);
    let prefix = "mount_random";
    outcome.add_rows(report, prefix);
    let ratio = outcome.ratio("mount", "xfs-on-loop");
    report.ratio_with_bar(&format!("{prefix}_vs_xfs"), ratio, Good::AtLeast, 0.45);
    compare(&outcome, report, "4 KiB random writes, synced at the end");
    let title = "a mount: 4 KiB random writes until synced";
    report.plots.push(outcome.rates_plot("mount", title));
    report.note(format!(
        "mount random: {} of 4 KiB writes over a file of {}, cache and memory cgroups of {}",
        format_size(total),
        format_size(size),
        format_size(cache)
    ));
    Ok(())
}

fn random_variant(
    ground: &mut Ground,
    mut worker: Option<Worker>,
    len: u64,
    total: u64,
) -> Variant<'_> {
    Variant::new(ground.name, move |turn: &Turn| {
        ground.remount()?;
        let spec =
            Overwrite { len, block: BLOCK, total, window: total, seed: turn.seed, skewed: false };
        let before = Usage::of_machine();
        let done = match &mut worker {
            Some(worker) => {
                let job = spec.job(&ground.path().join(RANDOM));
                Overwritten::from_json(&worker.ask(&job)?)
            }
            None => spec.run(&ground.file(RANDOM)?)?,
        };
        if done.bytes() != total {
            let text = format!("{} of {total} bytes", done.bytes());
            return Err(Error::new(ErrorKind::Io, "overwrite", text));
        }
        Ok(Slice {
            ops: total / BLOCK,
            bytes: total,
            seconds: done.windows.iter().map(|window| window.1).sum(),
            machine: Usage::of_machine().since(&before),
            hist: done.hist,
            ..Slice::default()
        })
    })
}

/// The part `seq`.
pub fn seq(options: &Options, report: &mut Report) -> Result<()> {
    let size = options.size_or(16 * MIB, GIB);
    let cache = if options.quick { 64 * MIB } else { 256 * MIB };
    let plan = plan(options, 5);
    let image = (size * (plan.rounds as u64 + 2)).max(128 * MIB);
    let plot = Plot { options, part: SEQ, image: (image, Backing::Sparse), cache };
    let mut grounds = ground::all(&plot, &ALL, report);
    for ground in &mut grounds {
        write_slice(ground, size, 0)?;
    }
    for (write, prefix) in [(true, "mount_seqwrite"), (false, "mount_seqread")] {
        let variants = grounds.iter_mut().map(|ground| {
            Variant::new(ground.name, move |turn: &Turn| match write {
                true => write_slice(ground, size, turn.seed),
                false => read_slice(ground, size),
            })
        });
        let mut variants: Vec<_> = variants.collect();
        let outcome = alternate(&mut variants, &plan)?;
        drop(variants);
        outcome.add_rows(report, prefix);
        judge(&outcome, prefix, report);
    }
    report.note(format!(
        "mount seq: a file of {}, images of {}, cache of ours {}",
        format_size(size),
        format_size(image),
        format_size(cache)
    ));
    Ok(())
}

fn judge(outcome: &Outcome, prefix: &str, report: &mut Report) {
    let ratio = outcome.ratio("mount", "xfs-on-loop");
    let (what, bar) = match prefix.ends_with("write") {
        true => ("writes until synced", 0.9),
        false => ("cold reads", 1.0),
    };
    report.ratio_with_bar(&format!("{prefix}_vs_xfs"), ratio, Good::AtLeast, bar);
    let cell = format!("sequential 1 MiB {what}");
    compare(outcome, report, &cell);
    report.plots.push(outcome.rates_plot("mount", format!("a mount: {cell}")));
}

fn write_slice(ground: &mut Ground, size: u64, seed: u64) -> Result<Slice> {
    // In the first slice the file does not exist.
    let _removed = std::fs::remove_file(ground.path().join(SEQ));
    let (machine, start) = (Usage::of_machine(), Instant::now());
    let file = ground.file(SEQ)?;
    write_all(&file, size, seed)?;
    file.sync()?;
    Ok(finished(start, size, &machine))
}

fn read_slice(ground: &mut Ground, size: u64) -> Result<Slice> {
    ground.remount()?;
    let file = ground.file(SEQ)?;
    let mut buf = AlignedBuf::new(MIB as usize);
    let (machine, start) = (Usage::of_machine(), Instant::now());
    for at in (0..size).step_by(MIB as usize) {
        file.read(&mut buf, at)?;
        std::hint::black_box(&buf[0]);
    }
    Ok(finished(start, size, &machine))
}

fn finished(start: Instant, size: u64, machine: &Usage) -> Slice {
    Slice {
        ops: size / MIB,
        bytes: size,
        seconds: start.elapsed().as_secs_f64(),
        machine: Usage::of_machine().since(machine),
        ..Slice::default()
    }
}
