//! Names that are hard for a volume alone: files without a name over a crash, dirty data that is looked for.
//!
//! No locks.

use crate::tests::setup::Setup;
use crate::volume::Volume;
use forebay_base::buf::AlignedBuf;
use forebay_base::world::WorldRef;
use forebay_base::{ErrorKind, IoFlags};
use forebay_block::DeviceRef;
use forebay_sim::SimDisk;
use forebay_vfs::{
    FileKind, FileSystem, Ino, Name, NewInode, OpenFileRef, OpenFlags, Privileges, RenameFlags,
    Seek,
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

/// What was open without a name when the power went is gone, its room too; what got a name by then stays.
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
                    assert_eq!((state.orphans.len(), state.inodes), (0, 3), "S12, seed {seed}");
                }
                volume.close().await.unwrap();
            }
        });
        disk.world().stop();
    }
}

/// A search for data wrote everything out first: a reader of holes made a writer wait, and cost the volume a
/// record each time. What is dirty is found where it is.
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
            let content = state.nodes[&attr.ino.0].content.clone().unwrap();
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
