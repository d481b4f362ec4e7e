//! Places of tree nodes: those at which writes fail, and those of the usage table.
//!
//! No locks.

use crate::checkpoint::root_of;
use crate::format::place::Place;
use crate::format::superblock::{FILES_TREE, SLOT_BYTES, SLOTS, slot_offsets};
use crate::format::usage::Segment;
use crate::space::usage_table::usage_nodes;
use crate::space::usage_table::write_usage;
use crate::tests::faults::{failing, found};
use crate::tests::reuse::{check, create, open, setup, write};
use crate::tests::setup::Setup;
use crate::volume::Volume;
use forebay_base::buf::AlignedBuf;
use forebay_base::sim_world::SimWorld;
use forebay_base::{ErrorKind, IoFlags};
use forebay_block::BioOp;
use forebay_sim::{Fault, FaultRule, SimDisk};
use forebay_vfs::{FileSystem, Ino, OpenFileRef, Privileges, SetAttr};
use std::ops::Range;

const BLOCK: usize = 4096;

/// Makes a checkpoint of a file with a block and 200 files without one. Returns that file, and the
/// inodes of the others.
async fn with_files(volume: &Volume) -> (OpenFileRef, Vec<Ino>) {
    let (_, file) = create(volume, "f").await.unwrap();
    write(&file, 0, &[0; BLOCK]).await.unwrap();
    let mut inos = Vec::new();
    for n in 0..200 {
        inos.push(create(volume, &format!("file{n}")).await.unwrap().0);
    }
    volume.checkpoint().await.unwrap();
    (file, inos)
}

/// The story: a node place at which a write had failed was allocated again with the next free
/// places of its segment. Every second or third checkpoint used it, and failed. nodes.N14, for each
/// of the two copies.
#[test]
fn n14_node_place_with_failed_write_is_avoided() {
    for copy in [0, 1] {
        let setup = setup(0);
        let disk = setup.blank();
        disk.world().run(async {
            let volume = open(&setup, &disk).await.unwrap();
            let (file, inos) = with_files(&volume).await;
            let root = root_of(&volume.0.checkpoints.superblock(), FILES_TREE).unwrap();
            let bad: Place = root.places.unwrap()[copy];
            let at = volume.0.layout.device_offset(bad);
            disk.inject(failing(BioOp::Write).within(at..at + BLOCK as u64).sticky());
            let mut failed = 0;
            for round in 1..=20u16 {
                write(&file, 0, &[round as u8; BLOCK]).await.unwrap();
                for ino in inos.iter().step_by(40) {
                    let set = SetAttr { perm: Some(0o600 | round), ..SetAttr::default() };
                    volume.setattr(*ino, &set).await.unwrap();
                }
                failed += u32::from(volume.checkpoint().await.is_err());
            }
            assert!((1..=2).contains(&failed), "{copy}: {failed} of 20 checkpoints failed");
            volume.checkpoint().await.unwrap();
            for ino in inos.iter().step_by(40) {
                assert_eq!(volume.getattr(*ino).await.unwrap().perm, 0o600 | 20);
            }
            file.sync(true).await.unwrap();
        });
        disk.world().stop();
        disk.heal();
        assert_eq!(found(&setup, &disk.power_cut(1), "f"), [20; BLOCK], "{copy}");
    }
}

/// nodes.N15. The story: each failed checkpoint kept the places of its nodes until one succeeded.
/// On a nearly full volume a few failures left no place for the nodes of any checkpoint, so none
/// succeeded until the volume was opened again.
#[test]
fn n15_failed_checkpoints_use_up_no_places() {
    let setup = setup(0);
    let disk = setup.blank();
    disk.world().run(async {
        let volume = open(&setup, &disk).await.unwrap();
        let (file, inos) = with_files(&volume).await;
        let mut most = 0;
        let used = || volume.0.state.lock().space().nodes().used();
        let before = used();
        for round in 1..=40u16 {
            write(&file, 0, &[round as u8; BLOCK]).await.unwrap();
            for ino in &inos {
                let set = SetAttr { perm: Some(0o600 | (round % 8)), ..SetAttr::default() };
                volume.setattr(*ino, &set).await.unwrap();
            }
            // The log is durable, and the flush of the nodes fails.
            file.sync(true).await.unwrap();
            disk.inject(failing(BioOp::Flush).nth(2));
            assert!(volume.checkpoint().await.is_err(), "{round}");
            most = most.max(used() - before);
        }
        let each = volume.0.state.lock().tree().node_count() + 4;
        assert!(most > 0 && most <= 2 * each, "N15: {most} places, {each} for a checkpoint");
        volume.checkpoint().await.unwrap();
        file.sync(true).await.unwrap();
    });
    disk.world().stop();
    assert_eq!(found(&setup, &disk.power_cut(1), "f"), [40; BLOCK]);
}

/// nodes.N16, checkpoint.H19. The story: a checkpoint whose slots may be on the disk, and whose
/// last flush failed, kept the places of its nodes until another one succeeded, and each had a mark
/// of its own in the log. On a nearly full volume nothing was left for the one that would have
/// succeeded.
#[test]
fn n16_h19_checkpoints_with_failed_slots_use_up_nothing() {
    let setup = setup(0);
    let disk = setup.blank();
    let cuts = disk.world().run(async {
        let volume = open(&setup, &disk).await.unwrap();
        let (file, inos) = with_files(&volume).await;
        let used = || volume.0.state.lock().space().nodes().used();
        let records = || volume.0.log.ctl.lock().head.sequence;
        let before = used();
        write(&file, 0, &[1; BLOCK]).await.unwrap();
        file.sync(true).await.unwrap();
        // No task writes a mark when the log is idle.
        volume.0.log.ctl.lock().mark_armed = true;
        let (mut most, mut cuts) = (0, Vec::new());
        for round in 1..=12u16 {
            let changes = round % 2 == 1;
            for ino in inos.iter().step_by(20).filter(|_| changes) {
                let set = SetAttr { perm: Some(0o600 | (round / 2 % 8)), ..SetAttr::default() };
                volume.setattr(*ino, &set).await.unwrap();
            }
            let sequence = records();
            // Before the flush of the slots: those of the replaced slots, the mark, the nodes.
            let flushes = u64::from(round > 1) + u64::from(changes) + 1;
            disk.inject(failing(BioOp::Flush).nth(flushes + 1));
            assert!(volume.checkpoint().await.is_err(), "{round}");
            assert!(changes || records() == sequence, "H19: {round}");
            most = most.max(used() - before);
            cuts.push(disk.power_cut(round.into()));
        }
        let each = volume.0.state.lock().tree().node_count() + 4;
        assert!(most > 0 && most <= 2 * each, "N16: {most} places, {each} for a checkpoint");
        volume.checkpoint().await.unwrap();
        file.sync(true).await.unwrap();
        cuts
    });
    disk.world().stop();
    for (n, cut) in cuts.iter().chain([&disk.power_cut(1)]).enumerate() {
        assert_eq!(found(&setup, cut, "f"), [1; BLOCK], "{n}");
    }
}

/// Segments in which a write failed.
fn failed_segments(volume: &Volume) -> Vec<u32> {
    let state = volume.0.state.lock();
    let failed = state.space().segments().iter().filter(|(_, segment)| segment.has_failed());
    failed.map(|(segment, _)| segment).collect()
}

/// The story: nodes at the end of a segment and at the start of the next one were written in one
/// transfer. If the part in the second segment failed, the volume avoided the first one from then
/// on. nodes.N14.
#[test]
fn n14_only_segment_of_failed_node_write_is_avoided() {
    for bad in [10, 11] {
        let setup = setup(0);
        let disk = setup.blank();
        disk.world().run(async {
            let volume = open(&setup, &disk).await.unwrap();
            let (inner, layout) = (&volume.0, volume.0.layout);
            let entries = vec![Segment::FREE; 8 * 3 * 64];
            let count =
                usage_nodes(entries.len() as u32, layout.geometry, layout.seal).await.unwrap();
            let per = layout.geometry.segment_bytes() >> layout.geometry.node_shift;
            assert!((8..u64::from(per)).contains(&count));
            let place = |n: u32| Place::new(n / per, (n % per) << layout.geometry.node_shift);
            let pair = |n: u32| [place(11 * per - 4 + n), place(20 * per + n)];
            let places: Vec<[Place; 2]> = (0..count as u32).map(pair).collect();
            let at = layout.device_offset(Place::new(bad, if bad == 10 { 15 << 12 } else { 0 }));
            disk.inject(failing(BioOp::Write).within(at..at + BLOCK as u64).sticky());
            assert!(write_usage(&inner.tree, &inner.store, &entries, &places, 9).await.is_err());
            assert_eq!(failed_segments(&volume), [bad]);
        });
        disk.world().stop();
    }
}

/// The story: one bio of a direct write to several segments failed, and the volume avoided all of
/// these segments from then on. runs.R24.
#[test]
fn r24_only_failed_segment_of_direct_write_is_avoided() {
    const LEN: usize = 160 << 10;
    for nth in [1, 2, 3] {
        let setup = setup(0);
        let disk = setup.blank();
        disk.world().run(async {
            let volume = open(&setup, &disk).await.unwrap();
            let (_, file) = create(&volume, "f").await.unwrap();
            disk.inject(failing(BioOp::Write).nth(nth));
            let write = || file.write(0, AlignedBuf::new(LEN), IoFlags::DIRECT, Privileges::Keep);
            assert!(write().await.1.is_err(), "the {nth}th bio of it failed");
            assert_eq!(failed_segments(&volume).len(), 1, "{nth}");
            write().await.1.unwrap();
        });
        disk.world().stop();
    }
}

/// The story: `NoSpace` errors of a full host counted as bad places. Each checkpoint that failed so
/// took two more segments that the image had never used, and space that the host had already
/// allocated was used last. The same held for content and the log.
#[test]
fn n14_w18_full_host_makes_no_place_bad() {
    for kind in [ErrorKind::NoSpace, ErrorKind::Io] {
        let setup = setup(0);
        let disk = setup.blank();
        disk.world().run(async {
            let volume = open(&setup, &disk).await.unwrap();
            let (ino, file) = create(&volume, "f").await.unwrap();
            for way in 0..3u8 {
                disk.inject(FaultRule::on(BioOp::Write, Fault::Fail(kind)).sticky());
                // A buffered write, then a direct one, each with a sync; then the nodes of a
                // checkpoint.
                let (at, flags) = (u64::from(way) << 20, [IoFlags::empty(), IoFlags::DIRECT]);
                let bytes = AlignedBuf::copy_of(&[way + 1; BLOCK]);
                let flags = flags[usize::from(way == 1)];
                let written = file.write(at, bytes, flags, Privileges::Keep).await.1;
                let synced =
                    if way < 2 { file.sync(true).await } else { volume.checkpoint().await };
                assert!(written.is_err() || synced.is_err(), "{kind:?}, {way}: nothing failed");
                disk.heal();
                let _told = file.sync(true).await;
                file.sync(true).await.unwrap();
                volume.checkpoint().await.unwrap();
            }
            let failed = failed_segments(&volume);
            assert_eq!(failed.is_empty(), kind == ErrorKind::NoSpace, "{kind:?}: {failed:?}");
            assert!(volume.getattr(ino).await.is_ok());
        });
        disk.world().stop();
    }
}

/// usage_table.H15: the live bytes of segments include the nodes of the usage table itself, so
/// fsck, which counts the nodes of both trees, finds no difference. The table has several nodes
/// here.
#[test]
fn h15_usage_table_counts_its_own_nodes() {
    let setup = Setup { volume_bytes: 64 << 20, ..setup(0) };
    let disk = setup.blank();
    let nodes = disk.world().run(async {
        let volume = open(&setup, &disk).await.unwrap();
        for n in 0..3 {
            let (_, file) = create(&volume, &format!("f{n}")).await.unwrap();
            write(&file, 0, &[1; 4096]).await.unwrap();
            volume.syncfs().await.unwrap();
            volume.checkpoint().await.unwrap();
        }
        volume.close().await.unwrap();
        let layout = volume.0.layout;
        usage_nodes(layout.segments, layout.geometry, layout.seal).await.unwrap()
    });
    disk.world().stop();
    assert!(nodes > 1, "{nodes} nodes");
    let report = check(&disk.in_world(SimWorld::new(2)));
    assert_eq!(report.findings, [], "H15");
}

/// The bytes of a slot that has states of this number. `half`: at the start or the end of the disk.
pub(super) fn slot_of(disk: &SimDisk, number: u64, half: u64) -> Range<u64> {
    let of_half = u64::from(SLOTS) / 2;
    let at = slot_offsets(disk.config().size)[(half * of_half + number % of_half) as usize];
    at..at + SLOT_BYTES as u64
}

/// Writes that change nothing.
pub(super) fn refused() -> FaultRule {
    FaultRule::on(BioOp::Write, Fault::Fail(ErrorKind::NoSpace)).sticky()
}

fn unreadable(disk: &SimDisk, number: u64, half: u64) {
    disk.inject(failing(BioOp::Read).within(slot_of(disk, number, half)).sticky());
}

/// A volume with a block of "f" that is durable in the log alone. Returns it with the file, the
/// inodes of others, and the number of the next checkpoint.
async fn with_synced_block(setup: &Setup, disk: &SimDisk) -> (Volume, OpenFileRef, Vec<Ino>, u64) {
    let volume = open(setup, disk).await.unwrap();
    let (file, inos) = with_files(&volume).await;
    write(&file, 0, &[1; BLOCK]).await.unwrap();
    file.sync(true).await.unwrap();
    let number = volume.0.checkpoints.number() + 1;
    (volume, file, inos, number)
}

/// Cuts the power at each write of an opening. `before` gets the disk of that opening, and `after`
/// the disk of the next one, which finds the block of "f".
fn cut_openings(
    setup: &Setup,
    disk: &SimDisk,
    before: impl Fn(&SimDisk),
    after: impl Fn(&SimDisk),
) {
    let cut_at = |n: &u64| {
        let next = disk.in_world(SimWorld::new(7));
        before(&next);
        next.inject(failing(BioOp::Write).nth(*n).sticky());
        let opened = next.world().run(async { open(setup, &next).await.map(drop) });
        next.world().stop();
        if opened.is_ok() {
            return false;
        }
        let cut = next.power_cut(*n);
        cut.heal();
        after(&cut);
        assert_eq!(found(setup, &cut, "f"), [1; BLOCK], "cut at write {n}");
        true
    };
    let cuts = (1..100).take_while(cut_at).count();
    assert!((6..99).contains(&cuts), "{cuts} cuts");
}

async fn change_all(volume: &Volume, inos: &[Ino]) {
    for ino in inos {
        let set = SetAttr { perm: Some(0o611), ..SetAttr::default() };
        volume.setattr(*ino, &set).await.unwrap();
    }
}

/// nodes.N16. The story: a failed checkpoint had its state in both of its slots. The state that was
/// to replace it got into one of them, the other could be neither written nor read, and the slots
/// of the next number took no write. The nodes of the failed checkpoint became free and were
/// overwritten, and after a power loss the second slot could be read, and counted.
#[test]
fn n16_nodes_that_an_unreadable_slot_names_are_not_overwritten() {
    for half in [0, 1] {
        let setup = setup(0);
        let disk = setup.blank();
        disk.world().run(async {
            let (volume, _file, inos, number) = with_synced_block(&setup, &disk).await;
            let slot = |number, half| slot_of(&disk, number, half);
            // The mark, the nodes, the slots.
            disk.inject(failing(BioOp::Flush).nth(3));
            assert!(volume.checkpoint().await.is_err(), "both slots have its state");
            let unreadable = slot(number, half);
            disk.inject(refused().within(unreadable.clone()));
            disk.inject(failing(BioOp::Read).within(unreadable).sticky());
            for half in [0, 1] {
                disk.inject(refused().within(slot(number + 1, half)));
            }
            change_all(&volume, &inos).await;
            for _ in 0..3 {
                let _failed = volume.checkpoint().await;
            }
        });
        disk.world().stop();
        let cut = disk.power_cut(1);
        cut.heal();
        assert_eq!(found(&setup, &cut, "f"), [1; BLOCK], "{half}");
    }
}

/// nodes.N16. The story: only one slot had the newest state, and the next opening could not read
/// it. That opening wrote the nodes of its first checkpoint over those of the newest state, and was
/// cut. Then the slot could be read again, and counted.
#[test]
fn n16_opening_that_cannot_read_a_slot_overwrites_no_nodes() {
    let setup = setup(0);
    let disk = setup.blank();
    let number = disk.world().run(async {
        let (volume, _file, inos, number) = with_synced_block(&setup, &disk).await;
        for (number, half) in [(number, 0), (number + 1, 0), (number + 1, 1)] {
            disk.inject(refused().within(slot_of(&disk, number, half)));
        }
        change_all(&volume, &inos).await;
        volume.checkpoint().await.expect("one slot has it");
        number
    });
    disk.world().stop();
    let disk = disk.power_cut(1);
    disk.heal();
    cut_openings(&setup, &disk, |disk| unreadable(disk, number, 1), |_| ());
}

/// slots.U14, nodes.N16. The story: a failed checkpoint was in both of its slots, and one of them
/// took no write from then on. The state that was to replace it had its number, and was refused
/// because of the other one. So no checkpoint succeeded until the volume was opened again.
#[test]
fn n16_slot_that_keeps_failed_state_holds_up_no_checkpoint() {
    for half in [0, 1] {
        let setup = setup(0);
        let disk = setup.blank();
        disk.world().run(async {
            let (volume, _file, inos, number) = with_synced_block(&setup, &disk).await;
            disk.inject(failing(BioOp::Flush).nth(3));
            assert!(volume.checkpoint().await.is_err(), "both slots have its state");
            disk.inject(refused().within(slot_of(&disk, number, half)));
            change_all(&volume, &inos).await;
            volume.checkpoint().await.expect("a higher number");
        });
        disk.world().stop();
        let cut = disk.power_cut(1);
        cut.heal();
        assert_eq!(found(&setup, &cut, "f"), [1; BLOCK], "{half}");
    }
}

/// nodes.N16. The story: a slot of a failed checkpoint took no write, and its state got into the
/// slots of the next number as well, whose flush failed. The durable state replaced it under the
/// lower number alone, and the nodes were overwritten. They counted after a power loss.
#[test]
fn n16_failed_state_under_a_later_number_is_replaced() {
    for half in [0, 1] {
        let cuts = (1..100).take_while(|n| replaced_until(*n, half)).count();
        assert!((6..99).contains(&cuts), "{cuts} cuts");
    }
}

/// The device fails from write `n` on. False: the checkpoint was made before.
fn replaced_until(n: u64, half: u64) -> bool {
    let setup = setup(0);
    let disk = setup.blank();
    let made = disk.world().run(async {
        let (volume, _file, inos, number) = with_synced_block(&setup, &disk).await;
        // One slot has the state, and the flush of the next two fails: they have it, too.
        disk.inject(refused().within(slot_of(&disk, number, 0)));
        disk.inject(failing(BioOp::Flush).nth(4));
        volume.checkpoint().await.expect("one slot has it");
        disk.heal();
        change_all(&volume, &inos).await;
        disk.inject(refused().within(slot_of(&disk, number + 1, half)));
        disk.inject(failing(BioOp::Flush).nth(4));
        assert!(volume.checkpoint().await.is_err(), "two states have this number");
        disk.heal();
        disk.inject(failing(BioOp::Write).nth(n).sticky());
        volume.checkpoint().await
    });
    disk.world().stop();
    let cut = disk.power_cut(n);
    cut.heal();
    assert_eq!(found(&setup, &cut, "f"), [1; BLOCK], "cut at write {n}");
    made.is_err()
}

/// nodes.N16. The story: two slots had the number before the newest, and different states. An
/// opening wrote over the nodes of the one that would count next, and was cut. The one slot with
/// the newest state was lost.
#[test]
fn n16_opening_overwrites_no_nodes_of_two_states_with_one_number() {
    let setup = setup(0);
    let disk = setup.blank();
    let number = disk.world().run(async {
        let (volume, _file, inos, number) = with_synced_block(&setup, &disk).await;
        disk.inject(failing(BioOp::Flush).nth(3));
        assert!(volume.checkpoint().await.is_err(), "both slots have its state");
        // The state before gets into one slot of this number, and into one of the next.
        for (number, half) in [(number, 1), (number + 1, 1), (number + 2, 0), (number + 2, 1)] {
            disk.inject(refused().within(slot_of(&disk, number, half)));
        }
        change_all(&volume, &inos).await;
        assert!(volume.checkpoint().await.is_err(), "too few slots take it");
        number
    });
    disk.world().stop();
    let disk = disk.power_cut(1);
    disk.heal();
    let newest = slot_of(&disk, number + 1, 0);
    cut_openings(&setup, &disk, |_| (), |cut| cut.poke(newest.start, &[0; SLOT_BYTES]));
}

/// nodes.N16. The story: one slot had the newest state, and the other one of that number a failed
/// state, which an opening could not read. The opening wrote over the nodes of the failed state,
/// and was cut. Then the second slot could be read again, and counted.
#[test]
fn n16_opening_that_cannot_read_the_newest_number_overwrites_no_nodes() {
    let setup = setup(0);
    let disk = setup.blank();
    let number = disk.world().run(async {
        let (volume, _file, inos, number) = with_synced_block(&setup, &disk).await;
        disk.inject(failing(BioOp::Flush).nth(3));
        assert!(volume.checkpoint().await.is_err(), "both slots have its state");
        for (number, half) in [(number, 1), (number + 1, 0), (number + 1, 1)] {
            disk.inject(refused().within(slot_of(&disk, number, half)));
        }
        change_all(&volume, &inos).await;
        assert!(volume.checkpoint().await.is_err(), "one slot takes it");
        number
    });
    disk.world().stop();
    let disk = disk.power_cut(1);
    disk.heal();
    cut_openings(&setup, &disk, |disk| unreadable(disk, number, 1), |_| ());
}

/// slots.U14. The story: after a failed checkpoint no other one succeeded while one slot of each of
/// two following numbers took no write.
#[test]
fn u14_two_bad_slots_stop_no_checkpoint_after_failed_one() {
    let setup = setup(0);
    let disk = setup.blank();
    disk.world().run(async {
        let volume = open(&setup, &disk).await.unwrap();
        let (_, inos) = with_files(&volume).await;
        let number = volume.0.checkpoints.number() + 1;
        disk.inject(failing(BioOp::Flush).nth(3));
        assert!(volume.checkpoint().await.is_err(), "both slots have its state");
        for number in [number, number + 1] {
            disk.inject(refused().within(slot_of(&disk, number, 0)));
        }
        change_all(&volume, &inos).await;
        volume.checkpoint().await.expect("others take it");
    });
    disk.world().stop();
    assert!(check(&disk.power_cut(1)).is_clean());
}
