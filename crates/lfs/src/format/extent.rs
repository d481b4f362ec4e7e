//! A run of a file's blocks: the place of its stored bytes, their encoding, and their sums. Log and
//! tree use the same form.
//!
//! Invariants: X1 an extent lies in one segment, begins at a block and has 1 to 128 blocks. X2
//! sums, if any, cover stored bytes: one for each block, also for a partial one. X3 without codec
//! and key, the stored, decoded and mapped bytes are the same, so any part is a valid extent. With
//! one of them the stored bytes are kept complete, and extents for parts of them differ in their
//! offset within the decoded bytes. X4 in a volume with short extents, an extent without codec and
//! key, of the tree of files and without flags, has the short form; no other extent has it.
//!
//! No locks, no state.

use super::features::{COMPRESSION, ENCRYPTION, SHARED_EXTENTS};
use super::place::{Geometry, IN_PAYLOAD, Place, SumAlgorithm};
use super::superblock::FILES_TREE;
use super::{MAX_EXTENT_BLOCKS, corrupt, refused};
use forebay_base::Result;
use forebay_base::codec::{Reader, Writer};

/// Flag in the word after the place, which otherwise has the number of stored bytes. It marks the
/// short form: the rest of the word is the number of blocks and, from bit 16 on, the sum algorithm.
const SHORT: u32 = 1 << 31;
const SHORT_SUM_SHIFT: u32 = 16;
/// Storage is allocated, and the blocks read as zeros.
pub const UNWRITTEN: u16 = 1;
/// Another extent may refer to the same bytes.
pub const SHARED: u16 = 2;
/// Stored bytes are encrypted.
pub const ENCRYPTED: u16 = 4;

const WHAT: &str = "extent";

/// Where the bytes of an extent are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// In a data run, or in a record whose place is known.
    Run(Place),
    /// In the record that contains this extent: offset in its payload.
    Inline(u32),
}

/// Sums of stored blocks, in stored form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sums<'a> {
    /// How they were made.
    pub algorithm: SumAlgorithm,
    /// One after the other, [`SumAlgorithm::width`] bytes each.
    pub bytes: &'a [u8],
}

impl<'a> Sums<'a> {
    /// No sums.
    pub const NONE: Sums<'static> = Sums { algorithm: SumAlgorithm::None, bytes: &[] };

    /// CRC-32Cs as they are stored, to be made with [`put_crc32c`].
    pub const fn crc32c(bytes: &'a [u8]) -> Self {
        Self { algorithm: SumAlgorithm::Crc32c, bytes }
    }

    /// Number of sums.
    pub fn count(&self) -> usize {
        self.bytes.len().checked_div(self.algorithm.width()).unwrap_or(0)
    }

    /// The CRC-32Cs; none for other algorithms.
    pub fn iter_crc32c(&self) -> impl Iterator<Item = u32> + 'a {
        let bytes = if self.algorithm == SumAlgorithm::Crc32c { self.bytes } else { &[] };
        bytes.as_chunks::<4>().0.iter().map(|sum| u32::from_le_bytes(*sum))
    }
}

/// The segment of an extent in stored form, or a special value in its place: it comes first in both
/// forms. `None`: not an extent.
pub(crate) fn stored_segment(extent: &[u8]) -> Option<u32> {
    extent.first_chunk().map(|segment| u32::from_le_bytes(*segment))
}

/// Appends CRC-32Cs in stored form.
pub fn put_crc32c(sums: &[u32], out: &mut Vec<u8>) {
    out.extend(sums.iter().flat_map(|sum| sum.to_le_bytes()));
}

/// A run of blocks; the key or the change has their data id and first block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent<'a> {
    /// Place of the bytes.
    pub source: Source,
    /// Length of the stored bytes.
    pub stored_bytes: u32,
    /// Length of the decoded bytes.
    pub decoded_bytes: u32,
    /// Offset of the first block within the decoded bytes.
    pub decoded_offset: u32,
    /// Blocks of the file, 1 to 128.
    pub blocks: u16,
    /// Codec of the stored bytes; 0: none.
    pub codec: u8,
    /// [`UNWRITTEN`], [`SHARED`], [`ENCRYPTED`].
    pub flags: u16,
    /// Key with which they are encrypted; 0: none.
    pub key_id: u32,
    /// Volume-wide sequence at which the content was captured.
    pub birth: u64,
    /// The tree that first contained it.
    pub tree: u64,
    /// Sums of the stored blocks.
    pub sums: Sums<'a>,
}

impl<'a> Extent<'a> {
    /// An extent of `blocks` blocks without codec and key.
    pub fn plain(source: Source, blocks: u16, birth: u64, sums: Sums<'a>, g: &Geometry) -> Self {
        let bytes = u32::from(blocks) << g.block_shift;
        Self {
            source,
            stored_bytes: bytes,
            decoded_bytes: bytes,
            decoded_offset: 0,
            blocks,
            codec: 0,
            flags: 0,
            key_id: 0,
            birth,
            tree: FILES_TREE,
            sums,
        }
    }

    /// Whether it is stored in the short form (X4).
    fn is_short(&self, geometry: &Geometry) -> bool {
        let Self { source, blocks, birth, sums, .. } = *self;
        let allowed = geometry.has_short_extents() && blocks <= MAX_EXTENT_BLOCKS;
        allowed && *self == Self::plain(source, blocks, birth, sums, geometry)
    }

    /// Writes the extent.
    ///
    /// Fails with `InvalidInput` for an extent that [`decode`](Self::decode) would refuse.
    pub fn encode_into(&self, w: &mut Writer<'_>, geometry: &Geometry) -> Result<()> {
        self.check(geometry).map_err(|e| refused(WHAT, e.to_string()))?;
        let place = match self.source {
            Source::Run(place) => place,
            Source::Inline(offset) => Place::new(IN_PAYLOAD, offset),
        };
        place.encode_into("place", w)?;
        if self.is_short(geometry) {
            let sums = u32::from(self.sums.algorithm.code()) << SHORT_SUM_SHIFT;
            w.u32("blocks and sums", SHORT | sums | u32::from(self.blocks))?;
            w.u64("birth", self.birth)?;
            return w.bytes("sums", self.sums.bytes);
        }
        w.u32("stored bytes", self.stored_bytes)?;
        w.u32("decoded bytes", self.decoded_bytes)?;
        w.u32("offset within decoded", self.decoded_offset)?;
        w.u16("blocks", self.blocks)?;
        w.u8("codec", self.codec)?;
        w.u8("sum algorithm", self.sums.algorithm.code())?;
        w.u16("flags", self.flags)?;
        w.u16("sums", self.sums.count() as u16)?;
        w.u32("key id", self.key_id)?;
        w.u64("birth", self.birth)?;
        w.u64("tree", self.tree)?;
        w.bytes("sums", self.sums.bytes)
    }

    /// Reads an extent.
    pub fn decode(r: &mut Reader<'a>, geometry: &Geometry) -> Result<Self> {
        let mut look = r.clone();
        let source = match look.u32("place")? {
            IN_PAYLOAD => {
                r.u32("place")?;
                Source::Inline(r.u32("offset within payload")?)
            }
            _ => Source::Run(Place::decode("place", r)?),
        };
        let stored_bytes = r.u32("stored bytes")?;
        if stored_bytes & SHORT != 0 && geometry.has_short_extents() {
            return Self::decode_short(source, stored_bytes & !SHORT, r, geometry);
        }
        let decoded_bytes = r.u32("decoded bytes")?;
        let decoded_offset = r.u32("offset within decoded")?;
        let (blocks, codec) = (r.u16("blocks")?, r.u8("codec")?);
        let algorithm = SumAlgorithm::from_code(WHAT, r.u8("sum algorithm")?)?;
        let (flags, count) = (r.u16("flags")?, usize::from(r.u16("sums")?));
        let (key_id, birth, tree) = (r.u32("key id")?, r.u64("birth")?, r.u64("tree")?);
        if count > 0 && algorithm.width() == 0 {
            return Err(r.bad("sums", "sums without an algorithm"));
        }
        let bytes = r.bytes("sums", count * algorithm.width())?;
        let sums = Sums { algorithm, bytes };
        let this = Self {
            source,
            stored_bytes,
            decoded_bytes,
            decoded_offset,
            blocks,
            codec,
            flags,
            key_id,
            birth,
            tree,
            sums,
        };
        this.check(geometry)?;
        match this.is_short(geometry) {
            true => Err(corrupt(WHAT, "the long form of what has a short one (X4)")),
            false => Ok(this),
        }
    }

    /// Decodes the rest of a short form.
    fn decode_short(source: Source, word: u32, r: &mut Reader<'a>, g: &Geometry) -> Result<Self> {
        let blocks = word as u16;
        let code = u8::try_from(word >> SHORT_SUM_SHIFT)
            .map_err(|_| r.bad("blocks and sums", "unknown bits"))?;
        let algorithm = SumAlgorithm::from_code(WHAT, code)?;
        let birth = r.u64("birth")?;
        let bytes = r.bytes("sums", usize::from(blocks) * algorithm.width())?;
        let this = Self::plain(source, blocks, birth, Sums { algorithm, bytes }, g);
        this.check(g)?;
        Ok(this)
    }

    /// Checks X1 to X3, and that the volume has the features of the extent.
    fn check(&self, geometry: &Geometry) -> Result<()> {
        let bad = |why: &str| Err(corrupt(WHAT, why));
        if self.blocks == 0 || self.blocks > MAX_EXTENT_BLOCKS {
            return bad("field `blocks`: not 1 to 128");
        }
        if self.flags & !(UNWRITTEN | SHARED | ENCRYPTED) != 0 {
            return bad("field `flags`: unknown bits");
        }
        if self.flags & SHARED != 0 && geometry.incompat & SHARED_EXTENTS == 0 {
            return bad("field `flags`: shared without the feature");
        }
        let encrypted = self.flags & ENCRYPTED != 0;
        if encrypted != (self.key_id != 0) || encrypted && geometry.incompat & ENCRYPTION == 0 {
            return bad("encryption without the feature or the key");
        }
        if self.codec != 0 && geometry.incompat & COMPRESSION == 0 {
            return bad("field `codec`: a codec without the feature");
        }
        self.check_lengths(geometry)
    }

    fn check_lengths(&self, geometry: &Geometry) -> Result<()> {
        let bad = |why: &str| Err(corrupt(WHAT, why));
        let mapped = u64::from(self.blocks) << geometry.block_shift;
        let (stored, decoded) = (u64::from(self.stored_bytes), u64::from(self.decoded_bytes));
        let longest = u64::from(MAX_EXTENT_BLOCKS) << geometry.block_shift;
        let plain = self.codec == 0 && self.flags & ENCRYPTED == 0;
        if plain && (stored != mapped || decoded != mapped || self.decoded_offset != 0) {
            return bad("stored, decoded and mapped bytes differ without a codec");
        }
        if stored == 0 || stored > longest || decoded > longest {
            return bad("stored or decoded bytes out of range");
        }
        let end = u64::from(self.decoded_offset) + mapped;
        if end > decoded || !self.decoded_offset.is_multiple_of(geometry.block_bytes()) {
            return bad("the blocks do not lie within what is decoded");
        }
        let stored_blocks = stored.div_ceil(u64::from(geometry.block_bytes()));
        let wanted = match self.sums.algorithm {
            SumAlgorithm::None => 0,
            SumAlgorithm::Crc32c if self.flags & UNWRITTEN != 0 => 0,
            SumAlgorithm::Crc32c => stored_blocks,
        };
        if (self.sums.bytes.len()) as u64 != wanted * self.sums.algorithm.width() as u64 {
            return bad("field `sums`: not one for each stored block");
        }
        match self.source {
            Source::Run(place) => geometry.check_run(WHAT, place, stored),
            // The record's place is not known yet; its payload begins at a block.
            Source::Inline(offset) => geometry.check_run(WHAT, Place::new(0, offset), stored),
        }
    }
}
