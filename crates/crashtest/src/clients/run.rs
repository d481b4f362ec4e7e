//! One run of several clients on one volume, or on one raw image, with every moment at which the
//! power may fail.
//!
//! Invariants: run.M1 an operation ends within a bounded number of steps of the world, and the
//! world is never stuck while one has not ended. run.M2 the cache stays within its budget, and the
//! rest of the volume's memory within the bound of all classes.
//!
//! No locks across a wait.

use super::client::{Client, DIRECTORY, Site, all_names, path};
use super::early::EarlyRelease;
use super::file::{IMAGE, Opened};
use super::ground::{Ground, IMAGE_BYTES};
use super::history::Span;
use super::log::{Changed, Log, Past, Synced, of_checkpoint};
use super::names::{At, Names, Orders};
use super::plan::Step;
use crate::bounds::Bounds;
use crate::setup::Setup;
use forebay_base::sim_world::SimWorld;
use forebay_base::sync::Arc as SharedArc;
use forebay_base::task::WaitQueue;
use forebay_base::world::{World, WorldRef};
use forebay_base::{ErrorKind, IoFlags};
use forebay_block::{BioOp, DeviceRef};
use forebay_cache::PageCache;
use forebay_iomap::identity::Identity;
use forebay_iomap::{MapOps, MappedFile};
use forebay_lfs::Volume;
use forebay_lfs::fault::Planted;
use forebay_sim::{FaultCounts, FaultRule, PowerCut, SimDisk};
use forebay_vfs::{FileSystem, Ino, Name, OpenFlags};
use std::cell::Cell;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Steps of the world in one run, at most (M1).
const STEPS_MAX: u64 = 400_000;

/// The result of a run.
pub struct Ran {
    /// Every moment; the last one is behind everything.
    pub cuts: Vec<PowerCut>,
    /// What was done.
    pub past: Past,
    /// Orders of the operations on names.
    pub orders: Orders,
    /// Reads, writes and flushes that failed.
    pub failed: [u64; 3],
    /// Files, or volumes, that could not be read at the end, because the disk had failed.
    pub unchecked: u64,
}

/// A run that has ended, and its violation.
pub type Outcome = Result<Ran, String>;

fn text(error: forebay_base::Error) -> String {
    error.to_string()
}

/// Executes the steps on a disk whose initial content is known.
///
/// # Errors
/// What was wrong while it ran.
pub fn run(
    setup: &Setup,
    (disk, ground): (&SimDisk, &Ground),
    is_volume: bool,
    steps: &[(usize, Step)],
) -> Outcome {
    let world = disk.world().clone();
    world.set_step_limit(world.steps() + STEPS_MAX);
    let log = Arc::new(Log::new(disk, ground.histories()));
    disk.clear_log();
    disk.record_cuts();
    setup.failing.iter().for_each(|rule| disk.inject(rule.clone()));
    let is_lossless = setup.failing.iter().all(FaultRule::is_of_reads);
    log.look(|past| past.is_lossless = is_lossless);
    let (before, unchecked) = (disk.fault_counts(), Cell::new(0));
    let life = Life { setup, steps, disk, log: &log, before, unchecked: &unchecked };
    let done = bounded(&world, &log, async {
        match is_volume {
            true => life.volume().await,
            false => life.image().await,
        }
    });
    world.stop();
    if let Some(what) = log.take_wrong() {
        return Err(what);
    }
    done?;
    let mut cuts = disk.take_cuts();
    cuts.push(disk.cut_now());
    let past = log.take();
    let first = Names { entries: ground.names.clone(), ..Names::default() };
    let orders = Orders::of(past.names.clone(), first)?;
    let failed = disk.log();
    let failed = |op| failed.iter().filter(|e| e.op == op && e.fault.is_some()).count() as u64;
    let failed = [BioOp::Read, BioOp::Write, BioOp::Flush].map(failed);
    Ok(Ran { cuts, past, orders, failed, unchecked: unchecked.get() })
}

/// Runs a life. If the world is stuck or does not end, the error names the operations that wait
/// (run.M1).
fn bounded(
    world: &SimWorld,
    log: &Log,
    life: impl Future<Output = Result<(), String>>,
) -> Result<(), String> {
    catch_unwind(AssertUnwindSafe(|| world.run(life))).unwrap_or_else(|cause| {
        let said = cause.downcast_ref::<String>().map_or("a panic", String::as_str);
        Err(format!("{said}; not ended: {}", log.running()))
    })
}

/// One run.
struct Life<'a> {
    setup: &'a Setup,
    steps: &'a [(usize, Step)],
    disk: &'a SimDisk,
    log: &'a Arc<Log>,
    /// Faults of the disk before the run.
    before: FaultCounts,
    /// What [`Ran::unchecked`] becomes.
    unchecked: &'a Cell<u64>,
}

impl Life<'_> {
    /// Counts a failed read. Only a request that the disk failed explains it. At the end the disk
    /// is healthy again: then only content that the volume has lost cannot be read, and a failed
    /// read loses nothing.
    fn give_up(&self, at_end: bool, what: impl FnOnce() -> String) -> Result<(), String> {
        let is_explained = !at_end || !self.log.look(|past| past.is_lossless);
        if self.disk.fault_counts() == self.before || !is_explained {
            return Err(what());
        }
        self.unchecked.set(self.unchecked.get() + 1);
        Ok(())
    }

    async fn volume(&self) -> Result<(), String> {
        let world = self.disk.world().clone();
        let device: DeviceRef = Arc::new(self.disk.clone());
        let asked: WorldRef = world.clone();
        let options = self.setup.options(&asked).map_err(text)?;
        let volume = match Volume::open(&device, &asked, &options).await {
            Ok(volume) => volume,
            Err(error) => return self.give_up(false, || format!("it does not open: {error}")),
        };
        self.log.note_opened();
        let directory = volume.lookup(Ino::ROOT, Name::new(DIRECTORY).map_err(text)?).await;
        let dirs = match directory {
            Ok(directory) => [Ino::ROOT, directory.ino],
            Err(error) => return self.give_up(false, || text(error)),
        };
        let block = u64::from(self.setup.block_bytes);
        let (log, shared) = (self.log.clone(), volume.clone());
        let bounds = Bounds::of(self.setup);
        let site = Site { world, log, volume: Some(shared), dirs, block, bounds };
        self.clients(&site, None).await;
        if self.log.is_wrong() {
            return Ok(());
        }
        self.disk.heal();
        self.check_budget(options.cache.as_ref())?;
        self.check_files(&volume, &site).await?;
        drop(site);
        let begin = self.log.begin(usize::MAX, "closing".into(), |_| Changed::Nothing).0;
        let done = volume.close().await.map_err(of_checkpoint);
        let is_closed = done.is_ok();
        self.all_synced(begin, done);
        if is_closed { bounds.check_closed(&volume) } else { Ok(()) }
    }

    async fn image(&self) -> Result<(), String> {
        let world = self.disk.world().clone();
        let asked: WorldRef = world.clone();
        let options = self.setup.options(&asked).map_err(text)?;
        let cache = options.cache.ok_or("a cache is needed")?;
        let device: DeviceRef = Arc::new(self.disk.clone());
        let (identity, block) = (Identity::new(device), self.setup.block_bytes);
        let map: Arc<dyn MapOps> = match self.setup.plant {
            Some(Planted::RangeReleasedEarly) => Arc::new(EarlyRelease(identity)),
            _ => Arc::new(identity),
        };
        let file = MappedFile::new(&cache, map, block, IMAGE_BYTES, false).map_err(text)?;
        let handle = Arc::new(file.open_handle());
        let opened = Opened::Image(file.clone(), handle.clone());
        let (log, dirs, block) = (self.log.clone(), [Ino::ROOT; 2], u64::from(block));
        let bounds = Bounds::of(self.setup);
        self.log.note_opened();
        let site = Site { world, log, volume: None, dirs, block, bounds };
        self.clients(&site, Some(&opened)).await;
        if self.log.is_wrong() {
            return Ok(());
        }
        self.disk.heal();
        self.check_budget(Some(&cache))?;
        self.check_content(&opened, block).await?;
        let begin = self.log.begin(usize::MAX, "the last sync".into(), |_| Changed::Nothing).0;
        self.all_synced(begin, file.sync(&handle).await);
        Ok(())
    }

    /// Runs all clients, interleaved by the seed, until the last one is done.
    async fn clients(&self, site: &Site, opened: Option<&Opened>) {
        let count = self.steps.iter().map(|(_, step)| step.client + 1).max().unwrap_or(0);
        let (left, done) = (Arc::new(AtomicUsize::new(count)), Arc::new(WaitQueue::new()));
        for n in 0..count {
            let own = self.steps.iter().filter(|(_, step)| step.client == n).cloned();
            let own: Vec<(usize, Step)> = own.collect();
            let client = Client { site: site.clone(), opened: opened.cloned() };
            let (left, done) = (left.clone(), done.clone());
            let work = async move {
                client.work(own).await;
                left.fetch_sub(1, Ordering::AcqRel);
                done.wake_all();
            };
            site.world.spawn(&format!("client {n}"), Box::pin(work));
        }
        done.wait_until(|| (left.load(Ordering::Acquire) == 0).then_some(())).await;
    }

    /// Records the end of the last sync of everything, or of the close.
    fn all_synced(&self, begin: u64, done: forebay_base::Result<()>) {
        self.log.end(usize::MAX, Changed::Nothing, true, |past| match done {
            Ok(()) => past.syncs.push(Synced { of: None, begin, end: past.clock }),
            Err(error) => past.note_failed(error.kind(), || format!("at the end: {error}")),
        });
    }

    /// Checks that no part of the cache's budget exceeds its bound (run.M2).
    fn check_budget(&self, cache: Option<&SharedArc<PageCache>>) -> Result<(), String> {
        let rows = cache.map(|cache| cache.budget()).unwrap_or_default();
        match rows.iter().find(|(_, now, bound)| now > bound) {
            Some((what, now, bound)) => Err(format!("{what}: {now} bytes, at most {bound}")),
            None => Ok(()),
        }
    }

    /// Reads every file that has a name.
    async fn check_files(&self, volume: &Volume, site: &Site) -> Result<(), String> {
        let mut letters: Vec<At> = all_names().collect();
        letters.sort_unstable();
        for at in letters {
            let full = path(at);
            let name = Name::new(&full[full.len() - 1..]).map_err(text)?;
            let attr = match volume.lookup(site.dirs[usize::from(at.0)], name).await {
                Ok(attr) => attr,
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                Err(error) => {
                    self.give_up(true, || text(error))?;
                    continue;
                }
            };
            let file = match volume.open(attr.ino, OpenFlags::READ).await {
                Ok(file) => file,
                Err(error) => {
                    self.give_up(true, || text(error))?;
                    continue;
                }
            };
            self.check_content(&Opened::File(volume.clone(), file), site.block).await?;
        }
        Ok(())
    }

    async fn check_content(&self, opened: &Opened, block: u64) -> Result<(), String> {
        let begin = self.log.look(|past| past.clock);
        let asked = self.setup.file_bytes.max(IMAGE_BYTES) * 2;
        let len = if opened.ino() == IMAGE { IMAGE_BYTES } else { asked };
        let read = opened.read(0, len, IoFlags::empty()).await;
        let bytes = match read {
            Ok(bytes) => bytes,
            Err(error) => {
                let ino = opened.ino();
                return self.give_up(true, || format!("reading #{ino} at the end: {error}"));
            }
        };
        self.log.look(|past| {
            let span = Span { from: begin, to: past.clock + 1, crashed: false };
            let file = past.files.entry(opened.ino()).or_default();
            let checked = file.check_read((0, len), &bytes, block, span);
            checked.map_err(|what| format!("#{} at the end: {what}", opened.ino()))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_base::task::yield_now;
    use forebay_sim::SimConfig;
    use std::collections::BTreeMap;

    fn running() -> (Arc<SimWorld>, Log) {
        let world = SimWorld::new(1);
        world.set_step_limit(1_000);
        let log = Log::new(&SimDisk::new(world.clone(), SimConfig::default()), BTreeMap::new());
        log.begin(3, "Sync(true) of #4".into(), |_| Changed::Nothing);
        (world, log)
    }

    /// M1: both report the operation that waits.
    #[test]
    fn operation_that_waits_for_ever_is_named() {
        let (world, log) = running();
        let stuck = bounded(&world, &log, std::future::pending()).unwrap_err();
        assert!(stuck.contains("stuck") && stuck.contains("step 3: Sync(true) of #4"), "{stuck}");
        let (world, log) = running();
        let endless = async {
            loop {
                yield_now().await;
            }
        };
        let what = bounded(&world, &log, endless).unwrap_err();
        assert!(what.contains("livelock") && what.contains("Sync(true) of #4"), "{what}");
    }
}
