//! A node of the tree: items in the order of their keys. Leaves contain values, inner nodes
//! pointers to children.
//!
//! ```text
//!   | header 64 | offset of each item, 2 bytes | item | item | ... zeros |
//!   |<--------------------------- sum ---------------------------------->|
//!   an item: key length 1, value length 2, key, value
//! ```
//! Both copies of a node are equal: the header has both places.
//!
//! Invariants: T1 keys ascend strictly. T2 items are contiguous. T3 a node verifies only at one of
//! its two places, in its volume. If a pointer led to it, owner, birth, level and sum must match
//! the pointer. T4 the rest of the node is zeros.
//!
//! No locks, no state.

use super::item::{Item, MAX_VALUE_BYTES};
use super::key::{Key, MAX_KEY_BYTES};
use super::place::{Geometry, Place, Seal};
use super::{corrupt, refused, unsupported};
use forebay_base::codec::{Reader, Writer};
use forebay_base::{Error, ErrorKind, Result};
use std::cmp::Ordering;
use std::ops::Range;

/// Length of the header, bytes.
pub const NODE_HEADER_BYTES: usize = 64;
/// Length of a pointer to a child, bytes.
pub const POINTER_BYTES: usize = 32;
/// Highest level of a node; a higher one is refused.
pub const MAX_LEVEL: u8 = 12;
/// `fbnd`.
pub const MAGIC: u32 = u32::from_le_bytes(*b"fbnd");

const WHAT: &str = "tree node";
const VERSION: u8 = 1;
const SUM_AT: usize = 4;
/// Length of the two length fields before key and value.
pub(crate) const ITEM_HEADER_BYTES: usize = 3;
/// Bytes of an item in addition to key and value: lengths, and offset.
pub const ITEM_OVERHEAD_BYTES: usize = ITEM_HEADER_BYTES + 2;

// item.I1.
const _: () = assert!(
    NODE_HEADER_BYTES + 3 * (ITEM_OVERHEAD_BYTES + MAX_KEY_BYTES + MAX_VALUE_BYTES) <= 4096,
    "three of the largest items fit a leaf (I1)"
);

/// The header of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeHeader {
    /// The places of its two copies.
    pub places: [Place; 2],
    /// The tree.
    pub owner: u64,
    /// The checkpoint that wrote it.
    pub birth: u64,
    /// 0 for leaves.
    pub level: u8,
}

/// A pointer to a child, with the values that the child must have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodePointer {
    /// The places of its two copies.
    pub places: [Place; 2],
    /// The checkpoint that wrote it.
    pub birth: u64,
    /// The checksum of the node.
    pub sum: u32,
}

impl NodePointer {
    /// Writes the pointer.
    pub fn encode_into(&self, w: &mut Writer<'_>) -> Result<()> {
        self.places[0].encode_into("child", w)?;
        self.places[1].encode_into("second child", w)?;
        w.u64("birth", self.birth)?;
        w.u32("sum", self.sum)?;
        w.zeros("reserved", 4)
    }

    /// Reads a pointer.
    pub fn decode(bytes: &[u8], geometry: &Geometry) -> Result<Self> {
        let mut r = Reader::new("child pointer", bytes);
        let places = [Place::decode("child", &mut r)?, Place::decode("second child", &mut r)?];
        for place in places {
            geometry.check_run("child pointer", place, geometry.node_bytes() as u64)?;
        }
        let this = Self { places, birth: r.u64("birth")?, sum: r.u32("sum")? };
        r.zeros("reserved", 4)?;
        r.finish()?;
        Ok(this)
    }
}

/// A verified node. Its keys are in order; values are decoded when they are read.
#[derive(Debug, Clone, Copy)]
pub struct Node<'a> {
    /// The header.
    pub header: NodeHeader,
    /// The checksum of the node.
    pub sum: u32,
    bytes: &'a [u8],
    count: usize,
}

/// Result of verifying a node, without its bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Verified {
    header: NodeHeader,
    sum: u32,
    count: usize,
}

impl Verified {
    /// For a node of `count` items that was just built (store.B21).
    pub(crate) fn made(header: NodeHeader, pointer: &NodePointer, count: usize) -> Self {
        debug_assert_eq!((header.places, header.birth), (pointer.places, pointer.birth));
        Self { header, sum: pointer.sum, count }
    }
}

impl<'a> Node<'a> {
    /// The result to keep with the bytes, so that they need not be verified again.
    pub(crate) fn verified(&self) -> Verified {
        Verified { header: self.header, sum: self.sum, count: self.count }
    }

    /// The node whose `bytes` were verified before; they must not have changed.
    pub(crate) fn again(bytes: &'a [u8], known: Verified) -> Self {
        let Verified { header, sum, count } = known;
        Self { header, sum, bytes, count }
    }

    /// Bytes that the items take, each with [`ITEM_OVERHEAD_BYTES`].
    pub fn used_bytes(&self) -> usize {
        let items = (0..self.count).filter_map(|n| self.raw(n));
        items.map(|(key, value)| ITEM_OVERHEAD_BYTES + key.len() + value.len()).sum()
    }

    /// Verifies the node at `at`; `bytes` must have the length of a node.
    pub fn open(bytes: &'a [u8], seal: Seal, at: Place, geometry: &Geometry) -> Result<Self> {
        if bytes.len() != geometry.node_bytes() {
            return Err(corrupt(WHAT, format!("{} bytes at {at:?}", bytes.len())));
        }
        let mut r = Reader::new(WHAT, bytes);
        if r.u32("magic")? != MAGIC {
            return Err(r.bad("magic", &format!("there is no node at {at:?}")));
        }
        let stored = r.u32("sum")?;
        let (version, level) = (r.u8("version")?, r.u8("level")?);
        let count = usize::from(r.u16("items")?);
        let items_end = usize::from(r.u16("end of items")?);
        let reserved = r.u16("reserved")?;
        let places = [Place::decode("place", &mut r)?, Place::decode("second place", &mut r)?];
        let sum = seal.sum(places[0], bytes, SUM_AT);
        if stored != sum {
            let text = format!("at {at:?}: the checksum is {sum:#010x}, stored is {stored:#010x}");
            return Err(corrupt(WHAT, text));
        }
        if version != VERSION {
            return Err(unsupported(WHAT, format!("version {version} at {at:?}")));
        }
        let header = NodeHeader { places, owner: r.u64("owner")?, birth: r.u64("birth")?, level };
        r.zeros("reserved", NODE_HEADER_BYTES - r.position())?;
        if !places.contains(&at) || reserved != 0 {
            return Err(corrupt(WHAT, format!("a node of {places:?} lies at {at:?} (T3)")));
        }
        if level > MAX_LEVEL {
            return Err(r.bad("level", &format!("{level} is over {MAX_LEVEL}")));
        }
        let this = Self { header, sum, bytes, count };
        this.check_items(items_end).map_err(|e| at_place(&e, at))?;
        Ok(this)
    }

    /// [`open`](Self::open) for copy 0 or 1 of a pointer's target: the node must match the pointer.
    pub fn follow(
        bytes: &'a [u8],
        seal: Seal,
        pointer: &NodePointer,
        copy: usize,
        owner: u64,
        level: u8,
        geometry: &Geometry,
    ) -> Result<Self> {
        let at = pointer.places[copy % 2];
        let node = Self::open(bytes, seal, at, geometry)?;
        let header = NodeHeader { places: pointer.places, owner, birth: pointer.birth, level };
        if node.header != header || node.sum != pointer.sum {
            let text = format!("at {at:?} is {:?}, expected {header:?} (T3)", node.header);
            return Err(corrupt(WHAT, text));
        }
        Ok(node)
    }

    /// Checks the items (T1, T2, T4).
    fn check_items(&self, items_end: usize) -> Result<()> {
        let mut at = NODE_HEADER_BYTES + 2 * self.count;
        let mut before: &[u8] = &[];
        for n in 0..self.count {
            let mut r = Reader::new(WHAT, self.bytes);
            r.bytes("items", NODE_HEADER_BYTES + 2 * n)?;
            if usize::from(r.u16("item offset")?) != at {
                return Err(r.bad("item offset", &format!("item {n} is not at {at} (T2)")));
            }
            let mut r = Reader::new(WHAT, self.bytes);
            r.bytes("items", at)?;
            let (key_bytes, value_bytes) = (r.u8("key length")?, r.u16("value length")?);
            let key = r.bytes("key", usize::from(key_bytes))?;
            r.bytes("value", usize::from(value_bytes))?;
            // An inner node's first key may be empty, which is lower than all keys.
            let empty = self.header.level > 0 && n == 0;
            if key.len() > MAX_KEY_BYTES || key.is_empty() && !empty {
                return Err(r.bad("key", &format!("item {n} has one of {} bytes", key.len())));
            }
            if n > 0 && before.cmp(key) != Ordering::Less {
                return Err(r.bad("key", &format!("item {n} is not in order (T1)")));
            }
            if self.header.level > 0 && usize::from(value_bytes) != POINTER_BYTES {
                return Err(r.bad("value", &format!("item {n} is no pointer")));
            }
            (before, at) = (key, r.position());
        }
        if at != items_end {
            return Err(corrupt(WHAT, format!("items end at {at} and not {items_end} (T2)")));
        }
        let mut rest = Reader::new(WHAT, self.bytes);
        rest.bytes("items", at)?;
        rest.zeros("rest", rest.remaining())
    }

    /// Number of items.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Key and value of item `n`, in stored form.
    pub fn raw(&self, n: usize) -> Option<(&'a [u8], &'a [u8])> {
        if n >= self.count {
            return None;
        }
        let offset = self.bytes.get(NODE_HEADER_BYTES + 2 * n..)?.first_chunk().copied()?;
        let item = self.bytes.get(usize::from(u16::from_le_bytes(offset))..)?;
        split_item(item)
    }

    /// Some items in stored form, contiguous (T2).
    pub(crate) fn stored(&self, items: Range<usize>) -> &'a [u8] {
        let offset = |n: usize| {
            let offset = self.bytes.get(NODE_HEADER_BYTES + 2 * n..)?.first_chunk().copied()?;
            Some(usize::from(u16::from_le_bytes(offset)))
        };
        let last = items.end.min(self.count).checked_sub(1).filter(|last| *last >= items.start);
        let bytes = last.and_then(|last| {
            let (key, value) = self.raw(last)?;
            let end = offset(last)? + ITEM_HEADER_BYTES + key.len() + value.len();
            self.bytes.get(offset(items.start)?..end)
        });
        bytes.unwrap_or_default()
    }

    /// Item `n` of a leaf.
    pub fn item(&self, n: usize, geometry: &Geometry) -> Result<Option<(Key, Item<'a>)>> {
        let Some((key, value)) = self.raw(n).filter(|_| self.header.level == 0) else {
            return Ok(None);
        };
        let named = |e: Error| at_place(&e, self.header.places[0]);
        let key = Key::decode(key).map_err(named)?;
        Ok(Some((key, Item::decode(key, value, geometry).map_err(named)?)))
    }

    /// Child `n` of an inner node: the lowest possible key in it, and the pointer.
    pub fn child(&self, n: usize, geometry: &Geometry) -> Result<Option<(&'a [u8], NodePointer)>> {
        let Some((key, value)) = self.raw(n).filter(|_| self.header.level > 0) else {
            return Ok(None);
        };
        let pointer = NodePointer::decode(value, geometry);
        Ok(Some((key, pointer.map_err(|e| at_place(&e, self.header.places[0]))?)))
    }

    /// Searches `key` among the items: `Ok` with its number, or `Err` with that of the first item
    /// above it.
    pub fn search(&self, key: &[u8]) -> std::result::Result<usize, usize> {
        let (mut low, mut high) = (0, self.count);
        while low < high {
            let middle = low + (high - low) / 2;
            match self.raw(middle).map_or(Ordering::Greater, |(found, _)| found.cmp(key)) {
                Ordering::Less => low = middle + 1,
                Ordering::Equal => return Ok(middle),
                Ordering::Greater => high = middle,
            }
        }
        Err(low)
    }

    /// Number of the child of an inner node that may contain `key`.
    pub fn child_for(&self, key: &[u8]) -> usize {
        match self.search(key) {
            Ok(n) => n,
            Err(n) => n.saturating_sub(1),
        }
    }
}

/// Key and value of the item at the start of `bytes`.
fn split_item(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let ([key, low, high], rest) = bytes.split_first_chunk()?;
    let (key, rest) = rest.split_at_checked(usize::from(*key))?;
    Some((key, rest.get(..usize::from(u16::from_le_bytes([*low, *high])))?))
}

/// As [`split_item`], for bytes that were stored as items; empty for others.
pub(crate) fn item_at(bytes: &[u8]) -> (&[u8], &[u8]) {
    split_item(bytes).unwrap_or_default()
}

fn at_place(e: &Error, at: Place) -> Error {
    Error::new(e.kind(), "decode", format!("node at {at:?}: {e}"))
}

/// Collects items in the order of their keys, and builds a node of them.
#[derive(Debug)]
pub struct NodeBuilder<'b> {
    bytes: &'b mut [u8],
    geometry: Geometry,
    level: u8,
    offsets: Vec<u16>,
    end: usize,
    last: ([u8; MAX_KEY_BYTES], usize),
}

impl<'b> NodeBuilder<'b> {
    /// Begins a node at this level, in a buffer of the length of a node.
    pub fn new(bytes: &'b mut [u8], level: u8, geometry: Geometry) -> Result<Self> {
        if bytes.len() != geometry.node_bytes() || level > MAX_LEVEL {
            return Err(refused(WHAT, format!("{} bytes at level {level}", bytes.len())));
        }
        let (offsets, last) = (Vec::new(), ([0; MAX_KEY_BYTES], 0));
        Ok(Self { bytes, geometry, level, offsets, end: 0, last })
    }

    /// Bytes that are left for items, each with [`ITEM_OVERHEAD_BYTES`] in addition to its key and
    /// value.
    pub fn room(&self) -> usize {
        self.bytes.len() - NODE_HEADER_BYTES - 2 * self.offsets.len() - self.end
    }

    /// Number of items.
    pub fn len(&self) -> usize {
        self.offsets.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.offsets.is_empty()
    }

    /// Adds an item to a leaf; its key must be above the last one. False if it does not fit.
    pub fn item(&mut self, key: Key, item: &Item<'_>) -> Result<bool> {
        let mut value = [0; MAX_VALUE_BYTES];
        let mut w = Writer::new(WHAT, &mut value);
        item.encode_into(key, &mut w, &self.geometry)?;
        let len = w.position();
        self.raw(key.to_bytes().as_slice(), &value[..len])
    }

    /// Adds a child; `key` must be above the last one, and may be empty for the first. False if it
    /// does not fit.
    pub fn child(&mut self, key: &[u8], pointer: &NodePointer) -> Result<bool> {
        let mut value = [0; POINTER_BYTES];
        pointer.encode_into(&mut Writer::new(WHAT, &mut value))?;
        NodePointer::decode(&value, &self.geometry).map_err(|e| refused(WHAT, e.to_string()))?;
        self.raw(key, &value)
    }

    /// Adds an item in stored form, for example from another node. False if it does not fit.
    pub fn raw(&mut self, key: &[u8], value: &[u8]) -> Result<bool> {
        let first = self.offsets.is_empty();
        let (last, last_len) = (&self.last.0, self.last.1);
        let above = first || &last[..last_len] < key;
        let empty = key.is_empty() && !(first && self.level > 0);
        if !above || empty || key.len() > MAX_KEY_BYTES || value.len() > MAX_VALUE_BYTES {
            return Err(refused(WHAT, format!("item {:02x?} cannot come next", key)));
        }
        if self.level > 0 && value.len() != POINTER_BYTES {
            return Err(refused(WHAT, "a value in an inner node"));
        }
        if ITEM_OVERHEAD_BYTES + key.len() + value.len() > self.room() {
            return Ok(false);
        }
        // Items are collected after the header, and moved up when their number is known.
        let start = NODE_HEADER_BYTES + self.end;
        let mut w = Writer::new(WHAT, &mut self.bytes[start..]);
        w.u8("key length", key.len() as u8)?;
        w.u16("value length", value.len() as u16)?;
        w.bytes("key", key)?;
        w.bytes("value", value)?;
        self.offsets.push(self.end as u16);
        self.end += w.position();
        self.last.0[..key.len()].copy_from_slice(key);
        self.last.1 = key.len();
        Ok(true)
    }

    /// Adds contiguous items in stored form, whose lengths are in `lens`; they must be in order,
    /// and of this level. False if they do not fit.
    pub(crate) fn items(&mut self, bytes: &[u8], lens: impl Iterator<Item = u16>) -> Result<bool> {
        let offsets_before = self.offsets.len();
        let (mut at, mut last) = (0, 0);
        for len in lens {
            self.offsets.push((self.end + at) as u16);
            (last, at) = (at, at + usize::from(len));
        }
        let is_all = at == bytes.len();
        let offsets = 2 * (self.offsets.len() - offsets_before);
        let room = self.bytes.len() - NODE_HEADER_BYTES - 2 * offsets_before - self.end;
        if !is_all || offsets + bytes.len() > room {
            self.offsets.truncate(offsets_before);
            return if is_all { Ok(false) } else { Err(refused(WHAT, "items of other lengths")) };
        }
        if bytes.is_empty() {
            return Ok(true);
        }
        let (first, _) = item_at(bytes);
        if offsets_before > 0 && &self.last.0[..self.last.1] >= first || first.is_empty() {
            self.offsets.truncate(offsets_before);
            return Err(refused(WHAT, format!("item {first:02x?} cannot come next")));
        }
        let start = NODE_HEADER_BYTES + self.end;
        self.bytes[start..start + bytes.len()].copy_from_slice(bytes);
        self.end += bytes.len();
        let (key, _) = item_at(&bytes[last..]);
        self.last.0[..key.len()].copy_from_slice(key);
        self.last.1 = key.len();
        Ok(true)
    }

    /// Completes the node; returns a pointer to it.
    pub fn finish(self, seal: Seal, header: NodeHeader) -> Result<NodePointer> {
        if header.level != self.level {
            return Err(refused(WHAT, "of another level than it was begun for"));
        }
        let items_at = NODE_HEADER_BYTES + 2 * self.offsets.len();
        let items_end = items_at + self.end;
        self.bytes.copy_within(NODE_HEADER_BYTES..NODE_HEADER_BYTES + self.end, items_at);
        self.bytes[items_end..].fill(0);
        let mut w = Writer::new(WHAT, self.bytes);
        w.u32("magic", MAGIC)?;
        w.u32("sum", 0)?;
        w.u8("version", VERSION)?;
        w.u8("level", header.level)?;
        w.u16("items", self.offsets.len() as u16)?;
        w.u16("end of items", to_u16(items_end)?)?;
        w.zeros("reserved", 2)?;
        header.places[0].encode_into("place", &mut w)?;
        header.places[1].encode_into("second place", &mut w)?;
        w.u64("owner", header.owner)?;
        w.u64("birth", header.birth)?;
        w.zeros("reserved", NODE_HEADER_BYTES - w.position())?;
        for offset in &self.offsets {
            w.u16("item offset", to_u16(items_at + usize::from(*offset))?)?;
        }
        let sum = seal.sum(header.places[0], self.bytes, SUM_AT);
        self.bytes[SUM_AT..SUM_AT + 4].copy_from_slice(&sum.to_le_bytes());
        Ok(NodePointer { places: header.places, birth: header.birth, sum })
    }
}

fn to_u16(offset: usize) -> Result<u16> {
    let too_far = || Error::new(ErrorKind::NoSpace, "encode", "tree node: it is too long");
    u16::try_from(offset).map_err(|_| too_far())
}
