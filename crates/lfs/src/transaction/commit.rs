//! Commits of a volume: connects the log with the state, and writes the mark of an idle log.
//!
//! Locks: `ctl` of the log and the state lock, never both at once. No lock is held across a wait.

use crate::format::record::RecordKind;
use crate::log::commit::{Committer, RecordOwner};
use crate::log::group_plan::GroupPlan;
use crate::log::{Group, Head, Pending};
use crate::space::Leave;
use crate::transaction::resources::Resources;
use crate::transaction::state::State;
use forebay_base::Result;
use std::time::Duration;

/// The log is idle if no record came for this time. Then a mark is written.
const IDLE: Duration = Duration::from_millis(10);

impl RecordOwner for Resources {
    fn take_group(&self, head: &Head, flush_failures: u64) -> Option<(Vec<Pending>, GroupPlan)> {
        let mut taken = None;
        let mut take = |state: &mut State| taken = state.take_group(head, flush_failures);
        match self.requests.maintainer() {
            Some(maintainer) => maintainer.on_group(&mut take),
            None => take(&mut self.state.lock()),
        }
        taken
    }

    fn requeue(&self, group: &mut Group, at: Option<(u32, u32)>) {
        self.state.lock().requeue(group, at);
    }

    fn can_move(&self, opened: u64, bytes: u64, is_bad_place: bool) -> bool {
        let why = if is_bad_place { Leave::BadPlace } else { Leave::Failed };
        let mut state = self.state.lock();
        // A task that was dropped in its turn to write may have left it.
        state.give_back_probed();
        state.can_move_log(opened, bytes, why)
    }

    fn on_covered(&self, ticket: u64) {
        self.state.lock().queue.note_covered(ticket);
    }

    fn on_durable(&self, groups: Vec<Group>) {
        // A mark is due when the log becomes idle, unless it has marks alone.
        let is_mark = |record: &Pending| record.kind == RecordKind::Mark;
        let any = groups.iter().any(|group| !group.records.iter().all(is_mark));
        self.state.note_durable(groups);
        if any {
            self.schedule_mark();
            self.note_change();
        }
    }
}

impl Resources {
    fn committer(&self) -> Committer<'_> {
        let (log, device, layout) = (&self.log, &self.device, &self.layout);
        let (plant, uses_fua) = (self.plant, self.options.fua);
        let repair = &*self.repair;
        Committer { log, device, layout, plant, uses_fua, owner: self, repair }
    }

    /// Makes all records up to `ticket` durable. `here`: the calling thread may block, so I/O may
    /// be done on it.
    pub async fn commit(&self, ticket: u64, here: bool) -> Result<()> {
        self.committer().commit(ticket, here).await
    }

    /// Writes the queued records and makes them durable. It writes out no file, so maintenance jobs
    /// can call it.
    pub async fn commit_queue(&self) -> Result<()> {
        self.commit(self.last_ticket(), false).await
    }

    /// The last ticket. A change whose effects the caller has seen has this one or an earlier one
    /// (queue.L14).
    pub fn last_ticket(&self) -> u64 {
        self.tickets.last().unwrap_or_else(|| self.state.lock().queue.last_ticket())
    }

    /// Flushes the device for a purpose other than a commit. If the flush fails, log records that
    /// it would have covered are not durable.
    pub async fn flush_all(&self) -> Result<()> {
        self.committer().flush_all().await
    }

    /// Schedules a mark for the time when the log becomes idle. The mark states up to where the log
    /// is durable.
    fn schedule_mark(&self) {
        if std::mem::replace(&mut self.log.ctl.lock().mark_armed, true) {
            return;
        }
        let (me, world) = (self.me.clone(), self.world.clone());
        let task = async move {
            world.sleep(IDLE).await;
            if let Some(resources) = me.upgrade() {
                resources.mark().await;
            }
        };
        self.world.spawn("forebay-lfs mark", Box::pin(task));
    }

    /// Writes a mark, unless a record already states up to where the log is durable.
    async fn mark(&self) {
        let wanted = {
            let mut ctl = self.log.ctl.lock();
            ctl.mark_armed = false;
            let idle = !ctl.writing && ctl.groups.is_empty() && !ctl.repair;
            idle && ctl.declared + 1 < ctl.durable.sequence
        };
        if !wanted {
            return;
        }
        let ticket = {
            let mut state = self.state.lock();
            if !state.queue.is_empty() || state.life.is_closed() {
                return;
            }
            state.append_mark()
        };
        if let Err(error) = self.commit(ticket, false).await {
            log::warn!("the mark of the log was not written: {error}");
        }
    }
}
