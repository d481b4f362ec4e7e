//! The log: records in the order in which changes were applied, and the tasks that make them
//! durable.
//!
//! States of a record:
//! ```text
//!   queued ──group takes it──▶ writing ──completed──▶ written ──a later flush worked──▶ durable
//!     ▲                           │ failed, dropped       │ flush failed
//!     └────── repair: fresh segment, new generation ◀─────┘
//!              (after a failed flush its runs of data are read back, checked, and written again)
//!              or, if the log must not take a segment: the same bytes at the same place (L15), or
//!              behind the durable log (L18)
//! ```
//! A task that waits for a record advances the log itself: it takes the turn to write a group of
//! all queued records, or the turn to flush, whichever is free and helps. One group may be written
//! while another is flushed.
//!
//! Invariants: L1 the holder of the write turn lays out groups one after the other; groups that are
//! not flushed are in `groups`, in order. L2 a flush covers the groups whose writes had completed
//! when it began. L3 `durable_*` advances only after a successful flush, or after a FUA write when
//! nothing before it was unflushed. L4 after a failure nothing becomes durable before a repair: the
//! records since the last successful flush are laid out again, in a new segment and generation, or
//! as L15 and L18 say. L5 a commit that waited during the failure gets the error; a later one
//! starts the repair. A task that is dropped in its turn fails no other commit: the records of a
//! dropped write turn are laid out again as after a failure. A dropped flush is repeated by the
//! next waiter, or counts as failed if the device says so when it ends. L6 at most [`GROUPS_AHEAD`]
//! groups are written and not flushed, so recovery has to read a bounded range after the end of the
//! log. L7 only one flush of the device is in flight, also if several tasks need one. Of two
//! concurrent ones the first could fail, and drop data that the second seems to have covered. L8
//! while a task waits for a record, some task holds a turn, or is awake and will take one. A task
//! that ends a turn wakes the waiters whose records are durable. It also wakes one waiter for each
//! free turn that it does not take itself, and after a failure all waiters. A task that gets an
//! error wakes others in its place: they may have been passed over because of it. A woken task that
//! is dropped before its check wakes all. L9 after a task was dropped, its write turn ends only
//! when the device has ended every write of the turn. A late write would replace bytes that the
//! next turn wrote to the same address. L12 a failed write of a record loses nothing that the
//! device had completed. Only a failed flush does, and a failed write with FUA, which may have
//! flushed. `flush_failures` counts these alone, and decides which runs of data are in doubt. L15
//! if the free segments do not allow the log to leave its segment (space.P26), a group whose write
//! failed is written again at its place, with the same bytes. So a crash leaves nothing that the
//! first write could not have left. This needs that no flush has failed since its records were
//! taken, except with its own write with FUA: then nothing is in doubt that it refers to or
//! follows. L16 commits, checkpoints, the cleaner and the flush of data before its records share
//! flushes: each flush makes durable all groups that it covers, and a task runs none if one that
//! began after its writes has succeeded. L17 if the device refuses such a group four times, and
//! takes writes elsewhere after each try, its place is bad, and the log may leave fewer free
//! segments (space.P26). L18 if a flush has failed and the log may not leave its segment, the
//! records are laid out again where the durable log ends, in its generation. This needs that no
//! segment of a younger generation was begun since: recovery would prefer that. The records that
//! were there are not durable, and no acknowledged one is replaced. One of them counts only behind
//! exactly the records that it followed, by their sums.
//!
//! Lock: `ctl`, at the level of the state lock; the two are never held together.

pub(crate) mod commit;
pub(crate) mod group_layout;
pub(crate) mod group_plan;
pub(crate) mod queue;
pub(crate) mod staging;
pub(crate) mod turn;

#[cfg(any(test, shuttle))]
#[doc(hidden)]
pub mod model;

use crate::format::place::Place;
use crate::format::record::RecordKind;
use crate::format::superblock::Superblock;
use crate::space::Grant;
use forebay_base::sync::Mutex;
use forebay_base::sync::atomic::{AtomicU64, Ordering};
use forebay_base::task::{Pick, WaitQueue};
use forebay_base::{Error, ErrorKind, Result};
use forebay_block::FlushTurns;
use forebay_block::flush_turns::Turn;
use std::collections::VecDeque;
use std::ops::Range;

/// Most groups that are written and not flushed (L6).
pub(crate) const GROUPS_AHEAD: usize = 2;

/// Content that is written as a part of a record.
#[derive(Clone)]
pub(crate) struct Payload {
    /// The range in the staging area where extents find the content until the record is durable.
    pub staged: Range<u64>,
    /// The content; its length is a multiple of the block size.
    pub bytes: std::sync::Arc<Vec<u8>>,
    /// The data ids and blocks that it belongs to.
    pub blocks: Vec<(u64, Range<u64>)>,
}

/// Content in a data run to which a record refers.
#[derive(Debug, Clone)]
pub(crate) struct Run {
    /// The inode that it belongs to.
    pub ino: u64,
    /// The place of the run.
    pub at: Place,
    /// The length of the run, bytes.
    pub len: u64,
    /// Sums of its blocks.
    pub sums: std::sync::Arc<[u32]>,
    /// Number of failed flushes when its space was reserved, or before it was written again.
    pub flush_failures: u64,
    /// The number of a flush that began after it was written ([`Log::next_flush`]).
    pub flush: u64,
    /// A good flush began after it was written (commit.K13): no later failure loses it.
    pub is_flushed: bool,
}

impl Run {
    /// Whether a failed flush may have lost the run, if `flush_failures` have failed so far (L12).
    pub fn is_in_doubt(&self, flush_failures: u64) -> bool {
        !self.is_flushed && self.flush_failures < flush_failures
    }
}

/// A record that is not durable yet.
pub(crate) struct Pending {
    pub ticket: u64,
    pub kind: RecordKind,
    /// Encoded changes, and their number.
    pub body: Vec<u8>,
    pub changes: u32,
    /// Content of the record, contiguous. Content of several files may share a record.
    pub payloads: Vec<Payload>,
    pub runs: Vec<Run>,
    /// Log space granted to it; none after the record was laid out.
    pub grant: Grant,
    /// Set for the last record of a checkpoint; true: the log moves to another segment after it.
    pub cut: Option<bool>,
}

impl Pending {
    /// Length of its content, bytes.
    pub fn payload_bytes(&self) -> u64 {
        self.payloads.iter().map(|payload| payload.bytes.len() as u64).sum()
    }
}

/// Position of the next record.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Head {
    /// The open segment; `None`: the next record opens one.
    pub segment: Option<u32>,
    /// The previous segment.
    pub previous: Option<u32>,
    /// First free byte; 0: the segment's header has to be written first.
    pub offset: u32,
    /// Sequence of the next record.
    pub sequence: u64,
    pub generation: u64,
    /// Checksum of the last record.
    pub predecessor: u32,
}

impl Head {
    /// The position at which the log of a checkpoint begins.
    pub fn of(superblock: &Superblock) -> Self {
        Self {
            segment: Some(superblock.log_head.segment),
            previous: None,
            offset: superblock.log_head.offset,
            sequence: superblock.log_sequence,
            generation: superblock.generation,
            predecessor: superblock.log_predecessor,
        }
    }
}

/// What is needed to write a group at its place, and again if that fails (L15).
pub(crate) struct LaidOut {
    /// Device offsets, and the bytes there.
    pub writes: Vec<(u64, Vec<u8>)>,
    /// It is written with FUA (commit.K11).
    pub fua: bool,
    /// The last record that its records call durable.
    pub durable_through: u64,
    /// Failed flushes that concern none of its content.
    pub flush_failures: u64,
    /// It is written again at its place.
    pub is_repeated: bool,
    /// The device takes writes, but not this one (L17).
    pub is_bad_place: bool,
}

/// Records that are written together.
pub(crate) struct Group {
    pub records: Vec<Pending>,
    /// The place of each record's content, if it has some.
    pub payloads: Vec<Option<Place>>,
    /// Position after the group.
    pub head: Head,
    /// Ticket of a checkpoint's last record, and the position after it.
    pub cut: Option<(u64, Head)>,
    /// Segments that the plan of the group opens; they are free again if it fails.
    pub opened: Vec<u32>,
}

/// State of the flush of a turn at the device.
pub(crate) enum Flown {
    /// No flush was submitted, or it has succeeded.
    Ground,
    /// The flush of this number is in flight.
    Flying(u64),
    /// This flush is in flight, and its task was dropped.
    Alone(u64),
    /// The flush has failed, and the task has not observed the error yet.
    Failed(Error),
}

/// State of the log.
pub(crate) struct Ctl {
    pub head: Head,
    pub writing: bool,
    /// The flushes of the device, which all tasks share that need one (L7, L16).
    pub flush_turns: FlushTurns,
    pub flown: Flown,
    pub groups: VecDeque<Group>,
    pub written_ticket: u64,
    pub durable_ticket: u64,
    /// Position after the last durable record.
    pub durable: Head,
    /// Highest `durable_through` in a durable record.
    pub declared: u64,
    /// Ticket of the last durable record that ends a checkpoint, and the position after it.
    pub cut: Option<(u64, Head)>,
    /// A task is scheduled that writes a mark if the log is idle by then. A mark is a record that
    /// only says up to where the log is durable.
    pub mark_armed: bool,
    /// Failed writes and flushes (L5).
    pub failures: u64,
    /// Those that may have lost completed writes (L12).
    pub flush_failures: u64,
    pub last_error: Option<Error>,
    pub repair: bool,
    /// The last of `groups`, if its write failed and may be repeated (L15). `repair` is set.
    pub refused: Option<LaidOut>,
    pub group_count: u64,
}

impl Ctl {
    /// The last group, if its write failed and no flush has failed since (L15).
    pub fn repeatable(&self) -> Option<&LaidOut> {
        self.refused.as_ref().filter(|laid| laid.flush_failures == self.flush_failures)
    }
}

/// The log, with the tasks that wait for it.
pub(crate) struct Log {
    pub ctl: Mutex<Ctl>,
    /// The number of the next flush, for readers without the lock.
    next_flush: AtomicU64,
    /// Waiting tasks, each with the ticket of its record; [`ANY`]: the task checks whenever a turn
    /// ends.
    wait: WaitQueue<u64>,
}

/// The ticket of a task that waits for something other than a record.
pub(crate) const ANY: u64 = 0;

/// What a waiting task has to do.
pub(crate) enum Step {
    Done(Result<()>),
    Write,
    Flush,
}

impl Log {
    /// A log that continues at `head`; everything before is durable.
    pub fn new(head: Head) -> Self {
        let ctl = Ctl {
            head,
            writing: false,
            flush_turns: FlushTurns::default(),
            flown: Flown::Ground,
            groups: VecDeque::new(),
            written_ticket: 0,
            durable_ticket: 0,
            durable: head,
            declared: 0,
            cut: None,
            mark_armed: false,
            failures: 0,
            flush_failures: 0,
            last_error: None,
            repair: false,
            refused: None,
            group_count: 0,
        };
        let next_flush = AtomicU64::new(ctl.flush_turns.next());
        Self { ctl: Mutex::new(ctl), next_flush, wait: WaitQueue::with_keys() }
    }

    /// Number of failures so far, from which a waiting task recognizes later ones (L5).
    pub fn failures(&self) -> u64 {
        self.ctl.lock().failures
    }

    /// How many flushes have failed: each may have lost completed writes (L12).
    pub fn flush_failures(&self) -> u64 {
        self.ctl.lock().flush_failures
    }

    /// The next step for `ticket`; takes the turn for it. `None`: another task has it.
    pub fn step(&self, ticket: u64, entered: u64, early: bool) -> Option<Step> {
        let mut ctl = self.ctl.lock();
        if ctl.durable_ticket >= ticket || early && ctl.written_ticket >= ticket {
            return Some(Step::Done(Ok(())));
        }
        if ctl.failures > entered
            && let Some(error) = &ctl.last_error
        {
            return Some(Step::Done(Err(error.clone())));
        }
        if ctl.repair {
            if ctl.writing || ctl.flush_turns.is_running() {
                return None;
            }
            ctl.writing = true;
            return Some(Step::Write);
        }
        let crowded = ctl.groups.len() >= GROUPS_AHEAD;
        let written = ctl.written_ticket >= ticket;
        if !written && !ctl.writing && !crowded {
            ctl.writing = true;
            return Some(Step::Write);
        }
        let is_due = !ctl.groups.is_empty() && (written || crowded);
        (is_due && self.begin_flush(&mut ctl)).then_some(Step::Flush)
    }

    /// Takes the flush turn. False: another task has it.
    fn begin_flush(&self, ctl: &mut Ctl) -> bool {
        let has_begun = ctl.flush_turns.begin();
        // Before the flush is submitted.
        self.next_flush.store(ctl.flush_turns.next(), Ordering::SeqCst);
        has_begun
    }

    /// The number of a flush that covers what has been written by now (L16).
    pub fn next_flush(&self) -> u64 {
        self.next_flush.load(Ordering::SeqCst)
    }

    /// Waits for the result of a flush with at least this number, or for the turn to run it.
    pub async fn flush_turn(&self, wanted: u64) -> Turn {
        let turn = || {
            let mut ctl = self.ctl.lock();
            match ctl.flush_turns.result(wanted) {
                Some(result) => Some(Turn::Done(result)),
                None => self.begin_flush(&mut ctl).then_some(Turn::Run),
            }
        };
        self.wait_for(ANY, turn).await
    }

    /// The last ticket that the flush in progress can cover.
    pub fn ticket_in_progress(&self) -> Option<u64> {
        let ctl = self.ctl.lock();
        ctl.flush_turns.is_running().then_some(ctl.written_ticket)
    }

    /// Waits until `check` returns a value: for `ticket`, or, with [`ANY`], whenever a turn ends.
    pub async fn wait_for<T>(&self, ticket: u64, check: impl FnMut() -> Option<T> + Unpin) -> T {
        self.wait.wait_for(ticket, check).await
    }

    /// Wakes the tasks that wait for [`ANY`].
    pub fn wake_any(&self) {
        self.wait.wake_matching(|ticket| pick(*ticket == ANY));
    }

    /// Wakes all waiting tasks.
    pub fn wake_all(&self) {
        self.wait.wake_all();
    }

    /// Called when a task has its result: after an error, others may have counted on it (L8).
    pub fn leave(&self, result: &Result<()>) {
        if result.is_err() {
            let due = Due::of(&self.ctl.lock());
            due.wake(self, ANY);
        }
    }

    /// The error of an operation during which the log failed. Its kind is that of the failure: a
    /// host without space is no failing device.
    pub fn failed_meanwhile(&self, operation: &'static str) -> Error {
        let cause = self.ctl.lock().last_error.clone();
        let kind = cause.as_ref().map_or(ErrorKind::Io, Error::kind);
        let cause = cause.map_or_else(String::new, |cause| format!(": {cause}"));
        Error::new(kind, operation, format!("a write or flush of the log failed meanwhile{cause}"))
    }

    /// A flush failed, or a write that may have flushed: completed writes may be lost (L12).
    pub fn fail_flush(ctl: &mut Ctl, error: Error) {
        ctl.flush_failures += 1;
        Self::fail(ctl, error);
    }

    /// Records a failure that concerns records which are not durable (L4). It loses no completed
    /// write.
    pub fn fail(ctl: &mut Ctl, error: Error) {
        // Warns once for each repair: while a host is full, each attempt fails.
        let level = if ctl.repair { log::Level::Debug } else { log::Level::Warn };
        log::log!(level, "a write or flush of the log failed, records are written again: {error}");
        ctl.failures += 1;
        assert!(ctl.flush_failures <= ctl.failures, "L12: failed flushes are failures");
        ctl.last_error = Some(error);
        ctl.repair = true;
    }
}

fn pick(wanted: bool) -> Pick {
    if wanted { Pick::Wake } else { Pick::Skip }
}

/// The tasks to wake at the end of a turn (L8); computed under the same lock.
pub(crate) struct Due {
    everybody: bool,
    durable: u64,
    written: u64,
    crowded: bool,
    /// These turns are free, and there is work for them.
    write: bool,
    flush: bool,
}

impl Due {
    /// The work that remains at the end of a turn.
    pub fn of(ctl: &Ctl) -> Self {
        let crowded = ctl.groups.len() >= GROUPS_AHEAD;
        Self {
            everybody: ctl.repair,
            durable: ctl.durable_ticket,
            written: ctl.written_ticket,
            crowded,
            write: !ctl.writing && !crowded,
            flush: !ctl.flush_turns.is_running() && !ctl.groups.is_empty(),
        }
    }

    /// Whether to wake the task that waits for `ticket`: its record is durable, or a turn that it
    /// can take is free. The answer uses that turn up, so that one task is woken for each turn.
    fn is_for(&mut self, ticket: u64) -> bool {
        if ticket <= self.durable {
            return true;
        }
        match ticket > self.written && self.write {
            true => std::mem::take(&mut self.write),
            false => (ticket <= self.written || self.crowded) && std::mem::take(&mut self.flush),
        }
    }

    /// `mine`: the ticket of the turn's holder, which checks its record itself.
    pub fn wake(mut self, log: &Log, mine: u64) {
        if self.everybody {
            return log.wake_all();
        }
        self.is_for(mine);
        log.wait.wake_matching(|ticket| pick(self.is_for(*ticket)));
    }
}

#[cfg(test)]
mod tests {
    use super::turn::{FlushTurn, WriteTurn};
    use super::*;
    use forebay_base::sync::Arc;

    /// L9: the write turn of a dropped task ends with the last write that carries a hold of it.
    #[test]
    fn write_turn_of_dropped_task_waits_for_its_writes() {
        let segment = Some(0);
        let head =
            Head { segment, previous: None, offset: 0, sequence: 1, generation: 1, predecessor: 0 };
        let log = Arc::new(Log::new(head));
        let begin = || {
            log.ctl.lock().writing = true;
            WriteTurn::new(log.clone(), 1)
        };
        let turn = begin();
        let writes = [turn.hold(), turn.hold()];
        drop(turn);
        let (entered, [first, second]) = (log.failures(), writes);
        assert!(log.ctl.lock().repair, "L4: the turn was dropped");
        assert!(log.step(1, entered, false).is_none(), "L9: two writes go on");
        drop(first);
        assert!(log.step(1, entered, false).is_none(), "L9: one write goes on");
        drop(second);
        assert!(matches!(log.step(1, entered, false), Some(Step::Write)), "the last one ended");
        drop(WriteTurn::new(log.clone(), 1));
        assert!(!log.ctl.lock().writing, "a turn without writes ends at once");
        let turn = begin();
        let late = turn.hold();
        turn.end(|_, _| ());
        assert!(!log.ctl.lock().writing, "a turn that is over ends at once");
        let turn = begin();
        drop(late);
        assert!(log.ctl.lock().writing, "a hold of an earlier turn does not end the next one");
        turn.end(|_, _| ());
    }

    fn is_flushing(log: &Log) -> bool {
        log.ctl.lock().flush_turns.is_running()
    }

    fn flush_turns() -> (Arc<Log>, impl Fn() -> FlushTurn) {
        let segment = Some(0);
        let head =
            Head { segment, previous: None, offset: 0, sequence: 1, generation: 1, predecessor: 0 };
        let log = Arc::new(Log::new(head));
        let theirs = log.clone();
        let begin = move || {
            assert!(theirs.begin_flush(&mut theirs.ctl.lock()));
            FlushTurn::new(theirs.clone(), 1)
        };
        (log, begin)
    }

    /// L7. The story: a flushing task was dropped, and the log began a second flush while the first
    /// was in flight. The first could fail later, and drop data that the second seemed to have
    /// covered.
    #[test]
    fn flush_of_dropped_task_ends_before_next_one_begins() {
        let (log, begin) = flush_turns();
        let turn = begin();
        let mut flight = turn.flight();
        drop(turn);
        assert!(is_flushing(&log), "the device still has it");
        flight.note(&Ok(()));
        drop(flight);
        assert!(!is_flushing(&log) && !log.ctl.lock().repair);
        let turn = begin();
        drop(turn.flight());
        assert!(is_flushing(&log), "the turn ends when its task says so");
        drop(turn);
        assert!(!is_flushing(&log));
        begin().end(&Ok(()), |_, _| ());
        assert!(!is_flushing(&log));
    }

    /// L5: a dropped task fails no commit, but a flush that the device failed counts, whether the
    /// device or the drop was first.
    #[test]
    fn flush_of_dropped_task_fails_log_only_on_device_error() {
        let (log, begin) = flush_turns();
        let failed = || Err(Error::new(ErrorKind::Io, "flush", "as asked"));
        for (result, is_dropped_first, failures) in
            [(Ok(()), true, 0), (Ok(()), false, 0), (failed(), true, 1), (failed(), false, 2)]
        {
            let turn = begin();
            let mut flight = turn.flight();
            flight.note(&result);
            if is_dropped_first {
                drop(turn);
                drop(flight);
            } else {
                drop(flight);
                drop(turn);
            }
            let ctl = log.ctl.lock();
            let state =
                (ctl.failures, ctl.flush_failures, ctl.repair, ctl.flush_turns.is_running());
            let wanted = (failures, failures, failures > 0, false);
            assert_eq!(state, wanted, "{is_dropped_first}");
        }
        // The device dropped the request without completing it.
        let turn = begin();
        let flight = turn.flight();
        drop(turn);
        drop(flight);
        assert_eq!((log.failures(), log.flush_failures()), (3, 3));
    }
}
