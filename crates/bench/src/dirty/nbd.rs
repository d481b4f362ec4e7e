//! The load of the part `fio`, made by fio itself through `forebay export`: its nbd engine,
//! `--rw=randwrite --bs=4k --fsync=1`.
//!
//! Invariant: the complete image is in the server's cache before the first slice (dirty.Y2).

use super::figures::SMALL;
use super::subject::written_by;
use crate::harness::alternate::{Plan, Turn, Variant, alternate};
use crate::harness::image::Image;
use crate::harness::options::Options;
use crate::report::model::Report;
use crate::rivals::fio::{self, FioJob};
use crate::rivals::server::{Kind, Server, forebay_binary, nbdcopy};
use forebay_base::Result;
use forebay_base::units::MIB;
use std::cell::Cell;

/// Runs the part, if fio and the `forebay` program are installed.
pub fn run(options: &Options, report: &mut Report) -> Result<()> {
    let size = options.size_or(8 * MIB, 128 * MIB);
    if let Err(e) = fio::available().and_then(|()| forebay_binary().map(drop)) {
        report.left_out("fio through nbd", e);
        return Ok(());
    }
    let mut served = Vec::new();
    for (name, mode) in [("ours-block-over-nbd", "block"), ("ours-folio-over-nbd", "folio")] {
        match start(options, mode, size) {
            Ok((image, server)) => served.push((name, image, server, Cell::new((0, 0)))),
            Err(e) => {
                report.left_out("fio through nbd", e);
                return Ok(());
            }
        }
    }
    let mut variants = Vec::new();
    for (name, _, server, tally) in &served {
        variants.push(Variant::new(name, move |turn: &Turn| {
            let before = written_by(server.pid())?;
            let job = FioJob::single("randwrite", turn);
            let mut slices = fio::run_with(&[job], &server.uri, None, &["--fsync=1"])?;
            let slice = slices.pop().expect("one job, one slice");
            let (changed, written) = tally.get();
            let now = written_by(server.pid())?;
            tally.set((changed + slice.bytes, written + now - before));
            Ok(slice)
        }));
    }
    let plan = Plan {
        passes: if options.quick { 1 } else { 3 },
        ..Plan::simple(options, options.rounds_or(1, 5), options.millis(150, 1500))
    };
    let outcome = alternate(&mut variants, &plan)?;
    drop(variants);
    outcome.add_rows(report, "fio_fsync");
    for (name, _, _, tally) in &served {
        let (changed, written) = tally.get();
        let times = written as f64 / changed as f64;
        report.row(name, "fio_fsync_written_per_byte_changed", "x", &[times]);
    }
    let ratio = outcome.ratio("ours-block-over-nbd", "ours-folio-over-nbd");
    report.cell("written back by folio", "fsync by fio, over NBD", ratio);
    Ok(())
}

/// Starts a server with a complete image in its cache.
fn start(options: &Options, mode: &str, size: u64) -> Result<(Image, Server)> {
    let image = Image::create(&options.dir, &format!("dirty-nbd-{mode}"), size, options.keep)?;
    let words = ["--dirty-tracking", mode, "--folio-size"].map(str::to_string);
    let more = [&words[..], &[SMALL.to_string()]].concat();
    let cache = size * 2 + 96 * MIB;
    let kind = Kind::Ours { cache, mode: "cached", aio: options.aio.clone(), more };
    let server = Server::start(&kind, image.path(), None, None)?;
    nbdcopy(&server.uri, "null:")?;
    Ok((image, server))
}
