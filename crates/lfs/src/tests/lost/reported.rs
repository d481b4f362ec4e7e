//! Which errors end the report of a loss: whose tasks have to see it, and what heals a file.
//!
//! No locks.

use super::later::refuse_block;
use super::*;

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
fn later_opener_that_gets_the_mapping_syncs_what_is_not_lost() {
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
            assert_eq!(volume.0.state.lock().left.len(), 0, "closed.Y11: it is not retained");
        });
        let there = found(&setup, &disk.power_cut(1), "damaged");
        let wanted = [[5; BLOCK], [1; BLOCK], [1; BLOCK], [1; BLOCK]].concat();
        assert!(there == wanted, "{sums}: {} bytes", there.len());
    }
}
