//! The age of changes: when a checkpoint is due because the oldest change is old
//! (`volume::maintenance`, Z14).
//!
//! Lock: the state lock in turn; none across a wait.

use crate::transaction::resources::Resources;
use forebay_base::sync::atomic::Ordering;

/// A volume that recorded so many changes since the last check is busy.
const BUSY_RECORDS: u64 = 512;
/// The checkpoint of a busy volume waits for at most so many times the age.
const BUSY_AGES: u32 = 4;

impl Resources {
    /// A change was recorded: a checkpoint is due when it is of age.
    pub fn note_change(&self) {
        let age = self.options.checkpoint_age;
        // A load first: for most changes the timer runs already.
        if age.is_zero()
            || self.is_ageing.load(Ordering::Acquire)
            || self.is_ageing.swap(true, Ordering::AcqRel)
        {
            return;
        }
        let (me, world) = (self.me.clone(), self.world.clone());
        let (mut seen, is_read_only) = {
            let state = self.state.lock();
            (state.queue.last_ticket(), state.life.is_read_only())
        };
        // A volume that is open for reading is not written. The flag stays set, so that no later
        // change comes here (open.O13).
        if is_read_only {
            return;
        }
        let task = async move {
            for _ in 0..BUSY_AGES {
                world.sleep(age).await;
                let Some(resources) = me.upgrade() else { return };
                let now = resources.state.lock().queue.last_ticket();
                if now - std::mem::replace(&mut seen, now) < BUSY_RECORDS {
                    break;
                }
            }
            let Some(resources) = me.upgrade() else { return };
            resources.is_ageing.store(false, Ordering::Release);
            let is_due = {
                let state = resources.state.lock();
                !state.life.is_closed() && (state.items.len() > 0 || state.map.change_count() > 0)
            };
            if is_due {
                resources.requests.post_age();
            }
        };
        self.world.spawn("forebay-lfs age", Box::pin(task));
    }

    /// [`Self::note_change`] if records are queued, for a caller that recorded outside an
    /// operation.
    pub fn note_queued(&self) {
        let is_ageing = self.is_ageing.load(Ordering::Acquire);
        if !is_ageing && !self.state.lock().queue.is_empty() {
            self.note_change();
        }
    }
}
