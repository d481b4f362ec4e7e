//! Growing a volume, with the power cut at every request.
//!
//! No locks.

use crate::tests::setup::Setup;
use crate::volume::grow::grow;
use crate::volume::info::probe;
use crate::volume::{CreateOptions, Volume};
use forebay_base::buf::AlignedBuf;
use forebay_base::sim_world::SimWorld;
use forebay_base::world::WorldRef;
use forebay_base::{Error, ErrorKind, IoFlags, Result};
use forebay_block::{Bio, BioOp, BlockDevice, DeviceRef, Limits};
use forebay_sim::{SimConfig, SimDisk};
use forebay_vfs::{
    FileKind, FileSystem, Ino, Name, NewInode, OpenFlags, Privileges, StatFs, Timestamp,
};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const OLD_BYTES: u64 = 1 << 20;
const NEW_BYTES: u64 = 2 << 20;

/// A disk of which only the first `size` bytes exist for the volume, like a file that can be made
/// longer.
struct Longer {
    disk: SimDisk,
    size: AtomicU64,
}

impl Longer {
    fn new(disk: &SimDisk, size: u64) -> Arc<Self> {
        Arc::new(Self { disk: disk.clone(), size: AtomicU64::new(size) })
    }
}

impl BlockDevice for Longer {
    fn name(&self) -> String {
        self.disk.name()
    }

    fn limits(&self) -> Limits {
        self.disk.limits()
    }

    fn size(&self) -> u64 {
        self.size.load(Ordering::Relaxed)
    }

    fn can_grow(&self) -> bool {
        true
    }

    fn grow(&self, size: u64) -> Result<()> {
        assert!(size >= self.size(), "it only grows");
        self.size.store(size, Ordering::Relaxed);
        Ok(())
    }

    fn submit(&self, bio: Bio) {
        assert!(bio.offset + bio.len <= self.size(), "within its size");
        if bio.op == BioOp::Write {
            self.disk.tag_cuts(1);
        }
        self.disk.submit(bio);
    }
}

fn setup() -> Setup {
    Setup {
        block_bytes: 4096,
        volume_bytes: OLD_BYTES,
        content: true,
        inline_max: 64 << 10,
        inode_cache_bytes: 64 << 10,
        fua: false,
    }
}

async fn open(world: &Arc<SimWorld>, device: &DeviceRef) -> Result<Volume> {
    let world: WorldRef = world.clone();
    Volume::open(device, &world, &setup().options(&world)).await
}

async fn put(volume: &Volume, name: &str, bytes: &[u8]) -> Result<()> {
    let (flags, new) = (OpenFlags::READ | OpenFlags::WRITE, NewInode::of(FileKind::File, 0o600));
    let (_, file) = volume.create(Ino::ROOT, Name::new(name.as_bytes())?, &new, flags).await?;
    let (none, keep) = (IoFlags::empty(), Privileges::Keep);
    let wrote = file.write(0, AlignedBuf::copy_of(bytes), none, keep).await.1?;
    match wrote.len == bytes.len() {
        true => file.sync(false).await,
        false => Err(Error::new(ErrorKind::NoSpace, "write", "a part of it")),
    }
}

async fn get(volume: &Volume, name: &str) -> Result<Vec<u8>> {
    let attr = volume.lookup(Ino::ROOT, Name::new(name.as_bytes())?).await?;
    let file = volume.open(attr.ino, OpenFlags::READ).await?;
    let (buf, len) = file.read(0, AlignedBuf::new(attr.size as usize), IoFlags::empty()).await;
    Ok(buf[..len?].to_vec())
}

fn kept() -> Vec<u8> {
    (0..100_000_u32).map(|i| (i % 249) as u8).collect()
}

/// A disk with a volume in its first half, with a synced file in it.
fn half_full() -> SimDisk {
    let world = SimWorld::new(1);
    let config = SimConfig { size: NEW_BYTES, sector: 512, ..SimConfig::default() };
    let disk = SimDisk::new(world.clone(), config);
    let device: DeviceRef = Longer::new(&disk, OLD_BYTES);
    let options = CreateOptions {
        segment_bytes: 64 << 10,
        ..CreateOptions::new([7; 16], [9; 16], Timestamp::new(1, 0))
    };
    world.run(async {
        let own: WorldRef = world.clone();
        Volume::create(&device, &own, &options).await.unwrap();
        let volume = open(&world, &device).await.unwrap();
        put(&volume, "kept", &kept()).await.unwrap();
        volume.close().await.unwrap();
    });
    world.stop();
    disk
}

/// Checks the old content, writes to the volume, and checks both after it was opened again.
async fn live_on(world: &Arc<SimWorld>, device: &DeviceRef) -> Result<StatFs> {
    let volume = open(world, device).await?;
    assert!(get(&volume, "kept").await? == kept(), "X11: what was in it");
    let figures = volume.statfs().await?;
    put(&volume, "more", &kept()).await?;
    volume.close().await?;
    drop(volume);
    let volume = open(world, device).await?;
    assert!(get(&volume, "kept").await? == kept() && get(&volume, "more").await? == kept());
    Ok(figures)
}

#[test]
fn grown_volume_has_space_for_more() {
    let disk = half_full();
    let world = disk.world().clone();
    let device: DeviceRef = Longer::new(&disk, OLD_BYTES);
    world.run(async {
        for nonsense in [0, OLD_BYTES, OLD_BYTES + (16 << 10)] {
            let error = grow(&device, Some(nonsense)).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        }
        assert_eq!(device.size(), OLD_BYTES);
        let before = open(&world, &device).await.unwrap().statfs().await.unwrap();
        let (old, new) = grow(&device, Some(NEW_BYTES)).await.unwrap();
        assert_eq!((old.end_bytes, new.end_bytes), (OLD_BYTES, NEW_BYTES));
        assert_eq!(new.segments - old.segments, 16, "of 64 KiB");
        assert_eq!(probe(&device).await.unwrap().segments, new.segments);
        let after = live_on(&world, &device).await.unwrap();
        let gained = (after.blocks_available - before.blocks_available) * 4096;
        // Not all new segments count: one is kept because the log has content now, some for tree
        // nodes.
        assert!(gained >= 12 * (64 << 10), "{gained} bytes more");
        let error = grow(&device, None).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "as large as the device: {error}");
    });
    world.stop();
}

/// A device has grown, and its volume has not: the slots at the volume's end are where they were,
/// and are found without those at the start. Also if the device does not end on a slot boundary.
#[test]
fn slots_at_end_are_found_on_larger_device() {
    let disk = half_full();
    for size in [OLD_BYTES, OLD_BYTES + 4095, NEW_BYTES] {
        for lost in 0..4 {
            let disk = disk.in_world(SimWorld::new(3));
            let world = disk.world().clone();
            let device: DeviceRef = Longer::new(&disk, size);
            world.run(async {
                let newest = probe(&device).await.unwrap();
                // Of the slots at the start one remains, which is not the newest.
                for slot in (0..4).filter(|slot| *slot != lost) {
                    disk.poke(slot * 4096, &[0; 4096]);
                }
                assert_eq!(probe(&device).await.unwrap(), newest, "{size}, {lost}");
                let volume = open(&world, &device).await.unwrap();
                assert!(get(&volume, "kept").await.unwrap() == kept());
            });
            world.stop();
        }
    }
}

/// The number of segments after a power loss. Then the volume is written to if `used`, and grown
/// again.
fn survived(disk: &SimDisk, size: u64, used: bool) -> u32 {
    let world = disk.world().clone();
    let device: DeviceRef = Longer::new(disk, size);
    let segments = world.run(async {
        let segments = probe(&device).await.expect("X11: a slot is valid").segments;
        if used {
            live_on(&world, &device).await.expect("X11: it opens");
        }
        let again = grow(&device, Some(NEW_BYTES)).await;
        assert!(again.is_ok() || segments > 15, "{:?}", again.err());
        let volume = open(&world, &device).await.expect("X11: it opens");
        assert!(get(&volume, "kept").await.unwrap() == kept());
        assert!(probe(&device).await.unwrap().segments > 15);
        segments
    });
    world.stop();
    segments
}

/// grow.X11, grow.X12: a power loss at every request of a growth, with any part of the writes on
/// the device. The volume has the old or the new size, with all content, and works. Grown again it
/// has the new size.
#[test]
fn x11_every_cut_leaves_either_size() {
    let disk = half_full().in_world(SimWorld::new(5));
    let world = disk.world().clone();
    let device: DeviceRef = Longer::new(&disk, OLD_BYTES);
    disk.record_cuts();
    world.run(grow(&device, Some(NEW_BYTES))).unwrap();
    world.stop();
    let cuts = disk.take_cuts();
    let (mut states, mut found) = (0, BTreeSet::new());
    for cut in &cuts {
        // Until the first write the device may still have its old size.
        let sizes: &[u64] = if cut.tag() == 0 { &[OLD_BYTES, NEW_BYTES] } else { &[NEW_BYTES] };
        for state in cut.states(10) {
            for size in sizes {
                states += 1;
                found.insert(survived(&state.mount(SimWorld::new(7)), *size, states % 2 == 0));
            }
        }
    }
    println!("growing: {} cuts, {states} crash states, segments {found:?}", cuts.len());
    assert_eq!(found.len(), 2, "both sizes were found: {found:?}");
    assert!(states > 20, "{states}");
}
