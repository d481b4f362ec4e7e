//! The contract between the mapping layer and the map, which knows where bytes are stored.
//!
//! ```text
//!  accept      admit ── no space: ENOSPC now, never first at fsync
//!                │ the block is dirty, which counts as its grant
//!  write out   reserve ──▶ capture, sequence drawn ──▶ issue ──▶ publish ──▶ commit: durable
//!                │ places   (folio lock, or range held)    │ failed
//!                └──────────── dropped ◀───────────────────┘  places returned, block dirty again
//! ```
//!
//! Rules: O1 the sequence of a piece is drawn when its content is fixed: under the folio lock with
//! the capture, or once a direct range is held; so where pieces overlap, the higher one is newer.
//! O2 publish and replay resolve overlaps by sequence, never by order of completion. O3 unpublished
//! places of a reservation are returned when its last holder drops it, and not before: a bio in
//! flight is a holder. O4 a place that is no longer referred to is reused only after every read
//! planned before that has ended: a reader that maps holds the extent's `pin` for as long. O5 a
//! size is published when the bytes below it are: never beyond a block that is dirty or in
//! write-out. O6 reserving waits before any block is captured: a wait for space holds no block in
//! write-out.

use forebay_base::sync::Mutex;
use forebay_base::sync::atomic::{AtomicBool, Ordering};
use forebay_base::task::BoxFuture;
use forebay_base::{ErrorKind, Result};
use forebay_block::{DeviceRef, MapRuns, StableWrites};
use forebay_cache::folio::Label;
use forebay_cache::rangeset::RangeSet;
use forebay_cache::{Mapping, PageCache};
use std::any::Any;
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// A run of a file, and where it is.
#[derive(Clone)]
pub struct Extent {
    /// First byte in the file.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// First byte on the device; `None` is a hole: it reads as zeros.
    pub device_offset: Option<u64>,
    /// The expected checksums of the stored units.
    pub sums: Option<Sums>,
    /// Keeps the place from being reused while it is held (O4).
    pub pin: Option<Arc<dyn Any + Send + Sync>>,
    /// The bytes are in memory: reads of them are not counted as reads of the device.
    pub in_memory: bool,
}

/// CRC-32C of each checksum unit of an extent, from the unit that holds its first byte on.
pub type Sums = Arc<[u32]>;

/// A piece of a reservation: one run on the device for one run of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// First byte in the file.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// First byte on the device.
    pub device_offset: u64,
}

impl Place {
    /// The bytes of the file.
    pub fn range(&self) -> Range<u64> {
        self.offset..self.offset + self.len
    }
}

/// A piece that was written: a part of a place.
#[derive(Debug, Clone)]
pub struct Written {
    /// Where.
    pub place: Place,
    /// When its content was fixed (O1).
    pub sequence: u64,
    /// A sum for each unit, where the map keeps them.
    pub sums: Vec<u32>,
}

/// Why space is reserved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// Write-back that no caller waits for.
    Background,
    /// A caller syncs.
    Sync,
    /// A write past the cache.
    Direct,
}

/// The resources that an operation holds of its file. Each bio that changes the device keeps a
/// clone until it ends, because the task that waits for the operation may be dropped while the
/// device has the request in its queue.
pub type BioOwned = Arc<dyn Any + Send + Sync>;

/// The owner of places: takes back those that were not published.
pub trait GiveBack: Send + Sync {
    /// Frees these places.
    fn give_back(&self, places: &[Place]);

    /// A write to a place, or to a part of it, failed, and not for lack of space below. The place
    /// is returned later; the map may allocate another one. Called for each of several places that
    /// were written together, also from the end of a bio.
    fn write_failed(&self, _place: &Place) {}
}

/// Places for runs of a file. Unpublished ones are returned on drop (O3).
pub struct Reservation {
    places: Vec<Place>,
    owner: Option<Arc<dyn GiveBack>>,
    /// The published parts, by device address. Empty if the map needs no part back.
    published: Mutex<Vec<Range<u64>>>,
    /// The map has ended it with its last piece.
    is_ended: AtomicBool,
}

impl Reservation {
    /// Places that need not be given back.
    pub fn in_place(places: Vec<Place>) -> Self {
        Self { places, owner: None, published: Mutex::default(), is_ended: AtomicBool::new(false) }
    }

    /// Places that go back to `owner`.
    pub fn new(places: Vec<Place>, owner: Arc<dyn GiveBack>) -> Self {
        let (published, is_ended) = (Mutex::default(), AtomicBool::new(false));
        Self { places, owner: Some(owner), published, is_ended }
    }

    /// The places, in the order of the runs asked for. They cover these runs, or the first of them
    /// if there was not enough space.
    pub fn places(&self) -> &[Place] {
        &self.places
    }

    /// [`GiveBack::write_failed`] of the owner.
    pub fn write_failed(&self, place: &Place) {
        if let Some(owner) = &self.owner {
            owner.write_failed(place);
        }
    }

    /// Called by the map as it publishes a part.
    pub fn note_published(&self, place: &Place) {
        let part = place.device_offset..place.device_offset + place.len;
        let mut published = self.published.lock();
        let twice = published.iter().any(|p| p.start < part.end && part.start < p.end);
        assert!(!twice, "O3: a place is published once");
        match published.last_mut() {
            Some(last) if last.end == part.start => last.end = part.end,
            _ => published.push(part),
        }
    }

    /// Called by the map after it has published pieces. True, once: all places are published, and
    /// none has to be returned (O3). The map ends the reservation now, and its owner is not called
    /// when it is dropped.
    pub fn end_if_published(&self) -> bool {
        if self.owner.is_none() {
            return false;
        }
        let published: u64 = self.published.lock().iter().map(|p| p.end - p.start).sum();
        let is_published = published == self.places.iter().map(|place| place.len).sum();
        // No two pieces overlap. So no later piece is published, and one caller finds the last one.
        is_published && !self.is_ended.swap(true, Ordering::AcqRel)
    }
}

impl Reservation {
    /// Returns the unpublished places to the map now, and the list's memory, emptied, to the
    /// caller.
    pub fn end(mut self) -> Vec<Place> {
        self.give_back();
        let mut places = std::mem::take(&mut self.places);
        places.clear();
        places
    }

    fn give_back(&mut self) {
        let Some(owner) = self.owner.take() else { return };
        if *self.is_ended.get_mut() {
            return;
        }
        let mut published = std::mem::take(&mut *self.published.lock());
        published.sort_unstable_by_key(|p| p.start);
        let mut left = Vec::new();
        for place in &self.places {
            let (end, mut at) = (place.device_offset + place.len, place.device_offset);
            let mut push = |from: u64, to: u64| {
                if from < to {
                    let offset = place.offset + (from - place.device_offset);
                    left.push(Place { offset, len: to - from, device_offset: from });
                }
            };
            for part in published.iter() {
                if part.start >= end || part.end <= at {
                    continue;
                }
                push(at, part.start);
                at = at.max(part.end);
            }
            push(at, end);
        }
        owner.give_back(&left);
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.give_back();
    }
}

/// What a commit makes durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Commit {
    /// The bytes, and the metadata to find them.
    Data,
    /// All metadata, too.
    All,
}

/// The properties of a map. Some may change, so each decision reads them again.
#[derive(Debug, Clone, Copy)]
pub struct MapInfo {
    /// The identity of the file, for monitoring of the cache: its owner, and its number within that
    /// owner.
    pub label: Label,
    /// Unit of places, bytes: a power of two. Direct requests are multiples of it.
    pub unit: u32,
    /// Sums are kept, one for each unit.
    pub sums: bool,
    /// Whether and why bytes must not change between capture and completion, as the map requires.
    pub stable: StableWrites,
    /// The map writes in place, and a write with FUA is durable and found after a crash, so that it
    /// needs no commit.
    pub fua_suffices: bool,
    /// The map knows what a failed flush has lost ([`MapOps::lost`]), and its commits fail for that
    /// alone. With another map every sync of a file fails once a flush may have lost bytes of it
    /// that no frame holds.
    pub tracks_losses: bool,
    /// [`Change::Grow`] and [`Change::Truncate`] can work.
    pub can_grow: bool,
    /// [`Change::Zero`] is faster than writing zeros.
    pub zeroes_fast: bool,
    /// [`Change::Zero`] gives space back.
    pub zeroing_frees: bool,
}

/// Why a place is looked up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lookup {
    /// The caller reads it: a map may read content ahead.
    Read,
    /// The caller reads nothing.
    Find,
}

/// For which blocks a writer asks for space.
#[derive(Debug, Clone, Copy)]
pub enum Admit<'a> {
    /// New ones: no block of the file becomes free for them.
    New,
    /// Those of a range. Where the file has places for them, overwriting makes these free.
    Within(&'a Range<u64>),
    /// One that a truncate makes dirty, because the new end lies within it. It may use the last
    /// space, because the truncate makes space.
    Edge,
}

/// A change of a file's map.
#[derive(Clone)]
pub enum Change {
    /// Makes a range read as zeros. The range is a multiple of the unit except at the end of file;
    /// the caller holds it exclusively.
    Zero {
        /// Bytes of the file.
        range: Range<u64>,
        /// The space of the range is kept.
        keep_allocated: bool,
        /// Fails with `Unsupported` if zeros would have to be written.
        fast_only: bool,
        /// Kept by each bio that changes the device.
        owned: BioOwned,
    },
    /// Makes room for a file of this size, larger than now; the new bytes read as zeros until they
    /// are written.
    Grow(u64),
    /// Truncates the file to this size, below its current size. The caller holds all of it
    /// exclusively, from the block of the size on, and writes that block again if the size lies
    /// within it. The second value is as `owned` above.
    Truncate(u64, BioOwned),
}

/// Content of a file that was accepted, and that the map knows to be lost.
#[derive(Debug, Default)]
pub struct LostContent {
    /// There is some, so that commits fail. After such a commit the blocks that it covers are
    /// written again, as far as the cache holds them.
    pub is_any: bool,
    /// Those of the blocks asked for that are lost, whatever the commits say. They are written
    /// again, as far as the cache holds them.
    pub blocks: Vec<Range<u64>>,
    /// The published size, and lost content that follows it: the map publishes no size that ends in
    /// it. Only for whether a size has to be published, because writes of it may be in flight.
    pub covered_size: Option<u64>,
}

/// A value now, or later: a map that is kept in memory answers without boxing.
pub enum MapFuture<'a, T> {
    /// The value; `None` after it was taken.
    Now(Option<T>),
    /// The answer has to be loaded.
    Later(BoxFuture<'a, T>),
}

impl<T: Unpin> Future for MapFuture<'_, T> {
    type Output = T;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        match &mut *self {
            Self::Now(value) => Poll::Ready(value.take().expect("polled once")),
            Self::Later(future) => future.as_mut().poll(cx),
        }
    }
}

/// Whether a failed write shows that its place is bad. A host without space below the device says
/// nothing about the place, and another place that was never written would need space, too.
pub fn is_bad(done: &Result<()>) -> bool {
    done.as_ref().is_err_and(|error| error.kind() != ErrorKind::NoSpace)
}

/// Where a file's bytes are.
pub trait MapOps: Send + Sync {
    /// The device that places refer to.
    fn device(&self) -> &DeviceRef;

    /// The current properties.
    fn info(&self) -> MapInfo;

    /// The extent that begins at `range.start`, clipped to `range`; it ends at a multiple of the
    /// unit, or at the end of `range`.
    fn map(&self, range: Range<u64>, why: Lookup) -> MapFuture<'_, Result<Extent>>;

    /// The map of a range: runs in order from its start on, at most `max` (1 or more) and perhaps
    /// fewer, so that no call takes long. Calls that block run on another thread.
    fn extents(&self, range: Range<u64>, max: usize) -> BoxFuture<'_, Result<MapRuns>>;

    /// `new` bytes are about to become dirty in addition to `dirty` bytes: `NoSpace` if there would
    /// be no space to write all of them. A dirty block counts as its own grant of space, so there
    /// is nothing to give back. The caller reports admitted bytes that became dirty by
    /// [`MapOps::arrived`].
    fn admit(&self, _new: u64, _dirty: u64, _of: Admit<'_>) -> Result<()> {
        Ok(())
    }

    /// This number of admitted bytes counts as dirty now, or will not be written after all.
    fn arrived(&self, _bytes: u64) {}

    /// Blocks of `range` were refused, and the file's dirty blocks are written out: makes space for
    /// `range`. False if that is not possible.
    fn make_room(&self, _range: Range<u64>) -> BoxFuture<'_, bool> {
        Box::pin(std::future::ready(false))
    }

    /// An uncached buffered write is about to dirty this range: a map that allocates in advance
    /// does it now, so that places are ready at write-out. A hint, never waits.
    fn announce(&self, _range: &Range<u64>) {}

    /// Reserves space for runs of the file, in complete units. Waits for space before any block is
    /// captured (O6). Where little space becomes free at a time, the reservation may cover only the
    /// first runs. A map that answers at once may take `places`, an empty list, for its result.
    /// Errors: `NoSpace`.
    fn reserve(
        &self,
        runs: &[Range<u64>],
        class: Class,
        places: &mut Vec<Place>,
    ) -> MapFuture<'_, Result<Reservation>>;

    /// The next sequence (O1), volume-wide.
    fn sequence(&self) -> u64;

    /// The pieces are written: readers find them there from now on, unless a later sequence was
    /// published for part of them (O2). `size`: the size that may be made recoverable (O5). Changes
    /// only memory, cannot fail, may run in a device's completion.
    fn publish(&self, reservation: &Reservation, written: &[Written], size: u64);

    /// The size last passed to [`MapOps::publish`], if the map keeps one.
    fn published_size(&self) -> Option<u64> {
        None
    }

    /// Makes published pieces durable and findable. `here`: the caller blocks, and I/O may be
    /// carried out on its thread.
    fn commit(&self, what: Commit, here: bool) -> BoxFuture<'_, Result<()>>;

    /// How many flushes of the device have failed by now. Only for a map that flushes one at a time
    /// and counts each failure before the next flush begins. Then a successful commit waits only
    /// for concurrent ones that began before the last failure. A commit that fails while the count
    /// stays the same has lost nothing: the next commit covers its writes. `None`: a failure may be
    /// reported after the success of a later flush. So a successful commit waits for all concurrent
    /// ones, and each failed commit counts as a failed flush.
    fn flush_failures(&self) -> Option<u64> {
        None
    }

    /// What is lost of the file; its blocks within `covered`, numbered as in the mapping.
    fn lost(&self, _covered: &RangeSet) -> LostContent {
        LostContent { covered_size: self.published_size(), ..LostContent::default() }
    }

    /// Changes the map. Draws a sequence (O1), except to grow. A map that changes only memory does
    /// so in one step; the task may be dropped before or after it.
    fn change(&self, change: Change) -> MapFuture<'_, Result<()>>;
}

/// A failed flush may have lost bytes of a file that no frame holds. A map that tracks losses fails
/// the commits of the file while some are lost.
pub(crate) fn may_be_lost(mapping: &Mapping, ops: &dyn MapOps, why: &str) {
    match ops.info().tracks_losses {
        true => mapping.note_possible_loss(),
        false => mapping.poison(why),
    }
}

/// The size that may be published now: up to the lowest block that is dirty or in write-out, beyond
/// the published size. `ended`: the number of a write-out whose last bio has ended well, so its
/// blocks are written, or dirty again. During another write-out that is the first block of it: a
/// sync publishes the rest. The guard is held until the size is published:
/// [`Bounds::uncut`](forebay_cache::bounds::Bounds::uncut).
pub(crate) fn publishable_size(
    cache: &PageCache,
    mapping: &Mapping,
    ops: &dyn MapOps,
    ended: Option<u64>,
) -> u64 {
    // The size is read first: all blocks below it were dirty before it was shown, so each is found
    // dirty or in write-out, or is written. A longer size published earlier has been truncated by
    // the time the file grows again.
    let size = mapping.bounds.visible();
    let Some(published) = ops.published_size() else { return 0 };
    size.min(cache.lowest_unwritten_except(mapping, published.min(size), ended))
}
