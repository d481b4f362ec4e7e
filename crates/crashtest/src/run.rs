//! Executes a script on a volume once, and records every moment at which the power may fail.
//!
//! On a disk that fails, decays or has no space left, a run goes on after a refused step. Then the
//! file system in memory runs along ([`Oracle`]), and its steps become the script of the run.
//!
//! Invariant: U1 a moment records what was known when the request that it precedes was submitted.
//! So a sync counts as acknowledged from the first moment after its return.
//!
//! No locks across a wait.

mod concurrent;
mod emptied;
mod known;
mod ran;

use self::concurrent::Concurrent;
pub(crate) use self::known::is_nearly_full;
use self::known::{Known, Shared, has_lost};
pub(crate) use self::ran::count_flags;
pub use self::ran::{Decayed, Progress, Ran, Stable, Synced};
use crate::workload::{Bounds, Meter, Operation, Oracle, Script, Setup, Usage, read_file};
use forebay_base::sync::{Arc, Mutex};
use forebay_base::task::{WaitQueue, yield_now};
use forebay_base::world::{World, WorldRef, split_mix};
use forebay_block::{BioOp, DeviceRef};
use forebay_cache::PageCache;
use forebay_lfs::Volume;
use forebay_sim::SimDisk;
use forebay_testkit::fs_check::{Answer, Op, Outcome, Runner, Shape, Target, Times, find};
use forebay_vfs::{FileSystem, Ino, OpenFlags};

/// ENOSPC.
const NO_SPACE: i32 = 28;
/// EUCLEAN.
const BAD_SUM: i32 = 117;

/// Executes `script` on the volume on `disk`, with concurrent syncs now and then.
pub fn run(setup: &Setup, script: &Script, disk: &SimDisk) -> Ran {
    let world = disk.world().clone();
    let device: DeviceRef = std::sync::Arc::new(disk.clone());
    let shared = Arc::new(Shared {
        known: Mutex::new(Known::default()),
        idle: WaitQueue::new(),
        disk: disk.clone(),
        before: disk.fault_counts(),
    });
    shared.learn(|_| ());
    disk.clear_log();
    disk.record_cuts();
    if setup.fails_early() {
        setup.failing.iter().for_each(|rule| disk.inject(rule.clone()));
    }
    if let Some(bytes) = setup.host_bytes {
        disk.limit_space(disk.allocated() + bytes);
    }
    let bounds = Bounds::of(setup);
    let meter = Meter::new(bounds, disk, bounds.run_polls);
    let oracle = (!setup.is_healthy()).then(|| Oracle::new(setup, &script.moments[0].fs));
    let cache = None;
    let mut life =
        Life { setup, script, shared: &shared, device, bounds, meter: &meter, cache, oracle };
    let result = meter.run(&world, || shared.running(), life.whole());
    let oracle = life.oracle.take();
    world.stop();
    let mut ran = std::mem::take(&mut shared.known.lock().ran);
    let left = ran.left.map_or(Ok(()), |left| emptied::check(setup, left));
    ran.wrong = result.and(left).err();
    ran.script = oracle.map(Oracle::into_script);
    ran.unknown = ran.script.as_ref().map_or(0, |script| script.unknown.len() as u64);
    if ran.cuts.is_empty() {
        ran.cuts = disk.take_cuts();
        ran.cuts.push(disk.cut_now());
    }
    let failed = disk.log();
    let failed = |op| failed.iter().filter(|e| e.op == op && e.fault.is_some()).count() as u64;
    (ran.writes_failed, ran.flushes_failed) = (failed(BioOp::Write), failed(BioOp::Flush));
    ran.reads_failed = failed(BioOp::Read);
    ran.no_space = disk.fault_counts().no_space - shared.before.no_space;
    ran.rotten = disk.fault_counts().rotten - shared.before.rotten;
    ran
}

/// Whether a failing disk explains this errno: EIO, ENOSPC; also EROFS if the disk fails or decays.
/// A host that is full loses nothing, so it explains no EROFS.
fn is_refusal(setup: &Setup, errno: i32) -> bool {
    let may_stop = setup.rot || !setup.failing.is_empty();
    matches!(errno, 5 | NO_SPACE) || errno == 30 && may_stop
}

/// Whether ENOSPC is right for a step: less than a quarter of the volume is free by its own
/// figures, or an attribute may be too long for a record of the log. A sync needs no space that its
/// volume has not set aside, so nothing explains ENOSPC of a sync but a full host.
async fn explains_no_space(volume: &Volume, op: &Op) -> bool {
    match op {
        Op::SyncFs | Op::Sync { .. } => false,
        Op::SetXattr { len, .. } if *len > LONG_VALUE => true,
        _ => is_nearly_full(volume).await,
    }
}

/// Every volume accepts values of attributes up to this many bytes.
const LONG_VALUE: u32 = 4096;

/// Steps that may be refused before a run on a failing disk ends.
const REFUSALS_MAX: u64 = 24;

/// One life of a volume.
struct Life<'a> {
    setup: &'a Setup,
    script: &'a Script,
    shared: &'a Arc<Shared>,
    device: DeviceRef,
    bounds: Bounds,
    meter: &'a Meter,
    /// Of the volume's files.
    cache: Option<Arc<PageCache>>,
    /// On an unhealthy disk: the file system in memory after all steps that were not refused.
    oracle: Option<Oracle>,
}

impl Life<'_> {
    fn disk(&self) -> &SimDisk {
        &self.shared.disk
    }

    async fn open(&mut self) -> Result<Volume, String> {
        let world: WorldRef = self.disk().world().clone();
        let options = self.setup.options(&world).map_err(|e| e.to_string())?;
        self.cache = options.cache.clone();
        let opening = Volume::open(&self.device, &world, &options);
        let volume = self.meter.ended(Operation::Open, opening).await;
        volume.map_err(|error| format!("it does not open: {error}"))
    }

    async fn whole(&mut self) -> Result<(), String> {
        let volume = match self.open().await {
            Ok(volume) => volume,
            Err(_) if self.shared.has_met_fault() => {
                self.shared.learn(|known| known.ran.ended_early = true);
                return Ok(());
            }
            Err(what) => return Err(what),
        };
        self.shared.learn(|known| known.now.opened = true);
        self.bounds.check_memory(&volume)?;
        if !self.setup.fails_early() {
            self.setup.failing.iter().for_each(|rule| self.disk().inject(rule.clone()));
        }
        let (volume, result) = self.steps(volume).await;
        self.idle().await;
        let result = result.and_then(|()| self.shared.check_concurrent());
        let cleaned = volume.clean_stats().segments;
        self.shared.learn(|known| known.ran.cleaned = cleaned);
        let full = self.shared.known.lock().ran.full;
        if result.is_err() || full {
            return result;
        }
        self.end(&volume).await
    }

    /// Waits until no concurrent task runs.
    async fn idle(&self) {
        let idle = || self.shared.known.lock().running.is_empty().then_some(());
        self.meter.ended(Operation::Tasks, self.shared.idle.wait_until(idle)).await;
    }

    /// Closes the volume; from then on all changes are durable.
    async fn end(&mut self, volume: &Volume) -> Result<(), String> {
        let faulty = self.oracle.is_some();
        if faulty {
            self.disk().heal();
            self.healed(volume).await?;
            if emptied::is_due(self.setup, volume) {
                // The script does not have what follows.
                let (cuts, now) = (self.disk().take_cuts(), self.disk().cut_now());
                self.shared.learn(|known| known.ran.cuts = cuts.into_iter().chain([now]).collect());
                return self.emptied(volume).await;
            }
        }
        match self.meter.ended(Operation::Close, volume.close()).await {
            Ok(()) => {}
            Err(_) if self.shared.has_met_fault() => return Ok(()),
            Err(error) => return Err(format!("closing: {error}")),
        }
        self.bounds.check_memory(volume)?;
        self.bounds.check_closed(volume)?;
        if has_lost(volume) {
            return Ok(());
        }
        let live = self.meter.ended(Operation::ReadAll, volume.digest()).await;
        let live = live.map_err(|e| format!("digest: {e}"))?;
        self.shared.learn(|known| {
            known.ran.live = Some(live);
            known.now.acked = known.now.begun;
            known.ran.syncs.push((None, known.now.begun));
            known.now.syncs = known.ran.syncs.len();
        });
        Ok(())
    }

    /// Removes all names, and closes the volume. Records the available blocks before that.
    async fn emptied(&self, volume: &Volume) -> Result<(), String> {
        let emptied = self.meter.ended(Operation::Empty, emptied::empty(volume)).await;
        emptied.map_err(|error| format!("emptying it after the disk became healthy: {error}"))?;
        let left = volume.statfs().await.map_err(|error| error.to_string())?.blocks_available;
        self.shared.learn(|known| known.ran.left = Some(left));
        let closed = self.meter.ended(Operation::Close, volume.close()).await;
        closed.map_err(|error| format!("closing the empty volume: {error}"))?;
        self.bounds.check_closed(volume)
    }

    /// The disk works again: the first sync may report what was lost, the next one succeeds. It may
    /// fail for good only if content decayed, or if the volume is read-only.
    async fn healed(&self, volume: &Volume) -> Result<(), String> {
        for reports in [true, false] {
            let done = self.meter.ended(Operation::Close, volume.syncfs()).await;
            let excused = reports || self.setup.rot || volume.stopped().is_some();
            if let Err(error) = done
                && !excused
            {
                return Err(format!("a sync after the disk became healthy: {error}"));
            }
        }
        Ok(())
    }

    /// Executes the steps. Returns the volume, which is a new object if a step reopened it.
    async fn steps(&mut self, mut volume: Volume) -> (Volume, Result<(), String>) {
        let (setup, script, shared) = (self.setup, self.script, self.shared);
        let mut rng = setup.seed ^ 0x57e9;
        let mut runner = Runner::new(Times::Ignore, None);
        for (n, op) in script.ops.iter().enumerate() {
            if setup.healed_at == Some(n) {
                self.disk().heal();
            }
            let done = match self.oracle.is_some() {
                true => self.faulty_step(&volume, &mut runner, n).await,
                false => self.step(&volume, &mut runner, n).await,
            };
            match done {
                Ok(true) => {}
                Ok(false) => break,
                Err(what) => return (volume, Err(format!("step {n}, {op:?}: {what}"))),
            }
            if setup.rot && split_mix(&mut rng).is_multiple_of(8) {
                self.decay(&volume, &runner, &mut rng).await;
            }
            if n + 1 >= script.ops.len().div_ceil(2)
                && let Some(bytes) = setup.grown_bytes
                && !shared.known.lock().ran.grown
            {
                match self.grow(&volume, &mut runner, bytes).await {
                    Ok(None) => {}
                    Ok(Some(larger)) => volume = larger,
                    Err(what) => return (volume, Err(format!("growing after step {n}: {what}"))),
                }
            }
            if !setup.syncs_concurrently {
                continue;
            }
            let steps = shared.known.lock().now.begun;
            let polls_max = self.bounds.polls_max(Operation::Tasks);
            match split_mix(&mut rng) % 12 {
                6 | 7 if setup.crowded => Concurrent::Clean.spawn(&volume, shared, polls_max),
                8 => Concurrent::Checkpoint.spawn(&volume, shared, polls_max),
                0 | 3 => Concurrent::Sync(steps).spawn(&volume, shared, polls_max),
                1 => yield_now().await,
                2 => self.disk().world().sleep(std::time::Duration::from_micros(150)).await,
                _ => {}
            }
        }
        runner.close_all();
        (volume, Ok(()))
    }

    /// Executes one step and checks its bounds.
    async fn bounded(
        &self,
        volume: &Volume,
        runner: &mut Runner,
        n: usize,
        op: &Op,
    ) -> Result<Outcome, String> {
        runner.set_write_flags(self.script.flags[n]);
        let step = self.meter.measure(Operation::Step, runner.apply(volume, op)).await;
        let (outcome, used) = step;
        let usage = Usage { memory: self.bounds.check_memory(volume)?, ..used };
        self.bounds.check_cache(self.cache.as_ref())?;
        let ran = &mut self.shared.known.lock().ran;
        ran.usage = ran.usage.most(usage);
        if let Op::Write { offset, len, .. } = op {
            ran.count_write(self.script.flags[n], offset + u64::from(*len));
        }
        Ok(outcome)
    }

    /// One step on a healthy disk. Returns false if the volume is full.
    async fn step(&self, volume: &Volume, runner: &mut Runner, n: usize) -> Result<bool, String> {
        let (op, shared) = (&self.script.ops[n], self.shared);
        shared.learn(|known| known.now.begun = n + 1);
        let (of, wanted) = (self.script.synced[n], &self.script.outcomes[n]);
        let outcome = self.bounded(volume, runner, n, op).await?;
        if of.is_some() || *op == Op::SyncFs {
            shared.synced(of, n + 1, outcome.answer.is_ok());
        }
        if outcome != *wanted {
            // A full volume ends the run: the oracle does not model the later steps.
            let full = outcome.answer == Err(NO_SPACE) && explains_no_space(volume, op).await;
            shared.learn(|known| known.ran.full |= full);
            return if full { Ok(false) } else { Err(format!("{outcome:?}, not {wanted:?}")) };
        }
        shared.stable(self.script.stable[n].as_ref(), n + 1);
        Ok(true)
    }

    /// One step on a disk that may refuse it. Returns false if too many were refused.
    async fn faulty_step(
        &mut self,
        volume: &Volume,
        runner: &mut Runner,
        n: usize,
    ) -> Result<bool, String> {
        let (op, flags, shared) = (&self.script.ops[n], self.script.flags[n], self.shared);
        let begun = self.oracle.as_ref().map_or(0, |oracle| oracle.script.moments.len());
        shared.learn(|known| known.now.begun = begun);
        let outcome = self.bounded(volume, runner, n, op).await?;
        let refusal = outcome.answer.as_ref().err().copied();
        let refusal = refusal.filter(|errno| self.may_refuse(*errno));
        let Some(oracle) = &mut self.oracle else { return Ok(false) };
        if matches!(op, Op::SyncFs | Op::Sync { .. }) {
            let of = oracle.synced(op);
            let (wanted, before) = oracle.apply(op);
            if outcome != wanted && !(outcome.answer.is_err() && shared.has_met_fault()) {
                return Err(format!("{outcome:?}, not {wanted:?}, and the disk refused nothing"));
            }
            oracle.record(op.clone(), flags, wanted, &before);
            if of.is_some() || *op == Op::SyncFs {
                let is_whole = outcome.answer.is_ok() && !has_lost(volume);
                shared.synced(of, begun, is_whole);
            }
            return Ok(true);
        }
        if let Some(errno) = refusal {
            return self.refused(volume, runner, op, errno).await;
        }
        let done = shortened(op, &outcome);
        let is_unknown = oracle.written(&done).is_some_and(|ino| oracle.is_unknown(ino));
        let (wanted, before) = oracle.apply(&done);
        let is_other = outcome != wanted;
        // The size of an unknown file may differ from the oracle's, and so may a step's answer,
        // unless it is an error.
        let is_of_unknown = match (&outcome.answer, &wanted.answer) {
            (Ok(Answer::Attr(here)), Ok(Answer::Attr(there))) => {
                *here == Shape { size: here.size, ..there.clone() } && oracle.has_unknown()
            }
            (answer, _) => is_unknown && answer.is_ok(),
        };
        if is_other && !is_of_unknown {
            return Err(format!("{outcome:?}, not {wanted:?}"));
        }
        oracle.record(done, flags, wanted, &before);
        if is_other {
            shared.learn(|known| known.ran.ended_early = true);
            return Ok(false);
        }
        shared.stable(oracle.script.stable.last().and_then(Option::as_ref), begun);
        Ok(true)
    }

    /// Whether the disk explains this errno of a step. A write to a part of a block reads the block
    /// first, and the block may have decayed.
    fn may_refuse(&self, errno: i32) -> bool {
        is_refusal(self.setup, errno) || self.setup.rot && errno == BAD_SUM
    }

    /// Leaves a refused step out of the oracle. Returns false if too many were refused.
    async fn refused(
        &mut self,
        volume: &Volume,
        runner: &Runner,
        op: &Op,
        errno: i32,
    ) -> Result<bool, String> {
        let shared = self.shared;
        let is_full = errno == NO_SPACE && explains_no_space(volume, op).await;
        if !shared.has_met_fault() && !is_full {
            return Err(format!("errno {errno}, and the disk refused nothing"));
        }
        let Some(oracle) = &mut self.oracle else { return Ok(false) };
        let ino = oracle.written(op);
        oracle.refuse(op);
        if let Some(ino) = ino {
            self.settle(volume, runner, op, ino).await?;
        }
        let now = self.oracle.as_ref().map_or(0, |oracle| oracle.script.moments.len() - 1);
        let mut goes_on = false;
        shared.learn(|known| {
            known.now.begun = now;
            known.ran.refused += 1;
            goes_on = known.ran.refused < REFUSALS_MAX;
            known.ran.ended_early |= !goes_on;
        });
        Ok(goes_on)
    }

    /// Gives the oracle the content that the volume reads from a file after a refused step on it.
    async fn settle(
        &mut self,
        volume: &Volume,
        runner: &Runner,
        op: &Op,
        ino: Ino,
    ) -> Result<(), String> {
        let found = match self.same_inode(volume, runner, op).await {
            Some(ino) => {
                let read = self.meter.ended(Operation::ReadAll, read_file(volume, ino)).await;
                read.map_err(|error| error.to_string())
            }
            None => Err("it is not found".into()),
        };
        // Only setups whose data decays also fail reads. With a disk that only refuses writes and
        // flushes, or a full host, each file stays readable.
        if let Err(what) = &found
            && !self.setup.rot
        {
            return Err(format!("after a refused step #{} cannot be read: {what}", ino.0));
        }
        let Some(oracle) = &mut self.oracle else { return Ok(()) };
        oracle.settle(ino, found.ok().as_deref())
    }

    /// The inode on the volume whose content a step changes.
    async fn same_inode(&self, volume: &Volume, runner: &Runner, op: &Op) -> Option<Ino> {
        match op {
            Op::Setattr { of: Target::Path(path), .. }
            | Op::Open { path, .. }
            | Op::Create { path, .. } => find(volume, path).await.ok().map(|attr| attr.ino),
            Op::Copy { to, .. } => runner.open_ino(*to),
            _ => op.slots().first().and_then(|slot| runner.open_ino(*slot)),
        }
    }

    /// Flips a bit in the checkpointed content of an open file.
    async fn decay(&self, volume: &Volume, runner: &Runner, rng: &mut u64) {
        let open = runner.open_files();
        if open.is_empty() {
            return;
        }
        let (_, ino, _) = open[(split_mix(rng) % open.len() as u64) as usize];
        // A concurrent sync may log more than the checkpoint has. Logged content must not decay
        // here, because recovery takes a bad record at the end of the log for its end.
        let held = self.stored(volume, ino).await;
        let checkpoint = self.meter.ended(Operation::Checkpoint, volume.checkpoint()).await;
        if checkpoint.is_err() {
            return;
        }
        let mut stored = self.stored(volume, ino).await;
        stored.retain(|run| held.contains(run));
        log::debug!("{ino:?}: {} runs are held by a checkpoint and may decay", stored.len());
        if stored.is_empty() {
            return;
        }
        let (offset, at, len) = stored[(split_mix(rng) % stored.len() as u64) as usize];
        let within = split_mix(rng) % len;
        self.disk().rot(at + within);
        let block = (offset + within) / u64::from(self.setup.block_bytes);
        self.shared.learn(|known| {
            known.ran.decayed.push((ino.0, block as usize));
            known.now.rotten = known.ran.decayed.len();
        });
    }

    /// The runs of a file: offset in the file, offset on the disk, length.
    async fn stored(&self, volume: &Volume, ino: Ino) -> Vec<(u64, u64, u64)> {
        let extents = volume.extents(ino).await.unwrap_or_default();
        let stored = extents.iter().filter(|extent| !extent.inline);
        stored
            .filter_map(|extent| extent.physical.map(|at| (extent.logical, at, extent.len)))
            .collect()
    }

    /// Closes the volume, makes it larger, and opens it again with the same files open. `None`: a
    /// file without a name is open, or the volume is full.
    async fn grow(
        &mut self,
        volume: &Volume,
        runner: &mut Runner,
        bytes: u64,
    ) -> Result<Option<Volume>, String> {
        let open = runner.open_files();
        for (_, ino, _) in &open {
            let attr = volume.getattr(*ino).await.map_err(|e| e.to_string())?;
            if attr.nlink == 0 {
                return Ok(None);
            }
        }
        runner.close_all();
        self.idle().await;
        match self.meter.ended(Operation::Close, volume.close()).await {
            Ok(()) => {}
            Err(error) => return Err(format!("closing: {error}")),
        }
        self.shared.learn(|known| {
            known.now.acked = known.now.begun;
            known.ran.syncs.push((None, known.now.begun));
            known.now.syncs = known.ran.syncs.len();
        });
        let grown = self.meter.ended(Operation::Grow, self.setup.grow(&self.device, bytes)).await;
        let (old, new) = grown.map_err(|e| e.to_string())?;
        if new.segments <= old.segments {
            return Err(format!("{} segments, and then {}", old.segments, new.segments));
        }
        let larger = self.open().await?;
        self.bounds.check_memory(&larger)?;
        for (slot, ino, flags) in open {
            let flags = flags - OpenFlags::TRUNCATE - OpenFlags::EXCLUSIVE;
            runner.open_in(&larger, slot, ino, flags).await.map_err(|e| e.to_string())?;
        }
        self.shared.learn(|known| known.ran.grown = true);
        Ok(Some(larger))
    }
}

/// The step as the volume carried it out: a write on a disk without space may be shorter.
fn shortened(op: &Op, outcome: &Outcome) -> Op {
    match (op, &outcome.answer) {
        (Op::Write { slot, offset, len, fill, append, privileges }, Ok(Answer::Wrote(_, done)))
            if *done > 0 && *done < u64::from(*len) =>
        {
            let (slot, offset, fill, append) = (*slot, *offset, *fill, *append);
            Op::Write { slot, offset, len: *done as u32, fill, append, privileges: *privileges }
        }
        (Op::Copy { from, from_offset, to, to_offset, len }, Ok(Answer::Offset(done)))
            if done < len =>
        {
            let (from, from_offset, to, to_offset) = (*from, *from_offset, *to, *to_offset);
            Op::Copy { from, from_offset, to, to_offset, len: *done }
        }
        _ => op.clone(),
    }
}
