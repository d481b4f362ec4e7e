//! Pinned reads: the cached bytes of a range without a copy. What a pin is, and what keeps its
//! bytes from changing: [`forebay_cache::folio::pinned`].
//!
//! Invariant: pin.P6 no frame is pinned whose blocks an operation holds exclusively. So an
//! operation that has replaced the pinned frames of a block it holds may zero bytes of that block
//! later. Locks: one folio lock at a time, for the length of a pin; never across a wait.

use crate::file::{Handle, MappedFile, Target};
use crate::fill::{FillError, FillMode};
use crate::passing::Passing;
use forebay_base::buf::AlignedBuf;
use forebay_base::units::{is_aligned, round_down, round_up};
use forebay_base::{Error, ErrorKind, IoFlags, Result};
use forebay_cache::folio::Blocks;
use forebay_cache::stats::Counters;
use forebay_cache::{FRAME_SIZE, FolioWrite, Pinned, State};
use std::ops::Range;

/// How often a piece whose blocks are evicted before they are pinned is read again.
const TRIES: usize = 8;

/// The parameters of a pin.
#[derive(Debug, Clone, Copy)]
pub struct PinRequest {
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: usize,
    /// How the cache is used: `UNCACHED`, `NOWAIT`, `HIPRI`.
    pub flags: IoFlags,
    /// Whether a copy will do where nothing may be pinned.
    pub may_copy: bool,
    /// Whether the calling thread may carry out the read itself.
    pub blocking: bool,
}

/// What stands in the way of a pin of a part of a folio.
enum Obstacle {
    /// Some blocks are not there.
    Absent,
    /// These blocks are being read into their frames.
    Reading(Blocks),
    /// This range is held exclusively.
    Exclusive(Range<u64>),
    /// Pins hold as many frames or folios as they may.
    Limit,
}

/// What became of a piece of a pin.
enum Outcome {
    /// The complete range is pinned.
    Whole,
    /// The range crosses the end of the file, or is behind it. The pin covers the part before it.
    Cut,
    /// It cannot be pinned.
    Refused,
}

impl MappedFile {
    fn check_pin(&self, request: &PinRequest) -> Result<Range<u64>> {
        let refused = IoFlags::DIRECT | IoFlags::FALLBACK;
        if request.flags.intersects(refused) {
            let text = format!("{:?}: a pin is of cached bytes", request.flags & refused);
            return Err(Error::new(ErrorKind::Unsupported, "pin", text));
        }
        self.check_read(request.offset, request.len, request.flags)
    }

    /// Pins a range if it is fully cached and needs no wait. Else, or if its stream is due to read
    /// ahead, pins nothing and returns `None`.
    #[inline]
    pub fn try_pin(&self, handle: &Handle, request: &PinRequest) -> Option<Result<Pinned>> {
        let range = match self.check_pin(request) {
            Ok(range) => range,
            Err(error) => return Some(Err(error)),
        };
        let passing = request.flags.contains(IoFlags::UNCACHED);
        if !passing && handle.streams.hit(range.start, range.end) {
            return None;
        }
        self.pin_cached(&range, passing).map(Ok)
    }

    /// Pins a range that is all cached; `None` if it is not, or cannot be pinned now. `passing`: it
    /// does not count as a touch, and a block brought in by an uncached request is refused.
    fn pin_cached(&self, range: &Range<u64>, passing: bool) -> Option<Pinned> {
        let mapping = &*self.mapping;
        let mut pinned = Pinned::new(&self.cache, mapping.id);
        let index = mapping.folio_index(range.start);
        let hits = if range.end - mapping.folio_start(index) <= mapping.folio_size() {
            self.pin_cached_piece(index, range, passing, &mut pinned)?
        } else {
            self.pin_cached_folios(range, passing, &mut pinned)?
        };
        self.cache.hits.add(hits);
        self.cache.pins.add(1);
        Some(pinned)
    }

    /// As `pin_cached`, for a range of several folios. A range that is only partly cached touches
    /// nothing, because the slow path pins all of it: one pin is one touch.
    #[inline(never)]
    fn pin_cached_folios(
        &self,
        range: &Range<u64>,
        passing: bool,
        pinned: &mut Pinned,
    ) -> Option<u64> {
        if !self.all_cached(range) {
            return None;
        }
        let mut hits = 0;
        for (index, piece) in self.pieces(range.clone()) {
            hits += self.pin_cached_piece(index, &piece, passing, pinned)?;
        }
        Some(hits)
    }

    /// Pins a piece of one folio if it is cached. Returns the number of its blocks.
    #[inline]
    fn pin_cached_piece(
        &self,
        index: u64,
        piece: &Range<u64>,
        passing: bool,
        pinned: &mut Pinned,
    ) -> Option<u64> {
        let mapping = &*self.mapping;
        if piece.is_empty() {
            return Some(0);
        }
        let folio = self.cache.lock_folio(mapping, index)?;
        let blocks = mapping.blocks_touched(index, piece);
        if passing && folio.any(State::Uncached, blocks) {
            return None;
        }
        // The file may have become shorter since the range was clipped.
        if piece.end > self.size() || self.pin_part(&folio, piece, pinned).is_err() {
            return None;
        }
        if !passing {
            self.touch_pinned(&folio, piece);
        }
        Some(u64::from(blocks.len()))
    }

    fn touch_pinned(&self, folio: &FolioWrite<'_>, piece: &Range<u64>) {
        let blocks = self.mapping.blocks_touched(folio.index, piece);
        Passing::Cached.read(folio, blocks, !is_aligned(piece.start, self.mapping.block_size()));
    }

    /// Pins a part of a folio, or says what stands in the way, having changed nothing.
    #[inline]
    fn pin_part(
        &self,
        folio: &FolioWrite<'_>,
        piece: &Range<u64>,
        pinned: &mut Pinned,
    ) -> std::result::Result<(), Obstacle> {
        let mapping = &*self.mapping;
        let blocks = mapping.blocks_touched(folio.index, piece);
        let whole = blocks.whole_frames(mapping.blocks_per_frame());
        let held = mapping.range_of(folio.index, whole);
        if mapping.is_exclusive(&held) {
            return Err(Obstacle::Exclusive(held));
        }
        if folio.any(State::Reading, whole) {
            return Err(Obstacle::Reading(whole));
        }
        if !folio.all(State::Uptodate, blocks) {
            return Err(Obstacle::Absent);
        }
        let base = mapping.folio_start(folio.index);
        let bytes = (piece.start - base) as usize..(piece.end - base) as usize;
        if folio.pin(bytes, pinned) { Ok(()) } else { Err(Obstacle::Limit) }
    }

    /// Pins a range, reading into the cache what is missing of it. Fewer bytes than asked only at
    /// the end of file. The bytes are a copy where pins hold as many frames or folios as they may,
    /// where frames are short, or if the range is not cached and the flags ask to leave nothing in
    /// the cache; `None` if the caller wants no copy. Errors: those of a read; `Unsupported` with
    /// `DIRECT`, `WouldBlock` with `NOWAIT`, `NoMemory` for a copy larger than the cache's budget.
    pub async fn pin(&self, handle: &Handle, request: PinRequest) -> Result<Option<Pinned>> {
        let range = self.check_pin(&request)?;
        let PinRequest { flags, may_copy, .. } = request;
        if range.is_empty() {
            return Ok(Some(Pinned::new(&self.cache, self.mapping.id)));
        }
        let frame = FRAME_SIZE as u64;
        let frames = (round_up(range.end, frame) - round_down(range.start, frame)) / frame;
        let folios = self.mapping.folios(&range);
        let folios = folios.end - folios.start;
        let pinned = if !self.cache.can_pin(frames, folios) {
            None
        } else if flags.intersects(IoFlags::NOWAIT | IoFlags::UNCACHED) {
            self.pin_cached(&range, flags.contains(IoFlags::UNCACHED))
        } else {
            self.pin_through(handle, &range, request.blocking).await?
        };
        if pinned.is_some() {
            return Ok(pinned);
        }
        if !may_copy && flags.contains(IoFlags::NOWAIT) && self.cache.can_pin(frames, folios) {
            return Err(Error::new(ErrorKind::WouldBlock, "pin", "not all of it is cached"));
        }
        if !may_copy {
            Counters::add(&self.cache.counters.pin_refusals, 1);
            return Ok(None);
        }
        let mut buf = self.memory_for_copy(&range)?;
        let target = match request.blocking {
            true => Target::Slice(&mut buf),
            false => Target::Owned(&mut buf),
        };
        let len = self.read(handle, range.start, target, flags).await?;
        Counters::add(&self.cache.counters.pin_copies, 1);
        Ok(Some(Pinned::copied(buf, len)))
    }

    /// Memory for a copy of a range, at most as large as the budget of the cache. The caller chose
    /// the length, and a sparse file may have that many bytes.
    fn memory_for_copy(&self, range: &Range<u64>) -> Result<AlignedBuf> {
        let (len, budget) = (range.end - range.start, self.cache.budget_bytes());
        let buf = usize::try_from(len).ok().filter(|_| len <= budget).and_then(AlignedBuf::try_new);
        buf.ok_or_else(|| {
            let text = format!("a copy of {len} bytes, with a budget of {budget}");
            Error::new(ErrorKind::NoMemory, "pin", text)
        })
    }

    /// Pins through the cache, with readahead. `None`: the limit of pins is reached, there are no
    /// frames, or blocks are evicted before they are pinned.
    async fn pin_through(
        &self,
        handle: &Handle,
        range: &Range<u64>,
        blocking: bool,
    ) -> Result<Option<Pinned>> {
        let mut ahead = self.plan_ahead(handle, range);
        let window = (self.cache.frames_per_operation() * FRAME_SIZE) as u64;
        let mut mode = FillMode { inline: blocking && ahead.is_empty(), ..FillMode::default() };
        let mut pinned = Pinned::new(&self.cache, self.mapping.id);
        let mut at = range.start;
        while at < range.end {
            // Parts meet at frame boundaries: a pin holds each of its frames once.
            let part = at..range.end.min(round_down(at + window, FRAME_SIZE as u64));
            let error = self.fill_or_wait(part.clone(), mode).await;
            if !ahead.is_empty() {
                let background = FillMode { background: true, ..FillMode::default() };
                self.start_fill(std::mem::take(&mut ahead), background).await;
                mode.inline = blocking;
            }
            for (index, piece) in self.pieces(part.clone()) {
                match self.pin_piece(index, piece, (&error, mode), &mut pinned).await? {
                    Outcome::Whole => {}
                    // The file may have grown again meanwhile: what follows the cut is not pinned,
                    // or its bytes would stand at wrong offsets.
                    Outcome::Cut => return Ok(Some(self.counted(pinned))),
                    Outcome::Refused => return Ok(None),
                }
            }
            at = part.end;
        }
        Ok(Some(self.counted(pinned)))
    }

    fn counted(&self, pinned: Pinned) -> Pinned {
        self.cache.pins.add(1);
        pinned
    }

    /// Pins a piece of one folio when its blocks have been read.
    async fn pin_piece(
        &self,
        index: u64,
        piece: Range<u64>,
        (error, mode): (&Option<FillError>, FillMode),
        pinned: &mut Pinned,
    ) -> Result<Outcome> {
        let mapping = &*self.mapping;
        let (mut error, mut tries) = (error.clone(), 0);
        loop {
            let obstacle = match self.cache.lock_folio(mapping, index) {
                None => Obstacle::Absent,
                Some(folio) => {
                    // If the file was truncated meanwhile, the pin ends at its new end.
                    let whole = piece.end;
                    let piece = piece.start..whole.min(self.size());
                    if piece.start >= piece.end {
                        return Ok(Outcome::Cut);
                    }
                    match self.pin_part(&folio, &piece, pinned) {
                        Err(obstacle) => obstacle,
                        Ok(()) => {
                            self.touch_pinned(&folio, &piece);
                            let blocks = mapping.blocks_touched(index, &piece);
                            let misses = &self.cache.counters.misses;
                            Counters::add(misses, u64::from(blocks.len()));
                            let is_whole = piece.end == whole;
                            return Ok(if is_whole { Outcome::Whole } else { Outcome::Cut });
                        }
                    }
                }
            };
            match obstacle {
                Obstacle::Limit => return Ok(Outcome::Refused),
                Obstacle::Reading(blocks) => {
                    self.cache.wait_while(mapping, index, blocks, State::Reading).await;
                    continue;
                }
                Obstacle::Exclusive(held) => {
                    mapping.bounds.wait_not_exclusive(held).await;
                    continue;
                }
                Obstacle::Absent => {}
            }
            if let Some(error) = error.as_ref().and_then(FillError::take) {
                return Err(error);
            }
            tries += 1;
            let end = piece.end.min(self.size());
            if piece.start >= end {
                return Ok(Outcome::Cut);
            }
            error = self.fill_or_wait(piece.start..end, mode).await;
            if error.is_none() || tries > TRIES {
                return Ok(Outcome::Refused);
            }
        }
    }
}
