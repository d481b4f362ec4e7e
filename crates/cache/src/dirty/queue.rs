//! The files of a flush domain, as plain data: the one with the oldest dirty block, those with a
//! timer, those that wait for a retry, and those with blocks that wait for a flush.
//!
//! ```text
//!             dirtied                        a write-out failed
//!   clean ────────────────▶ queued by age ───────────────────────▶ waiting for a retry
//!     ▲                       │  ▲  ▲  │                             │  │ again: twice the pause
//!     └──── nothing dirty ────┘  │  └──┼──── no failed block ────────┘◀─┘
//!                                │     │ a visit wrote nothing: twice the last pause
//!     a write-out ended, a folio │     ▼
//!     became dirty, timer ended  stalled
//! ```
//!
//! Invariants: Q-a a file with dirty blocks is queued by age, waits for a retry, or is stalled. Q-b
//! an entry of `aged` or `alarms` is the one that its member names. Q-c a file that waits for a
//! retry or is stalled is not queued by age: it delays no other file. Q-d a file that was checked
//! out is released once. Q-e if a visit writes nothing, or flushes are refused, the pause before
//! the next one doubles: the flusher does not spin.
//!
//! No locks: the domain's lock is around all of it.

use crate::dirty::dirty_folios::DirtyFolios;
use crate::dirty::pass::WriteOut;
use forebay_base::sync::Arc;
use forebay_base::sync::atomic::Ordering;
use forebay_base::world::Nanos;
use std::collections::{BTreeSet, HashMap, VecDeque};

/// Shortest pause of a file with failed blocks before the next try.
const RETRY_FIRST: Nanos = 5_000_000;
/// Longest pause of a file with failed blocks.
const RETRY_LAST: Nanos = 1_000_000_000;
/// Shortest pause after a visit that wrote nothing.
const STALL_FIRST: Nanos = 1_000_000;
/// Longest pause of a stalled file that does not change.
const STALL_LAST: Nanos = 1_000_000_000;
/// Shortest pause between a refused flush, which lost nothing, and the flusher's next one.
const FLUSH_FIRST: Nanos = 50_000_000;
/// Longest such pause.
const FLUSH_LAST: Nanos = 1_000_000_000;

struct Retry {
    at: Nanos,
    pause: Nanos,
    /// A retry was begun since the last counted failure: only then does a failure count again.
    tried: bool,
}

struct Member {
    dirty: Arc<DirtyFolios>,
    out: std::sync::Weak<dyn WriteOut>,
    /// Set from the last close of the file until all of it is durable.
    keep: Option<std::sync::Arc<dyn WriteOut>>,
    /// Pause until the next visit of a kept file.
    keep_pause: Nanos,
    aged: Option<Nanos>,
    alarm: Option<Nanos>,
    retry: Option<Retry>,
    /// Its dirty blocks could not be written, and are not retried before this time.
    stalled: Option<Nanos>,
    /// How long it was stalled last; 0 after a visit that wrote some or found nothing to write.
    stall_pause: Nanos,
    /// How often the flusher has checked it out, and not released it.
    held: u32,
    /// Number of this membership, unique among all so far.
    serial: u64,
}

/// Why the flusher visits a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Why {
    /// Its oldest dirty block is due.
    Age,
    /// Its timer expired: uncached dirty blocks, or a kept file that is not durable yet.
    Alarm,
    /// Its failed blocks are to be written again.
    Retry,
}

/// A file checked out by the flusher: identifies the member, not a later one with its number.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CheckedOut {
    pub id: u32,
    serial: u64,
}

/// A file that the flusher is to visit.
pub(crate) struct Look {
    pub id: u32,
    pub checked_out: CheckedOut,
    pub why: Why,
    pub dirty: Arc<DirtyFolios>,
    pub out: std::sync::Arc<dyn WriteOut>,
    pub kept: bool,
    /// It has failed blocks, which wait for their next try.
    pub waits: bool,
}

/// What came of a visit to a file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Outcome {
    /// The visit was to write blocks that are dirty since this time or longer.
    pub until: Nanos,
    /// [`DirtyFolios::changes`] before the visit.
    pub seen: u64,
    /// It has written some.
    pub wrote: bool,
}

/// The queue of a flush domain.
#[derive(Default)]
pub(crate) struct Queue {
    members: HashMap<u32, Member>,
    aged: BTreeSet<(Nanos, u32)>,
    alarms: BTreeSet<(Nanos, u32)>,
    flush: VecDeque<u32>,
    /// Files that are listed for a flush again at `flush_at`.
    flush_later: BTreeSet<u32>,
    flush_at: Nanos,
    /// The last pause between a refused flush and the next one; 0: none was refused since one
    /// worked.
    flush_pause: Nanos,
    /// The flusher of the domain runs.
    pub running: bool,
    /// How many callers want the flusher to run on without files.
    pub stays: u32,
    /// Files that joined so far.
    joined: u64,
}

impl Queue {
    pub fn join(&mut self, id: u32, dirty: Arc<DirtyFolios>, out: std::sync::Weak<dyn WriteOut>) {
        let member = Member {
            dirty,
            out,
            keep: None,
            keep_pause: RETRY_FIRST,
            aged: None,
            alarm: None,
            retry: None,
            stalled: None,
            stall_pause: 0,
            held: 0,
            serial: self.joined,
        };
        self.joined += 1;
        self.members.insert(id, member);
    }

    /// Removes a file that is gone. Returns the reference that kept it, for the caller to drop
    /// after it has released the lock.
    pub fn leave(&mut self, id: u32) -> Option<std::sync::Arc<dyn WriteOut>> {
        self.set_aged(id, None);
        self.set_alarm(id, None);
        self.flush_later.remove(&id);
        let kept = self.members.remove(&id).and_then(|m| m.keep);
        if self.flush.len() > 2 * self.members.len() + 16 {
            // Drops entries of files that have left, and all but the first of any other file.
            let mut seen = std::collections::HashSet::new();
            self.flush.retain(|id| self.members.contains_key(id) && seen.insert(*id));
        }
        kept
    }

    pub fn is_empty(&self) -> bool {
        self.members.is_empty() && self.stays == 0
    }

    fn set_aged(&mut self, id: u32, at: Option<Nanos>) {
        let Some(member) = self.members.get_mut(&id) else { return };
        if let Some(old) = std::mem::replace(&mut member.aged, at) {
            let there = self.aged.remove(&(old, id));
            debug_assert!(there, "Q-b: file {id} is not queued at {old}");
        }
        self.aged.extend(at.map(|at| (at, id)));
    }

    fn set_alarm(&mut self, id: u32, at: Option<Nanos>) {
        let Some(member) = self.members.get_mut(&id) else { return };
        if let Some(old) = std::mem::replace(&mut member.alarm, at) {
            let there = self.alarms.remove(&(old, id));
            debug_assert!(there, "Q-b: file {id} has no alarm at {old}");
        }
        self.alarms.extend(at.map(|at| (at, id)));
    }

    /// A file has become dirty: queues it by age, unless it is queued or waits for a retry.
    pub fn dirtied(&mut self, id: u32, since: Nanos) {
        self.end_stall(id);
        let Some(member) = self.members.get_mut(&id) else { return };
        member.dirty.enter_queue();
        if member.retry.is_none() && member.aged.is_none() {
            self.set_aged(id, Some(since));
        }
    }

    /// A stalled file may be writable again: queues it by age.
    pub fn end_stall(&mut self, id: u32) {
        let Some(member) = self.members.get_mut(&id) else { return };
        member.dirty.set_stalled(false);
        if member.stalled.take().is_some() {
            self.requeue(id);
        }
    }

    /// Sets the timer of a file, unless it expires sooner already.
    pub fn look_by(&mut self, id: u32, at: Nanos) {
        let sooner = self.members.get(&id).is_some_and(|m| m.alarm.is_none_or(|old| at < old));
        if sooner {
            self.set_alarm(id, Some(at));
        }
    }

    /// A write-out of the file has failed: takes it off the queue by age, and sets its retry timer.
    pub fn failed(&mut self, id: u32, now: Nanos) {
        let Some(member) = self.members.get_mut(&id) else { return };
        let first = Retry { at: now + RETRY_FIRST, pause: RETRY_FIRST, tried: false };
        let retry = member.retry.get_or_insert(first);
        if retry.tried {
            retry.pause = (retry.pause * 2).min(RETRY_LAST);
            (retry.at, retry.tried) = (now + retry.pause, false);
        }
        let at = retry.at;
        member.dirty.set_stalled(false);
        member.stalled = None;
        self.set_aged(id, None);
        self.set_alarm(id, Some(at));
    }

    /// Nothing of the file is failed any more.
    pub fn healed(&mut self, id: u32) {
        let Some(member) = self.members.get_mut(&id) else { return };
        if member.retry.take().is_some() {
            self.requeue(id);
        }
    }

    /// Queues a visited file again, by its oldest dirty block.
    pub fn requeue(&mut self, id: u32) {
        let Some(member) = self.members.get(&id) else { return };
        let oldest = match member.dirty.oldest() {
            None => member.dirty.leave_queue(),
            some => some,
        };
        let waits = member.retry.is_some() || member.stalled.is_some();
        self.set_aged(id, oldest.filter(|_| !waits));
        debug_assert!(
            self.is_in_order(id),
            "Z3: file {id}, dirty since {oldest:?}, waits: {waits}"
        );
    }

    /// Whether a file is queued, or waits, or was clean: then the next writer queues it.
    fn is_in_order(&self, id: u32) -> bool {
        let Some(member) = self.members.get(&id) else { return true };
        let waits = member.retry.is_some() || member.stalled.is_some();
        let queued = member.aged.is_some_and(|at| self.aged.contains(&(at, id)));
        queued || waits || !member.dirty.is_queued()
    }

    /// Queues a file after a visit; stalls it if that wrote nothing of what was due (Q-e).
    pub fn looked_at(&mut self, id: u32, now: Nanos, outcome: Outcome) {
        let Some(member) = self.members.get_mut(&id) else { return };
        let dirty = &member.dirty;
        let left = dirty.oldest().is_some_and(|since| since <= outcome.until);
        if outcome.wrote || !left {
            member.stall_pause = 0;
        } else if member.retry.is_none() {
            dirty.set_stalled(true);
            // A task that changes the file from here on sees that it is stalled.
            if dirty.changes() == outcome.seen {
                let pause = (member.stall_pause * 2).clamp(STALL_FIRST, STALL_LAST);
                (member.stall_pause, member.stalled) = (pause, Some(now + pause));
                self.look_by(id, now + pause);
            } else {
                dirty.set_stalled(false);
            }
        }
        self.requeue(id);
    }

    /// When the next file is due; `u64::MAX` for never.
    pub fn next_look(&self, expire: Nanos) -> Nanos {
        let aged = self.aged.first().map_or(u64::MAX, |&(since, _)| since.saturating_add(expire));
        let alarm = self.alarms.first().map_or(u64::MAX, |&(at, _)| at);
        let flush = if self.flush_later.is_empty() { u64::MAX } else { self.flush_at };
        aged.min(alarm).min(flush)
    }

    /// A file that is due.
    pub fn due(&mut self, now: Nanos, expire: Nanos) -> Option<Look> {
        if !self.flush_later.is_empty() && self.flush_at <= now {
            for id in std::mem::take(&mut self.flush_later) {
                let member = self.members.get(&id);
                if member.is_some_and(|m| !m.dirty.flush_listed.swap(true, Ordering::SeqCst)) {
                    self.wants_flush(id, true, false);
                }
            }
        }
        loop {
            let look = if let Some(&(_, id)) = self.alarms.first().filter(|&&(at, _)| at <= now) {
                self.set_alarm(id, None);
                self.alarm_of(id, now)
            } else {
                let &(since, id) = self.aged.first()?;
                if since.saturating_add(expire) > now {
                    return None;
                }
                self.look(id, Why::Age)
            };
            if look.is_some() {
                return look;
            }
        }
    }

    fn alarm_of(&mut self, id: u32, now: Nanos) -> Option<Look> {
        let mut why = Why::Alarm;
        let member = self.members.get_mut(&id)?;
        if let Some(retry) = &mut member.retry {
            if retry.at <= now {
                // Schedules the next retry already, in case this one neither fails nor succeeds.
                (retry.at, retry.tried, why) = (now + retry.pause, true, Why::Retry);
            }
            let at = retry.at;
            self.set_alarm(id, Some(at));
        } else if let Some(at) = member.stalled {
            match at <= now {
                true => self.end_stall(id),
                false => self.set_alarm(id, Some(at)),
            }
        }
        self.look(id, why)
    }

    fn look(&mut self, id: u32, why: Why) -> Option<Look> {
        let member = self.members.get_mut(&id)?;
        let Some(out) = member.out.upgrade() else {
            // The file is being dropped, which discards its dirty blocks.
            self.set_aged(id, None);
            self.set_alarm(id, None);
            return None;
        };
        member.held += 1;
        let (kept, waits) = (member.keep.is_some(), member.retry.is_some());
        let checked_out = CheckedOut { id, serial: member.serial };
        Some(Look { id, checked_out, why, dirty: member.dirty.clone(), out, kept, waits })
    }

    /// The file with the oldest dirty block after `after`, and its position.
    pub fn next_aged(&mut self, mut after: (Nanos, u32)) -> Option<((Nanos, u32), Look)> {
        loop {
            let from = (std::ops::Bound::Excluded(after), std::ops::Bound::Unbounded);
            let &place = self.aged.range(from).next()?;
            if let Some(look) = self.look(place.1, Why::Age) {
                return Some((place, look));
            }
            after = place;
        }
    }

    // ---- flushes ----

    /// The file has blocks that wait for a flush. `is_first`: it was not marked as listed, so it
    /// must be listed. `much`: it is to be flushed before the others. A file that is listed already
    /// is listed again for that unless the list is long.
    pub fn wants_flush(&mut self, id: u32, is_first: bool, much: bool) {
        let is_short = self.flush.len() <= 2 * self.members.len();
        if much && (is_first || is_short) {
            self.flush.push_front(id);
        } else if is_first {
            self.flush.push_back(id);
        }
    }

    /// The flush of the file failed and lost nothing: its blocks wait for the next one. Lists it
    /// again after a pause, which doubles while flushes are refused (Q-e).
    pub fn flush_later(&mut self, id: u32, now: Nanos) {
        if self.flush_later.is_empty() {
            self.flush_pause = (2 * self.flush_pause).clamp(FLUSH_FIRST, FLUSH_LAST);
            self.flush_at = now + self.flush_pause;
        }
        if self.members.contains_key(&id) {
            self.flush_later.insert(id);
        }
    }

    /// A flush worked after some were refused: lists their files at once.
    pub fn end_refusals(&mut self) {
        (self.flush_pause, self.flush_at) = (0, 0);
    }

    /// The next file to flush, and its bytes.
    pub fn next_flush(&mut self) -> Option<(CheckedOut, std::sync::Arc<dyn WriteOut>, u64)> {
        loop {
            let id = self.flush.pop_front()?;
            let Some(member) = self.members.get_mut(&id) else { continue };
            // Cleared before the bytes are read: blocks kept from now on list the file again.
            member.dirty.flush_listed.store(false, Ordering::SeqCst);
            let bytes = member.dirty.unflushed.load(Ordering::SeqCst).max(0) as u64;
            if let Some(out) = member.out.upgrade().filter(|_| bytes > 0) {
                member.held += 1;
                return Some((CheckedOut { id, serial: member.serial }, out, bytes));
            }
        }
    }

    // ---- files checked out: from `due`, `next_aged` and `next_flush` until they are released ----

    /// Releases a file. Does nothing if it has left: another file may have its number by now.
    pub fn release(&mut self, checked_out: CheckedOut) {
        let member = self.members.get_mut(&checked_out.id);
        if let Some(member) = member.filter(|member| member.serial == checked_out.serial) {
            assert!(member.held > 0, "Q-d: file {} is not checked out", checked_out.id);
            member.held -= 1;
        }
    }

    pub fn is_held(&self, id: u32) -> bool {
        self.members.get(&id).is_some_and(|m| m.held > 0)
    }

    // ---- files without openers ----

    /// Keeps the file alive until all of it is durable.
    pub fn keep(&mut self, id: u32, out: std::sync::Arc<dyn WriteOut>, now: Nanos) {
        if let Some(member) = self.members.get_mut(&id) {
            (member.keep, member.keep_pause) = (Some(out), RETRY_FIRST);
            self.look_by(id, now);
        }
    }

    /// Stops keeping the file. Returns the reference that kept it, for the caller to drop after it
    /// has released the lock.
    pub fn let_go(&mut self, id: u32) -> Option<std::sync::Arc<dyn WriteOut>> {
        self.members.get_mut(&id).and_then(|m| m.keep.take())
    }

    /// A kept file was visited and is not durable yet: visits it again after a doubling pause.
    pub fn look_at_kept_again(&mut self, id: u32, now: Nanos) {
        let Some(member) = self.members.get_mut(&id) else { return };
        let at = now + member.keep_pause;
        member.keep_pause = (member.keep_pause * 2).min(RETRY_LAST);
        self.look_by(id, at);
    }

    pub fn kept(&self) -> Vec<(u32, std::sync::Arc<dyn WriteOut>)> {
        let kept = |(&id, m): (&u32, &Member)| m.keep.clone().map(|out| (id, out));
        self.members.iter().filter_map(kept).collect()
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests;
