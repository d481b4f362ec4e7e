//! Values of the tree's items; the kind of a value depends on its key.
//!
//! Invariants: I1 three items of the largest size fit into a leaf, so that splitting a leaf always
//! helps. I2 a value is decoded by the kind of its key, and completely. I3 long values are divided
//! into pieces of [`CHUNK_BYTES`], all full but the last.
//!
//! No locks, no state.

use super::change::{check_blocks, check_name};
use super::extent::{Extent, Source};
use super::inode::{FileType, Inode};
use super::key::Key;
use super::place::Geometry;
use super::usage::Segment;
use super::{MAX_NAME_BYTES, MAX_TARGET_BYTES, MAX_XATTR_BYTES, refused};
use forebay_base::Result;
use forebay_base::codec::{Reader, Writer};

/// Size of a piece of a long value, bytes.
pub const CHUNK_BYTES: usize = 1024;
/// Segments whose usage entries are in one item.
pub const SEGMENTS_PER_ITEM: usize = 64;
/// Longest value, bytes: a name, its length, the length of the complete value, and a piece.
pub const MAX_VALUE_BYTES: usize = 4 + 2 + MAX_NAME_BYTES + CHUNK_BYTES;

const WHAT: &str = "item";

/// An entry's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntryItem<'a> {
    /// The inode.
    pub child: u64,
    /// The type of the inode.
    pub kind: FileType,
    /// The name.
    pub name: &'a [u8],
}

/// The value of the first piece of an extended attribute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct XattrItem<'a> {
    /// The name.
    pub name: &'a [u8],
    /// Length of the complete value, bytes.
    pub value_bytes: u32,
    /// The first piece of the value.
    pub piece: &'a [u8],
}

/// The value of an item of dead data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeadItem {
    /// Blocks below this one are freed.
    pub reaped_upto: u64,
    /// Bytes that were stored when it died.
    pub stored_bytes: u64,
    /// Tree in which it died.
    pub tree: u64,
    /// The oldest birth in it, if known: an older snapshot cannot contain it.
    pub oldest_birth: u64,
}

/// A value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Item<'a> {
    /// The value of [`Key::Inode`].
    Inode(Inode),
    /// The value of [`Key::Target`], and of [`Key::Xattr`] from the second piece on.
    Piece(&'a [u8]),
    /// The value of [`Key::Xattr`], the first piece.
    Xattr(XattrItem<'a>),
    /// The value of [`Key::Entry`].
    Entry(EntryItem<'a>),
    /// The value of [`Key::Extent`].
    Extent(Extent<'a>),
    /// The value of [`Key::Dead`].
    Dead(DeadItem),
    /// The value of [`Key::Orphan`]: the sequence of the record that made it an orphan.
    Orphan(u64),
    /// The value of [`Key::Usage`].
    Usage(Usage<'a>),
}

/// Up to 64 entries of the usage table, in stored form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage<'a>(&'a [u8]);

impl<'a> Usage<'a> {
    /// Entries as [`Segment::encode_into`] writes them, one after the other.
    pub fn new(bytes: &'a [u8]) -> Result<Self> {
        let mut r = Reader::new("usage item", bytes);
        let mut count = 0;
        while r.remaining() > 0 {
            Segment::decode(&mut r)?;
            count += 1;
        }
        match count {
            1..=SEGMENTS_PER_ITEM => Ok(Self(bytes)),
            _ => Err(r.bad("entries", &format!("{count} are not 1 to {SEGMENTS_PER_ITEM}"))),
        }
    }

    /// The entries of the segments.
    pub fn iter(&self) -> impl Iterator<Item = Segment> + 'a {
        let mut r = Reader::new("usage item", self.0);
        std::iter::from_fn(move || Segment::decode(&mut r).ok())
    }
}

impl<'a> Item<'a> {
    /// Writes the value of `key`.
    ///
    /// Fails with `InvalidInput` for a value that [`decode`](Self::decode) would refuse.
    pub fn encode_into(&self, key: Key, w: &mut Writer<'_>, geometry: &Geometry) -> Result<()> {
        let start = w.position();
        match self {
            Self::Inode(inode) => inode.encode_into(w)?,
            Self::Piece(piece) => w.bytes("piece", piece)?,
            Self::Xattr(xattr) => {
                w.u32("value length", xattr.value_bytes)?;
                w.prefixed("name", xattr.name)?;
                w.bytes("piece", xattr.piece)?;
            }
            Self::Entry(entry) => {
                w.u64("child", entry.child)?;
                w.u8("type", entry.kind as u8)?;
                w.prefixed("name", entry.name)?;
            }
            Self::Extent(extent) => extent.encode_into(w, geometry)?,
            Self::Dead(dead) => {
                w.u64("reaped up to", dead.reaped_upto)?;
                w.u64("stored bytes", dead.stored_bytes)?;
                w.u64("tree", dead.tree)?;
                w.u64("oldest birth", dead.oldest_birth)?;
            }
            Self::Orphan(sequence) => w.u64("sequence", *sequence)?,
            Self::Usage(usage) => w.bytes("entries", usage.0)?,
        }
        // Refuses a value of another kind than its key's, and one that `decode` would refuse.
        match Item::decode(key, &w.written()[start..], geometry) {
            Ok(found) if found == *self => Ok(()),
            Ok(_) => Err(refused(WHAT, format!("not a value of {key:?}"))),
            Err(e) => Err(refused(WHAT, e.to_string())),
        }
    }

    /// Reads the value of `key`.
    pub fn decode(key: Key, bytes: &'a [u8], geometry: &Geometry) -> Result<Self> {
        let mut r = Reader::new(WHAT, bytes);
        let item = match key {
            Key::Inode(_) => Self::Inode(Inode::decode(&mut r)?),
            Key::Target(_, chunk) => Self::Piece(piece(&mut r, chunk, MAX_TARGET_BYTES)?),
            Key::Xattr(_, _, 0) => Self::Xattr(XattrItem::decode(&mut r)?),
            Key::Xattr(_, _, chunk) => Self::Piece(piece(&mut r, chunk, MAX_XATTR_BYTES)?),
            Key::Entry(..) => {
                let (child, kind) = (r.u64("child")?, FileType::decode("type", &mut r)?);
                let name = r.prefixed("name", MAX_NAME_BYTES)?;
                check_name(&r, name)?;
                if child == 0 {
                    return Err(r.bad("child", "there is no inode 0"));
                }
                Self::Entry(EntryItem { child, kind, name })
            }
            Key::Extent(_, block) => {
                let extent = Extent::decode(&mut r, geometry)?;
                check_blocks(&r, block, u64::from(extent.blocks), geometry)?;
                if matches!(extent.source, Source::Inline(_)) {
                    return Err(r.bad("place", "relative to a record, in the tree"));
                }
                Self::Extent(extent)
            }
            Key::Dead(..) => Self::Dead(DeadItem {
                reaped_upto: r.u64("reaped up to")?,
                stored_bytes: r.u64("stored bytes")?,
                tree: r.u64("tree")?,
                oldest_birth: r.u64("oldest birth")?,
            }),
            Key::Orphan(_) => Self::Orphan(r.u64("sequence")?),
            Key::Usage(_) => Self::Usage(Usage::new(r.bytes("entries", bytes.len())?)?),
        };
        r.finish()?;
        Ok(item)
    }
}

impl<'a> XattrItem<'a> {
    fn decode(r: &mut Reader<'a>) -> Result<Self> {
        let value_bytes = r.u32("value length")?;
        let name = r.prefixed("name", MAX_NAME_BYTES)?;
        if name.is_empty() || name.contains(&0) {
            return Err(r.bad("name", "no name of an attribute"));
        }
        if value_bytes as usize > MAX_XATTR_BYTES {
            return Err(r.bad("value length", &format!("over {MAX_XATTR_BYTES}")));
        }
        let piece = r.bytes("piece", (value_bytes as usize).min(CHUNK_BYTES))?;
        Ok(Self { name, value_bytes, piece })
    }
}

/// Reads one piece of a value of at most `most` bytes, and checks its length (I3).
fn piece<'a>(r: &mut Reader<'a>, chunk: u16, most: usize) -> Result<&'a [u8]> {
    let before = usize::from(chunk) * CHUNK_BYTES;
    let piece = r.bytes("piece", r.remaining())?;
    match piece.len() {
        1..=CHUNK_BYTES if before + piece.len() <= most => Ok(piece),
        len => Err(r.bad("piece", &format!("piece {chunk} of {len} bytes (I3)"))),
    }
}
