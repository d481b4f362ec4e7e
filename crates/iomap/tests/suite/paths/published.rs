//! Maps with a size of their own: what a crash leaves of a durable write or a sync (ops.O5), what
//! such a file shows when it grows after one (bounds.E1), and dropped fills.

use super::gates::Gated;
use super::harness::{Lab, NONE, at_once, both};
use forebay_base::{ErrorKind, IoFlags};
use forebay_block::BioOp;
use forebay_cache::{Config, State};
use forebay_iomap::identity::Identity;
use forebay_iomap::{MapOps, MappedFile, Target};
use forebay_sim::{Fault, FaultRule};
use forebay_testkit::remap::{Remap, RemapOptions};
use std::pin::pin;
use std::sync::{Arc, OnceLock};

const BLOCK: u64 = 4096;
const DURABLE: [IoFlags; 2] = [IoFlags::DSYNC, IoFlags::DIRECT.union(IoFlags::DSYNC)];

/// A file of no bytes on a map that keeps its size.
fn growing() -> (Lab, forebay_base::sync::Arc<Remap>) {
    let (mut map, size) = (None, 24 * BLOCK);
    let config = Config::with_budget(8 << 20);
    let lab = Lab::with_map(config, BLOCK as u32, Lab::sim(2 * size), size, |disk| {
        let options = RemapOptions { grows: true, ..RemapOptions::default() };
        let new = Remap::with_options(disk, BLOCK as u32, options);
        map = Some(new.clone());
        new
    });
    lab.run(async { lab.file.set_len(0).await.unwrap() });
    (lab, map.expect("it was made"))
}

/// The story: a durable write succeeded and its bytes were lost in a crash. A dirty block below the
/// recoverable size, in the same folio, held the size back; no task wrote it, and the sync gave up
/// silently.
#[test]
fn o5_durable_write_above_dirty_blocks_is_found() {
    for flags in DURABLE {
        let (lab, map) = growing();
        lab.run(async {
            lab.write(0, &[1; 8192], NONE).await;
            lab.sync().await.unwrap();
            assert_eq!(map.published_size(), Some(2 * BLOCK));
            lab.write(0, &[2; 4096], NONE).await;
            lab.write(2 * BLOCK, &[3; 4096], flags).await;
            assert_eq!(map.published_size(), Some(3 * BLOCK), "{flags:?}");
            assert!(lab.blocks(State::Dirty).contains(&0), "{flags:?}: it need not be written");
            // And what is dirty beyond it is.
            lab.write(3 * BLOCK + 7, &[4; 100], NONE).await;
            lab.write(5 * BLOCK, &[5; 4096], flags).await;
            assert_eq!(map.published_size(), Some(6 * BLOCK), "{flags:?}");
        });
    }
}

/// The last bio of a write-out publishes the size with the bytes below it, so a sync need not. A
/// block that is dirty again by then holds the size back.
#[test]
fn o5_write_out_publishes_the_size_with_its_bytes() {
    for appends in [false, true] {
        let (lab, map) = growing();
        lab.run(async {
            let end = 2 * BLOCK + 100;
            lab.write(0, &vec![1; end as usize], IoFlags::START_WRITEBACK).await;
            assert_eq!((map.published_size(), lab.file.mapping.write_outs()), (Some(0), 1));
            if appends {
                let append = pin!(lab.write(end, &[2; 100], NONE));
                at_once(append).expect("the write-out has a copy of the block");
            }
            lab.file.mapping.wait_write_outs().await;
            let written = if appends { 2 * BLOCK } else { end };
            assert_eq!(map.published_size(), Some(written), "{appends}");
            lab.sync().await.unwrap();
            assert_eq!(map.published_size(), Some(lab.file.size()));
        });
    }
}

/// The story continues: a write below the dirty blocks was lost, too, which held the size back from
/// behind it, in the same folio or in the next one.
#[test]
fn o5_durable_write_before_dirty_blocks_is_found() {
    for flags in DURABLE {
        for (at, behind) in [(0, 8), (0, 20), (16, 20), (17, 18)] {
            let (lab, map) = growing();
            lab.run(async {
                lab.write(behind * BLOCK, &[1; 4096], NONE).await;
                lab.write(at * BLOCK, &[2; 4096], flags).await;
                let published = map.published_size().unwrap();
                assert_eq!(published, behind * BLOCK, "{flags:?} {at} {behind}");
                assert!(lab.blocks(State::Dirty).contains(&behind), "it need not be written");
            });
        }
    }
}

/// The story: the host was full, and a durable write above dirty blocks that could not be written
/// answered with an I/O error, which a caller takes for a broken device.
#[test]
fn o5_durable_write_says_why_blocks_below_are_not_written() {
    for flags in DURABLE {
        let (lab, map) = growing();
        lab.run(async {
            lab.write(BLOCK, &[1; 4096], NONE).await;
            let full = Fault::Fail(ErrorKind::NoSpace);
            lab.disk.inject(FaultRule::on(BioOp::Write, full).nth(2).sticky());
            let wrote = lab.try_write(5 * BLOCK, &[2; 4096], flags).await;
            assert_eq!(wrote.unwrap_err().kind(), ErrorKind::NoSpace, "{flags:?}");
            lab.disk.heal();
            // A sync may tell the opener of the failure once more.
            lab.sync().await.ok();
            lab.sync().await.unwrap();
            assert_eq!(map.published_size(), Some(lab.file.size()), "{flags:?}");
        });
    }
}

/// With a concurrent append below: a direct durable write did not wait for it. A buffered one did
/// not if some other block of the file could not be written at the time.
#[test]
fn o5_durable_write_waits_for_append_below() {
    for flags in DURABLE {
        for failing in [false, true] {
            let (lab, map) = growing();
            lab.run(async {
                lab.write(0, &[1; 4096], NONE).await;
                lab.sync().await.unwrap();
                if failing {
                    let fail = Fault::Fail(ErrorKind::Io);
                    lab.disk.inject(FaultRule::on(BioOp::Write, fail));
                    lab.write(0, &[2; 4096], IoFlags::START_WRITEBACK).await;
                    lab.file.mapping.wait_write_outs().await;
                    assert!(lab.file.mapping.is_failing());
                    // An opener has seen the error, so the openers below get none.
                    let told = lab.file.mapping.errseq.check_and_advance(&mut Default::default());
                    assert!(told.is_some());
                }
                let bounds = &lab.file.mapping.bounds;
                let held = bounds.try_exclusive(BLOCK..2 * BLOCK).unwrap();
                let mut below = pin!(lab.write(BLOCK, &[3; 4096], NONE));
                assert!(at_once(below.as_mut()).is_none());
                assert_eq!((lab.file.end(), lab.file.size()), (2 * BLOCK, BLOCK));
                // An opener that has been told of nothing.
                let handle = lab.file.open_handle();
                let durable = async {
                    let mut data = forebay_base::buf::AlignedBuf::copy_of(&[4; 4096]);
                    let source = forebay_iomap::Source::Owned(&mut data);
                    lab.file.write(&handle, 2 * BLOCK, source, flags).await.unwrap();
                    assert_eq!(map.published_size(), Some(3 * BLOCK), "{flags:?} {failing}");
                };
                let rest = async {
                    lab.sleep_ms(10).await;
                    drop(held);
                    below.await;
                };
                both(durable, rest).await;
            });
        }
    }
}

/// The story: a crash left a file truncated in the middle of a block whose tail was not zeroed yet,
/// or shorter than its mapped blocks. As soon as it grew, old bytes showed in place of zeros.
#[test]
fn e1_file_grown_after_crash_shows_zeros_behind_old_end() {
    for end in [0, 100, BLOCK, BLOCK + 100] {
        for sparse_write in [false, true] {
            let (lab, map) = growing();
            lab.run(async {
                lab.write(0, &[b'A'; 3 * 4096], NONE).await;
                lab.sync().await.unwrap();
                let file = MappedFile::new(&lab.cache, map.clone(), BLOCK as u32, end, false);
                let (file, len) = (file.unwrap(), 4 * BLOCK);
                let handle = file.open_handle();
                if sparse_write {
                    let source = forebay_iomap::Source::Slice(b"B");
                    file.write(&handle, len - 1, source, NONE).await.unwrap();
                } else {
                    file.set_len(len).await.unwrap();
                }
                let mut want = vec![0; len as usize];
                want[..end as usize].fill(b'A');
                want[len as usize - 1] = if sparse_write { b'B' } else { 0 };
                // From the cache, and from storage.
                for _ in 0..2 {
                    let mut all = forebay_base::buf::AlignedBuf::new(len as usize);
                    file.read(&handle, 0, Target::Owned(&mut all), NONE).await.unwrap();
                    assert!(all[..] == want[..], "end {end}, write {sparse_write}");
                    file.sync(&handle).await.unwrap();
                    lab.cache.drop_clean();
                }
                file.close_handle(&handle);
            });
        }
    }
}

/// The story: a read that was dropped while it asked the map left its blocks *reading* for ever.
/// The next reader waited for a fill that no task carried out.
#[test]
fn fill_dropped_holds_no_block() {
    let keep: OnceLock<Arc<Gated>> = OnceLock::new();
    let (config, size) = (Config::with_budget(8 << 20), 1 << 20);
    let lab = Lab::with_map(config, BLOCK as u32, Lab::sim(size), size, |disk| {
        keep.get_or_init(|| Gated::new(Arc::new(Identity::new(disk)))).clone()
    });
    lab.run(async {
        keep.get().unwrap().tree.get_or_init(|| lab.cache.clone());
        let held = lab.cache.try_private(lab.cache.private_limit()).unwrap();
        let mut read = Box::pin(lab.read(0, 200_000, NONE));
        assert!(at_once(read.as_mut()).is_none());
        assert!(!lab.blocks(State::Reading).is_empty(), "the map is being asked");
        drop(read);
        assert!(lab.blocks(State::Reading).is_empty());
        drop(held);
        let want: Vec<u8> = (0..200_000).map(Lab::old).collect();
        assert!(lab.read(0, 200_000, NONE).await == want);
    });
}
