//! One run of several clients on one volume, or on one raw image, with every moment at which the
//! power may fail.
//!
//! Invariants: run.M1 an operation ends within a bounded number of steps of the world, and the
//! world is never stuck while one has not ended. run.M2 the cache stays within its budget, and the
//! rest of the volume's memory within the bound of all classes.
//!
//! No locks across a wait.

use super::client::{BOTH, Client, DIRECTORY, Site, all_names, path};
use super::early::EarlyRelease;
use super::file::{IMAGE, Opened};
use super::ground::IMAGE_BYTES;
use super::history::Span;
use super::log::{Changed, Log, LostBlocks, Past, Synced, lost_blocks, of_checkpoint};
use super::names::{Names, Orders};
use super::plan::Step;
use super::weather::Weather;
use crate::workload::{At, Bounds, Ground, Meter, Operation, Setup};
use forebay_base::sync::Mutex;
use forebay_base::task::WaitQueue;
use forebay_base::world::{World, WorldRef};
use forebay_base::{ErrorKind, IoFlags};
use forebay_block::{BioOp, DeviceRef};
use forebay_iomap::identity::Identity;
use forebay_iomap::{MapOps, MappedFile};
use forebay_lfs::Volume;
use forebay_lfs::fault::Planted;
use forebay_sim::{FaultCounts, FaultRule, PowerCut, SimDisk};
use forebay_vfs::{FileSystem, Ino, Name, OpenFlags};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// With this step the clients begin to work on the larger volume.
const GROWN_BEFORE: usize = 15;
/// Steps of the world in one run, at most (M1).
const STEPS_MAX: u64 = 400_000;

/// The result of a run.
pub struct Ran {
    /// Every moment; the last one is after all requests.
    pub cuts: Vec<PowerCut>,
    /// What was done.
    pub past: Past,
    /// Orders of the operations on names.
    pub orders: Orders,
    /// Reads, writes and flushes that failed.
    pub failed: [u64; 3],
    /// Files, or volumes, that could not be read at the end, because the disk had failed.
    pub unchecked: u64,
    /// Requests that the host refused for lack of space.
    pub no_space: u64,
    /// Sectors that decayed.
    pub rotten: u64,
    /// The volume was made larger.
    pub grown: bool,
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
    let meter = &Meter::new(Bounds::of(setup), disk, STEPS_MAX);
    let log = Arc::new(Log::new(disk, ground.histories(), &ground.decayed));
    disk.clear_log();
    disk.record_cuts();
    setup.failing.iter().for_each(|rule| disk.inject(rule.clone()));
    let before = disk.fault_counts();
    if let Some(bytes) = setup.host_bytes {
        disk.limit_space(disk.allocated() + bytes);
    }
    let is_lossless = setup.failing.iter().all(FaultRule::is_of_reads);
    log.look(|past| past.is_lossless = is_lossless);
    let (unchecked, grown) = (Cell::new(0), Cell::new(false));
    let (unread, larger) = (&unchecked, &grown);
    let life =
        Life { setup, steps, disk, log: &log, meter, before, unchecked: unread, grown: larger };
    let done = meter.run(&world, || log.running(), async {
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
    let faults = disk.fault_counts();
    Ok(Ran {
        cuts,
        past,
        orders,
        failed,
        unchecked: unchecked.get(),
        no_space: faults.no_space - before.no_space,
        rotten: faults.rotten - before.rotten,
        grown: grown.get(),
    })
}

/// One run.
pub(super) struct Life<'a> {
    pub(super) setup: &'a Setup,
    steps: &'a [(usize, Step)],
    disk: &'a SimDisk,
    pub(super) log: &'a Arc<Log>,
    pub(super) meter: &'a Meter,
    /// Faults of the disk before the run.
    before: FaultCounts,
    /// What [`Ran::unchecked`] becomes.
    unchecked: &'a Cell<u64>,
    /// What [`Ran::grown`] becomes.
    pub(super) grown: &'a Cell<bool>,
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
        let opening = Volume::open(&device, &asked, &options);
        let volume = match self.meter.ended(Operation::Open, opening).await {
            Ok(volume) => volume,
            Err(error) => return self.give_up(false, || format!("it does not open: {error}")),
        };
        self.log.note_opened();
        Bounds::of(self.setup).check_memory(&volume)?;
        let directory = volume.lookup(Ino::ROOT, Name::new(DIRECTORY).map_err(text)?).await;
        let dirs = match directory {
            Ok(directory) => [Ino::ROOT, directory.ino],
            Err(error) => return self.give_up(false, || text(error)),
        };
        let block = u64::from(self.setup.block_bytes);
        let mut site = self.site(Some(volume.clone()), dirs, block);
        let opened = self.clients(&site, self.first_half(), &|_| None).await;
        let (volume, cache) = match self.setup.grown_bytes {
            _ if self.log.is_wrong() => return Ok(()),
            None => (volume, options.cache),
            Some(bytes) => {
                // The clients keep no reference to the smaller volume.
                site.volume = None;
                let Some((volume, cache)) = self.grow(volume, &device, bytes).await? else {
                    return Ok(());
                };
                site.volume = Some(volume.clone());
                let files = reopened(&volume, &opened).await;
                self.clients(&site, self.second_half(), &|n| files.get(n).cloned().flatten()).await;
                (volume, cache)
            }
        };
        if self.log.is_wrong() {
            return Ok(());
        }
        self.disk.heal();
        Bounds::of(self.setup).check_cache(cache.as_ref())?;
        let lost = self.check_lost(&volume, block).await?;
        self.meter.ended(Operation::ReadAll, self.check_files(&volume, &site)).await?;
        drop(site);
        let closing = |past: &mut Past| {
            past.note_lost(lost.clone());
            Changed::Nothing
        };
        let begin = self.log.begin(usize::MAX, "closing".into(), closing).0;
        let done = self.meter.ended(Operation::Close, volume.close()).await;
        let done = done.map_err(of_checkpoint);
        let is_closed = done.is_ok();
        self.all_synced(begin, lost, done);
        if is_closed { Bounds::of(self.setup).check_closed(&volume) } else { Ok(()) }
    }

    fn site(&self, volume: Option<Volume>, dirs: [Ino; 2], block: u64) -> Site {
        let (world, log) = (self.disk.world().clone(), self.log.clone());
        let (bounds, weather) = (Bounds::of(self.setup), Weather::new(self.setup, self.disk));
        Site { world, log, volume, dirs, block, bounds, weather }
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
        let block = u64::from(block);
        self.log.note_opened();
        let site = self.site(None, [Ino::ROOT; 2], block);
        self.clients(&site, self.steps, &|_| Some(opened.clone())).await;
        if self.log.is_wrong() {
            return Ok(());
        }
        self.disk.heal();
        Bounds::of(self.setup).check_cache(Some(&cache))?;
        self.meter.ended(Operation::ReadAll, self.check_content(&opened, block)).await?;
        let begin = self.log.begin(usize::MAX, "the last sync".into(), |_| Changed::Nothing).0;
        let done = self.meter.ended(Operation::Close, file.sync(&handle)).await;
        self.all_synced(begin, LostBlocks::new(), done);
        Ok(())
    }

    /// Runs all clients, interleaved by the seed, until the last one is done. Returns the inodes of
    /// the files that each of them opened last.
    async fn clients(
        &self,
        site: &Site,
        steps: &[(usize, Step)],
        opened: &dyn Fn(usize) -> Option<Opened>,
    ) -> Vec<Option<u64>> {
        let count = steps.iter().map(|(_, step)| step.client + 1).max().unwrap_or(0);
        let (left, done) = (Arc::new(AtomicUsize::new(count)), Arc::new(WaitQueue::new()));
        let last = Arc::new(Mutex::new(vec![None; count]));
        for n in 0..count {
            let own = steps.iter().filter(|(_, step)| step.client == n).cloned();
            let own: Vec<(usize, Step)> = own.collect();
            let client = Client { site: site.clone(), opened: opened(n) };
            let (left, done, last) = (left.clone(), done.clone(), last.clone());
            let work = async move {
                let ino = client.work(own).await;
                last.lock()[n] = ino;
                left.fetch_sub(1, Ordering::AcqRel);
                done.wake_all();
            };
            site.world.spawn(&format!("client {n}"), Box::pin(work));
        }
        done.wait_until(|| (left.load(Ordering::Acquire) == 0).then_some(())).await;
        last.lock().clone()
    }

    /// The steps before the volume is made larger; all of them if it is not.
    fn first_half(&self) -> &[(usize, Step)] {
        let end = self.steps.partition_point(|(number, _)| *number < GROWN_BEFORE);
        if self.setup.grown_bytes.is_some() { &self.steps[..end] } else { self.steps }
    }

    fn second_half(&self) -> &[(usize, Step)] {
        &self.steps[self.first_half().len()..]
    }

    /// Records the end of the last sync of everything, or of the close.
    pub(super) fn all_synced(&self, begin: u64, lost: LostBlocks, done: forebay_base::Result<()>) {
        self.log.end(usize::MAX, Changed::Nothing, true, |past| match done {
            Ok(()) => past.syncs.push(Synced { of: None, begin, end: past.clock, lost }),
            Err(error) => past.note_failed(error.kind(), None, || format!("at the end: {error}")),
        });
    }

    /// Makes a checkpoint if the disk has lost content: the same is lost afterwards.
    async fn check_lost(&self, volume: &Volume, block: u64) -> Result<LostBlocks, String> {
        let lost = lost_blocks(Some(volume), block);
        if lost.is_empty() {
            return Ok(lost);
        }
        if let Err(error) = self.meter.ended(Operation::Checkpoint, volume.checkpoint()).await {
            self.give_up(true, || format!("a checkpoint after a loss: {error}"))?;
        }
        let later = lost_blocks(Some(volume), block);
        match later == lost {
            true => Ok(lost),
            false => Err(format!("lost are {lost:?}, and after a checkpoint {later:?}")),
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
        let asked = self.setup.file_bytes.max(IMAGE_BYTES) * 2;
        let len = if opened.ino() == IMAGE { IMAGE_BYTES } else { asked };
        let ino = opened.ino();
        match self.check_range(opened, (0, len), block).await {
            Err(error)
                if error.kind() == ErrorKind::Corrupt
                    && self.log.look(|past| past.has_decayed(ino)) =>
            {
                self.check_blocks(opened, len, block).await
            }
            Err(error) => self.give_up(true, || format!("reading #{ino} at the end: {error}")),
            Ok(checked) => checked.map(drop),
        }
    }

    /// Reads a file block by block: those that have decayed may fail.
    async fn check_blocks(&self, opened: &Opened, len: u64, block: u64) -> Result<(), String> {
        let ino = opened.ino();
        for number in 0..len / block {
            match self.check_range(opened, (number * block, block), block).await {
                Ok(Ok(0)) => break,
                Ok(checked) => drop(checked?),
                Err(error) => {
                    let decayed = |past: &mut Past| past.had_decayed((ino, number), past.clock);
                    if error.kind() != ErrorKind::Corrupt || !self.log.look(decayed) {
                        self.give_up(true, || format!("block {number} of #{ino}: {error}"))?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Reads a range, and compares it with the history of the file. Returns the number of bytes.
    async fn check_range(
        &self,
        opened: &Opened,
        (at, len): (u64, u64),
        block: u64,
    ) -> forebay_base::Result<Result<u64, String>> {
        let begin = self.log.look(|past| past.clock);
        let bytes = opened.read(at, len, IoFlags::empty()).await?;
        Ok(self.log.look(|past| {
            let span = Span { from: begin, to: past.clock + 1, crashed: false };
            let file = past.files.entry(opened.ino()).or_default();
            let checked = file.check_read((at, len), &bytes, block, span);
            let checked = checked.map_err(|what| format!("#{} at the end: {what}", opened.ino()));
            checked.map(|()| bytes.len() as u64)
        }))
    }
}

/// The files that clients opened last, on the volume that was opened again. Those that had no name
/// any more are gone.
async fn reopened(volume: &Volume, inos: &[Option<u64>]) -> Vec<Option<Opened>> {
    let mut files = Vec::new();
    for ino in inos {
        files.push(match ino {
            Some(ino) => volume.open(Ino(*ino), BOTH).await.ok(),
            None => None,
        });
    }
    let of = |file: Option<_>| file.map(|file| Opened::File(volume.clone(), file));
    files.into_iter().map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_base::sim_world::SimWorld;
    use forebay_base::task::yield_now;
    use forebay_sim::SimConfig;
    use std::collections::BTreeMap;

    fn running() -> (Arc<SimWorld>, Log, Meter) {
        let world = SimWorld::new(1);
        let disk = SimDisk::new(world.clone(), SimConfig::default());
        let (log, bounds) =
            (Log::new(&disk, BTreeMap::new(), &[]), Bounds::of(&Setup::from_seed(1)));
        let meter = Meter::new(bounds, &disk, 1_000);
        log.begin(3, "Sync(true) of #4".into(), |_| Changed::Nothing);
        (world, log, meter)
    }

    /// M1: a stuck and an endless run are reported with the operation that waits.
    #[test]
    fn operation_that_waits_for_ever_is_named() {
        let (world, log, meter) = running();
        let stuck = meter.run::<()>(&world, || log.running(), std::future::pending()).unwrap_err();
        assert!(stuck.contains("stuck") && stuck.contains("step 3: Sync(true) of #4"), "{stuck}");
        let (world, log, meter) = running();
        let endless = async {
            loop {
                yield_now().await;
            }
            #[expect(unreachable_code, reason = "the type of the output")]
            Ok(())
        };
        let what = meter.run::<()>(&world, || log.running(), endless).unwrap_err();
        assert!(what.contains("livelock") && what.contains("Sync(true) of #4"), "{what}");
    }
}
