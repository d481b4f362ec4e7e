//! The map of a file: [`MapOps`] over the volume's overlay, its segments and its log.
//!
//! Space is either a run of a data segment, or, for little content (of a sync, or of a small file),
//! a run of the staging area. In the second case publishing copies it into the record itself, and
//! one write makes both durable.
//!
//! Invariants, in addition to those of [`forebay_iomap::ops`]: M11 a record points at a run only
//! after the run's write has completed: `publish` makes it. M13 a recoverable size is never above
//! what was published.
//!
//! Locks: the state lock, and below it the staging area's; none across a wait.

use crate::fault::Planted;
use crate::files::lookup::Found;
use crate::files::open_files::OpenFiles;
use crate::files::parts::{Part, records};
use crate::format::MAX_EXTENT_BLOCKS;
use crate::format::change::{Blocks, Change as Record, Size};
use crate::format::extent::{Source, put_crc32c};
use crate::format::place::SumAlgorithm;
use crate::format::superblock::TreeRoot;
use crate::log::staging::Staging;
use crate::log::{Payload, Run};
use crate::map::allocated::Told;
use crate::map::lookup::{Known, Pin};
use crate::map::overlay::{Piece, Where};
use crate::names::content::Published;
use crate::names::lookup::Stop;
use crate::names::node::Node;
use crate::space::Need;
use crate::space::admission::AcceptedContent;
use crate::transaction::append::Content;
use crate::transaction::state::State;
use crate::transaction::sync_errors::{Lost, lost_error};
use forebay_base::task::BoxFuture;
use forebay_base::{Error, ErrorKind, Result};
use forebay_block::{DeviceRef, MapRuns, StableWrites};
use forebay_cache::rangeset::RangeSet;
use forebay_iomap::{
    Admit, Change, Class, Commit, Extent, Lookup, LostContent, MapFuture, MapInfo, MapOps, Place,
    Reservation, Written,
};
use forebay_vfs::Ino;
use std::ops::Range;
use std::sync::{Arc, Weak};

/// The map of one file.
pub(crate) struct FileOps {
    pub files: Weak<OpenFiles>,
    device: DeviceRef,
    pub ino: Ino,
    pub unit: u32,
    sums: bool,
    accepted: Arc<AcceptedContent>,
    /// Answers of the tree about blocks that are overwritten.
    pub told: Told,
    /// Shared with the content of the inode, if this is its map.
    published: Arc<Published>,
}

fn closed() -> Error {
    Error::new(ErrorKind::Shutdown, "map", "the volume is closed")
}

impl FileOps {
    /// The map of an inode.
    pub fn new(files: &OpenFiles, ino: Ino) -> Self {
        Self::of(files, ino, &files.state.lock(), Arc::default())
    }

    /// The map of an inode, for a caller that holds the state lock. `published`: as in the content
    /// that it will have.
    pub fn of(files: &OpenFiles, ino: Ino, state: &State, published: Arc<Published>) -> Self {
        let geometry = files.layout.geometry;
        let sums = geometry.sum == SumAlgorithm::Crc32c;
        let accepted = state.space().ledger().accepted().clone();
        let (files, device) = (files.me.clone(), files.staging.clone());
        let told = Told::default();
        let unit = geometry.block_bytes();
        Self { files, device, ino, unit, sums, accepted, told, published }
    }

    /// Whether this is the map of the inode's present mapping (content.D12).
    fn is_of(&self, node: &Node) -> bool {
        node.content.as_ref().is_some_and(|content| {
            std::ptr::addr_eq(&raw const *content.ops, std::ptr::from_ref(self))
        })
    }

    pub fn files(&self) -> Result<Arc<OpenFiles>> {
        self.files.upgrade().ok_or_else(closed)
    }

    /// The files, if some file cannot be synced. Content is lost only then.
    fn with_sync_errors(&self) -> Option<Arc<OpenFiles>> {
        self.files.upgrade().filter(|files| files.has_sync_errors.is_set())
    }

    /// The data id, and the block of the file at an offset.
    fn block_of(&self, files: &OpenFiles, offset: u64) -> Result<(u64, u64)> {
        let state = files.state.lock();
        let data_id = state.get("map", self.ino).map_err(Stop::open)?.inode.data_id;
        Ok((data_id, offset / u64::from(self.unit)))
    }

    /// The extent, if it is known without reading the tree.
    fn look_up_now(&self, range: &Range<u64>) -> Option<Result<Extent>> {
        let known = self.files().and_then(|files| {
            let (data_id, block) = self.block_of(&files, range.start)?;
            let failures = (!self.sums).then(|| files.log.flush_failures());
            let state = files.state.lock();
            let known = match (state.find_piece(data_id, block, &files.staging), failures) {
                (Known::Piece(piece, pin), failures) => {
                    let piece =
                        self.before_lost(piece, block, state.map().lost().next(data_id, block));
                    let good = match failures {
                        Some(failures) => state.before_doubt(piece?, failures),
                        None => Ok(piece?),
                    };
                    Known::Piece(good.map_err(|_| self.doubt_error(range))?, pin)
                }
                (known, _) => known,
            };
            drop(state);
            Ok((files, known))
        });
        match known {
            Ok((files, Known::Piece(piece, pin))) => {
                Some(Ok(self.extent(&files, range, &piece, pin)))
            }
            Ok((_, Known::Tree(..))) => None,
            Err(error) => Some(Err(error)),
        }
    }

    /// Ends a piece at `block` before these lost blocks, so that no read shows their older content
    /// (lost.V15). An error if `block` itself is lost.
    fn before_lost(&self, piece: Piece, block: u64, lost: Option<Range<u64>>) -> Result<Piece> {
        let unit = u64::from(self.unit);
        match lost {
            Some(lost) if lost.start <= block => Err(lost_error("read", self.ino.0, &lost, unit)),
            Some(lost) => Ok(piece.part(0, piece.blocks.min(lost.start - block), unit)),
            None => Ok(piece),
        }
    }

    /// Without checksums nothing tells lost content from what its place held before, which may be
    /// another file's. So it cannot be read (repair.Q4).
    fn doubt_error(&self, range: &Range<u64>) -> Error {
        let text = format!("content of inode {} that was accepted is or may be lost", self.ino.0);
        Error::new(ErrorKind::Io, "read", text).with_range(range.start, u64::from(self.unit))
    }

    /// The extent at the start of a range, on the device or in the staging area. True: its blocks
    /// are lost, and reads of them fail.
    pub async fn look_up(&self, range: Range<u64>) -> Result<(Extent, bool)> {
        let files = self.files()?;
        let (data_id, block) = self.block_of(&files, range.start)?;
        let found = files.piece_of(data_id, block).await?;
        let (piece, is_lost) = found.split_at_lost(block, u64::from(self.unit));
        Ok((self.extent(&files, &range, &piece, found.pin), is_lost))
    }

    /// The extent at the start of a range, for which the tree is read, and the root of that tree if
    /// the extent comes from it.
    async fn look_up_later(&self, range: &Range<u64>) -> Result<(Extent, Option<TreeRoot>)> {
        let files = self.files()?;
        let (data_id, block) = self.block_of(&files, range.start)?;
        let Found { piece, pin, root, lost } = files.piece_of(data_id, block).await?;
        let piece = self.before_lost(piece, block, lost)?;
        if root.is_none()
            && !self.sums
            && let Some(recorded) = self.look_up_now(range)
        {
            return Ok((recorded?, None));
        }
        Ok((self.extent(&files, range, &piece, pin), root))
    }

    /// The extent at the start of a range to be read; its bytes may have been read ahead.
    async fn look_up_near(&self, range: Range<u64>) -> Result<Extent> {
        let files = self.files()?;
        let (mut extent, root) = self.look_up_later(&range).await?;
        if let Some(root) = root
            && range.start.is_multiple_of(u64::from(self.unit))
            && files.state.lock().is_small(self.ino.0)
            && let Some((staged, pin)) = files.near.look_near(&files, root, &extent).await
        {
            (extent.device_offset, extent.pin) = (Some(staged), Some(pin));
            extent.in_memory = true;
        }
        Ok(extent)
    }

    fn extent(
        &self,
        files: &OpenFiles,
        range: &Range<u64>,
        piece: &Piece,
        pin: Option<Pin>,
    ) -> Extent {
        let unit = u64::from(self.unit);
        let skip = range.start % unit;
        let len = (piece.blocks.min(u64::MAX / unit).saturating_mul(unit) - skip)
            .min(range.end - range.start);
        let at = match piece.at {
            Where::Hole => None,
            Where::Run(place) => Some(files.layout.device_offset(place)),
            Where::Staged(at) => Some(at),
        };
        let blocks = (skip + len).div_ceil(unit) as usize;
        let skipped = files.plant.has(Planted::SkippedSum);
        let summed = self.sums && at.is_some() && !skipped;
        let sums = if summed { piece.own_sums().get(..blocks).map(Arc::from) } else { None };
        let device_offset = at.map(|at| at + skip);
        let in_memory = device_offset.is_some_and(Staging::is_staged);
        Extent { offset: range.start, len, device_offset, sums, pin, in_memory }
    }

    /// The parts of some pieces for a record, and the runs that it points at. `share`: the key of
    /// their reservation.
    fn parts(
        &self,
        files: &OpenFiles,
        state: &mut State,
        pieces: &[&Written],
        data_id: u64,
        share: u64,
    ) -> Result<(Vec<Part>, Vec<Run>)> {
        let unit = u64::from(self.unit);
        let staged = pieces.iter().any(|w| Staging::is_staged(w.place.device_offset));
        let start = pieces.first().map_or(0, |w| w.place.device_offset);
        let (mut parts, mut runs) = (Vec::new(), Vec::new());
        // repair.Q1: the count from before the write: a flush may fail while it is in flight.
        let (flush_failures, reserved) = state
            .space()
            .reservations()
            .get(share)
            .map_or((0, 0), |grant| (grant.flush_failures, grant.sequence));
        // The writes have completed.
        let is_earlier = files.plant.has(Planted::EarlierFlush);
        let flush = files.log.next_flush() - u64::from(is_earlier);
        for written in pieces {
            let birth = birth_of(files, state, written, reserved);
            let from = written.place.offset / unit;
            let whole = from..from + written.place.len / unit;
            // state.S15: parts that were overwritten while the write was in flight are not
            // recorded.
            for part in state.map().older(data_id, whole, birth) {
                for block in part.clone().step_by(usize::from(MAX_EXTENT_BLOCKS)) {
                    let count = (part.end - block).min(u64::from(MAX_EXTENT_BLOCKS));
                    let skip = block - from;
                    let own = written.sums.get(skip as usize..(skip + count) as usize);
                    let own = own.unwrap_or_default();
                    let mut sums = Vec::new();
                    put_crc32c(own, &mut sums);
                    let at = written.place.device_offset + skip * unit;
                    let source = match (staged, files.layout.place_at(at)) {
                        (true, _) => Source::Inline((at - start) as u32),
                        (false, Some(place)) => Source::Run(place),
                        (false, None) => return Err(closed()),
                    };
                    if let Source::Run(place) = source {
                        let (ino, len) = (self.ino.0, count * unit);
                        let (at, sums, is_flushed) = (place, own.into(), false);
                        runs.push(Run { ino, at, len, sums, flush_failures, flush, is_flushed });
                    }
                    // The injected fault: block numbers of large files are truncated.
                    let short = files.plant.has(Planted::BlockNumberShort);
                    let block = if short { block % 512 } else { block };
                    parts.push(Part { block, source, blocks: count as u16, birth, sums });
                }
            }
        }
        Ok((parts, runs))
    }

    /// Appends a record of some pieces: contiguous ones of the staging area, or a run each.
    fn append(
        &self,
        files: &OpenFiles,
        state: &mut State,
        pieces: &[&Written],
        size: Option<Size>,
        data_id: u64,
        key: u64,
    ) -> Result<()> {
        let (mut parts, runs) = self.parts(files, state, pieces, data_id, key)?;
        if files.plant.has(Planted::LostDirtyBit) && parts.len() > 1 {
            parts.pop();
        }
        let changes_at = |before: u64| {
            let geometry = &files.layout.geometry;
            let maps = parts.iter().map(|part| part.change(data_id, before, geometry));
            let mut changes: Vec<Record<'_>> = maps.collect();
            changes.extend(size.map(Record::Grow));
            changes
        };
        let (mut changes, mut content) = (changes_at(0), Content { runs, ..Content::default() });
        if pieces.iter().any(|w| Staging::is_staged(w.place.device_offset)) {
            let start = pieces.first().map_or(0, |w| w.place.device_offset);
            let end = pieces.last().map_or(0, |w| w.place.device_offset + w.place.len);
            let bytes = files.staging.share(&(start..end))?;
            let of = |part: &Part| (data_id, part.block..part.block + u64::from(part.blocks));
            let blocks = parts.iter().map(of).collect();
            content.payload = Some(Payload { staged: start..end, bytes, blocks });
            content.joins = state.joins(&changes, end - start);
            changes = changes_at(content.joins.unwrap_or(0));
        }
        let joined = content.joins.and_then(|_| state.queue().last()).map_or(0, |r| r.body.len());
        content.share = state.space().reservations().contains(key).then_some(key);
        // Published content was admitted when its space was reserved.
        state.append_with(&changes, content, None)?;
        let body = state.queue().last().map_or(0, |record| record.body.len() - joined);
        state.count_record_bytes(body as u64);
        Ok(())
    }
}

/// The birth of a piece, which orders it among writes to the same blocks: the sequence of its
/// write, except for two injected faults.
fn birth_of(files: &OpenFiles, state: &mut State, written: &Written, reserved: u64) -> u64 {
    if files.plant.has(Planted::SequenceAtReserve) {
        reserved.min(written.sequence)
    } else if files.plant.has(Planted::PublishedOutOfOrder) {
        state.draw()
    } else {
        written.sequence
    }
}

impl FileOps {
    /// Truncates the map to `size`.
    fn cut(&self, state: &mut State, size: u64) -> Result<()> {
        let Some(node) = state.names().node(self.ino.0) else { return Ok(()) };
        let (ino, data_id, published) = (self.ino.0, node.inode.data_id, node.inode.size);
        let sequence = state.draw();
        let change = if size == 0 {
            let new = state.counters().next_data_id();
            Record::ReplaceData(Size { ino, data_id: new, size, sequence }, data_id)
        } else if size < published {
            Record::Truncate(Size { ino, data_id, size, sequence })
        } else {
            // M13: no record has a size above `size` yet, but records may have blocks after it.
            let block = size.div_ceil(u64::from(self.unit));
            let blocks = state.layout().geometry.max_blocks() - block;
            Record::Punch(Blocks { data_id, block, blocks }, sequence)
        };
        state.append(&[change], Need::Urgent)?;
        state.close_windows(ino);
        if size == 0 {
            state.note_cut(ino);
        }
        Ok(())
    }

    /// Makes a range a hole.
    async fn punch(&self, range: Range<u64>) -> Result<()> {
        let files = self.files()?;
        let unit = u64::from(self.unit);
        let block = range.start / unit;
        let blocks = range.end.div_ceil(unit) - block;
        let punch = |state: &mut State| {
            let Some(node) = state.names().node(self.ino.0) else { return Ok(()) };
            let data_id = node.inode.data_id;
            let change = Record::Punch(Blocks { data_id, block, blocks }, state.draw());
            state.append(&[change], Need::Urgent).map(drop)
        };
        files.with_space(punch).await
    }
}

impl MapOps for FileOps {
    fn device(&self) -> &DeviceRef {
        &self.device
    }

    fn info(&self) -> MapInfo {
        // The device's requirement changes when direct I/O below the volume is switched.
        let stable = match self.sums {
            true => StableWrites { required: true, reason: "checksums of the volume" },
            false => self.device.limits().stable_writes,
        };
        MapInfo {
            // A volume is distinguished from others on the cache by its address in memory.
            label: (self.files.as_ptr() as u64, self.ino.0),
            unit: self.unit,
            sums: self.sums,
            stable,
            fua_suffices: false,
            // repair.Q1.
            tracks_losses: true,
            can_grow: true,
            zeroes_fast: true,
            zeroing_frees: true,
        }
    }

    fn map(&self, range: Range<u64>, why: Lookup) -> MapFuture<'_, Result<Extent>> {
        if let Some(known) = self.look_up_now(&range) {
            return MapFuture::Now(Some(known));
        }
        MapFuture::Later(match why {
            Lookup::Read => Box::pin(self.look_up_near(range)),
            Lookup::Find => Box::pin(async move { Ok(self.look_up_later(&range).await?.0) }),
        })
    }

    fn extents(&self, range: Range<u64>, max: usize) -> BoxFuture<'_, Result<MapRuns>> {
        Box::pin(async move {
            let mut runs = MapRuns::new();
            let mut at = range.start;
            while at < range.end && runs.len() < max.max(1) {
                let (extent, is_lost) = self.look_up(at..range.end).await?;
                let data = is_lost || extent.device_offset.is_some();
                match runs.last_mut() {
                    Some(last) if last.2 == data => last.1 += extent.len,
                    _ => runs.push((at, extent.len, data)),
                }
                at += extent.len;
            }
            Ok(runs)
        })
    }

    fn admit(&self, new: u64, _dirty: u64, of: Admit<'_>) -> Result<()> {
        let files = self.files()?;
        files.check_running("write")?;
        // Usually without the state lock, which other files need, too (admission.P27).
        if self.accepted.draw(new) {
            return Ok(());
        }
        let (need, within) = match of {
            Admit::New => (Need::New, None),
            Admit::Within(range) => (Need::New, Some(range)),
            Admit::Edge => (Need::Overwrite, None),
        };
        let over = |state: &State| {
            within.is_some_and(|range| state.is_stored(self.ino.0, range, &self.told))
        };
        files.state.lock().admit(new, need, over)
    }

    fn arrived(&self, bytes: u64) {
        self.accepted.arrived(bytes);
    }

    fn make_room(&self, range: Range<u64>) -> BoxFuture<'_, bool> {
        Box::pin(async move {
            let Ok(files) = self.files() else { return false };
            // If the lookup fails, the bytes count as not stored.
            let over = files.ask_stored(self.ino.0, &self.told, &range).await.unwrap_or(false);
            files.make_space_for(range.end - range.start, over).await
        })
    }

    fn reserve(
        &self,
        runs: &[Range<u64>],
        class: Class,
        _places: &mut Vec<Place>,
    ) -> MapFuture<'_, Result<Reservation>> {
        self.reserve_runs(runs, class)
    }

    fn announce(&self, range: &Range<u64>) {
        if let Ok(files) = self.files() {
            files.announce(self.ino.0, range);
        }
    }

    fn sequence(&self) -> u64 {
        self.files.upgrade().map_or(0, |files| files.sequence.draw())
    }

    fn publish(&self, reservation: &Reservation, written: &[Written], size: u64) {
        let Some(files) = self.files.upgrade() else { return };
        let key = reservation.places().first().map_or(u64::MAX, |place| place.device_offset);
        let mut state = files.state.lock();
        // Nothing is published for a removed inode: its places are released.
        let Some(node) = state.names().node(self.ino.0) else { return };
        written.iter().for_each(|w| reservation.note_published(&w.place));
        let (data_id, published, regrow) = (node.inode.data_id, node.published(), node.regrow);
        let size = match (files.plant.has(Planted::SizeBeforeData), node.live_size()) {
            (true, Some(live)) => live,
            (_, Some(live)) if files.plant.has(Planted::SizeOfOneWriter) => {
                let ends = written.iter().map(|w| w.place.offset + w.place.len);
                size.max(ends.max().unwrap_or(0).min(live))
            }
            _ => size,
        };
        let (ino, sequence) = (self.ino.0, state.counters().last_sequence());
        let grown = size > published && self.is_of(node);
        let grown = grown.then_some(Size { ino, data_id, size, sequence });
        let room = files.layout.max_record() / 2;
        let mut groups = records(written, room, u64::from(self.unit));
        // A size that a failure took back (`regrow`) follows the content that is written again.
        if grown.is_some() && (groups.is_empty() || regrow) {
            groups.push(Vec::new());
        }
        let (last, mut failed) = (groups.len(), false);
        for (n, pieces) in groups.iter().enumerate() {
            // lfs.I15: a size is recorded only with the records of its bytes, if none is lost.
            let grown = grown.filter(|_| n + 1 == last && !failed);
            let grown = grown.and_then(|grown| state.recordable_growth(grown, published));
            if pieces.is_empty() && grown.is_none() {
                continue;
            }
            let done = self.append(&files, &mut state, pieces, grown, data_id, key);
            match done {
                Ok(()) => {
                    let Some(Size { size: new, .. }) = grown else { continue };
                    state.note_size_published(self.ino.0, new, new == size);
                }
                Err(error) => {
                    // Space was reserved; if there is none nevertheless, a sync reports that.
                    log::error!("{:?}: content could not be published: {error}", self.ino);
                    failed = true;
                    let lost = if pieces.is_empty() { Lost::Size } else { Lost::Data };
                    state.note_unpublished(self.ino.0, lost);
                }
            }
        }
        state.record_wanted_times(self.ino, &self.published.times);
        let is_waited_for = reservation.end_if_published() && files.end_grant(&mut state, key);
        drop(state);
        if is_waited_for {
            files.reservation_ended.wake_all();
        }
        files.note_change();
    }

    fn published_size(&self) -> Option<u64> {
        // content.D12, content.D13.
        self.published.size.get()
    }

    fn commit(&self, what: Commit, here: bool) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let files = self.files()?;
            if what == Commit::All {
                files.with_space(|state| state.write_times(Some(self.ino))).await?;
            }
            files.commit_file(self.ino, &self.published.times, here).await
        })
    }

    fn flush_failures(&self) -> Option<u64> {
        // log.L7, log.L12.
        self.files.upgrade().map(|files| files.log.flush_failures())
    }

    fn lost(&self, covered: &RangeSet) -> LostContent {
        let covered_size = self.published.size.get();
        let Some(files) = self.with_sync_errors() else {
            return LostContent { covered_size, ..LostContent::default() };
        };
        let (state, ino) = (files.state.lock(), self.ino.0);
        let fails = |lost| state.files().sync_errors().fails(ino, lost);
        let node = state.names().node(ino).filter(|node| self.is_of(node));
        LostContent {
            is_any: [Lost::Run, Lost::Data].into_iter().any(fails),
            blocks: state.lost_blocks(ino, covered),
            covered_size: covered_size.and_then(|_| Some(state.covered_size(ino, node?))),
        }
    }

    /// Appends a record in one step: no request to the device is needed. Space for bytes is
    /// reserved when they are written, so growing needs none.
    fn change(&self, change: Change) -> MapFuture<'_, Result<()>> {
        match change {
            Change::Zero { range, .. } => MapFuture::Later(Box::pin(self.punch(range))),
            Change::Grow(_) => {
                MapFuture::Now(Some(self.files().and_then(|files| files.check_running("grow"))))
            }
            Change::Truncate(size, _) => MapFuture::Later(Box::pin(async move {
                self.files()?.with_space(|state| self.cut(state, size)).await
            })),
        }
    }
}
