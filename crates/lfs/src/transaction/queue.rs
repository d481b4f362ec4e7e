//! The queue of records as the log takes from it and puts back to it.
//!
//! Lock: the state lock, held by the caller.

use crate::format::place::Place;
use crate::format::record::RecordKind;
use crate::log::staging::Staging;
use crate::log::{Group, Pending};
use crate::space::Need;
use crate::space::admission::Growth;
use crate::transaction::state::State;
use forebay_base::Result;

/// Bytes of a group, about.
const GROUP_BYTES_MAX: u64 = 1 << 20;

impl State {
    /// What is queued, up to the size of a group. `None`: a run of it was written before the last of
    /// `failures` (Q1).
    pub fn take_queue(&mut self, failures: u64) -> Option<Vec<Pending>> {
        if self.queue.iter().flat_map(|record| &record.runs).any(|run| run.failures < failures) {
            return None;
        }
        let (mut taken, mut bytes) = (Vec::new(), 0);
        while let Some(record) = self.queue.front() {
            let payload = record.payload_bytes();
            bytes += self.layout.record_bytes(record.body.len() as u64, payload);
            if bytes > GROUP_BYTES_MAX && !taken.is_empty() {
                break;
            }
            self.queued_bytes -= payload;
            taken.extend(self.queue.pop_front());
        }
        Some(taken)
    }

    /// A group is laid out and takes `bytes` of the log: settles its grants (log.commit.K12).
    pub fn note_layout(&mut self, group: &mut Group, bytes: u64) {
        let content = group.records.iter().map(Pending::payload_bytes).sum();
        self.space.log_grows(bytes, content);
        if content > 0 {
            self.space.log_takes_content();
        }
        for record in &mut group.records {
            self.space.settle(std::mem::take(&mut record.cost));
        }
        if group.head.segment.is_some() {
            self.space.log_head(u64::from(group.head.offset));
        }
    }

    /// Puts the records of groups that failed back at the front of the queue, and gives back the
    /// segments that the groups opened.
    pub fn requeue(&mut self, group: &mut Group) -> Result<()> {
        for segment in std::mem::take(&mut group.opened) {
            self.space.give_back_log(segment);
        }
        self.space.log_head(self.layout.segment_bytes());
        for record in &mut group.records {
            if record.cost == 0 {
                // It was admitted once: if it were refused now, nothing would become durable.
                record.cost = self.layout.cost(record.body.len() as u64, record.payload_bytes());
                self.promise(record.cost, Need::Outstanding, Growth::default())?;
            }
        }
        for record in group.records.drain(..).rev() {
            self.queued_bytes += record.payload_bytes();
            self.queue.push_front(record);
        }
        Ok(())
    }

    /// A group became durable: its content is found on the device from now on. Returns whether it
    /// has a record that is no mark, so that a mark is due when the log is idle.
    pub fn note_durable(&mut self, group: &Group, staging: &Staging) -> bool {
        for (record, at) in group.records.iter().zip(&group.payloads) {
            let Some(mut at) = *at else { continue };
            for payload in &record.payloads {
                for (data_id, blocks) in &payload.blocks {
                    self.resolve(*data_id, blocks, &payload.staged, at);
                }
                staging.forget(&payload.staged);
                at = Place::new(at.segment, at.offset + payload.bytes.len() as u32);
            }
        }
        group.records.iter().any(|record| record.kind != RecordKind::Mark)
    }
}
