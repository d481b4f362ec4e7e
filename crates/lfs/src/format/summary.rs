//! The summary at the end of a sealed segment: for each block its owner at the time of writing.
//! Entries are hints that have to be checked against the map.
//!
//! Invariants: S1 entry `n` belongs to block `n` of the segment. S2 data id and block are exact; a
//! birth is exact up to 67 million sequences after the base of the summary, and beyond that a lower
//! bound. S3 the summary is sealed with its segment's place.
//!
//! No locks, no state.

use super::place::{Geometry, MAX_SEGMENT, Place, Seal};
use super::{MAX_DATA_ID, corrupt, refused, unsupported};
use forebay_base::Result;
use forebay_base::codec::{Reader, Writer};
use forebay_base::units::round_up;

/// Length of the header, bytes.
pub const SUMMARY_HEADER_BYTES: usize = 128;
/// Length of an entry, bytes.
pub const SUMMARY_ENTRY_BYTES: usize = 16;
/// `fbsm`.
pub const MAGIC: u32 = u32::from_le_bytes(*b"fbsm");
/// Number of bits of a file's block number.
pub const BLOCK_BITS: u32 = 54;

const WHAT: &str = "segment summary";
const VERSION: u8 = 1;
const SEALED: u8 = 1;
const SUM_AT: usize = 12;
const ID_BITS: u32 = 48;
const NODE_ID: u64 = (1 << ID_BITS) - 1;
const BIRTH_BITS: u32 = 128 - ID_BITS - BLOCK_BITS;
/// Largest birth relative to the base.
const BIRTH_MAX: u64 = (1 << BIRTH_BITS) - 1;

/// The owner of a block when it was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SummaryEntry {
    /// None, or the log.
    Empty,
    /// A tree node, which contains its owner. The number of its checkpoint, relative to the base.
    Node(u64),
    /// This data, this block, with this birth relative to the base.
    Data(u64, u64, u64),
}

impl SummaryEntry {
    /// The sixteen stored bytes.
    ///
    /// Fails with `InvalidInput` for ids and blocks out of range; larger births are reduced to the
    /// maximum.
    pub fn to_bytes(self) -> Result<[u8; SUMMARY_ENTRY_BYTES]> {
        let (id, block, birth) = match self {
            Self::Empty => (0, 0, 0),
            Self::Node(birth) => (NODE_ID, 0, birth),
            Self::Data(id, block, birth) => (id, block, birth),
        };
        let data = matches!(self, Self::Data(..));
        if data && !(1..=MAX_DATA_ID).contains(&id) || block >> BLOCK_BITS != 0 {
            return Err(refused(WHAT, format!("block {block} of {id}")));
        }
        let birth = birth.min(BIRTH_MAX);
        let packed = u128::from(id)
            | u128::from(block) << ID_BITS
            | u128::from(birth) << (ID_BITS + BLOCK_BITS);
        Ok(packed.to_le_bytes())
    }

    fn from_bytes(bytes: [u8; SUMMARY_ENTRY_BYTES]) -> Result<Self> {
        let packed = u128::from_le_bytes(bytes);
        let id = (packed as u64) & NODE_ID;
        let block = ((packed >> ID_BITS) as u64) & ((1 << BLOCK_BITS) - 1);
        let birth = (packed >> (ID_BITS + BLOCK_BITS)) as u64;
        match (id, block) {
            (0, 0) if birth == 0 => Ok(Self::Empty),
            (NODE_ID, 0) => Ok(Self::Node(birth)),
            (1..=MAX_DATA_ID, _) => Ok(Self::Data(id, block, birth)),
            _ => Err(corrupt(WHAT, format!("no entry is like {packed:#034x}"))),
        }
    }
}

/// The header of a summary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SummaryHeader {
    /// The segment.
    pub segment: u32,
    /// Generation of the volume.
    pub generation: u64,
    /// Sequences of the first and the last entry: of records in a log segment, else of content.
    pub sequences: (u64, u64),
    /// Base of relative births.
    pub base_birth: u64,
    /// Key with which the segment is encrypted; 0: none.
    pub key_id: u32,
    /// Name of the segment in an object store; 0: none.
    pub object_tag: u64,
    /// Stream, as in the usage table.
    pub stream: u8,
    /// Entries: as many as the segment has blocks before the summary.
    pub entries: u32,
}

/// Length of the summary at the end of a segment, bytes.
pub fn summary_bytes(geometry: &Geometry) -> u32 {
    let entries = u64::from(geometry.blocks_per_segment()) * SUMMARY_ENTRY_BYTES as u64;
    round_up(SUMMARY_HEADER_BYTES as u64 + entries, u64::from(geometry.block_bytes())) as u32
}

/// Place of the summary of a segment.
pub fn summary_place(segment: u32, geometry: &Geometry) -> Place {
    Place::new(segment, geometry.segment_bytes() - summary_bytes(geometry))
}

/// Number of blocks of a segment before its summary.
pub fn blocks_before_summary(geometry: &Geometry) -> u32 {
    summary_place(0, geometry).offset >> geometry.block_shift
}

/// A verified summary.
#[derive(Debug, Clone, Copy)]
pub struct Summary<'a> {
    /// The header.
    pub header: SummaryHeader,
    entries: &'a [u8],
}

impl<'a> Summary<'a> {
    /// Writes a summary into a buffer of [`summary_bytes`].
    ///
    /// `entries` are entries in stored form. Fails with `InvalidInput` unless there is one for each
    /// block before the summary, and [`open`](Self::open) would accept them.
    pub fn encode_into(
        header: &SummaryHeader,
        entries: &[u8],
        seal: Seal,
        geometry: &Geometry,
        out: &mut [u8],
    ) -> Result<()> {
        if out.len() != summary_bytes(geometry) as usize || header.segment > MAX_SEGMENT {
            return Err(refused(WHAT, format!("{} bytes, {header:?}", out.len())));
        }
        let place = summary_place(header.segment, geometry);
        let mut w = Writer::new(WHAT, out);
        w.u32("magic", MAGIC)?;
        w.u8("version", VERSION)?;
        w.u8("stream", header.stream)?;
        w.u8("seal", SEALED)?;
        w.zeros("reserved", 1)?;
        w.u32("segment", header.segment)?;
        w.u32("sum", 0)?;
        w.u64("generation", header.generation)?;
        w.u64("first sequence", header.sequences.0)?;
        w.u64("last sequence", header.sequences.1)?;
        w.u64("base birth", header.base_birth)?;
        w.u64("object tag", header.object_tag)?;
        w.u32("key id", header.key_id)?;
        w.u32("entries", header.entries)?;
        w.zeros("reserved", SUMMARY_HEADER_BYTES - w.position())?;
        w.bytes("entries", entries)?;
        w.zeros("rest", w.remaining())?;
        let sum = seal.sum(place, w.written(), SUM_AT);
        w.patch_u32("sum", SUM_AT, sum)?;
        let stored = Summary::open(w.written(), seal, header.segment, geometry);
        stored.map_err(|e| refused(WHAT, e.to_string())).map(drop)
    }

    /// Verifies the summary of `segment`.
    pub fn open(bytes: &'a [u8], seal: Seal, segment: u32, geometry: &Geometry) -> Result<Self> {
        let whole = summary_bytes(geometry) as usize;
        let mut r = Reader::new(WHAT, bytes);
        if r.u32("magic")? != MAGIC || bytes.len() != whole {
            let text = format!("there is none of {whole} bytes in {}", bytes.len());
            return Err(r.bad("magic", &text));
        }
        let (version, stream) = (r.u8("version")?, r.u8("stream")?);
        let (sealed, reserved) = (r.u8("seal")?, r.u8("reserved")?);
        let (own, stored) = (r.u32("segment")?, r.u32("sum")?);
        let sum = seal.sum(summary_place(segment, geometry), bytes, SUM_AT);
        if stored != sum {
            return Err(r.bad("sum", &format!("{stored:#010x}, the checksum is {sum:#010x}")));
        }
        if version != VERSION {
            return Err(unsupported(WHAT, format!("version {version}")));
        }
        let named = own == segment && own <= MAX_SEGMENT;
        if !named || stream > 3 || sealed != SEALED || reserved != 0 {
            return Err(r.bad("segment", &format!("{own}, sealed {sealed}, stream {stream}")));
        }
        let (generation, first) = (r.u64("generation")?, r.u64("first sequence")?);
        let header = SummaryHeader {
            segment,
            generation,
            sequences: (first, r.u64("last sequence")?),
            base_birth: r.u64("base birth")?,
            object_tag: r.u64("object tag")?,
            key_id: r.u32("key id")?,
            entries: r.u32("entries")?,
            stream,
        };
        r.zeros("reserved", SUMMARY_HEADER_BYTES - r.position())?;
        if header.entries != blocks_before_summary(geometry) {
            return Err(r.bad("entries", &format!("{} are not one for each block", header.entries)));
        }
        if first > header.sequences.1 {
            return Err(r.bad("last sequence", "before the first"));
        }
        let entries = r.bytes("entries", header.entries as usize * SUMMARY_ENTRY_BYTES)?;
        r.zeros("rest", r.remaining())?;
        for entry in entries.as_chunks::<SUMMARY_ENTRY_BYTES>().0 {
            SummaryEntry::from_bytes(*entry)?;
        }
        Ok(Self { header, entries })
    }

    /// The owner of block `n` of the segment.
    pub fn entry(&self, n: u32) -> Option<SummaryEntry> {
        let entry = self.entries.as_chunks::<SUMMARY_ENTRY_BYTES>().0.get(n as usize)?;
        SummaryEntry::from_bytes(*entry).ok()
    }

    /// All entries, in order of blocks.
    pub fn entries(&self) -> impl Iterator<Item = SummaryEntry> {
        (0..self.header.entries).filter_map(|n| self.entry(n))
    }
}
