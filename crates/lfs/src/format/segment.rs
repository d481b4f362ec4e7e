//! The header at the start of a log segment. It identifies the segment's first record, so that a
//! scan of segments can follow the log across a damaged record.
//!
//! Invariant H1: the header is sealed with its segment's place. A header of an older use of the
//! segment is recognized by its generation or first sequence, one of another segment by its sum.
//!
//! No locks, no state.

use super::place::{Geometry, MAX_SEGMENT, Place, Seal};
use super::{corrupt, refused, unsupported};
use forebay_base::Result;
use forebay_base::codec::{Reader, Writer};

/// Length of the header, bytes; the first record follows it.
pub const SEGMENT_HEADER_BYTES: usize = 128;
/// `fbsg`.
pub const MAGIC: u32 = u32::from_le_bytes(*b"fbsg");

const WHAT: &str = "log segment header";
const VERSION: u8 = 1;
const LOG: u8 = 1;
const SUM_AT: usize = 12;
const NO_SEGMENT: u32 = u32::MAX;

/// The header of a log segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentHeader {
    /// Number of the segment.
    pub segment: u32,
    /// Generation of the volume that wrote it.
    pub generation: u64,
    /// Sequence of the first record.
    pub first_sequence: u64,
    /// The previous segment of the log.
    pub previous: Option<u32>,
    /// Offset of the first record in the segment, bytes.
    pub first_record: u32,
    /// Checksum of the record before the first one.
    pub predecessor: u32,
    /// Key with which the segment is encrypted; 0: none.
    pub key_id: u32,
    /// Name of the segment in an object store; 0: none.
    pub object_tag: u64,
}

impl SegmentHeader {
    /// Writes the header into its 128 bytes.
    pub fn encode_into(&self, seal: Seal, geometry: &Geometry, out: &mut [u8]) -> Result<()> {
        self.check(geometry).map_err(|e| refused(WHAT, e.to_string()))?;
        let mut w = Writer::new(WHAT, out);
        w.u32("magic", MAGIC)?;
        w.u8("version", VERSION)?;
        w.u8("stream", LOG)?;
        w.zeros("reserved", 2)?;
        w.u32("segment", self.segment)?;
        w.u32("sum", 0)?;
        w.u64("generation", self.generation)?;
        w.u64("first sequence", self.first_sequence)?;
        w.u32("previous segment", self.previous.unwrap_or(NO_SEGMENT))?;
        w.u32("first record", self.first_record)?;
        w.u32("predecessor", self.predecessor)?;
        w.u32("key id", self.key_id)?;
        w.u64("object tag", self.object_tag)?;
        w.zeros("reserved", SEGMENT_HEADER_BYTES - w.position())?;
        let sum = seal.sum(Place::new(self.segment, 0), w.written(), SUM_AT);
        w.patch_u32("sum", SUM_AT, sum)
    }

    /// Reads the header at the start of `segment`. More bytes may follow.
    pub fn decode(bytes: &[u8], seal: Seal, segment: u32, geometry: &Geometry) -> Result<Self> {
        let mut r = Reader::new(WHAT, bytes);
        let all = Reader::new(WHAT, bytes).bytes("header", SEGMENT_HEADER_BYTES)?;
        if r.u32("magic")? != MAGIC {
            return Err(r.bad("magic", "this is no log segment header"));
        }
        let (version, stream) = (r.u8("version")?, r.u8("stream")?);
        r.bytes("reserved", 2)?;
        let own = r.u32("segment")?;
        let (stored, sum) = (r.u32("sum")?, seal.sum(Place::new(segment, 0), all, SUM_AT));
        if stored != sum {
            return Err(r.bad("sum", &format!("{stored:#010x}, the checksum is {sum:#010x}")));
        }
        if version != VERSION || stream != LOG {
            return Err(unsupported(WHAT, format!("version {version}, stream {stream}")));
        }
        if all[6..8] != [0; 2] {
            return Err(r.bad("reserved", "bytes 6 and 7 are not zero"));
        }
        let this = Self {
            segment: own,
            generation: r.u64("generation")?,
            first_sequence: r.u64("first sequence")?,
            previous: match r.u32("previous segment")? {
                NO_SEGMENT => None,
                segment @ 0..=MAX_SEGMENT => Some(segment),
                _ => return Err(r.bad("previous segment", "names no segment")),
            },
            first_record: r.u32("first record")?,
            predecessor: r.u32("predecessor")?,
            key_id: r.u32("key id")?,
            object_tag: r.u64("object tag")?,
        };
        r.zeros("reserved", SEGMENT_HEADER_BYTES - r.position())?;
        if own != segment {
            return Err(r.bad("segment", &format!("{own} lies at the place of {segment}")));
        }
        this.check(geometry)?;
        Ok(this)
    }

    fn check(&self, geometry: &Geometry) -> Result<()> {
        let first = self.first_record;
        if (first as usize) < SEGMENT_HEADER_BYTES
            || first >= geometry.segment_bytes()
            || !first.is_multiple_of(super::record::RECORD_ALIGN)
        {
            return Err(corrupt(
                WHAT,
                format!("field `first record`: no record can be at {first}"),
            ));
        }
        if self.segment > MAX_SEGMENT || self.first_sequence == 0 {
            return Err(corrupt(WHAT, "segment or first sequence out of range"));
        }
        Ok(())
    }
}
