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
//! out is released once. Q-e if a visit writes nothing, the pause before the next one doubles: the
//! flusher does not spin.
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
    /// Number of this membership, among all so far.
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
    /// The visit was to write blocks dirty since then or before.
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
    /// The flusher of the domain runs.
    pub running: bool,
    /// How many callers want it to run on without files.
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

    /// Removes a file that is gone. The caller drops what kept it, without the lock.
    pub fn leave(&mut self, id: u32) -> Option<std::sync::Arc<dyn WriteOut>> {
        self.set_aged(id, None);
        self.set_alarm(id, None);
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
                // The next retry is set already, in case this one ends neither way.
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

    /// The file has blocks that wait for a flush; `much`: it is to be flushed before the others.
    pub fn wants_flush(&mut self, id: u32, much: bool) {
        match much {
            true if self.flush.len() <= 2 * self.members.len() => self.flush.push_front(id),
            true => {}
            false => self.flush.push_back(id),
        }
    }

    /// The next file to flush, and its bytes.
    pub fn next_flush(&mut self) -> Option<(CheckedOut, std::sync::Arc<dyn WriteOut>, u64)> {
        loop {
            let id = self.flush.pop_front()?;
            let Some(member) = self.members.get_mut(&id) else { continue };
            // Before the bytes are read: blocks kept from now on list the file again.
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

    /// Stops keeping the file. The caller drops what kept it, without the lock.
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
mod tests {
    use super::*;
    use crate::dirty::pass::WriteOutPass;
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
    fn failing_file_waits_and_oldest_is_first() {
        let (mut queue, out) = (Queue::default(), std::sync::Arc::new(Idle));
        let sets: Vec<Arc<DirtyFolios>> = (0..3).map(|_| Arc::default()).collect();
        for (i, dirty) in (0u32..).zip(&sets) {
            let weak = std::sync::Arc::downgrade(&out);
            queue.join(i, dirty.clone(), weak);
            dirty.list(0, 100 - u64::from(i), false);
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
        queue.healed(2);
        assert_eq!(order(&mut queue)[0], 2, "Q-a");
        assert!(sets[2].unlist(0));
        queue.requeue(2);
        assert!(!sets[2].is_queued() && order(&mut queue) == [1, 0]);
    }

    /// The story: a file whose old dirty blocks could not be written was due again a millisecond
    /// later each time, and at once while the flusher worked above the limits.
    #[test]
    fn stalled_file_is_visited_with_doubling_pause() {
        let (mut queue, out) = (Queue::default(), std::sync::Arc::new(Idle));
        let sets: Vec<Arc<DirtyFolios>> = (0..2).map(|_| Arc::default()).collect();
        for (i, dirty) in (0u32..).zip(&sets) {
            queue.join(i, dirty.clone(), std::sync::Arc::downgrade(&out) as _);
            dirty.list(0, 100 + u64::from(i), false);
            queue.dirtied(i, 100 + u64::from(i));
        }
        let (mut now, expire, mut pauses) = (1000, 50, Vec::new());
        let outcome = |now: Nanos, wrote| Outcome { until: now - expire, seen: 1, wrote };
        for _ in 0..14 {
            // The other file, 1, is due each time.
            while let look = queue.due(now, expire).expect("file 1 is due")
                && (look.id, look.why) != (0, Why::Age)
            {
                match look.why {
                    Why::Age => queue.looked_at(1, now, outcome(now, true)),
                    _ => queue.requeue(look.id),
                }
                now = queue.members[&0].stalled.unwrap_or(now);
            }
            queue.looked_at(0, now, outcome(now, false));
            pauses.push((queue.members[&0].stalled.unwrap() - now) / STALL_FIRST);
            let next = queue.next_aged((0, 0)).map(|(_, look)| look.id);
            assert_eq!(next, Some(1), "Q-c");
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1000, 1000, 1000, 1000], "Q-e");
        // A write-out of it has ended, or a folio became dirty: it is retried at once.
        assert!(sets[0].is_stalled());
        queue.end_stall(0);
        assert_eq!(queue.due(now, expire).map(|look| look.id), Some(0), "Q-a");
        queue.looked_at(0, now, outcome(now, false));
        assert!(sets[0].is_stalled() && sets[0].list(9, now, false).fresh);
        queue.dirtied(0, now);
        assert_eq!(queue.due(now, expire).map(|look| look.id), Some(0), "the oldest first");
        // Something has changed during the visit: it is not stalled.
        queue.looked_at(0, now, outcome(now, false));
        assert_eq!(queue.due(now, expire).map(|look| look.id), Some(0));
        queue.looked_at(0, now, outcome(now, true));
        assert!(!sets[0].is_stalled() && queue.members[&0].stall_pause == 0);
    }

    /// The story: the flusher released a file that had left, when another file had its number. It
    /// took that file for the one it had checked out, and ended its work.
    #[test]
    fn checked_out_file_that_left_differs_from_successor() {
        let (mut queue, out) = (Queue::default(), std::sync::Arc::new(Idle));
        let join = |queue: &mut Queue| {
            let dirty: Arc<DirtyFolios> = Arc::default();
            queue.join(7, dirty.clone(), std::sync::Arc::downgrade(&out) as _);
            dirty.list(0, 100, false);
            queue.dirtied(7, 100);
        };
        join(&mut queue);
        let old = queue.due(1000, 50).expect("its oldest block is due");
        queue.leave(7);
        join(&mut queue);
        queue.release(old.checked_out);
        let new = queue.due(1000, 50).expect("its oldest block is due");
        queue.release(old.checked_out);
        assert!(queue.is_held(7), "Q-d");
        queue.release(new.checked_out);
        assert!(!queue.is_held(7));
    }

    /// The story: files that had left stayed in the queue of flushes while none was urgent.
    #[test]
    fn file_that_left_does_not_wait_for_flush() {
        let (mut queue, out) = (Queue::default(), std::sync::Arc::new(Idle));
        for id in 0..1000 {
            queue.join(id, Arc::default(), std::sync::Arc::downgrade(&out) as _);
            queue.wants_flush(id, false);
            queue.leave(id);
        }
        assert!(queue.flush.len() <= 17, "{}", queue.flush.len());
    }

    /// The window of unflushed blocks is shared: a file that holds much of it is flushed first,
    /// however late it arrived. Else its blocks would keep the others' frames.
    #[test]
    fn file_holding_much_of_window_is_flushed_first() {
        use crate::config::Config;
        use crate::dirty::control::DirtyControl;
        let control = DirtyControl::new(&Config::with_budget(1 << 20), 1 << 20);
        let (domain, out) = (control.domain(None), std::sync::Arc::new(Idle));
        let sets: Vec<Arc<DirtyFolios>> = (0..3).map(|_| Arc::default()).collect();
        for (id, dirty) in (0u32..).zip(&sets) {
            let weak: std::sync::Weak<Idle> = std::sync::Arc::downgrade(&out);
            domain.queue().join(id, dirty.clone(), weak);
            domain.keep_unflushed(id, dirty, 4096, 16384);
        }
        // In two steps, of which neither is much.
        domain.keep_unflushed(2, &sets[2], 8192, 16384);
        domain.keep_unflushed(2, &sets[2], 8192, 16384);
        let next = || domain.queue().next_flush().map(|(checked_out, ..)| checked_out.id);
        let (first, _, bytes) = domain.queue().next_flush().expect("three wait");
        assert_eq!((first.id, bytes), (2, 20480));
        assert!(domain.queue().is_held(2) && !domain.queue().is_held(0));
        domain.queue().release(first);
        assert!(!domain.queue().is_held(2));
        assert_eq!((next(), next()), (Some(0), Some(1)));
    }

    /// A file that is closed with dirty blocks, because its device is given up, is removed from all
    /// lists. Else the flusher would search for it for ever, and write no other file.
    #[test]
    fn q_b_removed_file_is_not_due() {
        let (mut queue, out) = (Queue::default(), std::sync::Arc::new(Idle));
        for id in 0..3 {
            let (dirty, weak) = (Arc::new(DirtyFolios::default()), std::sync::Arc::downgrade(&out));
            dirty.list(0, 10, false);
            queue.join(id, dirty, weak);
            queue.dirtied(id, 10);
        }
        queue.look_by(1, 5);
        for id in [0, 1] {
            assert!(queue.leave(id).is_none());
        }
        assert_eq!(queue.next_look(50), 60);
        assert_eq!(queue.next_aged((0, 0)).map(|(_, look)| look.id), Some(2));
        queue.leave(2);
        assert_eq!((queue.next_look(50), queue.is_empty()), (u64::MAX, true));
    }
}
