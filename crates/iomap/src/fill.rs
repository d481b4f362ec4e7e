//! Fills: plan which blocks are missing, issue their reads, complete them. A fill is entered in the
//! cache before its I/O, so that other readers of the block wait for it.

use crate::file::MappedFile;
use crate::ops::Sums;
use crate::ops::{Lookup, MapOps};
use forebay_base::buf::DataRef;
use forebay_base::checksum::crc32c;
use forebay_base::sync::{Arc, Mutex};
use forebay_base::task::yield_now;
use forebay_base::units::{round_down, round_up};
use forebay_base::{Error, ErrorKind, Result};
use forebay_block::{Bio, BioFlags, BioOp, Limits};
use forebay_cache::folio::Blocks;
use forebay_cache::stats::Counters;
use forebay_cache::writeback::end_fill;
use forebay_cache::{FRAME_SIZE, FolioWrite, FrameList, FramePool, Mapping, PageCache, State};
use std::any::Any;
use std::collections::VecDeque;
use std::ops::Range;

/// Longest read of one bio, bytes.
const MAX_BIO: u64 = 512 << 10;

/// Most frames of a step of a prefetch.
const PREFETCH_FRAMES: usize = 128;

/// How a fill is wanted.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct FillMode {
    /// The blocks are dropped when they have been consumed.
    pub uncached: bool,
    /// The request is an uncached one, whether its blocks stay or not: a new folio uses up no
    /// ghost.
    pub passing: bool,
    /// No reader waits: queued last at the device; stops at blocks that are held exclusively.
    pub background: bool,
    /// The last read may be carried out on this thread.
    pub inline: bool,
    /// The caller holds the range exclusively (bounds.E4).
    pub held: bool,
}

/// How planning went.
pub(crate) enum Filling {
    /// In progress, or nothing was missing. The [`FillError`] receives the first error.
    Started(FillError),
    /// No frames to be had without waiting.
    NoFrames,
    /// Another task holds this range exclusively.
    Exclusive(Range<u64>),
}

/// The first error of a fill.
#[derive(Clone, Default)]
pub(crate) struct FillError(Arc<Mutex<Option<Error>>>);

impl FillError {
    pub fn take(&self) -> Option<Error> {
        self.0.lock().take()
    }

    fn set(&self, error: &Error) {
        self.0.lock().get_or_insert_with(|| error.clone());
    }
}

/// One run of blocks of a folio that this fill has made *reading*.
#[derive(Clone)]
struct Piece {
    index: u64,
    blocks: Blocks,
    /// End of file, read under the folio lock when the fill was planned: bytes behind it read as
    /// zeros (bounds.E6).
    read_to: u64,
}

/// The completion side of one bio: ends its pieces even if the bio is dropped.
struct EndRead {
    cache: Arc<PageCache>,
    mapping: Arc<Mapping>,
    pieces: Vec<Piece>,
    error: FillError,
    /// Expected checksums of the stored blocks: folio, first block, sums.
    sums: Vec<(u64, u32, Sums)>,
    /// Extents stay pinned until the read is over (ops.O4).
    pins: Vec<Arc<dyn Any + Send + Sync>>,
    unsummed: Option<Unsummed>,
}

/// The map of content without checksums. A flush that fails during the read may have lost the
/// content.
#[derive(Clone)]
struct Unsummed {
    ops: forebay_base::sync::Arc<dyn MapOps>,
    /// [`MapOps::flush_failures`] before the extents were looked up.
    failures: Option<u64>,
}

impl Unsummed {
    fn of(file: &MappedFile) -> Option<Self> {
        let failures = file.ops.flush_failures();
        let is_unsummed = failures.is_some() && !file.ops.info().sums;
        is_unsummed.then(|| Self { ops: file.ops.clone(), failures })
    }

    fn check(&self) -> Result<()> {
        match self.ops.flush_failures() == self.failures {
            true => Ok(()),
            false => Err(Error::new(ErrorKind::Io, "read", "a flush failed during the read")),
        }
    }
}

/// The error of a fill whose task was dropped.
fn given_up() -> Error {
    Error::new(ErrorKind::Shutdown, "fill", "its task was dropped")
}

impl Drop for EndRead {
    fn drop(&mut self) {
        if !self.pieces.is_empty() {
            self.end(&Err(given_up()));
        }
    }
}

impl EndRead {
    fn end(&mut self, result: &Result<()>) {
        let doubt = self.unsummed.as_ref().map_or(Ok(()), Unsummed::check);
        let result = if result.is_ok() { &doubt } else { result };
        if let Err(error) = result {
            self.error.set(error);
        }
        for piece in std::mem::take(&mut self.pieces) {
            let ok = result.is_ok() && self.verify(&piece);
            end_fill(&self.cache, &self.mapping, piece.index, piece.blocks, piece.read_to, ok);
        }
        self.pins.clear();
    }

    /// Whether the blocks match their checksums: tested before they become up to date.
    fn verify(&self, piece: &Piece) -> bool {
        let mapping = &*self.mapping;
        let mine = |(index, first, sums): &&(u64, u32, Sums)| {
            let end = first + sums.len() as u32;
            *index == piece.index && *first < piece.blocks.end && piece.blocks.start < end
        };
        let mut block_bytes = [0; FRAME_SIZE];
        let bytes = &mut block_bytes[..mapping.block_size() as usize];
        for (index, first, sums) in self.sums.iter().filter(mine) {
            let folio = self.cache.lock_folio(mapping, *index);
            let folio = folio.expect("a folio with blocks being read is not evicted (F4)");
            for (block, &sum) in (*first..).zip(sums.iter()) {
                let (frame, at) = folio.place(block);
                self.cache.arena().copy_out(frame, at, bytes);
                if crc32c(bytes) != sum {
                    let range = mapping.range_of(*index, Blocks { start: block, end: block + 1 });
                    self.error.set(&corrupt(&range));
                    return false;
                }
            }
        }
        true
    }
}

/// The bytes read do not match their checksum.
pub(crate) fn corrupt(range: &Range<u64>) -> Error {
    let error = Error::new(ErrorKind::Corrupt, "read", "the checksum does not match");
    error.with_range(range.start, range.end - range.start)
}

/// Pieces that are *reading* and in no bio yet. If the task that fills is dropped they end here: no
/// bio will end them.
struct Planned<'a> {
    file: &'a MappedFile,
    error: &'a FillError,
    pieces: VecDeque<Piece>,
}

impl Drop for Planned<'_> {
    fn drop(&mut self) {
        let (cache, mapping) = (&self.file.cache, &self.file.mapping);
        for piece in self.pieces.drain(..) {
            self.error.set(&given_up());
            end_fill(cache, mapping, piece.index, piece.blocks, 0, false);
        }
    }
}

impl MappedFile {
    /// Fills the missing blocks of `range` (bytes; rounded outwards to blocks, clipped to the end
    /// of file) and returns when the reads are issued.
    pub(crate) async fn start_fill(&self, range: Range<u64>, mode: FillMode) -> Filling {
        self.start_fill_with(range, mode, &mut FramePool::empty(&self.cache)).await
    }

    /// [`MappedFile::start_fill`] with frames that the caller has in `pool`; if these are too few,
    /// takes others.
    async fn start_fill_with<'a>(
        &'a self,
        range: Range<u64>,
        mode: FillMode,
        pool: &mut FramePool<'a>,
    ) -> Filling {
        let block = self.mapping.block_size();
        let eof = round_up(self.end(), block);
        let range = round_down(range.start, block)..round_up(range.end, block).min(eof);
        let error = FillError::default();
        let mut planned = match self.plan_fill(&range, mode, pool) {
            Ok(pieces) => Planned { file: self, error: &error, pieces },
            Err(other) => return other,
        };
        let mut bios = Vec::new();
        let bytes = self.build_reads(&mut planned.pieces, &error, &mut bios).await;
        debug_assert!(planned.pieces.is_empty(), "each has its read, or has ended");
        drop(planned);
        self.issue_reads(bios, bytes, mode);
        Filling::Started(error)
    }

    /// Brings a range into the cache, as far as frames can be had without waiting; returns when the
    /// last reads are issued. Works in steps, yields between them, waits where the device's engine
    /// is crowded, and has at most two steps in flight: a long range occupies neither an event loop
    /// nor the device's queue.
    pub async fn prefetch(&self, offset: u64, len: u64) {
        let end = offset.saturating_add(len).min(self.size());
        let frames = self.cache.frames_per_operation().min(PREFETCH_FRAMES);
        let step = (frames * FRAME_SIZE) as u64;
        let mode = FillMode { background: true, ..FillMode::default() };
        let (mut at, mut before) = (offset, None);
        while at < end {
            if self.device().is_crowded() {
                self.device().wait_for_capacity().await;
            }
            let part = at..end.min(at + step);
            at = part.end;
            if !matches!(self.start_fill(part.clone(), mode).await, Filling::Started(_)) {
                return;
            }
            if let Some(before) = before.replace(part) {
                self.wait_filled(before).await;
            }
            yield_now().await;
        }
    }

    /// Waits until nothing of a range is being read.
    async fn wait_filled(&self, range: Range<u64>) {
        for (index, part) in self.pieces(range) {
            let blocks = self.mapping.blocks_touched(index, &part);
            self.cache.wait_while(&self.mapping, index, blocks, State::Reading).await;
        }
    }

    /// Fills a block whose range the caller holds exclusively, and waits for it: no other request
    /// drops the block meanwhile, only reclaim may. Waits for the device and the map, never for
    /// memory, because other tasks may need the range to free memory. False: memory is short. The
    /// caller releases the range and calls [`MappedFile::wait_memory`].
    pub(crate) async fn fill_held<'a>(
        &'a self,
        index: u64,
        range: &Range<u64>,
        pool: &mut FramePool<'a>,
    ) -> Result<bool> {
        debug_assert!(self.mapping.is_exclusive(range), "E4: the holder alone fills the block");
        if self.cache.lock_or_make(&self.mapping, index, false).is_none() {
            return Ok(false);
        }
        let mode = FillMode { held: true, ..FillMode::default() };
        let Filling::Started(error) = self.start_fill_with(range.clone(), mode, pool).await else {
            return Ok(false);
        };
        let blocks = self.mapping.blocks_touched(index, range);
        self.cache.wait_while(&self.mapping, index, blocks, State::Reading).await;
        error.take().map_or(Ok(true), Err)
    }

    /// Waits for what [`MappedFile::fill_held`] lacked: a folio descriptor, and a frame in `pool`.
    pub(crate) async fn wait_memory<'a>(&'a self, pool: &mut FramePool<'a>) {
        self.cache.wait_slot(&self.mapping).await;
        if pool.is_empty() {
            *pool = self.cache.wait_frames(&self.mapping, 1).await;
        }
    }

    /// Marks the missing blocks *reading*, as far as there are frames for them; returns their runs.
    fn plan_fill<'a>(
        &'a self,
        range: &Range<u64>,
        mode: FillMode,
        pool: &mut FramePool<'a>,
    ) -> std::result::Result<VecDeque<Piece>, Filling> {
        let mapping = &*self.mapping;
        let missing = self.frames_for(range);
        if missing == 0 && self.pieces(range.clone()).all(|(i, p)| self.nothing_fillable(i, &p)) {
            return Ok(VecDeque::new());
        }
        if missing > pool.len() {
            let Some(frames) = self.cache.take_frames(missing) else {
                return Err(Filling::NoFrames);
            };
            *pool = frames;
        }
        let mut planned = VecDeque::new();
        for (index, part) in self.pieces(range.clone()) {
            let Some(folio) = self.cache.lock_or_make(mapping, index, mode.passing) else {
                break;
            };
            if !mode.held && mapping.is_exclusive(&part) {
                drop(folio);
                if planned.is_empty() && !mode.background {
                    return Err(Filling::Exclusive(part));
                }
                break;
            }
            // Read under the folio lock: a writer that makes the file longer moves the size before
            // it locks the folio.
            let read_to = self.end();
            let end = part.end.min(round_up(read_to, mapping.block_size()));
            let blocks = mapping.blocks_touched(index, &(part.start..end.max(part.start)));
            if part.start >= end {
                continue;
            }
            if folio.frames_to_fill(blocks) > pool.len() {
                break;
            }
            let runs = folio.begin_fill(blocks, mode.uncached, pool);
            planned.extend(runs.into_iter().map(|blocks| Piece { index, blocks, read_to }));
        }
        Ok(planned)
    }

    /// Frames that a fill may need: counted exactly in the cached folios of a range over several;
    /// within one folio, or for an absent one, the most that they could be.
    fn frames_for(&self, range: &Range<u64>) -> usize {
        let mapping = &*self.mapping;
        let most = |part: &Range<u64>, index| {
            let blocks = mapping.blocks_touched(index, part);
            (blocks.end.div_ceil(mapping.blocks_per_frame())
                - blocks.start / mapping.blocks_per_frame()) as usize
        };
        let folios = mapping.folios(range);
        if folios.end - folios.start == 1 {
            return most(range, folios.start);
        }
        let mut missing = 0;
        for (index, part) in self.pieces(range.clone()) {
            let blocks = mapping.blocks_touched(index, &part);
            missing += match self.cache.lock_folio(mapping, index) {
                Some(folio) => folio.frames_to_fill(blocks),
                None => most(&part, index),
            };
        }
        missing
    }

    fn nothing_fillable(&self, index: u64, part: &Range<u64>) -> bool {
        let blocks = self.mapping.blocks_touched(index, part);
        let folio = self.cache.lock_folio(&self.mapping, index);
        folio.is_some_and(|f| f.fillable(blocks).is_empty())
    }

    /// Turns planned pieces into bios: as few as the map, the device and the frames allow. Removes
    /// each piece from the plan once its blocks are in bios. Returns the bytes that the device
    /// reads.
    async fn build_reads(
        &self,
        planned: &mut VecDeque<Piece>,
        error: &FillError,
        bios: &mut Vec<Bio>,
    ) -> u64 {
        let limits = self.device().limits();
        let device_block = u64::from(limits.logical_block);
        let max = MAX_BIO.min(u64::from(limits.max_transfer));
        let unsummed = Unsummed::of(self);
        let (mut open, mut of_device): (Option<OpenRead>, u64) = (None, 0);
        while let Some(piece) = planned.front_mut() {
            let (whole, rest) = (piece.clone(), &mut piece.blocks);
            let piece = &whole;
            while !rest.is_empty() {
                let range = self.mapping.range_of(piece.index, *rest);
                let eof =
                    round_up(piece.read_to, device_block.max(u64::from(self.ops.info().unit)));
                let wanted = range.start..range.end.min(eof).max(range.start);
                let extent = self.ops.map(wanted, Lookup::Read).await;
                let extent = match extent {
                    Ok(extent) => extent,
                    Err(e) => {
                        error.set(&e);
                        end_fill(&self.cache, &self.mapping, piece.index, *rest, 0, false);
                        break;
                    }
                };
                let covered = self
                    .mapping
                    .blocks_touched(piece.index, &(range.start..range.start + extent.len));
                let mut run =
                    Blocks { start: rest.start, end: covered.end.clamp(rest.start + 1, rest.end) };
                let Some(at) = extent.device_offset else {
                    rest.start = run.end;
                    let folio = self.locked(piece.index);
                    folio.fill_zero(run);
                    drop(folio);
                    self.end_waiters(piece.index);
                    continue;
                };
                let continues =
                    open.as_ref().is_some_and(|o| o.device_end == at && o.room(&limits, max) > 0);
                if !continues {
                    bios.extend(open.take().map(OpenRead::close));
                }
                let open = open.get_or_insert_with(|| OpenRead::new(self, at, error, &unsummed));
                run.end = run.end.min(run.start + open.room(&limits, max).max(1));
                rest.start = run.end;
                if let Some(sums) = &extent.sums {
                    let sums = sums[..run.len() as usize].into();
                    open.end.sums.push((piece.index, run.start, sums));
                }
                let before = open.bytes();
                open.push(&self.locked(piece.index), piece, run, extent.len);
                of_device += if extent.in_memory { 0 } else { open.bytes() - before };
                open.end.pins.extend(extent.pin);
            }
            planned.pop_front();
        }
        bios.extend(open.map(OpenRead::close));
        of_device
    }

    fn locked(&self, index: u64) -> FolioWrite<'_> {
        let folio = self.cache.lock_folio(&self.mapping, index);
        folio.expect("a folio with blocks being read is not evicted (F4)")
    }

    /// Wakes the waiters of a folio whose blocks were filled without I/O.
    fn end_waiters(&self, index: u64) {
        end_fill(&self.cache, &self.mapping, index, Blocks { start: 0, end: 0 }, u64::MAX, true);
    }

    /// `bytes`: those that the device reads.
    fn issue_reads(&self, mut bios: Vec<Bio>, bytes: u64, mode: FillMode) {
        let flags = if mode.background { BioFlags::BACKGROUND } else { BioFlags::SYNC };
        let counters = &self.cache.counters;
        let counter =
            if mode.background { &counters.readahead_bytes } else { &counters.miss_bytes };
        Counters::add(counter, bytes);
        bios.iter_mut().for_each(|b| b.flags = flags);
        let last = if mode.inline { bios.pop() } else { None };
        if !bios.is_empty() {
            self.device().submit_batch(&mut bios);
        }
        if let Some(bio) = last {
            self.device().execute(bio);
        }
    }
}

/// A bio being put together.
struct OpenRead {
    device_start: u64,
    device_end: u64,
    frames: FrameList,
    end: EndRead,
}

impl OpenRead {
    fn new(file: &MappedFile, at: u64, error: &FillError, unsummed: &Option<Unsummed>) -> Self {
        let end = EndRead {
            cache: file.cache.clone(),
            mapping: file.mapping.clone(),
            pieces: Vec::new(),
            error: error.clone(),
            sums: Vec::new(),
            pins: Vec::new(),
            unsummed: unsummed.clone(),
        };
        Self { device_start: at, device_end: at, frames: FrameList::new(file.cache.arena()), end }
    }

    fn bytes(&self) -> u64 {
        self.device_end - self.device_start
    }

    /// Blocks that can still be added.
    fn room(&self, limits: &Limits, max: u64) -> u32 {
        let bytes = max.saturating_sub(self.bytes()) / self.end.mapping.block_size();
        let segments = limits.max_segments as usize - self.frames.segment_count();
        bytes.min(segments as u64) as u32
    }

    /// Adds `len` bytes: the blocks of `run`, a part of `piece`, the last of which may be cut off
    /// by the end of file.
    fn push(&mut self, folio: &FolioWrite<'_>, piece: &Piece, run: Blocks, len: u64) {
        let block = self.end.mapping.block_size();
        let mut left = len.min(u64::from(run.len()) * block);
        for b in run.start..run.end {
            let (frame, at) = folio.place(b);
            let take = left.min(block);
            if take > 0 {
                self.frames.push(frame, at, take as usize);
            }
            self.device_end += take;
            left -= take;
        }
        match self.end.pieces.last_mut() {
            Some(last)
                if last.index == piece.index
                    && last.blocks.end == run.start
                    && last.read_to == piece.read_to =>
            {
                last.blocks.end = run.end;
            }
            _ => {
                let (index, read_to) = (piece.index, piece.read_to);
                self.end.pieces.push(Piece { index, blocks: run, read_to });
            }
        }
    }

    fn close(self) -> Bio {
        let (start, len, mut end) = (self.device_start, self.bytes(), self.end);
        let data = DataRef::Mem(Box::new(self.frames));
        Bio::new(BioOp::Read, start, len, data, Box::new(move |done| end.end(&done.result)))
    }
}
