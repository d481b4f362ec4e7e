//! Space becomes free: segments are used again, for ever; and the findings of fsck in volumes with
//! such use.
//!
//! No locks.

use crate::format::change::{Blocks, Change};
use crate::format::place::Place;
use crate::map::overlay::Where;
use crate::space::Need;
use crate::tests::setup::Setup;
use crate::volume::fsck::{FindingKind, FsckReport, fsck};
use crate::{OpenOptions, Volume};
use forebay_base::buf::AlignedBuf;
use forebay_base::sim_world::SimWorld;
use forebay_base::world::{World, WorldRef, split_mix};
use forebay_base::{ErrorKind, IoFlags, Result};
use forebay_block::DeviceRef;
use forebay_sim::SimDisk;
use forebay_vfs::{
    FileKind, FileSystem, Ino, Name, NewInode, OpenFileRef, OpenFlags, Privileges, SetAttr,
};
use std::sync::Arc;
use std::time::Duration;

const BOTH: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);
const FILE_BYTES: u64 = 256 << 10;

pub fn setup(inline_max: u32) -> Setup {
    let (block_bytes, volume_bytes) = (4096, 2 << 20);
    Setup {
        block_bytes,
        volume_bytes,
        content: true,
        inline_max,
        inode_cache_bytes: 3000,
        fua: false,
    }
}

pub async fn open(setup: &Setup, disk: &SimDisk) -> Result<Volume> {
    let device: DeviceRef = Arc::new(disk.clone());
    let world: WorldRef = disk.world().clone();
    Volume::open(&device, &world, &setup.options(&world)).await
}

pub async fn create(volume: &Volume, name: &str) -> Result<(Ino, OpenFileRef)> {
    let name = Name::new(name.as_bytes())?;
    let new = NewInode::of(FileKind::File, 0o644);
    let (attr, file) = volume.create(Ino::ROOT, name, &new, BOTH).await?;
    Ok((attr.ino, file))
}

pub async fn write(file: &OpenFileRef, offset: u64, bytes: &[u8]) -> Result<usize> {
    let (none, keep) = (IoFlags::empty(), Privileges::Keep);
    file.write(offset, AlignedBuf::copy_of(bytes), none, keep).await.1.map(|done| done.len)
}

pub async fn read(file: &OpenFileRef, len: usize) -> Vec<u8> {
    let (buf, done) = file.read(0, AlignedBuf::new(len), IoFlags::empty()).await;
    buf[..done.unwrap()].to_vec()
}

pub fn check(disk: &SimDisk) -> FsckReport {
    let device: DeviceRef = Arc::new(disk.clone());
    let world: WorldRef = disk.world().clone();
    let mut last = 0;
    let report = disk.world().run(fsck(&device, &world, &mut |progress| {
        assert!(progress.done_bytes > last, "it gets on");
        last = progress.done_bytes;
    }));
    disk.world().stop();
    report.unwrap()
}

/// A small volume is overwritten many times over, with syncs and without, in records and in runs.
/// It never runs out of space, and all content is there after a power loss.
#[test]
fn small_volume_is_overwritten_without_end() {
    for inline_max in [0, 64 << 10] {
        let setup = setup(inline_max);
        let disk = setup.blank();
        let mut model = vec![0u8; FILE_BYTES as usize];
        disk.world().run(async {
            let volume = open(&setup, &disk).await.unwrap();
            let (_, file) = create(&volume, "f").await.unwrap();
            let mut rng = u64::from(inline_max);
            for round in 0..900u64 {
                let at = split_mix(&mut rng) % (FILE_BYTES / 4096 - 4) * 4096;
                let len = (1 + split_mix(&mut rng) % 4) * 4096;
                let bytes = vec![round as u8 | 1; len as usize];
                let done = write(&file, at, &bytes).await;
                done.unwrap_or_else(|e| panic!("round {round}, {inline_max}: {e}"));
                model[at as usize..(at + len) as usize].copy_from_slice(&bytes);
                if round % 3 != 0 {
                    let done = file.sync(round % 2 == 0).await;
                    done.unwrap_or_else(|e| panic!("round {round}, {inline_max}: {e}"));
                }
            }
            volume.syncfs().await.unwrap();
            let number = volume.0.checkpoints.superblock().checkpoint;
            assert!(number > 20, "{number} checkpoints");
        });
        disk.world().stop();
        let disk = disk.power_cut(1).in_world(SimWorld::new(2));
        let report = check(&disk.in_world(SimWorld::new(3)));
        assert!(report.is_clean(), "{:?}", report.findings);
        assert!(report.content_bytes > 0 && report.inodes == 2 && report.nodes > 1);
        disk.world().run(async {
            let volume = open(&setup, &disk).await.unwrap();
            let name = Name::new(b"f").unwrap();
            let ino = volume.lookup(Ino::ROOT, name).await.unwrap().ino;
            let file = volume.open(ino, OpenFlags::READ).await.unwrap();
            let found = read(&file, model.len()).await;
            // Everything was synced, up to the highest block that was written.
            let end = model.iter().rposition(|byte| *byte != 0).unwrap() + 1;
            assert!(found[..] == model[..end], "what was synced is there");
        });
        disk.world().stop();
    }
}

/// segment.W16: segments that become free are discarded, and live content is not. The content is
/// right after many overwrites with discards.
#[test]
fn w16_freed_segments_are_discarded_first() {
    let setup = setup(0);
    let disk = setup.blank();
    let mut model = vec![0u8; FILE_BYTES as usize];
    let discarded = disk.world().run(async {
        let device: DeviceRef = Arc::new(disk.clone());
        let world: WorldRef = disk.world().clone();
        let options = OpenOptions { discard: true, ..setup.options(&world) };
        let volume = Volume::open(&device, &world, &options).await.unwrap();
        let (_, file) = create(&volume, "f").await.unwrap();
        let mut rng = 5;
        for round in 0..600u64 {
            let at = split_mix(&mut rng) % (FILE_BYTES / 4096) * 4096;
            let bytes = vec![round as u8 | 1; 4096];
            write(&file, at, &bytes).await.unwrap();
            model[at as usize..at as usize + 4096].copy_from_slice(&bytes);
            if round % 5 == 0 {
                file.sync(true).await.unwrap();
            }
        }
        volume.syncfs().await.unwrap();
        volume.clean_stats().discarded
    });
    disk.world().stop();
    let told = disk.log().iter().filter(|entry| entry.op == forebay_block::BioOp::Discard).count();
    assert!(discarded > 5 && discarded == told as u64, "{discarded} {told}");
    let disk = disk.power_cut(1).in_world(SimWorld::new(2));
    let report = check(&disk.in_world(SimWorld::new(3)));
    assert!(report.is_clean(), "{:?}", report.findings);
    disk.world().run(async {
        let volume = open(&setup, &disk).await.unwrap();
        let ino = volume.lookup(Ino::ROOT, Name::new(b"f").unwrap()).await.unwrap().ino;
        let file = volume.open(ino, OpenFlags::READ).await.unwrap();
        let found = read(&file, model.len()).await;
        let end = model.iter().rposition(|byte| *byte != 0).unwrap() + 1;
        assert!(found[..] == model[..end], "what was synced is there");
    });
    disk.world().stop();
}

/// maintenance.Z14: a synced change is in a checkpoint when it is of age. An idle volume makes no
/// further checkpoint.
#[test]
fn z14_change_of_age_is_in_checkpoint() {
    let setup = setup(0);
    let disk = setup.blank();
    disk.world().run(async {
        let volume = open(&setup, &disk).await.unwrap();
        let world = disk.world().clone();
        let (_, file) = create(&volume, "f").await.unwrap();
        write(&file, 0, &[1; 4096]).await.unwrap();
        file.sync(true).await.unwrap();
        let number = || volume.0.checkpoints.superblock().checkpoint;
        let first = number();
        World::sleep(&*world, Duration::from_secs(29)).await;
        assert_eq!(number(), first, "it is not old yet");
        World::sleep(&*world, Duration::from_secs(2)).await;
        assert_eq!(number(), first + 1);
        World::sleep(&*world, Duration::from_secs(200)).await;
        assert_eq!(number(), first + 1, "nothing has changed since");
        write(&file, 0, &[2; 4096]).await.unwrap();
        file.sync(true).await.unwrap();
        World::sleep(&*world, Duration::from_secs(31)).await;
        assert_eq!(number(), first + 2);
    });
    disk.world().stop();
}

/// The story: a block was written into a hole and synced. The recovery applied its record without
/// loading the inode, which reported the old number of stored bytes from then on.
#[test]
fn blocks_stored_by_recovery_count_for_their_file() {
    let setup = setup(0);
    let disk = setup.blank();
    disk.world().run(async {
        let volume = open(&setup, &disk).await.unwrap();
        let (ino, file) = create(&volume, "f").await.unwrap();
        volume.setattr(ino, &SetAttr::size(32 * 4096)).await.unwrap();
        write(&file, 0, &[1; 4096]).await.unwrap();
        volume.syncfs().await.unwrap();
        volume.checkpoint().await.unwrap();
        write(&file, 8 * 4096, &[2; 3 * 4096]).await.unwrap();
        file.sync(true).await.unwrap();
    });
    disk.world().stop();
    let disk = disk.power_cut(1).in_world(SimWorld::new(2));
    disk.world().run(async {
        let volume = open(&setup, &disk).await.unwrap();
        let found = volume.lookup(Ino::ROOT, Name::new(b"f").unwrap()).await.unwrap();
        assert_eq!(found.allocated_bytes, 4 * 4096);
    });
    disk.world().stop();
}

/// The story: recovery took a file for a removed one if each of its blocks was punched, up to the
/// last that a file can have. From then on its inode had the old number of stored bytes.
#[test]
fn blocks_punched_by_recovery_count_for_their_file() {
    let setup = setup(0);
    let disk = setup.blank();
    disk.world().run(async {
        let volume = open(&setup, &disk).await.unwrap();
        let (ino, file) = create(&volume, "f").await.unwrap();
        write(&file, 0, &[1; 2 * 4096]).await.unwrap();
        volume.syncfs().await.unwrap();
        volume.checkpoint().await.unwrap();
        let inner = &volume.0;
        {
            let mut state = inner.state.lock();
            let data_id = state.names().node(ino.0).unwrap().inode.data_id;
            let end = inner.layout.geometry.max_blocks();
            for (block, blocks) in [(2, end - 2), (0, 2)] {
                let punch = Change::Punch(Blocks { data_id, block, blocks }, state.draw());
                state.append(&[punch], Need::Urgent).unwrap();
            }
        }
        volume.syncfs().await.unwrap();
    });
    disk.world().stop();
    let disk = disk.power_cut(1).in_world(SimWorld::new(2));
    disk.world().run(async {
        let volume = open(&setup, &disk).await.unwrap();
        let found = volume.lookup(Ino::ROOT, Name::new(b"f").unwrap()).await.unwrap();
        assert_eq!(found.allocated_bytes, 0);
    });
    disk.world().stop();
    let report = check(&disk.in_world(SimWorld::new(3)));
    assert!(report.is_clean(), "{:?}", report.findings);
}

/// A volume is filled, emptied and filled again: as much fits each time. After each removal the
/// free space is what it was at first, to 1 % and half of a segment.
#[test]
fn space_is_free_again_after_files_are_removed() {
    let setup = setup(0);
    let disk = setup.blank();
    disk.world().run(async {
        let volume = open(&setup, &disk).await.unwrap();
        let before = volume.statfs().await.unwrap().blocks_available;
        let mut fitted = Vec::new();
        for _ in 0..4 {
            let mut names = Vec::new();
            loop {
                let name = format!("f{}", names.len());
                let Ok((_, file)) = create(&volume, &name).await else { break };
                names.push(name);
                if write(&file, 0, &[7; 20_000]).await.is_err() {
                    break;
                }
                file.sync(true).await.expect("what was accepted has room");
            }
            fitted.push(names.len());
            for name in names {
                let name = Name::new(name.as_bytes()).unwrap();
                volume.unlink(Ino::ROOT, name).await.expect("removing works on a full volume");
            }
            volume.syncfs().await.expect("and syncing");
            // At one of these checkpoints the log leaves its segment.
            for _ in 0..5 {
                volume.checkpoint().await.unwrap();
            }
            let after = volume.statfs().await.unwrap().blocks_available;
            // Up to half of the open segment, 8 blocks, is dead and not free yet.
            assert!(after + 8 >= before * 99 / 100, "{after} blocks of {before} after {fitted:?}");
        }
        assert!(fitted[0] > 20 && fitted.iter().all(|n| n + 3 >= fitted[0]), "{fitted:?}");
    });
    disk.world().stop();
    let report = check(&disk.in_world(SimWorld::new(3)));
    assert!(report.is_clean(), "{:?}", report.findings);
}

/// A closed volume with two files, one of them in a directory.
fn closed() -> (Setup, SimDisk, Vec<u64>, u64) {
    let setup = setup(0);
    let disk = setup.blank();
    let (nodes, content) = disk.world().run(async {
        let volume = open(&setup, &disk).await.unwrap();
        let new = NewInode::of(FileKind::Directory, 0o755);
        let dir = volume.mkdir(Ino::ROOT, Name::new(b"d").unwrap(), &new).await.unwrap().ino;
        let new = NewInode::of(FileKind::File, 0o644);
        let made = volume.create(dir, Name::new(b"f").unwrap(), &new, BOTH).await.unwrap();
        write(&made.1, 0, &[5; 3 * 4096]).await.unwrap();
        let ino = made.0.ino;
        drop(made);
        volume.close().await.unwrap();
        let data_id = volume.0.state.lock().names().node(ino.0).unwrap().inode.data_id;
        let Where::Run(at) = volume.0.piece_at(data_id, 1).await.unwrap().0.at else { panic!() };
        let root = volume.0.state.lock().tree().root().places.unwrap();
        let offset = |at: Place| volume.0.layout.device_offset(at);
        let refused = volume.mkdir(Ino::ROOT, Name::new(b"e").unwrap(), &new).await;
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::Shutdown, "it was closed");
        (root.map(offset).to_vec(), offset(at))
    });
    disk.world().stop();
    (setup, disk, nodes, content)
}

pub fn flip(disk: &SimDisk, at: u64) {
    let mut sector = disk.peek(at, 512);
    sector[9] ^= 4;
    disk.poke(at, &sector);
}

/// fsck.E11: fsck names damage with its kind, its file and its offset. A node, which is stored
/// twice, is read from the other copy.
#[test]
fn e11_fsck_names_what_is_damaged() {
    let (setup, disk, nodes, content) = closed();
    let report = check(&disk.in_world(SimWorld::new(1)));
    assert!(report.is_clean() && report.was_closed, "{report:?}");
    let damaged = |at: &[u64]| {
        let disk = disk.in_world(SimWorld::new(2));
        at.iter().for_each(|at| flip(&disk, *at));
        let report = check(&disk.in_world(SimWorld::new(3)));
        assert!(!report.is_clean());
        (report, disk)
    };
    let (report, _) = damaged(&[content]);
    let [finding] = &report.findings[..] else { panic!("{report:?}") };
    assert_eq!((finding.kind, finding.path.as_deref()), (FindingKind::Content, Some(&b"/d/f"[..])));
    assert_eq!((finding.offset, finding.bytes), (Some(4096), Some(4096)));
    for node in &nodes {
        let (report, disk) = damaged(&[*node]);
        assert!(report.is_complete() && report.findings[0].kind == FindingKind::Copy, "{report:?}");
        assert_eq!(report.findings[0].offset, Some(*node));
        disk.world().run(open(&setup, &disk)).unwrap();
    }
    let (report, _) = damaged(&nodes);
    assert!(!report.is_complete(), "{report:?}");
    let (report, _) = damaged(&[4096]);
    assert_eq!(
        (report.findings[0].kind, report.findings[0].offset),
        (FindingKind::Slot, Some(4096))
    );
}

/// open.O13: a volume that is opened for reading is not written to, and nothing in it can be
/// changed.
#[test]
fn o13_reading_leaves_no_trace() {
    let (setup, disk, ..) = closed();
    disk.clear_log();
    disk.world().run(async {
        let device: DeviceRef = Arc::new(disk.clone());
        let world: WorldRef = disk.world().clone();
        let options = OpenOptions { read_only: true, ..setup.options(&world) };
        let volume = Volume::open(&device, &world, &options).await.unwrap();
        let made = create(&volume, "new").await.err().expect("read-only");
        assert_eq!(made.kind(), ErrorKind::ReadOnly, "{made}");
        let dir = volume.lookup(Ino::ROOT, Name::new(b"d").unwrap()).await.unwrap().ino;
        let ino = volume.lookup(dir, Name::new(b"f").unwrap()).await.unwrap().ino;
        let file = volume.open(ino, OpenFlags::READ).await.unwrap();
        assert_eq!(read(&file, 9000).await, [5; 9000]);
        drop(file);
        volume.close().await.unwrap();
    });
    disk.world().stop();
    let wrote = disk.log().iter().any(|entry| entry.op != forebay_block::BioOp::Read);
    assert!(!wrote, "O13");
}
