//! Group commit: a task that needs a durable record writes the group and flushes, on its own
//! thread.
//!
//! Invariants, in addition to those of [`crate::log`]: K11 a group is written with FUA, without a
//! flush after it, only if everything before it was flushed, including the runs that its records
//! point at. K12 the log space granted to a record is settled in the step in which a group takes
//! the record and plans its place. K13 on a volume without sums a record is written only after the
//! runs that it names were flushed: recovery could not detect that they are missing. Such a flush
//! may be one that another task needed and ran after the runs were written (log.L16).
//!
//! The log uses the layers above through two traits: [`RecordOwner`] owns the queue and learns
//! which records became durable, [`DataRepair`] learns of failures and writes data again after a
//! failed flush.
//!
//! Locks: `ctl` and those of the owner in turn, never together; none across a wait.

use crate::device::hold::Hold;
use crate::device::layout::Layout;
use crate::device::write::{write_each, write_here};
use crate::fault::{Plant, Planted};
use crate::format::place::SumAlgorithm;
use crate::format::record::RecordKind;
use crate::log::group_layout::Batch;
use crate::log::group_plan::GroupPlan;
use crate::log::turn::{FlushTurn, WriteTurn};
use crate::log::{ANY, Ctl, GROUPS_AHEAD, Group, Head, LaidOut, Log, Pending, Step};
use forebay_base::buf::DataRef;
use forebay_base::sync::Arc;
use forebay_base::task::{BoxFuture, yield_now};
use forebay_base::{Error, ErrorKind, Result};
use forebay_block::flush_turns::Turn;
use forebay_block::{Bio, BioFlags, BioOp, Completion, DeviceRef};

/// How often a write of the log is tried at one place before the place counts as bad (log.L17).
const PLACE_TRIES: u32 = 4;

/// The result of a write of the log. The second part of an error: a flush may have failed, too.
type Written = std::result::Result<(), (Error, bool)>;

/// Whether the device refused a write, and not a host without space.
fn is_refused(done: &Written) -> bool {
    matches!(done, Err((error, _)) if error.kind() != ErrorKind::NoSpace)
}

/// The owner of the records: what the log requests from it, and reports to it.
pub(crate) trait RecordOwner: Send + Sync {
    /// Takes queued records, up to the size of a group, plans their places from `head` on, and
    /// settles their grants, in one step (K12). It also checks whether the log is so long now that
    /// something has to be done. `None`: a run of a queued record was written before the last of
    /// `flush_failures` failed flushes, and has to be written again first (repair.Q1).
    fn take_group(&self, head: &Head, flush_failures: u64) -> Option<(Vec<Pending>, GroupPlan)>;

    /// Puts the records of groups that failed back at the front of the queue, with their grants.
    /// `at`: the log stays in this segment and continues at this offset (log.L18).
    fn requeue(&self, group: &mut Group, at: Option<(u32, u32)>);

    /// Whether the log can leave its segment after a failure, so that later needs still find free
    /// segments (space.P26). Then `bytes` bytes of records are laid out again, and `opened`
    /// segments of failed groups become free. `is_bad_place`: the place takes no write (log.L17).
    fn can_move(&self, opened: u64, bytes: u64, is_bad_place: bool) -> bool;

    /// A flush has covered the runs of the records up to this ticket (K13).
    fn on_covered(&self, ticket: u64);

    /// These groups became durable: their content is found on the device from now on. This takes no
    /// lock that is held for long.
    fn on_durable(&self, groups: Vec<Group>);
}

/// The layer that writes data again after a failed write or flush.
pub(crate) trait DataRepair: Send + Sync {
    /// Reports failed writes at these device offsets.
    fn on_write_failure(&self, offsets: &[u64]);

    /// Whether the device takes a write to a free segment.
    fn takes_writes<'a>(&'a self, hold: &'a Hold) -> BoxFuture<'a, bool>;

    /// Writes the runs of these records again, and those of queued records, if a failed flush may
    /// have lost them.
    fn rewrite_runs<'a>(
        &'a self,
        records: &'a mut [Pending],
        hold: &'a Hold,
    ) -> BoxFuture<'a, Result<()>>;
}

/// The log with its device, and the layers that it serves.
pub(crate) struct Committer<'a> {
    pub log: &'a Arc<Log>,
    pub device: &'a DeviceRef,
    pub layout: &'a Layout,
    pub plant: Plant,
    /// Groups are written with FUA if K11 permits it.
    pub uses_fua: bool,
    pub owner: &'a dyn RecordOwner,
    pub repair: &'a dyn DataRepair,
}

impl Committer<'_> {
    /// Makes every record up to `ticket` durable. `here`: the caller is synchronous, and I/O may be
    /// carried out on its thread.
    pub async fn commit(&self, ticket: u64, here: bool) -> Result<()> {
        let entered = self.log.failures();
        let early = self.plant.has(Planted::AckBeforeFlush);
        let ticket = match self.plant.has(Planted::JoinedCommit) {
            true => self.log.ticket_in_progress().map_or(ticket, |joined| joined.min(ticket)),
            false => ticket,
        };
        loop {
            match self.log.wait_for(ticket, || self.log.step(ticket, entered, early)).await {
                Step::Done(Err(_)) if self.plant.has(Planted::RetriesForever) => yield_now().await,
                Step::Done(result) => {
                    self.log.leave(&result);
                    if early {
                        // With this injected fault no task flushes for the others.
                        self.log.wake_all();
                    }
                    return result;
                }
                Step::Write => {
                    let mut turn = WriteTurn::new(self.log.clone(), ticket);
                    turn.forgets = self.plant.has(Planted::ForgottenGroup);
                    self.write_group(turn, here).await;
                }
                Step::Flush => {
                    let turn = FlushTurn::new(self.log.clone(), ticket);
                    // A failure is an error of the log, which `step` returns.
                    let _failed = self.flush(turn, here).await;
                }
            }
        }
    }

    async fn write_group(&self, mut turn: WriteTurn, here: bool) {
        if !self.retake(&mut turn) {
            let Some(laid) = self.laid_out(turn, here).await else { return };
            turn = laid;
        }
        let hold = turn.hold();
        let laid = turn.laid.as_mut().expect("laid out above");
        let done = match laid.is_repeated {
            true => self.repeat_write(laid, here, hold).await,
            false => self.write_records(laid, here, hold).await,
        };
        let laid = turn.laid.take().expect("laid out above");
        let mut durable = None;
        turn.end(|ctl, group| {
            let group = group.expect("laid out above");
            match done {
                Ok(()) => {
                    ctl.head = group.head;
                    ctl.written_ticket = last_ticket(&group).max(ctl.written_ticket);
                    ctl.group_count += 1;
                    if laid.fua && !ctl.repair {
                        note_durable(ctl, &group, laid.durable_through);
                        durable = Some(group);
                    } else {
                        ctl.groups.push_back(group);
                        debug_assert!(ctl.groups.len() <= GROUPS_AHEAD, "L6: so many ahead");
                    }
                }
                Err((error, may_have_flushed)) => {
                    ctl.groups.push_back(group);
                    match may_have_flushed {
                        true => Log::fail_flush(ctl, error),
                        false => Log::fail(ctl, error),
                    }
                    // Everything before a write with FUA was flushed (K11), so its own failure
                    // concerns none of its content.
                    let flush_failures = laid.flush_failures + u64::from(may_have_flushed);
                    ctl.refused = Some(LaidOut { flush_failures, ..laid });
                }
            }
        });
        if let Some(group) = durable {
            self.owner.on_durable(vec![group]);
            self.log.wake_any();
        }
    }

    /// Takes the next records and lays them out, to be written. `None`: something failed, and the
    /// turn has ended.
    async fn laid_out(&self, mut turn: WriteTurn, here: bool) -> Option<WriteTurn> {
        let (records, plan, flush_failures) = match self.sound_records(&mut turn).await {
            Ok(taken) => taken,
            Err(error) => {
                turn.end(|ctl, group| {
                    ctl.groups.extend(group);
                    Log::fail(ctl, error);
                });
                return None;
            }
        };
        let has_runs = records.iter().any(|record| !record.runs.is_empty());
        let runs = records.iter().flat_map(|record| &record.runs);
        let wanted = runs.filter(|run| !run.is_flushed).map(|run| run.flush).max().unwrap_or(0);
        let head = self.log.ctl.lock().head;
        let (payloads, opened) = (Vec::new(), plan.opened());
        turn.group = Some(Group { records, payloads, head, cut: None, opened });
        let early = self.plant.has(Planted::RecordBeforeData);
        let without_sums = self.layout.geometry.sum == SumAlgorithm::None;
        if without_sums && !early && !self.cover_runs(wanted, here).await {
            // A flush may have covered the runs before one failed: these are not in doubt.
            turn.end(|ctl, mut group| {
                if ctl.flush_turns.has_covered(wanted) {
                    group.iter_mut().for_each(note_flushed);
                }
                ctl.groups.extend(group);
            });
            return None;
        }
        let (durable_through, is_covered, fua) = {
            let ctl = self.log.ctl.lock();
            let is_covered = !ctl.repair && ctl.flush_turns.has_covered(wanted);
            (ctl.durable.sequence - 1, is_covered, self.may_use_fua(&ctl, is_covered))
        };
        let group = turn.group.as_mut().expect("put there above");
        if is_covered && has_runs {
            // No flush has failed since the runs were taken: a repair would be due.
            note_flushed(group);
            if without_sums {
                self.owner.on_covered(last_ticket(group));
            }
        }
        match self.lay_out(group, plan, durable_through) {
            Ok(writes) => {
                let (is_repeated, is_bad_place) = (false, false);
                turn.laid = Some(LaidOut {
                    writes,
                    fua,
                    durable_through,
                    flush_failures,
                    is_repeated,
                    is_bad_place,
                });
                Some(turn)
            }
            Err(error) => {
                turn.end(|ctl, group| {
                    ctl.groups.extend(group);
                    Log::fail(ctl, error);
                });
                None
            }
        }
    }

    /// Takes the group whose write failed, to be written again at its place (log.L15).
    fn retake(&self, turn: &mut WriteTurn) -> bool {
        let (opened, bytes, is_bad_place) = {
            let ctl = self.log.ctl.lock();
            let Some(laid) = ctl.repeatable() else { return false };
            let groups = ctl.groups.iter();
            let opened: usize = groups.clone().map(|group| group.opened.len()).sum();
            let bytes = self.cost(groups.flat_map(|group| &group.records));
            (opened as u64, bytes, laid.is_bad_place)
        };
        if self.owner.can_move(opened, bytes, is_bad_place) {
            return false;
        }
        let mut ctl = self.log.ctl.lock();
        // A flush may have failed meanwhile.
        if ctl.repeatable().is_none() {
            return false;
        }
        debug_assert!(ctl.repair, "L15: it failed");
        // A write with FUA may flush, and would have to count as a failed flush each time.
        let laid = ctl.refused.take();
        turn.laid = laid.map(|laid| LaidOut { fua: false, is_repeated: true, ..laid });
        turn.group = ctl.groups.pop_back();
        ctl.repair = false;
        true
    }

    /// Log space of these records.
    fn cost<'a>(&self, records: impl Iterator<Item = &'a Pending>) -> u64 {
        records.map(|r| self.layout.cost(r.body.len() as u64, r.payload_bytes())).sum()
    }

    /// Writes a group again whose write failed. If the device refuses it again and again, and takes
    /// writes elsewhere in between, the place is bad (log.L17).
    async fn repeat_write(&self, laid: &mut LaidOut, here: bool, hold: Hold) -> Written {
        laid.is_bad_place = false;
        for _ in 1..PLACE_TRIES {
            let done = self.write_records(laid, here, hold.clone()).await;
            if !is_refused(&done) || !self.repair.takes_writes(&hold).await {
                return done;
            }
        }
        let done = self.write_records(laid, here, hold.clone()).await;
        laid.is_bad_place = is_refused(&done) && self.repair.takes_writes(&hold).await;
        done
    }

    /// Writes a group that is laid out. The second part of an error: whether a flush may have
    /// failed (log.L12), since a device can carry out a write with FUA as a write and a flush. If a
    /// full host refused the write, no flush has failed.
    async fn write_records(&self, laid: &LaidOut, here: bool, hold: Hold) -> Written {
        let LaidOut { writes, fua, .. } = laid;
        let flags = if *fua { BioFlags::FUA | BioFlags::SYNC } else { BioFlags::SYNC };
        let mut failed = Vec::new();
        let done = match here && writes.len() == 1 {
            true => write_here(self.device, writes, flags, &mut failed, hold).await,
            false => write_each(self.device, writes, flags, &mut failed, hold).await,
        };
        if !failed.is_empty() {
            self.repair.on_write_failure(&failed);
        }
        // The error is that of the first failed write. `failed` has all failed writes except those
        // that a full host refused.
        done.map_err(|error| (error, *fua && !failed.is_empty()))
    }

    /// K13: a flush of this number or a later one covers the runs of the records to be written
    /// next. False: something failed, and a repair comes first.
    async fn cover_runs(&self, wanted: u64, here: bool) -> bool {
        if !self.log.ctl.lock().flush_turns.has_covered(wanted) {
            // A failure is an error of the log.
            let _failed = self.flush_since(wanted, here).await;
        }
        // Only the holder of the write turn ends a repair, so a failure since the records were
        // taken is visible here.
        let ctl = self.log.ctl.lock();
        debug_assert!(ctl.repair || ctl.flush_turns.has_covered(wanted), "K13: they are flushed");
        !ctl.repair
    }

    /// Whether a group may be written with FUA (K11). `is_covered`: its runs are flushed.
    fn may_use_fua(&self, ctl: &Ctl, is_covered: bool) -> bool {
        let flushed = ctl.groups.is_empty() && !ctl.flush_turns.is_running() && is_covered;
        self.uses_fua && (flushed || self.plant.has(Planted::EarlyFua))
    }

    /// Takes records for a group, after a repair if one is necessary (log.L4, repair.Q1). The
    /// number is that of the flushes that had failed before.
    async fn sound_records(&self, turn: &mut WriteTurn) -> Result<(Vec<Pending>, GroupPlan, u64)> {
        loop {
            let (repair, flush_failures, head) = {
                let ctl = self.log.ctl.lock();
                (ctl.repair, ctl.flush_failures, ctl.head)
            };
            if repair {
                self.take_back(turn).await?;
            } else if let Some((records, plan)) = self.owner.take_group(&head, flush_failures) {
                return Ok((records, plan, flush_failures));
            } else {
                self.repair.rewrite_runs(&mut [], &turn.hold()).await?;
            }
        }
    }

    /// Lays the group out as planned (group_plan.J14).
    fn lay_out(
        &self,
        group: &mut Group,
        plan: GroupPlan,
        durable_through: u64,
    ) -> Result<Vec<(u64, Vec<u8>)>> {
        let mut batch = Batch::new(self.layout, group.head, durable_through, plan.segments);
        let count = group.records.len();
        let mut failed = None;
        for (n, record) in group.records.iter().enumerate() {
            match batch.add(record, n + 1 == count) {
                Ok(payload) => {
                    group.payloads.push(payload);
                    if record.cut.is_some() {
                        group.cut = Some((record.ticket, batch.head));
                    }
                }
                Err(error) => {
                    failed = Some(error);
                    break;
                }
            }
        }
        group.head = batch.head;
        if let Some(error) = failed {
            return Err(error);
        }
        batch.finish();
        let bytes: usize = batch.writes.iter().map(|(_, bytes)| bytes.len()).sum();
        let (laid, planned) = ((bytes as u64, batch.head.segment, batch.head.offset), {
            (plan.bytes, plan.segment, plan.end)
        });
        debug_assert_eq!(laid, planned, "J14: the layout follows the plan");
        let place = |(at, bytes)| (self.layout.device_offset(at), bytes);
        Ok(batch.writes.into_iter().map(place).collect())
    }

    /// Flushes the device, and makes the groups durable that were written before (log.L2).
    async fn flush(&self, turn: FlushTurn, here: bool) -> Result<()> {
        let mut done = self.flush_device(&turn, here).await;
        if self.plant.has(Planted::SwallowedFlushError) {
            done = Ok(());
        }
        // None if a repair is due, because a write has failed or was dropped meanwhile: all records
        // that are not durable are written again.
        let durable = turn.end(&done, |ctl, covered| {
            let groups: Vec<Group> = ctl.groups.drain(..covered).collect();
            for group in &groups {
                let told = ctl.durable.sequence - 1;
                note_durable(ctl, group, told);
            }
            groups
        });
        self.owner.on_durable(durable);
        self.log.wake_any();
        done
    }

    /// A flush for other purposes than a commit, which covers what was written before this call. If
    /// it fails, it counts as a failed flush of the log, because it may have lost written records
    /// (log.L4, log.L7).
    pub async fn flush_all(&self) -> Result<()> {
        self.flush_since(self.log.next_flush(), false).await
    }

    /// Runs a flush of this number or a later one, or shares that of another task (log.L16).
    async fn flush_since(&self, wanted: u64, here: bool) -> Result<()> {
        match self.log.flush_turn(wanted).await {
            Turn::Done(result) => result,
            Turn::Run => self.flush(FlushTurn::new(self.log.clone(), ANY), here).await,
        }
    }

    async fn flush_device(&self, turn: &FlushTurn, here: bool) -> Result<()> {
        if !here && self.device.is_crowded() {
            self.device.wait_for_capacity().await;
        }
        let mut flight = turn.flight();
        let on_end = move |done: Completion| {
            flight.note(&done.result);
            drop(flight);
            done
        };
        let (bio, completion) = Bio::awaited(BioOp::Flush, 0, 0, DataRef::None, on_end);
        let bio = bio.with_flags(BioFlags::SYNC);
        match here {
            true => self.device.execute(bio),
            false => self.device.submit(bio),
        }
        completion.await.result
    }

    /// Takes back everything since the last successful flush, to be laid out again (log.L4): in a
    /// new segment, or where the durable log ends (log.L18). Its runs are written again only if a
    /// flush has failed since (log.L12).
    async fn take_back(&self, turn: &mut WriteTurn) -> Result<()> {
        let (groups, moved, failures, (stays, is_bad_place)) = {
            let mut ctl = self.log.ctl.lock();
            let is_bad_place = ctl.refused.take().is_some_and(|laid| laid.is_bad_place);
            let groups: Vec<Group> = ctl.groups.drain(..).collect();
            // No segment of a younger generation begins with the next record (log.L18).
            let stays = ctl.head.generation == ctl.durable.generation;
            let generation = ctl.head.generation.max(ctl.durable.generation) + 1;
            let previous = ctl.durable.segment.or(ctl.durable.previous);
            let moved = Head { segment: None, previous, offset: 0, generation, ..ctl.durable };
            ctl.written_ticket = ctl.durable_ticket;
            (groups, moved, ctl.failures, (stays.then_some(ctl.durable), is_bad_place))
        };
        let (records, payloads, opened) = (Vec::new(), Vec::new(), Vec::new());
        let mut held = Group { records, payloads, head: moved, cut: None, opened };
        for group in groups {
            held.records.extend(group.records);
            held.opened.extend(group.opened);
        }
        turn.group = Some(held);
        let hold = turn.hold();
        let group = turn.group.as_mut().expect("put there above");
        self.repair.rewrite_runs(&mut group.records, &hold).await?;
        let (opened, bytes) = (group.opened.len() as u64, self.cost(group.records.iter()));
        let stays = stays.filter(|_| !self.owner.can_move(opened, bytes, is_bad_place));
        let at = stays.and_then(|head| Some((head.segment?, head.offset)));
        let head = stays.filter(|_| at.is_some()).unwrap_or(moved);
        self.owner.requeue(group, at);
        turn.group = None;
        let mut ctl = self.log.ctl.lock();
        (ctl.head, ctl.repair) = (head, ctl.failures != failures);
        Ok(())
    }
}

fn last_ticket(group: &Group) -> u64 {
    group.records.last().map_or(0, |record| record.ticket)
}

/// A flush that succeeded has covered the runs of the group (K13).
fn note_flushed(group: &mut Group) {
    let runs = group.records.iter_mut().flat_map(|record| &mut record.runs);
    runs.for_each(|run| run.is_flushed = true);
}

/// Records that a group is durable (log.L3).
fn note_durable(ctl: &mut Ctl, group: &Group, told: u64) {
    ctl.durable = group.head;
    ctl.durable_ticket = last_ticket(group).max(ctl.durable_ticket);
    ctl.declared = ctl.declared.max(told);
    ctl.cut = group.cut.or(ctl.cut);
    if group.records.iter().all(|record| record.kind == RecordKind::Mark) {
        // The mark itself need not be declared durable.
        ctl.declared = ctl.durable.sequence - 1;
    }
}
