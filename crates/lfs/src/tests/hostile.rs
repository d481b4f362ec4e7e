//! What users put into files may lie anywhere on the device when a volume is opened: what an opening costs is
//! not theirs to say.
//!
//! No locks.

use crate::format::place::Place;
use crate::tests::reuse::{create, open, read, setup, write};
use crate::tests::setup::Setup;
use crate::volume::{CreateOptions, Volume};
use forebay_base::sim_world::SimWorld;
use forebay_base::world::WorldRef;
use forebay_block::{BioOp, DeviceRef};
use forebay_vfs::Timestamp;
use std::sync::Arc;

const BLOCK: usize = 4096;

/// A segment with content of users became the log's, and there was a crash. Behind the end of the log each 64
/// bytes looked like a record of a version that is not known, which may be as long as records get: for each
/// the device was read anew, and as much summed, 128 GiB for a region of 8 MiB.
#[test]
fn what_looks_like_a_record_behind_the_log_costs_no_more_than_anything_else() {
    let mut costs = Vec::new();
    for hostile in [false, true] {
        let setup = Setup { volume_bytes: 16 << 20, ..setup(0) };
        let disk = setup.blank();
        let (device, world): (DeviceRef, WorldRef) = (Arc::new(disk.clone()), disk.world().clone());
        // A record may be longer than what is read at a time.
        let new = CreateOptions {
            block_bytes: BLOCK as u32,
            segment_bytes: 1 << 20,
            ..CreateOptions::new([7; 16], [9; 16], Timestamp::new(1, 0))
        };
        let behind = disk.world().run(async {
            Volume::create(&device, &world, &new).await.unwrap();
            let volume = open(&setup, &disk).await.unwrap();
            let (_, file) = create(&volume, "f").await.unwrap();
            write(&file, 0, &[1; BLOCK]).await.unwrap();
            file.sync(true).await.unwrap();
            let head = volume.0.log.ctl.lock().head;
            let layout = &volume.0.layout;
            let at = layout.device_offset(Place::new(head.segment.unwrap(), head.offset));
            at..at + layout.segment_bytes() - u64::from(head.offset)
        });
        disk.world().stop();
        let disk = disk.power_cut(1).in_world(SimWorld::new(2));
        if hostile {
            assert!(behind.end - behind.start > 512 << 10, "much of the segment is left");
            let mut record = *b"fbrc\x02\x00\x0f\x00\x00\x00\x00\x00\x00\x00\x00\x00";
            record[8..].copy_from_slice(&[0x5a; 8]);
            let record = [&record[..], &[0x5a; 48]].concat();
            disk.poke(behind.start, &record.repeat((behind.end - behind.start) as usize / 64));
        }
        disk.clear_log();
        disk.world().run(async {
            let volume = open(&setup, &disk).await.expect("it is the end of the log");
            let (_, file) = create(&volume, "f").await.unwrap();
            assert_eq!(read(&file, 2 * BLOCK).await, [1; BLOCK]);
        });
        disk.world().stop();
        let reads = disk.log().into_iter().filter(|entry| entry.op == BioOp::Read);
        costs.push(reads.map(|entry| entry.len).sum::<u64>());
    }
    assert!(costs[1] <= costs[0] + (1 << 20), "bytes read: {costs:?}");
}
