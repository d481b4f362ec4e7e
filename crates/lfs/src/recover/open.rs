//! Opening a volume: recovery reads the newest checkpoint and rolls the log forward. Before the
//! volume serves requests, it writes a superblock slot with a new generation.
//!
//! ```text
//!   newest slot > trees (names, usage, nodes) > clean? ─ no ─▶ roll forward > flush > checkpoint
//!                                                  └─ yes ─▶ slot: a new generation
//! ```
//! Invariants: O11 the volume serves no state that a power loss could still take away. What
//! recovery read is flushed before anything is written, and then written into a checkpoint. O12 a
//! generation is never used twice. A new one is above all generations in slots and segment headers,
//! and a slot names it before anything is written with it. A repair of the log draws a generation
//! that is only in the header of its segment. A power loss may tear that header and keep a record
//! behind it. So recovery skips more generations than one open volume can draw. O13 opening a
//! volume read-only writes nothing to it. O14 memory and reads are proportional to what the image
//! really has: entries of the usage table, nodes, records. So the claims of a slot are first
//! compared with the usage table. O15 if the volume has no free segment for its log or for the
//! nodes of its first checkpoint, a checkpoint that ends where the log ends comes first. It takes
//! no segment for the log, and frees those of the log before it. O16 before that, the opening
//! repeats the newest checkpoint. That takes neither segments nor places, and frees those that only
//! the checkpoint before needs. So openings that end early, at whatever write, use up no space.
//!
//! No locks: during opening nothing else uses the volume.

use crate::btree::{Cursor, Tree};
use crate::checkpoint::root_of;
use crate::device::layout::Layout;
use crate::fault::{Plant, Planted};
use crate::format::corrupt;
use crate::format::item::Item;
use crate::format::key::Key;
use crate::format::place::Place;
use crate::format::superblock::{FILES_TREE, STATE_CLEAN, Superblock, USAGE_TREE};
use crate::format::usage::Segment as Entry;
use crate::log::Head;
use crate::recover::rollforward::{Found, Replay, roll_forward};
use crate::transaction::items::load_orphans;
use crate::transaction::options::OpenOptions;
use crate::transaction::state::State;
use forebay_base::{Error, Result};
use forebay_block::DeviceRef;

/// The number of segments that one growth may add to a volume of any size.
const GROWTH_SEGMENTS_MAX: u64 = 1 << 20;
/// Generations that recovery skips: more than repairs draw until the volume is closed.
const UNRECORDED_GENERATIONS: u64 = 1 << 20;
/// Birth numbers that recovery skips: more than a volume draws until it is closed.
const UNRECORDED_BIRTHS: u64 = 1 << 32;

/// A volume as recovery found it.
pub(crate) struct Opened {
    pub found: Found,
    /// The places of the nodes of the usage table.
    pub usage: Vec<[Place; 2]>,
    /// True if the log has no records after the checkpoint.
    pub is_clean: bool,
}

/// Finds the state of a volume: the checkpoint of `newest`, and the log records after it. It writes
/// nothing.
pub(crate) async fn find(
    device: &DeviceRef,
    tree: &Tree,
    slots: (&Superblock, Option<&Superblock>),
    layout: Layout,
    options: &OpenOptions,
    replay: Replay,
) -> Result<Opened> {
    let (newest, older) = slots;
    // This check comes before any allocation whose size the slot determines.
    let entries = usage_entries(tree, newest).await?;
    check_growth(entries.len(), newest.segment_count)?;
    let mut state = State::new(layout);
    state.load_numbers(newest, options.inode_cache_bytes);
    let root = root_of(newest, FILES_TREE)?;
    state.load_tree(root, newest.next_data_id);
    load_orphans(tree, &root, &mut state).await?;
    state.load_usage(&entries, newest.checkpoint)?;
    let usage = find_nodes(tree, newest, older, &mut state).await?;
    let is_larger = entries.len() < newest.segment_count as usize;
    let is_clean = newest.state & STATE_CLEAN != 0
        || is_larger && options.plant.has(Planted::GrownTakenForClosed);
    let mut found = if is_clean {
        Found::clean(state, Head::of(newest))
    } else {
        roll_forward(device, tree, newest, state, options, replay).await?
    };
    if let Err(error) = found.state.counters().check() {
        if !options.read_only {
            return Err(error);
        }
        found.damage.get_or_insert(error);
    }
    Ok(Opened { found, usage, is_clean })
}

/// Refuses a slot that claims many more segments than its usage table has entries (O14). Segments
/// that a growth added have no entries yet. A growth adds at most as many segments as there are, or
/// [`GROWTH_SEGMENTS_MAX`] if that is more.
pub(crate) fn check_growth(entries: usize, segments: u32) -> Result<()> {
    let known = entries as u64;
    let most = known + known.max(GROWTH_SEGMENTS_MAX);
    match u64::from(segments) > most {
        true => Err(corrupt(
            "superblock slot",
            format!(
                "{segments} segments, and {known} in the usage table: at most {most} are believed"
            ),
        )),
        false => Ok(()),
    }
}

/// Reads the usage table of a checkpoint.
pub(crate) async fn usage_entries(tree: &Tree, superblock: &Superblock) -> Result<Vec<Entry>> {
    let root = root_of(superblock, USAGE_TREE)?;
    let (mut entries, mut cursor) = (Vec::new(), Cursor::all());
    while let Some(found) = cursor.next(tree, &root).await? {
        let (key, item) = found.decode(tree.geometry())?;
        match (key, item) {
            (Key::Usage(first), Item::Usage(usage)) if first as usize == entries.len() => {
                entries.extend(usage.iter());
                if entries.len() > superblock.segment_count as usize {
                    let text = format!("more entries than {} segments", superblock.segment_count);
                    return Err(corrupt("usage table", text));
                }
            }
            _ => return Err(corrupt("usage table", format!("{key:?} at {}", entries.len()))),
        }
    }
    Ok(entries)
}

/// Marks the places of all nodes of the newest checkpoint as used. Nodes that only the checkpoint
/// before it leads to are held. Returns the places of the nodes of the usage table.
async fn find_nodes(
    tree: &Tree,
    newest: &Superblock,
    older: Option<&Superblock>,
    state: &mut State,
) -> Result<Vec<[Place; 2]>> {
    state.adopt_trees();
    let (mut count, mut usage) = (0, Vec::new());
    let roots = [FILES_TREE, USAGE_TREE].map(|tree| root_of(newest, tree));
    for root in roots {
        let root = root?;
        let mut seen = |places: [Place; 2]| {
            for place in places {
                if !state.note_node(place) {
                    let text =
                        format!("tree {}: a node at {place:?}, not a place for one", root.tree);
                    return Err(corrupt("tree", text));
                }
            }
            match root.tree {
                USAGE_TREE => usage.push(places),
                _ => count += 1,
            }
            Ok(true)
        };
        tree.places(&root, &mut seen).await?;
    }
    state.set_node_count(count);
    for older in older.into_iter() {
        for root in [FILES_TREE, USAGE_TREE].iter().filter_map(|tree| root_of(older, *tree).ok()) {
            let mut seen = |places: [Place; 2]| {
                let new = places.iter().filter(|place| state.note_node(**place));
                let new: Vec<Place> = new.copied().collect();
                let more = !new.is_empty();
                state.hold_nodes(new);
                Ok(more)
            };
            if let Err(error) = tree.places(&root, &mut seen).await {
                log::warn!("the checkpoint before the newest cannot be read: {error}");
            }
        }
    }
    state.free_empty_trees();
    Ok(usage)
}

/// The checkpoint that an opening makes before the one that begins its generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum First {
    None,
    /// The newest one once more: it frees what only the one before it needs (O16).
    Repeat,
    /// Behind a part of the log (bounded.R27).
    Part,
    /// At the end of the log, to free the log's segments (O15).
    Whole,
}

/// What an opening does first, because the volume has too few free segments or places for nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Frees {
    Nothing,
    /// It repeats the newest checkpoint (O16).
    Older,
    /// It makes a checkpoint of the log (O15).
    Log,
}

impl Frees {
    /// What an opening tries next, after it has done this and still finds too little space.
    pub fn next(self) -> Option<Self> {
        match self {
            Self::Nothing => Some(Self::Older),
            Self::Older => Some(Self::Log),
            Self::Log => None,
        }
    }
}

impl Opened {
    /// Prepares the state for writing: a new generation, and a new log segment. Segments that are
    /// dead in the two newest checkpoints, of which `newest` is the newer, become free first. If a
    /// checkpoint has to come before that, this returns which. `frees`: what is to become free by
    /// it.
    pub fn prepare(
        &mut self,
        device: &DeviceRef,
        newest: u64,
        plant: Plant,
        frees: Frees,
    ) -> Result<First> {
        self.check_damage()?;
        log::debug!("{}: {} records of the log applied", device.name(), self.found.records);
        let Found { state, head, rest, end, .. } = &mut self.found;
        if frees == Frees::Older {
            return Ok(First::Repeat);
        }
        let first = match (*rest, *end) {
            // Records remain to be applied: the log goes on with their generation.
            (Some(_), _) => First::Part,
            (None, Some(end)) if frees == Frees::Log => {
                // As in a replay in parts, the segment there does not die (bounded.R28).
                end.segment.into_iter().for_each(|segment| state.keep_alive(segment));
                // The youngest generation: no record or segment behind the end attaches to it.
                *head = Head { generation: head.generation, ..end };
                First::Whole
            }
            _ => {
                self.begin_generation(newest, plant)?;
                return Ok(First::None);
            }
        };
        state.reclaim(newest);
        Ok(first)
    }

    fn check_damage(&self) -> Result<()> {
        if let Some(damage) = &self.found.damage {
            let text = format!("{damage}; it can be opened for reading");
            let error = Error::new(damage.kind(), "open", text);
            return Err(match damage.range() {
                Some((offset, len)) => error.with_range(offset, len),
                None => error,
            });
        }
        Ok(())
    }

    fn begin_generation(&mut self, newest: u64, plant: Plant) -> Result<()> {
        let Found { state, head, .. } = &mut self.found;
        head.generation = head.generation.saturating_add(UNRECORDED_GENERATIONS);
        // Birth numbers that were drawn and never recorded must not be drawn again.
        state.skip_sequences(UNRECORDED_BIRTHS);
        if plant.has(Planted::InodesCountedAnew) && !self.is_clean && self.found.records == 0 {
            self.found.state.restart_inos();
        }
        let Found { state, head, .. } = &mut self.found;
        head.previous = head.segment.or(head.previous);
        state.reclaim(newest);
        if plant.has(Planted::TailReused) && head.segment.is_some() {
            return Ok(());
        }
        fresh_head(state, head)
    }
}

/// Moves the head of the log into a segment to which nothing has been written.
pub(crate) fn fresh_head(state: &mut State, head: &mut Head) -> Result<()> {
    (head.segment, head.offset) = (Some(state.take_first_log()?), 0);
    Ok(())
}
