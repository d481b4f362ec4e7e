//! The state of a walk along the log.
//!
//! No locks: recovery has the volume to itself.

use super::window::Window;
use crate::btree::Tree;
use crate::device::layout::Layout;
use crate::format::place::Place;
use crate::format::segment::SegmentHeader;
use crate::log::Head;
use crate::transaction::options::OpenOptions;
use crate::transaction::state::State;
use forebay_block::DeviceRef;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// A record that may not count.
pub(super) struct Held {
    /// Header and changes; content that came with it was verified, and is not wanted again.
    pub bytes: Vec<u8>,
    pub at: Place,
    pub sequence: u64,
    /// Head behind it.
    pub head: Head,
    /// The same, in the segment that the record names as the next one, if it names one.
    pub next: Head,
}

/// Part of [`overlay_bytes`](crate::OpenOptions::overlay_bytes) that the changes of a replay may
/// take: a live volume has that much before two checkpoints have merged them.
const OVERLAY_PARTS: u64 = 2;

/// What bounds a replay, and how far it came (`bounded`).
#[derive(Default)]
pub(super) struct Bound {
    /// Bytes of changes; none: the replay has no bound.
    pub changes_max: Option<u64>,
    /// Most that the changes took, bytes.
    pub changes_peak: u64,
    /// Where the log goes on behind what was applied, if the rest is only scanned.
    pub resume: Option<Head>,
    /// Segments that the rest names.
    pub segments: BTreeSet<u32>,
}

impl Bound {
    /// Of a volume that is opened for writing with so much memory for changes.
    pub fn of(overlay_bytes: u64) -> Self {
        Self { changes_max: Some(OVERLAY_PARTS * overlay_bytes), ..Self::default() }
    }
}

pub(super) struct Walk<'a> {
    pub device: &'a DeviceRef,
    /// Of the checkpoint.
    pub tree: &'a Tree,
    pub layout: Layout,
    pub options: &'a OpenOptions,
    pub state: State,
    /// By the first sequence.
    pub headers: BTreeMap<u64, Vec<SegmentHeader>>,
    /// Segments that may be the log's, and whose header cannot be read in either copy.
    pub hidden: Vec<u32>,
    /// Where the next record is looked for.
    pub head: Head,
    pub held: VecDeque<Held>,
    pub held_bytes: usize,
    /// Every record up to this one is durable.
    pub durable: u64,
    /// The bytes that recovery needs to judge the record at the head: a place, and how many.
    pub asked: (Place, u64),
    /// The segment that the log names as its next one, if no valid header was found there.
    pub named: Option<u32>,
    pub last: Head,
    /// The bound of changes in memory, and what names more than it.
    pub bound: Bound,
    pub records: u64,
    pub window: Window<'a>,
}
