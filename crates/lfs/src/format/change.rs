//! Logical changes: the content of a log record, in order. A record takes effect completely or not
//! at all, so changes that belong together (a rename and the link count that it lowers) are in one
//! record.
//!
//! Invariants: G1 a change of an unknown kind is skipped, unless its flag says that it must be
//! understood; then decoding fails, and the error has the number of the kind. G2 names are 1 to 255
//! bytes without `/` and NUL, and neither `.` nor `..`. G3 a change ends where its length says.
//!
//! No locks, no state.

use super::extent::{Extent, Source};
use super::inode::{self, FileType, Inode, SetAttributes, decode_data_id, decode_size};
use super::key::Cookie;
use super::place::{Geometry, MAX_SEGMENT, Place};
use super::usage::Segment;
use super::{MAX_EXTENT_BLOCKS, MAX_NAME_BYTES, MAX_TARGET_BYTES, MAX_XATTR_BYTES};
use super::{corrupt, refused, unsupported};
use forebay_base::Result;
use forebay_base::codec::{Reader, Writer};

/// Length of the header of each change, bytes.
pub const CHANGE_HEADER_BYTES: usize = 8;

const WHAT: &str = "change";
const MUST_UNDERSTAND: u8 = 1;
const EXCHANGE: u8 = 1;

/// An entry of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry<'a> {
    /// The directory.
    pub dir: u64,
    /// The position of the entry in the order of the directory.
    pub cookie: Cookie,
    /// The inode.
    pub child: u64,
    /// The type of the inode.
    pub kind: FileType,
    /// The name.
    pub name: &'a [u8],
}

/// A rename, as one change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rename<'a> {
    /// The entry that is removed.
    pub from: Entry<'a>,
    /// The entry that is added: of the same inode, or, with `exchange`, of the other one.
    pub to: Entry<'a>,
    /// Inode that `to` denoted before; 0: none.
    pub replaced: u64,
    /// Both names stay and exchange their inodes. `from` and `to` are the entries before the
    /// exchange.
    pub exchange: bool,
}

/// A range of blocks of one data id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Blocks {
    /// The data.
    pub data_id: u64,
    /// First block.
    pub block: u64,
    /// Number of blocks.
    pub blocks: u64,
}

/// A new size of some data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    /// The file.
    pub ino: u64,
    /// The data id of the file.
    pub data_id: u64,
    /// Bytes.
    pub size: u64,
    /// Volume-wide sequence.
    pub sequence: u64,
}

/// One logical change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change<'a> {
    /// Creates an inode, with the target if it is a symbolic link.
    CreateInode(u64, Inode, &'a [u8]),
    /// Sets attributes of an inode.
    SetAttributes(u64, SetAttributes),
    /// Adds a name.
    InsertEntry(Entry<'a>),
    /// Removes a name.
    RemoveEntry(Entry<'a>),
    /// Renames an entry.
    Rename(Rename<'a>),
    /// The blocks of this data id, from this block on, are stored in the extent. Its birth is the
    /// sequence of the change.
    Map(u64, u64, Extent<'a>),
    /// Extends a file.
    Grow(Size),
    /// Truncates a file, or extends it by truncate.
    Truncate(Size),
    /// The data of a file is replaced by new, empty data, and is dead from now on. `Size` has the
    /// new id and size (0 for an empty file), the second number is the old id.
    ReplaceData(Size, u64),
    /// Makes a hole, at this sequence.
    Punch(Blocks, u64),
    /// Sets an extended attribute of an inode: name, value.
    SetXattr(u64, &'a [u8], &'a [u8]),
    /// Removes an extended attribute.
    RemoveXattr(u64, &'a [u8]),
    /// The file has lost its last name and is still open.
    AddOrphan(u64),
    /// The file has a name again.
    RemoveOrphan(u64),
    /// Removes an inode; its data (0: none) is dead at this sequence. An orphan item is removed as
    /// well.
    RemoveInode(u64, u64, u64),
    /// Dead data is freed up to this block; the last step is up to `u64::MAX`. This version makes
    /// no such change, and recovery refuses it.
    ReapDead {
        /// Sequence at which it died.
        died: u64,
        /// The data.
        data_id: u64,
        /// Blocks below this one are freed.
        upto: u64,
    },
    /// The cleaner has copied these blocks: they are in `to` if the map still refers to `from`.
    /// This version makes no such change, and recovery refuses it: its cleaner records
    /// [`Change::Map`].
    Move {
        /// The blocks.
        blocks: Blocks,
        /// Bytes that were copied: the length of the blocks, unless they have a codec.
        stored_bytes: u32,
        /// Where they were.
        from: Place,
        /// The new place of these blocks.
        to: Place,
    },
    /// A segment's entry in the usage table. This version makes no such change, and recovery
    /// refuses it.
    SetSegment(u32, Segment),
    /// The log continues in that segment.
    NextSegment(u32),
}

impl<'a> Change<'a> {
    fn code(&self) -> u16 {
        match self {
            Self::CreateInode(..) => 1,
            Self::SetAttributes(..) => 2,
            Self::InsertEntry(_) => 3,
            Self::RemoveEntry(_) => 4,
            Self::Rename(_) => 5,
            Self::Map(..) => 6,
            Self::Grow(_) => 7,
            Self::Truncate(_) => 8,
            Self::ReplaceData(..) => 9,
            Self::Punch(..) => 10,
            Self::SetXattr(..) => 11,
            Self::RemoveXattr(..) => 12,
            Self::AddOrphan(_) => 13,
            Self::RemoveOrphan(_) => 14,
            Self::RemoveInode(..) => 15,
            Self::ReapDead { .. } => 16,
            Self::Move { .. } => 17,
            Self::SetSegment(..) => 18,
            Self::NextSegment(_) => 19,
        }
    }

    /// The range of the payload to which the change refers: start and end.
    pub fn inline_range(&self) -> Option<(u64, u64)> {
        match self {
            Self::Map(_, _, Extent { source: Source::Inline(at), stored_bytes, .. }) => {
                Some((u64::from(*at), u64::from(*at) + u64::from(*stored_bytes)))
            }
            _ => None,
        }
    }

    /// Writes the change.
    ///
    /// `InvalidInput` for a change that [`decode`](Self::decode) would refuse, `NoSpace` if it does
    /// not fit; the writer's position has changed then.
    pub fn encode_into(&self, w: &mut Writer<'_>, geometry: &Geometry) -> Result<()> {
        let start = w.position();
        w.u16("kind", self.code())?;
        w.u8("flags", MUST_UNDERSTAND)?;
        w.zeros("reserved", 1)?;
        w.u32("length", 0)?;
        self.encode_body(w, geometry)?;
        let end = w.position();
        w.patch_u32("length", start + 4, (end - start - CHANGE_HEADER_BYTES) as u32)?;
        // An invalid change is refused here, where its origin is known, instead of when it is read.
        let mut r = Reader::new(WHAT, &w.written()[start..end]);
        match Change::decode(&mut r, geometry) {
            Ok(_) => Ok(()),
            Err(e) => Err(refused(WHAT, e.to_string())),
        }
    }

    fn encode_body(&self, w: &mut Writer<'_>, geometry: &Geometry) -> Result<()> {
        match self {
            Self::CreateInode(ino, inode, target) => {
                w.u64("inode", *ino)?;
                inode.encode_into(w)?;
                w.prefixed("target", target)
            }
            Self::SetAttributes(ino, set) => {
                w.u64("inode", *ino)?;
                set.encode_into(w)
            }
            Self::InsertEntry(entry) | Self::RemoveEntry(entry) => entry.encode_into(w),
            Self::Rename(rename) => {
                w.u8("rename flags", if rename.exchange { EXCHANGE } else { 0 })?;
                rename.from.encode_into(w)?;
                rename.to.encode_into(w)?;
                w.u64("replaced", rename.replaced)
            }
            Self::Map(data_id, block, extent) => {
                w.u64("data id", *data_id)?;
                w.u64("block", *block)?;
                extent.encode_into(w, geometry)
            }
            Self::Grow(size) | Self::Truncate(size) => size.encode_into(w),
            Self::ReplaceData(size, dead) => {
                size.encode_into(w)?;
                w.u64("dead data id", *dead)
            }
            Self::Punch(blocks, sequence) => {
                blocks.encode_into(w)?;
                w.u64("sequence", *sequence)
            }
            Self::SetXattr(ino, name, value) => {
                w.u64("inode", *ino)?;
                w.prefixed("name", name)?;
                w.u32("value length", u32::try_from(value.len()).unwrap_or(u32::MAX))?;
                w.bytes("value", value)
            }
            Self::RemoveXattr(ino, name) => {
                w.u64("inode", *ino)?;
                w.prefixed("name", name)
            }
            _ => self.encode_numbers(w),
        }
    }

    /// Encodes the changes that consist of a few numbers.
    fn encode_numbers(&self, w: &mut Writer<'_>) -> Result<()> {
        match self {
            Self::AddOrphan(ino) | Self::RemoveOrphan(ino) => w.u64("inode", *ino),
            Self::RemoveInode(ino, data_id, sequence) => {
                w.u64("inode", *ino)?;
                w.u64("data id", *data_id)?;
                w.u64("sequence", *sequence)
            }
            Self::ReapDead { died, data_id, upto } => {
                w.u64("died", *died)?;
                w.u64("data id", *data_id)?;
                w.u64("up to block", *upto)
            }
            Self::Move { blocks, stored_bytes, from, to } => {
                blocks.encode_into(w)?;
                w.u32("stored bytes", *stored_bytes)?;
                from.encode_into("from", w)?;
                to.encode_into("to", w)
            }
            Self::SetSegment(number, segment) => {
                w.u32("segment", *number)?;
                segment.encode_into(w)
            }
            Self::NextSegment(segment) => w.u32("segment", *segment),
            _ => Err(refused(WHAT, "has more than numbers")),
        }
    }

    /// Reads a change; `None` if its kind is unknown and may be skipped.
    pub fn decode(r: &mut Reader<'a>, geometry: &Geometry) -> Result<Option<Self>> {
        let at = r.position();
        let (code, flags) = (r.u16("change kind")?, r.u8("change flags")?);
        r.zeros("reserved", 1)?;
        let length = r.u32("change length")? as usize;
        let mut body = Reader::new(WHAT, r.bytes("change body", length)?);
        if flags & !MUST_UNDERSTAND != 0 {
            return Err(corrupt(WHAT, format!("unknown flags at offset {at}")));
        }
        let Some(change) = Self::decode_body(code, &mut body, geometry)? else {
            return match flags {
                0 => Ok(None),
                _ => Err(unsupported(WHAT, format!("kind {code}, which must be understood"))),
            };
        };
        body.finish()?;
        // All known kinds must be understood.
        if flags != MUST_UNDERSTAND {
            return Err(corrupt(
                WHAT,
                format!("kind {code} is not marked as one to be understood"),
            ));
        }
        Ok(Some(change))
    }

    fn decode_body(code: u16, r: &mut Reader<'a>, geometry: &Geometry) -> Result<Option<Self>> {
        Ok(Some(match code {
            1 => {
                let (ino, inode) = (decode_ino("inode", r)?, Inode::decode(r)?);
                let target = r.prefixed("target", MAX_TARGET_BYTES)?;
                if target.is_empty() == (inode.file_type() == Some(FileType::Symlink)) {
                    return Err(r.bad("target", "symbolic links have one, other files do not"));
                }
                Self::CreateInode(ino, inode, target)
            }
            2 => Self::SetAttributes(decode_ino("inode", r)?, SetAttributes::decode(r)?),
            3 => Self::InsertEntry(Entry::decode(r)?),
            4 => Self::RemoveEntry(Entry::decode(r)?),
            5 => Self::Rename(Rename::decode(r)?),
            6 => {
                let (data_id, block) = (decode_data_id("data id", r)?, r.u64("block")?);
                let extent = Extent::decode(r, geometry)?;
                check_blocks(r, block, u64::from(extent.blocks), geometry)?;
                Self::Map(data_id, block, extent)
            }
            7 => Self::Grow(Size::decode(r)?),
            8 => Self::Truncate(Size::decode(r)?),
            9 => Self::ReplaceData(Size::decode(r)?, decode_data_id("dead data id", r)?),
            10 => Self::Punch(Blocks::decode(r, geometry)?, r.u64("sequence")?),
            11 => {
                let (ino, name) = (decode_ino("inode", r)?, decode_xattr_name(r)?);
                let length = r.u32("value length")? as usize;
                if length > MAX_XATTR_BYTES {
                    return Err(r.bad("value length", &format!("over {MAX_XATTR_BYTES}")));
                }
                Self::SetXattr(ino, name, r.bytes("value", length)?)
            }
            12 => Self::RemoveXattr(decode_ino("inode", r)?, decode_xattr_name(r)?),
            13 => Self::AddOrphan(decode_ino("inode", r)?),
            14 => Self::RemoveOrphan(decode_ino("inode", r)?),
            15 => {
                let ino = decode_ino("inode", r)?;
                let data_id = inode::decode_data_id_or_none("data id", r)?;
                Self::RemoveInode(ino, data_id, r.u64("sequence")?)
            }
            16 => {
                let (died, data_id) = (r.u64("died")?, decode_data_id("data id", r)?);
                Self::ReapDead { died, data_id, upto: r.u64("up to block")? }
            }
            17 => Self::decode_move(r, geometry)?,
            18 => Self::SetSegment(decode_segment(r)?, Segment::decode(r)?),
            19 => Self::NextSegment(decode_segment(r)?),
            _ => return Ok(None),
        }))
    }

    fn decode_move(r: &mut Reader<'a>, geometry: &Geometry) -> Result<Self> {
        let (blocks, stored_bytes) = (Blocks::decode(r, geometry)?, r.u32("stored bytes")?);
        let (from, to) = (Place::decode("from", r)?, Place::decode("to", r)?);
        if blocks.blocks > u64::from(MAX_EXTENT_BLOCKS) {
            return Err(r.bad("blocks", "more than an extent has"));
        }
        let stored = u64::from(stored_bytes);
        let longest = u64::from(MAX_EXTENT_BLOCKS) << geometry.block_shift;
        let plain = stored == blocks.blocks << geometry.block_shift;
        if !plain && (!geometry.stores_pieces() || stored == 0 || stored > longest) {
            return Err(r.bad("stored bytes", "not those of the blocks"));
        }
        geometry.check_run("change: field `from`", from, stored)?;
        geometry.check_run("change: field `to`", to, stored)?;
        Ok(Self::Move { blocks, stored_bytes, from, to })
    }
}

impl<'a> Entry<'a> {
    fn encode_into(&self, w: &mut Writer<'_>) -> Result<()> {
        w.u64("directory", self.dir)?;
        w.u64("cookie", self.cookie.to_u64())?;
        w.u64("child", self.child)?;
        w.u8("type", self.kind as u8)?;
        w.prefixed("name", self.name)
    }

    fn decode(r: &mut Reader<'a>) -> Result<Self> {
        let dir = decode_ino("directory", r)?;
        let cookie = Cookie::from_u64(r.u64("cookie")?);
        let cookie = cookie.ok_or_else(|| r.bad("cookie", "no name has it"))?;
        let (child, kind) = (decode_ino("child", r)?, FileType::decode("type", r)?);
        let name = r.prefixed("name", MAX_NAME_BYTES)?;
        check_name(r, name)?;
        Ok(Self { dir, cookie, child, kind, name })
    }
}

impl<'a> Rename<'a> {
    fn decode(r: &mut Reader<'a>) -> Result<Self> {
        let exchange = match r.u8("rename flags")? {
            0 => false,
            EXCHANGE => true,
            flags => return Err(r.bad("rename flags", &format!("{flags} is not known"))),
        };
        let (from, to) = (Entry::decode(r)?, Entry::decode(r)?);
        let replaced = r.u64("replaced")?;
        if !exchange && (from.child, from.kind) != (to.child, to.kind) {
            return Err(r.bad("child", "a rename names two inodes"));
        }
        if exchange && replaced != 0 {
            return Err(r.bad("replaced", "an exchange replaces nothing"));
        }
        Ok(Self { from, to, replaced, exchange })
    }
}

impl Blocks {
    fn encode_into(&self, w: &mut Writer<'_>) -> Result<()> {
        w.u64("data id", self.data_id)?;
        w.u64("block", self.block)?;
        w.u64("blocks", self.blocks)
    }

    fn decode(r: &mut Reader<'_>, geometry: &Geometry) -> Result<Self> {
        let data_id = decode_data_id("data id", r)?;
        let (block, blocks) = (r.u64("block")?, r.u64("blocks")?);
        check_blocks(r, block, blocks, geometry)?;
        Ok(Self { data_id, block, blocks })
    }
}

impl Size {
    fn encode_into(&self, w: &mut Writer<'_>) -> Result<()> {
        w.u64("inode", self.ino)?;
        w.u64("data id", self.data_id)?;
        w.u64("size", self.size)?;
        w.u64("sequence", self.sequence)
    }

    fn decode(r: &mut Reader<'_>) -> Result<Self> {
        Ok(Self {
            ino: decode_ino("inode", r)?,
            data_id: decode_data_id("data id", r)?,
            size: decode_size(r)?,
            sequence: r.u64("sequence")?,
        })
    }
}

fn decode_ino(field: &str, r: &mut Reader<'_>) -> Result<u64> {
    match r.u64(field)? {
        0 => Err(r.bad(field, "there is no inode 0")),
        ino => Ok(ino),
    }
}

fn decode_segment(r: &mut Reader<'_>) -> Result<u32> {
    match r.u32("segment")? {
        segment @ 0..=MAX_SEGMENT => Ok(segment),
        _ => Err(r.bad("segment", "names no segment")),
    }
}

/// Checks a name (G2).
pub(crate) fn check_name(r: &Reader<'_>, name: &[u8]) -> Result<()> {
    if name.is_empty() || name == b"." || name == b".." {
        return Err(r.bad("name", "no name of an entry"));
    }
    if name.iter().any(|byte| matches!(byte, 0 | b'/')) {
        return Err(r.bad("name", "a byte that no name has"));
    }
    Ok(())
}

fn decode_xattr_name<'a>(r: &mut Reader<'a>) -> Result<&'a [u8]> {
    let name = r.prefixed("name", MAX_NAME_BYTES)?;
    match name.is_empty() || name.contains(&0) {
        true => Err(r.bad("name", "no name of an attribute")),
        false => Ok(name),
    }
}

pub(crate) fn check_blocks(r: &Reader<'_>, block: u64, blocks: u64, g: &Geometry) -> Result<()> {
    match block.checked_add(blocks) {
        Some(end) if blocks > 0 && end <= g.max_blocks() => Ok(()),
        _ => Err(r.bad("blocks", &format!("{blocks} blocks at {block} are not in a file"))),
    }
}
