//! Lost content after the openers of that time have closed its file: syncs of later openers, the
//! list of lost content, the next life of the volume.
//!
//! No locks.

use super::*;
use crate::tests::faults::failing;
use crate::tests::read_only::place_of;
use crate::{LostContent, LostFile};
use forebay_block::BioOp;

/// Syncs of the openers of a loss fail, until the last of them has closed the file. Later ones make
/// durable what is not lost, and reads of the rest fail for the life of the volume. The next one
/// has the old content. lost.V15, sync_errors.E21.
#[test]
fn later_openers_sync_what_is_not_lost() {
    for (sums, before) in [true, false].into_iter().flat_map(|sums| ALL.map(|one| (sums, one))) {
        for (checkpoint, append, close) in
            (0..8).map(|bits| (bits & 1 > 0, bits & 2 > 0, bits & 4 > 0))
        {
            let shown = format!("sums {sums}, {before:?}, {checkpoint}, {append}, {close}");
            let (setup, disk, wanted) = on_volume(sums, async |disk, volume, (ino, damaged)| {
                let (_, second) = create(&volume, "damaged").await.unwrap();
                let mut synced = prepare(&volume, &damaged, before).await;
                lose_block(&volume, disk, (ino, &damaged), LOST).await;
                if checkpoint {
                    volume.checkpoint().await.expect("one file is concerned");
                }
                let list = LostContent {
                    files: vec![LostFile {
                        ino,
                        path: None,
                        bytes: BLOCK as u64,
                        ranges: vec![(LOST * BLOCK as u64, BLOCK as u64)],
                        more_ranges: 0,
                    }],
                    more_files: 0,
                };
                assert_eq!(volume.lost_content(9), list);
                for file in [damaged, second] {
                    for _ in 0..3 {
                        is_lost((ino, &file), &synced).await;
                    }
                    volume.syncfs().await.expect_err("an opener of that time has it open");
                    drop(file);
                }
                until_closed(&volume, disk, ino).await;
                volume.syncfs().await.expect("all openers have closed it");
                let (_, later) = create(&volume, "damaged").await.unwrap();
                later.sync(true).await.expect("all openers have closed it");
                write(&later, BLOCK as u64, &[5; BLOCK]).await.unwrap();
                synced.resize(synced.len().max(2 * BLOCK), 0);
                synced[BLOCK..2 * BLOCK].fill(5);
                if append {
                    let at = volume.getattr(ino).await.unwrap().size;
                    write(&later, at, &[6; BLOCK]).await.unwrap();
                    synced.resize(at as usize, 0);
                    synced.extend([6; BLOCK]);
                }
                later.sync(true).await.expect("what is not lost is durable");
                let path = Some(b"/damaged".to_vec());
                assert_eq!(volume.lost_content(9).files[0].path, path, "it was looked up since");
                let error = later.read(8192, AlignedBuf::new(BLOCK), IoFlags::empty()).await.1;
                let error = error.expect_err("it is lost").to_string();
                assert!(error.contains("bytes 8192 to 12288"), "{error}");
                if close {
                    drop(later);
                    volume.close().await.expect("what is not lost is durable");
                }
                synced
            });
            for seed in 0..2 {
                let there = found(&setup, &disk.power_cut(seed), "damaged");
                let at = there.iter().zip(&wanted).position(|(a, b)| a != b);
                let sizes = (there.len(), wanted.len());
                assert!(there == wanted, "{shown}: {sizes:?}, differs at {at:?}");
            }
        }
    }
}

/// A file has good content behind a lost block, and both lie behind its end at the last sync. No
/// close records a size that covers the lost block. A sync of everything does, after the close.
#[test]
fn size_over_lost_block_waits_for_sync_after_close() {
    for (sums, checkpoint) in
        [true, false].into_iter().flat_map(|sums| [(sums, true), (sums, false)])
    {
        let (setup, disk, before) = on_volume(sums, async |disk, volume, (ino, damaged)| {
            prepare(&volume, &damaged, Before::Beyond).await;
            lose_block(&volume, disk, (ino, &damaged), LOST).await;
            write(&damaged, 3 * BLOCK as u64, &[7; BLOCK]).await.unwrap();
            damaged.sync(true).await.expect_err("a block of it is lost");
            drop(damaged);
            if checkpoint {
                volume.checkpoint().await.expect("one file is concerned");
            }
            let (_, other) = create(&volume, "other").await.unwrap();
            other.sync(true).await.expect("nothing of this file is lost");
            let before = disk.cut_state(1);
            // The error that the volume itself has not seen comes once.
            volume.syncfs().await.ok();
            volume.syncfs().await.expect("all openers have closed it");
            before
        });
        assert!(after_crash(&setup, &before, "damaged") == [1; BLOCK], "{sums}, {checkpoint}");
        let there = after_crash(&setup, &disk.cut_state(1), "damaged");
        let wanted = [[1; BLOCK], [0; BLOCK], [0; BLOCK], [7; BLOCK]].concat();
        assert!(there == wanted, "{sums}, {checkpoint}: {} bytes", there.len());
    }
}

/// A file was truncated to nothing, and lost what was written past the cache since. Once it is
/// closed, no other file waits for that content.
#[test]
fn lost_content_of_truncated_file_stops_no_other_sync() {
    for sums in [true, false] {
        on_volume(sums, async |disk, volume, (ino, damaged)| {
            prepare(&volume, &damaged, Before::Tree).await;
            volume.setattr(ino, &SetAttr::size(0)).await.unwrap();
            lose_block(&volume, disk, (ino, &damaged), LOST).await;
            drop(damaged);
            for n in 0..4 {
                let (_, other) = create(&volume, &other(n)).await.unwrap();
                write(&other, 0, &[9; BLOCK]).await.unwrap();
                other.sync(true).await.expect("nothing of this file is lost");
                volume.checkpoint().await.expect("one file is concerned");
            }
            volume.syncfs().await.expect("all openers have closed it");
        });
    }
}

/// How a file that was truncated to nothing loses a block, while it has other content in the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Loss {
    /// The repair notices it while the file is open.
    Open,
    /// The repair finds the block again.
    Repaired,
    /// The repair notices it after the last close.
    Closed,
}

/// Truncates the file, loses a block of it, writes it through the cache, and closes it.
async fn lose_truncated(
    volume: &Volume,
    disk: &SimDisk,
    (ino, damaged): (Ino, OpenFileRef),
    loss: Loss,
) {
    volume.setattr(ino, &SetAttr::size(0)).await.unwrap();
    match loss {
        Loss::Open => lose_block(volume, disk, (ino, &damaged), LOST).await,
        Loss::Repaired => {
            lose_block_unnoticed(volume, disk, (ino, &damaged), LOST).await;
            disk.heal();
            volume.syncfs().await.ok();
        }
        Loss::Closed => lose_block_at_next_flush(volume, disk, (ino, &damaged), LOST).await,
    }
    write(&damaged, 0, &[8; BLOCK]).await.unwrap();
}

/// The story: a file was truncated to nothing, lost a block, and was closed with dirty content. It
/// had no opener to fail, so it failed the syncs of all other files, until it was removed.
#[test]
fn dirty_truncated_file_with_lost_block_stops_no_other_sync() {
    let all = [Loss::Open, Loss::Repaired, Loss::Closed];
    for (sums, loss) in [true, false].into_iter().flat_map(|sums| all.map(|loss| (sums, loss))) {
        let (setup, disk, ()) = on_volume(sums, async |disk, volume, (ino, damaged)| {
            prepare(&volume, &damaged, Before::Tree).await;
            lose_truncated(&volume, disk, (ino, damaged), loss).await;
            for n in 0..4 {
                let (_, other) = create(&volume, &other(n)).await.unwrap();
                write(&other, 0, &[9; BLOCK]).await.unwrap();
                // The flush of this sync may be the one that fails, or that shows the loss.
                if n == 0 && loss == Loss::Closed {
                    synced_at_last(&other).await;
                }
                let done = other.sync(true).await;
                done.unwrap_or_else(|error| panic!("{sums}, {loss:?}, {n}: {error}"));
                volume.checkpoint().await.expect("one file is concerned");
            }
            if loss == Loss::Closed {
                // The volume itself has not seen it.
                volume.syncfs().await.ok();
            }
            let done = volume.syncfs().await;
            done.unwrap_or_else(|error| panic!("{sums}, {loss:?}: {error}"));
            volume.close().await.expect("what is not lost is durable");
        });
        let there = found(&setup, &disk.power_cut(1), "damaged");
        assert!(there[..BLOCK] == [8; BLOCK], "{sums}, {loss:?}: {} bytes", there.len());
    }
}

/// A later opener syncs what is not lost, also if the file had dirty content when it was closed;
/// and such a file can replace another.
#[test]
fn dirty_truncated_file_with_lost_block_is_synced_and_renamed() {
    let all = [Loss::Open, Loss::Repaired];
    for (loss, renames) in all.into_iter().flat_map(|loss| [(loss, true), (loss, false)]) {
        let (setup, disk, ()) = on_volume(true, async |disk, volume, (ino, damaged)| {
            prepare(&volume, &damaged, Before::Tree).await;
            drop(create(&volume, "second").await.unwrap());
            lose_truncated(&volume, disk, (ino, damaged), loss).await;
            if renames {
                let [from, to] = ["damaged", "second"].map(|n| Name::new(n.as_bytes()).unwrap());
                let (root, flags) = (Ino::ROOT, RenameFlags::empty());
                let done = volume.rename(root, from, root, to, flags).await;
                done.unwrap_or_else(|error| panic!("{loss:?}: {error}"));
                volume.syncfs().await.expect("what is not lost is durable");
            } else {
                let (_, later) = create(&volume, "damaged").await.unwrap();
                let done = later.sync(true).await;
                done.unwrap_or_else(|error| panic!("{loss:?}: {error}"));
            }
        });
        let there = found(&setup, &disk.power_cut(1), if renames { "second" } else { "damaged" });
        assert!(there[..BLOCK] == [8; BLOCK], "{loss:?}, {renames}: {} bytes", there.len());
    }
}

/// The device loses a block that is still in the cache, and takes it back at another place only.
/// The story: the next flush of the file took the block for durable. The cache evicted it, and
/// after the close no sync reported the loss.
#[test]
fn lost_block_that_is_cached_is_written_elsewhere() {
    for (sums, cut, by_sync) in (0..8).map(|bits| (bits & 1 > 0, bits & 2 > 0, bits & 4 > 0)) {
        let shown = format!("sums {sums}, truncated {cut}, by a later opener {by_sync}");
        let (setup, disk, ()) = on_volume(sums, async |disk, volume, (ino, damaged)| {
            prepare(&volume, &damaged, Before::Tree).await;
            if cut {
                volume.setattr(ino, &SetAttr::size(0)).await.unwrap();
            }
            write(&damaged, 0, &[7; BLOCK]).await.unwrap();
            let content = volume.0.files.content("test", ino).unwrap();
            content.file.write_out().await.unwrap();
            drop(content);
            refuse_block(&volume, disk, ino, 0).await;
            assert!(volume.0.flush_all().await.is_err(), "the flush fails");
            let (_, other) = create(&volume, "other").await.unwrap();
            write(&other, 0, &[9; BLOCK]).await.unwrap();
            other.sync(true).await.ok();
            drop(damaged);
            if by_sync {
                let (_, later) = create(&volume, "damaged").await.unwrap();
                synced_at_last(&later).await;
            } else {
                synced_at_last_of_all(&volume).await;
            }
            volume.syncfs().await.expect("the cache has all of it");
            assert_eq!(volume.lost_content(9), LostContent::default(), "{shown}");
        });
        let there = found(&setup, &disk.power_cut(1), "damaged");
        assert!(there[..BLOCK] == [7; BLOCK], "{shown}: {} bytes", there.len());
    }
}

/// The place of a block fails reads and writes from now on, and the next flush fails.
pub(super) async fn refuse_block(volume: &Volume, disk: &SimDisk, ino: Ino, block: u64) {
    let place = place_of(volume, ino, block).await;
    for op in [BioOp::Read, BioOp::Write] {
        disk.inject(failing(op).within(place.clone()).sticky());
    }
    disk.inject(failing(BioOp::Flush));
}

/// A loss that shows after the last close is reported once.
#[test]
fn loss_that_shows_after_close_is_reported_once() {
    on_volume(true, async |disk, volume, (ino, damaged)| {
        write(&damaged, 0, &[1; BLOCK]).await.unwrap();
        volume.syncfs().await.unwrap();
        lose_block_at_next_flush(&volume, disk, (ino, &damaged), 1).await;
        damaged.sync(true).await.expect_err("the flush fails");
        drop(damaged);
        until_closed(&volume, disk, ino).await;
        let error = volume.syncfs().await.expect_err("its block is lost").to_string();
        assert!(error.contains("bytes 4096 to 8192"), "{error}");
        volume.syncfs().await.expect("the loss was reported, and no opener is left");
        volume.close().await.expect("what is not lost is durable");
    });
}

/// The story: a file had lost a block, was closed, and was truncated to nothing by a later opener,
/// which did not sync it. Syncs of the next opener wrote the content again and again, and failed.
#[test]
fn file_truncated_by_later_opener_is_synced_by_the_next() {
    for sums in [true, false] {
        let (setup, disk, ()) = on_volume(sums, async |disk, volume, (ino, damaged)| {
            prepare(&volume, &damaged, Before::Tree).await;
            lose_block(&volume, disk, (ino, &damaged), LOST).await;
            disk.heal();
            drop(damaged);
            until_closed(&volume, disk, ino).await;
            let (_, later) = create(&volume, "damaged").await.unwrap();
            volume.setattr(ino, &SetAttr::size(0)).await.unwrap();
            write(&later, 0, &[8; BLOCK]).await.unwrap();
            drop(later);
            let (_, next) = create(&volume, "damaged").await.unwrap();
            let done = next.sync(true).await;
            done.unwrap_or_else(|error| panic!("{sums}: {error}"));
            let is_clear = !volume.0.files.has_sync_errors.is_set();
            assert!(
                is_clear && volume.0.state.lock().files().sync_errors().is_empty(),
                "nothing is lost"
            );
        });
        assert!(found(&setup, &disk.power_cut(1), "damaged") == [8; BLOCK], "{sums}");
    }
}

/// The size of a closed file with lost content cannot be recorded any more. A sync of everything
/// reports that, and makes the other files durable.
#[test]
fn refused_size_of_closed_file_stops_no_sync_of_everything() {
    let (setup, disk, ()) = on_volume(true, async |disk, volume, (ino, damaged)| {
        prepare(&volume, &damaged, Before::Beyond).await;
        lose_block(&volume, disk, (ino, &damaged), LOST).await;
        disk.heal();
        let (direct, keep) = (AlignedBuf::copy_of(&[7; BLOCK]), Privileges::Keep);
        damaged.write(3 * BLOCK as u64, direct, IoFlags::DIRECT, keep).await.1.unwrap();
        damaged.sync(true).await.expect_err("a block of it is lost");
        drop(damaged);
        until_closed(&volume, disk, ino).await;
        let (other_ino, other) = create(&volume, "other").await.unwrap();
        write(&other, 0, &[9; BLOCK]).await.unwrap();
        volume.0.files.content("test", other_ino).unwrap().file.write_out().await.unwrap();
        volume.0.files.with_space(|state| state.write_times(None)).await.unwrap();
        let error = forebay_base::Error::new(ErrorKind::Io, "checkpoint", "a node is bad");
        volume.0.state.lock().stop(error);
        let error = volume.syncfs().await.expect_err("a size is refused");
        assert_eq!(error.kind(), ErrorKind::ReadOnly);
    });
    assert!(after_crash(&setup, &disk.cut_state(1), "other") == [9; BLOCK]);
}

/// Lost blocks behind the recorded size count as recorded, up to the next content, whatever the
/// size of the file is.
#[test]
fn covered_size_ends_with_lost_blocks() {
    on_volume(true, async |disk, volume, (ino, damaged)| {
        write(&damaged, 0, &[1; 2 * BLOCK]).await.unwrap();
        volume.syncfs().await.unwrap();
        for block in 2..5 {
            lose_block(&volume, disk, (ino, &damaged), block).await;
        }
        disk.heal();
        drop(damaged);
        until_closed(&volume, disk, ino).await;
        let (_, later) = create(&volume, "damaged").await.unwrap();
        later.sync(true).await.expect("all openers have closed it");
        let sizes = || {
            let state = volume.0.state.lock();
            let node = state.names().node(ino.0).unwrap();
            [node.published(), state.covered_size(ino.0, node), node.live_size().unwrap()]
        };
        assert_eq!(sizes(), [2, 5, 5].map(|blocks| blocks * BLOCK as u64));
        write(&later, 5 * BLOCK as u64, &[5; BLOCK]).await.unwrap();
        assert_eq!(sizes(), [2, 5, 6].map(|blocks| blocks * BLOCK as u64));
        later.sync(true).await.expect("what is not lost is durable");
        assert_eq!(sizes(), [6; 3].map(|blocks| blocks * BLOCK as u64));
    });
}

/// The list of lost content is bounded.
#[test]
fn list_of_lost_content_says_how_much_it_leaves_out() {
    let setup = volume_setup();
    let disk = blank(&setup, true);
    disk.world().run(async {
        let volume = open(&setup, &disk).await.unwrap();
        assert_eq!(volume.lost_content(9), LostContent::default());
        let mut files = Vec::new();
        for n in 0..3 {
            let (ino, file) = create(&volume, &other(n)).await.unwrap();
            for block in [1, 2, 5, 9] {
                lose_block(&volume, &disk, (ino, &file), block).await;
                disk.heal();
            }
            files.push(file);
        }
        let list = volume.lost_content(2);
        assert_eq!((list.files.len(), list.more_files), (2, 1));
        for file in &list.files {
            assert_eq!((file.bytes, &file.ranges[..]), (16384, &[(4096, 8192), (20480, 4096)][..]));
            assert_eq!(file.more_ranges, 1);
        }
        write(&files[0], 0, &[1; 10 * BLOCK]).await.unwrap();
        synced_at_last_of_all(&volume).await;
        assert_eq!(volume.lost_content(9).files.len(), 2, "written anew");
    });
    disk.world().stop();
}

/// The records of other files end what is lost, whatever this sync says of the rest.
async fn synced_at_last_of_all(volume: &Volume) {
    for _ in 0..3 {
        volume.syncfs().await.ok();
    }
}
