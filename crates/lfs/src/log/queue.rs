//! Records that are applied and not laid out yet, in the order in which changes were applied.
//!
//! ```text
//!   push ──▶ queued ──take_group──▶ a group of the log ──failed──▶ put_back
//!              ▲ join: small changes become part of the last record
//! ```
//! Invariants: L10 tickets follow the order of the queue, and each is used once. L11
//! `payload_bytes` is the sum over the queued records. L13 each run without checksums is in a
//! queued record or in `taken` until a flush has covered it. L14 a reader of [`Tickets`], without
//! the state lock, that sees any effect of a change gets its ticket, a later one, or none. For
//! `begin_change` comes before the first effect, and the end of the change after its record is
//! queued; both are stored with release, as the effects are, and loaded with acquire after them.
//!
//! No locks: the volume's state lock covers it, except for [`Tickets`].

use crate::device::layout::Layout;
use crate::format::place::Place;
use crate::format::record::RecordKind;
use crate::log::{Pending, Run};
use crate::space::Grant;
use forebay_base::Result;
use forebay_base::sync::Arc;
use forebay_base::sync::atomic::{AtomicU64, Ordering};
use std::collections::VecDeque;

/// Approximate size of a group, bytes.
const GROUP_BYTES_MAX: u64 = 1 << 20;

/// The last ticket, for readers without the state lock (L14): twice the ticket, and one more while
/// a change is being applied.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tickets(Arc<AtomicU64>);

impl Tickets {
    /// The last ticket. `None`: a change is being applied, and only the state lock tells its end.
    pub fn last(&self) -> Option<u64> {
        let seen = self.0.load(Ordering::Acquire);
        seen.is_multiple_of(2).then_some(seen / 2)
    }

    fn set(&self, last: u64, is_changing: bool) {
        self.0.store(2 * last + u64::from(is_changing), Ordering::Release);
    }
}

/// Queued records, and the next ticket.
pub(crate) struct RecordQueue {
    records: VecDeque<Pending>,
    /// Runs without checksums of records that groups have, with the tickets of these (L13).
    taken: VecDeque<(u64, Run)>,
    payload_bytes: u64,
    next_ticket: u64,
    tickets: Tickets,
}

impl RecordQueue {
    /// An empty queue of a volume without records.
    pub fn new() -> Self {
        let (records, taken, tickets) = Default::default();
        Self { records, taken, payload_bytes: 0, next_ticket: 1, tickets }
    }

    /// The last ticket, for readers without the state lock.
    pub fn tickets(&self) -> Tickets {
        self.tickets.clone()
    }

    /// A change is about to be applied. It ends with [`Self::push`], [`Self::join`] or
    /// [`Self::end_change`], in the same hold of the state lock (L14).
    pub fn begin_change(&mut self) {
        self.tickets.set(self.last_ticket(), true);
    }

    /// The change has its record, or failed (L14).
    pub fn end_change(&mut self) {
        self.tickets.set(self.last_ticket(), false);
    }

    /// The ticket of the last queued record, whether it was taken or not; 0: there was none.
    pub fn last_ticket(&self) -> u64 {
        self.next_ticket - 1
    }

    pub fn len(&self) -> usize {
        self.records.len()
    }

    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Bytes of content in the queued records (L11).
    pub fn payload_bytes(&self) -> u64 {
        self.payload_bytes
    }

    /// The records, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &Pending> {
        self.records.iter()
    }

    /// The runs without checksums that one of `flush_failures` failed flushes may have lost:
    /// places, and lengths in bytes.
    pub fn in_doubt(&self, flush_failures: u64) -> impl Iterator<Item = (Place, u64)> {
        let queued = self.records.iter().filter(move |_| flush_failures > 0);
        let runs =
            queued.flat_map(|record| &record.runs).chain(self.taken.iter().map(|(_, run)| run));
        runs.filter(move |run| run.is_in_doubt(flush_failures)).map(|run| (run.at, run.len))
    }

    /// A flush has covered the runs of the records up to this ticket.
    pub fn note_covered(&mut self, ticket: u64) {
        while self.taken.front().is_some_and(|(of, _)| *of <= ticket) {
            self.taken.pop_front();
        }
    }

    /// The newest record, if it is still queued.
    pub fn last(&self) -> Option<&Pending> {
        self.records.back()
    }

    /// Queues a record; returns its ticket (L10).
    pub fn push(&mut self, record: Pending) -> u64 {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.payload_bytes += record.payload_bytes();
        self.records.push_back(Pending { ticket, ..record });
        self.end_change();
        ticket
    }

    /// Bytes of content in the newest record, if a record with `payload_bytes` more may be joined
    /// to it. Joining saves log space, and makes small files adjacent. The joined record is written
    /// completely or not at all, as each of the two would be.
    pub fn can_join(&self, layout: &Layout, body_bytes: u64, payload_bytes: u64) -> Option<u64> {
        let last = self.last().filter(|last| {
            last.kind == RecordKind::Changes && last.cut.is_none() && last.runs.is_empty()
        })?;
        let there = last.payload_bytes();
        let len = layout.record_bytes(last.body.len() as u64 + body_bytes, there + payload_bytes);
        let fits = len + 2 * u64::from(layout.align) <= layout.max_record()
            && there + payload_bytes <= layout.max_inline();
        fits.then_some(there)
    }

    /// Joins a record to the newest one, as [`Self::can_join`] permitted; returns its ticket.
    pub fn join(&mut self, record: Pending) -> u64 {
        debug_assert!(record.runs.is_empty(), "it has content of its own");
        let last = self.records.back_mut().expect("`can_join` found it in this hold of the lock");
        self.payload_bytes += record.payload_bytes();
        last.body.extend_from_slice(&record.body);
        last.changes += record.changes;
        last.payloads.extend(record.payloads);
        last.grant.merge(record.grant);
        let ticket = last.ticket;
        self.end_change();
        ticket
    }

    /// Removes the queued marks of checkpoints and returns their grants: these checkpoints failed,
    /// and the caller queues the mark of another one.
    pub fn remove_cuts(&mut self) -> Vec<Grant> {
        let records = std::mem::take(&mut self.records).into_iter();
        let (cuts, rest): (VecDeque<_>, _) = records.partition(|record| record.cut.is_some());
        self.records = rest;
        cuts.into_iter().map(|record| record.grant).collect()
    }

    /// Takes records, oldest first, up to the size of a group. `None`: a run of one of them was
    /// written before the last of `flush_failures` failed flushes (repair.Q1).
    pub fn take_group(&mut self, layout: &Layout, flush_failures: u64) -> Option<Vec<Pending>> {
        let mut runs = self.records.iter().flat_map(|record| &record.runs);
        if runs.any(|run| run.is_in_doubt(flush_failures)) {
            return None;
        }
        self.move_for_last_cut_only();
        let (mut taken, mut bytes) = (Vec::new(), 0);
        while let Some(record) = self.records.front() {
            let payload = record.payload_bytes();
            bytes += layout.record_bytes(record.body.len() as u64, payload);
            if bytes > GROUP_BYTES_MAX && !taken.is_empty() {
                break;
            }
            self.payload_bytes -= payload;
            let runs = record.runs.iter().filter(|run| run.sums.is_empty());
            self.taken.extend(runs.map(|run| (record.ticket, run.clone())));
            taken.extend(self.records.pop_front());
        }
        Some(taken)
    }

    /// Lets the log move after the last mark of a checkpoint only. Earlier marks are those of
    /// checkpoints that failed, and each move would take a segment.
    fn move_for_last_cut_only(&mut self) {
        let mut cuts = self.records.iter_mut().rev().filter_map(|record| record.cut.as_mut());
        cuts.next();
        cuts.for_each(|moves| *moves = false);
    }

    /// Puts records of a group that failed back at the front, where they were (L10).
    pub fn put_back(&mut self, records: impl DoubleEndedIterator<Item = Pending>) {
        for record in records.rev() {
            while self.taken.back().is_some_and(|(of, _)| *of >= record.ticket) {
                self.taken.pop_back();
            }
            self.payload_bytes += record.payload_bytes();
            self.records.push_front(record);
        }
    }

    /// Applies `change` to each record, newest first: data that a repair writes again has another
    /// address.
    ///
    /// # Errors
    /// The error of `change`, which ends the iteration.
    pub fn rewrite(&mut self, change: impl FnMut(&mut Pending) -> Result<()>) -> Result<()> {
        let done = self.records.iter_mut().rev().try_for_each(change);
        self.payload_bytes = self.records.iter().map(Pending::payload_bytes).sum();
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::place::{Geometry, Seal};
    use crate::log::Payload;
    use crate::space::Grant;

    fn record(bytes: usize) -> Pending {
        let payload = Payload { staged: 0..0, bytes: vec![0; bytes].into(), blocks: Vec::new() };
        Pending {
            ticket: 0,
            kind: RecordKind::Changes,
            body: vec![1],
            changes: 1,
            payloads: if bytes > 0 { vec![payload] } else { Vec::new() },
            runs: Vec::new(),
            grant: Grant::default(),
            cut: None,
        }
    }

    fn layout() -> Layout {
        let (geometry, seal) = (Geometry::with_segment_shift(20), Seal::new(&[1; 16]));
        Layout { geometry, seal, nonce: [1; 16], data_start: 16384, segments: 9, align: 512 }
    }

    /// L10, L11: a failed group is put back in its order. Content counts while it is queued.
    #[test]
    fn record_queue_failed_group_comes_back_in_order() {
        let layout = layout();
        let mut queue = RecordQueue::new();
        assert_eq!((queue.last_ticket(), queue.is_empty()), (0, true));
        let tickets: Vec<u64> = [0, 4096, 8192].map(|bytes| queue.push(record(bytes))).into();
        assert_eq!((tickets, queue.payload_bytes()), (vec![1, 2, 3], 12288));
        let mut taken = queue.take_group(&layout, 0).unwrap();
        assert_eq!((queue.len(), queue.payload_bytes(), queue.last_ticket()), (0, 0, 3));
        queue.push(record(4096));
        queue.put_back(taken.drain(..));
        let order: Vec<u64> = queue.iter().map(|record| record.ticket).collect();
        assert_eq!((order, queue.payload_bytes()), (vec![1, 2, 3, 4], 16384));
    }

    /// L13: a run without checksums is in doubt after a failed flush, in the queue and in a group.
    #[test]
    fn record_queue_knows_runs_in_doubt_until_flush_covers_them() {
        let layout = layout();
        let mut queue = RecordQueue::new();
        let run = |offset| Run {
            ino: 1,
            at: Place::new(3, offset),
            len: 512,
            sums: [].into(),
            flush_failures: 0,
            flush: 1,
            is_flushed: false,
        };
        queue.push(Pending { runs: vec![run(512)], ..record(0) });
        queue.push(Pending { runs: vec![run(1024)], ..record(0) });
        let offsets = |queue: &RecordQueue, failures| -> Vec<u32> {
            queue.in_doubt(failures).map(|(at, _)| at.offset).collect()
        };
        assert!(offsets(&queue, 0).is_empty(), "no flush has failed");
        let mut taken = queue.take_group(&layout, 0).unwrap();
        assert_eq!(offsets(&queue, 1), [512, 1024], "a group has them");
        queue.put_back(taken.drain(1..));
        assert_eq!(offsets(&queue, 1), [1024, 512], "the second one is queued again");
        queue.note_covered(1);
        assert_eq!(offsets(&queue, 1), [1024], "a flush has covered the first one");
    }

    /// L14: a reader without the lock gets no ticket while a change is applied, and the ticket of
    /// its record from then on.
    #[test]
    fn tickets_are_hidden_while_change_is_applied() {
        let mut queue = RecordQueue::new();
        let tickets = queue.tickets();
        assert_eq!(tickets.last(), Some(0));
        queue.begin_change();
        assert_eq!(tickets.last(), None, "L14: its effects may be visible");
        queue.push(record(4096));
        assert_eq!(tickets.last(), Some(1), "L14: its record is queued");
        queue.begin_change();
        queue.join(record(4096));
        assert_eq!(tickets.last(), Some(1), "it has joined the record");
        queue.begin_change();
        assert_eq!(tickets.last(), None);
        queue.end_change();
        assert_eq!((tickets.last(), queue.last_ticket()), (Some(1), 1), "it failed");
    }

    /// The log moves after the last mark of a checkpoint, whether that is in the group or not.
    #[test]
    fn record_queue_moves_log_for_last_cut_only() {
        let layout = layout();
        let mut queue = RecordQueue::new();
        let cuts = [Some(true), None, Some(false), Some(true), Some(true), None];
        cuts.into_iter().for_each(|cut| {
            queue.push(Pending { cut, ..record(0) });
        });
        let taken = queue.take_group(&layout, 0).unwrap();
        let cuts: Vec<_> = taken.iter().map(|record| record.cut).collect();
        let no = Some(false);
        assert_eq!(cuts, [no, None, no, no, Some(true), None]);
        queue.push(Pending { cut: Some(true), ..record(2 << 20) });
        queue.push(Pending { cut: no, ..record(0) });
        let taken = queue.take_group(&layout, 0).unwrap();
        assert_eq!((taken.len(), taken[0].cut), (1, no), "a later one is queued");
    }

    /// A joined record has the ticket of the record that it is joined to.
    #[test]
    fn record_queue_joined_record_shares_ticket() {
        let layout = layout();
        let mut queue = RecordQueue::new();
        assert_eq!(queue.can_join(&layout, 1, 0), None, "there is none");
        queue.push(record(4096));
        assert_eq!(queue.can_join(&layout, 1, 4096), Some(4096));
        assert_eq!(queue.join(record(4096)), 1);
        assert_eq!((queue.len(), queue.payload_bytes(), queue.last_ticket()), (1, 8192, 1));
        assert_eq!(queue.can_join(&layout, 1, layout.max_inline()), None, "it is full");
    }
}
