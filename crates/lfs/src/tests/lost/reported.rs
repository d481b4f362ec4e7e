//! Which errors end the report of a loss: whose tasks have to see it, and what heals a file.
//!
//! No locks.

use super::later::refuse_block;
use super::*;
use crate::space::{Ask, Need};

/// The story: a file had lost a block after its last close. A later opener wrote the block again.
/// All syncs of that opener failed, because the file was taken for one with lost content until
/// another file was synced. outstanding.S17.
#[test]
fn own_syncs_succeed_once_lost_content_is_replaced() {
    for sums in [true, false] {
        let (setup, disk, ()) = on_volume(sums, async |disk, volume, (ino, damaged)| {
            prepare(&volume, &damaged, Before::Tree).await;
            volume.setattr(ino, &SetAttr::size(0)).await.unwrap();
            damaged.sync(true).await.unwrap();
            write(&damaged, 0, &[8; 2 * BLOCK]).await.unwrap();
            let content = volume.0.files.content("test", ino).unwrap();
            content.file.write_out().await.unwrap();
            drop(content);
            refuse_block(&volume, disk, ino, 0).await;
            drop(damaged);
            let (_, other) = create(&volume, "other").await.unwrap();
            other.sync(true).await.expect_err("the flush fails");
            volume.checkpoint().await.expect("one file is concerned");
            assert_eq!(volume.lost_content(9).files.len(), 1, "the repair has noticed it");
            let (_, later) = create(&volume, "damaged").await.unwrap();
            write(&later, 0, &[7; BLOCK]).await.unwrap();
            synced_at_last(&later).await;
        });
        let there = found(&setup, &disk.power_cut(1), "damaged");
        assert!(there == [[7; BLOCK], [8; BLOCK]].concat(), "{sums}: {} bytes", there.len());
    }
}

/// The story: a file that had lost a block was closed while a task used its mapping. A later opener
/// got this mapping, with the mark of the loss, and all its syncs failed. sync_errors.E21.
#[test]
fn later_opener_of_same_mapping_syncs_what_is_left() {
    for sums in [true, false] {
        let (setup, disk, ()) = on_volume(sums, async |disk, volume, (ino, damaged)| {
            let synced = prepare(&volume, &damaged, Before::Tree).await;
            lose_block(&volume, disk, (ino, &damaged), LOST).await;
            is_lost((ino, &damaged), &synced).await;
            let user = volume.0.files.content("test", ino).unwrap();
            drop(damaged);
            let (_, later) = create(&volume, "damaged").await.unwrap();
            write(&later, 0, &[5; BLOCK]).await.unwrap();
            drop(user);
            later.sync(true).await.expect("all openers of that time have closed it");
            reads_fail((ino, &later), &[5; BLOCK]).await;
            drop(later);
            until_closed(&volume, disk, ino).await;
            assert_eq!(
                volume.0.state.lock().files().retained_count(),
                0,
                "closed.Y11: it is not retained"
            );
        });
        let there = found(&setup, &disk.power_cut(1), "damaged");
        let wanted = [[5; BLOCK], [1; BLOCK], [1; BLOCK], [1; BLOCK]].concat();
        assert!(there == wanted, "{sums}: {} bytes", there.len());
    }
}

/// Makes all content of a file durable as the flusher does: no program waits.
async fn flush_in_background(volume: &Volume, ino: Ino) {
    let content = volume.0.files.content("test", ino).unwrap();
    content.file.sync_deferring_errors().await.ok();
}

/// The story: a file that was truncated to nothing lost a block, and was closed. A flush that
/// no program waited for met the loss first, and ended its report: each later sync succeeded.
/// sync_errors.E21.
#[test]
fn flush_in_background_ends_no_report_of_loss() {
    for sums in [true, false] {
        on_volume(sums, async |disk, volume, (ino, damaged)| {
            prepare(&volume, &damaged, Before::Tree).await;
            let (other_ino, other) = create(&volume, "other").await.unwrap();
            write(&other, 0, &[9; BLOCK]).await.unwrap();
            volume.setattr(ino, &SetAttr::size(0)).await.unwrap();
            lose_block_unnoticed(&volume, disk, (ino, &damaged), LOST).await;
            write(&damaged, 0, &[8; BLOCK]).await.unwrap();
            drop(damaged);
            volume.checkpoint().await.expect("one file is concerned");
            assert_eq!(volume.lost_content(9).files.len(), 1, "the repair has noticed it");
            disk.heal();
            for _ in 0..3 {
                flush_in_background(&volume, other_ino).await;
                flush_in_background(&volume, ino).await;
            }
            drop(other);
            // A loss of which no program got an error stays. Nothing of the other file does.
            drop(create(&volume, "tidied").await.unwrap());
            until_closed(&volume, disk, other_ino).await;
            let error =
                volume.syncfs().await.expect_err("no program knows of the loss").to_string();
            assert!(error.contains("bytes 8192 to 12288"), "{sums}: {error}");
            volume.syncfs().await.expect("it was reported, and no opener is left");
        });
    }
}

/// The story: a loss that showed after the last close was forgotten at the close of a later opener,
/// which had only read the file. sync_errors.E21.
#[test]
fn later_opener_that_only_reads_ends_no_report_of_loss() {
    for syncs in [false, true] {
        on_volume(true, async |disk, volume, (ino, damaged)| {
            write(&damaged, 0, &[1; BLOCK]).await.unwrap();
            volume.syncfs().await.unwrap();
            lose_block_at_next_flush(&volume, disk, (ino, &damaged), 1).await;
            damaged.sync(true).await.expect_err("the flush fails");
            drop(damaged);
            until_closed(&volume, disk, ino).await;
            volume.checkpoint().await.expect("one file is concerned");
            assert_eq!(volume.lost_content(9).files.len(), 1, "the repair has noticed it");
            let (_, reader) = create(&volume, "damaged").await.unwrap();
            assert_eq!(read(&reader, BLOCK).await, [1; BLOCK]);
            if syncs {
                for _ in 0..2 {
                    reader.sync(true).await.expect_err("its block is lost");
                }
            }
            drop(reader);
            until_closed(&volume, disk, ino).await;
            if !syncs {
                let error = volume.syncfs().await.expect_err("no program knows of it").to_string();
                assert!(error.contains("bytes 4096 to 8192"), "{error}");
            }
            volume.syncfs().await.expect("it was reported, and no opener is left");
        });
    }
}

/// The log has no space for the size of a closed file with lost content. A sync of everything makes
/// space, and then records the size.
#[test]
fn size_of_closed_file_is_recorded_with_full_log() {
    let (setup, disk, ()) = on_volume(true, async |disk, volume, (ino, damaged)| {
        prepare(&volume, &damaged, Before::Beyond).await;
        let (_, removed) = create(&volume, "removed").await.unwrap();
        for n in 0..6 {
            write(&removed, n << 20, &[3; 1 << 20]).await.unwrap();
        }
        drop(removed);
        volume.syncfs().await.unwrap();
        lose_block(&volume, disk, (ino, &damaged), LOST).await;
        disk.heal();
        let (direct, keep) = (AlignedBuf::copy_of(&[7; BLOCK]), Privileges::Keep);
        damaged.write(3 * BLOCK as u64, direct, IoFlags::DIRECT, keep).await.1.unwrap();
        damaged.sync(true).await.expect_err("a block of it is lost");
        drop(damaged);
        until_closed(&volume, disk, ino).await;
        volume.checkpoint().await.expect("one file is concerned");
        volume.unlink(Ino::ROOT, Name::new(b"removed").unwrap()).await.unwrap();
        volume.0.files.with_space(|state| state.write_times(None)).await.unwrap();
        volume.0.commit_queue().await.unwrap();
        {
            let mut state = volume.0.state.lock();
            while state.grant(&Ask::log(600, Default::default()), Need::Urgent).is_ok() {}
            assert!(state.publish_closed_end(ino.0).is_ok(), "no opener wants the size yet");
            state.note_sync_of_all();
            let refused = state.publish_closed_end(ino.0).expect_err("the log is full");
            assert_eq!(refused.kind(), ErrorKind::NoSpace);
        }
        volume.syncfs().await.expect("space was made");
    });
    let there = after_crash(&setup, &disk.cut_state(1), "damaged");
    let wanted = [[1; BLOCK], [0; BLOCK], [0; BLOCK], [7; BLOCK]].concat();
    assert!(there == wanted, "{} bytes", there.len());
}

/// The story: a later opener truncated, punched or overwrote all that a file had lost, and closed
/// it without a sync. The mark of the loss stayed, whatever was synced later. sync_errors.E21.
#[test]
fn later_opener_that_heals_file_ends_mark_of_loss() {
    let ways = HEALS.into_iter().filter(|how| *how != Heal::Removed);
    for (how, is_seen) in ways.flat_map(|how| [(how, true), (how, false)]) {
        for is_evicted in [true, false] {
            let shown = format!("{how:?}, seen {is_seen}, evicted {is_evicted}");
            on_volume(true, async |disk, volume, (ino, damaged)| {
                prepare(&volume, &damaged, Before::Tree).await;
                if is_seen {
                    lose_block(&volume, disk, (ino, &damaged), LOST).await;
                } else {
                    lose_block_at_next_flush(&volume, disk, (ino, &damaged), LOST).await;
                    damaged.sync(true).await.expect_err("the flush fails");
                }
                drop(damaged);
                until_closed(&volume, disk, ino).await;
                volume.checkpoint().await.expect("one file is concerned");
                assert_eq!(volume.lost_content(9).files.len(), 1, "the repair has noticed it");
                disk.heal();
                let (_, later) = create(&volume, "damaged").await.unwrap();
                heal(&volume, (ino, &later), how).await;
                drop(later);
                volume.checkpoint().await.expect("nothing is lost");
                if is_evicted {
                    drop(create(&volume, "tidied").await.unwrap());
                    let state = || volume.0.state.lock();
                    let is_cached = state().names().node(ino.0).unwrap().content.is_some();
                    if is_cached {
                        flush_in_background(&volume, ino).await;
                        drop(create(&volume, "tidied").await.unwrap());
                    }
                    until_closed(&volume, disk, ino).await;
                    assert!(volume.0.state.lock().forget_node(ino.0).is_some(), "{shown}");
                }
                let done = volume.syncfs().await;
                done.unwrap_or_else(|error| panic!("{shown}: {error}"));
                let is_clear = !volume.0.files.has_sync_errors.is_set();
                assert!(
                    is_clear && volume.0.state.lock().files().sync_errors().is_empty(),
                    "{shown}"
                );
            });
        }
    }
}
