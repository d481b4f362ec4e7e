//! `start`: time from the exec of `forebay export` to its first answer, and its memory then, for
//! caches of any size, also larger than the machine's memory.
//!
//! Invariants: X1 the time begins before the exec and ends with the last byte of the answer. X2 the
//! server runs in a memory cgroup of half the available memory: if it allocated its whole cache at
//! once, it would be killed there, and no other process.

use crate::harness::image::Image;
use crate::harness::machine::available_bytes;
use crate::harness::meter::resident_bytes;
use crate::harness::options::Options;
use crate::report::model::{Good, Report, median};
use crate::rivals::connection::Connection;
use crate::rivals::server::{Kind, Server, forebay_binary};
use forebay_base::Result;
use forebay_base::units::{GIB, MIB, format_size};
use forebay_testkit::cgroup::Memcg;

/// Cache sizes, and the names of their ratios.
const SIZES: [(u64, &str); 4] =
    [(GIB, "1g"), (4 * GIB, "4g"), (16 * GIB, "16g"), (64 * GIB, "64g")];
const QUICK: [(u64, &str); 2] = [(64 * MIB, "64m"), (256 * MIB, "256m")];
const SECONDS: f64 = 0.2;
const RESIDENT_MIB: f64 = 64.0;

/// Runs the bench.
pub fn run(options: &Options) -> Result<Report> {
    let mut report = Report::default();
    if let Err(e) = forebay_binary() {
        report.left_out("start", e);
        return Ok(report);
    }
    let image = Image::create(&options.dir, "start", 16 * MIB, options.keep)?;
    let limit = available_bytes() / 2;
    if let Err(e) = Memcg::create("start-probe", limit) {
        report.left_out("start with caches larger than half of the free memory", e);
    }
    let sizes: &[(u64, &str)] = if options.quick { &QUICK } else { &SIZES };
    let (mut slowest, mut most, mut failures) = (f64::NAN, f64::NAN, 0.0);
    for (size, name) in sizes {
        let (mut seconds, mut resident) = (Vec::new(), Vec::new());
        for _ in 0..options.rounds_or(1, 5) {
            match once(options, &image, *size, limit) {
                Ok((time, bytes)) => {
                    seconds.push(time);
                    resident.push(bytes as f64 / MIB as f64);
                }
                Err(e) => {
                    failures += 1.0;
                    report.left_out(&format!("start with --cache-size {}", format_size(*size)), e);
                    break;
                }
            }
        }
        let variant = format!("ours-{name}");
        report.row(&variant, "start_until_first_answer", "s", &seconds);
        report.row(&variant, "start_resident", "MiB", &resident);
        let (time, bytes) = (median(&seconds), median(&resident));
        report.ratio_with_bar(&format!("start_seconds_{name}"), time, Good::Below, SECONDS);
        let name = format!("start_resident_mib_{name}");
        report.ratio_with_bar(&name, bytes, Good::AtMost, RESIDENT_MIB);
        (slowest, most) = (slowest.max(time), most.max(bytes));
    }
    report.ratio_with_bar("start_seconds", slowest, Good::Below, SECONDS);
    report.ratio_with_bar("start_resident_mib", most, Good::AtMost, RESIDENT_MIB);
    report.ratio_with_bar("start_failures", failures, Good::AtMost, 0.0);
    report.note(format!("start: memory cgroup of {} (X2)", format_size(limit)));
    Ok(report)
}

/// Seconds and resident bytes of one start.
fn once(options: &Options, image: &Image, size: u64, limit: u64) -> Result<(f64, u64)> {
    let group = Memcg::create("start", limit).ok();
    if group.is_none() && size > limit {
        let text = "no memory cgroup to keep the machine safe";
        return Err(forebay_base::Error::new(forebay_base::ErrorKind::Unsupported, "start", text));
    }
    let aio = options.aio.clone();
    let kind = Kind::Ours { cache: size, mode: "cached", aio, more: Vec::new() };
    let procs = group.as_ref().map(Memcg::procs);
    let start = std::time::Instant::now();
    let server = Server::start(&kind, image.path(), None, procs.as_deref())?;
    let mut connection = Connection::open(&server.socket())?;
    connection.read(&mut [0; 4096], 4096)?;
    let seconds = start.elapsed().as_secs_f64();
    let resident = resident_bytes(server.pid()).unwrap_or(0);
    drop(connection);
    drop(server);
    Ok((seconds, resident))
}
