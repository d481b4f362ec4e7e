//! Requests of a cache above, which keeps the bytes itself. Our cache holds what is not durable,
//! and nothing that the other one has.

use super::harness::{Lab, NONE};
use forebay_base::{ErrorKind, IoFlags};
use forebay_block::BioOp;
use forebay_cache::{Config, State};
use forebay_iomap::identity::Identity;
use forebay_sim::{Fault, FaultRule};
use std::collections::BTreeSet;
use std::sync::Arc;

const ABOVE: IoFlags = IoFlags::HELD_ABOVE;

/// Write-back is the ordinary one: nothing is written out early, and what is written twice reaches
/// the disk once.
#[test]
fn held_above_write_stays_until_its_flush_and_no_longer() {
    let lab = Lab::plain(4096);
    lab.run(async {
        lab.disk.clear_log();
        lab.write(0, &[1; 16 * 4096], ABOVE).await;
        lab.sleep_ms(500).await;
        lab.write(0, &[2; 8 * 4096], ABOVE).await;
        assert_eq!((lab.writes(), lab.blocks(State::Dirty).len()), ((0, 0), 16));
        lab.sync().await.unwrap();
        assert_eq!(lab.writes().0, 16 * 4096);
        assert_eq!(lab.blocks(State::Uptodate), BTreeSet::new());
        assert!(lab.disk.peek_durable(0, 8 * 4096) == [2; 8 * 4096]);
        assert!(lab.disk.peek_durable(8 * 4096, 8 * 4096) == [1; 8 * 4096]);
    });
}

/// A part of a block is written: the block is read first, and goes like the others.
#[test]
fn held_above_partial_block_write_leaves_nothing() {
    let lab = Lab::plain(4096);
    lab.run(async {
        lab.write(100, &[7; 9000], ABOVE).await;
        assert_eq!(lab.read(0, 100, ABOVE).await, (0..100).map(Lab::old).collect::<Vec<_>>());
        assert_eq!(lab.blocks(State::Dirty).len(), 3, "a read drops nothing that is dirty");
        lab.sync().await.unwrap();
        assert_eq!(lab.blocks(State::Uptodate), BTreeSet::new());
        assert_eq!(lab.read(99, 2, NONE).await, [Lab::old(99), 7]);
    });
}

/// Blocks that were cached before, or are used by an ordinary request afterwards, stay.
#[test]
fn held_above_write_leaves_blocks_of_other_users_cached() {
    let lab = Lab::plain(4096);
    lab.run(async {
        // Not at the start of the file, so nothing is read ahead.
        let (at, first) = (1 << 20, 256);
        lab.read(at, 2 * 4096, NONE).await;
        lab.write(at, &[1; 8 * 4096], ABOVE).await;
        lab.write(at + 4 * 4096, &[2; 100], NONE).await;
        lab.sync().await.unwrap();
        let kept = [0, 1, 4].map(|block| first + block);
        assert_eq!(lab.blocks(State::Uptodate), BTreeSet::from(kept));
        assert_eq!(lab.blocks(State::HeldAbove), BTreeSet::new());
    });
}

/// A read of the library that finds such blocks in the cache makes them stay, as a copying read
/// does.
#[test]
fn held_above_blocks_stay_when_an_ordinary_read_hits_them() {
    let lab = Lab::plain(4096);
    lab.run(async {
        let (at, first) = (1 << 20, 256);
        lab.write(at, &[1; 4 * 4096], ABOVE).await;
        lab.read(at, 2 * 4096, ABOVE).await;
        lab.read(at, 2 * 4096, IoFlags::UNCACHED).await;
        lab.read(at + 4096, 4096, NONE).await;
        lab.sync().await.unwrap();
        assert_eq!(lab.blocks(State::Uptodate), BTreeSet::from([first + 1]));
    });
}

/// A failed flush may have lost the blocks: as with ordinary writes they are kept for that, and
/// written again.
#[test]
fn held_above_blocks_survive_a_failed_flush() {
    let lab = Lab::plain(4096);
    lab.run(async {
        for round in 1..10u8 {
            lab.write(0, &[round; 16 * 4096], ABOVE).await;
            lab.disk.inject(FaultRule::on(BioOp::Flush, Fault::Fail(ErrorKind::Io)));
            assert!(lab.sync().await.is_err());
            assert_eq!(lab.blocks(State::Dirty).len(), 16);
            lab.sync().await.unwrap();
            assert!(lab.disk.peek_durable(0, 16 * 4096) == [round; 16 * 4096]);
            assert_eq!(lab.blocks(State::Uptodate), BTreeSet::new(), "round {round}");
        }
    });
}

/// The block in which a file ends stays: each short append would read it again.
#[test]
fn held_above_block_with_the_end_of_file_stays() {
    let (config, size) = (Config::with_budget(8 << 20), (1 << 20) - 1000);
    let identity = |disk| -> Arc<dyn forebay_iomap::MapOps> { Arc::new(Identity::new(disk)) };
    let lab = Lab::with_map(config, 512, Lab::sim(1 << 20), size, identity);
    lab.run(async {
        let at = size - 3000;
        lab.write(at, &[5; 3000], ABOVE).await;
        lab.sync().await.unwrap();
        assert_eq!(lab.blocks(State::Uptodate), BTreeSet::from([size / 512]));
    });
}

/// What ordinary requests have used stays; what only came along, as by read-ahead, is handed over.
#[test]
fn held_above_read_leaves_nothing_of_its_own() {
    let lab = Lab::plain(4096);
    lab.run(async {
        let old = |at: u64, len: usize| (at..at + len as u64).map(Lab::old).collect::<Vec<_>>();
        lab.read(0, 4 * 4096, NONE).await;
        lab.sleep_ms(50).await;
        let touched = lab.blocks(State::Referenced);
        assert!(lab.blocks(State::Uptodate).len() > touched.len(), "something was read ahead");
        for (at, len) in [(0, 1 << 20), (2 << 20, 128 << 10), (3 << 20, 4096)] {
            assert_eq!(lab.read(at, len, ABOVE).await, old(at, len));
            lab.sleep_ms(50).await;
        }
        lab.file.close_handle(&lab.handle);
        lab.sleep_ms(50).await;
        assert_eq!(lab.residency(), (touched.clone(), touched));
    });
}
