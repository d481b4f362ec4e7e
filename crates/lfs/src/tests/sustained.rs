//! Random overwrites of a volume that is 80 % full, without end: how much they write, and what a
//! writer waits for. A simulated disk counts, so the figures are the same on every machine.
//!
//! No locks.

use crate::tests::reuse::{create, write};
use crate::{CreateOptions, OpenOptions, Volume};
use forebay_base::sim_world::SimWorld;
use forebay_base::units::MIB;
use forebay_base::world::{WorldRef, split_mix};
use forebay_block::{BioOp, DeviceRef};
use forebay_cache::{Config, PageCache};
use forebay_sim::{SimConfig, SimDisk};
use forebay_vfs::{FileSystem, OpenFileRef, Timestamp};
use std::sync::Arc;

const BLOCK: u64 = 4096;
const VOLUME_BYTES: u64 = 128 * MIB;
/// Windows that end with a sync, in each pass over the free space.
const WINDOWS: u64 = 20;

/// Figures of a load.
#[derive(Debug, Default)]
struct Figures {
    /// Bytes that were overwritten.
    dirtied_bytes: u64,
    /// Bytes that the device wrote meanwhile.
    written_bytes: u64,
    /// The bytes that the cleaner moved while one write waited, of each write.
    moved_in_waits: Vec<u64>,
    /// Bytes that passes moved for a task that waited for space.
    moved_for_waiters_bytes: u64,
}

/// A disk with an empty volume of 128 segments.
fn blank() -> SimDisk {
    let world = SimWorld::new(1);
    let config = SimConfig { size: VOLUME_BYTES, sector: 4096, ..SimConfig::default() };
    let disk = SimDisk::new(world.clone(), config);
    let device: DeviceRef = Arc::new(disk.clone());
    let options = CreateOptions {
        segment_bytes: (VOLUME_BYTES / 128) as u32,
        ..CreateOptions::new([7; 16], [9; 16], Timestamp::new(1, 0))
    };
    let asked: WorldRef = world.clone();
    world.run(Volume::create(&device, &asked, &options)).expect("room for a volume");
    world.stop();
    disk.in_world(SimWorld::new(2))
}

async fn open(disk: &SimDisk) -> Volume {
    let device: DeviceRef = Arc::new(disk.clone());
    let world: WorldRef = disk.world().clone();
    // The same shares as a volume of 8 GiB behind a cache of 256 MiB.
    let config = Config { huge_pages: false, ..Config::with_budget(VOLUME_BYTES / 32) };
    let cache = Some(PageCache::new(config, world.clone()).unwrap());
    let options = OpenOptions { cache, of_budget: true, noatime: true, ..OpenOptions::default() };
    Volume::open(&device, &world, &options).await.unwrap()
}

/// A file of 80 % of what the volume can hold; and the bytes that are still free.
async fn filled(volume: &Volume) -> (OpenFileRef, u64, u64) {
    let (_, file) = create(volume, "f").await.unwrap();
    let all = volume.statfs().await.unwrap().blocks * BLOCK;
    let len = all / 5 * 4 / MIB * MIB;
    let part = vec![3; (MIB / 4) as usize];
    for at in (0..len).step_by(part.len()) {
        write(&file, at, &part).await.unwrap();
    }
    file.sync(false).await.unwrap();
    let free = volume.statfs().await.unwrap().blocks_available * BLOCK;
    (file, len, free)
}

/// Overwrites random blocks of `times` times the free space; the figures of all but the first time,
/// in which nothing has to be cleaned.
async fn overwritten(volume: &Volume, disk: &SimDisk, times: u64) -> Figures {
    let (file, len, free) = filled(volume).await;
    let (mut figures, mut rng) = (Figures::default(), 1);
    let moved = || volume.clean_stats().moved_bytes;
    let mut seen = disk.log().len();
    for window in 0..times * WINDOWS {
        if window == WINDOWS {
            (figures, seen) = (Figures::default(), disk.log().len());
        }
        for _ in 0..free / WINDOWS / BLOCK {
            let (at, before) = (split_mix(&mut rng) % (len / BLOCK), moved());
            write(&file, at * BLOCK, &[9; BLOCK as usize]).await.unwrap();
            figures.moved_in_waits.push(moved() - before);
            figures.dirtied_bytes += BLOCK;
        }
        file.sync(true).await.unwrap();
    }
    let writes = disk.log().into_iter().skip(seen).filter(|entry| entry.op == BioOp::Write);
    figures.written_bytes = writes.map(|entry| entry.len).sum();
    figures.moved_for_waiters_bytes = volume.clean_stats().moved_for_waiters_bytes;
    figures
}

/// cleaning.C54, maintenance.Z18. The story: when a pass began, a writer used up its space at once,
/// and then waited for the rest of the pass. Its request made two checkpoints that freed nothing.
/// When the pass had ended, another one began for it, although there was space.
#[test]
fn c54_z18_writer_waits_for_parts_of_passes() {
    let disk = blank();
    let figures = disk.world().run(async {
        let volume = open(&disk).await;
        let figures = overwritten(&volume, &disk, 4).await;
        volume.close().await.unwrap();
        figures
    });
    disk.world().stop();
    let long = |moved: &&u64| **moved > VOLUME_BYTES / 40;
    let long = figures.moved_in_waits.iter().filter(long).count();
    let written = figures.written_bytes as f64 / figures.dirtied_bytes as f64;
    println!("{long} long waits, {written:.3} bytes written for each byte");
    // A pass moves up to 8 MiB, two and a half times that.
    assert!(long <= 3, "{long} writes waited for most of a pass");
    assert_eq!(figures.moved_for_waiters_bytes, 0, "background passes suffice");
    assert!(written < 4.2, "{written} bytes written for each byte");
}
