//! Nothing in memory: ours past the cache, nbdkit's file plugin, qemu-nbd.
//!
//! Invariant: D2 each slice has a fresh server, starts with the machine's page cache dropped (quick:
//! the image's), and touches at most a tenth of the image.

use super::client::{BLOCK, CONNECTIONS, Cores, DEPTH, add_switches, job, ours_kind, slice};
use crate::harness::alternate::{Outcome, Plan, Variant, alternate};
use crate::harness::image::{Image, drop_all_caches, drop_file_cache};
use crate::harness::load::{Load, Pattern, run as run_slice};
use crate::harness::options::Options;
use crate::report::model::{Good, Report};
use crate::rivals::kernel::KernelFile;
use crate::rivals::server::{Kind, Server};
use forebay_base::{Error, Result};
use rustix::fs::OFlags;

/// Runs the part.
pub fn run(options: &Options, cores: Cores, report: &mut Report) -> Result<()> {
    let size = options.size_or(64 << 20, 4 << 30);
    let image = Image::create(&options.dir, "nbd-miss", size, options.keep)?;
    if !options.quick && !drop_all_caches() {
        report.not_run("dropping of the page cache in the all-misses part", "not allowed here");
    }
    let kinds = [
        ("ours", ours_kind(options, 64 << 20, "direct")),
        ("nbdkit-file", Kind::NbdkitFile),
        ("nbdkit-file-cache-none", Kind::NbdkitFileNoCache),
        ("qemu-nbd", Kind::QemuNbd),
    ];
    let mut usable = Vec::new();
    for (name, kind) in kinds {
        match Server::start(&kind, image.path(), cores.server, None) {
            Ok(_) => usable.push((name, kind)),
            Err(e) => report.not_run(&format!("{name}, all misses"), e),
        }
    }
    for connections in CONNECTIONS {
        let outcome = misses_at(options, cores, &image, &usable, connections)?;
        outcome.add_rows(report, &format!("nbd_miss_c{connections}"));
        outcome.add_notes(report, &format!("nbd_miss_c{connections}"), "direct");
        let title = format!("4 KiB random reads, none in memory, connections: {connections}");
        report.plots.push(outcome.rates_plot("nbd", title));
        let rivals = [
            ("nbdkit_file", "nbdkit-file", 1.0),
            ("nbdkit_file_cache_none", "nbdkit-file-cache-none", 1.0),
            ("qemu_nbd", "qemu-nbd", 2.0),
        ];
        for (short, rival, bar) in rivals {
            let name = format!("nbd_miss_vs_{short}_c{connections}");
            report.ratio_with_bar(&name, outcome.ratio("ours", rival), Good::AtLeast, bar);
        }
        report
            .ratio(&format!("nbd_miss_vs_direct_c{connections}"), outcome.ratio("ours", "direct"));
        add_switches(report, "miss", connections, &outcome);
    }
    Ok(())
}

fn misses_at(
    options: &Options,
    cores: Cores,
    image: &Image,
    servers: &[(&'static str, Kind)],
    connections: u32,
) -> Result<Outcome> {
    let size = image.size();
    let direct = KernelFile::new(image.open(OFlags::DIRECT)?);
    let mut variants = vec![Variant::new("direct", |turn| {
        let load = Load {
            write: false,
            pattern: Pattern::Random,
            threads: DEPTH as usize,
            block: BLOCK as usize,
            start: 0,
            len: size,
            time: turn.time / 2,
            seed: turn.seed << 20,
            sample_every: 1,
        };
        run_slice(&direct, &load)
    })];
    let file = &direct.file;
    for (name, kind) in servers {
        variants.push(Variant::new(name, move |turn| {
            let server = Server::start(kind, image.path(), cores.server, None)?;
            if options.quick {
                drop_file_cache(file).map_err(|e| Error::from_io("drop pages", e))?;
            } else {
                drop_all_caches();
            }
            slice(&server, job(turn, connections, size / 10), cores)
        }));
    }
    let plan = Plan {
        rounds: options.rounds_or(1, 7),
        cycles: if options.quick { 1 } else { 3 },
        slice: options.millis(300, 1000),
        passes: 1,
        gate: Some("direct"),
        repeats_max: if options.quick { 0 } else { 7 },
        lines: options.lines,
    };
    alternate(&mut variants, &plan)
}
