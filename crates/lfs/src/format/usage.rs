//! The usage table's entry of a segment: its live bytes and its state. Sixteen bytes.
//!
//! Invariant U1: a free segment has no live bytes. An unknown state or flag is refused, since it
//! may mean that the segment is in use.
//!
//! No locks, no state.

use forebay_base::Result;
use forebay_base::codec::{Reader, Writer};

/// Length of an entry, bytes.
pub const USAGE_BYTES: usize = 16;
/// Blocks of the segment have been written before: a synced append is faster there.
pub const WARM: u16 = 1;
/// The segment ends with a summary.
pub const SUMMARY: u16 = 2;

/// State of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SegmentState {
    /// Free: it can be allocated.
    Free = 0,
    /// It is being filled.
    Open = 1,
    /// It is full.
    Sealed = 2,
    /// No data in it is live; it is free after a second checkpoint.
    Dead = 3,
    /// A discard of it is in flight.
    Discarding = 4,
    /// Reserved for the cleaner or a checkpoint.
    Reserved = 5,
    /// The device fails in it.
    Bad = 6,
}

/// The stream of writes that filled a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    /// None yet.
    None = 0,
    /// Data runs.
    Data = 1,
    /// The log.
    Log = 2,
    /// Tree nodes.
    Tree = 3,
}

/// The entry of one segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// Bytes to which something refers.
    pub live_bytes: u32,
    /// State.
    pub state: SegmentState,
    /// Stream.
    pub stream: Stream,
    /// [`WARM`], [`SUMMARY`].
    pub flags: u16,
    /// For a dead segment: the checkpoint at which it died. Else: the youngest birth in it.
    pub since: u64,
}

impl Segment {
    /// A segment that was never used.
    pub const FREE: Self =
        Self { live_bytes: 0, state: SegmentState::Free, stream: Stream::None, flags: 0, since: 0 };

    /// Writes the entry.
    pub fn encode_into(&self, w: &mut Writer<'_>) -> Result<()> {
        w.u32("live bytes", self.live_bytes)?;
        w.u8("state", self.state as u8)?;
        w.u8("stream", self.stream as u8)?;
        w.u16("flags", self.flags)?;
        w.u64("since", self.since)
    }

    /// Reads an entry.
    pub fn decode(r: &mut Reader<'_>) -> Result<Self> {
        let live_bytes = r.u32("live bytes")?;
        let state = match r.u8("state")? {
            0 => SegmentState::Free,
            1 => SegmentState::Open,
            2 => SegmentState::Sealed,
            3 => SegmentState::Dead,
            4 => SegmentState::Discarding,
            5 => SegmentState::Reserved,
            6 => SegmentState::Bad,
            code => return Err(r.bad("state", &format!("{code} is not known"))),
        };
        let stream = match r.u8("stream")? {
            0 => Stream::None,
            1 => Stream::Data,
            2 => Stream::Log,
            3 => Stream::Tree,
            code => return Err(r.bad("stream", &format!("{code} is not known"))),
        };
        let (flags, since) = (r.u16("flags")?, r.u64("since")?);
        if flags & !(WARM | SUMMARY) != 0 {
            return Err(r.bad("flags", "unknown bits"));
        }
        let empty =
            matches!(state, SegmentState::Free | SegmentState::Dead | SegmentState::Discarding);
        if empty && live_bytes != 0 {
            return Err(r.bad("live bytes", "a segment without use has some (U1)"));
        }
        Ok(Self { live_bytes, state, stream, flags, since })
    }
}
