//! The memory of a check does not depend on the number of extents and names (fsck.E16). In a file
//! of its own, because it counts for its process.

use forebay_base::IoFlags;
use forebay_base::buf::AlignedBuf;
use forebay_base::task::block_on;
use forebay_base::units::MIB;
use forebay_base::world::{RealWorld, WorldRef};
use forebay_block::{DeviceRef, RamDevice};
use forebay_cache::{Config, PageCache};
use forebay_lfs::{CreateOptions, FsckOptions, OpenOptions, Volume, fsck_with};
use forebay_sim::counted::{Counted, peak_bytes};
use forebay_vfs::{FileKind, FileSystem, Ino, Name, NewInode, OpenFlags, Privileges, Timestamp};
use std::sync::Arc;

#[global_allocator]
static COUNTED: Counted = Counted;

const BLOCK: u32 = 512;
/// Names in each directory.
const EACH: u64 = 2000;

async fn add_names(volume: &Volume, count: u64) {
    let mut dir = Ino::ROOT;
    for n in 0..count {
        if n % EACH == 0 {
            let new = NewInode::of(FileKind::Directory, 0o755);
            let name = format!("d{n}");
            let name = Name::new(name.as_bytes()).unwrap();
            dir = volume.mkdir(Ino::ROOT, name, &new).await.unwrap().ino;
        }
        let name = format!("file{n}");
        let name = Name::new(name.as_bytes()).unwrap();
        volume.mknod(dir, name, &NewInode::of(FileKind::File, 0o644)).await.unwrap();
    }
}

/// Writes every second block of a file.
async fn add_extents(volume: &Volume, count: u64) {
    let (name, new) = (Name::new(b"extents").unwrap(), NewInode::of(FileKind::File, 0o644));
    let made = volume.create(Ino::ROOT, name, &new, OpenFlags::WRITE).await.unwrap();
    for n in 0..count {
        let bytes = AlignedBuf::copy_of(&[n as u8; BLOCK as usize]);
        let at = 2 * n * u64::from(BLOCK);
        let (_, done) = made.1.write(at, bytes, IoFlags::empty(), Privileges::Keep).await;
        done.unwrap();
        if n % 1000 == 0 {
            made.1.sync(true).await.unwrap();
        }
    }
}

/// A closed volume with this number of names, and this number of extents.
fn volume(names: u64, extents: u64) -> (DeviceRef, WorldRef) {
    let device: DeviceRef = Arc::new(RamDevice::new(512 * MIB));
    let world: WorldRef = RealWorld::with_seed(1);
    let create = CreateOptions {
        block_bytes: BLOCK,
        segment_bytes: 1 << 20,
        ..CreateOptions::new([1; 16], [3; 16], Timestamp::new(1, 0))
    };
    let config = Config { huge_pages: false, ..Config::with_budget(32 << 20) };
    let cache = PageCache::new(config, world.clone()).unwrap();
    let options = OpenOptions { cache: Some(cache), ..OpenOptions::default() };
    block_on(async {
        Volume::create(&device, &world, &create).await.unwrap();
        let volume = Volume::open(&device, &world, &options).await.unwrap();
        add_names(&volume, names).await;
        add_extents(&volume, extents).await;
        volume.close().await.unwrap();
    });
    (device, world)
}

/// The most memory of a check, with a small cache of tree nodes.
fn peak(names: u64, extents: u64) -> usize {
    let (device, world) = volume(names, extents);
    let options = FsckOptions { node_cache_bytes: 256 << 10, ..FsckOptions::default() };
    let check = || block_on(fsck_with(&device, &world, &options, &mut |_| ()));
    let (report, peak) = peak_bytes(check);
    let report = report.unwrap();
    assert!(report.is_clean(), "{:?}", report.findings);
    assert!(report.inodes > names && report.content_bytes >= extents * u64::from(BLOCK));
    peak
}

/// fsck.E16. The bound has room for what the volume holds for each segment and each node. Earlier,
/// the check of the larger volume took 120 MB more, 32 MiB of that for cached nodes.
#[test]
fn check_of_more_names_and_extents_needs_no_more_memory() {
    let (few, many) = (peak(10_000, 10_000), peak(200_000, 150_000));
    println!("{few} and {many} bytes");
    assert!(few < 2 << 20 && many < few + (512 << 10), "E16: {few} and {many} bytes");
}
