//! Cases of names that only a volume has: files without a name after a crash, searches for dirty
//! data, names that are not in memory.
//!
//! No locks.

use crate::tests::setup::Setup;
use crate::{CreateOptions, OpenOptions, Volume};
use forebay_base::buf::AlignedBuf;
use forebay_base::task::block_on;
use forebay_base::world::{RealWorld, WorldRef};
use forebay_base::{ErrorKind, IoFlags};
use forebay_block::{DeviceRef, RamDevice};
use forebay_sim::SimDisk;
use forebay_testkit::fs_check::{Times, Tree};
use forebay_vfs::{
    FileKind, FileSystem, Ino, Name, NewInode, OpenFileRef, OpenFlags, Privileges, RenameFlags,
    Seek, SetXattr, Timestamp, XattrName,
};
use std::sync::Arc;

const BOTH: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);
const FILE: NewInode = NewInode::of(FileKind::File, 0o644);

fn setup(seed: u64) -> Setup {
    let inline_max = [0, 4096, 64 << 10][seed as usize % 3];
    let inode_cache_bytes = [0, 3000, 1 << 20][seed as usize / 3 % 3];
    Setup {
        block_bytes: 4096,
        volume_bytes: 2 << 20,
        content: true,
        inline_max,
        inode_cache_bytes,
        fua: seed.is_multiple_of(2),
    }
}

async fn open(setup: &Setup, disk: &SimDisk) -> Volume {
    let device: DeviceRef = Arc::new(disk.clone());
    let world: WorldRef = disk.world().clone();
    Volume::open(&device, &world, &setup.options(&world)).await.unwrap()
}

fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).unwrap()
}

async fn write(file: &OpenFileRef, offset: u64, bytes: &[u8]) {
    let (none, keep) = (IoFlags::empty(), Privileges::Keep);
    file.write(offset, AlignedBuf::copy_of(bytes), none, keep).await.1.unwrap();
}

async fn content(volume: &Volume, text: &str) -> Vec<u8> {
    let attr = volume.lookup(Ino::ROOT, name(text)).await.unwrap();
    let file = volume.open(attr.ino, OpenFlags::READ).await.unwrap();
    let (buf, len) = file.read(0, AlignedBuf::new(100_000), IoFlags::empty()).await;
    buf[..len.unwrap()].to_vec()
}

/// After a power loss, files that were open without a name are gone, and their space is free. Files
/// that had a name by then are there.
#[test]
fn s12_files_without_a_name_go_with_a_crash() {
    for seed in 1..5 {
        let setup = setup(seed);
        let disk = setup.blank();
        disk.world().run(async {
            let volume = open(&setup, &disk).await;
            let (dir, root) = (NewInode::of(FileKind::Directory, 0o755), Ino::ROOT);
            let (_, unlinked) = volume.create(root, name("f"), &FILE, BOTH).await.unwrap();
            let (_, replaced) = volume.create(root, name("g"), &FILE, BOTH).await.unwrap();
            let (_, never) = volume.tmpfile(root, &FILE, BOTH).await.unwrap();
            let (named, late) = volume.tmpfile(root, &FILE, BOTH).await.unwrap();
            let removed = volume.mkdir(root, name("d"), &dir).await.unwrap().ino;
            let kept = volume.open(removed, OpenFlags::READ).await.unwrap();
            for file in [&unlinked, &replaced, &never, &late] {
                write(file, 0, &[7; 9000]).await;
            }
            volume.unlink(root, name("f")).await.unwrap();
            volume.rmdir(root, name("d")).await.unwrap();
            volume.mknod(root, name("n"), &FILE).await.unwrap();
            volume.rename(root, name("n"), root, name("g"), RenameFlags::empty()).await.unwrap();
            volume.link(named.ino, root, name("late")).await.unwrap();
            volume.syncfs().await.unwrap();
            let numbers = [unlinked.ino(), replaced.ino(), never.ino(), removed];
            let crashed = disk.power_cut(seed);
            drop((unlinked, replaced, never, late, kept));
            drop(volume);
            // The second opening finds nothing more to do.
            for _ in 0..2 {
                let volume = open(&setup, &crashed).await;
                for ino in numbers {
                    let error = volume.getattr(ino).await.unwrap_err();
                    assert_eq!(error.kind(), ErrorKind::Stale, "seed {seed}: {ino:?}");
                }
                assert_eq!(content(&volume, "late").await, [7; 9000], "seed {seed}");
                assert_eq!(content(&volume, "g").await, [], "seed {seed}");
                {
                    let state = volume.0.state.lock();
                    assert_eq!(
                        (state.names().orphans().len(), state.names().inode_count()),
                        (0, 3),
                        "S12, seed {seed}"
                    );
                }
                volume.close().await.unwrap();
            }
        });
        disk.world().stop();
    }
}

/// The story: a search for data wrote everything out first. A reader of holes made a writer wait,
/// and cost the volume a record each time. Now the search finds dirty data in the cache.
#[test]
fn dirty_data_is_found_where_it_is() {
    let setup = setup(1);
    let disk = setup.blank();
    disk.world().run(async {
        let volume = open(&setup, &disk).await;
        let (attr, file) = volume.create(Ino::ROOT, name("f"), &FILE, BOTH).await.unwrap();
        write(&file, 8192, &[1; 4096]).await;
        file.sync(true).await.unwrap();
        write(&file, 40_960, &[2; 10]).await;
        write(&file, 12_288, &[2; 10]).await;
        let dirty = || {
            let state = volume.0.state.lock();
            let content = state.names().node(attr.ino.0).unwrap().content.clone().unwrap();
            content.file.mapping.dirty_bytes.load(std::sync::atomic::Ordering::SeqCst)
        };
        assert_eq!(dirty(), 8192);
        let seek = async |what, offset| file.seek(what, offset).await.unwrap();
        assert_eq!(seek(Seek::Data, 0).await, 8192, "stored");
        assert_eq!(seek(Seek::Hole, 8192).await, 16_384, "stored, and dirty behind it");
        assert_eq!(seek(Seek::Data, 16_384).await, 40_960, "dirty");
        assert_eq!(seek(Seek::Hole, 40_961).await, 40_970, "the end");
        assert_eq!(seek(Seek::Hole, 0).await, 0);
        assert_eq!(dirty(), 8192, "and nothing was written for it");
    });
    disk.world().stop();
}

/// Several clients at once, with nothing kept in memory and a checkpoint every few changes: each
/// operation waits for the objects that it loads, and none of these is evicted while it waits. All
/// operations end, and the tree has all their changes.
#[test]
fn q12_q32_concurrent_loads_end() {
    const EACH: usize = 120;
    let device: DeviceRef = Arc::new(RamDevice::new(64 << 20));
    let world = RealWorld::with_seed(1);
    let options = CreateOptions {
        segment_bytes: 1 << 20,
        ..CreateOptions::new([1; 16], [3; 16], Timestamp::new(1, 0))
    };
    block_on(Volume::create(&device, &world, &options)).unwrap();
    let (inode_cache_bytes, overlay_bytes) = (0, 32 << 10);
    let options = OpenOptions { inode_cache_bytes, overlay_bytes, ..OpenOptions::default() };
    let volume = block_on(Volume::open(&device, &world, &options)).unwrap();
    let dir = NewInode::of(FileKind::Directory, 0o755);
    let shared = block_on(volume.mkdir(Ino::ROOT, name("shared"), &dir)).unwrap().ino;
    let work = |who: usize| {
        let own = block_on(volume.mkdir(Ino::ROOT, name(&format!("own{who}")), &dir)).unwrap().ino;
        for n in 0..EACH {
            let (text, moved) = (format!("{who}-{n}"), format!("moved{who}-{n}"));
            let (text, moved) = (name(&text), name(&moved));
            let made = block_on(volume.mknod(own, text, &FILE)).unwrap().ino;
            block_on(volume.link(made, shared, text)).unwrap();
            block_on(volume.rename(own, text, shared, moved, RenameFlags::NOREPLACE)).unwrap();
            assert_eq!(block_on(volume.lookup(shared, moved)).unwrap().nlink, 2);
            if n % 3 == 0 {
                block_on(volume.unlink(shared, text)).unwrap();
            }
        }
        block_on(volume.rmdir(Ino::ROOT, name(&format!("own{who}")))).unwrap();
    };
    std::thread::scope(|scope| {
        for who in 0..4 {
            let work = &work;
            scope.spawn(move || work(who));
        }
    });
    let tree = block_on(Tree::read(&volume, Times::Ignore)).unwrap();
    assert_eq!(tree.nodes.len(), 2 + 4 * (2 * EACH - EACH / 3));
    {
        let state = volume.0.state.lock();
        state.names().check_cache();
        assert!(state.tree().root().places.is_some(), "there were checkpoints");
    }
    block_on(volume.close()).unwrap();
}

/// An unused inode number is stale, also in a volume that keeps no inodes in memory. A removed
/// inode is stale for clients that still have its number.
#[test]
fn q11_unused_inode_numbers_are_stale() {
    let setup = Setup { inode_cache_bytes: 0, ..setup(2) };
    let disk = setup.blank();
    disk.world().run(async {
        let volume = open(&setup, &disk).await;
        let gone = volume.mknod(Ino::ROOT, name("gone"), &FILE).await.unwrap().ino;
        let kept = volume.mknod(Ino::ROOT, name("kept"), &FILE).await.unwrap().ino;
        volume.close().await.unwrap();
        drop(volume);
        let volume = open(&setup, &disk).await;
        volume.unlink(Ino::ROOT, name("gone")).await.unwrap();
        for round in 0..2 {
            for ino in [gone, Ino(0), Ino(kept.0 + 1), Ino(u64::MAX)] {
                let error = volume.getattr(ino).await.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Stale, "round {round}: {ino:?}");
            }
            assert_eq!(volume.getattr(kept).await.unwrap().nlink, 1);
            volume.checkpoint().await.unwrap();
        }
        let before = volume.digest().await.unwrap();
        let failed = volume.link(gone, Ino::ROOT, name("kept")).await.unwrap_err();
        assert_eq!(failed.kind(), ErrorKind::Stale);
        assert_eq!(volume.digest().await.unwrap(), before, "Q11");
    });
    disk.world().stop();
}

/// load.Q22: what is loaded with a missing inode may overlap inodes in memory. Those stay, and all
/// others get their attributes and targets.
#[test]
fn q22_loaded_inodes_overlap_those_in_memory() {
    let setup = setup(8);
    let disk = setup.blank();
    disk.world().run(async {
        let (volume, attribute) =
            (open(&setup, &disk).await, XattrName::new(b"trusted.a").unwrap());
        let mut inos = Vec::new();
        for n in 0..40_u8 {
            let text = format!("f{n}");
            let made = match n % 5 {
                0 => volume.symlink(Ino::ROOT, name(&text), text.as_bytes(), &FILE).await,
                _ => volume.mknod(Ino::ROOT, name(&text), &FILE).await,
            };
            inos.push(made.unwrap().ino);
            let set = volume.setxattr(inos[n as usize], attribute, &[n], SetXattr::Any).await;
            set.unwrap();
        }
        volume.close().await.unwrap();
        let volume = open(&setup, &disk).await;
        let is_there = |n: usize| volume.0.state.lock().names().has_node(inos[n].0);
        for (first, before) in [(20, false), (10, true), (0, true)] {
            assert_eq!((is_there(first), is_there(20)), (false, before), "from {first} on");
            let found = volume.getattr_listed(&inos[first..=first]).await;
            assert!(found.iter().all(|attr| attr.is_ok()) && is_there(first + 5));
        }
        for (n, ino) in inos.iter().enumerate() {
            assert_eq!(volume.getxattr(*ino, attribute).await.unwrap(), [n as u8]);
            if n % 5 == 0 {
                assert_eq!(volume.readlink(*ino).await.unwrap(), format!("f{n}").as_bytes());
            }
        }
        volume.close().await.unwrap();
    });
    disk.world().stop();
}
