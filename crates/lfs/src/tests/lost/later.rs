//! Lost content after the openers of that time have closed its file: syncs of later openers, the
//! list of lost content, the next life of the volume.
//!
//! No locks.

use super::*;
use crate::LostContent;

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
