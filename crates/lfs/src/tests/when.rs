//! When a checkpoint is made by itself, and when not: a checkpoint writes much of the tree, so those of a
//! busy volume are bought with bytes.
//!
//! No locks.

use super::setup::Setup;
use crate::volume::{OpenOptions, Volume};
use forebay_base::world::{World, WorldRef};
use forebay_block::DeviceRef;
use forebay_sim::SimDisk;
use forebay_vfs::{
    FileKind, FileSystem, Ino, Name, NewInode, OpenFileRef, OpenFlags, Privileges, SetAttr,
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

fn number(volume: &Volume) -> u64 {
    volume.0.checkpoints.number()
}

/// A volume that was written all the time made a checkpoint each time that the oldest change was of age: of
/// each byte that was synced a tenth and more was written again as tree. Z14.
#[test]
fn z14_a_busy_volume_waits_longer_for_its_checkpoint_by_age() {
    let disk = setup().blank();
    disk.world().run(async {
        let world: WorldRef = disk.world().clone();
        let checkpoint_age = Duration::from_secs(10);
        let options = OpenOptions { checkpoint_age, ..setup().options(&world) };
        let (volume, file) = open(&disk, options).await;
        let (before, start) = (number(&volume), disk.world().now());
        let age = || Duration::from_nanos(disk.world().now() - start);
        // Each second so many that it is busy.
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

/// Content that goes into the log stays there and counted as log: each twelfth of the volume that was synced
/// cost a checkpoint.
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
