//! Limits behind the checksums, one by one: the test changes a field and corrects the checksum, and
//! the error must name that field. Offsets are those of `docs/reference/format.md`.
//!
//! No locks.

use crate::format::change::Change;
use crate::format::extent::{Extent, Source, Sums};
use crate::format::inode::FileType;
use crate::format::item::{EntryItem, Item};
use crate::format::key::Key;
use crate::format::node::{Node, NodeBuilder};
use crate::format::place::Place;
use crate::format::record::{Record, RecordBuilder, RecordFields, RecordKind};
use crate::format::segment::SegmentHeader;
use crate::format::summary::{Summary, summary_bytes};
use crate::format::superblock::{SLOT_BYTES, Superblock, TreeRoot};
use crate::fuzz::RECORD_AT;
use crate::fuzz::make::{Make, geometry, seal, short_geometry};
use crate::fuzz::mutate::{seal_node, seal_record, seal_segment, seal_summary};
use forebay_base::Result;
use forebay_base::codec::{Reader, Writer};

/// Writes `value` at `at` and corrects the checksums: the error of `decode` must contain `text`.
fn refuse<T>(
    bytes: &[u8],
    (at, value, text): (usize, &[u8], &str),
    reseal: fn(&mut [u8]),
    decode: impl Fn(&[u8]) -> Result<T>,
) {
    decode(bytes).unwrap_or_else(|e| panic!("{text}: unchanged: {e}"));
    let mut bytes = bytes.to_vec();
    assert_ne!(&bytes[at..at + value.len()], value, "{text}: changes nothing");
    bytes[at..at + value.len()].copy_from_slice(value);
    reseal(&mut bytes);
    let error = decode(&bytes).err().unwrap_or_else(|| panic!("{text}: taken"));
    assert!(error.to_string().contains(text), "at {at}, not `{text}`: {error}");
}

/// record.R1, record.R3, record.R4, record.R5: and other invalid values of a record's fields.
#[test]
fn of_records() {
    let g = geometry(false);
    let mut bytes = vec![0; 65536];
    let mut builder = RecordBuilder::new(&mut bytes, RECORD_AT, g).unwrap();
    let extent = Extent::plain(Source::Inline(0), 1, 9, Sums::NONE, &g);
    builder.change(&Change::Map(7, 0, extent)).unwrap();
    builder.payload(4096).unwrap().fill(1);
    let fields = RecordFields {
        kind: RecordKind::Changes,
        tree: 1,
        sequence: 9,
        generation: 1,
        predecessor: 1,
        durable_through: 8,
    };
    let length = builder.finish(seal(), fields, 32768).unwrap().length as usize;
    let decode = |b: &[u8]| Record::decode(b, seal(), RECORD_AT, &g).map(drop);
    // One block of header and changes, one of payload, padding from 8192 on.
    assert_eq!(length, 32768 - 8192);
    let body_end = 128 + 8 + 16 + 48;
    let cases: [(usize, &[u8], &str); 15] = [
        (5, &[3], "`flags`"),
        (8, &[0, 0xf0, 0x0f], "leaves its segment"),
        (8, &[0, 0, 16], "longer than records"),
        (8, &[33], "between two records"),
        (24, &[0; 8], "durable through itself"),
        (40, &[4], "lies at"),
        (48, &[9], "durable through itself"),
        (64, &[0, 32], "do not fit"),
        (72, &[0, 96], "do not fit"),
        (72, &[0, 0], "there is no payload"),
        (80, &[1], "reserved"),
        (body_end, &[1], "padding is not zero"),
        (8192, &[1], "padding is not zero"),
        (128 + 8 + 16 + 4, &[0, 16], "R5"),
        (128 + 8 + 16 + 4, &[0, 2], "begin at a block"),
    ];
    for case in cases {
        refuse(&bytes[..length], case, seal_record, decode);
    }
    // A payload that begins elsewhere than at a block, with its end where it was.
    let off: [u8; 8] = [0x40, 0x10, 0, 0, 0xc0, 0x0f, 0, 0];
    let case = (68, &off[..], "no start of a block");
    refuse(&bytes[..length], case, seal_record, decode);
    // A mark with a change in it.
    let case = (6, &[2][..], "a mark with content");
    refuse(&bytes[..length], case, seal_record, decode);
}

/// node.T1 keys ascend strictly; node.T3 a node verifies only at one of its places, with a
/// consistent header.
#[test]
fn of_nodes() {
    let g = geometry(false);
    let header = Make(1).node_header(0, &g);
    let mut bytes = vec![0; 4096];
    let mut builder = NodeBuilder::new(&mut bytes, 0, g).unwrap();
    for ino in [5, 6, 7] {
        assert!(builder.item(Key::Orphan(ino), &Item::Orphan(1)).unwrap());
    }
    builder.finish(seal(), header).unwrap();
    let open = |b: &[u8]| Node::open(b, seal(), header.places[0], &g).map(drop);
    let second_key = 64 + 6 + 20 + 3 + 8;
    assert_eq!(bytes[second_key], 6);
    refuse(&bytes, (second_key, &[5], "T1"), seal_node, open);
    refuse(&bytes, (second_key, &[8], "T1"), seal_node, open);
    refuse(&bytes, (9, &[13], "`level`"), seal_node, open);
    refuse(&bytes, (9, &[1], "no pointer"), seal_node, open);
    refuse(&bytes, (14, &[1], "T3"), seal_node, open);
    refuse(&bytes, (4095, &[1], "`rest`"), seal_node, open);
    // An intact node at a place that it does not name.
    let elsewhere = Place::new(header.places[0].segment ^ 1, header.places[0].offset);
    assert!(!header.places.contains(&elsewhere));
    let error = Node::open(&bytes, seal(), elsewhere, &g).unwrap_err();
    assert!(error.to_string().contains("T3"), "{error}");
}

/// extent.X2, extent.X3, with every feature.
#[test]
fn of_extents_in_pieces() {
    let g = geometry(true);
    let place = Source::Run(Place::new(1, 0));
    let plain = Extent::plain(place, 2, 1, Sums::NONE, &g);
    let good = Extent { codec: 1, stored_bytes: 5000, decoded_bytes: 16384, ..plain };
    let encode = |extent: Extent<'_>| {
        let mut bytes = [0; 1000];
        Item::Extent(extent).encode_into(Key::Extent(1, 0), &mut Writer::new("", &mut bytes), &g)
    };
    encode(good).unwrap();
    encode(Extent { decoded_offset: 8192, ..good }).unwrap();
    encode(Extent { sums: Sums::crc32c(&[0; 8]), ..good }).unwrap();
    let cases = [
        (Extent { decoded_offset: 12288, ..good }, "within what is decoded"),
        (Extent { decoded_offset: 100, ..good }, "within what is decoded"),
        (Extent { stored_bytes: 0, ..good }, "out of range"),
        (Extent { stored_bytes: 128 * 4096 + 1, ..good }, "out of range"),
        (Extent { decoded_bytes: 128 * 4096 + 1, ..good }, "out of range"),
        (Extent { sums: Sums::crc32c(&[0; 4]), ..good }, "one for each stored block"),
        (Extent { flags: 4, ..good }, "or the key"),
        (Extent { key_id: 1, ..good }, "or the key"),
    ];
    for (extent, text) in cases {
        let error = encode(extent).expect_err(text);
        assert!(error.to_string().contains(text), "not `{text}`: {error}");
    }
    // A volume without short extents refuses the short form.
    let mut bytes = [0; 1000];
    let mut w = Writer::new("", &mut bytes);
    plain.encode_into(&mut w, &short_geometry()).unwrap();
    let error = Extent::decode(&mut Reader::new("", &bytes), &g).unwrap_err();
    assert!(error.to_string().contains("not 1 to 128"), "{error}");
    let kind = FileType::Regular;
    let childless = Item::Entry(EntryItem { child: 0, kind, name: b"n" });
    let mut bytes = [0; 100];
    let key = Key::Entry(1, Make(1).cookie());
    let error = childless.encode_into(key, &mut Writer::new("", &mut bytes), &g).unwrap_err();
    assert!(error.to_string().contains("inode 0"), "{error}");
}

/// extent.X4, and invalid values in the word that marks a short extent.
#[test]
fn of_short_extents() {
    let g = short_geometry();
    let extent = Extent::plain(Source::Run(Place::new(1, 0)), 2, 9, Sums::crc32c(&[7; 8]), &g);
    let mut bytes = [0; 1000];
    let mut w = Writer::new("", &mut bytes);
    extent.encode_into(&mut w, &g).unwrap();
    assert_eq!(w.position(), 28);
    let decode = |b: &[u8]| {
        let found = Extent::decode(&mut Reader::new("", b), &g)?;
        assert!(found == extent || b != bytes);
        Ok(found.blocks)
    };
    assert_eq!(bytes[8..12], [2, 0, 1, 0x80]);
    let as_it_is = |_: &mut [u8]| ();
    refuse(&bytes, (8, &[0], "not 1 to 128"), as_it_is, decode);
    refuse(&bytes, (8, &[129], "not 1 to 128"), as_it_is, decode);
    refuse(&bytes, (10, &[9], "sum algorithm"), as_it_is, decode);
    refuse(&bytes, (11, &[0x81], "unknown bits"), as_it_is, decode);
    // The long form of the same extent, as in a volume without short extents.
    let mut long = [0; 100];
    let mut w = Writer::new("", &mut long);
    extent.encode_into(&mut w, &geometry(false)).unwrap();
    let error = Extent::decode(&mut Reader::new("", &long), &g).unwrap_err();
    assert!(error.to_string().contains("X4"), "{error}");
}

/// Ends and trees of a slot: the last valid value is accepted, the first invalid one is refused.
#[test]
fn of_superblocks() {
    let mut superblock = Make(4).superblock();
    let segments = u64::from(superblock.segment_count) << superblock.geometry.segment_shift;
    superblock.recorded_end_bytes = superblock.data_start_bytes + segments + 16384;
    let place = Place::new(superblock.segment_count - 1, 0);
    let root = |tree, places| TreeRoot { tree, places, birth: 1, sum: 1, level: 0, since: 0 };
    superblock.trees = vec![root(1, Some([place, place])), root(2, None)];
    let encode = |s: &Superblock| s.encode_into(&mut [0; SLOT_BYTES]);
    encode(&superblock).unwrap();
    let refuse = |change: &dyn Fn(&mut Superblock), text: &str| {
        let mut bad = superblock.clone();
        change(&mut bad);
        let error = encode(&bad).expect_err(text);
        assert!(error.to_string().contains(text), "not `{text}`: {error}");
    };
    refuse(&|s| s.recorded_end_bytes -= 1, "recorded end");
    refuse(&|s| s.data_start_bytes = 16383, "recorded end");
    refuse(&|s| s.trees[1].tree = 1, "out of order");
    refuse(&|s| s.trees = vec![root(1, None); 65], "too many");
    let beyond = Place::new(superblock.segment_count, 0);
    refuse(&|s| s.trees[0].places = Some([place, beyond]), "beyond the last segment");
    refuse(&|s| s.log_head = beyond, "beyond the last segment");
    refuse(&|s| s.log_head.offset = s.geometry.segment_bytes(), "end of its segment");
    refuse(&|s| s.next_tree = 15, "out of range");
    refuse(&|s| s.geometry.incompat = 1, "other features");
}

#[test]
fn of_segment_headers_and_summaries() {
    let g = geometry(false);
    let header = SegmentHeader { first_record: 4096, segment: 7, ..Make(1).segment_header(&g) };
    let mut bytes = [0; 128];
    header.encode_into(seal(), &g, &mut bytes).unwrap();
    let decode = |b: &[u8]| SegmentHeader::decode(b, seal(), 7, &g);
    refuse(&bytes, (36, &[32, 16], "no record can be"), seal_segment, decode);
    refuse(&bytes, (36, &[64, 0], "no record can be"), seal_segment, decode);
    refuse(&bytes, (36, &[0, 0, 16], "no record can be"), seal_segment, decode);
    refuse(&bytes, (32, &[0xfe, 0xff, 0xff, 0xff], "names no segment"), seal_segment, decode);
    refuse(&bytes, (24, &[0; 8], "out of range"), seal_segment, decode);
    let mut bytes = vec![0; summary_bytes(&g) as usize];
    let (header, _) = Make(1).summary(&mut bytes, &g);
    // The last entry is zeros: with one entry less, the bytes behind the entries are still zeros.
    let last = 128 + (header.entries as usize - 1) * 16;
    bytes[last..last + 16].fill(0);
    seal_summary(&mut bytes);
    let decode = |b: &[u8]| Summary::open(b, seal(), header.segment, &g).map(drop);
    let fewer = (header.entries as u8 - 1).to_le_bytes();
    refuse(&bytes, (60, &fewer, "one for each block"), seal_summary, decode);
    refuse(&bytes, (last, &[0, 0, 0, 0, 0, 0, 1], "no entry is like"), seal_summary, decode);
    refuse(&bytes, (6, &[0], "sealed 0"), seal_summary, decode);
}
