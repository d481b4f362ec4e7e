//! When a checkpoint is made, and what is done before anybody is told that there is no room.
//!
//! Invariants: Z11 `NoSpace` is told only after two checkpoints and the cleaner brought no room: what is dead
//! is free then, and little is dead beside what is live.
//! Z12 room is made without a lock, and with nothing captured. Z13 a log segment that is used up for the most
//! part is left first, so that what it takes comes free, too. Z14 what is durable in the log is in a
//! checkpoint within `checkpoint_age` and the time that one takes: a volume that falls idle is opened at
//! once. Z15 what is made durable by age, by size, or because much waits in memory, and not for a sync, has
//! what is owed for cuts written first, if it can be. Only who makes room does not wait for that: what is
//! owed may wait for the room.
//!
//! Locks: the state lock in turn; none across a wait.

use crate::checkpoint::How;
use crate::space::{Bytes, Need};
use crate::state::State;
use crate::volume::Inner;
use forebay_base::sync::atomic::Ordering;
use forebay_base::{ErrorKind, Result};

/// How often room is made for one operation.
const ROUNDS: u32 = 2;
/// Checkpoints more, at most, while something is dead and not free.
const MORE_CHECKPOINTS: u64 = 2;
/// Segments that there should be room for when room was made: a little does not last.
const ENOUGH: u64 = 2;

/// The log's own part of a volume behind a checkpoint is at most one of so many.
const LOG_PART: u64 = 12;
/// A volume in which so many records were made since it was looked at last is busy.
const BUSY_RECORDS: u64 = 512;
/// A busy volume's checkpoint by age waits for so many times the age at most.
const BUSY_AGES: u32 = 4;

impl Inner {
    /// Begins a checkpoint on a task of its own, if it is time for one.
    pub(crate) fn trigger_checkpoint(&self) {
        let (wanted, short) = {
            let state = self.state.lock();
            let Bytes { log, content, data } = state.space.written();
            // The less is left, the sooner what is dead is wanted.
            let some = || state.space.short_bytes(state.data_room(Need::New));
            let short = state.space.is_short() && log + content + data >= some();
            let long = log >= self.own_log_max() || log + content >= self.options.checkpoint_bytes;
            let full = state.items.bytes() + 64 * state.items.len() + state.maps.1
                >= self.options.overlay_bytes / 2;
            let wanted = !state.is_closed && (long || short || full);
            (wanted, short)
        };
        self.trigger_cleaner();
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
            if let Err(error) = inner.checkpoint(How::Log).await {
                log::warn!("a checkpoint was not made: {error}");
            }
        };
        self.world.spawn("forebay-lfs checkpoint", Box::pin(task));
    }

    /// Something became durable in the log: a checkpoint is due when it is old (Z14).
    pub(crate) fn arm_age(&self) {
        let age = self.options.checkpoint_age;
        if age.is_zero() || self.is_ageing.swap(true, Ordering::AcqRel) {
            return;
        }
        let (me, world) = (self.me.clone(), self.world.clone());
        let mut seen = self.state.lock().next_ticket;
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
            if let Err(error) = inner.checkpoint(How::Log).await {
                log::warn!("a checkpoint was not made: {error}");
            }
        };
        self.world.spawn("forebay-lfs age", Box::pin(task));
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

    /// Checkpoints until what is dead is free: two, one more where the log has left a segment, and more where
    /// one has found that something had died (Z11, Z13). False: there was none.
    pub(crate) async fn two_checkpoints(&self) -> bool {
        let before = self.checkpoints.superblock().checkpoint;
        let moves = self.state.lock().space.log_is_used();
        let mut how = if moves { How::Moving } else { How::Log };
        let least = before + 2 + u64::from(moves);
        loop {
            let number = self.checkpoints.superblock().checkpoint;
            let dead = number < least || self.state.lock().space.segments.has_dead();
            if !dead || number >= least + MORE_CHECKPOINTS {
                break;
            }
            if let Err(error) = self.checkpoint(how).await {
                log::debug!("no room, and no checkpoint: {error}");
                break;
            }
            if self.state.lock().is_closed {
                break;
            }
            how = How::Log;
        }
        self.checkpoints.superblock().checkpoint > before
    }

    /// What is dead is free, and what little is live beside it is moved (Z11). False: nothing could be done.
    pub(crate) async fn make_room(&self) -> bool {
        // What is queued is promised more than it takes.
        if let Err(error) = self.commit_queue().await {
            log::debug!("no room, and no commit: {error}");
        }
        let mut made = self.two_checkpoints().await;
        let enough = ENOUGH * self.layout.segment_bytes();
        while self.state.lock().data_room(Need::New) < enough && self.clean_now().await {
            made = true;
        }
        made
    }

    /// What was removed is free before anybody asks how much is, if it is much.
    pub(crate) async fn settle_removed(&self) {
        let removed = {
            let mut state = self.state.lock();
            let much = state.removed_bytes >= self.layout.segment_bytes() && !state.is_read_only;
            if much { std::mem::take(&mut state.removed_bytes) } else { 0 }
        };
        if removed == 0 {
            return;
        }
        // What the cleaner has in its hands comes free with the rest.
        self.cleaner.pass_over().await;
        if !self.two_checkpoints().await {
            let mut state = self.state.lock();
            state.removed_bytes = state.removed_bytes.saturating_add(removed);
        }
    }

    /// Changes the state; makes room if there is none.
    pub(crate) async fn with_room<T>(
        &self,
        mut op: impl FnMut(&mut State) -> Result<T>,
    ) -> Result<T> {
        let mut rounds = 0;
        loop {
            let done = op(&mut self.state.lock());
            match done {
                Err(error) if error.kind() == ErrorKind::NoSpace && rounds < ROUNDS => {
                    rounds += 1;
                    if !self.make_room().await {
                        return Err(error);
                    }
                }
                done => return done,
            }
        }
    }
}
