//! What moves the end of file, and is overtaken, refused, given up, or found after a crash.

use super::gates::Gated;
use super::harness::{Lab, NONE, at_once};
use forebay_base::IoFlags;
use forebay_base::buf::AlignedBuf;
use forebay_base::world::World;
use forebay_block::DeviceRef;
use forebay_cache::{Config, PageCache, State};
use forebay_iomap::{Admit, MapOps, MappedFile, Source, Target};
use forebay_testkit::remap::{Remap, RemapOptions};
use std::pin::pin;
use std::sync::{Arc, OnceLock};

const BLOCK: u64 = 4096;
const GROWS: RemapOptions = RemapOptions { grows: true, sums: false, waits: None };

type Map = forebay_base::sync::Arc<Remap>;

/// An empty file on a map of so many places, with gates before it.
fn growing(places: u64) -> (Lab, Map, Arc<Gated>) {
    let keep = OnceLock::new();
    let config = Config { folio_size: 65536, ..Config::with_budget(8 << 20) };
    let lab = Lab::with_map(config, BLOCK as u32, Lab::sim(places * BLOCK), 0, |disk| {
        let map = Remap::with_options(disk, BLOCK as u32, GROWS);
        keep.get_or_init(|| (map.clone(), Gated::new(map))).1.clone()
    });
    let (map, gated) = keep.get().expect("it was made").clone();
    (lab, map, gated)
}

async fn read(file: &MappedFile, len: u64) -> Vec<u8> {
    let (handle, mut buf) = (file.open_handle(), AlignedBuf::new(len as usize));
    let len = file.read(&handle, 0, Target::Owned(&mut buf), NONE).await.unwrap();
    buf[..len].to_vec()
}

/// The story: of a truncate the size was durable and the block of the new end was not, and blocks
/// behind a size were mapped before the size was recoverable. After a power loss the file grew, by
/// a truncate or a later write, and showed truncated bytes in place of zeros. It did so also where
/// the block had been read in between, and its zeroed tail was clean.
#[test]
fn e1_file_grown_after_crash_reads_zeros() {
    let ways = ["truncate", "write", "read before", "cached write"];
    for (way, blocks) in ways.into_iter().flat_map(|way| [(way, 1), (way, 4)]) {
        let (lab, map, _) = growing(64);
        lab.run(async {
            lab.write(0, &vec![0xaa; (blocks * BLOCK) as usize], NONE).await;
            lab.sync().await.unwrap();
            let disk: DeviceRef = lab.disk.clone();
            let map = Remap::from_image(disk, BLOCK as u32, GROWS, &map.image());
            let world = lab.world.clone();
            let config = Config { huge_pages: false, ..Config::with_budget(1 << 20) };
            let cache = PageCache::new(config, world.clone()).unwrap();
            let file = MappedFile::new(&cache, map, BLOCK as u32, 100, false).unwrap();
            let handle = file.open_handle();
            if way.starts_with("read") || way.starts_with("cached") {
                assert_eq!(read(&file, 200).await, [0xaa; 100]);
            }
            let mut want = [vec![0xaa; 100], vec![0; 3 * BLOCK as usize - 100]].concat();
            if way.ends_with("write") {
                let mut bytes = AlignedBuf::copy_of(&[7; 10]);
                let at = want.len() as u64 - 10;
                file.write(&handle, at, Source::Owned(&mut bytes), NONE).await.unwrap();
                want.truncate(at as usize);
                want.extend([7; 10]);
            } else {
                file.set_len(want.len() as u64).await.unwrap();
            }
            assert!(read(&file, 4 * BLOCK).await == want, "{way}");
            file.sync(&handle).await.unwrap();
            world.sleep(std::time::Duration::from_millis(20)).await;
            cache.drop_clean();
            assert!(read(&file, 4 * BLOCK).await == want, "{way}, from storage");
        });
    }
}

/// A hole at the end stays one: there is nothing to clean.
#[test]
fn e1_hole_at_end_stays_hole() {
    let (lab, map, _) = growing(64);
    lab.run(async {
        lab.file.set_len(100).await.unwrap();
        lab.file.set_len(3 * BLOCK).await.unwrap();
        lab.sync().await.unwrap();
        assert_eq!(map.image().places().count(), 0);
        assert_eq!(lab.writes(), (0, 0));
    });
}

/// bounds.E7. A truncate overtakes a write, which then makes the file longer again. Syncs meanwhile
/// neither wait for it nor make the size recoverable before its bytes are there.
#[test]
fn e7_sync_during_a_growing_write_keeps_the_old_size() {
    let (lab, map, gated) = growing(64);
    lab.run(async {
        lab.write(0, &[1; 2 * BLOCK as usize], NONE).await;
        lab.sync().await.unwrap();
        lab.sleep_ms(20).await;
        lab.cache.drop_clean();
        assert!(gated.tree.set(lab.cache.clone()).is_ok());
        let all = || lab.cache.try_private(lab.cache.private_limit()).expect("no permit is out");
        let permit = all();
        // It has its place, and has to read its first block.
        let mut write = pin!(lab.write(100, &[2; 5000], NONE));
        assert!(at_once(write.as_mut()).is_none());
        let mut cut = pin!(lab.file.set_len(0));
        assert!(at_once(cut.as_mut()).is_none(), "the block is being read");
        drop(permit);
        assert!(at_once(write.as_mut()).is_none(), "the read is on its way");
        let permit = all();
        lab.sleep_ms(20).await;
        at_once(cut).expect("nothing is in its way").unwrap();
        assert_eq!(lab.file.size(), 0);
        // It grows the file again, and has to ask where the block is.
        assert!(at_once(write.as_mut()).is_none());
        assert_eq!(lab.file.size(), 0, "readers see the end move when the bytes are there");
        for _ in 0..20 {
            lab.sync().await.unwrap();
            // What lies before it is a hole.
            assert!(map.published_size().unwrap() <= 100, "nothing is there yet");
            lab.sleep_ms(1).await;
        }
        drop(permit);
        write.await;
        assert_eq!(lab.file.size(), 5100);
        lab.sync().await.unwrap();
        assert_eq!(map.published_size(), Some(5100));
    });
}

/// The same write, where there is no room any more: it is refused before the file grows again.
#[test]
fn e7_overtaken_write_without_space_adds_nothing() {
    let (lab, map, gated) = growing(8);
    lab.run(async {
        lab.write(0, &[1; 2 * BLOCK as usize], NONE).await;
        lab.sync().await.unwrap();
        lab.sleep_ms(20).await;
        lab.cache.drop_clean();
        assert!(gated.tree.set(lab.cache.clone()).is_ok());
        let permit = lab.cache.try_private(lab.cache.private_limit()).unwrap();
        let bytes = [2; 5000];
        let mut write = pin!(lab.try_write(100, &bytes, NONE));
        assert!(at_once(write.as_mut()).is_none());
        let mut cut = pin!(lab.file.set_len(0));
        assert!(at_once(cut.as_mut()).is_none());
        drop(permit);
        assert!(at_once(write.as_mut()).is_none());
        lab.sleep_ms(20).await;
        at_once(cut).expect("nothing is in its way").unwrap();
        // Another file takes the remaining space.
        map.admit(8 * BLOCK, 0, Admit::New).unwrap();
        assert!(write.await.is_err());
        assert_eq!(lab.file.size(), 0);
        map.arrived(8 * BLOCK);
    });
}

/// The story: a dropped read had made blocks *reading* that no task ended. Readers of these blocks,
/// and every truncate, waited for ever.
#[test]
fn f4_read_dropped_in_map_leaves_no_block_reading() {
    let (lab, _, gated) = growing(64);
    lab.run(async {
        lab.write(0, &[1; 8 * BLOCK as usize], NONE).await;
        lab.sync().await.unwrap();
        lab.sleep_ms(20).await;
        lab.cache.drop_clean();
        assert!(gated.tree.set(lab.cache.clone()).is_ok());
        let permit = lab.cache.try_private(lab.cache.private_limit()).unwrap();
        {
            let mut read = pin!(lab.read(0, 2 * BLOCK as usize, NONE));
            assert!(at_once(read.as_mut()).is_none());
            assert!(!lab.blocks_of(8 * BLOCK, State::Reading).is_empty());
        }
        assert_eq!(lab.blocks_of(8 * BLOCK, State::Reading), [].into());
        drop(permit);
        assert_eq!(lab.read(0, 100, NONE).await, [1; 100]);
        lab.file.set_len(0).await.unwrap();
        lab.cache.check_books();
    });
}

/// The story: a dropped write past the cache released its range while its bio was in flight. In
/// place, the older bytes could overwrite a later write that had been acknowledged.
#[test]
fn e4_direct_write_dropped_keeps_range_until_bio_ends() {
    let lab = Lab::plain(4096);
    lab.run(async {
        let range = BLOCK..2 * BLOCK;
        {
            let mut write = pin!(lab.write(BLOCK, &[1; BLOCK as usize], IoFlags::DIRECT));
            assert!(at_once(write.as_mut()).is_none());
            assert!(lab.file.mapping.is_exclusive(&range));
        }
        let mapping = &lab.file.mapping;
        assert!(mapping.is_exclusive(&range), "its bio is out");
        assert_eq!(mapping.write_outs(), 1, "a sync has to wait for it");
        lab.write(BLOCK, &[2; BLOCK as usize], IoFlags::DIRECT).await;
        lab.sleep_ms(20).await;
        assert!(!mapping.is_exclusive(&range));
        assert_eq!(mapping.write_outs(), 0);
        assert_eq!(lab.disk.peek(BLOCK, 4096), [2; BLOCK as usize]);
    });
}

/// The story: a dropped truncate had moved the size and not truncated the storage. Dirty blocks
/// behind the size reappeared, which no task wrote.
#[test]
fn e2_truncate_dropped_leaves_file_unchanged() {
    let (lab, map, gated) = growing(64);
    lab.run(async {
        lab.write(0, &[1; 4 * BLOCK as usize], NONE).await;
        gated.truncate.close();
        assert!(at_once(lab.file.set_len(BLOCK + 10)).is_none() && lab.file.size() > BLOCK + 10);
        {
            let mut cut = pin!(lab.file.set_len(BLOCK));
            assert!(at_once(cut.as_mut()).is_none());
            assert_eq!(lab.file.size(), BLOCK);
        }
        gated.truncate.open();
        assert_eq!(lab.file.size(), 4 * BLOCK);
        lab.sync().await.unwrap();
        assert_eq!(map.published_size(), Some(4 * BLOCK));
        lab.cache.drop_clean();
        assert_eq!(lab.read(0, 1 << 20, NONE).await, [1; 4 * BLOCK as usize]);
        lab.file.set_len(BLOCK).await.unwrap();
        assert_eq!(lab.read(0, 1 << 20, NONE).await, [1; BLOCK as usize]);
    });
}
