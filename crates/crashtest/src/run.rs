//! Carries a script out on a volume once; every moment at which the power may go is kept.
//!
//! Invariants: U1 what is known of a moment is what was known before the request that it precedes was
//! submitted: a sync counts as acknowledged from the moment on at which it returned.
//!
//! No locks across a wait.

use crate::script::Script;
use crate::setup::Setup;
use forebay_base::ErrorKind;
use forebay_base::sim_world::SimWorld;
use forebay_base::sync::{Arc, Mutex};
use forebay_base::task::{WaitQueue, yield_now};
use forebay_base::world::{World, WorldRef, split_mix};
use forebay_block::{BioOp, DeviceRef};
use forebay_lfs::Volume;
use forebay_sim::{PowerCut, SimDisk};
use forebay_vfs::FileSystem;
use forebay_vfs::check::{Op, Runner, Times};

/// ENOSPC.
const NO_SPACE: i32 = 28;

/// How far a run was at a moment.
#[derive(Debug, Clone, Copy, Default)]
pub struct Progress {
    /// The volume was open: what was recovered before is durable.
    pub opened: bool,
    /// Steps that were begun.
    pub begun: usize,
    /// Steps that a sync has acknowledged.
    pub acked: usize,
    /// Syncs that were acknowledged.
    pub syncs: usize,
}

/// A sync that was acknowledged: of which file (`None`: of all), and after how many steps.
pub type Synced = (Option<u64>, usize);

/// What came of a run.
#[derive(Default)]
pub struct Ran {
    /// The moments, in order; the last one is behind everything.
    pub cuts: Vec<PowerCut>,
    /// By the tag of a moment.
    history: Vec<Progress>,
    /// All of them, in order.
    pub syncs: Vec<Synced>,
    /// Syncs that were told that they failed.
    pub syncs_failed: u64,
    /// Requests that were made to fail.
    pub writes_failed: u64,
    /// The same of flushes.
    pub flushes_failed: u64,
    /// At the last moment, if everything was synced then: what a recovery has to find.
    pub live: Option<u64>,
    /// It ended early, because the volume was full.
    pub full: bool,
    /// Segments that were cleaned.
    pub cleaned: u64,
    /// What was wrong while it ran.
    pub wrong: Option<String>,
}

impl Ran {
    /// How far it was at a moment.
    pub fn progress(&self, cut: &PowerCut) -> Progress {
        self.history.get(cut.tag() as usize).copied().unwrap_or_default()
    }
}

#[derive(Default)]
struct Known {
    now: Progress,
    ran: Ran,
    running: usize,
}

struct Shared {
    known: Mutex<Known>,
    idle: WaitQueue,
    disk: SimDisk,
}

impl Shared {
    /// Changes what is known; moments from now on know it (U1).
    fn learn(&self, change: impl FnOnce(&mut Known)) {
        let tag = {
            let mut known = self.known.lock();
            change(&mut known);
            let now = known.now;
            known.ran.history.push(now);
            known.ran.history.len() as u64 - 1
        };
        self.disk.tag_cuts(tag);
    }

    fn synced(&self, of: Option<u64>, steps: usize, done: bool) {
        self.learn(|known| match done {
            true => {
                known.now.acked = known.now.acked.max(steps);
                known.ran.syncs.push((of, steps));
                known.now.syncs = known.ran.syncs.len();
            }
            false => known.ran.syncs_failed += 1,
        });
    }
}

/// Carries `script` out on the volume on `disk`, with syncs beside it now and then.
pub fn run(setup: &Setup, script: &Script, disk: &SimDisk) -> Ran {
    let world = disk.world().clone();
    let device: DeviceRef = std::sync::Arc::new(disk.clone());
    let shared = Arc::new(Shared {
        known: Mutex::new(Known::default()),
        idle: WaitQueue::new(),
        disk: disk.clone(),
    });
    shared.learn(|_| ());
    disk.clear_log();
    disk.record_cuts();
    setup.failing.iter().for_each(|rule| disk.inject(rule.clone()));
    let result = world.run(whole_life(setup, script, &world, &device, &shared));
    world.stop();
    let mut ran = std::mem::take(&mut shared.known.lock().ran);
    ran.wrong = result.err();
    ran.cuts = disk.take_cuts();
    ran.cuts.push(disk.cut_now());
    let failed = disk.log();
    let failed = |op| failed.iter().filter(|e| e.op == op && e.fault.is_some()).count() as u64;
    (ran.writes_failed, ran.flushes_failed) = (failed(BioOp::Write), failed(BioOp::Flush));
    ran
}

async fn whole_life(
    setup: &Setup,
    script: &Script,
    world: &std::sync::Arc<SimWorld>,
    device: &DeviceRef,
    shared: &Arc<Shared>,
) -> Result<(), String> {
    let healthy = setup.failing.is_empty();
    let asked: WorldRef = world.clone();
    let options = setup.options(&asked).map_err(|e| e.to_string())?;
    let volume = match Volume::open(device, &asked, &options).await {
        Ok(volume) => volume,
        Err(error) if healthy => return Err(format!("it does not open: {error}")),
        Err(_) => return Ok(()),
    };
    shared.learn(|known| known.now.opened = true);
    let result = steps(setup, script, &volume, shared).await;
    let idle = || (shared.known.lock().running == 0).then_some(());
    shared.idle.wait_until(idle).await;
    let cleaned = volume.clean_stats().segments;
    shared.learn(|known| known.ran.cleaned = cleaned);
    let full = shared.known.lock().ran.full;
    if healthy && !full && result.is_ok() {
        match volume.close().await {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::NoSpace => {
                shared.learn(|known| known.ran.full = true);
                return Ok(());
            }
            Err(error) => return Err(format!("closing: {error}")),
        }
        let live = volume.digest().await.map_err(|e| format!("digest: {e}"))?;
        shared.learn(|known| {
            known.ran.live = Some(live);
            known.now.acked = known.now.begun;
            known.ran.syncs.push((None, known.now.begun));
            known.now.syncs = known.ran.syncs.len();
        });
    }
    result
}

async fn steps(
    setup: &Setup,
    script: &Script,
    volume: &Volume,
    shared: &Arc<Shared>,
) -> Result<(), String> {
    let mut rng = setup.seed ^ 0x57e9;
    let mut runner = Runner::new(Times::Ignore, None);
    let world = shared.disk.world();
    for (n, op) in script.ops.iter().enumerate() {
        shared.learn(|known| known.now.begun = n + 1);
        let of = script.synced[n];
        let outcome = runner.apply(volume, op).await;
        let wanted = &script.outcomes[n];
        if matches!(op, Op::SyncFs | Op::Sync { .. }) {
            if of.is_some() || *op == Op::SyncFs {
                shared.synced(of, n + 1, outcome.answer.is_ok());
            }
        } else if outcome != *wanted {
            let full = outcome.answer == Err(NO_SPACE);
            shared.learn(|known| known.ran.full |= full);
            if setup.failing.is_empty() && !full {
                return Err(format!("step {n}, {op:?}: {outcome:?}, not {wanted:?}"));
            }
            // It was refused because of the disk, or because that is full; what the others would do then is
            // another story.
            break;
        }
        if !setup.beside {
            continue;
        }
        match split_mix(&mut rng) % 12 {
            6 | 7 if setup.crowded => beside(volume, shared, Beside::Clean),
            8 => beside(volume, shared, Beside::Checkpoint),
            0 | 3 => sync_beside(volume, shared, n + 1),
            1 => yield_now().await,
            2 => world.sleep(std::time::Duration::from_micros(150)).await,
            _ => {}
        }
    }
    runner.close_all();
    Ok(())
}

/// What somebody else does at the same time.
#[derive(Clone, Copy)]
enum Beside {
    Checkpoint,
    Clean,
}

fn beside(volume: &Volume, shared: &Arc<Shared>, what: Beside) {
    let (volume, world) = (volume.clone(), shared.disk.world().clone());
    let shared = shared.clone();
    shared.known.lock().running += 1;
    let task = async move {
        let done = match what {
            Beside::Checkpoint => volume.checkpoint().await,
            Beside::Clean => volume.clean().await.map(drop),
        };
        if let Err(error) = done {
            log::debug!("a checkpoint, or cleaning, failed: {error}");
        }
        shared.known.lock().running -= 1;
        shared.idle.wake_all();
    };
    world.spawn("beside", Box::pin(task));
}

/// A sync of everything by somebody else, at the same time.
fn sync_beside(volume: &Volume, shared: &Arc<Shared>, steps: usize) {
    let (volume, world) = (volume.clone(), shared.disk.world().clone());
    let shared = shared.clone();
    shared.known.lock().running += 1;
    let task = async move {
        let done = volume.syncfs().await.is_ok();
        shared.synced(None, steps, done);
        shared.known.lock().running -= 1;
        shared.idle.wake_all();
    };
    world.spawn("sync", Box::pin(task));
}
