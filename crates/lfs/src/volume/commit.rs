//! Commits of the volume: the log with its owner, files with outstanding write-back, and the mark of
//! an idle log.
//!
//! Locks: `ctl` of the log and the state lock in turn, never both; none across a wait.

use crate::device::hold::Hold;
use crate::log::commit::{Committer, DataRepair, RecordOwner};
use crate::log::{Group, Pending};
use crate::transaction::state::State;
use crate::volume::Inner;
use forebay_base::task::BoxFuture;
use forebay_base::{Error, ErrorKind, Result};
use std::time::Duration;

/// How often what a failed flush has taken of a file that was truncated and closed is written, for
/// one sync.
const OUTSTANDING_ROUNDS: u32 = 3;
/// The log is idle when nothing came for so long: then its mark is written.
const IDLE: Duration = Duration::from_millis(10);

impl RecordOwner for Inner {
    fn take_queue(&self, failures: u64) -> Option<Vec<Pending>> {
        self.state.lock().take_queue(failures)
    }

    fn take_segment(&self) -> Result<u32> {
        self.state.lock().space.take_log()
    }

    fn note_layout(&self, group: &mut Group, bytes: u64) {
        self.state.lock().note_layout(group, bytes);
    }

    fn requeue(&self, group: &mut Group) -> Result<()> {
        self.state.lock().requeue(group)
    }

    fn on_durable(&self, groups: Vec<Group>) {
        let mut any = false;
        for group in groups {
            any |= self.state.lock().note_durable(&group, &self.staging);
        }
        if any {
            self.arm_mark();
            self.arm_age();
        }
    }

    fn on_written(&self) {
        self.trigger_checkpoint();
    }
}

impl DataRepair for Inner {
    fn on_write_failure(&self, offsets: &[u64]) {
        self.writes_failed(offsets);
    }

    fn rewrite_runs<'a>(
        &'a self,
        records: &'a mut [Pending],
        hold: &'a Hold,
    ) -> BoxFuture<'a, Result<()>> {
        Box::pin(self.resources.rewrite_runs(records, hold))
    }
}

impl Inner {
    fn committer(&self) -> Committer<'_> {
        let (log, device, layout) = (&self.log, &self.device, &self.layout);
        let (plant, uses_fua) = (self.plant, self.options.fua);
        Committer { log, device, layout, plant, uses_fua, owner: self, repair: self }
    }

    /// Makes everything durable that was appended up to `ticket`. `here`: the caller blocks, and
    /// I/O may be carried out on its thread.
    pub(crate) async fn commit(&self, ticket: u64, here: bool) -> Result<()> {
        self.committer().commit(ticket, here).await
    }

    /// Flushes the device, not for the log: if it fails, what of the log it would have covered is
    /// not durable.
    pub(crate) async fn flush_all(&self) -> Result<()> {
        self.committer().flush_all().await
    }

    /// Makes everything durable that has happened; but nothing counts as synced before what was owed by then.
    pub(crate) async fn commit_all(&self, here: bool) -> Result<()> {
        self.commit_then(here, |_| ()).await
    }

    /// The same, and looks at the state then.
    pub(crate) async fn commit_then<T>(
        &self,
        here: bool,
        look: impl FnOnce(&mut State) -> T,
    ) -> Result<T> {
        for _ in 0..OUTSTANDING_ROUNDS {
            let nothing_owed = self.state.lock().ticket_if_nothing_owed();
            let ticket = match nothing_owed {
                Some(ticket) => ticket,
                None => {
                    self.write_owed().await?;
                    self.state.lock().next_ticket - 1
                }
            };
            self.commit(ticket, here).await?;
            let mut state = self.state.lock();
            if state.settle_owed(ticket) {
                return Ok(look(&mut state));
            }
        }
        Err(Error::new(ErrorKind::Io, "commit", "content of a file that was cut was lost again"))
    }

    /// Sees to it that a mark is written when the log falls idle, so that what is durable is known to be.
    fn arm_mark(&self) {
        if std::mem::replace(&mut self.log.ctl.lock().mark_armed, true) {
            return;
        }
        let (me, world) = (self.me.clone(), self.world.clone());
        let task = async move {
            world.sleep(IDLE).await;
            if let Some(inner) = me.upgrade() {
                inner.mark().await;
            }
        };
        self.world.spawn("forebay-lfs mark", Box::pin(task));
    }

    /// Writes a mark if nobody else has told how far the log is durable.
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
            if !state.queue.is_empty() || state.is_closed {
                return;
            }
            state.append_mark()
        };
        if let Err(error) = self.commit(ticket, false).await {
            log::warn!("the mark of the log was not written: {error}");
        }
    }
}
