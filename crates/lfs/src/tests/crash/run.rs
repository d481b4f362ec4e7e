//! Carries a script out on a volume until the power goes.
//!
//! No locks across a wait.

use crate::fault::{Plant, Planted};
use crate::tests::crash::script::Script;
use crate::volume::{CreateOptions, OpenOptions, Volume};
use forebay_base::sim_world::SimWorld;
use forebay_base::task::{WaitQueue, yield_now};
use forebay_base::world::{World, WorldRef, split_mix};
use forebay_block::DeviceRef;
use forebay_cache::{Config, PageCache};
use forebay_sim::{FaultRule, SimConfig, SimDisk};
use forebay_vfs::check::{Op, Runner, Times};
use forebay_vfs::{FileSystem, ManualClock, Timestamp};
use std::sync::{Arc, Mutex};

/// One way to set up a run; drawn from the seed.
#[derive(Debug, Clone)]
pub struct Setup {
    pub seed: u64,
    pub block_bytes: u32,
    pub sector: u32,
    pub fua: bool,
    pub plant: Option<Planted>,
    /// Longest content in a record, bytes.
    pub inline_max: u32,
    /// Names in memory, bytes; with 0 every operation loads what it needs.
    pub inode_cache_bytes: usize,
    /// Files have content.
    pub content: bool,
    pub file_bytes: u64,
    pub volume_bytes: u64,
    /// The log comes to the end of its segment soon.
    pub near_end: bool,
    /// Longest log behind a checkpoint, bytes.
    pub checkpoint_bytes: u64,
    /// Steps.
    pub steps: usize,
    /// Flushes or writes fail now and then.
    pub failing: Vec<FaultRule>,
}

impl Setup {
    pub fn from_seed(seed: u64) -> Self {
        let mut rng = seed ^ 0x5eed;
        let mut pick = |n: u64| split_mix(&mut rng) % n;
        Self {
            seed,
            block_bytes: 512 << pick(4),
            sector: 512,
            fua: pick(2) == 0,
            inline_max: [0, 4096, 64 << 10][pick(3) as usize],
            inode_cache_bytes: [0, 3000, 1 << 20][pick(3) as usize],
            plant: None,
            content: false,
            file_bytes: 48 << 10,
            volume_bytes: 1 << 20,
            near_end: seed.is_multiple_of(2),
            checkpoint_bytes: [2 << 30, 4096, 16 << 10][pick(3) as usize],
            steps: 40,
            failing: Vec::new(),
        }
    }

    pub fn options(&self, world: &WorldRef) -> OpenOptions {
        let config =
            Config { huge_pages: false, folio_size: 16384, ..Config::with_budget(1 << 20) };
        let cache = || PageCache::new(config, world.clone()).expect("a cache");
        OpenOptions {
            clock: Arc::new(ManualClock::default()),
            cache: self.content.then(cache),
            inline_max: self.inline_max,
            inode_cache_bytes: self.inode_cache_bytes,
            fua: self.fua,
            checkpoint_bytes: self.checkpoint_bytes,
            plant: Plant(self.plant),
            ..OpenOptions::default()
        }
    }

    /// A disk with an empty volume, everything durable.
    pub fn blank(&self) -> SimDisk {
        let world = SimWorld::new(self.seed);
        let config =
            SimConfig { size: self.volume_bytes, sector: self.sector, ..SimConfig::default() };
        let disk = SimDisk::new(world.clone(), config);
        let device: DeviceRef = Arc::new(disk.clone());
        let options = CreateOptions {
            block_bytes: self.block_bytes,
            segment_bytes: 64 << 10,
            ..CreateOptions::new([7; 16], [9; 16], Timestamp::new(1, 0))
        };
        let asked: WorldRef = world.clone();
        world.run(Volume::create(&device, &asked, &options)).expect("room for a volume");
        world.stop();
        disk
    }
}

/// When the power goes.
#[derive(Debug, Clone, Copy)]
pub enum Cut {
    Never,
    /// At this request.
    At(u64),
    /// At this request after the opening.
    Later(u64),
}

/// What a run knows when it ends.
pub struct Ended {
    /// The volume was open: what was recovered before is durable.
    pub opened: bool,
    /// Steps that were begun.
    pub begun: usize,
    /// Steps that a sync has acknowledged.
    pub acked: usize,
    /// Of the file that each sync was for: what it acknowledged. `None`: of all files.
    pub syncs: Vec<(Option<u64>, usize)>,
    pub syncs_failed: u64,
}

#[derive(Default)]
struct Shared {
    opened: bool,
    begun: usize,
    acked: usize,
    syncs: Vec<(Option<u64>, usize)>,
    failed: u64,
    running: usize,
}

/// Carries `script` out on the volume on `disk`, with syncs beside it now and then.
pub fn run(setup: &Setup, script: &Script, disk: &SimDisk, cut: Cut) -> Ended {
    if let Cut::At(request) = cut {
        disk.power_off_after(request);
    }
    let world = disk.world().clone();
    let device: DeviceRef = Arc::new(disk.clone());
    let shared = Arc::new((Mutex::new(Shared::default()), WaitQueue::new()));
    setup.failing.iter().for_each(|rule| disk.inject(rule.clone()));
    world.run(async {
        let asked: WorldRef = world.clone();
        let Ok(volume) = Volume::open(&device, &asked, &setup.options(&asked)).await else {
            return;
        };
        shared.0.lock().unwrap().opened = true;
        if let Cut::Later(request) = cut {
            disk.power_off_after(request);
        }
        steps(setup, script, disk, &volume, &shared).await;
        shared.1.wait_until(|| (shared.0.lock().unwrap().running == 0).then_some(())).await;
    });
    world.stop();
    let shared = shared.0.lock().unwrap();
    Ended {
        opened: shared.opened,
        begun: shared.begun,
        acked: shared.acked,
        syncs: shared.syncs.clone(),
        syncs_failed: shared.failed,
    }
}

type Both = Arc<(Mutex<Shared>, WaitQueue)>;

async fn steps(setup: &Setup, script: &Script, disk: &SimDisk, volume: &Volume, shared: &Both) {
    let mut rng = setup.seed ^ 0x57e9;
    let mut runner = Runner::new(Times::Ignore, None);
    for (n, op) in script.ops.iter().enumerate() {
        if disk.is_off() {
            break;
        }
        shared.0.lock().unwrap().begun = n + 1;
        let of = script.synced[n];
        let outcome = runner.apply(volume, op).await;
        let synced = matches!(op, Op::SyncFs | Op::Sync { .. });
        if synced && outcome.answer.is_ok() && (of.is_some() || *op == Op::SyncFs) {
            ack(shared, of, n + 1);
        } else if synced {
            shared.0.lock().unwrap().failed += 1;
        } else if !disk.is_off() && setup.failing.is_empty() {
            let wanted = &script.outcomes[n];
            assert_eq!(&outcome, wanted, "{setup:?} step {n}: {op:?}");
        }
        match split_mix(&mut rng) % 12 {
            8 => checkpoint_beside(disk.world(), volume, shared),
            0 | 3 => sync_beside(disk.world(), volume, shared, n + 1),
            1 => yield_now().await,
            2 => disk.world().sleep(std::time::Duration::from_micros(150)).await,
            _ => {}
        }
    }
    runner.close_all();
}

fn ack(shared: &Both, of: Option<u64>, steps: usize) {
    let mut shared = shared.0.lock().unwrap();
    shared.acked = shared.acked.max(steps);
    shared.syncs.push((of, steps));
}

/// A checkpoint by somebody else, at the same time.
fn checkpoint_beside(world: &Arc<SimWorld>, volume: &Volume, shared: &Both) {
    let (volume, shared) = (volume.clone(), shared.clone());
    shared.0.lock().unwrap().running += 1;
    let task = async move {
        if let Err(error) = volume.checkpoint().await {
            log::debug!("a checkpoint failed: {error}");
        }
        shared.0.lock().unwrap().running -= 1;
        shared.1.wake_all();
    };
    world.spawn("checkpoint", Box::pin(task));
}

/// A sync of everything by somebody else, at the same time.
fn sync_beside(world: &Arc<SimWorld>, volume: &Volume, shared: &Both, steps: usize) {
    let (volume, shared) = (volume.clone(), shared.clone());
    shared.0.lock().unwrap().running += 1;
    let task = async move {
        match volume.syncfs().await {
            Ok(()) => ack(&shared, None, steps),
            Err(_) => shared.0.lock().unwrap().failed += 1,
        }
        shared.0.lock().unwrap().running -= 1;
        shared.1.wake_all();
    };
    world.spawn("sync", Box::pin(task));
}
