//! Moves what is live in some segments: once through the extents of the tree, in the order of keys, so that
//! what is of one file comes to lie together.
//!
//! Invariants: those of [`crate::clean`]. M31 what was read of the tree counts only while that is the tree:
//! another root, and it is read again. M32 a run that is copied lies in one segment, which does not die while
//! it is on its way.
//!
//! Locks: the state lock, the log's and the turn in turn; none across a wait.

use super::Hurry;
use super::pick::Victims;
use crate::btree::Cursor;
use crate::checkpoint::How;
use crate::commit::write_all;
use crate::fault::Planted;
use crate::format::change::Change;
use crate::format::corrupt;
use crate::format::extent::{Extent, Source, Sums, UNWRITTEN, put_crc32c};
use crate::format::item::Item;
use crate::format::key::Key;
use crate::format::place::Place;
use crate::format::superblock::TreeRoot;
use crate::format::usage::Stream;
use crate::format::{MAX_DATA_ID, MAX_EXTENT_BLOCKS};
use crate::pending::Where;
use crate::segment::{Phase, Pin};
use crate::slots::read_at;
use crate::space::Need;
use crate::state::State;
use crate::tx::Content;
use crate::volume::Inner;
use forebay_base::buf::{AlignedBuf, DataRef};
use forebay_base::checksum::crc32c;
use forebay_base::task::oneshot;
use forebay_base::units::MIB;
use forebay_base::world::Nanos;
use forebay_base::{Error, ErrorKind, Result};
use forebay_block::{Bio, BioFlags, BioOp, Completion, DeviceRef};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Bytes that are copied before they are flushed and moved.
const ROUND_BYTES: u64 = 8 * MIB;
/// Extents that are looked at before somebody else may.
const LOOK_AT_ONCE: usize = 8192;
/// Runs that are read at once.
const READS_AT_ONCE: usize = 128;
/// Bytes of a change that says where blocks are, without its sums.
const CHANGE_BYTES: u64 = 96;
/// In the background: a round is followed by a pause of so many times its length, where nearly nothing has
/// to be cleaned.
const PAUSE_MOST: u64 = 4;
/// And not longer: somebody may come who waits for room.
const PAUSE_MAX: Duration = Duration::from_millis(100);
/// Pieces that are said to be moved in one hold of the lock.
const SAY_AT_ONCE: usize = 64;

/// What became of a round.
enum Moved {
    Done,
    /// The tree is another one by now.
    Again,
    /// There is no room for copies.
    NoRoom,
}

/// Blocks that are live in a segment that is being cleaned.
#[derive(Clone)]
struct Live {
    data_id: u64,
    block: u64,
    blocks: u64,
    birth: u64,
    from: Place,
    sums: Vec<u32>,
    /// Where they are copied to.
    to: Place,
}

impl Live {
    fn end(&self, unit: u64) -> [u64; 2] {
        [self.from, self.to].map(|at| u64::from(at.offset) + self.blocks * unit)
    }

    /// Whether it lies right behind another one, where it is and where it goes.
    fn goes_on(&self, last: &Self, unit: u64) -> bool {
        let segments = self.from.segment == last.from.segment && self.to.segment == last.to.segment;
        segments && last.end(unit) == [self.from, self.to].map(|at| u64::from(at.offset))
    }

    fn part(&self, skip: u64, blocks: u64, unit: u64) -> Self {
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

/// Runs on their way to the segments that are being filled, and what holds those that they are read from
/// (C14, M32).
struct Flight<'a> {
    inner: &'a Inner,
    segments: BTreeSet<u32>,
    _pins: BTreeMap<u32, Pin>,
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        let mut state = self.inner.state.lock();
        self.segments.iter().for_each(|segment| state.space.land(*segment));
    }
}

/// What was copied.
#[derive(Default)]
struct Copied {
    live: Vec<Live>,
    /// Segments with blocks that could not be, and how many those are.
    bad: BTreeSet<u32>,
    bad_blocks: u64,
}

impl Inner {
    /// Goes through the tree once; how many of the segments it emptied.
    pub(super) async fn move_all(&self, victims: &Victims, hurry: Hurry) -> Result<u64> {
        let mut next = Some(Key::Extent(1, 0));
        let mut bad: BTreeSet<u32> = BTreeSet::new();
        while let Some(from) = next {
            let began = self.world.now();
            let gathered = self.gather(victims, from).await?;
            next = gathered.next;
            if gathered.live.is_empty() {
                continue;
            }
            match self.move_round(&gathered, &mut bad).await? {
                Moved::Done => {}
                Moved::Again => next = Some(from),
                // What was moved so far has made no segment free yet.
                Moved::NoRoom => return Ok(0),
            }
            self.cleaner.check_open()?;
            if self.is_too_much() {
                self.checkpoint(How::Log).await?;
            }
            self.pause(hurry, began).await;
        }
        let emptied = victims.difference(&bad).count() as u64;
        self.cleaner.turn.lock().bad.extend(bad);
        Ok(emptied)
    }

    /// What was moved takes much of what waits for a checkpoint, or of what one has room for.
    fn is_too_much(&self) -> bool {
        let state = self.state.lock();
        state.maps.1 > self.options.overlay_bytes / 2 || state.clean_segments() == 0
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

    /// Reads on in the tree until there is enough for a round.
    async fn gather(&self, victims: &Victims, from: Key) -> Result<Gathered> {
        loop {
            let root = self.state.lock().root;
            let gathered = self.gather_below(&root, victims, from).await;
            // M31: else it may be of places that were used again.
            if self.state.lock().root == root {
                return gathered;
            }
        }
    }

    async fn gather_below(
        &self,
        root: &TreeRoot,
        victims: &Victims,
        from: Key,
    ) -> Result<Gathered> {
        let unit = self.layout.block_bytes();
        let mut cursor = Cursor::new(from, Some(Key::Extent(MAX_DATA_ID + 1, 0)));
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

    /// Of some blocks those that are still where they were (C11), if the tree is still what they were read of.
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

    /// Copies what is live, and says that it is there (C11 to C13).
    async fn move_round(&self, gathered: &Gathered, bad: &mut BTreeSet<u32>) -> Result<Moved> {
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
        let Some((live, flight)) = given else { return Ok(Moved::NoRoom) };
        let all: u64 = live.iter().map(|live| live.blocks).sum();
        let copied = self.copy(live).await?;
        self.flush_all().await?;
        if self.log.failures() != failures {
            // What failed may have been of these.
            return Err(Error::new(ErrorKind::Io, "clean", "a write or flush failed meanwhile"));
        }
        let (mut gone, mut again) = (0, false);
        for live in copied.live.chunks(SAY_AT_ONCE) {
            let mut state = self.state.lock();
            again |= state.root != *root && !self.plant.has(Planted::CleanerMovesLive);
            if !again {
                gone += self.say_moved(&mut state, live)?;
            }
        }
        drop(flight);
        bad.extend(&copied.bad);
        let unit = self.layout.block_bytes();
        let mut turn = self.cleaner.turn.lock();
        turn.stats.bad_blocks += copied.bad_blocks;
        turn.stats.moved_bytes += gone * unit;
        turn.stats.overtaken_bytes += (all - gone - copied.bad_blocks) * unit;
        Ok(if again { Moved::Again } else { Moved::Done })
    }

    /// Places for copies, one behind the other; none if there are none for all of them.
    fn give_places(&self, state: &mut State, live: Vec<Live>) -> Option<(Vec<Live>, Flight<'_>)> {
        let (unit, bytes) = (self.layout.block_bytes(), self.layout.segment_bytes());
        let left = |open: &Option<Place>| open.map_or(0, |at| bytes - u64::from(at.offset));
        let wanted = live.iter().map(|live| live.blocks * unit).sum::<u64>();
        let segments = state.clean_segments();
        let space = &mut state.space;
        if wanted > left(&space.clean) + segments * bytes {
            return None;
        }
        let from: BTreeSet<u32> = live.iter().map(|live| live.from.segment).collect();
        let pins = from.iter().filter_map(|n| space.segments.pin(*n).map(|pin| (*n, pin)));
        let mut flight = Flight { inner: self, segments: BTreeSet::new(), _pins: pins.collect() };
        let mut given = Vec::with_capacity(live.len());
        for live in live {
            let mut skip = 0;
            while skip < live.blocks {
                if left(&space.clean) < unit {
                    let taken = space.segments.take(Stream::Data).ok()?;
                    if let Some(full) = space.clean.replace(Place::new(taken, 0)) {
                        space.segments.seal(full.segment);
                    }
                }
                let at = space.clean.expect("opened above");
                let blocks = (live.blocks - skip).min(left(&space.clean) / unit);
                if flight.segments.insert(at.segment) {
                    space.segments.fly(at.segment, 1);
                }
                let part = live.part(skip, blocks, unit);
                given.push(Live { to: at, ..part });
                space.clean = Some(Place::new(at.segment, at.offset + (blocks * unit) as u32));
                skip += blocks;
            }
        }
        Some((given, flight))
    }

    /// Reads, checks and writes (C12).
    async fn copy(&self, live: Vec<Live>) -> Result<Copied> {
        let unit = self.layout.block_bytes();
        let is_long = |run: &[Live]| {
            run.iter().map(|live| live.blocks).sum::<u64>() >= u64::from(MAX_EXTENT_BLOCKS) / 2
        };
        let mut runs: Vec<Vec<Live>> = Vec::new();
        for live in live {
            match runs.last_mut() {
                Some(run)
                    if run.last().is_some_and(|last| live.goes_on(last, unit)) && !is_long(run) =>
                {
                    run.push(live);
                }
                _ => runs.push(vec![live]),
            }
        }
        let mut copied = Copied::default();
        for some in runs.chunks(READS_AT_ONCE) {
            let asked = some.iter().map(|run| {
                let len: u64 = run.iter().map(|live| live.blocks * unit).sum();
                (self.layout.device_offset(run[0].from), len as usize)
            });
            let read = read_all(&self.device, asked.collect()).await;
            let mut writes: Vec<(u64, Vec<u8>)> = Vec::new();
            for (run, bytes) in some.iter().zip(read) {
                let at = self.layout.device_offset(run[0].to);
                let bytes = self.check(run, bytes, &mut copied).await;
                match writes.last_mut() {
                    Some((from, before)) if *from + before.len() as u64 == at => {
                        before.extend_from_slice(&bytes);
                    }
                    _ => writes.push((at, bytes)),
                }
            }
            write_all(&self.device, writes, BioFlags::BACKGROUND).await?;
        }
        Ok(copied)
    }

    /// Holds what was read against its sums. What is not as it was stays where it is.
    async fn check(&self, run: &[Live], read: Result<AlignedBuf>, copied: &mut Copied) -> Vec<u8> {
        let unit = self.layout.block_bytes();
        let mut out = Vec::new();
        for live in run {
            for n in 0..live.blocks {
                let part = live.part(n, 1, unit);
                let block = match &read {
                    Ok(bytes) => Ok(bytes[out.len()..out.len() + unit as usize].to_vec()),
                    // Another block may be at fault.
                    Err(_) => {
                        let at = self.layout.device_offset(part.from);
                        read_at(&self.device, at, unit as usize).await.map(|bytes| bytes.to_vec())
                    }
                };
                let same = |bytes: &Vec<u8>| part.sums.first().is_none_or(|s| *s == crc32c(bytes));
                match block {
                    Ok(bytes) if same(&bytes) => {
                        out.extend_from_slice(&bytes);
                        copied.keep(part, unit);
                    }
                    bad => {
                        let why = bad.err().map_or("the checksum".into(), |e| e.to_string());
                        let Live { data_id, block, from, .. } = part;
                        log::error!("block {block} of data {data_id} stays at {from:?}: {why}");
                        out.resize(out.len() + unit as usize, 0);
                        copied.bad.insert(from.segment);
                        copied.bad_blocks += 1;
                    }
                }
            }
        }
        out
    }

    /// Says what was moved (C11); how many blocks.
    fn say_moved(&self, state: &mut State, copied: &[Live]) -> Result<u64> {
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
                    moved += self.append_moved(state, &std::mem::take(&mut record))?;
                    used = 0;
                }
                used += body;
                record.push(live);
            }
        }
        if !record.is_empty() {
            moved += self.append_moved(state, &record)?;
        }
        Ok(moved)
    }

    fn append_moved(&self, state: &mut State, record: &[Live]) -> Result<u64> {
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

impl Copied {
    /// One block more, as a part of what it goes on with.
    fn keep(&mut self, block: Live, unit: u64) {
        if let Some(last) = self.live.last_mut() {
            let same = last.data_id == block.data_id && last.birth == block.birth;
            let behind = last.block + last.blocks == block.block && block.goes_on(last, unit);
            if same && behind && last.blocks < u64::from(MAX_EXTENT_BLOCKS) {
                last.blocks += 1;
                last.sums.extend(block.sums);
                return;
            }
        }
        self.live.push(block);
    }
}

/// Reads several runs at once, and waits for all.
async fn read_all(device: &DeviceRef, runs: Vec<(u64, usize)>) -> Vec<Result<AlignedBuf>> {
    let mut waiting = Vec::with_capacity(runs.len());
    for (offset, len) in runs {
        let (tx, rx) = oneshot::<Completion>();
        let data = DataRef::Buf(AlignedBuf::new(len));
        let end = Box::new(move |done| tx.send(done));
        let bio = Bio::new(BioOp::Read, offset, len as u64, data, end);
        device.submit(bio.with_flags(BioFlags::BACKGROUND));
        waiting.push(rx);
    }
    let gone = || Error::new(ErrorKind::Shutdown, "read", "the device went away");
    let mut read = Vec::with_capacity(waiting.len());
    for rx in waiting {
        let done = rx.await.ok_or_else(gone);
        read.push(match done {
            Ok(Completion { result: Ok(()), data }) => data.into_buf().ok_or_else(gone),
            Ok(Completion { result: Err(error), .. }) | Err(error) => Err(error),
        });
    }
    read
}
