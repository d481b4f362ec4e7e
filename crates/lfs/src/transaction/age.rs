//! The age of changes. A checkpoint is due when the oldest change reaches the configured age
//! (maintenance.Z14).
//!
//! Lock: the state lock, taken briefly. No lock is held across a wait.

use crate::transaction::resources::Resources;
use forebay_base::sync::atomic::Ordering;

/// A volume is busy if it recorded at least this many changes since the last check.
const BUSY_RECORDS: u64 = 512;
/// The checkpoint of a busy volume is delayed by at most this many times the age.
const BUSY_AGES: u32 = 4;

impl Resources {
    /// Notes a recorded change. It starts the timer for a checkpoint, unless it runs already.
    pub fn note_change(&self) {
        let age = self.options.checkpoint_age;
        // The load comes first, because the timer already runs for most changes.
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
        // A read-only volume is not written. The flag stays set, so that later changes return early
        // (open.O13).
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
                !state.life.is_closed()
                    && (state.names.items().len() > 0 || state.map.change_count() > 0)
            };
            if is_due {
                resources.requests.post_age();
            }
        };
        self.world.spawn("forebay-lfs age", Box::pin(task));
    }

    /// Calls [`Self::note_change`] if records are queued. For a caller that recorded changes
    /// outside an operation.
    pub fn note_queued(&self) {
        let is_ageing = self.is_ageing.load(Ordering::Acquire);
        if !is_ageing && !self.state.lock().queue.is_empty() {
            self.note_change();
        }
    }
}
