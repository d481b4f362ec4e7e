//! Tests of what a crash may leave of content that the disk has lost.

use super::super::history::{Change, Kind, NEVER, stamp};
use super::super::log::{LostBlocks, Past};
use super::super::names::{Names, Orders};
use super::*;

const INO: u64 = 5;
const BLOCK: u64 = 512;
/// The block that the disk loses: the third one of the file.
const LOST: u64 = 2;

/// Two blocks that are durable, a direct append of a block, which is acknowledged, and one of 195
/// bytes, which was dropped.
fn ran() -> Ran {
    let mut file = FileHistory::new(200, 1024);
    let first = Change::begun(11, Kind::Append, 1024..1536, 6);
    file.changes.push(Change { end: 7, latest: 7, is_direct: true, ..first });
    let second = Change::begun(29, Kind::Append, 0..NEVER, 10);
    file.changes.push(Change { len: 195, latest: 11, ..second });
    let mut past = Past::default();
    (past.has_failed, past.clock) = (true, 9);
    past.files.insert(INO, file);
    past.opens(INO);
    let orders = Orders::of(Vec::new(), Names::default()).unwrap();
    let (cuts, failed, unchecked, no_space) = (Vec::new(), [0; 3], 0, 0);
    Ran { cuts, past, orders, failed, unchecked, no_space, rotten: 0, grown: false }
}

/// The file with `lost` in its third block.
fn found(lost: u8) -> Vec<u8> {
    let durable = (0..1024).map(|at| stamp(200, at));
    durable.chain([lost; BLOCK as usize]).chain([29; 195]).collect()
}

fn judged(ran: &Ran, bytes: &[u8], time: u64) -> Checked<()> {
    Judge { ran, block: BLOCK }.content(INO, bytes, &BTreeSet::new(), (0, time))
}

/// log.U2: after all openers have closed a file with a lost block, the close of the volume records
/// a size that covers the block. Power fails before the close is acknowledged. The block is zeros,
/// or what was appended, and nothing else.
#[test]
fn lost_block_is_gap_after_crash_in_later_sync() {
    let mut ran = ran();
    let lost = || LostBlocks::from([(INO, LOST)]);
    ran.past.note_lost(lost());
    ran.past.clock = 11;
    ran.past.closes(INO);
    ran.past.note_lost(lost());
    judged(&ran, &found(0), 12).unwrap();
    judged(&ran, &found(11), 12).unwrap();
    assert!(judged(&ran, &found(9), 12).is_err(), "no client wrote that");
    assert!(judged(&ran, &found(0), 10).is_err(), "it had an opener");
    let mut other = found(0);
    other[512..1024].fill(0);
    assert!(judged(&ran, &other, 12).is_err(), "a block that is not lost");
    // A sync that left nothing out.
    let lost = LostBlocks::new();
    ran.past.syncs.push(Synced { of: Some(INO), begin: 14, end: 15, lost });
    assert!(judged(&ran, &found(0), 16).is_err(), "it was written anew");
}

/// log.U2: while an opener of the time of the loss has the file open, no record has a size that
/// covers the lost block.
#[test]
fn lost_block_is_no_gap_while_file_has_opener() {
    let mut ran = ran();
    ran.past.opens(INO);
    ran.past.closes(INO);
    ran.past.note_lost(LostBlocks::from([(INO, LOST)]));
    assert!(judged(&ran, &found(0), 12).is_err());
    ran.past.closes(INO);
    assert!(judged(&ran, &found(0), 12).is_err(), "nothing is lost any more");
}
