//! A full map, and the guarantee of an accepted write: space is requested when a write is accepted,
//! never first at fsync (ops.O1..O6).

use super::harness::{Lab, NONE, at_once, both};
use forebay_base::buf::AlignedBuf;
use forebay_base::sim_world::SimWorld;
use forebay_base::world::WorldRef;
use forebay_base::{ErrorKind, IoFlags};
use forebay_block::{BioOp, DeviceRef};
use forebay_cache::{Config, PageCache, State};
use forebay_iomap::{Change, Class, Lookup, MapOps, MappedFile, Reservation, Source, Written};
use forebay_sim::{Fault, FaultRule, SimDisk};
use forebay_testkit::remap::{Remap, RemapOptions};
use std::sync::Arc;

const BLOCK: u64 = 4096;
/// Places on the disk, and blocks of the file: more than there are places.
const PLACES: u64 = 16;
const BLOCKS: u64 = 24;

/// A file of 24 blocks on a map of 16, and the map.
fn full_soon(options: RemapOptions) -> (Lab, forebay_base::sync::Arc<Remap>) {
    full_soon_in(4096, options)
}

fn full_soon_in(folio_size: u32, options: RemapOptions) -> (Lab, forebay_base::sync::Arc<Remap>) {
    let mut map = None;
    let config = Config { folio_size, ..Config::with_budget(8 << 20) };
    let lab =
        Lab::with_map(config, BLOCK as u32, Lab::sim(PLACES * BLOCK), BLOCKS * BLOCK, |disk| {
            let new = Remap::with_options(disk, BLOCK as u32, options);
            map = Some(new.clone());
            new
        });
    (lab, map.expect("it was made"))
}

async fn put(lab: &Lab, block: u64, value: u8) -> Result<(), ErrorKind> {
    let done = lab.try_write(block * BLOCK, &[value; BLOCK as usize], NONE).await;
    done.map(drop).map_err(|error| error.kind())
}

/// Fills the map: a block for each place.
async fn fill(lab: &Lab) {
    for block in 0..PLACES {
        put(lab, block, 1).await.unwrap();
    }
    lab.sync().await.unwrap();
}

/// Room first looked for at write-out made fsync fail for data that had been accepted.
#[test]
fn no_space_is_reported_at_write_not_first_at_fsync() {
    let (lab, _map) = full_soon(RemapOptions::default());
    lab.run(async {
        let mut accepted = 0;
        while put(&lab, accepted, 1).await.is_ok() {
            accepted += 1;
        }
        assert_eq!(accepted, PLACES);
        assert_eq!(put(&lab, accepted, 1).await, Err(ErrorKind::NoSpace));
        lab.sync().await.expect("what was accepted has room");
        assert_eq!(lab.read(0, (PLACES * BLOCK) as usize, NONE).await, vec![1; 16 * 4096]);
        let direct = lab.try_write(20 * BLOCK, &[1; 4096], IoFlags::DIRECT).await;
        assert_eq!(direct.unwrap_err().kind(), ErrorKind::NoSpace);
        lab.sync().await.expect("a refused write fails no sync");
    });
}

/// What is written again goes elsewhere: a full map has no room for that, and a block that is dirty
/// already needs none.
#[test]
fn overwrite_needs_space_and_dirty_overwrite_none() {
    let (lab, map) = full_soon(RemapOptions::default());
    lab.run(async {
        for block in 0..PLACES - 1 {
            put(&lab, block, 1).await.unwrap();
        }
        lab.sync().await.unwrap();
        put(&lab, 3, 2).await.expect("one place is left");
        for value in 3..9 {
            put(&lab, 3, value).await.expect("its share is taken already");
        }
        // The one place is 3's: another block gets it when 3 has been written and its old place is
        // free.
        put(&lab, 4, 2).await.expect("3 is written out for it");
        lab.sync().await.unwrap();
        assert_eq!(map.accounted(), PLACES, "R1");
        put(&lab, PLACES - 1, 1).await.unwrap();
        lab.sync().await.unwrap();
        assert_eq!(put(&lab, 3, 9).await, Err(ErrorKind::NoSpace), "there is no place to move to");
        lab.sync().await.unwrap();
        assert_eq!(lab.read(3 * BLOCK, 1, NONE).await, [8]);
    });
}

/// Only blocks of a write that are not dirty yet need space. The story: all were counted, and a map
/// with just enough space was written out for it.
#[test]
fn write_requests_space_for_clean_blocks_only() {
    let (lab, _map) = full_soon_in(65536, RemapOptions::default());
    lab.run(async {
        for block in 0..PLACES - 2 {
            put(&lab, block, 1).await.unwrap();
        }
        lab.sync().await.unwrap();
        lab.disk.clear_log();
        put(&lab, 3, 2).await.expect("two places are left");
        lab.write(3 * BLOCK, &[3; 2 * BLOCK as usize], NONE).await;
        assert_eq!(lab.writes(), (0, 0), "the other is for block 4");
        assert_eq!(lab.blocks(State::Dirty), [3, 4].into());
        lab.sync().await.unwrap();
        assert_eq!(lab.read(3 * BLOCK, 2 * BLOCK as usize, NONE).await, vec![3; 8192]);
    });
}

/// Unused grants are returned: places of a failed write-out, and those of dirty blocks that are
/// trimmed or truncated.
#[test]
fn grant_is_returned_on_abort_trim_and_truncate() {
    for way in ["abort", "trim", "truncate"] {
        let (lab, map) = full_soon(RemapOptions { grows: true, ..RemapOptions::default() });
        lab.run(async {
            for block in 0..PLACES {
                put(&lab, block, 1).await.unwrap();
            }
            let fails = FaultRule::on(BioOp::Write, Fault::Fail(ErrorKind::Io)).sticky();
            if way == "abort" {
                lab.disk.inject(fails);
            }
            assert_eq!(put(&lab, PLACES, 1).await, Err(ErrorKind::NoSpace));
            match way {
                "abort" => {
                    assert!(lab.sync().await.is_err());
                    assert_eq!(map.accounted(), PLACES, "the places of what failed are free again");
                    lab.disk.heal();
                    let _told = lab.sync().await;
                    lab.sync().await.expect("the dirty blocks still have their space");
                    lab.zero(0, 4 * BLOCK, false).await.unwrap();
                }
                "trim" => lab.zero(0, 4 * BLOCK, false).await.unwrap(),
                _ => lab.file.set_len(12 * BLOCK).await.unwrap(),
            }
            for block in PLACES..PLACES + 4 {
                put(&lab, block, 2).await.unwrap_or_else(|e| panic!("{way}: {e:?} at {block}"));
            }
            assert_eq!(put(&lab, PLACES + 4, 2).await, Err(ErrorKind::NoSpace), "{way}");
            lab.sync().await.unwrap();
            assert_eq!(map.accounted(), PLACES, "R1");
        });
    }
}

/// The story: a durable direct write was lost with the map. Its data went out with FUA, and no task
/// committed the map that says where it is.
#[test]
fn durable_direct_write_commits_map() {
    let (lab, map) = full_soon(RemapOptions::default());
    lab.run(async {
        for flags in [IoFlags::DSYNC, IoFlags::SYNC] {
            let before = map.commits();
            lab.write(0, &[7; 4096], IoFlags::DIRECT | flags).await;
            assert_eq!(map.commits(), before + 1, "{flags:?}");
        }
        let before = map.commits();
        lab.write(0, &[8; 4096], IoFlags::DIRECT).await;
        assert_eq!(map.commits(), before, "no commit was requested");
    });
}

/// ops.O2: the later content stays, in whatever order two writes end; a block that was emptied in
/// between stays empty.
#[test]
fn o1_o2_later_content_stays_in_any_completion_order() {
    let (lab, map) = full_soon(RemapOptions::default());
    lab.run(async {
        let block = 0..BLOCK;
        let written = |reservation: &Reservation, sequence| {
            let place = reservation.places()[0].clone();
            vec![Written { place, sequence, sums: Vec::new() }]
        };
        let one =
            map.reserve(std::slice::from_ref(&block), Class::Sync, &mut Vec::new()).await.unwrap();
        let two =
            map.reserve(std::slice::from_ref(&block), Class::Sync, &mut Vec::new()).await.unwrap();
        let (first, second) = (map.sequence(), map.sequence());
        map.publish(&two, &written(&two, second), 0);
        map.publish(&one, &written(&one, first), 0);
        let found = map.map(block.clone(), Lookup::Read).await.unwrap();
        assert_eq!(found.device_offset, Some(two.places()[0].device_offset));
        let old =
            map.reserve(std::slice::from_ref(&block), Class::Sync, &mut Vec::new()).await.unwrap();
        let before = map.sequence();
        let (keep_allocated, fast_only, owned) = (false, false, Arc::new(()));
        let range = block.clone();
        let zero = Change::Zero { range, keep_allocated, fast_only, owned };
        map.change(zero).await.unwrap();
        map.publish(&old, &written(&old, before), 0);
        assert_eq!(map.map(block.clone(), Lookup::Read).await.unwrap().device_offset, None);
        drop((one, two, old, found));
        assert_eq!(map.accounted(), PLACES, "R1");
    });
}

/// ops.O4, and remap.R2 of the map in memory: a read that was planned finds what was there; its
/// place is not given to another write meanwhile.
#[test]
fn o4_place_is_not_reused_while_readable() {
    let (lab, map) = full_soon(RemapOptions::default());
    lab.run(async {
        fill(&lab).await;
        let planned = map.map(0..BLOCK, Lookup::Read).await.unwrap();
        lab.zero(0, BLOCK, false).await.unwrap();
        let wanted = std::slice::from_ref(&(20 * BLOCK..21 * BLOCK)).to_vec();
        assert!(
            map.reserve(&wanted, Class::Direct, &mut Vec::new()).await.is_err(),
            "the one place is pinned"
        );
        drop(planned);
        assert!(map.reserve(&wanted, Class::Direct, &mut Vec::new()).await.is_ok());
    });
}

/// ops.O5, and remap.R3 of the map in memory: a size that is recovered never covers a block whose
/// bytes are still on their way.
#[test]
fn o5_size_is_published_after_bytes_below_it() {
    let (lab, map) = full_soon(RemapOptions { grows: true, ..RemapOptions::default() });
    lab.run(async {
        lab.file.set_len(0).await.unwrap();
        let published = || map.published_size().unwrap();
        lab.write(0, &[1; 3 * 4096], NONE).await;
        // Written out behind a dirty block: the size stops at that block.
        lab.write(3 * BLOCK, &[2; 4096], IoFlags::DIRECT).await;
        assert_eq!(published(), 0, "nothing below 12288 is written");
        lab.sync().await.unwrap();
        assert_eq!(published(), 4 * BLOCK);
        // A durable write beyond the published size also writes the dirty blocks below it.
        lab.write(4 * BLOCK, &[3; 100], NONE).await;
        lab.write(5 * BLOCK, &[4; 4096], IoFlags::DIRECT | IoFlags::DSYNC).await;
        assert_eq!(published(), 6 * BLOCK);
        assert!(!lab.blocks(State::Dirty).contains(&4));
        lab.file.set_len(BLOCK + 1).await.unwrap();
        assert!(published() <= BLOCK + 1);
    });
}

/// ops.O6: a task that waits for space holds no block in write-out, so it does not hold up a writer
/// that hits the block.
#[test]
fn o6_no_block_is_in_write_out_while_waiting_for_space() {
    let mut waited = 0;
    for seed in 1..40 {
        let lab = Lab::with_late_map(seed, Config::with_budget(8 << 20), 1 << 20);
        lab.run(async {
            lab.write(0, &[1; 8192], NONE).await;
            // At most the wait of the map: no bio was issued at the first poll.
            let mut pass = std::pin::pin!(lab.file.sync(&lab.handle));
            if at_once(pass.as_mut()).is_none() && lab.writes().1 == 0 {
                waited += 1;
                assert!(lab.blocks(State::Writing).is_empty(), "O6: taken before there is room");
                assert_eq!(lab.blocks(State::Dirty), [0, 1].into());
            }
            pass.await.unwrap();
        });
    }
    assert!(waited > 4, "the map hardly ever waited: {waited}");
}

/// On a map that waits: no task is woken for space that is not there.
#[test]
fn full_map_that_waits_refuses_writes() {
    for seed in 1..20 {
        let world = SimWorld::new(seed);
        let disk = SimDisk::new(world.clone(), Lab::sim(PLACES * BLOCK));
        let device: DeviceRef = Arc::new(disk);
        let waits = Some(world.clone() as WorldRef);
        let options = RemapOptions { grows: false, sums: true, waits };
        let map = Remap::with_options(device, BLOCK as u32, options);
        let cache = PageCache::new(
            Config { huge_pages: false, ..Config::with_budget(1 << 20) },
            world.clone(),
        )
        .unwrap();
        let size = BLOCKS * BLOCK;
        let file = MappedFile::new(&cache, map, BLOCK as u32, size, false).unwrap();
        world.run(async {
            let handle = file.open_handle();
            let mut good = 0;
            for block in 0..BLOCKS {
                let mut data = AlignedBuf::copy_of(&[9; 4096]);
                let source = Source::Owned(&mut data);
                let flags = [NONE, IoFlags::UNCACHED, IoFlags::START_WRITEBACK][block as usize % 3];
                good += u64::from(file.write(&handle, block * BLOCK, source, flags).await.is_ok());
                file.sync(&handle).await.expect("only writes are refused");
            }
            assert_eq!(good, PLACES, "seed {seed}");
        });
    }
}

/// E8: a write that was refused in the middle had made the file longer; and two that grow one file
/// were promised the same room, so that the sync after them failed.
#[test]
fn e8_growing_writers_get_available_space_and_refused_add_nothing() {
    let mut refused = 0;
    for seed in 1..20 {
        let world = SimWorld::new(seed);
        let device: DeviceRef = Arc::new(SimDisk::new(world.clone(), Lab::sim(PLACES * BLOCK)));
        let waits = Some(world.clone() as WorldRef);
        let options = RemapOptions { grows: true, sums: false, waits };
        let map = Remap::with_options(device, BLOCK as u32, options);
        let config = Config { huge_pages: false, ..Config::with_budget(1 << 20) };
        let cache = PageCache::new(config, world.clone()).unwrap();
        let file = MappedFile::new(&cache, map, BLOCK as u32, 0, false).unwrap();
        world.run(async {
            let handle = file.open_handle();
            let append = || async {
                let mut data = AlignedBuf::copy_of(&[9; 12 * 4096]);
                let source = Source::Owned(&mut data);
                file.write(&handle, 0, source, IoFlags::APPEND).await
            };
            let done = both(append(), append()).await;
            let good = [done.0, done.1].into_iter().filter(|done| match done {
                Ok(bytes) => *bytes == 12 * 4096,
                Err(error) => error.kind() != ErrorKind::NoSpace,
            });
            let good = good.count() as u64;
            refused += 2 - good;
            assert_eq!(file.size(), good * 12 * BLOCK, "seed {seed}");
            file.sync(&handle).await.expect("what was accepted has room");
        });
    }
    assert_eq!(refused, 19, "one of two fits");
}
