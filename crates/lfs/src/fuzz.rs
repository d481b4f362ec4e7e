//! Fuzz targets for the decoders. There is one function for each decoder, which takes any bytes.
//! Inputs that get past the first checks are valid structures from a seed ([`make`],
//! [`make_tree`]), and mutations of them with corrected checksums ([`mutate`]). `cargo test` runs
//! the targets over the corpus in `fuzz/corpus`. With the feature `fuzz`, cargo-fuzz runs them
//! guided by coverage (`fuzz/` at the top of the repository).
//!
//! Invariants: Z1 a target never panics. Its error is `Corrupt` or `Unsupported`. Z2 a structure
//! that a target decodes encodes to the same bytes.
//!
//! No locks.

pub mod make;
pub mod make_tree;
pub mod mutate;

use crate::format::change::Change;
use crate::format::item::Item;
use crate::format::key::Key;
use crate::format::node::{Node, NodeBuilder};
use crate::format::place::{Geometry, Place};
use crate::format::record::{RECORD_HEADER_BYTES, Record};
use crate::format::segment::{SEGMENT_HEADER_BYTES, SegmentHeader};
use crate::format::summary::{SUMMARY_HEADER_BYTES, Summary, summary_bytes};
use crate::format::superblock::{SLOT_BYTES, Superblock};
use forebay_base::Result;
use forebay_base::codec::{Reader, Writer};
use make::{geometry, seal, short_geometry};

/// The place of the records in fuzz inputs.
pub const RECORD_AT: Place = Place::new(3, 8192);

/// A target: takes any bytes, and returns the error of the decoder, if any.
pub type Target = fn(&[u8]) -> Result<()>;

/// Corrects the checksums of changed bytes.
pub type Reseal = fn(&mut [u8]);

/// Each target: name, function, and the function that corrects its checksums.
pub const TARGETS: &[(&str, Target, Reseal)] = &[
    ("superblock", superblock, mutate::seal_superblock),
    ("segment", segment, mutate::seal_segment),
    ("record", record, mutate::seal_record),
    ("change", change, |_| ()),
    ("item", item, |_| ()),
    ("node", node, mutate::seal_node),
    ("summary", summary, mutate::seal_summary),
];

/// The four bytes at `at` as a number, or 0 if the data is too short.
pub(crate) fn word(data: &[u8], at: usize) -> u32 {
    data.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |word| u32::from_le_bytes(*word))
}

/// Decodes a superblock slot, with the slot number that its bytes name.
pub fn superblock(data: &[u8]) -> Result<()> {
    let superblock = Superblock::decode(data, word(data, 12) % 8)?;
    let mut again = [0xaa; SLOT_BYTES];
    superblock.encode_into(&mut again).expect("what decodes encodes (Z2)");
    assert!(again == data, "a slot encodes to other bytes (Z2)");
    superblock.access().map(drop)
}

/// Decodes the header of a log segment, with the segment number that its bytes name.
pub fn segment(data: &[u8]) -> Result<()> {
    let g = geometry(true);
    let header = SegmentHeader::decode(data, seal(), word(data, 8), &g)?;
    let mut again = [0xaa; SEGMENT_HEADER_BYTES];
    header.encode_into(seal(), &g, &mut again).expect("what decodes encodes (Z2)");
    assert!(again == data[..SEGMENT_HEADER_BYTES], "a header encodes to other bytes (Z2)");
    Ok(())
}

/// Decodes a record at [`RECORD_AT`], in volumes without features, with short extents, and with all
/// other features.
pub fn record(data: &[u8]) -> Result<()> {
    let without = record_in(data, &geometry(false));
    without.or(record_in(data, &short_geometry())).or(record_in(data, &geometry(true)))
}

fn record_in(data: &[u8], g: &Geometry) -> Result<()> {
    let record = Record::open(data, seal(), RECORD_AT, g)?;
    let mut again = [0xaa; RECORD_HEADER_BYTES];
    record.header.encode_into(&mut Writer::new("header", &mut again)).expect("there is room");
    assert!(again == data[..RECORD_HEADER_BYTES], "a header encodes to other bytes (Z2)");
    // Calls what a caller may call before it has checked the changes.
    for change in record.changes(g).flatten() {
        if let Change::Map(_, _, extent) = change {
            record.resolve(&extent).expect("an extent within the record");
        }
    }
    record.check(g)?;
    record.payload().map(drop)
}

/// Decodes a sequence of changes, in volumes without features, with short extents, and with all
/// other features.
pub fn change(data: &[u8]) -> Result<()> {
    let without = changes_in(data, &geometry(false));
    without.or(changes_in(data, &short_geometry())).or(changes_in(data, &geometry(true)))
}

fn changes_in(data: &[u8], g: &Geometry) -> Result<()> {
    let mut r = Reader::new("changes", data);
    while r.remaining() > 0 {
        let start = r.position();
        let Some(change) = Change::decode(&mut r, g)? else { continue };
        let stored = &data[start..r.position()];
        let mut again = vec![0xaa; stored.len()];
        change.encode_into(&mut Writer::new("change", &mut again), g).expect("Z2: it encodes");
        assert!(again == stored, "a change encodes to other bytes (Z2): {change:?}");
    }
    Ok(())
}

/// Decodes the length of a key, the key, and its value.
pub fn item(data: &[u8]) -> Result<()> {
    let mut r = Reader::new("key and value", data);
    let len = r.u8("key length")?;
    let stored = r.bytes("key", usize::from(len))?;
    let key = Key::decode(stored)?;
    assert!(key.to_bytes().as_slice() == stored, "a key encodes to other bytes (Z2): {key:?}");
    let value = r.bytes("value", r.remaining())?;
    value_in(key, value, &short_geometry()).or(value_in(key, value, &geometry(true)))
}

fn value_in(key: Key, value: &[u8], g: &Geometry) -> Result<()> {
    let item = Item::decode(key, value, g)?;
    let mut again = vec![0xaa; value.len()];
    item.encode_into(key, &mut Writer::new("item", &mut again), g).expect("Z2: it encodes");
    assert!(again == value, "an item encodes to other bytes (Z2): {item:?}");
    Ok(())
}

/// Decodes a node, at the first of the places that its bytes name.
pub fn node(data: &[u8]) -> Result<()> {
    let g = geometry(true);
    let at = Place::new(word(data, 16), word(data, 20));
    let node = Node::open(data, seal(), at, &g)?;
    let mut again = vec![0xaa; g.node_bytes()];
    let mut builder = NodeBuilder::new(&mut again, node.header.level, g)?;
    for n in 0..node.len() {
        let (key, value) = node.raw(n).expect("an item of the node");
        assert_eq!(node.search(key), Ok(n), "an item is found by its key");
        match node.header.level {
            0 => drop(node.item(n, &g)?),
            _ => drop(node.child(n, &g)?),
        }
        assert!(builder.raw(key, value)?, "what was in a node fits one (Z2)");
    }
    builder.finish(seal(), node.header)?;
    assert!(again == data, "a node encodes to other bytes (Z2)");
    Ok(())
}

/// Decodes a summary, with the segment number that its bytes name.
pub fn summary(data: &[u8]) -> Result<()> {
    let g = geometry(true);
    let summary = Summary::open(data, seal(), word(data, 8), &g)?;
    assert_eq!(summary.entries().count(), summary.header.entries as usize, "each entry decodes");
    let entries = &data[SUMMARY_HEADER_BYTES..][..summary.header.entries as usize * 16];
    let mut again = vec![0xaa; summary_bytes(&g) as usize];
    Summary::encode_into(&summary.header, entries, seal(), &g, &mut again).expect("Z2: it encodes");
    assert!(again == data, "a summary encodes to other bytes (Z2)");
    Ok(())
}
