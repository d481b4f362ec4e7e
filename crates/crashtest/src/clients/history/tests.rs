//! Tests that histories find each violation, and report nothing else.

use super::*;

fn over(id: u8, kind: Kind, range: Range<u64>, begin: u64, end: u64) -> Change {
    Change { end, latest: end, ..Change::begun(id, kind, range, begin) }
}

fn given_up(change: Change) -> Change {
    Change { latest: change.end, end: NEVER, ..change }
}

fn bytes(id: u8, range: Range<u64>) -> Vec<u8> {
    range.map(|at| stamp(id, at)).collect()
}

fn file(changes: Vec<Change>) -> FileHistory {
    let mut file = FileHistory::new(200, 1024);
    file.changes.extend(changes);
    file
}

fn crashed(from: u64, to: u64) -> Span {
    Span { from, to, crashed: true }
}

/// history.C2: before the sync either content may be found, after it only the new one.
#[test]
fn write_synced_is_not_found_undone() {
    let file = file(vec![over(3, Kind::Write, 0..512, 10, 12)]);
    let (old, new) = (bytes(200, 0..512), bytes(3, 0..512));
    for found in [&old, &new] {
        file.check(0, found, 512, crashed(5, 20)).unwrap();
    }
    file.check(0, &new, 512, crashed(14, 20)).unwrap();
    assert!(file.check(0, &old, 512, crashed(14, 20)).is_err());
    // The new content is not found before the write began, and other bytes never are.
    assert!(file.check(0, &new, 512, crashed(5, 9)).is_err());
    assert!(file.check(0, &bytes(9, 0..512), 512, crashed(5, 20)).is_err());
}

/// history.C2: two writes fill the halves of a block one after the other. The block is as it was at
/// one instant: never with the second half alone.
#[test]
fn block_of_two_instants_is_found() {
    let file =
        file(vec![over(3, Kind::Write, 0..256, 10, 12), over(4, Kind::Write, 256..512, 13, 15)]);
    let mixed = |a, b| [bytes(a, 0..256), bytes(b, 256..512)].concat();
    for (a, b) in [(200, 200), (3, 200), (3, 4)] {
        file.check(0, &mixed(a, b), 512, crashed(2, 20)).unwrap();
    }
    assert!(file.check(0, &mixed(200, 4), 512, crashed(2, 20)).is_err());
}

/// A dropped change may be found or not, but not over one that began later and was acknowledged.
#[test]
fn dropped_write_over_later_one_is_found() {
    let dropped = given_up(over(ZEROS, Kind::Zero, 0..512, 10, 12));
    let file = file(vec![dropped, over(4, Kind::Write, 0..512, 14, 16)]);
    for (id, to) in [(200, 14), (ZEROS, 14), (4, 20)] {
        let found = if id == ZEROS { vec![0; 512] } else { bytes(id, 0..512) };
        file.check(0, &found, 512, crashed(2, to)).unwrap();
    }
    let live = Span { from: 18, to: 20, crashed: false };
    assert!(file.check(0, &[0; 512], 512, live).is_err());
    assert!(file.check(0, &[0; 512], 512, crashed(17, 20)).is_err());
}

/// history.C1: content that one read has shown, a later read does not take back.
#[test]
fn older_read_after_newer_is_found() {
    let mut file = file(vec![Change::begun(3, Kind::Write, 0..512, 10)]);
    let (old, new) = (bytes(200, 0..512), bytes(3, 0..512));
    let span = |from, to| Span { from, to, crashed: false };
    file.check(0, &old, 512, span(11, 13)).unwrap();
    file.check(0, &new, 512, span(14, 16)).unwrap();
    file.note_read(0, &new, 512, 16);
    assert!(file.check(0, &old, 512, span(17, 18)).is_err());
    // A crash may take it back, because the write was not acknowledged.
    file.check(0, &old, 512, crashed(2, 20)).unwrap();
}

/// history.C3, history.C4: a size is one that an order of the changes explains, and zeros below it
/// are those that a change left.
#[test]
fn size_without_bytes_is_found() {
    let file = file(vec![
        over(3, Kind::Write, 1024..2048, 10, 12),
        over(ZEROS, Kind::Truncate, 512..NEVER, 20, 22),
    ]);
    for size in [1024, 1536, 2048] {
        file.check_size(size, crashed(2, 15)).unwrap();
    }
    assert!(file.check_size(2049, crashed(2, 15)).is_err());
    assert!(file.check_size(1024, crashed(14, 15)).is_err());
    file.check_size(512, crashed(14, 25)).unwrap();
    assert!(file.check_size(2048, crashed(24, 25)).is_err());
    let lost = [bytes(200, 0..1024), vec![0; 512]].concat();
    assert!(file.check(0, &lost, 512, crashed(2, 15)).is_err());
}

/// The same range for two acknowledged appends is found.
#[test]
fn append_range_given_twice_is_found() {
    let once = |at: u64| over(4, Kind::Append, at..at + 100, 11, 14);
    let with = |at| file(vec![over(3, Kind::Append, 1024..1100, 10, 13), once(at)]);
    with(1100).check_append(2).unwrap();
    assert!(with(1024).check_append(2).is_err());
}

/// Content that an earlier life has left is compared byte by byte; an overwrite may be there or
/// not.
#[test]
fn content_of_earlier_life_stays_until_it_is_overwritten() {
    let left: Vec<u8> = (0..32).map(|n| n * 7).collect();
    let mut file = FileHistory::of(240, Arc::new(left.clone()));
    let span = Span { from: 2, to: 9, crashed: true };
    assert!(file.check(0, &left, 16, span).is_ok());
    let mut other = left.clone();
    other[3] ^= 1;
    assert!(file.check(0, &other, 16, span).is_err());
    file.changes.push(over(5, Kind::Write, 0..16, 4, 6));
    assert!(file.check(0, &left, 16, span).is_ok());
    assert!(file.check(0, &left, 16, Span { from: 7, ..span }).is_err());
}

/// A dropped append was shown by a read, and later a write far behind it left a gap. The append has
/// no known place, so it does not claim the gap in its last block.
#[test]
fn dropped_append_that_was_read_leaves_gap_behind_it() {
    let dropped = given_up(Change { len: 100, ..over(3, Kind::Append, 0..NEVER, 10, 12) });
    let mut file = file(vec![dropped, over(4, Kind::Write, 4096..4608, 16, 18)]);
    let found = [vec![3; 100], vec![0; 412]].concat();
    file.note_read(1024, &found[..100], 512, 14);
    let now = Span { from: 19, to: 20, crashed: false };
    file.check(1024, &found, 512, now).unwrap();
    assert!(file.check(1024, &[vec![9; 100], vec![0; 412]].concat(), 512, now).is_err());
}

/// A truncate takes effect between two blocks of a write that runs at the same time: the later
/// block makes the file longer again, and the earlier one is a gap. A truncate before or after the
/// write leaves no gap.
#[test]
fn write_that_truncate_divides_leaves_gap_before_its_later_blocks() {
    let cut = |begin, end| over(ZEROS, Kind::Truncate, 512..NEVER, begin, end);
    let found = [vec![0; 512], bytes(3, 1024..1536)].concat();
    let appended = [vec![0; 512], vec![3; 512]].concat();
    let now = Span { from: 30, to: 31, crashed: false };
    for (kind, found) in [(Kind::Write, &found), (Kind::Append, &appended)] {
        let at_once = file(vec![over(3, kind, 512..1536, 10, 16), cut(12, 14)]);
        at_once.check(512, found, 512, now).unwrap();
        // One block takes effect as a whole.
        assert!(at_once.check(512, found, 2048, now).is_err(), "{kind:?}");
        for cut in [cut(6, 8), cut(18, 20)] {
            let apart = file(vec![over(3, kind, 512..1536, 10, 16), cut]);
            assert!(apart.check(512, found, 512, now).is_err(), "{kind:?}");
        }
    }
}
