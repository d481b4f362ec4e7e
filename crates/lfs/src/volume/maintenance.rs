//! When a checkpoint is made, and what is done before anybody is told that there is no room.
//!
//! Invariants: Z11 `NoSpace` is told only after two checkpoints and the cleaner brought no room: what is dead
//! is free then, and little is dead beside what is live.
//! Z12 room is made without a lock, and with nothing captured. Z13 a log segment that is used up for the most
//! part is left first, so that what it takes comes free, too. Z14 what was recorded, synced or not, is in a
//! checkpoint within `checkpoint_age` and the time that one takes, in a busy volume within four times that: a
//! volume that falls idle is opened at once, and what nobody syncs is durable some time. Z15 what is made
//! durable by age, by size, or because much waits in memory, and not for a sync, has what is owed for cuts
//! written first, if it can be. Only who makes room does not wait for that: what is owed may wait for the
//! room.
//!
//! Locks: the state lock in turn; none across a wait.

use crate::checkpoint::How;
use crate::names::content::Content;
use crate::space::{Bytes, Need};
use crate::transaction::state::State;
use crate::volume::Inner;
use forebay_base::sync::atomic::Ordering;
use forebay_base::{ErrorKind, Result};
use std::sync::Arc;

/// How often room is made for one operation.
const ROUNDS: u32 = 2;
/// Checkpoints more, at most, while something is dead and not free.
const MORE_CHECKPOINTS: u64 = 2;

/// The log's own part of a volume behind a checkpoint is at most one of so many.
const LOG_PART: u64 = 12;
/// A volume in which so many records were made since it was looked at last is busy.
const BUSY_RECORDS: u64 = 512;
/// A busy volume's checkpoint by age waits for so many times the age at most.
const BUSY_AGES: u32 = 4;

/// Removed content that two checkpoints are made for at once: such a part of the volume, bytes from and to.
const REMOVED_PART: u64 = 16;
const REMOVED_MIN: u64 = 32 << 20;
const REMOVED_MAX: u64 = 256 << 20;

impl Inner {
    /// Begins a checkpoint on a task of its own, if it is time for one.
    pub(crate) fn trigger_checkpoint(&self) {
        let (wanted, short) = {
            let state = self.state.lock();
            let Bytes { log, content, data } = state.space.written();
            // The less is left, the sooner what is dead is wanted.
            let some = || state.space.short_bytes(state.data_room(Need::New));
            // The cleaner makes its own, as often as it has emptied something.
            let short = !self.cleaner.is_at_work()
                && state.space.is_short()
                && log + content + data >= some();
            let long = log >= self.own_log_max() || log + content >= self.options.checkpoint_bytes;
            let full = state.changes_bytes() >= self.options.overlay_bytes / 2;
            let wanted = !state.is_closed && !state.is_read_only && (long || short || full);
            (wanted, short)
        };
        self.trigger_cleaner();
        self.trigger_settling();
        if !wanted || !self.checkpoints.arm() {
            return;
        }
        let me = self.me.clone();
        let task = async move {
            let Some(inner) = me.upgrade() else { return };
            inner.checkpoints.disarm();
            inner.owed_first().await;
            if short {
                // Taken back if something dies with it.
                inner.state.lock().space.made_short();
            }
            let made = match short {
                true => inner.checkpoint_and_free(How::Log).await,
                false => inner.checkpoint(How::Log).await,
            };
            if let Err(error) = made {
                log::warn!("a checkpoint was not made: {error}");
            }
        };
        self.world.spawn("forebay-lfs checkpoint", Box::pin(task));
    }

    /// Much was removed: it comes free soon, and not by and by, so that what is written next goes there and
    /// not to what was never written (W17). Tried once for so much: who lacks room sees to the rest.
    fn trigger_settling(&self) {
        let volume = u64::from(self.layout.segments) * self.layout.segment_bytes();
        let much = (volume / REMOVED_PART).clamp(REMOVED_MIN, REMOVED_MAX);
        let (removed, settled, closed) = {
            let state = self.state.lock();
            (state.removed_bytes, state.settled_bytes, state.is_closed)
        };
        let begun = self.settling_bytes.load(Ordering::Relaxed);
        if closed || removed.saturating_sub(settled.max(begun)) < much {
            return;
        }
        self.settling_bytes.store(removed, Ordering::Relaxed);
        let me = self.me.clone();
        let task = async move {
            if let Some(inner) = me.upgrade() {
                inner.settle_removed().await;
            }
        };
        self.world.spawn("forebay-lfs settle", Box::pin(task));
    }

    /// Something was recorded: a checkpoint is due when it is old (Z14).
    pub(crate) fn arm_age(&self) {
        let age = self.options.checkpoint_age;
        // A look first: most find it armed.
        if age.is_zero()
            || self.is_ageing.load(Ordering::Acquire)
            || self.is_ageing.swap(true, Ordering::AcqRel)
        {
            return;
        }
        let (me, world) = (self.me.clone(), self.world.clone());
        let (mut seen, is_read_only) = {
            let state = self.state.lock();
            (state.next_ticket, state.is_read_only)
        };
        // What is open for reading is not written; the flag stays, so that nobody looks again (O13).
        if is_read_only {
            return;
        }
        let task = async move {
            for _ in 0..BUSY_AGES {
                world.sleep(age).await;
                let Some(inner) = me.upgrade() else { return };
                let now = inner.state.lock().next_ticket;
                if now - std::mem::replace(&mut seen, now) < BUSY_RECORDS {
                    break;
                }
            }
            let Some(inner) = me.upgrade() else { return };
            inner.is_ageing.store(false, Ordering::Release);
            let is_due = {
                let state = inner.state.lock();
                !state.is_closed && (state.items.len() > 0 || state.maps.0 > 0)
            };
            if !is_due {
                return;
            }
            inner.owed_first().await;
            inner.publish_sizes();
            if let Err(error) = inner.checkpoint(How::Log).await {
                log::warn!("a checkpoint was not made: {error}");
                // Nobody else may come.
                inner.arm_age();
            }
        };
        self.world.spawn("forebay-lfs age", Box::pin(task));
    }

    /// [`Self::arm_age`], if something waits to be written: for who records beside an operation.
    pub(crate) fn arm_waiting(&self) {
        let is_armed = self.is_ageing.load(Ordering::Acquire);
        if !is_armed && !self.state.lock().queue.is_empty() {
            self.arm_age();
        }
    }

    /// What was written out is found below the recorded size alone, which syncs see to: of files that nobody
    /// syncs it is recorded here, as far as they are written.
    fn publish_sizes(&self) {
        let contents: Vec<_> = {
            let state = self.state.lock();
            let longer = state
                .nodes
                .values()
                .filter(|node| node.live_size().is_some_and(|size| size > node.published()));
            longer.filter_map(|node| node.content.clone()).collect()
        };
        contents.iter().for_each(|content| content.file.publish_size());
    }

    /// Before something is made durable that nobody syncs: what was written to files that were cut to nothing
    /// and closed goes first (Z15). That it cannot be written is for syncs to tell.
    pub(crate) async fn owed_first(&self) {
        if let Err(error) = self.write_owed().await {
            log::debug!("cut, and not written yet: {error}");
        }
    }

    /// Most that the log behind a checkpoint has beside content, which stays, bytes: room that comes free.
    fn own_log_max(&self) -> u64 {
        let volume = u64::from(self.layout.segments) * self.layout.segment_bytes();
        (volume / LOG_PART).max(self.layout.segment_bytes())
    }

    /// Writes what is queued, and no more: for who may be part of what others wait for.
    pub(crate) async fn commit_queue(&self) -> Result<()> {
        let ticket = self.state.lock().next_ticket - 1;
        self.commit(ticket, false).await
    }

    /// Checkpoints until what is dead is free: two, and more where one has found that something had died
    /// (Z11, Z13). False: there was none.
    pub(crate) async fn two_checkpoints(&self) -> bool {
        self.checkpoints_to_free(2, MORE_CHECKPOINTS).await
    }

    /// The same for who knows what dies with the next one: that is free then, and what the log takes, where
    /// it is used up, with one more.
    pub(crate) async fn one_checkpoint(&self) -> bool {
        self.checkpoints_to_free(1, 0).await
    }

    async fn checkpoints_to_free(&self, least: u64, more: u64) -> bool {
        let before = self.checkpoints.merged();
        let moves = self.state.lock().space.log_is_used();
        let mut how = if moves { How::Moving } else { How::Log };
        let least = before + least.max(1 + u64::from(moves));
        loop {
            let number = self.checkpoints.merged();
            let dead = number < least || self.state.lock().space.segments.has_dead();
            if !dead || number >= least + more {
                break;
            }
            if let Err(error) = self.checkpoint_and_free(how).await {
                log::debug!("no room, and no checkpoint: {error}");
                break;
            }
            if self.state.lock().is_closed {
                break;
            }
            how = How::Log;
        }
        self.checkpoints.merged() > before
    }

    /// What is dead is free, and what little is live beside it is moved (Z11). False: nothing could be done.
    pub(crate) async fn make_room(&self) -> bool {
        // What is queued is promised more than it takes.
        if let Err(error) = self.commit_queue().await {
            log::debug!("no room, and no commit: {error}");
        }
        let mut made = self.one_checkpoint().await;
        while self.lacks_room() && self.clean_now().await {
            made = true;
        }
        if self.lacks_room() {
            made |= self.two_checkpoints().await;
        }
        made
    }

    fn lacks_room(&self) -> bool {
        self.state.lock().lacks_room()
    }

    /// Makes room for so much content; `over`: it takes the place of what is stored. False: there is none,
    /// and none can be made.
    pub(crate) async fn make_room_for(&self, new: u64, over: bool) -> bool {
        let has = || {
            let state = self.state.lock();
            state.has_room(new, Need::New) || over && state.has_over_room(new)
        };
        // Told by then, or made by others. Who was refused as new asks for more than this, and has it made.
        if over && has() {
            return true;
        }
        // What the cleaner has at hand may do.
        if over && self.wait_for_cleaner().await && has() {
            return true;
        }
        self.write_out_dirt().await;
        self.make_room().await;
        has()
    }

    /// Accepted content counts until it is written out, as new where it overwrites what is stored, and only
    /// then what it overwrites comes free: before anything is refused for it, it is. Sizes are not published,
    /// so this waits for no writer ([`MappedFile::write_out_dirty`](forebay_iomap::MappedFile)): who calls it
    /// may be one, but has no reservation and holds no range.
    pub(crate) async fn write_out_dirt(&self) {
        let dirty: Vec<Arc<Content>> = {
            let state = self.state.lock();
            let is_dirty = state.dirt_bytes(0) > 0 && !state.is_read_only;
            let contents = state.nodes.values().filter_map(|node| node.content.as_ref());
            contents.filter(|c| is_dirty && !c.file.mapping.is_settled()).cloned().collect()
        };
        for content in dirty {
            content.file.write_out_dirty().await;
        }
    }

    /// What was removed is free before anybody asks how much is, if it is much. It counts as settled when it
    /// is: who asks meanwhile waits, too, and one who does not wait for the end leaves it to the next.
    pub(crate) async fn settle_removed(&self) {
        let unsettled = || {
            let state = self.state.lock();
            let bytes = state.removed_bytes.saturating_sub(state.settled_bytes);
            let much = bytes >= self.layout.segment_bytes() && !state.is_read_only;
            much.then_some(state.removed_bytes)
        };
        if unsettled().is_none() {
            return;
        }
        // Nobody lacks room here (Z15).
        self.owed_first().await;
        // What the cleaner has in its hands comes free with the rest.
        self.cleaner.pass_over().await;
        // Somebody else may have seen to it.
        let Some(removed) = unsettled() else { return };
        if self.two_checkpoints().await {
            let mut state = self.state.lock();
            state.settled_bytes = state.settled_bytes.max(removed);
        }
    }

    /// Changes the state; makes room if there is none.
    pub(crate) async fn with_room<T>(
        &self,
        mut op: impl FnMut(&mut State) -> Result<T>,
    ) -> Result<T> {
        let mut rounds = 0;
        loop {
            let (done, refused) = {
                let mut state = self.state.lock();
                state.fate.is_refused = false;
                (op(&mut state), state.fate.is_refused)
            };
            match done {
                Err(error) if error.kind() == ErrorKind::NoSpace && rounds < ROUNDS => {
                    rounds += 1;
                    if !self.make_room().await {
                        return Err(error);
                    }
                }
                Err(_) if refused && rounds == 0 => {
                    rounds += 1;
                    self.checkpoint(How::Log).await?;
                }
                done => {
                    self.arm_age();
                    return done;
                }
            }
        }
    }
}
