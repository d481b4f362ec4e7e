//! The queue of records: how the log takes records from it and puts them back.
//!
//! Lock: the state lock, held by the caller.

use crate::format::place::Place;
use crate::format::record::RecordKind;
use crate::log::staging::Staging;
use crate::log::{Group, Pending};
use crate::transaction::state::State;

impl State {
    /// Notes that a group is laid out and takes `bytes` of the log. Settles its grants
    /// (log.commit.K12).
    pub fn note_layout(&mut self, group: &mut Group, bytes: u64) {
        let content = group.records.iter().map(Pending::payload_bytes).sum();
        self.space.log_grows(bytes, content);
        if content > 0 {
            self.space.log_takes_content();
        }
        for record in &mut group.records {
            self.space.ledger.end(std::mem::take(&mut record.grant));
        }
        if group.head.segment.is_some() {
            self.space.log_head(u64::from(group.head.offset));
        }
    }

    /// Puts the records of failed groups back at the front of the queue. Frees the segments that
    /// the groups opened.
    pub fn requeue(&mut self, group: &mut Group) {
        for segment in std::mem::take(&mut group.opened) {
            self.space.give_back_log(segment);
        }
        self.space.log_head(self.layout.segment_bytes());
        for record in &mut group.records {
            if record.grant.log() == 0 {
                // The record was admitted before. If it were refused now, no later record could
                // become durable.
                let bytes = (record.body.len() as u64, record.payload_bytes());
                record.grant = self.space.ledger.grant(self.layout.cost(bytes.0, bytes.1));
            }
        }
        self.queue.put_back(group.records.drain(..));
    }

    /// Notes that a group is durable: from now on its content is read from the device. Returns
    /// whether it has a record other than a mark. Then a mark is due when the log becomes idle.
    pub fn note_durable(&mut self, group: &Group, staging: &Staging) -> bool {
        for (record, at) in group.records.iter().zip(&group.payloads) {
            let Some(mut at) = *at else { continue };
            for payload in &record.payloads {
                for (data_id, blocks) in &payload.blocks {
                    self.map.resolve(*data_id, blocks, &payload.staged, at);
                }
                staging.forget(&payload.staged);
                at = Place::new(at.segment, at.offset + payload.bytes.len() as u32);
            }
        }
        group.records.iter().any(|record| record.kind != RecordKind::Mark)
    }
}
