//! The files of a flush domain, as plain data: which has the oldest dirt, which asked to be looked at and
//! when, which is waiting for its next try, which has blocks that wait for a flush.
//!
//! ```text
//!             dirtied                        a write-out failed
//!   clean ────────────────▶ queued by age ───────────────────────▶ waiting for a retry
//!     ▲                          │  ▲                                │  │ again: twice the pause
//!     └──── nothing dirty ───────┘  └───── nothing failed any more ──┘◀─┘
//! ```
//! Invariants: Q-a a file with dirt is queued by age or waits for a retry. Q-b an entry of `aged` or
//! `alarms` is the one that its member names. Q-c a file that waits for a retry is not queued by age: it
//! delays nobody. Q-d a file that was handed out is released once.
//! No locks: the domain's lock is around all of it.

use crate::writeback::dirt::Dirt;
use crate::writeback::pass::WriteOut;
use forebay_base::sync::Arc;
use forebay_base::sync::atomic::Ordering;
use forebay_base::world::Nanos;
use std::collections::{BTreeSet, HashMap, VecDeque};

/// A file with data that could not be written waits this long before it is tried again.
const RETRY_FIRST: Nanos = 5_000_000;
/// And this long in the end.
const RETRY_LAST: Nanos = 1_000_000_000;
/// A look at a file that left dirt behind is not followed by the next one sooner than this.
const LOOK_AGAIN: Nanos = 1_000_000;

struct Retry {
    at: Nanos,
    pause: Nanos,
    /// It was tried since the last failure that counts.
    tried: bool,
}

struct Member {
    dirt: Arc<Dirt>,
    out: std::sync::Weak<dyn WriteOut>,
    /// Held from when its last opener has gone until nothing is owed any more.
    keep: Option<std::sync::Arc<dyn WriteOut>>,
    /// Pause until the next look at a kept file.
    keep_pause: Nanos,
    aged: Option<Nanos>,
    alarm: Option<Nanos>,
    retry: Option<Retry>,
    /// Times that the flusher has it in hand.
    held: u32,
}

/// Why a file is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Why {
    /// Its dirt has come of age.
    Age,
    /// It asked: uncached dirt, or it is kept and owes something.
    Alarm,
    /// What failed is tried again.
    Retry,
}

/// A file that is to be looked at.
pub(super) struct Look {
    pub id: u32,
    pub why: Why,
    pub dirt: Arc<Dirt>,
    pub out: std::sync::Arc<dyn WriteOut>,
    pub kept: bool,
    /// It waits for its next try.
    pub waits: bool,
}

/// See the module.
#[derive(Default)]
pub(super) struct Queue {
    members: HashMap<u32, Member>,
    aged: BTreeSet<(Nanos, u32)>,
    alarms: BTreeSet<(Nanos, u32)>,
    flush: VecDeque<u32>,
    /// A task takes files off.
    pub running: bool,
}

impl Queue {
    pub fn join(&mut self, id: u32, dirt: Arc<Dirt>, out: std::sync::Weak<dyn WriteOut>) {
        let (keep, aged, alarm, retry) = (None, None, None, None);
        let member =
            Member { dirt, out, keep, keep_pause: RETRY_FIRST, aged, alarm, retry, held: 0 };
        self.members.insert(id, member);
    }

    /// The file is gone; what kept it is for the caller to drop.
    pub fn leave(&mut self, id: u32) -> Option<std::sync::Arc<dyn WriteOut>> {
        self.set_aged(id, None);
        self.set_alarm(id, None);
        self.members.remove(&id).and_then(|m| m.keep)
    }

    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
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

    /// A file has become dirty.
    pub fn dirtied(&mut self, id: u32, since: Nanos) {
        let Some(member) = self.members.get_mut(&id) else { return };
        member.dirt.enter_queue();
        if member.retry.is_none() && member.aged.is_none() {
            self.set_aged(id, Some(since));
        }
    }

    /// The file is to be looked at by then.
    pub fn look_by(&mut self, id: u32, at: Nanos) {
        let sooner = self.members.get(&id).is_some_and(|m| m.alarm.is_none_or(|old| at < old));
        if sooner {
            self.set_alarm(id, Some(at));
        }
    }

    /// A write-out of the file has failed.
    pub fn failed(&mut self, id: u32, now: Nanos) {
        let Some(member) = self.members.get_mut(&id) else { return };
        let first = Retry { at: now + RETRY_FIRST, pause: RETRY_FIRST, tried: false };
        let retry = member.retry.get_or_insert(first);
        if retry.tried {
            retry.pause = (retry.pause * 2).min(RETRY_LAST);
            (retry.at, retry.tried) = (now + retry.pause, false);
        }
        let at = retry.at;
        self.set_aged(id, None);
        self.set_alarm(id, Some(at));
    }

    /// Nothing of the file is failed any more.
    pub fn healed(&mut self, id: u32, now: Nanos, expire: Nanos) {
        let Some(member) = self.members.get_mut(&id) else { return };
        if member.retry.take().is_some() {
            self.requeue(id, now, expire);
        }
    }

    /// Queues a file anew that was looked at, by its oldest dirt.
    pub fn requeue(&mut self, id: u32, now: Nanos, expire: Nanos) {
        let Some(member) = self.members.get(&id) else { return };
        let oldest = match member.dirt.oldest() {
            None => member.dirt.leave_queue(),
            some => some,
        };
        let waits = member.retry.is_some();
        // What is left though it has come of age is in write-out, and dirty again.
        let soon = (now + LOOK_AGAIN).saturating_sub(expire);
        let key = |since: Nanos| if since.saturating_add(expire) > now { since } else { soon };
        let at = oldest.filter(|_| !waits).map(key);
        self.set_aged(id, at);
    }

    /// When the next file is due; `u64::MAX` for never.
    pub fn next_look(&self, expire: Nanos) -> Nanos {
        let aged = self.aged.first().map_or(u64::MAX, |&(since, _)| since.saturating_add(expire));
        aged.min(self.alarms.first().map_or(u64::MAX, |&(at, _)| at))
    }

    /// A file that is due.
    pub fn due(&mut self, now: Nanos, expire: Nanos) -> Option<Look> {
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
                // In case nothing comes of it, neither a success nor a failure.
                (retry.at, retry.tried, why) = (now + retry.pause, true, Why::Retry);
            }
            let at = retry.at;
            self.set_alarm(id, Some(at));
        }
        self.look(id, why)
    }

    fn look(&mut self, id: u32, why: Why) -> Option<Look> {
        let member = self.members.get_mut(&id)?;
        let Some(out) = member.out.upgrade() else {
            // It is on its way out, and discards what it has.
            self.set_aged(id, None);
            self.set_alarm(id, None);
            return None;
        };
        member.held += 1;
        let (kept, waits) = (member.keep.is_some(), member.retry.is_some());
        Some(Look { id, why, dirt: member.dirt.clone(), out, kept, waits })
    }

    /// The file with the oldest dirt after `after`, and its place.
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

    /// The file has blocks that wait for a flush; `much`: it is to be flushed before the others.
    pub fn wants_flush(&mut self, id: u32, much: bool) {
        match much {
            true if self.flush.len() <= 2 * self.members.len() => self.flush.push_front(id),
            true => {}
            false => self.flush.push_back(id),
        }
    }

    /// The next file to flush.
    pub fn next_flush(&mut self) -> Option<(u32, std::sync::Arc<dyn WriteOut>)> {
        loop {
            let id = self.flush.pop_front()?;
            let Some(member) = self.members.get_mut(&id) else { continue };
            // In this order: what is kept from now on lists the file anew.
            member.dirt.flush_listed.store(false, Ordering::SeqCst);
            if member.dirt.unflushed.load(Ordering::SeqCst) > 0
                && let Some(out) = member.out.upgrade()
            {
                member.held += 1;
                return Some((id, out));
            }
        }
    }

    // ---- files in hand: from `due`, `next_aged` and `next_flush` until they are released ----

    pub fn release(&mut self, id: u32) {
        if let Some(member) = self.members.get_mut(&id) {
            assert!(member.held > 0, "Q-d: file {id} is not in hand");
            member.held -= 1;
        }
    }

    pub fn is_held(&self, id: u32) -> bool {
        self.members.get(&id).is_some_and(|m| m.held > 0)
    }

    // ---- files without openers ----

    /// Keeps the file alive until nothing is owed.
    pub fn keep(&mut self, id: u32, out: std::sync::Arc<dyn WriteOut>, now: Nanos) {
        if let Some(member) = self.members.get_mut(&id) {
            (member.keep, member.keep_pause) = (Some(out), RETRY_FIRST);
            self.look_by(id, now);
        }
    }

    /// It has an opener again, or owes nothing, or is given up: the caller drops what it gets, not under
    /// the queue's lock.
    pub fn let_go(&mut self, id: u32) -> Option<std::sync::Arc<dyn WriteOut>> {
        self.members.get_mut(&id).and_then(|m| m.keep.take())
    }

    /// A kept file was looked at and owes something still.
    pub fn look_at_kept_again(&mut self, id: u32, now: Nanos) {
        let Some(member) = self.members.get_mut(&id) else { return };
        let at = now + member.keep_pause;
        member.keep_pause = (member.keep_pause * 2).min(RETRY_LAST);
        self.look_by(id, at);
    }

    /// The files that are kept.
    pub fn kept(&self) -> Vec<(u32, std::sync::Arc<dyn WriteOut>)> {
        let kept = |(&id, m): (&u32, &Member)| m.keep.clone().map(|out| (id, out));
        self.members.iter().filter_map(kept).collect()
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use crate::writeback::pass::WriteOutPass;
    use forebay_base::task::FutureSlot;

    struct Idle;

    impl WriteOut for Idle {
        fn write_out(self: std::sync::Arc<Self>, _: WriteOutPass, slot: &mut FutureSlot<u64>) {
            slot.put(async { 0 });
        }
        fn flush(self: std::sync::Arc<Self>, slot: &mut FutureSlot<()>) {
            slot.put(async {});
        }
        fn is_settled(&self) -> bool {
            true
        }
    }

    #[test]
    fn a_failing_file_waits_apart_and_the_oldest_comes_first() {
        let (mut queue, out) = (Queue::default(), std::sync::Arc::new(Idle));
        let dirts: Vec<Arc<Dirt>> = (0..3).map(|_| Arc::new(Dirt::default())).collect();
        for (i, dirt) in (0u32..).zip(&dirts) {
            let weak = std::sync::Arc::downgrade(&out);
            queue.join(i, dirt.clone(), weak);
            dirt.list(0, 100 - u64::from(i), false);
            queue.dirtied(i, 100 - u64::from(i));
        }
        let order = |queue: &mut Queue| {
            let (mut at, mut ids) = ((0, 0), Vec::new());
            while let Some((place, look)) = queue.next_aged(at) {
                (at, _) = (place, ids.push(look.id));
            }
            ids
        };
        assert_eq!(order(&mut queue), [2, 1, 0]);
        assert_eq!(queue.next_look(50), 148);
        queue.failed(2, 200);
        assert_eq!(order(&mut queue), [1, 0], "Q-c");
        let mut pauses = Vec::new();
        let mut now = 200;
        for _ in 0..12 {
            let look = loop {
                now += 1_000_000;
                let due = queue.due(now, u64::MAX);
                if let Some(look) = due {
                    break look;
                }
            };
            assert_eq!((look.id, look.why), (2, Why::Retry));
            // Many bios of one try fail: one failure.
            (0..3).for_each(|_| queue.failed(2, now));
            pauses.push(queue.members[&2].retry.as_ref().unwrap().pause / RETRY_FIRST);
        }
        assert_eq!(pauses, [2, 4, 8, 16, 32, 64, 128, 200, 200, 200, 200, 200]);
        queue.healed(2, 100, 50);
        assert_eq!(order(&mut queue)[0], 2, "Q-a");
        assert!(dirts[2].unlist(0));
        queue.requeue(2, 101, 50);
        assert!(!dirts[2].is_queued() && order(&mut queue) == [1, 0]);
    }
}
