//! One fio run against a server, with client and server on separate cores.
//!
//! Invariant: D3 the usage is the server's, not fio's.

use crate::harness::alternate::{Outcome, Turn};
use crate::harness::load::Slice;
use crate::harness::meter::{Watch, looking};
use crate::harness::options::Options;
use crate::report::model::{Good, Report, median};
use crate::rivals::fio::{self, FioJob};
use crate::rivals::server::{Kind, Server, program_exists};
use forebay_base::Result;
use std::time::Duration;

pub const BLOCK: u64 = 4096;
pub const DEPTH: u32 = 16;
pub const LOOK: Duration = Duration::from_millis(100);
pub const CONNECTIONS: [u32; 2] = [1, 4];

/// Cores of client and server; `None` if there is one core or no taskset.
#[derive(Clone, Copy)]
pub struct Cores {
    /// The client's.
    pub client: Option<usize>,
    /// The server's.
    pub server: Option<usize>,
}

impl Cores {
    /// Chooses two cores, if there are two.
    pub fn choose(report: &mut Report) -> Self {
        let cpus = std::thread::available_parallelism().map_or(1, |n| n.get());
        if cpus < 2 || !program_exists("taskset") {
            report.not_run("client and server pinned", "one core, or no taskset");
            return Self { client: None, server: None };
        }
        Self { client: Some(0), server: Some(1) }
    }
}

pub fn job(turn: &Turn, connections: u32, bytes_max: u64) -> FioJob {
    FioJob { depth: DEPTH, connections, bytes_max, ..FioJob::single("randread", turn) }
}

/// One fio run against a server; the usage is the server's (D3).
pub fn slice(server: &Server, job: FioJob, cores: Cores) -> Result<Slice> {
    let mut watch = Watch::start(server.pid());
    let client = || fio::run(&[job], &server.uri, cores.client);
    let slices = looking(LOOK, || watch.look(), client);
    let mut slice = slices?.pop().expect("one job, one slice");
    slice.usage = watch.used();
    Ok(slice)
}

pub fn ours_kind(options: &Options, cache: u64, mode: &'static str) -> Kind {
    Kind::Ours { cache, mode, aio: options.aio.clone(), more: Vec::new() }
}

/// CPU seconds of the server per operation.
pub fn cpu_per_io(slice: &Slice) -> f64 {
    slice.usage.cpu_seconds / slice.ops.max(1) as f64
}

/// CPU of Forebay's server per operation over a rival's, by number of connections.
#[derive(Default)]
pub struct Worst(Vec<(&'static str, f64)>);

impl Worst {
    /// Adds the result with one number of connections.
    pub fn add(&mut self, outcome: &Outcome, short: &'static str, rival: &str) {
        self.0.push((short, outcome.ratio_of("ours", rival, |s| cpu_per_io(s) * 1e6)));
    }

    /// Adds the worst of these ratios with its bar.
    pub fn add_bar(&self, report: &mut Report, short: &str, bar: f64) {
        let own = self.0.iter().filter(|(name, value)| *name == short && value.is_finite());
        let worst = own.map(|(_, value)| *value).fold(f64::NAN, f64::max);
        let name = format!("server_cpu_per_io_vs_{short}");
        report.ratio_with_bar(&name, worst, Good::AtMost, bar);
    }
}

pub fn add_switches(report: &mut Report, part: &str, connections: u32, outcome: &Outcome) {
    let per_io = |s: &Slice| s.usage.voluntary as f64 / s.ops.max(1) as f64;
    let values: Vec<f64> = outcome.per_round("ours").iter().map(per_io).collect();
    let name = format!("nbd_{part}_voluntary_switches_per_io_c{connections}");
    report.ratio_with_bar(&name, median(&values), Good::AtMost, 0.5);
}
