//! Interfaces to cached data: random 4 KiB reads, one at a time. They go by the kernel's pread of a
//! file, by Forebay's library, through a mount whose content Forebay caches, through one whose
//! content the kernel caches, and over NBD.
//!
//! Invariants: G1 all variants alternate, with the same offsets in files of one size, each
//! completely cached by the cache that serves it. G2 a variant with a second process is charged the
//! CPU usage of the whole machine.

use super::fixture::Bench;
use crate::harness::alternate::{Outcome, Plan, Turn, Variant, alternate, whole_machine};
use crate::harness::image::Image;
use crate::harness::load::{Load, Pattern, Slice, Target, run_in_caller};
use crate::harness::options::Options;
use crate::mount::keep;
use crate::report::model::Report;
use crate::rivals::connection::Connection;
use crate::rivals::kernel::KernelFile;
use crate::rivals::mounted::Mounted;
use crate::rivals::server::{Kind, Server, nbdcopy};
use forebay_base::units::{MIB, format_size};
use forebay_base::{Error, Result};
use std::cell::RefCell;
use std::time::Duration;

/// Most bytes of the image that are read.
const LEN_MAX: u64 = 256 * MIB;
/// Names of rows, and the value of `cache` for each.
const MOUNTS: [(&str, &str); 2] =
    [("ours-on-a-mount", "own"), ("ours-on-a-mount-kernel", "kernel")];
const NBD: &str = "ours-over-nbd";

/// Forebay's NBD server, and a client with one request in flight.
struct Served {
    client: RefCell<Connection>,
    _server: Server,
}

impl Target for Served {
    fn read(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.client.borrow_mut().read(buf, offset)
    }

    fn write(&self, _: &[u8], _: u64) -> Result<()> {
        unreachable!("interfaces are read")
    }
}

/// A file on a mount, opened before it was read completely.
struct OnMount {
    file: KernelFile,
    _mounted: Mounted,
}

impl Target for OnMount {
    fn read(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.file.read(buf, offset)
    }

    fn write(&self, _: &[u8], _: u64) -> Result<()> {
        unreachable!("interfaces are read")
    }
}

impl OnMount {
    fn new(options: &Options, len: u64, mode: &str) -> Result<Self> {
        let mounted = keep::filled(options, "hit", len, mode)?;
        let path = mounted.path().join(keep::LARGE);
        // Opened for reading only, since the cache mode depends on that.
        let file =
            std::fs::File::open(&path).map_err(|e| Error::from_io("open", e).with_path(path))?;
        Ok(Self { file: KernelFile::new(file), _mounted: mounted })
    }
}

fn served(options: &Options, image: &Image) -> Result<Served> {
    let (cache, aio) = (image.size() * 2 + 64 * MIB, options.aio.clone());
    let kind = Kind::Ours { cache, mode: "cached", aio, more: Vec::new() };
    let server = Server::start(&kind, image.path(), None, None)?;
    nbdcopy(&server.uri, "null:")?;
    let client = RefCell::new(Connection::open(&server.socket())?);
    Ok(Served { client, _server: server })
}

pub(super) fn run(bench: &Bench, options: &Options, report: &mut Report) -> Result<()> {
    let len = bench.size.min(LEN_MAX);
    let image = Image::create(&options.dir, "hit-served", len, options.keep)?;
    let mut others: Vec<(&'static str, Box<dyn Target>)> = Vec::new();
    for (name, mode) in MOUNTS {
        match crate::mount::prepare().and_then(|()| OnMount::new(options, len, mode)) {
            Ok(target) => others.push((name, Box::new(target))),
            Err(e) => report.left_out(&format!("{name}, all in cache"), e),
        }
    }
    match served(options, &image) {
        Ok(target) => others.push((NBD, Box::new(target))),
        Err(e) => report.left_out(&format!("{NBD}, all in cache"), e),
    }
    let warm = Load {
        pattern: Pattern::Sequential,
        block: MIB as usize,
        ..bench.load(false, len, HOUR, 0)
    };
    for _ in 0..2 {
        for (_, target) in &others {
            run_in_caller(target.as_ref(), &warm)?;
        }
    }
    let own = |target: &dyn Target, turn: &Turn| -> Result<Slice> {
        run_in_caller(target, &bench.load(false, len, turn.time, turn.seed))
    };
    let mut variants = vec![
        Variant::new("kernel", |turn| own(&bench.kernel, turn)),
        Variant::new("memcpy", |turn| own(&bench.memory, turn)),
        Variant::new("ours", |turn| own(&bench.ours, turn)),
    ];
    for (name, target) in &others {
        variants.push(Variant::new(name, move |turn| whole_machine(|| own(target.as_ref(), turn))));
    }
    let outcome = alternate(&mut variants, &plan(bench))?;
    drop(variants);
    tell(&outcome, len, report);
    Ok(())
}

const HOUR: Duration = Duration::from_secs(3600);

/// The plan of the other groups, with slices long enough for the machine's clock tick.
fn plan(bench: &Bench) -> Plan {
    Plan { slice: bench.plan.slice * 2, ..bench.plan }
}

fn tell(outcome: &Outcome, len: u64, report: &mut Report) {
    outcome.add_rows(report, "way_read");
    outcome.add_notes(report, "way_read", "memcpy");
    let cell = format!("4 KiB random reads of {}, cached", format_size(len));
    for (name, what) in [
        ("ours", "the library"),
        ("ours-on-a-mount", "a mount with cache=own"),
        ("ours-on-a-mount-kernel", "a mount with cache=kernel"),
        (NBD, "NBD, one at a time"),
    ] {
        let ratio = outcome.ratio(name, "kernel");
        if ratio.is_finite() {
            report.ratio(&format!("way_{}_vs_kernel", name.replace('-', "_")), ratio);
            report.note(format!("{cell}: {what} over the kernel's pread: {ratio:.3}"));
        }
    }
    report.plots.push(outcome.rates_plot("hit", format!("{cell}, by the way to them")));
}
