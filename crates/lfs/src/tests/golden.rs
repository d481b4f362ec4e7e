//! The stored bytes: one of each structure, with distinct values, as in `golden/NAME.hex`. A change
//! of the code cannot change what is on disks, so a difference here needs a feature bit or a
//! version. Then `FOREBAY_BLESS=1` writes the files anew.
//!
//! No locks.

use crate::format::change::{Blocks, Change, Entry, Rename, Size};
use crate::format::extent::{ENCRYPTED, Extent, SHARED, Source, Sums, put_crc32c};
use crate::format::features::Features;
use crate::format::inode::{FileType, Inode, SetAttributes, Time};
use crate::format::item::{DeadItem, EntryItem, Item, Usage, XattrItem};
use crate::format::key::{Cookie, Key, NameHash};
use crate::format::node::{NodeBuilder, NodeHeader, NodePointer};
use crate::format::place::{Geometry, Place, SumAlgorithm};
use crate::format::record::{RecordBuilder, RecordFields, RecordKind};
use crate::format::segment::SegmentHeader;
use crate::format::summary::{Summary, SummaryEntry, SummaryHeader, summary_bytes};
use crate::format::superblock::{Superblock, TreeRoot};
use crate::format::usage::{Segment, SegmentState, Stream, WARM};
use crate::fuzz::make::{Make, NONCE, geometry, seal, short_geometry};
use forebay_base::checksum::crc32c_append;
use forebay_base::codec::Writer;
use std::fmt::Write;
use std::path::PathBuf;

/// Rows of 16 bytes; those that are all zero are left out.
fn hex(bytes: &[u8]) -> String {
    let mut text = format!("{} bytes\n", bytes.len());
    for (n, row) in bytes.chunks(16).enumerate().filter(|(_, row)| row.iter().any(|b| *b != 0)) {
        let digits: Vec<String> = row.iter().map(|byte| format!("{byte:02x}")).collect();
        writeln!(text, "{:05x}  {}", n * 16, digits.join(" ")).expect("a string takes it");
    }
    text
}

fn compare(name: &str, bytes: &[u8]) {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("golden");
    let path = folder.join(format!("{name}.hex"));
    if std::env::var_os("FOREBAY_BLESS").is_some() {
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(&path, hex(bytes)).unwrap();
    }
    let wanted = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{name}: {e}"));
    let found = hex(bytes);
    let line = wanted.lines().zip(found.lines()).find(|(a, b)| a != b);
    assert!(wanted == found, "{name}: the stored form has changed: {line:?}");
}

fn time(n: i64) -> Time {
    Time { seconds: -n, nanos: n as u32 }
}

fn inode() -> Inode {
    Inode {
        mode: 0o100_644,
        uid: 0x1001,
        gid: 0x1002,
        nlink: 0x1003,
        flags: 0x1004,
        data_id: 0x1005,
        size: 0x1006,
        stored_bytes: 0x1007,
        rdev: 0x1008,
        parent: 0x1009,
        version: 0x100a,
        atime: time(0x11),
        mtime: time(0x12),
        ctime: time(0x13),
        btime: time(0x14),
    }
}

fn coded_extent(sums: &[u8]) -> Extent<'_> {
    Extent {
        source: Source::Run(Place::new(0x21, 0x3000)),
        stored_bytes: 0x1234,
        decoded_bytes: 0x8000,
        decoded_offset: 0x2000,
        blocks: 3,
        codec: 9,
        flags: SHARED | ENCRYPTED,
        key_id: 0x22,
        birth: 0x23,
        tree: 0x24,
        sums: Sums::crc32c(sums),
    }
}

#[test]
fn superblock_slot() {
    let superblock = Superblock {
        slot: 5,
        features: Features { compat: 0x11, ro_compat: 0x12, incompat: 0 },
        uuid: *b"uuid of a volume",
        nonce: NONCE,
        geometry: Geometry { node_shift: 13, ..Geometry::with_segment_shift(26) },
        state: 1,
        checkpoint: 0x21,
        generation: 0x22,
        log_head: Place::new(0x23, 0x2400),
        log_predecessor: 0x25,
        log_sequence: 0x26,
        data_start_bytes: 0x20_0000,
        recorded_end_bytes: 0x1_0000_0000,
        segment_count: 0x27,
        inode_count: 0x28,
        next_ino: 0x29,
        next_data_id: 0x2a,
        next_tree: 0x2b,
        next_sequence: 0x2c,
        arena_uuid: *b"uuid of an arena",
        arena_generation: 0x2d,
        created_ns: 0x2e,
        key_area: [0; 128],
        trees: vec![
            TreeRoot {
                tree: 1,
                places: Some([Place::new(0x11, 0x2000), Place::new(0x12, 0x4000)]),
                birth: 0x31,
                sum: 0x32,
                level: 2,
                since: 0x33,
            },
            TreeRoot { tree: 2, places: None, birth: 0, sum: 0, level: 0, since: 0 },
        ],
    };
    assert_eq!(superblock.geometry.sum, SumAlgorithm::Crc32c);
    let mut bytes = [0xaa; 4096];
    superblock.encode_into(&mut bytes).unwrap();
    compare("superblock", &bytes);
}

#[test]
fn segment_header() {
    let header = SegmentHeader {
        segment: 0x11,
        generation: 0x12,
        first_sequence: 0x13,
        previous: Some(0x14),
        first_record: 0x1000,
        predecessor: 0x15,
        key_id: 0x16,
        object_tag: 0x17,
    };
    let mut bytes = [0xaa; 128];
    header.encode_into(seal(), &geometry(false), &mut bytes).unwrap();
    compare("segment", &bytes);
}

/// Every kind of change, in the order of their numbers.
fn changes<'a>(sums: &'a [u8], g: &Geometry) -> Vec<Change<'a>> {
    let cookie = |name: &[u8]| Cookie::new(NameHash::new(&NONCE, name), 1);
    let entry = |name: &'static [u8]| {
        let kind = FileType::Regular;
        Entry { dir: 0x31, cookie: cookie(name), child: 0x32, kind, name }
    };
    let size = Size { ino: 0x41, data_id: 0x42, size: 0x43, sequence: 0x44 };
    let blocks = Blocks { data_id: 0x51, block: 0x52, blocks: 3 };
    let segment = Segment {
        live_bytes: 0x61,
        state: SegmentState::Sealed,
        stream: Stream::Log,
        flags: WARM,
        since: 0x62,
    };
    let set = SetAttributes { uid: Some(7), mtime: Some(time(8)), ..SetAttributes::default() };
    let rename = Rename { from: entry(b"from"), to: entry(b"to"), replaced: 9, exchange: false };
    vec![
        Change::CreateInode(0x21, Inode { mode: 0o120_777, ..inode() }, b"target"),
        Change::SetAttributes(0x22, set),
        Change::InsertEntry(entry(b"comes")),
        Change::RemoveEntry(entry(b"goes")),
        Change::Rename(rename),
        Change::Map(0x23, 0x24, coded_extent(sums)),
        Change::Map(
            0x23,
            0x30,
            Extent::plain(Source::Inline(0), 1, 5, Sums::crc32c(&sums[4..]), g),
        ),
        Change::Grow(size),
        Change::Truncate(size),
        Change::ReplaceData(size, 0x45),
        Change::Punch(blocks, 0x53),
        Change::SetXattr(0x25, b"user.name", b"value"),
        Change::RemoveXattr(0x26, b"user.gone"),
        Change::AddOrphan(0x27),
        Change::RemoveOrphan(0x28),
        Change::RemoveInode(0x29, 0x2a, 0x2b),
        Change::ReapDead { died: 0x2c, data_id: 0x2d, upto: 0x2e },
        Change::Move {
            blocks,
            stored_bytes: 0x3000,
            from: Place::new(1, 0x1000),
            to: Place::new(2, 0x2000),
        },
        Change::SetSegment(0x2f, segment),
        Change::NextSegment(0x30),
    ]
}

#[test]
fn record() {
    let g = geometry(true);
    let mut sums = Vec::new();
    put_crc32c(&[0xa1a2_a3a4, 0xb1b2_b3b4], &mut sums);
    let mut bytes = vec![0xaa; 1 << 16];
    let place = Place::new(3, 8192);
    let mut builder = RecordBuilder::new(&mut bytes, place, g).unwrap();
    for change in changes(&sums, &g) {
        builder.change(&change).unwrap();
    }
    let payload = builder.payload(4096).unwrap();
    payload.fill(0);
    payload[..7].copy_from_slice(b"content");
    let fields = RecordFields {
        kind: RecordKind::Changes,
        tree: 1,
        sequence: 0x13,
        generation: 0x11,
        predecessor: 0x14,
        durable_through: 0x12,
    };
    let length = builder.finish(seal(), fields, 4096).unwrap().length as usize;
    compare("record", &bytes[..length]);
}

#[test]
fn nodes() {
    let g = geometry(true);
    let cookie = Cookie::new(NameHash::new(&NONCE, b"name"), 0);
    let mut usage = [0; 32];
    let mut w = Writer::new("usage", &mut usage);
    Segment::FREE.encode_into(&mut w).unwrap();
    Make(1).segment().encode_into(&mut w).unwrap();
    let sums = [1, 2, 3, 4, 5, 6, 7, 8];
    let dead = DeadItem { reaped_upto: 1, stored_bytes: 2, tree: 3, oldest_birth: 4 };
    let entry = EntryItem { child: 0x32, kind: FileType::Directory, name: b"name" };
    let xattr = XattrItem { name: b"user.name", value_bytes: 1025, piece: &[0x55; 1024] };
    let items = [
        (Key::Inode(1), Item::Inode(inode())),
        (Key::Target(1, 2), Item::Piece(b"piece")),
        (Key::Xattr(1, cookie, 0), Item::Xattr(xattr)),
        (Key::Xattr(1, cookie, 1), Item::Piece(b"x")),
        (Key::Entry(1, cookie), Item::Entry(entry)),
        (Key::Extent(2, 3), Item::Extent(coded_extent(&sums))),
        (Key::Dead(4, 5), Item::Dead(dead)),
        (Key::Orphan(6), Item::Orphan(7)),
        (Key::Usage(64), Item::Usage(Usage::new(&usage).unwrap())),
    ];
    let places = [Place::new(0x11, 0x1000), Place::new(0x12, 0x2000)];
    let header = NodeHeader { places, owner: 0x13, birth: 0x14, level: 0 };
    let mut bytes = vec![0xaa; 4096];
    let mut builder = NodeBuilder::new(&mut bytes, 0, g).unwrap();
    for (key, item) in &items {
        assert!(builder.item(*key, item).unwrap());
    }
    builder.finish(seal(), header).unwrap();
    compare("leaf", &bytes);
    let mut builder = NodeBuilder::new(&mut bytes, 1, g).unwrap();
    let pointer = NodePointer { places, birth: 0x15, sum: 0x16 };
    assert!(builder.child(b"", &pointer).unwrap());
    assert!(builder.child(Key::Orphan(6).to_bytes().as_slice(), &pointer).unwrap());
    builder.finish(seal(), NodeHeader { level: 1, ..header }).unwrap();
    compare("inner", &bytes);
}

/// Extents of a volume with short extents: one of the tree, one in a record, and one that has the
/// long form.
#[test]
fn short_extents() {
    let g = short_geometry();
    let (mut sums, mut bytes) = (Vec::new(), [0xaa; 256]);
    put_crc32c(&[0xa1a2_a3a4, 0xb1b2_b3b4], &mut sums);
    let plain = |source, sums| Extent::plain(source, 2, 0x23, sums, &g);
    let run = plain(Source::Run(Place::new(0x21, 0x3000)), Sums::crc32c(&sums));
    let mut w = Writer::new("extents", &mut bytes);
    for extent in [run, plain(Source::Inline(4096), Sums::NONE), Extent { tree: 0x24, ..run }] {
        extent.encode_into(&mut w, &g).unwrap();
    }
    let len = w.position();
    assert_eq!(len, 20 + 8 + 20 + 48 + 8);
    compare("short_extents", &bytes[..len]);
}

#[test]
fn summary() {
    let g = Geometry::with_segment_shift(16);
    let mut entries = [SummaryEntry::Empty; 15];
    entries[1] = SummaryEntry::Node(0x21);
    entries[2] = SummaryEntry::Data(0x1122_3344_5566, 0x2a_bbcc_ddee_ff00, 0x3ff_ffff);
    let entries: Vec<u8> = entries.iter().flat_map(|e| e.to_bytes().unwrap()).collect();
    let header = SummaryHeader {
        segment: 0x11,
        generation: 0x12,
        sequences: (0x13, 0x14),
        base_birth: 0x15,
        key_id: 0x16,
        object_tag: 0x17,
        stream: 1,
        entries: 15,
    };
    let mut bytes = vec![0xaa; summary_bytes(&g) as usize];
    Summary::encode_into(&header, &entries, seal(), &g, &mut bytes).unwrap();
    compare("summary", &bytes);
}

/// One checksum over the structures of a hundred seeds, in addition to the files above.
#[test]
fn hundred_seeds_make_the_same_bytes() {
    let mut sum = 0;
    let mut bytes = vec![0; 1 << 18];
    for seed in 1..=100 {
        let g = geometry(seed % 2 == 0);
        let mut make = Make(seed);
        make.superblock().encode_into(&mut bytes[..4096]).unwrap();
        sum = crc32c_append(sum, &bytes[..4096]);
        let (_, _, _, finished) = make.record(&mut bytes, Place::new(3, 8192), &g);
        sum = crc32c_append(sum, &bytes[..finished.length as usize]);
        make.leaf(&mut bytes[..4096], &g);
        sum = crc32c_append(sum, &bytes[..4096]);
        make.inner(&mut bytes[..4096], &g);
        sum = crc32c_append(sum, &bytes[..4096]);
        let len = summary_bytes(&g) as usize;
        make.summary(&mut bytes[..len], &g);
        sum = crc32c_append(sum, &bytes[..len]);
    }
    assert_eq!(sum, 3_051_143_706, "the stored form has changed, or what `Make` makes");
}
