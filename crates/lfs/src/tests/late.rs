//! Late, dropped or outdated work: a sync of a mapping that was released, truncates without the
//! writes that follow them, dropped checkpoints, slots of an older volume.
//!
//! No locks.

use crate::format::usage::Segment;
use crate::space::usage_table::write_usage;
use crate::tests::reuse::{create, open, read, setup, write};
use crate::tests::setup::Setup;
use crate::{CreateOptions, OpenOptions, Volume};
use forebay_base::sim_world::SimWorld;
use forebay_base::world::{World, WorldRef};
use forebay_block::{BioOp, DeviceRef};
use forebay_sim::{SimConfig, SimDisk};
use forebay_vfs::{
    FileKind, FileSystem, Ino, Name, NewInode, OpenFileRef, OpenFlags, RenameFlags, SetAttr,
    Timestamp,
};
use std::future::Future;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

const BLOCK: usize = 4096;

/// Opens the file of this name, truncated to 0 bytes.
async fn cut(volume: &Volume, name: &str) -> OpenFileRef {
    let flags = OpenFlags::READ | OpenFlags::WRITE | OpenFlags::TRUNCATE;
    let (name, new) = (Name::new(name.as_bytes()).unwrap(), NewInode::of(FileKind::File, 0o644));
    volume.create(Ino::ROOT, name, &new, flags).await.unwrap().1
}

/// The content of a file after the volume on this disk was opened.
fn found(disk: &SimDisk, name: &str) -> Vec<u8> {
    let disk = disk.in_world(SimWorld::new(4));
    let bytes = disk.world().run(async {
        let volume = open(&setup(0), &disk).await.unwrap();
        let (_, file) = create(&volume, name).await.unwrap();
        read(&file, 32 * BLOCK).await
    });
    disk.world().stop();
    bytes
}

/// The story: a sync of the volume held a file's mapping. Before the sync reached it, other clients
/// had synced, closed, truncated and rewritten the file. The sync then gave the file its old size,
/// filled with zeros. content.D12.
#[test]
fn released_mapping_makes_no_file_longer() {
    let setup = setup(0);
    let disk = setup.blank();
    disk.world().run(async {
        let volume = open(&setup, &disk).await.unwrap();
        let (ino, file) = create(&volume, "f").await.unwrap();
        write(&file, 0, &[1; 16 * BLOCK]).await.unwrap();
        let taken_up = volume.0.files.content("test", ino).unwrap();
        file.sync(true).await.unwrap();
        drop(file);
        volume.syncfs().await.unwrap();
        let file = cut(&volume, "f").await;
        write(&file, 0, &[2; 100]).await.unwrap();
        file.sync(true).await.unwrap();
        taken_up.file.sync(&taken_up.handle).await.unwrap();
        taken_up.file.write_out().await.unwrap();
        drop(file);
        volume.syncfs().await.unwrap();
        assert_eq!(volume.getattr(ino).await.unwrap().size, 100);
    });
    disk.world().stop();
    assert_eq!(found(&disk.power_cut(1), "f"), [2; 100]);
}

/// The story: a file was truncated to nothing, written, and closed. A checkpoint that no client had
/// requested made the truncate durable. A power loss left neither the old content nor the new.
/// maintenance.Z15.
#[test]
fn durable_truncate_takes_replacing_content_along() {
    // The checkpoint is made by age, for many changes in memory, or for a `statfs` after a large
    // removal.
    for (by_age, asks) in [(true, false), (false, false), (false, true)] {
        let setup = setup(0);
        let disk = setup.blank();
        disk.world().run(async {
            let (device, world): (DeviceRef, WorldRef) =
                (Arc::new(disk.clone()), disk.world().clone());
            let age = Duration::from_secs(if by_age { 1 } else { 1000 });
            let overlay_bytes = if by_age { 32 << 20 } else { 32 << 10 };
            let options =
                OpenOptions { checkpoint_age: age, overlay_bytes, ..setup.options(&world) };
            let volume = Volume::open(&device, &world, &options).await.unwrap();
            let (_, file) = create(&volume, "f").await.unwrap();
            write(&file, 0, &[1; 4 * BLOCK]).await.unwrap();
            file.sync(true).await.unwrap();
            drop(file);
            let (_, big) = create(&volume, "big").await.unwrap();
            for at in 0..16 {
                write(&big, at * 4 * BLOCK as u64, &[3; 4 * BLOCK]).await.unwrap();
            }
            big.sync(true).await.unwrap();
            drop(big);
            volume.checkpoint().await.unwrap();
            if asks {
                volume.unlink(Ino::ROOT, Name::new(b"big").unwrap()).await.unwrap();
            }
            let (_, other) = create(&volume, "other").await.unwrap();
            other.sync(true).await.unwrap();
            let before = volume.0.checkpoints.superblock().checkpoint;
            let file = cut(&volume, "f").await;
            write(&file, 0, &[2; 4 * BLOCK]).await.unwrap();
            drop(file);
            // The checkpoint comes before write-back writes the file because of its age.
            match by_age {
                true => disk.world().sleep(Duration::from_millis(1500)).await,
                false if asks => _ = volume.statfs().await.unwrap(),
                false => {
                    let mut n = 0;
                    while volume.0.checkpoints.superblock().checkpoint == before {
                        create(&volume, &format!("n{n}")).await.unwrap();
                        n += 1;
                        assert!(n < 1000, "it is relieved");
                    }
                }
            }
            assert!(volume.0.checkpoints.superblock().checkpoint > before, "it was made");
        });
        disk.world().stop();
        for seed in 0..4 {
            let bytes = found(&disk.power_cut(seed), "f");
            assert!(
                bytes == [1; 4 * BLOCK] || bytes == [2; 4 * BLOCK],
                "{by_age}, {asks}, {seed}: {} bytes",
                bytes.len()
            );
        }
    }
}

/// The story: a file was made, written, and exchanged with another one. After a power loss the name
/// had the new inode, without its content.
#[test]
fn exchanged_file_is_written_before_rename() {
    let setup = setup(0);
    let disk = setup.blank();
    disk.world().run(async {
        let volume = open(&setup, &disk).await.unwrap();
        let (_, target) = create(&volume, "target").await.unwrap();
        write(&target, 0, &[1; BLOCK]).await.unwrap();
        volume.syncfs().await.unwrap();
        // Both files have content that is not written out.
        write(&target, 0, &[2; BLOCK]).await.unwrap();
        let (_, new) = create(&volume, "new").await.unwrap();
        write(&new, 0, &[3; BLOCK]).await.unwrap();
        let names = [b"new".as_slice(), b"target"].map(|name| Name::new(name).unwrap());
        let exchange = RenameFlags::EXCHANGE;
        volume.rename(Ino::ROOT, names[0], Ino::ROOT, names[1], exchange).await.unwrap();
        let (_, other) = create(&volume, "other").await.unwrap();
        other.sync(true).await.unwrap();
    });
    disk.world().stop();
    let cut = disk.power_cut(1);
    assert_eq!(found(&cut, "target"), [3; BLOCK]);
    assert_eq!(found(&cut, "new"), [2; BLOCK]);
}

/// The story: places for the usage table of a dropped checkpoint were allocated again for nodes of
/// the next checkpoint's tree of files, and then a second time. nodes.N11.
#[test]
fn places_of_dropped_usage_table_are_not_given_out_twice() {
    let setup = setup(0);
    let disk = setup.blank();
    disk.world().run(async {
        let volume = open(&setup, &disk).await.unwrap();
        // More leaves than one batch of writes.
        let entries = vec![Segment::FREE; 40 * 3 * 64];
        let places: Vec<_> = (0..44).map(|_| volume.0.store.take().unwrap()).collect();
        let mut making =
            Box::pin(write_usage(&volume.0.tree, &volume.0.store, &entries, &places, 9));
        let waits = making.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(waits.is_pending(), "nodes are on their way");
        drop(making);
        let next = volume.0.store.take().unwrap();
        assert!(!places.contains(&next), "{next:?} was taken before");
    });
    disk.world().stop();
}

/// The story: files that were truncated by path, and not opened, stayed in memory for ever.
#[test]
fn files_truncated_by_path_leave_memory() {
    let setup = setup(0);
    let disk = setup.blank();
    disk.world().run(async {
        let volume = open(&setup, &disk).await.unwrap();
        let mut inodes = Vec::new();
        for n in 0..120 {
            let (ino, file) = create(&volume, &format!("f{n}")).await.unwrap();
            write(&file, 0, &[1; 10]).await.unwrap();
            inodes.push(ino);
        }
        volume.syncfs().await.unwrap();
        for ino in &inodes {
            volume.setattr(*ino, &SetAttr::size(0)).await.unwrap();
        }
        volume.syncfs().await.unwrap();
        for ino in &inodes {
            assert_eq!(volume.getattr(*ino).await.unwrap().size, 0);
        }
        let left = volume.0.state.lock().names().node_count();
        assert!(left < 40, "{left} of {} stay", inodes.len());
        // New content after such a truncate is still written out before a commit of another file.
        let (_, file) = create(&volume, "f7").await.unwrap();
        write(&file, 0, &[2; BLOCK]).await.unwrap();
        drop(file);
        let (_, other) = create(&volume, "other").await.unwrap();
        other.sync(true).await.unwrap();
    });
    disk.world().stop();
    assert_eq!(found(&disk.power_cut(1), "f7"), [2; BLOCK]);
}

/// The story: a device had a large volume, was made smaller, got another volume, and was made
/// larger again. The slots of the old volume at its end were taken for slots of the new one.
/// slots.U13.
#[test]
fn slots_of_another_volume_do_not_count() {
    let small = setup(0);
    let large = Setup { volume_bytes: 4 << 20, ..setup(0) };
    let disk = large.blank();
    disk.world().run(async {
        let volume = open(&large, &disk).await.unwrap();
        for _ in 0..9 {
            volume.checkpoint().await.unwrap();
        }
        volume.close().await.unwrap();
    });
    disk.world().stop();
    let world = SimWorld::new(1);
    let config = SimConfig { size: small.volume_bytes, ..SimConfig::default() };
    let part = SimDisk::new(world.clone(), config);
    let device: DeviceRef = Arc::new(part.clone());
    let asked: WorldRef = world.clone();
    world.run(async {
        let options = CreateOptions {
            segment_bytes: 64 << 10,
            ..CreateOptions::new([8; 16], [1; 16], Timestamp::new(2, 0))
        };
        Volume::create(&device, &asked, &options).await.unwrap();
        let volume = open(&small, &part).await.unwrap();
        let (_, file) = create(&volume, "f").await.unwrap();
        write(&file, 0, &[5; BLOCK]).await.unwrap();
        volume.close().await.unwrap();
    });
    world.stop();
    disk.poke(0, &part.peek(0, small.volume_bytes as usize));
    assert_eq!(found(&disk, "f"), [5; BLOCK]);
}

/// The story: a checkpoint failed although its slot was durable. The previous state was written
/// over that slot, without a flush, and the process was killed. The next process read the previous
/// state, and wrote its nodes over those of the failed checkpoint. A power loss brought the slot of
/// the failed checkpoint back. open.O11.
#[test]
fn o11_opening_flushes_what_it_read_before_it_writes() {
    let setup = setup(0);
    let disk = setup.blank();
    disk.world().run(async {
        let volume = open(&setup, &disk).await.unwrap();
        let (_, file) = create(&volume, "f").await.unwrap();
        write(&file, 0, &[1; BLOCK]).await.unwrap();
        file.sync(true).await.unwrap();
    });
    let killed = disk.process_crash(1).in_world(SimWorld::new(4));
    disk.world().stop();
    killed.world().run(async { drop(open(&setup, &killed).await.unwrap()) });
    killed.world().stop();
    let log = killed.log();
    let first = log.iter().find(|entry| entry.op != BioOp::Read).expect("a checkpoint");
    assert_eq!(first.op, BioOp::Flush, "O11: it wrote first");
}
