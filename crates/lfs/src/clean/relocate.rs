//! Moves the live data of segments, one segment after the other, so that emptied segments can
//! become free before the pass ends. Data that is copied together is sorted by key, so that the
//! data of one file becomes adjacent.
//!
//! Invariants: those of [`crate::clean`]. M31 a lookup in the tree is valid only as long as that is
//! the newest tree: after a new root it is repeated, but data is not copied again.
//!
//! Locks: the state lock, the log's and the cleaner's record in turn; none across a wait.

use super::copy::{COPY_TIMES, Flight, in_order};
use super::live::{Live, Victims};
use super::{Cleaner, Emptied, Hurry};
use crate::btree::InOrder;
use crate::checkpoint::How;
use crate::fault::Planted;
use crate::files::parts::CHANGE_BYTES;
use crate::format::change::Change;
use crate::format::extent::{Extent, Source, Sums, put_crc32c};
use crate::format::superblock::TreeRoot;
use crate::map::lookup::piece_in_order;
use crate::map::overlay::Where;
use crate::space::admission::{Growth, MAP_ITEM_BYTES};
use crate::space::segment::{Phase, Pin};
use crate::space::{Ask, Grant, Need};
use crate::transaction::append::Content;
use crate::transaction::state::State;
use forebay_base::Result;
use forebay_base::units::MIB;
use forebay_base::world::Nanos;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// Most bytes that are copied before they are flushed and recorded: this amount, or this share of a
/// volume if that is less.
const ROUND_BYTES: u64 = 16 * MIB;
const ROUND_SHARE: u64 = 64;
/// In the background a round is followed by a pause, of at most this multiple of the round's
/// duration, if nearly nothing has to be cleaned.
const PAUSE_MOST: u64 = 4;
/// There is no pause if more than this percentage of the wanted free space is missing.
const PAUSE_BELOW: u64 = 50;
/// Longest pause, because a task that waits for space may arrive.
const PAUSE_MAX: Duration = Duration::from_millis(100);
/// Pieces that are recorded as moved in one hold of the lock.
const SAY_AT_ONCE: usize = 64;

/// Result of a round.
enum Moved {
    Done,
    /// There is no space for copies, or for their records.
    NoRoom,
}

/// Log space and nodes that a round has reserved for its records; the unused rest is released.
struct Ahead<'a> {
    cleaner: &'a Cleaner,
    grant: Grant,
}

impl Ahead<'_> {
    /// Releases the reservation for one record, whose append counts that space itself.
    fn give(&mut self, state: &mut State, cost: u64, growth: Growth) {
        state.end_grant(self.grant.split(cost, growth));
    }
}

impl Drop for Ahead<'_> {
    fn drop(&mut self) {
        self.cleaner.state.lock().end_grant(std::mem::take(&mut self.grant));
    }
}

/// Segments in which some data stays: damaged or uncounted data, or data that could not be read
/// this time.
#[derive(Default)]
struct Left {
    bad: BTreeSet<u32>,
    failed: BTreeSet<u32>,
}

/// Reservations of a round.
struct Given<'a> {
    /// Live data with its new places.
    live: Vec<Live>,
    flight: Arc<Flight>,
    ahead: Ahead<'a>,
}

/// A segment of a pass.
struct Victim {
    _pin: Pin,
    /// The bytes that were live when it was picked.
    live_bytes: u64,
}

/// Segments that a pass has emptied, and those that remain. The remaining ones are pinned
/// (clean.C44).
struct Doing {
    /// The remaining segments.
    victims: BTreeMap<u32, Victim>,
    left: Left,
    emptied: Emptied,
    /// Bytes that will have become free when the segments emptied since the last checkpoint are.
    gained: u64,
}

impl Cleaner {
    /// Moves the live data of these segments, one after the other; returns those that it emptied,
    /// also after an error.
    pub(super) async fn move_all(&self, victims: &Victims, hurry: Hurry) -> (Emptied, Result<()>) {
        let pinned = {
            let state = self.state.lock();
            let pin = |segment: &u32| {
                let live_bytes = state.space().segments().get(*segment)?.live_bytes;
                let _pin = state.space().segments().pin(*segment)?;
                Some((*segment, Victim { _pin, live_bytes }))
            };
            victims.iter().filter_map(pin).collect()
        };
        let (left, emptied) = (Left::default(), Emptied::default());
        let mut doing = Doing { victims: pinned, left, emptied, gained: 0 };
        let done = self.move_each(victims, hurry, &mut doing).await;
        (doing.emptied, done)
    }

    async fn move_each(&self, victims: &Victims, hurry: Hurry, doing: &mut Doing) -> Result<()> {
        let gathered = self.gather(victims).await?;
        // These segments are not emptied, and not picked again.
        doing.left.bad.extend(gathered.wrong());
        let ahead = gathered.copied_bytes(self.layout.block_bytes()).min(self.ahead_bytes());
        self.note_cleaning(&gathered, COPY_TIMES * ahead);
        let (unit, mut at) = (self.layout.block_bytes(), 0);
        let volume = u64::from(self.layout.segments) * self.layout.segment_bytes();
        let mut most = (volume / ROUND_SHARE).clamp(unit, ROUND_BYTES);
        while at < gathered.len() {
            let began = self.world.now();
            let live = gathered.some(at, most, self.pieces_max(), unit);
            let count = live.len();
            match self.move_round(gathered.root, live, &mut doing.left).await? {
                Moved::Done => at += count,
                // Checkpoints free log space and nodes; then smaller rounds are tried.
                Moved::NoRoom if most > unit && self.checkpoints.make_two().await => {
                    most = (most / 4).max(unit);
                }
                Moved::NoRoom => break,
            }
            self.done_with(doing, gathered.segment(at));
            self.check_open()?;
            if self.is_too_much() || self.is_waited_for(doing) {
                self.checkpoints.make_and_free(How::Log).await?;
                doing.gained = 0;
                self.cleaning.note_freed();
            }
            self.pause(hurry, began).await;
        }
        if at >= gathered.len() {
            self.done_with(doing, None);
        }
        Ok(())
    }

    /// Releases the segments before `next`, whose live data was moved as far as possible: they may
    /// be reused when they are free.
    fn done_with(&self, doing: &mut Doing, next: Option<u32>) {
        let rest = next.map_or_else(BTreeMap::new, |next| doing.victims.split_off(&next));
        let ended = std::mem::replace(&mut doing.victims, rest);
        let Left { bad, failed } = &doing.left;
        let done: Victims = ended.keys().filter(|n| !failed.contains(n)).copied().collect();
        self.note_tried(&done, bad);
        let state = self.state.lock();
        for segment in done.difference(bad) {
            let live = state.space().segments().get(*segment).map_or(0, |this| this.live_bytes);
            doing.gained += self.layout.segment_bytes().saturating_sub(live);
            doing.emptied.segments += 1;
            doing.emptied.bytes += self.layout.segment_bytes();
            doing.emptied.live_bytes += ended[segment].live_bytes;
        }
    }

    /// Whether a task waits for space that the emptied segments can provide without the rest of the
    /// pass.
    fn is_waited_for(&self, doing: &Doing) -> bool {
        !doing.victims.is_empty() && doing.gained >= self.gain_now() && self.cleaning.is_hurried()
    }

    /// Whether the moves take much of the memory for changes.
    fn is_too_much(&self) -> bool {
        self.state.lock().map().tree_bytes() > self.options.overlay_bytes / 2
    }

    /// Pauses in the background: the less has to be cleaned, the longer.
    async fn pause(&self, hurry: Hurry, began: Nanos) {
        if hurry == Hurry::Now || self.cleaning.is_hurried() {
            return;
        }
        let took = self.world.now().saturating_sub(began);
        let idle = PAUSE_BELOW.saturating_sub(self.need());
        let pause = Duration::from_nanos(took * PAUSE_MOST * idle / PAUSE_BELOW);
        if !pause.is_zero() {
            self.world.sleep(pause.min(PAUSE_MAX)).await;
        }
    }

    /// The blocks that are still at their old place (clean.C41), if the tree is the one in which
    /// they were looked up.
    fn still_there(&self, state: &State, live: &Live) -> Vec<Live> {
        let unit = self.layout.block_bytes();
        let (mut there, mut at) = (Vec::new(), 0);
        // The segment may have been reused.
        let segment = state.space().segments().get(live.from.segment);
        if segment.is_none_or(|segment| segment.phase != Phase::Sealed) {
            return there;
        }
        while at < live.blocks {
            let rest = live.part(at, live.blocks - at, unit);
            let (same, blocks) = match state.map().known(live.data_id, rest.block) {
                Ok(piece) => (piece.at == Where::Run(rest.from), piece.blocks),
                Err(unknown) => (true, unknown),
            };
            let blocks = blocks.min(rest.blocks);
            there.extend(same.then(|| rest.part(0, blocks, unit)));
            at += blocks;
        }
        there
    }

    /// The extents that the newest tree still has, in order of places; and that tree.
    async fn still_known(
        &self,
        found_in: Option<TreeRoot>,
        mut live: Vec<Live>,
    ) -> Result<(TreeRoot, Vec<Live>)> {
        let mut checked = found_in;
        loop {
            let now = self.state.lock().tree().root();
            if checked == Some(now) {
                return Ok((now, live));
            }
            match self.still_in_tree(&now, &live).await {
                Ok(still) => (checked, live) = (Some(now), still),
                // The leaf may have been read from a place that was reused.
                Err(_) if self.state.lock().tree().root() != now => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Copies live data, and records the new places (clean.C41 to C43).
    async fn move_round(
        &self,
        found_in: Option<TreeRoot>,
        live: Vec<Live>,
        left: &mut Left,
    ) -> Result<Moved> {
        let (root, live) = self.still_known(found_in, live).await?;
        let failures = self.log.failures();
        let given = {
            let mut state = self.state.lock();
            let there = live.iter().flat_map(|live| self.still_there(&state, live)).collect();
            let ordered = in_order(there, self.layout.block_bytes(), self.ahead_bytes());
            self.give_places(&mut state, ordered)
        };
        drop(live);
        let Some(Given { live, flight, mut ahead }) = given else { return Ok(Moved::NoRoom) };
        let all: u64 = live.iter().map(|live| live.blocks).sum();
        let copied = self.copy(live, &flight).await?;
        self.flush_all().await?;
        if self.log.failures() != failures {
            // These copies may be among the failed writes.
            return Err(self.log.failed_meanwhile("clean"));
        }
        let (mut gone, mut said) = (0, Ok(()));
        for live in copied.live.chunks(SAY_AT_ONCE) {
            match self.say(root, live.to_vec(), &mut ahead).await {
                Ok(blocks) => gone += blocks,
                Err(error) => {
                    said = Err(error);
                    break;
                }
            }
        }
        drop((flight, ahead));
        left.bad.extend(&copied.bad);
        left.failed.extend(&copied.failed);
        let unit = self.layout.block_bytes();
        let stats = &mut self.record.lock().stats;
        stats.bad_blocks += copied.bad_blocks;
        stats.moved_bytes += gone * unit;
        said?;
        stats.overtaken_bytes += (all - gone - copied.bad_blocks) * unit;
        Ok(Moved::Done)
    }

    /// Records copies for extents that the newest tree still has at the old place (clean.C41, M31);
    /// returns the number of blocks. The old places are pinned, so an extent that refers to one
    /// still has the same content.
    async fn say(
        &self,
        mut root: TreeRoot,
        mut live: Vec<Live>,
        ahead: &mut Ahead<'_>,
    ) -> Result<u64> {
        loop {
            let now = {
                let mut state = self.state.lock();
                if state.tree().root() == root || self.plant.has(Planted::CleanerMovesLive) {
                    return self.say_moved(&mut state, &live, ahead);
                }
                state.tree().root()
            };
            match self.still_in_tree(&now, &live).await {
                Ok(still) => (root, live) = (now, still),
                // The leaf may have been read from a place that was reused.
                Err(_) if self.state.lock().tree().root() != now => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// The blocks that this tree still has at the old place, in the given order. They are looked up
    /// in order of keys, so that each leaf is read once, and adjacent ones together.
    async fn still_in_tree(&self, root: &TreeRoot, live: &[Live]) -> Result<Vec<Live>> {
        let (unit, mut still, mut order) =
            (self.layout.block_bytes(), Vec::new(), InOrder::default());
        let mut by_key: Vec<usize> = (0..live.len()).collect();
        by_key.sort_unstable_by_key(|n| (live[*n].data_id, live[*n].block));
        for n in by_key {
            let (live, mut at) = (&live[n], 0);
            while at < live.blocks {
                let rest = live.part(at, live.blocks - at, unit);
                let Live { data_id, block, .. } = rest;
                let piece = piece_in_order(&self.tree, root, data_id, block, &mut order).await?;
                let blocks = piece.blocks.min(rest.blocks);
                if piece.at == Where::Run(rest.from) {
                    still.push((n, rest.part(0, blocks, unit)));
                }
                at += blocks;
            }
        }
        // Parts of one piece keep its number, and so their order.
        still.sort_by_key(|(n, _)| *n);
        Ok(still.into_iter().map(|(_, live)| live).collect())
    }

    /// Allocates contiguous places for copies, and reserves space for their records; `None` if
    /// there is not enough for all.
    fn give_places(&self, state: &mut State, live: Vec<Live>) -> Option<Given<'_>> {
        let (unit, bytes) = (self.layout.block_bytes(), self.layout.segment_bytes());
        let wanted = live.iter().map(|live| live.blocks * unit).sum::<u64>();
        let short = wanted.saturating_sub(state.space().clean_left()).div_ceil(bytes);
        let blocks = live.iter().map(|live| live.blocks).sum();
        let (cost, growth) = self.said(live.len() as u64, blocks);
        if short > state.clean_segments() {
            return None;
        }
        let grant = state.grant(&Ask::log(cost, growth), Need::Urgent).ok()?;
        let (mut given, mut segments) = (Vec::with_capacity(live.len()), BTreeSet::new());
        'all: for live in live {
            let mut skip = 0;
            while skip < live.blocks {
                // Cannot fail: the space was counted above.
                let bytes = (live.blocks - skip) * unit;
                let Ok((at, taken)) = state.take_copy(bytes, &mut segments) else { break 'all };
                given.push(Live { to: at, ..live.part(skip, taken / unit, unit) });
                skip += taken / unit;
            }
        }
        let flight = Arc::new(Flight::new(self, segments));
        Some(Given { live: given, flight, ahead: Ahead { cleaner: self, grant } })
    }

    /// Log space and tree nodes for the records of `extents` moved extents with `blocks` blocks.
    pub(super) fn said(&self, extents: u64, blocks: u64) -> (u64, Growth) {
        let body = extents * CHANGE_BYTES + 4 * blocks;
        // Of two successive records at most one is half empty, except where the lock is released.
        let records =
            2 * body.div_ceil(self.layout.max_record() / 2) + extents.div_ceil(SAY_AT_ONCE as u64);
        let cost = body + records * self.layout.cost(CHANGE_BYTES, 0);
        (cost, Growth { entries: 2 * extents, bytes: extents * MAP_ITEM_BYTES + 4 * blocks })
    }

    /// Records moved blocks (clean.C41); returns their number.
    fn say_moved(&self, state: &mut State, copied: &[Live], ahead: &mut Ahead<'_>) -> Result<u64> {
        let mut moved = 0;
        let room = self.layout.max_record() / 2;
        let (mut record, mut used) = (Vec::new(), 0);
        for live in copied {
            let there = match self.plant.has(Planted::CleanerMovesLive) {
                // The injected fault: concurrent overwrites are ignored.
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

    /// Appends one record of moves. `body`: most bytes of its changes.
    fn append_moved(
        &self,
        state: &mut State,
        record: &[Live],
        body: u64,
        ahead: &mut Ahead<'_>,
    ) -> Result<u64> {
        let blocks = record.iter().map(|live| live.blocks).sum();
        let (_, growth) = self.said(record.len() as u64, blocks);
        ahead.give(state, self.layout.cost(body, 0), growth);
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
        // Space for it was reserved together with its places.
        state.append_with(&changes, Content::default(), None)?;
        // Moved content was counted when it was written. It must not count as new again.
        state.uncount_fresh(blocks * self.layout.block_bytes());
        Ok(blocks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::clean::{found, sparse_of};
    use crate::tests::reuse::setup;

    /// The story: a task that waited for space waited for a complete pass, which took seconds on a
    /// volume of 8 GiB. The segments that it needed had been emptied long before.
    #[test]
    fn emptied_segments_become_free_before_pass_ends() {
        let setup = setup(0);
        let disk = setup.blank();
        disk.world().run(async {
            let (volume, _file, model) = sparse_of(&setup, &disk, None, 144).await;
            let inner = &volume.0;
            let victims: Victims = {
                let state = inner.state.lock();
                let is_sparse = |(_, this): &(u32, &crate::space::segment::Segment)| {
                    let live = (1..inner.layout.segment_bytes() / 2).contains(&this.live_bytes);
                    this.phase == Phase::Sealed && this.is_settled() && live
                };
                state
                    .space()
                    .segments()
                    .iter()
                    .filter(is_sparse)
                    .map(|(segment, _)| segment)
                    .collect()
            };
            assert!(victims.len() >= 8, "{victims:?}");
            for waits in [false, true] {
                let _hurry = waits.then(|| inner.cleaning.hurry());
                let before = inner.cleaning.freed_count();
                let half = victims.len() / 2;
                let part = match waits {
                    false => victims.iter().take(half).copied().collect(),
                    true => victims.iter().skip(half).copied().collect(),
                };
                let (emptied, done) = inner.cleaner.move_all(&part, Hurry::Now).await;
                done.unwrap();
                assert_eq!(emptied.segments, part.len() as u64);
                let progress = inner.cleaning.freed_count() - before;
                assert_eq!(progress > 0, waits, "{progress} times");
            }
            assert_eq!(found(&volume, model.len()).await.unwrap(), model);
        });
        disk.world().stop();
    }
}
