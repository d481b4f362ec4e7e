//! Records that are applied and not laid out yet, in the order in which changes were applied.
//!
//! ```text
//!   push ──▶ queued ──take_group──▶ a group of the log ──failed──▶ put_back
//!              ▲ join: small changes become part of the last record
//! ```
//! Invariants: L10 tickets follow the order of the queue, and each is used once. L11
//! `payload_bytes` is the sum over the queued records.
//!
//! No locks: the volume's state lock covers it.

use crate::device::layout::Layout;
use crate::format::record::RecordKind;
use crate::log::Pending;
use forebay_base::Result;
use std::collections::VecDeque;

/// Approximate size of a group, bytes.
const GROUP_BYTES_MAX: u64 = 1 << 20;

/// Queued records, and the next ticket.
pub(crate) struct RecordQueue {
    records: VecDeque<Pending>,
    payload_bytes: u64,
    next_ticket: u64,
}

impl RecordQueue {
    /// An empty queue of a volume without records.
    pub fn new() -> Self {
        Self { records: VecDeque::new(), payload_bytes: 0, next_ticket: 1 }
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
        last.cost += record.cost;
        last.ticket
    }

    /// Takes records, oldest first, up to the size of a group. `None`: a run of one of them was
    /// written before the last of `failures` (Q1).
    pub fn take_group(&mut self, layout: &Layout, failures: u64) -> Option<Vec<Pending>> {
        if self.records.iter().flat_map(|record| &record.runs).any(|run| run.failures < failures) {
            return None;
        }
        let (mut taken, mut bytes) = (Vec::new(), 0);
        while let Some(record) = self.records.front() {
            let payload = record.payload_bytes();
            bytes += layout.record_bytes(record.body.len() as u64, payload);
            if bytes > GROUP_BYTES_MAX && !taken.is_empty() {
                break;
            }
            self.payload_bytes -= payload;
            taken.extend(self.records.pop_front());
        }
        Some(taken)
    }

    /// Puts records of a group that failed back at the front, where they were (L10).
    pub fn put_back(&mut self, records: impl DoubleEndedIterator<Item = Pending>) {
        for record in records.rev() {
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

    fn record(bytes: usize) -> Pending {
        let payload = Payload { staged: 0..0, bytes: vec![0; bytes].into(), blocks: Vec::new() };
        Pending {
            ticket: 0,
            kind: RecordKind::Changes,
            body: vec![1],
            changes: 1,
            payloads: if bytes > 0 { vec![payload] } else { Vec::new() },
            runs: Vec::new(),
            cost: 0,
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
