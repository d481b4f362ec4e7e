//! A program forges a record of the log in a file's content, where recovery looks for the log. It
//! knows everything but the volume's secret. Recovery must not take it for a record.
//!
//! No locks.

use forebay_base::buf::AlignedBuf;
use forebay_base::sim_world::SimWorld;
use forebay_base::world::WorldRef;
use forebay_base::{IoFlags, Result};
use forebay_block::DeviceRef;
use forebay_crashtest::{Depth, Seen, Setup, Spot, Violation};
use forebay_lfs::fault::{NO_SECRET, Plant};
use forebay_lfs::format::change::Change;
use forebay_lfs::format::inode::SetAttributes;
use forebay_lfs::format::place::{Geometry, Place, Seal, SumAlgorithm};
use forebay_lfs::format::record::{RecordBuilder, RecordFields, RecordKind};
use forebay_lfs::format::segment::{SEGMENT_HEADER_BYTES, SegmentHeader};
use forebay_lfs::{CreateOptions, OpenOptions, Volume};
use forebay_sim::{SimConfig, SimDisk};
use forebay_vfs::{FileKind, FileSystem, Ino, Name, NewInode, OpenFlags, Privileges, Timestamp};
use std::sync::Arc;

const SEGMENT_BYTES: u64 = 64 << 10;
const SECTOR: u64 = 512;
/// Offset of segment 0 of a small volume.
const DATA_START: u64 = 16 << 10;
const BLOCK: usize = 4096;
/// The mode that the forged record gives the root directory.
const FORGED_MODE: u32 = 0o40777;

/// What the forger knows.
#[derive(Clone, Copy)]
struct Known {
    /// The segment in which the forger's file begins.
    segment: u32,
    /// Generation of the log, its next sequence, the sum of its last record.
    end: (u64, u64, u32),
}

async fn open(disk: &SimDisk, setup: &Setup, plant: Plant) -> Result<Volume> {
    let device: DeviceRef = Arc::new(disk.clone());
    let world: WorldRef = disk.world().clone();
    let options = OpenOptions { plant, checkpoint_bytes: 1 << 30, ..setup.options(&world)? };
    Volume::open(&device, &world, &options).await
}

/// Makes the file, synced, on a volume without sums, so that the log does not depend on the content
/// of the file.
fn written(setup: &Setup, content: &[u8]) -> (SimDisk, Known) {
    let world = SimWorld::new(setup.seed);
    let disk = SimDisk::new(
        world.clone(),
        SimConfig { size: 2 << 20, sector: SECTOR as u32, ..SimConfig::default() },
    );
    let device: DeviceRef = Arc::new(disk.clone());
    let create = CreateOptions {
        block_bytes: BLOCK as u32,
        segment_bytes: SEGMENT_BYTES as u32,
        sums: false,
        ..CreateOptions::new([7; 16], [9; 16], Timestamp::new(1, 0))
    };
    let asked: WorldRef = world.clone();
    let (left, known) = world.run(async {
        Volume::create(&device, &asked, &create).await.unwrap();
        let volume = open(&disk, setup, Plant::default()).await.unwrap();
        let both = OpenFlags::READ | OpenFlags::WRITE;
        let (name, new) = (Name::new(b"f").unwrap(), NewInode::of(FileKind::File, 0o644));
        let (attr, file) = volume.create(Ino::ROOT, name, &new, both).await.unwrap();
        let (buf, keep) = (AlignedBuf::copy_of(content), Privileges::Keep);
        file.write(0, buf, IoFlags::empty(), keep).await.1.unwrap();
        file.sync(false).await.unwrap();
        let end = volume.log_end();
        let first = volume.extents(attr.ino).await.unwrap()[0];
        let at = first.physical.unwrap() - DATA_START;
        assert!(at.is_multiple_of(SEGMENT_BYTES), "it begins a segment: {first:?}");
        // The process dies here.
        let left = disk.in_world(SimWorld::new(2));
        (left, Known { segment: (at / SEGMENT_BYTES) as u32, end })
    });
    world.stop();
    (left, known)
}

/// A header of a log segment and a record behind it, for this place and this log.
fn forge(known: Known) -> Vec<u8> {
    let geometry = Geometry { sum: SumAlgorithm::None, ..Geometry::with_segment_shift(16) };
    let (seal, (generation, sequence, predecessor)) = (Seal::new(&NO_SECRET), known.end);
    let first_record = SECTOR as u32 + SEGMENT_HEADER_BYTES as u32;
    let header = SegmentHeader {
        segment: known.segment,
        generation: generation + 1,
        first_sequence: sequence,
        previous: None,
        first_record,
        predecessor,
        key_id: 0,
        object_tag: 0,
    };
    let mut bytes = vec![0; BLOCK];
    header.encode_into(seal, &geometry, &mut bytes).unwrap();
    bytes.copy_within(..SEGMENT_HEADER_BYTES, SECTOR as usize);
    let at = Place::new(known.segment, first_record);
    let room = &mut bytes[first_record as usize..];
    let mut record = RecordBuilder::new(room, at, geometry).unwrap();
    let set = SetAttributes { mode: Some(FORGED_MODE), ..SetAttributes::default() };
    record.change(&Change::SetAttributes(1, set)).unwrap();
    let fields = RecordFields {
        kind: RecordKind::Changes,
        tree: 1,
        sequence,
        generation: generation + 1,
        predecessor,
        durable_through: sequence - 1,
    };
    record.finish(seal, fields, SECTOR as u32).unwrap();
    bytes
}

/// Writes the forged record, lets the power fail, and checks that the root is unchanged.
pub fn forged(setup: &Setup, _depth: Depth, seen: &mut Seen) -> std::result::Result<(), Violation> {
    let plain = Setup { plant: None, inline_max: 0, ..setup.clone() };
    let (_, known) = written(&plain, &[1; BLOCK]);
    let content = forge(known);
    let (disk, again) = written(&plain, &content);
    assert_eq!(again.end, known.end, "the log does not depend on what is in the file");
    seen.counts.states += 1;
    let found = disk.world().clone().run(async {
        let volume = open(&disk, &plain, Plant(setup.plant)).await.unwrap();
        let mode = volume.getattr(Ino::ROOT).await.unwrap().perm;
        let ino = volume.lookup(Ino::ROOT, Name::new(b"f").unwrap()).await.unwrap().ino;
        let file = volume.open(ino, OpenFlags::READ).await.unwrap();
        let (buf, done) = file.read(0, AlignedBuf::new(BLOCK), IoFlags::empty()).await;
        assert_eq!(buf[..done.unwrap()], content, "what was synced is there");
        mode
    });
    disk.world().stop();
    match found == 0o777 {
        true => Err(Violation {
            spot: Spot::Running,
            what: "the content of a file was taken for a record of the log".into(),
        }),
        false => Ok(()),
    }
}

/// Without the secret no content is a record.
#[test]
fn file_content_is_no_log_record() {
    forged(&Setup::with_content(1), Depth::FULL, &mut Seen::default()).unwrap();
}
