//! Moves what is live in some segments: once through the extents of the tree, in the order of keys, so that
//! what is of one file comes to lie together.
//!
//! Invariants: those of [`crate::clean`]. M31 what was read of the tree counts only while that is the tree:
//! another root, and it is read again; what was copied is not copied again for that.
//!
//! Locks: the state lock, the log's and the turn in turn; none across a wait.

use super::Hurry;
use super::copy::Flight;
use super::pick::Victims;
use crate::admit::Growth;
use crate::aops::CHANGE_BYTES;
use crate::btree::Cursor;
use crate::checkpoint::How;
use crate::fault::Planted;
use crate::format::MAX_DATA_ID;
use crate::format::change::Change;
use crate::format::corrupt;
use crate::format::extent::{Extent, Source, Sums, UNWRITTEN, put_crc32c};
use crate::format::item::Item;
use crate::format::key::Key;
use crate::format::place::Place;
use crate::format::superblock::TreeRoot;
use crate::pending::Where;
use crate::segment::{Phase, Pin};
use crate::space::Need;
use crate::state::{MAP_ITEM_BYTES, State};
use crate::tx::Content;
use crate::volume::Inner;
use forebay_base::task::yield_now;
use forebay_base::units::MIB;
use forebay_base::world::Nanos;
use forebay_base::{Error, ErrorKind, Result};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// Bytes that are copied before they are flushed and moved.
const ROUND_BYTES: u64 = 8 * MIB;
/// Extents that are looked at before somebody else may.
const LOOK_AT_ONCE: usize = 8192;
/// In the background: a round is followed by a pause of so many times its length, where nearly nothing has
/// to be cleaned.
const PAUSE_MOST: u64 = 4;
/// And not longer: somebody may come who waits for room.
const PAUSE_MAX: Duration = Duration::from_millis(100);
/// Leaves of the tree that are read at once, beside the one that is looked at.
const LEAVES_AHEAD: usize = 31;
/// Pieces that are said to be moved in one hold of the lock.
const SAY_AT_ONCE: usize = 64;

/// What became of a round.
enum Moved {
    Done,
    /// The tree is another one by now.
    Again,
    /// There is no room for copies, or for saying where they are.
    NoRoom,
}

/// Blocks that are live in a segment that is being cleaned.
#[derive(Clone)]
pub(super) struct Live {
    pub data_id: u64,
    pub block: u64,
    pub blocks: u64,
    pub birth: u64,
    pub from: Place,
    pub sums: Vec<u32>,
    /// Where they are copied to.
    pub to: Place,
}

impl Live {
    fn end(&self, unit: u64) -> [u64; 2] {
        [self.from, self.to].map(|at| u64::from(at.offset) + self.blocks * unit)
    }

    /// Whether it lies right behind another one, where it is and where it goes.
    pub fn goes_on(&self, last: &Self, unit: u64) -> bool {
        let segments = self.from.segment == last.from.segment && self.to.segment == last.to.segment;
        segments && last.end(unit) == [self.from, self.to].map(|at| u64::from(at.offset))
    }

    pub fn part(&self, skip: u64, blocks: u64, unit: u64) -> Self {
        let after = |at: Place| Place::new(at.segment, at.offset + (skip * unit) as u32);
        let sums = self.sums.get(skip as usize..(skip + blocks) as usize).unwrap_or_default();
        let (from, to) = (after(self.from), after(self.to));
        Self { block: self.block + skip, blocks, from, to, sums: sums.to_vec(), ..*self }
    }
}

/// What is read of the tree at a time.
struct Gathered {
    root: TreeRoot,
    live: Vec<Live>,
    /// Where to go on; none: that was all.
    next: Option<Key>,
}

/// Room in the log that a round has for what it says; what is over goes back.
struct Ahead<'a> {
    inner: &'a Inner,
    cost: u64,
}

impl Drop for Ahead<'_> {
    fn drop(&mut self) {
        if self.cost > 0 {
            self.inner.state.lock().space.settle(self.cost);
        }
    }
}

/// Segments of which something stays: it is damaged, or could not be read this time.
#[derive(Default)]
struct Left {
    bad: BTreeSet<u32>,
    failed: BTreeSet<u32>,
}

/// What a round may do.
struct Given<'a> {
    /// With their places.
    live: Vec<Live>,
    flight: Arc<Flight>,
    ahead: Ahead<'a>,
}

impl Inner {
    /// Goes through the tree once; how many of the segments it emptied.
    pub(super) async fn move_all(&self, victims: &Victims, hurry: Hurry) -> Result<u64> {
        let mut next = Some(Key::Extent(1, 0));
        let (mut left, mut made_room) = (Left::default(), false);
        // C44: who names a place of theirs names what was there when the pass began.
        let _pins: Vec<Pin> = {
            let state = self.state.lock();
            victims.iter().filter_map(|segment| state.space.segments.pin(*segment)).collect()
        };
        while let Some(from) = next {
            let began = self.world.now();
            let gathered = self.gather(victims, from).await?;
            next = gathered.next;
            if gathered.live.is_empty() {
                continue;
            }
            match self.move_round(&gathered, &mut left).await? {
                Moved::Done => {}
                Moved::Again => next = Some(from),
                // The log comes free again.
                Moved::NoRoom if !made_room => {
                    (made_room, next) = (self.two_checkpoints().await, Some(from));
                    if !made_room {
                        return Ok(0);
                    }
                }
                // What was moved so far has made no segment free yet.
                Moved::NoRoom => return Ok(0),
            }
            self.cleaner.check_open()?;
            if self.is_too_much() {
                self.checkpoint(How::Log).await?;
            }
            self.pause(hurry, began).await;
        }
        let Left { bad, failed } = left;
        let emptied: Victims = victims.difference(&failed).copied().collect();
        self.note_tried(&emptied, &bad);
        Ok(emptied.difference(&bad).count() as u64)
    }

    /// What was moved takes much of what waits for a checkpoint.
    fn is_too_much(&self) -> bool {
        self.state.lock().maps.1 > self.options.overlay_bytes / 2
    }

    /// In the background: the less has to be cleaned, the longer.
    async fn pause(&self, hurry: Hurry, began: Nanos) {
        if hurry == Hurry::Now || self.cleaner.turn.lock().hurried > 0 {
            return;
        }
        let took = self.world.now().saturating_sub(began);
        let pause = Duration::from_nanos(took * PAUSE_MOST * (100 - self.need()) / 100);
        if !pause.is_zero() {
            self.world.sleep(pause.min(PAUSE_MAX)).await;
        }
    }

    /// Reads on in the tree until there is enough for a round (M31).
    async fn gather(&self, victims: &Victims, from: Key) -> Result<Gathered> {
        let root = self.state.lock().root;
        let mut all = Gathered { root, live: Vec::new(), next: Some(from) };
        let mut bytes = 0;
        while let Some(from) = all.next {
            self.cleaner.check_open()?;
            let part = self.gather_below(&all.root, victims, from).await;
            let now = self.state.lock().root;
            if now != all.root {
                // What was read last may be of places that were used again; the rest is looked up again.
                match self.still_in_tree(&now, &all.live).await {
                    Ok(live) => (all.root, all.live) = (now, live),
                    Err(_) if self.state.lock().root != now => {}
                    Err(error) => return Err(error),
                }
                continue;
            }
            let part = part?;
            bytes +=
                part.live.iter().map(|live| live.blocks).sum::<u64>() * self.layout.block_bytes();
            all.live.extend(part.live);
            all.next = part.next;
            if bytes >= ROUND_BYTES {
                break;
            }
            yield_now().await;
        }
        Ok(all)
    }

    /// Some extents of a tree, those of them that lie in victims.
    async fn gather_below(
        &self,
        root: &TreeRoot,
        victims: &Victims,
        from: Key,
    ) -> Result<Gathered> {
        let unit = self.layout.block_bytes();
        let end = Key::Extent(MAX_DATA_ID + 1, 0);
        let mut cursor = Cursor::new(from, Some(end)).with_ahead(LEAVES_AHEAD);
        let (mut live, mut bytes, mut looked) = (Vec::new(), 0, 0);
        while let Some(found) = cursor.next(&self.tree, root).await? {
            let (Key::Extent(data_id, block), Item::Extent(extent)) =
                found.decode(&self.layout.geometry)?
            else {
                return Err(corrupt("tree", "something else among extents"));
            };
            if let Source::Run(from) = extent.source
                && victims.contains(&from.segment)
                && extent.flags & UNWRITTEN == 0
            {
                let (blocks, birth) = (u64::from(extent.blocks), extent.birth);
                let sums = extent.sums.iter_crc32c().collect();
                live.push(Live { data_id, block, blocks, birth, from, sums, to: from });
                bytes += blocks * unit;
            }
            looked += 1;
            if bytes >= ROUND_BYTES || looked >= LOOK_AT_ONCE {
                let next = Some(Key::Extent(data_id, block + 1));
                return Ok(Gathered { root: *root, live, next });
            }
        }
        Ok(Gathered { root: *root, live, next: None })
    }

    /// Of some blocks those that are still where they were (C41), if the tree is still what they were read
    /// of.
    fn still_there(&self, state: &State, live: &Live) -> Vec<Live> {
        let unit = self.layout.block_bytes();
        let (mut there, mut at) = (Vec::new(), 0);
        // It may be in use again.
        let segment = state.space.segments.get(live.from.segment);
        if segment.is_none_or(|segment| segment.phase != Phase::Sealed) {
            return there;
        }
        while at < live.blocks {
            let rest = live.part(at, live.blocks - at, unit);
            let (same, blocks) = match state.known(live.data_id, rest.block) {
                Ok(piece) => (piece.at == Where::Run(rest.from), piece.blocks),
                Err(unknown) => (true, unknown),
            };
            let blocks = blocks.min(rest.blocks);
            there.extend(same.then(|| rest.part(0, blocks, unit)));
            at += blocks;
        }
        there
    }

    /// Copies what is live, and says that it is there (C41 to C43).
    async fn move_round(&self, gathered: &Gathered, left: &mut Left) -> Result<Moved> {
        let Gathered { root, live, .. } = gathered;
        let failures = self.log.failures();
        let given = {
            let mut state = self.state.lock();
            if state.root != *root {
                return Ok(Moved::Again);
            }
            let live: Vec<Live> =
                live.iter().flat_map(|live| self.still_there(&state, live)).collect();
            self.give_places(&mut state, live)
        };
        let Some(Given { live, flight, mut ahead }) = given else { return Ok(Moved::NoRoom) };
        let all: u64 = live.iter().map(|live| live.blocks).sum();
        let copied = self.copy(&live, &flight).await?;
        self.flush_all().await?;
        if self.log.failures() != failures {
            // What failed may have been of these.
            return Err(Error::new(ErrorKind::Io, "clean", "a write or flush failed meanwhile"));
        }
        let mut gone = 0;
        for live in copied.live.chunks(SAY_AT_ONCE) {
            gone += self.say(*root, live.to_vec(), &mut ahead).await?;
        }
        drop((flight, ahead));
        left.bad.extend(&copied.bad);
        left.failed.extend(&copied.failed);
        let unit = self.layout.block_bytes();
        let mut turn = self.cleaner.turn.lock();
        turn.stats.bad_blocks += copied.bad_blocks;
        turn.stats.moved_bytes += gone * unit;
        turn.stats.overtaken_bytes += (all - gone - copied.bad_blocks) * unit;
        Ok(Moved::Done)
    }

    /// Says of copies of what the tree below `root` has that they count, as far as it still has (C41, M31);
    /// how many blocks. What they are copies of is pinned: who still names that place names this content.
    async fn say(
        &self,
        mut root: TreeRoot,
        mut live: Vec<Live>,
        ahead: &mut Ahead<'_>,
    ) -> Result<u64> {
        loop {
            let now = {
                let mut state = self.state.lock();
                if state.root == root || self.plant.has(Planted::CleanerMovesLive) {
                    return self.say_moved(&mut state, &live, ahead);
                }
                state.root
            };
            match self.still_in_tree(&now, &live).await {
                Ok(still) => (root, live) = (now, still),
                // It may be of places that were used again.
                Err(_) if self.state.lock().root != now => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Of some blocks those that this tree has where they were.
    async fn still_in_tree(&self, root: &TreeRoot, live: &[Live]) -> Result<Vec<Live>> {
        let (unit, mut still) = (self.layout.block_bytes(), Vec::new());
        for live in live {
            let mut at = 0;
            while at < live.blocks {
                let rest = live.part(at, live.blocks - at, unit);
                let piece = self.piece_in_tree(root, rest.data_id, rest.block).await?;
                let blocks = piece.blocks.min(rest.blocks);
                if piece.at == Where::Run(rest.from) {
                    still.push(rest.part(0, blocks, unit));
                }
                at += blocks;
            }
        }
        Ok(still)
    }

    /// Places for copies, one behind the other, and room to say so; none if there is none for all of them.
    fn give_places(&self, state: &mut State, live: Vec<Live>) -> Option<Given<'_>> {
        let (unit, bytes) = (self.layout.block_bytes(), self.layout.segment_bytes());
        let wanted = live.iter().map(|live| live.blocks * unit).sum::<u64>();
        let short = wanted.saturating_sub(state.space.clean_left()).div_ceil(bytes);
        let blocks = live.iter().map(|live| live.blocks).sum();
        let (cost, growth) = self.said(live.len() as u64, blocks);
        if short > state.clean_segments() || state.promise(cost, Need::Urgent, growth).is_err() {
            return None;
        }
        let (mut given, mut segments) = (Vec::with_capacity(live.len()), BTreeSet::new());
        'all: for live in live {
            let mut skip = 0;
            while skip < live.blocks {
                // Cannot fail: they were counted above.
                let Ok((at, taken)) = state.space.take_clean((live.blocks - skip) * unit) else {
                    break 'all;
                };
                if segments.insert(at.segment) {
                    state.space.segments.fly(at.segment, 1);
                }
                given.push(Live { to: at, ..live.part(skip, taken / unit, unit) });
                skip += taken / unit;
            }
        }
        let flight = Arc::new(Flight::new(self, segments));
        Some(Given { live: given, flight, ahead: Ahead { inner: self, cost } })
    }

    /// What it takes of the log and of the tree to say where so many extents are.
    pub(super) fn said(&self, extents: u64, blocks: u64) -> (u64, Growth) {
        let body = extents * CHANGE_BYTES + 4 * blocks;
        // No two that follow one another are half empty both, but where the lock is let go.
        let records =
            2 * body.div_ceil(self.layout.max_record() / 2) + extents.div_ceil(SAY_AT_ONCE as u64);
        let cost = body + records * self.layout.cost(CHANGE_BYTES, 0);
        (cost, Growth { entries: 2 * extents, bytes: extents * MAP_ITEM_BYTES + 4 * blocks })
    }

    /// Says what was moved (C41); how many blocks.
    fn say_moved(&self, state: &mut State, copied: &[Live], ahead: &mut Ahead<'_>) -> Result<u64> {
        let mut moved = 0;
        let room = self.layout.max_record() / 2;
        let (mut record, mut used) = (Vec::new(), 0);
        for live in copied {
            let there = match self.plant.has(Planted::CleanerMovesLive) {
                // The mistake: what was overwritten meanwhile counts for nothing.
                true => vec![Live { birth: state.draw(), ..live.clone() }],
                false => self.still_there(state, live),
            };
            for live in there {
                let body = CHANGE_BYTES + 4 * live.blocks;
                if used + body > room && !record.is_empty() {
                    let full = std::mem::take(&mut record);
                    moved += self.append_moved(state, &full, used, ahead)?;
                    used = 0;
                }
                used += body;
                record.push(live);
            }
        }
        if !record.is_empty() {
            moved += self.append_moved(state, &record, used, ahead)?;
        }
        Ok(moved)
    }

    /// `body`: bytes of it, at most.
    fn append_moved(
        &self,
        state: &mut State,
        record: &[Live],
        body: u64,
        ahead: &mut Ahead<'_>,
    ) -> Result<u64> {
        let promised = ahead.cost.min(self.layout.cost(body, 0));
        ahead.cost -= promised;
        state.space.settle(promised);
        let geometry = &self.layout.geometry;
        let stored: Vec<Vec<u8>> = record
            .iter()
            .map(|live| {
                let mut bytes = Vec::new();
                put_crc32c(&live.sums, &mut bytes);
                bytes
            })
            .collect();
        let mut changes = Vec::with_capacity(record.len());
        for (live, sums) in record.iter().zip(&stored) {
            let sums = if sums.is_empty() { Sums::NONE } else { Sums::crc32c(sums) };
            let (source, blocks) = (Source::Run(live.to), live.blocks as u16);
            let extent = Extent::plain(source, blocks, live.birth, sums, geometry);
            changes.push(Change::Map(live.data_id, live.block, extent));
        }
        state.append_with(&changes, Content::default(), Need::Urgent)?;
        Ok(record.iter().map(|live| live.blocks).sum())
    }
}
