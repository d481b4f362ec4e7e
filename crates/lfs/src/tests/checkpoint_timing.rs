//! When the volume makes a checkpoint without a request, and when not. A checkpoint writes much of
//! the tree, so in a busy volume the bytes of its log decide when one is made.
//!
//! No locks.

use super::setup::Setup;
use crate::{OpenOptions, Volume};
use forebay_base::ErrorKind;
use forebay_base::sim_world::SimWorld;
use forebay_base::world::{World, WorldRef};
use forebay_block::{BioOp, DeviceRef};
use forebay_sim::{Fault, FaultRule, SimDisk};
use forebay_vfs::{
    Fallocate, FileKind, FileSystem, Ino, Name, NewInode, OpenFileRef, OpenFlags, Privileges,
    SetAttr,
};
use std::sync::Arc;
use std::time::Duration;

const BLOCK: usize = 4096;

fn setup() -> Setup {
    Setup {
        block_bytes: BLOCK as u32,
        volume_bytes: 16 << 20,
        content: true,
        inline_max: 64 << 10,
        inode_cache_bytes: 8 << 20,
        fua: false,
    }
}

async fn open(disk: &SimDisk, options: OpenOptions) -> (Volume, OpenFileRef) {
    let (device, world): (DeviceRef, WorldRef) = (Arc::new(disk.clone()), disk.world().clone());
    let volume = Volume::open(&device, &world, &options).await.unwrap();
    let (new, flags) = (NewInode::of(FileKind::File, 0o644), OpenFlags::READ | OpenFlags::WRITE);
    let file = volume.create(Ino::ROOT, Name::new(b"f").unwrap(), &new, flags).await.unwrap().1;
    (volume, file)
}

async fn write_synced(file: &OpenFileRef, byte: u8) {
    let buf = forebay_base::buf::AlignedBuf::copy_of(&[byte; BLOCK]);
    let flags = forebay_base::IoFlags::empty();
    file.write(0, buf, flags, Privileges::Keep).await.1.unwrap();
    file.sync(true).await.unwrap();
}

/// The age at which recorded changes must be in a checkpoint.
const AGE: Duration = Duration::from_secs(30);

fn of_age(disk: &SimDisk) -> OpenOptions {
    let world: WorldRef = disk.world().clone();
    OpenOptions { checkpoint_age: AGE, ..setup().options(&world) }
}

/// The content of the file after a power loss.
fn after_cut(disk: &SimDisk) -> Vec<u8> {
    let disk = disk.power_cut(1).in_world(SimWorld::new(2));
    let content = disk.world().run(async {
        let (device, world): (DeviceRef, WorldRef) = (Arc::new(disk.clone()), disk.world().clone());
        let volume = Volume::open(&device, &world, &setup().options(&world)).await.unwrap();
        let found = volume.lookup(Ino::ROOT, Name::new(b"f").unwrap()).await;
        let found = found.expect("the file is there");
        let file = volume.open(found.ino, OpenFlags::READ).await.unwrap();
        let buf = forebay_base::buf::AlignedBuf::new(found.size as usize + 1);
        let (buf, read) = file.read(0, buf, forebay_base::IoFlags::empty()).await;
        assert_eq!(read.unwrap() as u64, found.size);
        buf[..found.size as usize].to_vec()
    });
    disk.world().stop();
    content
}

fn number(volume: &Volume) -> u64 {
    volume.0.checkpoints.number()
}

/// The story: a volume with a constant load of writes made a checkpoint each time that the oldest
/// change was of age. For each synced byte a tenth and more was written again as tree nodes.
/// maintenance.Z14.
#[test]
fn z14_busy_volume_delays_checkpoint_by_age() {
    let disk = setup().blank();
    disk.world().run(async {
        let world: WorldRef = disk.world().clone();
        let checkpoint_age = Duration::from_secs(10);
        let options = OpenOptions { checkpoint_age, ..setup().options(&world) };
        let (volume, file) = open(&disk, options).await;
        let (before, start) = (number(&volume), disk.world().now());
        let age = || Duration::from_nanos(disk.world().now() - start);
        // Enough changes in each second for the volume to count as busy.
        while number(&volume) == before {
            for n in 0..80 {
                let set = SetAttr { perm: Some(0o600 | (n % 8)), ..SetAttr::default() };
                volume.setattr(file.ino(), &set).await.unwrap();
            }
            volume.syncfs().await.unwrap();
            disk.world().sleep(Duration::from_secs(1)).await;
            assert!(age() < Duration::from_secs(60), "Z14: made at last");
        }
        assert!(age() > Duration::from_secs(25), "Z14: not at its age: {:?}", age());
        let before = number(&volume);
        disk.world().sleep(Duration::from_secs(45)).await;
        let before = number(&volume).max(before);
        write_synced(&file, 1).await;
        disk.world().sleep(Duration::from_secs(12)).await;
        assert!(number(&volume) > before, "Z14: at its age where little is written");
        drop(file);
    });
    disk.world().stop();
}

/// The story: changes that no client synced never became durable, because the age of a record
/// counted from the time when a record became durable. A file that had been written out, and its
/// directory, were gone after a crash an hour later. maintenance.Z14.
#[test]
fn z14_unsynced_change_is_durable_at_its_age() {
    // The new name only, or also content that the cache writes out.
    for is_written in [false, true] {
        let disk = setup().blank();
        disk.world().run(async {
            let (volume, file) = open(&disk, of_age(&disk)).await;
            if is_written {
                let buf = forebay_base::buf::AlignedBuf::copy_of(&[7; BLOCK]);
                let flags = forebay_base::IoFlags::empty();
                file.write(0, buf, flags, Privileges::Keep).await.1.unwrap();
            }
            disk.world().sleep(2 * AGE + AGE / 2).await;
            drop((file, volume));
        });
        disk.world().stop();
        let wanted = if is_written { vec![7; BLOCK] } else { Vec::new() };
        assert!(after_cut(&disk) == wanted, "with its content");
    }
}

/// The story: a checkpoint by age that failed, because a flush did, was not tried again. In a
/// volume that had become idle, changes that no client synced stayed in memory. maintenance.Z14.
#[test]
fn z14_failed_checkpoint_by_age_is_tried_again() {
    let disk = setup().blank();
    disk.world().run(async {
        let (volume, file) = open(&disk, of_age(&disk)).await;
        disk.inject(FaultRule::on(BioOp::Flush, Fault::Fail(ErrorKind::Io)).sticky());
        disk.world().sleep(2 * AGE + AGE / 2).await;
        assert!(disk.fault_counts().failed > 0, "the first try");
        disk.heal();
        let before = number(&volume);
        disk.world().sleep(2 * AGE).await;
        assert!(number(&volume) > before, "and another");
        drop((file, volume));
    });
    disk.world().stop();
    assert!(after_cut(&disk).is_empty(), "the file is there");
}

/// The story: the size that the last close of a file recorded made no checkpoint due. It was gone
/// after a crash, however late that was. maintenance.Z14.
#[test]
fn z14_size_recorded_by_close_is_durable_at_its_age() {
    const SIZE: usize = 1 << 20;
    let disk = setup().blank();
    disk.world().run(async {
        let (volume, file) = open(&disk, of_age(&disk)).await;
        // Until the creation of the file is in a checkpoint.
        disk.world().sleep(2 * AGE + AGE / 2).await;
        let how = Fallocate::Allocate { keep_size: false };
        file.fallocate(how, 0, SIZE as u64, Privileges::Keep).await.unwrap();
        drop(file);
        disk.world().sleep(2 * AGE + AGE / 2).await;
        drop(volume);
    });
    disk.world().stop();
    assert!(after_cut(&disk) == [0; SIZE], "as long as it was");
}

/// The story: a volume that was opened for reading, with less memory for changes than its writer
/// had, made a checkpoint of the recovered changes whenever a client looked up a name. open.O13.
#[test]
fn o13_volume_open_for_reading_is_not_written() {
    const NAMES: usize = 2000;
    let name = |n: usize| format!("{n:0100}");
    let disk = setup().blank();
    disk.world().run(async {
        let checkpoint_age = Duration::ZERO;
        let options = OpenOptions { checkpoint_age, ..of_age(&disk) };
        let (volume, _file) = open(&disk, options).await;
        for n in 0..NAMES {
            let new = NewInode::of(FileKind::File, 0o644);
            let name = name(n);
            volume.mknod(Ino::ROOT, Name::new(name.as_bytes()).unwrap(), &new).await.unwrap();
        }
        volume.syncfs().await.unwrap();
    });
    disk.world().stop();
    let disk = disk.power_cut(1).in_world(SimWorld::new(2));
    disk.world().run(async {
        let (device, world): (DeviceRef, WorldRef) = (Arc::new(disk.clone()), disk.world().clone());
        let options = setup().options(&world);
        let options = OpenOptions { read_only: true, overlay_bytes: 64 << 10, ..options };
        let volume = Volume::open(&device, &world, &options).await.unwrap();
        assert!(volume.0.state.lock().changes_bytes() > 64 << 10, "more than it may keep");
        for n in 0..10 {
            volume.lookup(Ino::ROOT, Name::new(name(n).as_bytes()).unwrap()).await.unwrap();
        }
        disk.world().sleep(2 * AGE).await;
        let ops: Vec<BioOp> = disk.log().iter().map(|entry| entry.op).collect();
        assert!(ops.contains(&BioOp::Read) && ops.iter().all(|op| *op == BioOp::Read), "{ops:?}");
        let error = volume.checkpoint().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ReadOnly, "{error}");
    });
    disk.world().stop();
}

/// The story: content in records counted towards the length of the log, though a checkpoint does
/// not remove it. Each twelfth of the volume that was synced cost a checkpoint.
#[test]
fn content_in_the_log_does_not_make_it_long() {
    let disk = setup().blank();
    disk.world().run(async {
        let world: WorldRef = disk.world().clone();
        let checkpoint_age = Duration::ZERO;
        let options = OpenOptions { checkpoint_age, ..setup().options(&world) };
        let (volume, file) = open(&disk, options).await;
        let before = number(&volume);
        let part = (16 << 20) / 12 / BLOCK as u64;
        for n in 0..part - 16 {
            write_synced(&file, n as u8).await;
        }
        assert_eq!(number(&volume), before, "a twelfth of content, and a little less of records");
        for n in 0..32 {
            write_synced(&file, n).await;
        }
        disk.world().sleep(Duration::from_millis(1)).await;
        assert!(number(&volume) > before, "a twelfth of records");
        drop(file);
    });
    disk.world().stop();
}

/// The story: the space of removed files became free with the second checkpoint by age, a minute
/// and more later. A writer that wrote the same files anew meanwhile got space that the image had
/// never used, and the host had to allocate blocks for it.
#[test]
fn w17_segments_of_removed_files_become_free_unrequested() {
    const CHUNK: usize = 256 << 10;
    let setup = Setup { volume_bytes: 64 << 20, ..setup() };
    let disk = setup.blank();
    disk.world().run(async {
        let world: WorldRef = disk.world().clone();
        let checkpoint_age = Duration::ZERO;
        let options = OpenOptions { checkpoint_age, ..setup.options(&world) };
        let (volume, file) = open(&disk, options).await;
        let free = || volume.0.state.lock().space().segments().free() * (64 << 10);
        let name = |name: &'static str| Name::new(name.as_bytes()).unwrap();
        let make = async |as_name| {
            let (new, flags) = (NewInode::of(FileKind::File, 0o644), OpenFlags::WRITE);
            volume.create(Ino::ROOT, name(as_name), &new, flags).await.unwrap().1
        };
        for bytes in [4 * CHUNK as u64, 34 << 20] {
            let (start, big) = (free(), make("big").await);
            for at in (0..bytes).step_by(CHUNK) {
                let buf = forebay_base::buf::AlignedBuf::copy_of(&[1; CHUNK]);
                let flags = forebay_base::IoFlags::empty();
                big.write(at, buf, flags, Privileges::Keep).await.1.unwrap();
            }
            big.sync(true).await.unwrap();
            drop(big);
            volume.unlink(Ino::ROOT, name("big")).await.unwrap();
            let (before, much) = (number(&volume), bytes >= 32 << 20);
            write_synced(&file, 1).await;
            disk.world().sleep(Duration::from_secs(1)).await;
            assert_eq!(number(&volume) >= before + 2, much, "{bytes} bytes are much: {much}");
            assert_eq!(free() + bytes / 8 > start, much, "{} of {start} are free", free());
        }
        drop(file);
    });
    disk.world().stop();
}

/// The story: removals take memory until they are merged, but the test whether a checkpoint is due
/// counted less for them. So the checkpoint began only when a removal had to wait for it.
#[test]
fn changes_in_memory_are_merged_before_a_writer_waits() {
    let disk = setup().blank();
    disk.world().run(async {
        let world: WorldRef = disk.world().clone();
        let (checkpoint_age, overlay_bytes) = (Duration::ZERO, 256 << 10);
        let options = OpenOptions { checkpoint_age, overlay_bytes, ..setup().options(&world) };
        let (volume, _file) = open(&disk, options).await;
        let text = |n: u32| format!("file{n}");
        let new = NewInode::of(FileKind::File, 0o644);
        for n in 0..900 {
            let name = text(n);
            volume.mknod(Ino::ROOT, Name::new(name.as_bytes()).unwrap(), &new).await.unwrap();
        }
        volume.checkpoint().await.unwrap();
        let before = number(&volume);
        let waits = || volume.0.state.lock().changes_bytes();
        let mut n = 0;
        while waits() < 140 << 10 {
            let name = text(n);
            volume.unlink(Ino::ROOT, Name::new(name.as_bytes()).unwrap()).await.unwrap();
            n += 1;
        }
        assert_eq!(number(&volume), before, "no removal had to wait");
        volume.syncfs().await.unwrap();
        disk.world().sleep(Duration::from_secs(1)).await;
        assert!(number(&volume) > before && waits() < 100 << 10, "{} bytes wait", waits());
    });
    disk.world().stop();
}
