//! Collects the live data of segments to clean: one pass through the extents of the tree, then
//! sorted by place. So it is read as it lies on the device, and one segment is emptied before the
//! next.
//!
//! Invariants: clean.C45, see [`crate::clean`]. M33 extents that were found in an older tree are
//! looked up again before they are copied, but the pass need not be repeated. A sealed segment gets
//! no new content, and the parts of a split extent lie either below the key at which it was found,
//! or after the cursor. M34 the list takes [`FOUND_BYTES`] for each extent and 4 for each block,
//! and the choice of segments bounds it. M36 no more blocks of a segment are listed than were
//! counted when it was picked: if the tree has more, the usage table is wrong, and the segment is
//! not cleaned. An extent that a checkpoint splits at the cursor may be listed twice, once more for
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

/// Extents that are scanned before the task yields.
const LOOK_AT_ONCE: usize = 8192;
/// Leaves of the tree that are read ahead.
const LEAVES_AHEAD: usize = 31;

/// Value of `sums_at` for an extent without sums.
const NO_SUMS: u32 = u32::MAX;

/// An extent, or a part of one, that was found.
struct Found {
    data_id: u64,
    block: u64,
    birth: u64,
    from: Place,
    blocks: u32,
    /// Index of its first sum in `sums`, one for each block; or [`NO_SUMS`].
    sums_at: u32,
}

const _: () = assert!(size_of::<Found>() as u64 == FOUND_BYTES, "M34");

/// The live data in the segments of a pass.
pub(super) struct Gathered {
    /// The tree in which all extents were found; `None`: the tree changed during the pass (M33).
    pub root: Option<TreeRoot>,
    found: Vec<Found>,
    sums: Vec<u32>,
    counted: Counted,
}

/// Blocks that may still be listed (M36).
#[derive(Clone, Default)]
struct Counted {
    /// Remaining blocks, by segment.
    left: BTreeMap<u32, u64>,
    /// Blocks that may be found twice.
    twice: u64,
    /// Segments that have more live blocks than were counted.
    wrong: BTreeSet<u32>,
}

impl Counted {
    /// Whether a run of `blocks` blocks in the segment may be listed.
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

    /// Segments with more live data than was counted (M36).
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

    /// Sorts by place, and removes what was found twice: as a complete extent, and as a part of it
    /// after a split.
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

    /// Number of extents.
    pub fn len(&self) -> usize {
        self.found.len()
    }

    /// The segment of extent `n`.
    pub fn segment(&self, n: usize) -> Option<u32> {
        self.found.get(n).map(|found| found.from.segment)
    }

    /// Memory of the list, bytes.
    fn bytes(&self) -> u64 {
        FOUND_BYTES * self.found.capacity() as u64 + 4 * self.sums.capacity() as u64
    }

    /// Approximate size of the buffers for all found extents, bytes.
    pub fn copied_bytes(&self, unit: u64) -> u64 {
        self.found.iter().map(|found| (u64::from(found.blocks) * unit).max(BUFFER_LEAST)).sum()
    }

    /// Extents from number `first` on, of about `bytes` bytes, at most `most` extents, and at least
    /// one.
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
    /// Collects all live data of these segments (clean.C45).
    pub(super) async fn gather(&self, victims: &Victims) -> Result<Gathered> {
        let (mut root, counted) = {
            let state = self.state.lock();
            (state.tree().root(), self.counted(&state, victims))
        };
        let mut all = Gathered::new(root, counted);
        let mut next = Some(Key::Extent(1, 0).to_bytes());
        while let Some(from) = next {
            self.check_open()?;
            let (found, sums, counted) = (all.found.len(), all.sums.len(), all.counted.clone());
            let part = self.gather_below(&root, victims, from, &mut all).await;
            let now = self.state.lock().tree().root();
            if now == root {
                next = match part {
                    // Data found before is moved: one bad leaf does not prevent all cleaning.
                    Err(e) if e.kind() == ErrorKind::Corrupt && !all.found.is_empty() => {
                        log::warn!("what lies behind is not cleaned: {e}");
                        None
                    }
                    part => part?,
                };
            } else {
                // The last leaf may have been read from a place that was reused.
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

    /// Live blocks of these segments, as the newest checkpoint has counted them.
    fn counted(&self, state: &State, victims: &Victims) -> Counted {
        let unit = self.layout.block_bytes();
        let live =
            |segment: &u32| state.space().segments().get(*segment).map(|s| s.live_bytes / unit);
        let left = victims.iter().map(|segment| (*segment, live(segment).unwrap_or(0))).collect();
        Counted { left, ..Counted::default() }
    }

    /// Records the memory that a pass uses for the list and for copies.
    pub(super) fn note_cleaning(&self, found: &Gathered, copies: u64) {
        let held = {
            let mut state = self.state.lock();
            state.set_cleaning_bytes(found.bytes() + copies);
            state.held()
        };
        self.note_memory(held);
    }

    /// Scans some extents of a tree, and lists those in victims. Returns the position to continue
    /// from; `None`: the end.
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
                // Most extents lie in other segments, and need not be decoded.
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

    /// The story: an extent was found, a checkpoint split it, and the part after the cursor was
    /// found again.
    #[test]
    fn m33_extent_found_twice_is_moved_once() {
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

    /// M36. The story: for an image whose usage table counted too little, all live data in the tree
    /// was listed, however much. The cleaner had reserved space for the counted part only.
    #[test]
    fn m36_no_more_is_listed_than_was_counted() {
        let setup = setup(0);
        let disk = setup.blank();
        let (victims, model) = disk.world().run(async {
            let (volume, _file, model) = sparse_of(&setup, &disk, None, 144).await;
            let unit = volume.0.layout.block_bytes();
            let victims: Victims = {
                let mut state = volume.0.state.lock();
                let has_some = |s: &crate::space::segment::Segment| {
                    s.phase == Phase::Sealed && s.live_bytes == 2 * unit
                };
                let victims =
                    state.space().segments().iter().filter(|(_, s)| has_some(s)).map(|(n, _)| n);
                let victims: Victims = victims.collect();
                victims.iter().for_each(|segment| state.say_live(*segment, unit));
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
            let phase = |n: &u32| volume.0.state.lock().space().segments().get(*n).unwrap().phase;
            assert!(victims.iter().all(|n| phase(n) == Phase::Sealed), "what is there stays");
            assert_eq!(found(&volume, model.len()).await.unwrap(), model);
        });
        disk.world().stop();
    }
}
