//! Volumes of which the device has lost content that nothing else holds. Only the files concerned
//! are affected: everything else is written, synced, read and merged into checkpoints as before.
//!
//! No locks.

mod later;
mod reported;

use crate::Volume;
use crate::tests::faults::{found, synced_at_last};
use crate::tests::read_only::{lose_block, lose_block_at_next_flush, lose_block_unnoticed};
use crate::tests::reuse::{create, open, read, setup, write};
use crate::tests::setup::Setup;
use crate::tests::sums_off::blank;
use forebay_base::buf::AlignedBuf;
use forebay_base::sim_world::SimWorld;
use forebay_base::world::World;
use forebay_base::{ErrorKind, IoFlags};
use forebay_sim::{CrashState, SimDisk};
use forebay_vfs::{
    Fallocate, FileSystem, Ino, Name, OpenFileRef, Privileges, RenameFlags, SetAttr,
};
use std::time::Duration;

const BLOCK: usize = 4096;
/// Blocks of the damaged file at its last sync; with [`Before::Beyond`] it has one.
const BLOCKS: usize = 4;
/// The block that is lost.
const LOST: u64 = 2;
const OTHERS: u8 = 12;
const ROUNDS: u8 = 20;

/// Where the content of the lost block at the last sync is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Before {
    /// In the tree.
    Tree,
    /// In the log since the newest checkpoint: in a data run.
    Log,
    /// In the log, and something older is in the tree.
    LogOverTree,
    /// A hole of the file.
    Hole,
    /// Behind its end.
    Beyond,
}

const ALL: [Before; 5] =
    [Before::Tree, Before::Log, Before::LogOverTree, Before::Hole, Before::Beyond];

fn volume_setup() -> Setup {
    Setup { volume_bytes: 16 << 20, ..setup(0) }
}

/// Runs a test on a new volume with the file "damaged". Returns the volume's setup, the disk after
/// the world was stopped, and the result.
fn on_volume<T>(
    sums: bool,
    test: impl AsyncFnOnce(&SimDisk, Volume, (Ino, OpenFileRef)) -> T,
) -> (Setup, SimDisk, T) {
    let setup = volume_setup();
    let disk = blank(&setup, sums);
    let result = disk.world().run(async {
        let volume = open(&setup, &disk).await.unwrap();
        let damaged = create(&volume, "damaged").await.unwrap();
        test(&disk, volume, damaged).await
    });
    disk.world().stop();
    (setup, disk, result)
}

/// Writes and syncs the file; returns its content.
async fn prepare(volume: &Volume, file: &OpenFileRef, before: Before) -> Vec<u8> {
    let mut content = vec![1; BLOCKS * BLOCK];
    let lost = LOST as usize * BLOCK..(LOST as usize + 1) * BLOCK;
    match before {
        Before::Tree | Before::LogOverTree => {
            write(file, 0, &content).await.unwrap();
            volume.syncfs().await.unwrap();
            volume.checkpoint().await.unwrap();
            if before == Before::LogOverTree {
                write(file, lost.start as u64, &[2; BLOCK]).await.unwrap();
                content[lost].fill(2);
            }
        }
        Before::Log => {
            volume.checkpoint().await.unwrap();
            write(file, 0, &content).await.unwrap();
        }
        Before::Hole => {
            write(file, 0, &content).await.unwrap();
            let (how, keep) = (Fallocate::PunchHole, Privileges::Keep);
            file.fallocate(how, lost.start as u64, BLOCK as u64, keep).await.unwrap();
            content[lost].fill(0);
        }
        Before::Beyond => {
            content.truncate(BLOCK);
            write(file, 0, &content).await.unwrap();
        }
    }
    volume.syncfs().await.unwrap();
    content
}

/// Asserts that reads of the lost block and syncs fail and name it, and that other blocks can be
/// read.
async fn is_lost((ino, file): (Ino, &OpenFileRef), synced: &[u8]) {
    let wanted = reads_fail((ino, file), synced).await;
    let error = file.sync(true).await.expect_err("its block is lost");
    assert!(wanted.iter().all(|part| error.to_string().contains(part)), "{error}");
}

/// Asserts that reads of the lost block fail and name it, and that other blocks can be read.
/// Returns the parts of each error.
async fn reads_fail((ino, file): (Ino, &OpenFileRef), synced: &[u8]) -> [String; 2] {
    let at = LOST * BLOCK as u64;
    let wanted = [format!("inode {}", ino.0), "bytes 8192 to 12288".to_string()];
    for flags in [IoFlags::empty(), IoFlags::DIRECT] {
        let done = file.read(at, AlignedBuf::new(BLOCK), flags).await.1;
        let error = done.expect_err("the device has lost it");
        assert_eq!(error.kind(), ErrorKind::Io);
        assert!(wanted.iter().all(|part| error.to_string().contains(part)), "{error}");
        let (bytes, done) = file.read(0, AlignedBuf::new(BLOCK), flags).await;
        assert!(done.unwrap() == BLOCK && bytes[..] == synced[..BLOCK]);
    }
    wanted
}

fn other(n: u8) -> String {
    format!("f{n}")
}

/// Other files are made, written, synced, read, and merged into a checkpoint.
async fn others_go_on(volume: &Volume, files: &mut Vec<OpenFileRef>, round: u8) {
    files.push(create(volume, &other(files.len() as u8)).await.unwrap().1);
    for (n, file) in files.iter().enumerate() {
        if n % 3 == usize::from(round) % 3 || n + 1 == files.len() {
            write(file, 0, &[100 + round; 2 * BLOCK]).await.unwrap();
            file.sync(true).await.expect("nothing of this file is lost");
        }
        assert_eq!(read(file, 2 * BLOCK).await.len(), 2 * BLOCK);
    }
    volume.checkpoint().await.expect("nothing but one file is concerned");
    assert!(volume.stopped().is_none());
}

/// The content of a file in a crash state, in which fsck must find no damage.
fn after_crash(setup: &Setup, state: &CrashState, name: &str) -> Vec<u8> {
    found(setup, &state.mount(SimWorld::new(2)), name)
}

/// Loses one block and continues. Returns the synced content of its file, a crash state of each
/// round, and the disk.
fn live_on(sums: bool, before: Before) -> (Vec<u8>, Vec<CrashState>, SimDisk) {
    let setup = volume_setup();
    let disk = blank(&setup, sums);
    let mut states = Vec::new();
    let synced = disk.world().run(async {
        let volume = open(&setup, &disk).await.unwrap();
        let mut files = Vec::new();
        for n in 0..OTHERS {
            let (_, file) = create(&volume, &other(n)).await.unwrap();
            write(&file, 0, &[100; 2 * BLOCK]).await.unwrap();
            files.push(file);
        }
        let (ino, damaged) = create(&volume, "damaged").await.unwrap();
        let synced = prepare(&volume, &damaged, before).await;
        lose_block(&volume, &disk, (ino, &damaged), LOST).await;
        for round in 0..ROUNDS {
            others_go_on(&volume, &mut files, round).await;
            is_lost((ino, &damaged), &synced).await;
            states.push(disk.cut_state(u64::from(round)));
        }
        synced
    });
    disk.world().stop();
    (synced, states, disk)
}

/// The story: one lost block stopped every checkpoint, and the volume turned read-only. logged.Q2,
/// lost.V16.
#[test]
fn one_lost_block_concerns_one_file() {
    for (sums, before) in [true, false].into_iter().flat_map(|sums| ALL.map(|one| (sums, one))) {
        let (synced, states, _) = live_on(sums, before);
        for (round, state) in states.iter().enumerate() {
            let setup = volume_setup();
            assert!(after_crash(&setup, state, "damaged") == synced, "{sums} {before:?} {round}");
            let newest = after_crash(&setup, state, &other(OTHERS + round as u8));
            assert!(newest == [100 + round as u8; 2 * BLOCK], "{sums} {before:?} {round}");
        }
    }
}

/// What ends the loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Heal {
    Written,
    WrittenDirect,
    Punched,
    Truncated,
    CutToNothing,
    Removed,
}

const HEALS: [Heal; 6] = [
    Heal::Written,
    Heal::WrittenDirect,
    Heal::Punched,
    Heal::Truncated,
    Heal::CutToNothing,
    Heal::Removed,
];

/// Ends the loss as `how` says; returns the content of the file then.
async fn heal(volume: &Volume, (ino, file): (Ino, &OpenFileRef), how: Heal) -> Vec<u8> {
    let (at, keep) = (LOST * BLOCK as u64, Privileges::Keep);
    let size = volume.getattr(ino).await.unwrap().size as usize;
    let mut content = match file.read(0, AlignedBuf::new(BLOCK), IoFlags::empty()).await {
        (bytes, Ok(len)) => bytes[..len].to_vec(),
        (_, Err(error)) => panic!("{error}"),
    };
    let fill = content[0];
    content.resize(size, fill);
    let lost = at as usize..at as usize + BLOCK;
    match how {
        Heal::Written | Heal::WrittenDirect => {
            let flags = if how == Heal::Written { IoFlags::empty() } else { IoFlags::DIRECT };
            file.write(at, AlignedBuf::copy_of(&[77; BLOCK]), flags, keep).await.1.unwrap();
            content[lost].fill(77);
        }
        Heal::Punched => {
            file.fallocate(Fallocate::PunchHole, at, BLOCK as u64, keep).await.unwrap();
            content[lost].fill(0);
        }
        Heal::Truncated | Heal::CutToNothing => {
            let to = if how == Heal::Truncated { at } else { 0 };
            volume.setattr(ino, &SetAttr::size(to)).await.unwrap();
            content.truncate(to as usize);
        }
        Heal::Removed => {
            volume.unlink(Ino::ROOT, Name::new(b"damaged").unwrap()).await.unwrap();
            content.clear();
        }
    }
    content
}

/// The loss of a block ends before the first checkpoint, or after some. Then a sync of its file
/// succeeds.
#[test]
fn file_with_lost_block_heals() {
    for (sums, before) in [true, false].into_iter().flat_map(|sums| ALL.map(|one| (sums, one))) {
        for (how, checkpoints) in HEALS.into_iter().flat_map(|how| [0, 1, 3].map(|n| (how, n))) {
            let shown = format!("sums {sums}, {before:?}, {how:?}, {checkpoints} checkpoints");
            let (setup, disk, mut content) =
                on_volume(sums, async |disk, volume, (ino, damaged)| {
                    prepare(&volume, &damaged, before).await;
                    lose_block(&volume, disk, (ino, &damaged), LOST).await;
                    for _ in 0..checkpoints {
                        volume.checkpoint().await.unwrap();
                    }
                    disk.heal();
                    // Syncs through an opener from before the loss report it until that
                    // opener closes the file.
                    drop(damaged);
                    let (_, damaged) = create(&volume, "damaged").await.unwrap();
                    let content = heal(&volume, (ino, &damaged), how).await;
                    let damaged = match how {
                        Heal::Removed => {
                            drop(damaged);
                            create(&volume, "damaged").await.unwrap().1
                        }
                        _ => damaged,
                    };
                    synced_at_last(&damaged).await;
                    volume.checkpoint().await.expect("nothing is lost");
                    damaged.sync(true).await.expect("nothing is lost");
                    volume.syncfs().await.expect("nothing is lost");
                    content
                });
            if before == Before::Beyond && !content.is_empty() {
                // Between the size at the last sync and the lost block the file has a hole.
                let end = content.len().min(LOST as usize * BLOCK);
                content[BLOCK..end].fill(0);
            }
            for seed in 0..2 {
                let there = found(&setup, &disk.power_cut(seed), "damaged");
                let at = there.iter().zip(&content).position(|(a, b)| a != b);
                let sizes = (there.len(), content.len());
                assert!(there == content, "{shown}: {sizes:?}, differs at {at:?}");
            }
        }
    }
}

/// A power loss at any request of the checkpoints after a loss leaves the content of the last sync,
/// in a volume without damage. logged.Q2.
#[test]
fn power_loss_at_checkpoint_after_loss_keeps_synced_content() {
    let mut all = 0;
    for (sums, before) in [true, false].into_iter().flat_map(|sums| ALL.map(|one| (sums, one))) {
        let (setup, disk, synced) = on_volume(sums, async |disk, volume, (ino, damaged)| {
            let synced = prepare(&volume, &damaged, before).await;
            lose_block(&volume, disk, (ino, &damaged), LOST).await;
            disk.record_cuts();
            for n in 0..2 {
                let (_, file) = create(&volume, &other(n)).await.unwrap();
                write(&file, 0, &[9; BLOCK]).await.unwrap();
                file.sync(true).await.expect("nothing of this file is lost");
                volume.checkpoint().await.expect("one file is concerned");
            }
            synced
        });
        for (n, cut) in disk.take_cuts().iter().enumerate() {
            for state in cut.states(2) {
                all += 1;
                let there = after_crash(&setup, &state, "damaged");
                assert!(there == synced, "sums {sums}, {before:?}, request {n}");
            }
        }
    }
    assert!(all > 200, "{all} states");
}

/// Returns when the last close of a file has ended: nothing of its content is in use.
async fn until_closed(volume: &Volume, disk: &SimDisk, ino: Ino) {
    let is_closed = || {
        let state = volume.0.state.lock();
        let node = state.names().node(ino.0).unwrap();
        node.opens == 0 && node.content.is_none()
    };
    for n in 0..20 {
        if is_closed() {
            return;
        }
        World::sleep(&**disk.world(), Duration::from_micros(10 << n)).await;
    }
    panic!("the close does not end");
}

/// A file has a dirty block behind its end at the last sync, and behind that a lost one. A
/// checkpoint corrects the size that the log has. Sizes that are recorded later do not cover the
/// lost block either.
#[test]
fn size_behind_lost_block_is_not_recorded() {
    for (sums, close) in [(true, false), (false, false), (true, true)] {
        let (setup, disk, ()) = on_volume(sums, async |disk, volume, (ino, damaged)| {
            write(&damaged, 0, &[1; 2 * BLOCK]).await.unwrap();
            volume.syncfs().await.unwrap();
            write(&damaged, 2 * BLOCK as u64, &[2; BLOCK]).await.unwrap();
            lose_block_unnoticed(&volume, disk, (ino, &damaged), 3).await;
            volume.checkpoint().await.expect("one file is concerned");
            damaged.sync(true).await.expect_err("its block is lost");
            if close {
                drop(damaged);
            }
            volume.checkpoint().await.expect("one file is concerned");
            let (_, other) = create(&volume, "other").await.unwrap();
            other.sync(false).await.unwrap();
        });
        let there = after_crash(&setup, &disk.cut_state(1), "damaged");
        assert!(there.len() <= 3 * BLOCK, "{sums}, {close}: a size without its bytes");
        assert!(there[..2 * BLOCK] == [1; 2 * BLOCK] && !there[2 * BLOCK..].contains(&0));
    }
}

/// A checkpoint corrects the size that the log has. Until the volume is closed the file keeps its
/// size in memory, also when it is closed and memory is short.
#[test]
fn file_with_lost_end_keeps_its_size_after_checkpoint() {
    let (setup, disk, ()) = on_volume(true, async |disk, volume, (ino, damaged)| {
        write(&damaged, 0, &[1; BLOCK]).await.unwrap();
        volume.syncfs().await.unwrap();
        // No record had the size before the block was lost.
        lose_block_unnoticed(&volume, disk, (ino, &damaged), LOST).await;
        volume.checkpoint().await.expect("one file is concerned");
        damaged.sync(true).await.expect_err("its block is lost");
        drop(damaged);
        for n in 0..20 {
            let (_, file) = create(&volume, &other(n)).await.unwrap();
            file.sync(true).await.expect("nothing of this file is lost");
        }
        until_closed(&volume, disk, ino).await;
        assert_eq!(volume.getattr(ino).await.unwrap().size, (LOST + 1) * BLOCK as u64);
        let (_, damaged) = create(&volume, "damaged").await.unwrap();
        reads_fail((ino, &damaged), &[1; BLOCK]).await;
        damaged.sync(true).await.expect("all openers of that time have closed it");
    });
    let there = after_crash(&setup, &disk.cut_state(1), "damaged");
    assert!(there == [[1; BLOCK], [0; BLOCK]].concat(), "without the lost end");
}

/// The device loses a block while its inode is not in memory. A sync of its file reports the loss
/// if the file still has its size; and what a later sync covers is durable, with the size.
#[test]
fn loss_while_inode_is_evicted_is_noticed() {
    for checkpoint in [false, true] {
        let (setup, disk, ()) = on_volume(true, async |disk, volume, (ino, damaged)| {
            write(&damaged, 0, &[1; BLOCK]).await.unwrap();
            volume.syncfs().await.unwrap();
            lose_block_at_next_flush(&volume, disk, (ino, &damaged), 1).await;
            damaged.sync(true).await.expect_err("the flush fails");
            drop(damaged);
            until_closed(&volume, disk, ino).await;
            let evicted = volume.0.state.lock().forget_node(ino.0);
            assert!(evicted.is_some_and(|node| !node.regrow), "no repair yet");
            // The commit of another file does the repair.
            let (_, other) = create(&volume, "other").await.unwrap();
            other.sync(false).await.ok();
            if checkpoint {
                volume.checkpoint().await.expect("one file is concerned");
            }
            let (_, damaged) = create(&volume, "damaged").await.unwrap();
            let size = volume.getattr(ino).await.unwrap().size as usize;
            assert_eq!(damaged.sync(true).await.is_err(), size > BLOCK, "its block is lost");
            disk.heal();
            write(&damaged, BLOCK as u64, &[3; BLOCK]).await.unwrap();
            synced_at_last(&damaged).await;
        });
        let there = after_crash(&setup, &disk.cut_state(1), "damaged");
        let wanted = [[1; BLOCK], [3; BLOCK]].concat();
        assert!(there == wanted, "{checkpoint}: {} bytes", there.len());
    }
}

/// Lost blocks over a hole are no hole: a copy that leaves out holes must not take them for zeros.
#[test]
fn lost_blocks_over_hole_are_data() {
    on_volume(true, async |disk, volume, (ino, damaged)| {
        prepare(&volume, &damaged, Before::Hole).await;
        lose_block(&volume, disk, (ino, &damaged), LOST).await;
        volume.checkpoint().await.expect("one file is concerned");
        let content = volume.0.files.content("test", ino).unwrap();
        let all = 0..(BLOCKS * BLOCK) as u64;
        let runs = content.file.ops.extents(all.clone(), 9).await.unwrap();
        assert_eq!(runs, [(0, all.end, true)]);
    });
}

/// One lost block among 10,000 files: each of the others is written and synced, in 20 rounds with a
/// checkpoint each.
#[test]
fn one_lost_block_among_many_files() {
    let (files, rounds) = (10_000, 20);
    let setup = Setup { volume_bytes: 256 << 20, inode_cache_bytes: 16 << 20, ..setup(4096) };
    let disk = blank(&setup, true);
    disk.world().run(async {
        let volume = open(&setup, &disk).await.unwrap();
        let (ino, damaged) = create(&volume, "damaged").await.unwrap();
        let synced = prepare(&volume, &damaged, Before::LogOverTree).await;
        for n in 0..files {
            let (_, file) = create(&volume, &format!("f{n}")).await.unwrap();
            write(&file, 0, &[1; 100]).await.unwrap();
        }
        volume.syncfs().await.unwrap();
        lose_block(&volume, &disk, (ino, &damaged), LOST).await;
        for round in 0..rounds {
            for n in (round..files).step_by(rounds) {
                let (_, file) = create(&volume, &format!("f{n}")).await.unwrap();
                assert_eq!(read(&file, 200).await, [1; 100]);
                write(&file, 0, &[2; 100]).await.unwrap();
                file.sync(true).await.expect("nothing of this file is lost");
            }
            volume.checkpoint().await.expect("one file is concerned");
            is_lost((ino, &damaged), &synced).await;
        }
    });
    disk.world().stop();
    let state = disk.cut_state(1).mount(SimWorld::new(2));
    disk.heal();
    state.world().run(async {
        let volume = open(&setup, &state).await.unwrap();
        for n in 0..files {
            let (_, file) = create(&volume, &format!("f{n}")).await.unwrap();
            assert_eq!(read(&file, 200).await, [2; 100]);
        }
    });
    state.world().stop();
}
