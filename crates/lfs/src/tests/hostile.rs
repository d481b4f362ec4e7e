//! Content of users may lie anywhere on the device when a volume is opened. It must not determine
//! the cost of an opening.
//!
//! No locks.

use crate::device::layout::Layout;
use crate::format::change::Change;
use crate::format::place::{Geometry, Place};
use crate::format::record::{RecordBuilder, RecordFields, RecordKind};
use crate::format::segment::{SEGMENT_HEADER_BYTES, SegmentHeader};
use crate::format::superblock::{FILES_TREE, SLOT_BYTES, SLOTS, Superblock, slot_offsets};
use crate::fuzz::make::Make;
use crate::log::Head;
use crate::space::nodes::NodeSlots;
use crate::tests::reuse::{check, create, open, read, setup, write};
use crate::tests::setup::Setup;
use crate::volume::grow::grow;
use crate::volume::{CreateOptions, Volume};
use forebay_base::ErrorKind;
use forebay_base::sim_world::SimWorld;
use forebay_base::world::WorldRef;
use forebay_block::{BioOp, DeviceRef};
use forebay_sim::{SimConfig, SimDisk};
use forebay_vfs::{FileSystem, Timestamp};
use std::sync::Arc;

const BLOCK: usize = 4096;

/// The story: a segment with content of users became a log segment, and there was a crash. Behind
/// the end of the log every 64 bytes looked like a record of an unknown version, which may have the
/// maximum length. For each of them recovery read and checksummed that many bytes, 128 GiB for a
/// region of 8 MiB.
#[test]
fn fake_records_behind_log_cost_no_more_than_other_content() {
    let mut costs = Vec::new();
    for hostile in [false, true] {
        let setup = Setup { volume_bytes: 16 << 20, ..setup(0) };
        let disk = setup.blank();
        let (device, world): (DeviceRef, WorldRef) = (Arc::new(disk.clone()), disk.world().clone());
        // In segments of this size a record may be longer than one read of recovery.
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

/// A disk of 64 TiB, sparse, with a volume of 2 MiB in its beginning whose slots claim `segments`
/// segments. `clean`: the volume was closed.
fn claims(segments: u32, clean: bool) -> SimDisk {
    let setup = setup(0);
    let small = setup.blank();
    if !clean {
        small.world().run(async {
            let volume = open(&setup, &small).await.unwrap();
            create(&volume, "f").await.unwrap();
            volume.syncfs().await.unwrap();
        });
        small.world().stop();
    }
    let config = SimConfig { size: 64 << 40, ..SimConfig::default() };
    let disk = SimDisk::new(SimWorld::new(5), config);
    let bytes = small.peek(0, setup.volume_bytes as usize);
    for (n, part) in bytes.chunks(BLOCK).enumerate().filter(|(_, part)| part.iter().any(|b| *b > 0))
    {
        disk.poke((n * BLOCK) as u64, part);
    }
    for (slot, at) in (0..SLOTS / 2).zip(slot_offsets(64 << 40)) {
        let old = Superblock::decode(&bytes[at as usize..][..SLOT_BYTES], slot);
        let Ok(old) = old else { continue };
        let new = Superblock { segment_count: segments, recorded_end_bytes: 64 << 40, ..old };
        let mut bytes = vec![0; SLOT_BYTES];
        new.encode_into(&mut bytes).unwrap();
        disk.poke(at, &bytes);
    }
    disk
}

/// The story: a superblock claimed 2^22 segments, and its usage table had 31: the table of segments
/// was allocated, and every header read, before anything was verified (open.O14). 2^28 took 20 GiB.
#[test]
fn slot_claiming_more_segments_than_growth_adds_is_refused() {
    for (clean, segments) in [(true, 1 << 22), (false, 1 << 22), (true, 1 << 28)] {
        let disk = claims(segments, clean);
        disk.clear_log();
        let error = disk.world().run(open(&setup(0), &disk)).err().expect("it is not believed");
        disk.world().stop();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        assert!(error.to_string().contains("in the usage table"), "{error}");
        let reads = disk.log().into_iter().filter(|entry| entry.op == BioOp::Read).count();
        assert!(reads < 64, "{reads} reads");
        let report = check(&disk.in_world(SimWorld::new(6)));
        assert!(!report.is_clean(), "{report:?}");
    }
}

/// A growth adds segments that no usage table has yet.
#[test]
fn volume_that_grew_a_thousandfold_opens() {
    for clean in [false, true] {
        let disk = claims(31 << 10, clean);
        disk.world().run(async {
            let volume = open(&setup(0), &disk).await.unwrap();
            let (_, file) = create(&volume, "new").await.unwrap();
            write(&file, 0, &[1; BLOCK]).await.unwrap();
            volume.close().await.unwrap();
        });
        disk.world().stop();
    }
}

/// A growth that the next opening would not accept is refused (grow.X13).
#[test]
fn growth_that_no_opening_believes_is_refused() {
    let disk = claims(31, true);
    let device: DeviceRef = Arc::new(disk.clone());
    let error = disk.world().run(grow(&device, Some(1 << 40))).unwrap_err();
    disk.world().stop();
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    assert!(error.to_string().contains("in several steps"), "{error}");
}

/// The story: a usage table named every segment as one with nodes, in 16 bytes each. For each the
/// opening made a bit map of all nodes that a segment can have: 32 KiB in segments of 1 GiB.
#[test]
fn segment_of_nodes_without_a_node_takes_no_map() {
    let geometry = Geometry::with_segment_shift(30);
    let mut nodes = NodeSlots::new(geometry);
    (0..1 << 16).for_each(|segment| nodes.adopt(segment));
    assert_eq!(nodes.map_bytes(), 0);
    let place = Place::new(7, 3 << geometry.node_shift);
    assert!(nodes.found(place) && !nodes.found(place), "once");
    assert_eq!(nodes.map_bytes(), 1 << 15, "of one segment");
    assert_eq!(nodes.release().len(), (1 << 16) - 1);
    assert_eq!(nodes.used(), 1);
}

/// The story: records and headers of the log had numbers near the maximum. They were applied, and
/// the next checkpoint wrote a slot with them. No opening accepts such a slot: the volume was gone.
#[test]
fn log_with_huge_numbers_is_not_replayed_for_writing() {
    for in_header in [false, true] {
        let setup = setup(0);
        let disk = setup.blank();
        disk.world().run(async {
            let volume = open(&setup, &disk).await.unwrap();
            create(&volume, "f").await.unwrap();
            volume.syncfs().await.unwrap();
            let (head, layout) = (volume.0.log.ctl.lock().head, volume.0.layout);
            let free = volume.0.state.lock().take_log().unwrap();
            let at = Place::new(head.segment.unwrap(), head.offset);
            match in_header {
                true => {
                    disk.poke(layout.device_offset(Place::new(free, 0)), &far_header(free, &layout))
                }
                false => disk.poke(layout.device_offset(at), &far_record(at, &head, &layout)),
            }
        });
        disk.world().stop();
        let disk = disk.in_world(SimWorld::new(2));
        let before = disk.content_digest();
        disk.world().run(async {
            let error = open(&setup, &disk).await.err().expect("out of range");
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
            assert!(error.to_string().contains("out of range"), "{error}");
        });
        disk.world().stop();
        assert_eq!(disk.content_digest(), before, "nothing was written");
        let report = check(&disk.in_world(SimWorld::new(3)));
        assert!(!report.is_clean(), "{report:?}");
    }
}

/// A record that makes an inode with the last number but one.
fn far_record(at: Place, head: &Head, layout: &Layout) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK];
    let mut builder = RecordBuilder::new(&mut bytes, at, layout.geometry).unwrap();
    let inode = Make(1).inode();
    builder.change(&Change::CreateInode(u64::MAX - 1, inode, &[])).unwrap();
    let fields = RecordFields {
        kind: RecordKind::Changes,
        tree: FILES_TREE,
        sequence: head.sequence,
        generation: head.generation,
        predecessor: head.predecessor,
        durable_through: head.sequence - 1,
    };
    let length = builder.finish(layout.seal, fields, 512).unwrap().length;
    bytes.truncate(length as usize);
    bytes
}

/// The header of a log segment with the highest generation.
fn far_header(segment: u32, layout: &Layout) -> Vec<u8> {
    let header = SegmentHeader {
        segment,
        generation: u64::MAX,
        first_sequence: 1 << 20,
        previous: None,
        first_record: layout.first_record(),
        predecessor: 0,
        key_id: 0,
        object_tag: 0,
    };
    let mut bytes = vec![0; 512];
    header.encode_into(layout.seal, &layout.geometry, &mut bytes[..SEGMENT_HEADER_BYTES]).unwrap();
    bytes
}
