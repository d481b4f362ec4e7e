//! Tests of the queue.

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
        // Many bios of one try fail: they count as one failure.
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
    // A write-out of the file has ended, or a folio became dirty: the file is retried at once.
    assert!(sets[0].is_stalled());
    queue.end_stall(0);
    assert_eq!(queue.due(now, expire).map(|look| look.id), Some(0), "Q-a");
    queue.looked_at(0, now, outcome(now, false));
    assert!(sets[0].is_stalled() && sets[0].list(9, now, false).fresh);
    queue.dirtied(0, now);
    assert_eq!(queue.due(now, expire).map(|look| look.id), Some(0), "the oldest first");
    // The file has changed during the visit: it is not stalled.
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
        queue.wants_flush(id, true, false);
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
    // In two steps, neither of which has `much` bytes alone.
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

/// The story: a file was marked as listed for a flush and was in no list, because its blocks were
/// much of the window and the list was long with files that had left. No later block listed it.
#[test]
fn file_with_much_to_flush_is_listed_in_long_list() {
    use crate::config::Config;
    use crate::dirty::control::DirtyControl;
    let control = DirtyControl::new(&Config::with_budget(1 << 20), 1 << 20);
    let (domain, out) = (control.domain(None), std::sync::Arc::new(Idle));
    let sets: Vec<Arc<DirtyFolios>> = (0..9).map(|_| Arc::default()).collect();
    for (id, dirty) in (0u32..).zip(&sets) {
        let weak: std::sync::Weak<Idle> = std::sync::Arc::downgrade(&out);
        domain.queue().join(id, dirty.clone(), weak);
        domain.keep_unflushed(id, dirty, 4096, 16384);
    }
    let next = || domain.queue().next_flush().map(|(checked_out, ..)| checked_out.id);
    assert_eq!(next(), Some(0));
    (1..9).for_each(|id| domain.leave(id));
    domain.keep_unflushed(0, &sets[0], 16384, 16384);
    domain.keep_unflushed(0, &sets[0], 4096, 16384);
    assert_eq!(next(), Some(0), "it is marked as listed");
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
