//! Overwriting a volume that is full, or nearly so: never refused (capacity.P25).
//!
//! No locks.

use crate::space::Need;
use crate::space::admission::Growth;
use crate::tests::alloc::lab::run_concurrently;
use crate::tests::clean::shown;
use crate::tests::reuse::{check, create, open, write};
use crate::tests::setup::Setup;
use crate::{OpenOptions, Volume};
use forebay_base::buf::AlignedBuf;
use forebay_base::sim_world::SimWorld;
use forebay_base::task::BoxFuture;
use forebay_base::world::{World, WorldRef, split_mix};
use forebay_base::{ErrorKind, IoFlags};
use forebay_block::DeviceRef;
use forebay_cache::{Config, PageCache};
use forebay_sim::SimDisk;
use forebay_vfs::{
    FileSystem, Ino, Name, OpenFileRef, OpenFlags, Privileges, SetAttr, SetXattr, XattrName,
};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

const BLOCK: u64 = 4096;

fn setup(mib: u64, inline_max: u32) -> Setup {
    Setup { volume_bytes: mib << 20, ..crate::tests::reuse::setup(inline_max) }
}

async fn available(volume: &Volume) -> u64 {
    volume.statfs().await.unwrap().blocks_available
}

/// The content of a block that was written `times` times.
fn content(block: u64, times: u8) -> [u8; BLOCK as usize] {
    [(block as u8).wrapping_mul(31) ^ times; BLOCK as usize]
}

/// Fills a file with up to `blocks` blocks, until one is refused. Returns how often each was
/// written.
async fn filled(file: &OpenFileRef, blocks: u64) -> Vec<u8> {
    let mut model = Vec::new();
    while (model.len() as u64) < blocks {
        let block = model.len() as u64;
        match write(file, block * BLOCK, &content(block, 1)).await {
            Ok(_) => model.push(1),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
                break;
            }
        }
        if block % 32 == 31 {
            file.sync(true).await.expect("it was accepted");
        }
    }
    file.sync(true).await.expect("it was accepted");
    model
}

/// Overwrites random blocks, with a sync after every fifth.
async fn overwrite(
    volume: &Volume,
    file: &OpenFileRef,
    model: &mut [u8],
    (rounds, seed): (u64, u64),
) {
    let mut rng = seed;
    for round in 0..rounds {
        let block = split_mix(&mut rng) % model.len() as u64;
        let times = model[block as usize].wrapping_add(1);
        let done = write(file, block * BLOCK, &content(block, times)).await;
        done.unwrap_or_else(|e| panic!("round {round}: {e}\n{}", shown(volume)));
        model[block as usize] = times;
        if round % 5 == 0 {
            let done = file.sync(true).await;
            done.unwrap_or_else(|e| panic!("sync of round {round}: {e}\n{}", shown(volume)));
        }
    }
}

/// Checks after a power loss that each block has its last content, and that fsck finds nothing.
fn verify(setup: &Setup, disk: &SimDisk, model: &[u8]) {
    let disk = disk.power_cut(1).in_world(SimWorld::new(2));
    let report = check(&disk.in_world(SimWorld::new(3)));
    assert!(report.is_clean(), "{:?}", report.findings);
    disk.world().run(async {
        let volume = open(setup, &disk).await.unwrap();
        let ino = volume.lookup(Ino::ROOT, Name::new(b"f").unwrap()).await.unwrap().ino;
        let file = volume.open(ino, OpenFlags::READ).await.unwrap();
        for (block, times) in (0..).zip(model) {
            let buf = AlignedBuf::new(BLOCK as usize);
            let (buf, done) = file.read(block * BLOCK, buf, IoFlags::empty()).await;
            assert_eq!(done.unwrap() as u64, BLOCK);
            assert!(buf[..] == content(block, *times)[..], "block {block}");
        }
    });
    disk.world().stop();
}

/// Size of the volume in MiB, longest content in a record, and the percentage of its space to fill.
const SHARES: [(u64, u32, u64); 9] = [
    (2, 0, 60),
    (2, 64 << 10, 60),
    (2, 0, 80),
    (2, 64 << 10, 80),
    (2, 0, 90),
    (4, 64 << 10, 90),
    (8, 0, 80),
    (2, 0, 1000),
    (4, 64 << 10, 1000),
];

/// The story: a volume that was at most four fifths full refused overwrites after some hundred
/// rounds. The tree had grown, and neither overwrites nor the cleaner could use the space that is
/// kept for removals and truncates.
#[test]
fn p25_full_volume_is_overwritten_for_ever() {
    for (mib, inline_max, percent) in SHARES {
        let setup = setup(mib, inline_max);
        let disk = setup.blank();
        let mut model = Vec::new();
        disk.world().run(async {
            let volume = open(&setup, &disk).await.unwrap();
            let room = available(&volume).await;
            let (_, file) = create(&volume, "f").await.unwrap();
            model = filled(&file, room * percent / 100).await;
            println!("{mib} MiB, {inline_max}, {percent} %: of {room} {}", model.len());
            overwrite(&volume, &file, &mut model, (3000, 1)).await;
            volume.syncfs().await.unwrap();
            let (stats, now) = (volume.clean_stats(), available(&volume).await);
            println!("  {stats:?}, {now} available");
            assert!(stats.bad_blocks == 0, "{stats:?}");
        });
        disk.world().stop();
        verify(&setup, &disk, &model);
    }
}

/// The story: if a file has holes, only the tree knows whether a block is stored. An overwrite past
/// the cache was refused as if it were new content.
#[test]
fn p25_blocks_among_holes_are_overwritten_past_the_cache_too() {
    for flags in [IoFlags::empty(), IoFlags::DIRECT] {
        let setup = setup(2, 0);
        let disk = setup.blank();
        disk.world().run(async {
            let volume = open(&setup, &disk).await.unwrap();
            let (ino, file) = create(&volume, "f").await.unwrap();
            let mut blocks = Vec::new();
            while write(&file, 2 * blocks.len() as u64 * BLOCK, &[1; BLOCK as usize]).await.is_ok()
            {
                blocks.push(2 * blocks.len() as u64);
                if blocks.len() % 16 == 0 {
                    file.sync(true).await.expect("it was accepted");
                }
            }
            drop(file);
            volume.close().await.unwrap();
            drop(volume);
            let volume = open(&setup, &disk).await.unwrap();
            let file = volume.open(ino, OpenFlags::WRITE).await.unwrap();
            let mut rng = 3;
            for round in 0..1500 {
                let block = blocks[split_mix(&mut rng) as usize % blocks.len()];
                let bytes = AlignedBuf::copy_of(&[round as u8; BLOCK as usize]);
                let done = file.write(block * BLOCK, bytes, flags, Privileges::Keep).await.1;
                done.unwrap_or_else(|e| panic!("round {round}: {e}\n{}", shown(&volume)));
                if round % 5 == 0 {
                    file.sync(true).await.expect("it was accepted");
                }
            }
            let mut holes = blocks.iter().map(|block| block + 1);
            let error = loop {
                let hole = holes.next().expect("new content is refused");
                let bytes = AlignedBuf::copy_of(&[9; BLOCK as usize]);
                match file.write(hole * BLOCK, bytes, flags, Privileges::Keep).await.1 {
                    Ok(_) => {}
                    Err(error) => break error,
                }
            };
            assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
        });
        disk.world().stop();
    }
}

/// Four writers at once wait for space that one of them makes, and compete for it.
#[test]
fn p25_four_writers_overwrite_a_full_volume() {
    for inline_max in [0, 64 << 10] {
        let setup = setup(4, inline_max);
        let disk = setup.blank();
        disk.world().run(async {
            let volume = open(&setup, &disk).await.unwrap();
            let world: WorldRef = disk.world().clone();
            let each = available(&volume).await / 4;
            let mut writers: Vec<BoxFuture<'static, ()>> = Vec::new();
            for n in 0..4u64 {
                let (_, file) = create(&volume, &format!("f{n}")).await.unwrap();
                let most = if n < 3 { each } else { u64::MAX };
                let (mut model, volume) = (filled(&file, most).await, volume.clone());
                writers.push(Box::pin(async move {
                    overwrite(&volume, &file, &mut model, (800, n)).await;
                    file.sync(true).await.expect("it was accepted");
                }));
            }
            run_concurrently(&world, writers).await;
        });
        disk.world().stop();
    }
}

/// A volume whose cache writes nothing out without a request.
async fn open_quiet(setup: &Setup, disk: &SimDisk) -> Volume {
    let (device, world): (DeviceRef, WorldRef) = (Arc::new(disk.clone()), disk.world().clone());
    let config = Config {
        huge_pages: false,
        folio_size: 16384,
        dirty_bytes: Some(4 << 20),
        dirty_background_bytes: Some(4 << 20),
        dirty_expire_centisecs: 10_000_000,
        ..Config::with_budget(16 << 20)
    };
    let cache = Some(PageCache::new(config, world.clone()).unwrap());
    let options = OpenOptions { cache, ..setup.options(&world) };
    Volume::open(&device, &world, &options).await.unwrap()
}

/// Blocks of new content that the volume still accepts (capacity.P25).
fn left(volume: &Volume) -> u64 {
    volume.0.state.lock().capacity_left() / BLOCK
}

fn dirty_blocks(volume: &Volume) -> u64 {
    volume.0.files.domain.as_ref().unwrap().dirty_bytes() / BLOCK
}

/// Syncs, and makes two checkpoints: after them no changed content counts twice.
async fn settled(volume: &Volume) {
    volume.syncfs().await.unwrap();
    for _ in 0..2 {
        volume.checkpoint().await.unwrap();
    }
}

/// Overwrites 40 blocks more than the volume accepts as new. Dirty blocks count as new content, so
/// no capacity is left. The 40 blocks exceed what the size of the tree is rounded up by.
async fn overwrite_beyond(volume: &Volume, file: &OpenFileRef, times: u8) {
    let blocks = left(volume) + 40;
    for block in 0..blocks {
        write(file, block * BLOCK, &content(block, times)).await.expect("P25");
    }
    assert_eq!(dirty_blocks(volume), blocks, "none is written out yet");
    let has = volume.0.state.lock().has_capacity(0, Growth::default());
    assert!(!has, "it counts as new");
}

/// The story: dirty overwrites of a file count as new content until they are written out. Meanwhile
/// the volume refused a name or a block for which it had space.
#[test]
fn new_content_is_not_refused_for_dirty_overwrites() {
    let setup = setup(4, 0);
    let disk = setup.blank();
    disk.world().run(async {
        let volume = open_quiet(&setup, &disk).await;
        let (_, file) = create(&volume, "f").await.unwrap();
        let room = available(&volume).await;
        let model = filled(&file, room - 40).await;
        settled(&volume).await;
        let now = left(&volume);
        assert!((8..=60).contains(&now) && model.len() > 110, "{now} of {}", model.len());
        overwrite_beyond(&volume, &file, 2).await;
        let (_, other) = create(&volume, "g").await.expect("there is room for a name");
        settled(&volume).await;
        overwrite_beyond(&volume, &file, 3).await;
        write(&other, 0, &[7; BLOCK as usize]).await.expect("and for a block");
        other.sync(true).await.unwrap();
        volume.close().await.unwrap();
    });
    disk.world().stop();
}

/// The story: dirty overwrites of one file took all the space for overwrites. An overwrite of
/// another file was refused, buffered or direct. capacity.P25.
#[test]
fn p25_overwrite_is_not_refused_for_dirty_data_of_others() {
    for flags in [IoFlags::empty(), IoFlags::DIRECT] {
        let setup = setup(4, 0);
        let disk = setup.blank();
        disk.world().run(async {
            let volume = open_quiet(&setup, &disk).await;
            let (_, a) = create(&volume, "a").await.unwrap();
            let (_, b) = create(&volume, "b").await.unwrap();
            let stored = filled(&a, available(&volume).await / 4 * 3).await.len() as u64;
            assert!(!filled(&b, u64::MAX).await.is_empty());
            settled(&volume).await;
            let (has, mut n) = (|| volume.0.state.lock().has_room(BLOCK, Need::Overwrite), 0);
            // Until no more space for overwrites can be made.
            while has() {
                while has() {
                    write(&a, n * BLOCK, &content(n, 2)).await.expect("P25");
                    n += 1;
                }
                volume.0.requests.make_space().await;
            }
            assert!(n < stored && dirty_blocks(&volume) == n, "{n} of {stored} are dirty");
            let bytes = AlignedBuf::copy_of(&content(0, 2));
            let done = b.write(0, bytes, flags, Privileges::Keep).await.1;
            done.unwrap_or_else(|e| panic!("P25: while another file is dirty: {e}"));
            b.sync(true).await.expect("it was accepted");
            volume.close().await.unwrap();
        });
        disk.world().stop();
    }
}

/// The story: a write made its file longer, and found no space for a hole below the old end. To
/// make space it had sizes published, and so waited for its own bytes; so did every sync after it.
#[test]
fn write_across_end_of_file_does_not_wait_for_itself() {
    let setup = setup(2, 0);
    let disk = setup.blank();
    disk.world().run(async {
        let volume = open_quiet(&setup, &disk).await;
        let (ino, file) = create(&volume, "f").await.unwrap();
        let set = SetAttr { size: Some(32 * BLOCK), ..SetAttr::default() };
        volume.setattr(ino, &set).await.unwrap();
        let (_, other) = create(&volume, "g").await.unwrap();
        let mut blocks = 0;
        settled(&volume).await;
        while left(&volume) > 10 {
            write(&other, blocks * BLOCK, &content(blocks, 1)).await.unwrap();
            blocks += 1;
            settled(&volume).await;
        }
        assert!(left(&volume) > 5, "room for its end and for a part of its holes");
        let bytes = [3; 33 * BLOCK as usize];
        let mut writing = pin!(write(&file, 0, &bytes));
        let mut hour = pin!(disk.world().sleep(Duration::from_secs(3600)));
        let done = std::future::poll_fn(|cx| match writing.as_mut().poll(cx) {
            Poll::Ready(done) => Poll::Ready(Some(done)),
            Poll::Pending => hour.as_mut().poll(cx).map(|()| None),
        });
        let error = done.await.expect("it ends").expect_err("there is no room for all of it");
        assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
        file.sync(true).await.expect("what there was room for was accepted");
        volume.close().await.unwrap();
    });
    disk.world().stop();
}

/// The story: an append of less than a block, when the volume had no space for a block, was refused
/// before the volume made space. It had checked for as many bytes as were appended.
/// maintenance.Z11.
#[test]
fn z11_space_is_made_for_few_bytes() {
    let setup = setup(4, 0);
    let disk = setup.blank();
    disk.world().run(async {
        let (device, world): (DeviceRef, WorldRef) = (Arc::new(disk.clone()), disk.world().clone());
        let options = OpenOptions { clean_percent: 0, ..setup.options(&world) };
        let volume = Volume::open(&device, &world, &options).await.unwrap();
        let (_, f) = create(&volume, "f").await.unwrap();
        let (_, g) = create(&volume, "g").await.unwrap();
        let stored = filled(&f, available(&volume).await * 9 / 10).await.len() as u64;
        write(&g, 0, &[7; BLOCK as usize]).await.unwrap();
        settled(&volume).await;
        let is_tight = || {
            let state = volume.0.state.lock();
            let has = |bytes| state.has_room(bytes, Need::New);
            !has(BLOCK) && has(80) && state.capacity_left() >= 2 * BLOCK
        };
        let (mut rng, mut rounds) = (1, 0);
        while !is_tight() {
            rounds += 1;
            assert!(rounds < 3000, "room for a part of a block is left at last");
            let block = split_mix(&mut rng) % stored;
            write(&f, block * BLOCK, &content(block, 2)).await.expect("P25");
            f.sync(true).await.unwrap();
        }
        write(&g, BLOCK, &[7; 80]).await.expect("room is made for it");
        g.sync(true).await.unwrap();
    });
    disk.world().stop();
}

/// The story: an attribute that is too long for a record is refused whatever space there is, but
/// each try had the dirty data of all files written out.
#[test]
fn refusal_for_another_reason_writes_nothing_out() {
    let setup = setup(4, 0);
    let disk = setup.blank();
    disk.world().run(async {
        let volume = open_quiet(&setup, &disk).await;
        let (ino, file) = create(&volume, "f").await.unwrap();
        for block in 0..64 {
            write(&file, block * BLOCK, &content(block, 1)).await.unwrap();
        }
        let name = XattrName::new(b"user.long").unwrap();
        let done = volume.setxattr(ino, name, &[1; 20 << 10], SetXattr::Any).await;
        assert_eq!(done.unwrap_err().kind(), ErrorKind::NoSpace);
        assert_eq!(dirty_blocks(&volume), 64);
    });
    disk.world().stop();
}
