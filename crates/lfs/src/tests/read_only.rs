//! Volumes of which a node of the tree is lost, or content of one file, and volumes whose
//! checkpoints fail for a while.
//!
//! No locks.

use crate::format::key::Key;
use crate::format::place::Place;
use crate::format::superblock::slot_offsets;
use crate::map::overlay::Where;
use crate::tests::changes::{assert_read_only, before_changes, changes};
use crate::tests::faults::{failing, found, synced_at_last};
use crate::tests::reuse::{create, open, read, setup, write};
use crate::tests::setup::Setup;
use crate::{OpenOptions, Volume};
use forebay_base::buf::AlignedBuf;
use forebay_base::sim_world::SimWorld;
use forebay_base::sync::atomic::Ordering;
use forebay_base::world::WorldRef;
use forebay_base::{Error, ErrorKind, IoFlags, Result};
use forebay_block::{BioOp, DeviceRef};
use forebay_sim::{Fault, FaultRule, SimDisk};
use forebay_vfs::{FileSystem, Ino, Name, OpenFileRef, OpenFlags, Privileges, SetAttr};
use std::future::poll_fn;
use std::ops::Range;
use std::sync::Arc;
use std::task::Poll;

const BLOCK: usize = 4096;
const NODE: usize = 4096;

fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).unwrap()
}

async fn open_with(
    setup: &Setup,
    disk: &SimDisk,
    change: impl FnOnce(&mut OpenOptions),
) -> Result<Volume> {
    let (device, world): (DeviceRef, WorldRef) = (Arc::new(disk.clone()), disk.world().clone());
    let mut options = setup.options(&world);
    change(&mut options);
    Volume::open(&device, &world, &options).await
}

/// Has the device lose a block that was written past the cache to a file.
pub(super) async fn lose_block(
    volume: &Volume,
    disk: &SimDisk,
    damaged: (Ino, &OpenFileRef),
    block: u64,
) {
    lose_block_unnoticed(volume, disk, damaged, block).await;
    // The repair finds the loss.
    volume.syncfs().await.ok();
}

/// As [`lose_block`], but no repair has noticed the loss yet.
pub(super) async fn lose_block_unnoticed(
    volume: &Volume,
    disk: &SimDisk,
    damaged: (Ino, &OpenFileRef),
    block: u64,
) {
    lose_block_at_next_flush(volume, disk, damaged, block).await;
    assert!(volume.0.flush_all().await.is_err(), "the flush fails");
}

/// Writes a block past the cache, which the device loses in the next flush.
pub(super) async fn lose_block_at_next_flush(
    volume: &Volume,
    disk: &SimDisk,
    (ino, file): (Ino, &OpenFileRef),
    block: u64,
) {
    let direct = AlignedBuf::copy_of(&[200; BLOCK]);
    let (at, keep) = (block * BLOCK as u64, Privileges::Keep);
    file.write(at, direct, IoFlags::DIRECT, keep).await.1.unwrap();
    let place = place_of(volume, ino, block).await;
    disk.inject(failing(BioOp::Read).within(place).sticky());
    disk.inject(failing(BioOp::Flush));
}

/// The bytes of the device that a block of a file is in.
pub(super) async fn place_of(volume: &Volume, ino: Ino, block: u64) -> Range<u64> {
    let data_id = volume.0.state.lock().names().node(ino.0).unwrap().inode.data_id;
    let found = volume.0.piece_at(data_id, block).await.unwrap().0.at;
    let Where::Run(place) = found else { panic!("a run, not {found:?}") };
    let at = volume.0.layout.device_offset(place);
    at..at + BLOCK as u64
}

/// A lost block, written anew before any checkpoint: nothing is lost then.
#[test]
fn lost_block_written_anew_before_checkpoint_stops_nothing() {
    let setup = setup(0);
    let disk = setup.blank();
    disk.world().run(async {
        let volume = open(&setup, &disk).await.unwrap();
        let (ino, file) = create(&volume, "f").await.unwrap();
        write(&file, 0, &[1; 2 * BLOCK]).await.unwrap();
        volume.syncfs().await.unwrap();
        lose_block(&volume, &disk, (ino, &file), 1).await;
        write(&file, BLOCK as u64, &[3; BLOCK]).await.unwrap();
        synced_at_last(&file).await;
        volume.checkpoint().await.unwrap();
        assert!(volume.stopped().is_none());
    });
    disk.world().stop();
}

/// The story: a file that had lost a block was truncated to zero. Its syncs, those of the volume
/// and the close of the volume still failed, with "lost: bytes 0 to 0".
#[test]
fn file_truncated_to_zero_after_lost_block_syncs_and_closes() {
    let setup = setup(0);
    let disk = setup.blank();
    disk.world().run(async {
        let volume = open(&setup, &disk).await.unwrap();
        let (ino, file) = create(&volume, "f").await.unwrap();
        write(&file, 0, &[1; BLOCK]).await.unwrap();
        volume.syncfs().await.unwrap();
        lose_block(&volume, &disk, (ino, &file), 1).await;
        file.sync(true).await.expect_err("its block is lost");
        disk.heal();
        let nothing = SetAttr { size: Some(0), ..SetAttr::default() };
        volume.setattr(ino, &nothing).await.unwrap();
        file.sync(true).await.expect("nothing of it is left to lose");
        volume.syncfs().await.expect("nothing is lost");
        drop(file);
        volume.close().await.expect("nothing is lost");
    });
    disk.world().stop();
    assert_eq!(found(&setup, &disk.power_cut(1), "f"), [0; 0]);
}

/// The story: a file grew by two direct writes of a block, and the device lost the first. The log
/// cannot have the size without the lost block. When the last opener closed the file, it shrank to
/// the size in the log, and the block that the device holds was gone from it.
#[test]
fn file_with_lost_block_keeps_its_size_at_close() {
    let setup = setup(0);
    let disk = setup.blank();
    disk.world().run(async {
        let volume = open(&setup, &disk).await.unwrap();
        let (ino, file) = create(&volume, "f").await.unwrap();
        write(&file, 0, &[1; BLOCK]).await.unwrap();
        volume.syncfs().await.unwrap();
        lose_block(&volume, &disk, (ino, &file), 1).await;
        let direct = AlignedBuf::copy_of(&[3; BLOCK]);
        let third = 2 * BLOCK as u64;
        file.write(third, direct, IoFlags::DIRECT, Privileges::Keep).await.1.unwrap();
        file.sync(true).await.expect_err("one of its blocks is lost");
        drop(file);
        let size = || async { volume.getattr(ino).await.unwrap().size };
        assert_eq!(size().await, third + BLOCK as u64, "closed");
        let (_, file) = create(&volume, "f").await.unwrap();
        assert_eq!(size().await, third + BLOCK as u64, "opened again");
        let (bytes, done) = file.read(third, AlignedBuf::new(BLOCK), IoFlags::empty()).await;
        assert!(done.unwrap() == BLOCK && bytes[..] == [3; BLOCK]);
        // Written anew, the lost block no longer holds the size back.
        write(&file, BLOCK as u64, &[2; BLOCK]).await.unwrap();
        synced_at_last(&file).await;
        drop(file);
        volume.close().await.expect("nothing is lost any more");
    });
    disk.world().stop();
    let found = found(&setup, &disk.power_cut(1), "f");
    assert_eq!(found, [[1; BLOCK], [2; BLOCK], [3; BLOCK]].concat());
}

/// Creates files, so that the tree has several leaves, and makes everything durable.
async fn many_names(volume: &Volume, count: u32) -> Vec<Ino> {
    let mut inos = Vec::new();
    for n in 0..count {
        inos.push(create(volume, &format!("f{n}")).await.unwrap().0);
    }
    volume.syncfs().await.unwrap();
    volume.checkpoint().await.unwrap();
    inos
}

/// Overwrites both copies of the leaf that contains `key`. Returns their places, and the bytes
/// before that.
pub(super) async fn spoil_leaf(volume: &Volume, disk: &SimDisk, key: Key) -> ([Place; 2], Vec<u8>) {
    let root = volume.0.state.lock().tree().root();
    assert_eq!(root.level, 1, "a root and leaves");
    let mut leaves = Vec::new();
    let mut seen = |places: [Place; 2]| {
        leaves.push(places);
        Ok(true)
    };
    volume.0.tree.places(&root, &mut seen).await.unwrap();
    leaves.retain(|places| Some(*places) != root.places);
    assert!(leaves.len() > 2, "{leaves:?}");
    for places in leaves {
        let offsets = places.map(|place| volume.0.layout.device_offset(place));
        let before = disk.peek(offsets[0], NODE);
        offsets.into_iter().for_each(|at| disk.poke(at, &[0xff; NODE]));
        volume.0.tree.cache().forget(&[places]);
        if volume.0.tree.get(&root, key).await.is_err() {
            return (places, before);
        }
        offsets.into_iter().for_each(|at| disk.poke(at, &before));
    }
    panic!("{key:?} is in no leaf");
}

/// Opens a volume with a bad leaf again: for writing it is refused, for reading it works.
fn reopened_over_bad_leaf(setup: &Setup, disk: &SimDisk, count: u32) {
    let disk = disk.power_cut(1).in_world(SimWorld::new(3));
    disk.world().run(async {
        let error = open(setup, &disk).await.err().expect("the leaf is lost");
        let text = error.to_string();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{text}");
        assert!(text.contains("neither copy of the node"), "{text}");
        assert!(text.contains("can be opened for reading"), "{text}");
    });
    disk.world().stop();
    let disk = disk.in_world(SimWorld::new(4));
    disk.world().run(async {
        let volume = open_with(setup, &disk, |options| options.read_only = true).await.unwrap();
        let mut there = 0;
        for n in 0..count {
            there += u32::from(volume.lookup(Ino::ROOT, name(&format!("f{n}"))).await.is_ok());
        }
        assert!(there > count / 3, "{there} of {count} are readable");
    });
    disk.world().stop();
}

/// The story: a leaf was bad in both copies, and every checkpoint that had to change it failed.
#[test]
fn checkpoint_over_bad_leaf_turns_volume_read_only() {
    let setup = Setup { inode_cache_bytes: 1 << 20, ..setup(0) };
    let disk = setup.blank();
    let count = 200;
    disk.world().run(async {
        let volume = open(&setup, &disk).await.unwrap();
        many_names(&volume, count).await;
        volume.close().await.unwrap();
    });
    disk.world().stop();
    let disk = disk.in_world(SimWorld::new(2));
    disk.world().run(async {
        let volume =
            open_with(&setup, &disk, |options| options.node_cache_bytes = 0).await.unwrap();
        let mut inos = Vec::new();
        for n in 0..count {
            inos.push(volume.lookup(Ino::ROOT, name(&format!("f{n}"))).await.unwrap().ino);
        }
        let file = volume.open(inos[4], OpenFlags::READ | OpenFlags::WRITE).await.unwrap();
        before_changes(&volume, inos[4]).await;
        write(&file, 0, &[9; BLOCK]).await.unwrap();
        file.sync(true).await.unwrap();
        for ino in &inos {
            volume
                .setattr(*ino, &SetAttr { perm: Some(0o600), ..SetAttr::default() })
                .await
                .unwrap();
        }
        // The changes wait in memory, and then the leaf that they change is lost.
        let (lost, _) = spoil_leaf(&volume, &disk, Key::Inode(inos[100].0)).await;
        let stop = volume.checkpoint().await.expect_err("a leaf is lost");
        let place = format!("{:?}", lost[0]);
        let wanted = ["neither copy of the node", &place];
        for error in [&stop, &volume.stopped().unwrap()] {
            assert!(wanted.iter().all(|part| error.to_string().contains(part)), "{error}");
        }
        let held = || volume.0.state.lock().held().changes;
        let before = held();
        for _ in 0..20 {
            assert_read_only(changes(&volume, inos[4], &file).await, &wanted);
        }
        assert_eq!(held(), before, "F11: nothing more waits in memory");
        assert_eq!(read(&file, BLOCK).await, [9; BLOCK]);
        assert_eq!(volume.getattr(inos[9]).await.unwrap().perm, 0o600);
        file.sync(true).await.expect("its content is durable");
        assert!(volume.0.state.lock().queue().is_empty(), "what was accepted is in the log");
        assert!(volume.close().await.is_err(), "no checkpoint");
    });
    disk.world().stop();
    reopened_over_bad_leaf(&setup, &disk, count);
}

/// A disk with a closed volume of `count` names.
fn disk_of_names(setup: &Setup, count: u32) -> SimDisk {
    let disk = setup.blank();
    disk.world().run(async {
        let volume = open(setup, &disk).await.unwrap();
        many_names(&volume, count).await;
        volume.close().await.unwrap();
    });
    disk.world().stop();
    disk.in_world(SimWorld::new(2))
}

/// Makes a checkpoint after changes of `count` inodes. `spoil` gets the device addresses of both
/// copies of a leaf that the checkpoint has to change.
async fn checkpoint_over_leaf(
    setup: &Setup,
    disk: &SimDisk,
    count: u32,
    spoil: impl FnOnce([u64; 2]),
) -> (Volume, Result<()>) {
    let volume = open_with(setup, disk, |options| options.node_cache_bytes = 0).await.unwrap();
    let mut ino = Ino::ROOT;
    for n in 0..count {
        ino = volume.lookup(Ino::ROOT, name(&format!("f{n}"))).await.unwrap().ino;
        let perm = SetAttr { perm: Some(0o600), ..SetAttr::default() };
        volume.setattr(ino, &perm).await.unwrap();
    }
    let (places, before) = spoil_leaf(&volume, disk, Key::Inode(ino.0)).await;
    let offsets = places.map(|place| volume.0.layout.device_offset(place));
    offsets.into_iter().for_each(|at| disk.poke(at, &before));
    spoil(offsets);
    let done = volume.checkpoint().await;
    (volume, done)
}

fn unreadable(at: u64) -> FaultRule {
    failing(BioOp::Read).within(at..at + NODE as u64)
}

/// The story: the device could read neither copy of a leaf any more, and nothing else failed. Each
/// checkpoint failed with that error, and changes waited in memory up to their limit.
#[test]
fn checkpoint_over_unreadable_leaf_turns_volume_read_only() {
    let setup = Setup { inode_cache_bytes: 1 << 20, ..setup(0) };
    let count = 200;
    let disk = disk_of_names(&setup, count);
    disk.world().run(async {
        let spoil =
            |at: [u64; 2]| at.into_iter().for_each(|at| disk.inject(unreadable(at).sticky()));
        let (volume, done) = checkpoint_over_leaf(&setup, &disk, count, spoil).await;
        let error = done.expect_err("a leaf is lost");
        let stop = volume.stopped().unwrap_or_else(|| panic!("it goes on after {error}"));
        assert!(stop.to_string().contains("neither copy of the node"), "{stop}");
        let refused = create(&volume, "new").await.err().expect("F11");
        assert_eq!(refused.kind(), ErrorKind::ReadOnly, "{refused}");
        assert!(volume.0.state.lock().queue().is_empty(), "what was accepted is in the log");
    });
    disk.world().stop();
    disk.heal();
    // If the device reads the leaf again, the next opening finds everything.
    let disk = disk.power_cut(1).in_world(SimWorld::new(3));
    disk.world().run(async {
        let volume = open(&setup, &disk).await.unwrap();
        for n in 0..count {
            let attr = volume.lookup(Ino::ROOT, name(&format!("f{n}"))).await.unwrap();
            assert_eq!(attr.perm, 0o600, "f{n}");
        }
    });
    disk.world().stop();
}

/// Reads of both copies of a leaf fail once, or all reads fail for a while: that passes, so the
/// volume does not turn read-only.
#[test]
fn checkpoint_over_transiently_unreadable_leaf_is_tried_again() {
    for is_whole_device in [false, true] {
        let setup = Setup { inode_cache_bytes: 1 << 20, ..setup(0) };
        let disk = disk_of_names(&setup, 200);
        disk.world().run(async {
            let spoil = |at: [u64; 2]| match is_whole_device {
                true => disk.inject(failing(BioOp::Read).sticky()),
                false => at.into_iter().for_each(|at| disk.inject(unreadable(at))),
            };
            let (volume, done) = checkpoint_over_leaf(&setup, &disk, 200, spoil).await;
            // Read-ahead may meet both failures: then the checkpoint succeeds.
            assert!(!is_whole_device || done.is_err(), "it could not be read");
            if let Err(error) = done {
                assert_eq!(error.kind(), ErrorKind::Io, "{error}");
            }
            assert!(volume.stopped().is_none(), "it may pass");
            disk.heal();
            volume.checkpoint().await.unwrap();
            volume.close().await.unwrap();
        });
        disk.world().stop();
    }
}

/// All reads fail, and work again after `reads` of them, also between the last read of a node and
/// that of a slot. A node that is unreadable for a moment is not lost.
#[test]
fn outage_that_ends_at_any_read_of_checkpoint_stops_nothing() {
    let mut failed = 0;
    for reads in 1..=12 {
        let setup = Setup { inode_cache_bytes: 1 << 20, ..setup(0) };
        let disk = disk_of_names(&setup, 200);
        disk.world().run(async {
            let outage = || disk.inject(failing(BioOp::Read).times(reads));
            let (volume, done) = checkpoint_over_leaf(&setup, &disk, 200, |_| outage()).await;
            failed += u32::from(done.is_err());
            assert!(volume.stopped().is_none(), "it has passed after {reads} reads");
            disk.heal();
            volume.checkpoint().await.unwrap();
            volume.close().await.unwrap();
        });
        disk.world().stop();
    }
    assert!(failed > 4, "the outage meets checkpoints: {failed}");
}

/// The story: a direct write had reserved its place when the volume turned read-only. Its caller
/// got success, but the write was not published, and its bytes were gone. A sync after that failed
/// because of the times alone, before it committed the content.
#[test]
fn write_reserved_before_stop_is_published_and_synced_after_it() {
    for data_only in [true, false] {
        let setup = setup(0);
        let disk = setup.blank();
        disk.world().run(async {
            let volume = open(&setup, &disk).await.unwrap();
            let (_, file) = create(&volume, "f").await.unwrap();
            write(&file, 0, &[2; 2 * BLOCK]).await.unwrap();
            volume.syncfs().await.unwrap();
            volume.checkpoint().await.unwrap();
            disk.inject(FaultRule::on(BioOp::Write, Fault::Slow(1_000_000_000)));
            let (block, keep) = (AlignedBuf::copy_of(&[3; BLOCK]), Privileges::Keep);
            let mut work = file.write(0, block, IoFlags::DIRECT, keep);
            let begun = poll_fn(|cx| Poll::Ready(work.as_mut().poll(cx).is_pending())).await;
            assert!(
                begun && !volume.0.state.lock().space().reservations().is_empty(),
                "it has its place"
            );
            // As a checkpoint does when it finds a lost node.
            let lost = Error::new(ErrorKind::Corrupt, "checkpoint", "a node is lost");
            volume.0.state.lock().stop(lost);
            volume.0.is_stopped.store(true, Ordering::Release);
            volume.checkpoint().await.expect_err("a node is lost");
            assert_eq!(work.await.1.expect("it was accepted before").len, BLOCK);
            assert_eq!(read(&file, BLOCK).await, [3; BLOCK]);
            match file.sync(data_only).await {
                Ok(()) => {}
                Err(error) => {
                    assert!(!data_only && error.kind() == ErrorKind::ReadOnly, "times: {error}");
                }
            }
        });
        disk.world().stop();
        disk.heal();
        let bytes = found(&setup, &disk.power_cut(1), "f");
        assert!(bytes[..BLOCK] == [3; BLOCK] && bytes[BLOCK..] == [2; BLOCK], "{data_only}");
    }
}

/// No slot of the superblock can be written for a while: changes are refused with the device's
/// error before they take more memory than they may, and accepted when the device works again.
/// Nothing is lost, so the volume does not turn read-only.
#[test]
fn failing_checkpoints_bound_changes_until_device_works() {
    let setup = Setup { volume_bytes: 64 << 20, inode_cache_bytes: 0, ..setup(0) };
    let disk = setup.blank();
    let most = 64 << 10;
    disk.world().run(async {
        let volume =
            open_with(&setup, &disk, |options| options.overlay_bytes = most).await.unwrap();
        let (_, file) = create(&volume, "content").await.unwrap();
        write(&file, 0, &[5; BLOCK]).await.unwrap();
        volume.syncfs().await.unwrap();
        for at in slot_offsets(disk.config().size) {
            disk.inject(failing(BioOp::Write).within(at..at + BLOCK as u64).sticky());
        }
        assert_eq!(volume.checkpoint().await.unwrap_err().kind(), ErrorKind::Io);
        let (mut made, mut error) = (0, None);
        while made < 2000 && error.is_none() {
            error = create(&volume, &format!("f{made}")).await.err();
            made += u32::from(error.is_none());
        }
        let error = error.expect("F12: memory has a bound");
        assert!(error.kind() == ErrorKind::Io && made > 50, "{made}: {error}");
        let held = || volume.0.state.lock().held().changes;
        for n in 0..40 {
            assert!(create(&volume, &format!("more{n}")).await.is_err());
        }
        assert!(held() < most + 4096, "{} of {most}", held());
        assert!(volume.stopped().is_none(), "nothing is lost");
        assert_eq!(read(&file, BLOCK).await, [5; BLOCK]);
        assert!(volume.lookup(Ino::ROOT, name("f3")).await.is_ok());
        let missing = volume.lookup(Ino::ROOT, name("none")).await.unwrap_err();
        assert_eq!(missing.kind(), ErrorKind::NotFound, "a look-up is no change");
        disk.heal();
        create(&volume, "after").await.expect("the device works again");
        assert!(held() < most / 2, "a checkpoint was made");
        volume.close().await.unwrap();
    });
    disk.world().stop();
}
