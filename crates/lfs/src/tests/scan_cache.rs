//! Scans of inodes in order, which the scan cache answers from windows of tree leaves.
//!
//! No locks.

use crate::{CreateOptions, OpenOptions, Volume};
use forebay_base::task::block_on;
use forebay_base::world::{RealWorld, WorldRef, split_mix};
use forebay_base::{ErrorKind, IoFlags, Result};
use forebay_block::{BioOp, DeviceRef, RamDevice};
use forebay_cache::{Config, PageCache};
use forebay_testkit::target::LogDevice;
use forebay_vfs::{
    Attr, FileKind, FileSystem, Ino, Name, NewInode, OpenFlags, Privileges, SetAttr, SetXattr,
    Timestamp, XattrName,
};
use std::collections::BTreeMap;
use std::sync::Arc;

const FILE: NewInode = NewInode::of(FileKind::File, 0o644);

fn volume_on(device: DeviceRef, options: &OpenOptions) -> Volume {
    let world: WorldRef = RealWorld::with_seed(1);
    let create = CreateOptions {
        segment_bytes: 1 << 20,
        ..CreateOptions::new([1; 16], [3; 16], Timestamp::new(1, 0))
    };
    block_on(Volume::create(&device, &world, &create)).unwrap();
    block_on(Volume::open(&device, &world, options)).unwrap()
}

fn make(volume: &Volume, n: u64) -> Ino {
    let text = format!("file{n}");
    block_on(volume.mknod(Ino::ROOT, Name::new(text.as_bytes()).unwrap(), &FILE)).unwrap().ino
}

fn attr(volume: &Volume, ino: Ino) -> Result<Attr> {
    block_on(volume.getattr(ino))
}

/// The story: each inode of a scan became an object, with an entry in three tables, and was evicted
/// again. For a million files in order that took several times as long as decoding the attributes.
/// scan_cache.Q62: the memory of windows is counted.
#[test]
fn q62_inode_scan_makes_no_inode_objects() {
    let options = OpenOptions { inode_cache_bytes: 2 << 20, ..OpenOptions::default() };
    let volume = volume_on(Arc::new(RamDevice::new(128 << 20)), &options);
    let inos: Vec<Ino> = (0..20_000).map(|n| make(&volume, n)).collect();
    block_on(volume.checkpoint()).unwrap();
    let state = || volume.0.state.lock();
    let (mut objects, mut most) = (0, 0);
    // The last inodes are still in memory since they were made.
    for ino in &inos[..16_000] {
        assert_eq!(attr(&volume, *ino).unwrap().ino, *ino);
        objects += u64::from(state().names().has_node(ino.0));
        most = most.max(state().names().windows().bytes());
    }
    assert!(objects < 16_000 / 50, "{objects} objects for 16,000 looks");
    assert!((1..=(2 << 20) / 4).contains(&most), "Q62: {most} bytes");
    state().names().check_cache();
    assert!(state().names_bytes() < 3 << 20, "{} bytes", state().names_bytes());
}

/// A volume with `files` files, each with an attribute of `bytes` bytes, none of them in memory.
fn with_xattrs(device: DeviceRef, files: u64, bytes: usize) -> (Volume, Vec<Ino>) {
    let (inode_cache_bytes, node_cache_bytes) = (2 << 20, 1 << 20);
    let options = &OpenOptions { inode_cache_bytes, node_cache_bytes, ..OpenOptions::default() };
    let volume = volume_on(device.clone(), options);
    let name = XattrName::new(b"user.large").unwrap();
    let inos: Vec<Ino> = (0..files).map(|n| make(&volume, n)).collect();
    for ino in &inos {
        block_on(volume.setxattr(*ino, name, &vec![ino.0 as u8; bytes], SetXattr::Any)).unwrap();
    }
    block_on(volume.close()).unwrap();
    let world: WorldRef = RealWorld::with_seed(2);
    (block_on(Volume::open(&device, &world, options)).unwrap(), inos)
}

/// The story: a window had as many inodes as fill its leaves if they are small. With large inodes
/// it was many times its part of the bound. scan_cache.Q62: the bytes of windows are counted and
/// bounded, and a scan still finds the inodes that were read ahead.
#[test]
fn q62_window_of_large_inodes_ends_at_its_leaves() {
    let log = LogDevice::new(Arc::new(RamDevice::new(128 << 20)), 1 << 16);
    let (volume, inos) = with_xattrs(log.clone(), 900, 3000);
    log.take();
    let state = || volume.0.state.lock();
    let (mut objects, mut most) = (0, 0);
    for ino in &inos {
        assert_eq!(attr(&volume, *ino).unwrap().ino, *ino);
        objects += u64::from(state().names().has_node(ino.0));
        most = most.max(state().names().windows().bytes());
    }
    let reads = log.take();
    let read: u64 = reads.iter().filter(|read| read.op == BioOp::Read).map(|read| read.len).sum();
    assert!((900 * 3000..900 * 3000 * 4).contains(&read), "{read} bytes read of about 900 leaves");
    assert!(objects < 900 / 20, "{objects} objects for 900 looks");
    assert!((1..=(2 << 20) / 4).contains(&most), "Q62: {most} bytes");
}

/// Scans of larger inodes in several places at once: each window may exceed its part of the bound
/// by its last inode, so the oldest windows are evicted. scan_cache.Q62.
#[test]
fn q62_windows_hold_a_part_of_the_bound_together() {
    let (volume, inos) = with_xattrs(Arc::new(RamDevice::new(128 << 20)), 160, 60_000);
    let state = || volume.0.state.lock();
    let (mut most, mut seen) = (0, 0);
    // Each of the four scans continues by five inodes at a time.
    for (at, place) in (0..40).step_by(5).flat_map(|at| (0..4).map(move |place| (at, place))) {
        for ino in &inos[40 * place + at..][..5] {
            assert_eq!(attr(&volume, *ino).unwrap().ino, *ino);
            seen += u64::from(state().in_window(ino.0).is_some());
            most = most.max(state().names().windows().bytes());
        }
    }
    assert!((1..=(2 << 20) / 4).contains(&most), "Q62: {most} bytes");
    assert!(seen > 80, "{seen} of 160 were in a window");
    state().names().check_cache();
}

/// scan_cache.Q61: a scan reports changes that were made after its window was read, merged or not,
/// and does not find removed inodes.
#[test]
fn q61_scan_window_shows_recorded_changes() {
    for seed in crate::tests::seeds(6) {
        let mut rng = seed;
        let mut pick = |n: u64| split_mix(&mut rng) % n;
        let inode_cache_bytes = [80_000, 150_000, 400_000][seed as usize % 3];
        let options = OpenOptions { inode_cache_bytes, ..OpenOptions::default() };
        let volume = volume_on(Arc::new(RamDevice::new(64 << 20)), &options);
        let mut model: BTreeMap<u64, (u64, u16)> =
            (0..1200).map(|n| (make(&volume, n).0, (n, 0o644))).collect();
        let last = *model.keys().next_back().unwrap();
        block_on(volume.checkpoint()).unwrap();
        let mut seen = 0;
        for _ in 0..60 {
            let from = 1 + pick(last);
            for ino in from..(from + 40 + pick(200)).min(last + 1) {
                match (attr(&volume, Ino(ino)), model.get(&ino)) {
                    (Ok(attr), Some((_, perm))) => assert_eq!(attr.perm, *perm, "seed {seed}"),
                    (Err(error), None) => assert_eq!(error.kind(), ErrorKind::Stale),
                    (Ok(attr), None) => assert_eq!(attr.ino, Ino::ROOT, "seed {seed}"),
                    (Err(error), _) => panic!("seed {seed}: {ino}: {error}"),
                }
                seen += u64::from(volume.0.state.lock().in_window(ino).is_some());
                let other = (ino.saturating_sub(3) + pick(8)).min(last);
                let Some((n, perm)) = model.get_mut(&other).filter(|_| pick(9) == 0) else {
                    continue;
                };
                if pick(3) == 0 {
                    let text = format!("file{n}");
                    let name = Name::new(text.as_bytes()).unwrap();
                    block_on(volume.unlink(Ino::ROOT, name)).unwrap();
                    model.remove(&other);
                } else {
                    *perm = 0o400 | pick(0o400) as u16;
                    let set = SetAttr { perm: Some(*perm), ..SetAttr::default() };
                    block_on(volume.setattr(Ino(other), &set)).unwrap();
                }
            }
            if pick(6) == 0 {
                block_on(volume.checkpoint()).unwrap();
            }
        }
        assert!(seen > 100, "seed {seed}: {seen} were in a window");
        volume.0.state.lock().names().check_cache();
        block_on(volume.close()).unwrap();
    }
}

/// The story: leaves below the next parent were read one by one, and none was read before a lookup
/// missed it.
#[test]
fn inodes_in_order_are_read_together() {
    let log = LogDevice::new(Arc::new(RamDevice::new(128 << 20)), 1 << 16);
    let options = OpenOptions {
        inode_cache_bytes: 8 << 20,
        node_cache_bytes: 2 << 20,
        ..OpenOptions::default()
    };
    let volume = volume_on(log.clone(), &options);
    let inos: Vec<Ino> = (0..40_000).map(|n| make(&volume, n)).collect();
    block_on(volume.checkpoint()).unwrap();
    log.take();
    inos.iter().for_each(|ino| assert!(attr(&volume, *ino).is_ok()));
    let had = log.take().iter().filter(|record| record.op == BioOp::Read).count();
    let leaves = 40_000 / 25;
    assert!(had < leaves / 6, "{had} reads of about {leaves} leaves");
}

/// The story: each removed empty file left a hole, in which the next checkpoint searched for
/// extents. A million of them took 46 checkpoints, and most of the time.
#[test]
fn removed_empty_file_leaves_no_hole_in_content_tree() {
    let device: DeviceRef = Arc::new(RamDevice::new(64 << 20));
    let cache = PageCache::new(Config::with_budget(4 << 20), RealWorld::with_seed(1)).unwrap();
    let options = OpenOptions { cache: Some(cache), ..OpenOptions::default() };
    let volume = volume_on(device, &options);
    let both = OpenFlags::READ | OpenFlags::WRITE;
    let name = |n: u64| format!("file{n}");
    for n in 0..60 {
        let text = name(n);
        let name = Name::new(text.as_bytes()).unwrap();
        let (_, file) = block_on(volume.create(Ino::ROOT, name, &FILE, both)).unwrap();
        if n >= 40 {
            let (none, keep) = (IoFlags::empty(), Privileges::Keep);
            file.write_slice(0, &[n as u8; 9000], none, keep).unwrap();
        }
        if n >= 50 {
            file.sync_here(true).unwrap();
        }
    }
    block_on(volume.syncfs()).unwrap();
    block_on(volume.checkpoint()).unwrap();
    let told = || volume.0.state.lock().map().change_count();
    let remove = |from: u64, upto: u64| {
        for n in from..upto {
            let text = name(n);
            block_on(volume.unlink(Ino::ROOT, Name::new(text.as_bytes()).unwrap())).unwrap();
        }
    };
    remove(0, 40);
    assert_eq!(told(), 0, "they had nothing");
    remove(40, 60);
    assert_eq!(told(), 20, "what was stored goes");
    block_on(volume.checkpoint()).unwrap();
    assert_eq!(volume.0.state.lock().content_bytes(), 0, "and becomes free");
    block_on(volume.close()).unwrap();
}
