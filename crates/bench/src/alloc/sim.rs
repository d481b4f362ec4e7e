//! Ten writers of 2 MiB in the simulated world, on the slow device in simulated time. Every lock is
//! a point at which another writer may continue, as on a machine with a core for each writer. So
//! these rows show the cost of contention, not how often it occurs on this machine.

use super::fixture::Fixture;
use super::load::{Shape, create, pattern, write};
use super::strategies::{STRATEGIES, expected};
use crate::harness::options::Options;
use crate::report::model::{Report, median};
use forebay_base::sim_world::SimWorld;
use forebay_base::task::oneshot;
use forebay_base::units::GIB;
use forebay_base::world::WorldRef;
use forebay_base::{Error, ErrorKind, IoFlags, Result};
use forebay_lfs::{AllocMode, Volume};

/// Result of one run.
struct Ran {
    /// Bytes per second of simulated time.
    rate: f64,
    /// Discontiguities per request.
    seeks: f64,
    extents: f64,
}

/// Runs the requests of all writers; each wave begins at the same moment for all of them.
async fn waves(world: &WorldRef, volume: &Volume, shape: &Shape) -> Result<()> {
    let mut files = Vec::new();
    for n in 0..shape.direct {
        files.push(create(volume, &format!("job{n}")).await?.1);
    }
    for wave in 0..shape.count {
        let mut waiting = Vec::new();
        for (n, file) in files.iter().enumerate() {
            let ((tx, rx), file) = (oneshot(), file.clone());
            let (at, buf) = (wave * shape.request, pattern(n as u64, shape.request));
            let task =
                async move { tx.send(write(&file, buf, at, IoFlags::DIRECT).await.map(drop)) };
            world.spawn("writer", Box::pin(task));
            waiting.push(rx);
        }
        for rx in waiting {
            let gone = || Error::new(ErrorKind::Shutdown, "bench alloc", "a writer went away");
            rx.await.unwrap_or_else(|| Err(gone()))?;
        }
    }
    Ok(())
}

fn once(seed: u64, mode: AllocMode, pages: u32, shape: &Shape) -> Result<Ran> {
    let sim = SimWorld::new(seed);
    let world: WorldRef = sim.clone();
    let fixture = Fixture::slow(2 * GIB, world.clone());
    let ran = sim.run(async {
        fixture.make().await?;
        let volume = fixture.open(mode, pages, true).await?;
        let (begin, seeks) = (world.now(), fixture.seeks().unwrap_or(0));
        waves(&world, &volume, shape).await?;
        let seconds = (world.now() - begin) as f64 / 1e9;
        let stats = volume.alloc_stats();
        let requests = stats.direct_requests.max(1) as f64;
        Ok(Ran {
            rate: shape.bytes() as f64 / seconds,
            seeks: (fixture.seeks().unwrap_or(0) - seeks) as f64 / requests,
            extents: stats.direct_extents as f64 / requests,
        })
    });
    sim.stop();
    ran
}

/// Runs the part.
pub fn run(options: &Options, report: &mut Report) -> Result<()> {
    let shape = Shape::large("10x2m", 10, 0, if options.quick { 2 } else { 8 });
    let seeds = options.rounds_or(1, 5) as u64;
    let (mut rates, mut k) = (Vec::new(), 0.0);
    for (name, mode, pages) in STRATEGIES {
        let variant = format!("{name}-simulated");
        let ran: Vec<Ran> =
            (1..=seeds).map(|seed| once(seed, mode, pages, &shape)).collect::<Result<_>>()?;
        let column = |value: fn(&Ran) -> f64| ran.iter().map(value).collect::<Vec<f64>>();
        let rate = column(|ran| ran.rate / 1e6);
        report.row(&variant, "sim_10x2m_waves_throughput", "MB/s simulated", &rate);
        let seeks = column(|ran| ran.seeks);
        report.row(&variant, "sim_10x2m_waves_seeks_per_request", "1", &seeks);
        let extents = column(|ran| ran.extents);
        report.row(&variant, "sim_10x2m_waves_extents_per_request", "1", &extents);
        rates.push(median(&rate));
        if mode == AllocMode::Interleaved {
            k = median(&seeks);
        }
    }
    report.ratio("sim_interleaved_discontiguities", k);
    report.ratio("sim_expected", expected(k));
    report.ratio("sim_reserve_vs_interleaved", rates[2] / rates[0]);
    report.note(format!(
        "simulated world, a scheduling point at each lock, ten writers that begin at the same moment: {k:.0} \
         discontiguities for each request block by block, {:.1} times as fast expected, {:.1} reached",
        expected(k),
        rates[2] / rates[0]
    ));
    Ok(())
}
