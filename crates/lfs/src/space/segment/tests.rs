//! Tests of the phases of segments, and of the order in which segments are taken.
//!
//! No locks.

use super::*;

pub(super) fn live(segment: u32, bytes: i64) -> Deltas {
    Deltas::from([(segment, Delta { bytes, youngest: 7 })])
}

pub(super) fn phase(segments: &Segments, segment: u32) -> Phase {
    segments.get(segment).unwrap().phase
}

pub(super) fn checkpoint(segments: &mut Segments, deltas: Deltas, number: u64) -> Vec<Entry> {
    let before = segments.snapshot();
    let plan = segments.plan(&before, deltas, number, &|_| 0).unwrap();
    segments.settle(&plan, number);
    plan.entries
}

/// The story: overwrites went to places that the image had never used, although as many bytes had
/// been removed. The host had to allocate blocks for all of them, and the image grew to its full
/// size.
#[test]
fn w17_freed_segments_are_taken_before_never_written_ones() {
    let free_again = |discards: bool| {
        let mut segments = Segments::new(8);
        segments.discards = discards;
        let take = |segments: &mut Segments| segments.take(Stream::Data).unwrap();
        let taken: Vec<u32> = (0..4).map(|_| take(&mut segments)).collect();
        assert_eq!(taken, [0, 1, 2, 3]);
        [2, 1].into_iter().for_each(|segment| segments.seal(segment));
        (1..3).for_each(|number| drop(checkpoint(&mut segments, Deltas::new(), number)));
        (1..3).for_each(|number| drop(checkpoint(&mut segments, Deltas::new(), number + 2)));
        segments.discarding().into_iter().for_each(|segment| segments.give_back(segment));
        let first = take(&mut segments);
        // A write to it failed: another segment is tried.
        segments.give_back(first);
        [first, take(&mut segments), take(&mut segments)]
    };
    assert_eq!(free_again(false), [1, 2, 4], "W17");
    assert_eq!(free_again(true), [4, 5, 6], "what is discarded has no blocks any more");
}

/// The story: a segment with a bad place was freed at once after the failed write. Because of
/// segment.W17 it was also the next one to be taken.
#[test]
fn w18_segment_with_failed_write_is_taken_last() {
    let mut segments = Segments::new(3);
    let take = |segments: &mut Segments| {
        let taken = segments.take(Stream::Data).unwrap();
        segments.give_back(taken);
        segments.next = 0;
        taken
    };
    assert_eq!(take(&mut segments), 0);
    assert!(segments.fail(0) && !segments.fail(0) && !segments.fail(9));
    assert_eq!(take(&mut segments), 1, "W18");
    assert!(segments.fail(1) && segments.fail(2));
    assert_eq!(take(&mut segments), 0, "there is no other");
}

/// The story: records that were queued at a freeze got their place in a segment that the log took
/// after it. The table called that segment free. After the next opening it was given out, with
/// synced content in it.
#[test]
fn w11_segment_taken_after_freeze_is_recorded_as_open() {
    let mut segments = Segments::new(4);
    let before = segments.snapshot();
    let taken = segments.take(Stream::Log).unwrap();
    let plan = segments.plan(&before, live(taken, 4096), 1, &|_| 0).unwrap();
    let entry = plan.entries[taken as usize];
    assert_eq!((entry.state, entry.live_bytes), (SegmentState::Open, 4096));
    assert_eq!(entry.stream, Stream::Log);
}

/// The story: a segment was sealed at a freeze, became free, and was taken by the log, all before
/// the checkpoint was planned. The checkpoint then called it dead while the head of the log was in
/// it.
#[test]
fn w12_segment_taken_again_before_plan_does_not_die() {
    let mut segments = Segments::new(4);
    let taken = segments.take(Stream::Data).unwrap();
    segments.seal(taken);
    let before = segments.snapshot();
    segments.give_back(taken);
    while segments.take(Stream::Log).unwrap() != taken {}
    segments.seal(taken);
    let plan = segments.plan(&before, Deltas::new(), 1, &|_| 0).unwrap();
    assert_eq!(plan.entries[taken as usize].state, SegmentState::Sealed);
    assert!(plan.died().is_empty());
}

/// The story: a leftover run of a sealed segment was used. While the checkpoint that was to count
/// it was made, the segment passed for counted. The cleaner moved all other data out of it, and
/// then reported the segment as damaged.
#[test]
fn k21_run_not_yet_in_tree_leaves_segment_unsettled() {
    let mut segments = Segments::new(4);
    let taken = segments.take(Stream::Data).unwrap();
    segments.seal(taken);
    checkpoint(&mut segments, live(taken, 4096), 1);
    let is_settled = |segments: &Segments| segments.get(taken).unwrap().is_settled();
    assert!(is_settled(&segments));
    segments.fly(taken, 1);
    segments.fly(taken, -1);
    let before = segments.snapshot();
    assert!(!is_settled(&segments), "it is in no tree yet");
    let plan = segments.plan(&before, live(taken, 4096), 2, &|_| 0).unwrap();
    segments.settle(&plan, 2);
    assert!(is_settled(&segments));
    segments.fly(taken, 1);
    checkpoint(&mut segments, Deltas::new(), 3);
    segments.fly(taken, -1);
    let before = segments.snapshot();
    assert!(!is_settled(&segments), "it landed after the freeze before");
    let plan = segments.plan(&before, live(taken, 4096), 4, &|_| 0).unwrap();
    segments.settle(&plan, 4);
    assert!(is_settled(&segments));
}

/// A segment that was open in the stored table is sealed when the table is loaded. It is dead if
/// nothing in it is live.
#[test]
fn segment_open_at_crash_is_used_again() {
    let mut segments = Segments::new(3);
    let before = segments.take(Stream::Data).unwrap();
    let entries = checkpoint(&mut segments, Deltas::new(), 1);
    let mut segments = Segments::new(3);
    segments.load(&entries, 1).unwrap();
    segments.found(2, Stream::Log);
    assert_eq!((phase(&segments, before), segments.free()), (Phase::Dead, 1));
    checkpoint(&mut segments, Deltas::new(), 2);
    assert_eq!((phase(&segments, 2), segments.free()), (Phase::Dead, 2));
    checkpoint(&mut segments, Deltas::new(), 3);
    assert_eq!(segments.free(), 3);
    let more = [&entries[..], &entries[..1]].concat();
    assert!(segments.load(&more, 1).is_err(), "entries of more segments than there are");
}
