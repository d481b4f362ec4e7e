//! Finds what is live in segments that are cleaned: once through the extents of the tree, and then
//! in the order of places, so that it is read as it lies, and one segment is done before the next
//! begins.
//!
//! Invariants: C45, see [`crate::clean`]. M33 what was found of a tree that is not the newest any
//! more is looked up again before it is copied; but nothing has to be found anew: no content comes
//! to a segment that is sealed, and what is cut in parts stays below the key that it was found by,
//! or behind the cursor. M34 what is found takes [`FOUND_BYTES`] for each extent and 4 for each
//! block, and is bounded with what is picked. M36 of a segment no more blocks are listed than were
//! counted there when it was picked: where the tree has more the usage table is wrong, and the
//! segment stays as it is. An extent that was cut where the cursor stood may come once more for
//! each checkpoint.
//!
//! Lock: the state lock; none across a wait.

use super::Cleaner;
use super::live::{BUFFER_LEAST, FOUND_BYTES, Live, Victims};
use crate::btree::Cursor;
use crate::format::corrupt;
use crate::format::extent::{Extent, Source, UNWRITTEN, stored_segment};
use crate::format::item::Item;
use crate::format::key::{Key, KeyBytes};
use crate::format::place::Place;
use crate::format::superblock::TreeRoot;
use crate::format::{MAX_DATA_ID, MAX_EXTENT_BLOCKS};
use crate::transaction::state::State;
use forebay_base::task::yield_now;
use forebay_base::{ErrorKind, Result};
use std::collections::{BTreeMap, BTreeSet};

/// Extents that are looked at before the task yields.
const LOOK_AT_ONCE: usize = 8192;
/// Leaves of the tree that are read ahead of the one that is looked at.
const LEAVES_AHEAD: usize = 31;

/// An extent has none.
const NO_SUMS: u32 = u32::MAX;

/// An extent, or a part of one.
struct Found {
    data_id: u64,
    block: u64,
    birth: u64,
    from: Place,
    blocks: u32,
    /// Where its sums are, behind one another, one for each block; [`NO_SUMS`].
    sums_at: u32,
}

const _: () = assert!(size_of::<Found>() as u64 == FOUND_BYTES, "M34");

/// What is live in the segments of a pass.
pub(super) struct Gathered {
    /// The tree that all of it was found in; none: it was another one before the end (M33).
    pub root: Option<TreeRoot>,
    found: Vec<Found>,
    sums: Vec<u32>,
    counted: Counted,
}

/// What may be found still (M36).
#[derive(Clone, Default)]
struct Counted {
    /// Blocks, by segment.
    left: BTreeMap<u32, u64>,
    /// Blocks that may be found twice.
    twice: u64,
    /// Segments that have more.
    wrong: BTreeSet<u32>,
}

impl Counted {
    /// Whether a run of so many blocks may be there.
    fn take(&mut self, segment: u32, blocks: u64) -> bool {
        if self.wrong.contains(&segment) {
            return false;
        }
        let left = self.left.entry(segment).or_default();
        let lacks = blocks.saturating_sub(*left);
        if lacks > self.twice {
            self.wrong.insert(segment);
            return false;
        }
        *left -= blocks - lacks;
        self.twice -= lacks;
        true
    }
}

impl Gathered {
    fn new(root: TreeRoot, counted: Counted) -> Self {
        Self { root: Some(root), found: Vec::new(), sums: Vec::new(), counted }
    }

    /// Segments in which more is live than was counted (M36).
    pub fn wrong(&self) -> &BTreeSet<u32> {
        &self.counted.wrong
    }

    fn put(&mut self, data_id: u64, block: u64, from: Place, extent: &Extent<'_>) {
        if !self.counted.take(from.segment, u64::from(extent.blocks)) {
            return;
        }
        let (blocks, sums_at) = (u32::from(extent.blocks), self.sums.len() as u32);
        self.sums.extend(extent.sums.iter_crc32c());
        let sums_at = if self.sums.len() as u32 == sums_at { NO_SUMS } else { sums_at };
        self.found.push(Found { data_id, block, birth: extent.birth, from, blocks, sums_at });
    }

    /// In the order of places. What was found twice, as a whole and then as a part of what was left
    /// of it, is there once.
    fn sort(&mut self, unit: u64) {
        let at = |found: &Found| (found.from.segment, found.from.offset);
        self.found.sort_unstable_by_key(|found| (at(found), std::cmp::Reverse(found.blocks)));
        let mut end = (0, 0);
        self.found.retain(|found| {
            let upto = u64::from(found.from.offset) + u64::from(found.blocks) * unit;
            let is_new = (found.from.segment, upto) > end;
            end = end.max((found.from.segment, upto));
            is_new
        });
    }

    /// How much there is.
    pub fn len(&self) -> usize {
        self.found.len()
    }

    /// The segment that number `n` lies in.
    pub fn segment(&self, n: usize) -> Option<u32> {
        self.found.get(n).map(|found| found.from.segment)
    }

    /// What this takes in memory.
    fn bytes(&self) -> u64 {
        FOUND_BYTES * self.found.capacity() as u64 + 4 * self.sums.capacity() as u64
    }

    /// Bytes that all of it takes in buffers, about.
    pub fn copied_bytes(&self, unit: u64) -> u64 {
        self.found.iter().map(|found| (u64::from(found.blocks) * unit).max(BUFFER_LEAST)).sum()
    }

    /// From number `first` on, as many as have about so many bytes, and no more than `most`: at
    /// least one.
    pub fn some(&self, first: usize, bytes: u64, most: u64, unit: u64) -> Vec<Live> {
        let (mut live, mut sum) = (Vec::new(), 0);
        for found in self.found[first..].iter().take(most.max(1) as usize) {
            let blocks = u64::from(found.blocks);
            sum += blocks * unit;
            if sum > bytes && !live.is_empty() {
                break;
            }
            let sums_at = found.sums_at as usize;
            let sums = self.sums.get(sums_at..sums_at + blocks as usize).unwrap_or_default();
            let Found { data_id, block, birth, from, .. } = *found;
            let (sums, to, turn) = (sums.to_vec(), from, 0);
            live.push(Live { data_id, block, blocks, birth, from, sums, to, turn });
        }
        live
    }
}

impl Cleaner {
    /// All that is live in these segments (C45).
    pub(super) async fn gather(&self, victims: &Victims) -> Result<Gathered> {
        let (mut root, counted) = {
            let state = self.state.lock();
            (state.root, self.counted(&state, victims))
        };
        let mut all = Gathered::new(root, counted);
        let mut next = Some(Key::Extent(1, 0).to_bytes());
        while let Some(from) = next {
            self.check_open()?;
            let (found, sums, counted) = (all.found.len(), all.sums.len(), all.counted.clone());
            let part = self.gather_below(&root, victims, from, &mut all).await;
            let now = self.state.lock().root;
            if now == root {
                next = match part {
                    // What lies before is moved: one bad leaf does not keep all from being cleaned.
                    Err(e) if e.kind() == ErrorKind::Corrupt && !all.found.is_empty() => {
                        log::warn!("what lies behind is not cleaned: {e}");
                        None
                    }
                    part => part?,
                };
            } else {
                // What was read last may be of places that were used again.
                all.found.truncate(found);
                all.sums.truncate(sums);
                (root, all.root, all.counted) = (now, None, counted);
                all.counted.twice += u64::from(MAX_EXTENT_BLOCKS);
            }
            self.note_cleaning(&all, 0);
            yield_now().await;
        }
        if !all.wrong().is_empty() {
            log::error!("more is live than was counted in segments {:?}: they stay", all.wrong());
            let Gathered { found, counted, .. } = &mut all;
            found.retain(|found| !counted.wrong.contains(&found.from.segment));
        }
        all.sort(self.layout.block_bytes());
        all.found.shrink_to_fit();
        all.sums.shrink_to_fit();
        Ok(all)
    }

    /// Blocks that are live in these segments, as the newest checkpoint has counted them.
    fn counted(&self, state: &State, victims: &Victims) -> Counted {
        let unit = self.layout.block_bytes();
        let live = |segment: &u32| state.space.segments.get(*segment).map(|s| s.live_bytes / unit);
        let left = victims.iter().map(|segment| (*segment, live(segment).unwrap_or(0))).collect();
        Counted { left, ..Counted::default() }
    }

    /// What a pass has found, and what it copies with, takes so much memory.
    pub(super) fn note_cleaning(&self, found: &Gathered, copies: u64) {
        let held = {
            let mut state = self.state.lock();
            state.cleaning_bytes = found.bytes() + copies;
            state.held()
        };
        self.note_memory(held);
    }

    /// Some extents of a tree, those of them that lie in victims. Where to go on; none: that was
    /// all.
    async fn gather_below(
        &self,
        root: &TreeRoot,
        victims: &Victims,
        from: KeyBytes,
        all: &mut Gathered,
    ) -> Result<Option<KeyBytes>> {
        let end = Key::Extent(MAX_DATA_ID + 1, 0).to_bytes();
        let mut cursor = Cursor::over(from, Some(end)).with_ahead(LEAVES_AHEAD);
        let mut looked = 0;
        while let Some(leaf) = cursor.leaf(&self.tree, root).await? {
            for found in leaf.iter() {
                // Most lie elsewhere, and need not be decoded for that.
                if stored_segment(found.raw().1).is_some_and(|at| !victims.contains(&at)) {
                    continue;
                }
                let (Key::Extent(data_id, block), Item::Extent(extent)) =
                    found.decode(&self.layout.geometry)?
                else {
                    return Err(corrupt("tree", "something else among extents"));
                };
                if let Source::Run(from) = extent.source
                    && victims.contains(&from.segment)
                    && extent.flags & UNWRITTEN == 0
                {
                    all.put(data_id, block, from, &extent);
                }
            }
            looked += leaf.len();
            if looked >= LOOK_AT_ONCE {
                return Ok(cursor.place());
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::btree::empty_root;
    use crate::format::extent::Sums;
    use crate::format::place::Geometry;
    use crate::format::superblock::FILES_TREE;
    use crate::space::segment::Phase;
    use crate::tests::clean::{found, sparse_of};
    use crate::tests::reuse::{open, setup};
    use forebay_base::sim_world::SimWorld;

    /// An extent was found, a checkpoint cut it, and what was left behind the cursor was found
    /// again.
    #[test]
    fn m33_what_is_found_twice_is_moved_once() {
        let geometry = Geometry::with_segment_shift(20);
        let unit = geometry.block_bytes();
        let counted = Counted { left: [(1, 2), (2, 11)].into(), ..Counted::default() };
        let mut all = Gathered::new(empty_root(FILES_TREE, 0), counted);
        let mut put = |segment: u32, block: u32, blocks: u16| {
            let from = Place::new(segment, block * unit);
            let sums: Vec<u8> = (0..u32::from(blocks)).flat_map(|n| n.to_le_bytes()).collect();
            let (source, sums) = (Source::Run(from), Sums::crc32c(&sums));
            let extent = Extent::plain(source, blocks, 7, sums, &geometry);
            all.put(1, u64::from(block), from, &extent);
        };
        put(2, 0, 8);
        put(1, 3, 1);
        put(2, 6, 2);
        put(2, 8, 1);
        put(1, 0, 1);
        all.sort(u64::from(unit));
        assert_eq!((all.segment(0), all.segment(2), all.segment(4)), (Some(1), Some(2), None));
        let live = all.some(0, u64::MAX, u64::MAX, u64::from(unit));
        let at = |live: &Live| (live.from.segment, live.block, live.blocks, live.sums.len());
        let found: Vec<_> = live.iter().map(at).collect();
        assert_eq!(found, [(1, 0, 1, 1), (1, 3, 1, 1), (2, 0, 8, 8), (2, 8, 1, 1)]);
        assert_eq!(all.some(1, 1, 9, u64::from(unit)).len(), 1, "one at least");
        assert_eq!(all.some(0, u64::MAX, 3, u64::from(unit)).len(), 3, "three at most");
    }

    /// M36: an image whose usage table says that little is live had everything listed that the tree
    /// has there, however much; and the cleaner counted on room for what the table said.
    #[test]
    fn m36_no_more_is_listed_than_was_counted() {
        let setup = setup(0);
        let disk = setup.blank();
        let (victims, model) = disk.world().run(async {
            let (volume, _file, model) = sparse_of(&setup, &disk, None, 144).await;
            let unit = volume.0.layout.block_bytes();
            let victims: Victims = {
                let segments = &mut volume.0.state.lock().space.segments;
                let has_some = |s: &crate::space::segment::Segment| {
                    s.phase == Phase::Sealed && s.live_bytes == 2 * unit
                };
                let victims = segments.iter().filter(|(_, s)| has_some(s)).map(|(n, _)| n);
                let victims: Victims = victims.collect();
                victims.iter().for_each(|segment| segments.say_live(*segment, unit));
                victims
            };
            volume.close().await.unwrap();
            (victims, model)
        });
        disk.world().stop();
        assert!(victims.len() > 4, "{victims:?}");
        let disk = disk.in_world(SimWorld::new(2));
        disk.world().run(async {
            let volume = open(&setup, &disk).await.unwrap();
            let gathered = volume.0.cleaner.gather(&victims).await.unwrap();
            assert_eq!(gathered.wrong(), &victims);
            let listed = (gathered.len(), gathered.sums.len());
            assert!(listed.0 == 0 && listed.1 <= victims.len(), "M36: {listed:?}");
            while volume.clean().await.unwrap() {
                volume.checkpoint().await.unwrap();
            }
            let phase = |n: &u32| volume.0.state.lock().space.segments.get(*n).unwrap().phase;
            assert!(victims.iter().all(|n| phase(n) == Phase::Sealed), "what is there stays");
            assert_eq!(found(&volume, model.len()).await.unwrap(), model);
        });
        disk.world().stop();
    }
}
