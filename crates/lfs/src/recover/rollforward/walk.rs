//! The state of recovery while it walks along the log.
//!
//! No locks: during recovery nothing else uses the volume.

use super::window::Window;
use crate::btree::Tree;
use crate::device::layout::Layout;
use crate::format::place::Place;
use crate::format::segment::SegmentHeader;
use crate::log::Head;
use crate::names::counters::Counters;
use crate::transaction::options::OpenOptions;
use crate::transaction::state::State;
use forebay_block::DeviceRef;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// A record that was read and is not applied yet: it may be part of a torn tail.
pub(super) struct Held {
    /// Header and changes. Inline content was verified already, and is not needed here.
    pub bytes: Vec<u8>,
    pub at: Place,
    pub sequence: u64,
    /// The head after this record.
    pub head: Head,
    /// The head after this record, in the segment that the record names as the next one, if any.
    pub next: Head,
}

/// Part of [`overlay_bytes`](crate::OpenOptions::overlay_bytes) that the changes of a replay may
/// take: an open volume has as much before two checkpoints have merged it.
const OVERLAY_PARTS: u64 = 2;

/// How much of the log a replay applies (`bounded`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Replay {
    /// All of it.
    Complete,
    /// As much as memory has space for. The rest is checked.
    FirstPart,
    /// As much as memory has space for. The replay of the first part has checked the rest.
    LaterPart,
}

/// What bounds a replay, and how far it came (`bounded`).
pub(super) struct Bound {
    /// Bytes of changes; none: the replay has no bound.
    pub changes_max: Option<u64>,
    /// Most that the changes took, bytes.
    pub changes_peak: u64,
    /// Where the log goes on behind what was applied, if the rest is only scanned.
    pub resume: Option<Head>,
    /// Segments that the rest names.
    pub segments: BTreeSet<u32>,
    /// Records of the rest are checked for what would refuse the opening later.
    pub checks_rest: bool,
    /// Counters of the checkpoint, raised past the numbers of the rest's records.
    pub counters: Counters,
}

impl Bound {
    /// The bound for a volume with this memory for changes. `counters`: those of its checkpoint.
    pub fn new(replay: Replay, overlay_bytes: u64, counters: Counters) -> Self {
        Self {
            changes_max: (replay != Replay::Complete).then_some(OVERLAY_PARTS * overlay_bytes),
            changes_peak: 0,
            resume: None,
            segments: BTreeSet::new(),
            checks_rest: replay == Replay::FirstPart,
            counters,
        }
    }
}

pub(super) struct Walk<'a> {
    pub device: &'a DeviceRef,
    /// The tree of the checkpoint.
    pub tree: &'a Tree,
    pub layout: Layout,
    pub options: &'a OpenOptions,
    pub state: State,
    /// Segment headers by their first sequence number.
    pub headers: BTreeMap<u64, Vec<SegmentHeader>>,
    /// Segments that may belong to the log, and of which neither header copy can be read.
    pub hidden: Vec<u32>,
    /// The place where recovery expects the next record.
    pub head: Head,
    pub held: VecDeque<Held>,
    pub held_bytes: usize,
    /// All records up to this one are durable.
    pub durable: u64,
    /// The place and number of bytes that recovery last needed to examine the record at the head.
    pub asked: (Place, u64),
    /// The segment that the log names as the next one, if no valid header was found there.
    pub named: Option<u32>,
    pub last: Head,
    /// The bound of changes in memory, and what the records beyond it name.
    pub bound: Bound,
    pub records: u64,
    pub window: Window<'a>,
}
