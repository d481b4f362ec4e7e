//! The queue of records: how the log takes records from it and puts them back.
//!
//! Lock: the state lock, held by the caller.

use crate::log::group_plan::GroupPlan;
use crate::log::{Group, Head, Pending};
use crate::space::Ask;
use crate::space::admission::Growth;
use crate::transaction::state::State;
use crate::transaction::state_lock::Stored;

impl State {
    /// Takes records for a group, plans its places from `head` on, and settles its grants
    /// (log.commit.K12). `None`: as [`RecordQueue::take_group`](crate::log::queue::RecordQueue).
    pub fn take_group(
        &mut self,
        head: &Head,
        flush_failures: u64,
    ) -> Option<(Vec<Pending>, GroupPlan)> {
        let mut records = self.queue.take_group(&self.layout, flush_failures)?;
        let space = &mut self.space;
        let plan = GroupPlan::of(&self.layout, head, &records, &mut || space.take_log());
        let content = records.iter().map(Pending::payload_bytes).sum();
        self.space.log_grows(plan.bytes, content);
        if content > 0 {
            self.space.log_takes_content();
        }
        for record in &mut records {
            self.space.end_grant(std::mem::take(&mut record.grant));
        }
        if plan.segment.is_some() {
            self.space.log_head(u64::from(plan.end));
        }
        Some((records, plan))
    }

    /// Puts the records of failed groups back at the front of the queue. Frees the segments that
    /// the groups opened. `at`: the log stays in this segment and continues at this offset.
    pub fn requeue(&mut self, group: &mut Group, at: Option<(u32, u32)>) {
        for segment in std::mem::take(&mut group.opened) {
            self.space.give_back_log(segment);
        }
        match at {
            Some((segment, offset)) => {
                let head = offset.max(self.layout.first_record());
                self.space.return_to_log(segment, u64::from(head));
            }
            None => self.space.log_head(self.layout.segment_bytes()),
        }
        for record in &mut group.records {
            if record.grant.log() == 0 {
                // The record was admitted before. If it were refused now, no later record could
                // become durable.
                let bytes = (record.body.len() as u64, record.payload_bytes());
                let ask = Ask::log(self.layout.cost(bytes.0, bytes.1), Growth::default());
                record.grant = self.space.grant(&ask);
            }
        }
        self.queue.put_back(group.records.drain(..));
    }

    /// Notes that content is durable: from now on it is read from the device.
    pub fn note_durable(&mut self, stored: &Stored) {
        for (data_id, blocks) in &stored.blocks {
            self.map.resolve(*data_id, blocks, &stored.staged, stored.at);
        }
    }
}
