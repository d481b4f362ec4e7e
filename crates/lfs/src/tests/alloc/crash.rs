//! A power loss while windows are open.
//!
//! No locks.

use super::lab::{DIRECT, KIB, LARGE, Lab, SEGMENT, create, verify, write};
use crate::space::alloc::AllocMode;
use crate::tests::seeds;
use forebay_base::IoFlags;
use forebay_vfs::{FileSystem, Ino, Name, OpenFlags};
use std::sync::Arc;

/// After a crash the space of windows that were never used is free again, and so is a segment that
/// held only windows. A synced write in another window is there, and unsynced writes show nothing.
#[test]
fn a5_a7_windows_come_back_after_a_crash() {
    for seed in seeds(4) {
        let lab = Lab::new(seed, 16, AllocMode::Reserve);
        let disk = lab.disk.world().run(async {
            let volume = lab.open().await;
            let (_, synced) = create(&volume, "synced").await;
            write(&synced, 1, 0, LARGE, DIRECT | IoFlags::DSYNC).await.unwrap();
            let mut open = Vec::new();
            for n in 2..60 {
                let (_, file) = create(&volume, &format!("f{n}")).await;
                write(&file, n, 0, LARGE, DIRECT).await.unwrap();
                write(&file, n, LARGE, 4 * KIB, DIRECT).await.unwrap();
                open.push(file);
            }
            let stats = volume.alloc_stats();
            assert!(stats.held_bytes > SEGMENT / 2, "windows are open: {stats:?}");
            let free = volume.0.state.lock().space().segments().free();
            assert!(free < 16 - 4, "seed {seed}: {free} free while they are open");
            lab.disk.power_cut(seed)
        });
        lab.disk.world().stop();
        let lab = Lab { device: Arc::new(disk.clone()), disk, ..lab };
        lab.run(async |volume| {
            // Segments that were open at the crash die at one checkpoint and are free at the next.
            for _ in 0..3 {
                volume.checkpoint().await.unwrap();
            }
            let free = volume.0.state.lock().space().segments().free();
            // Not free are two tree segments, the log's, that of the synced write, and those that
            // only one checkpoint found dead.
            assert!(free >= 16 - 6, "seed {seed}: {free} free");
            let attr = volume.lookup(Ino::ROOT, Name::new(b"synced").unwrap()).await.unwrap();
            let file = volume.open(attr.ino, OpenFlags::READ).await.unwrap();
            verify(&file, 1, 0, LARGE).await;
            for n in 2..60 {
                let name = format!("f{n}");
                let found = volume.lookup(Ino::ROOT, Name::new(name.as_bytes()).unwrap()).await;
                let size = found.map_or(0, |attr| attr.size);
                assert_eq!(size, 0, "seed {seed}: its record was not committed");
            }
        });
    }
}
