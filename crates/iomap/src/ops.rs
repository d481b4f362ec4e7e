//! The contract between the mapping layer and whoever knows where bytes are.
//!
//! A write to storage is three steps (see docs/publish-order.md):
//! ```text
//!             issue I/O to the places            all I/O ok
//!   reserve ──────────────────────────▶ in flight ─────────▶ publish   the bytes are found there
//!      │                                    │ any I/O failed
//!      └── seq taken here                   └──────────────▶ abort     the places go back
//! ```
//! Rules: O1 `seq` is taken at reservation and grows per file. O2 publish and replay resolve
//! overlaps by `seq`, never by order of completion. O3 each reservation is published or aborted
//! once. O4 a place that is no longer referred to is reused only after every read planned before
//! that has ended: whoever maps holds the extent's `pin` for as long.

use forebay_base::task::BoxFuture;
use forebay_base::{Error, Result};
use forebay_block::{DeviceRef, MapRuns};
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
    /// Keeps the place from being reused while it is held (O4).
    pub pin: Option<Arc<dyn Any + Send + Sync>>,
}

/// A piece of a reservation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// First byte in the file.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// First byte on the device.
    pub device_offset: u64,
}

/// Room for one run of a file.
#[derive(Debug)]
pub struct Reservation {
    /// Order of this run among all of the file.
    pub seq: u64,
    /// Where to write, in file order, covering the run.
    pub places: Vec<Place>,
}

/// A value now, or later: mappings kept in memory answer without boxing.
pub enum MapFuture<'a, T> {
    /// There it is. `None` after it was taken.
    Now(Option<T>),
    /// It has to be looked up.
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

/// Where a file's bytes are.
pub trait MapOps: Send + Sync {
    /// The device that places refer to.
    fn device(&self) -> &DeviceRef;

    /// Unit of places, bytes: a power of two. Direct requests must be multiples of it.
    fn unit(&self) -> u32;

    /// The extent that begins at `range.start`, clipped to `range`.
    fn map(&self, range: Range<u64>) -> MapFuture<'_, Result<Extent>>;

    /// Reserves room for a run, a multiple of the unit save at the end of file. Errors: `NoSpace`.
    fn reserve(&self, range: Range<u64>) -> Result<Reservation>;

    /// The bytes are written: from now on they are found at the reservation's places, unless a
    /// later `seq` has been published for part of them (O2).
    fn publish(&self, reservation: Reservation) -> Result<()>;

    /// The write failed: the places go back.
    fn abort(&self, reservation: Reservation, error: &Error);

    /// Makes a run read as zeros and gives its space back unless `keep_allocated`. The run is a
    /// multiple of the unit save at the end of file; the caller holds it exclusively.
    fn zero(
        &self,
        range: Range<u64>,
        keep_allocated: bool,
        fast_only: bool,
    ) -> BoxFuture<'_, Result<()>>;

    /// Whether [`MapOps::grow`] can work.
    fn can_grow(&self) -> bool {
        false
    }

    /// Makes room for a longer file; the new bytes read as zeros until they are written.
    fn grow(&self, size: u64) -> Result<()> {
        self.device().grow(size)
    }

    /// Whether `zero` is faster than writing zeros, and whether it gives space back.
    fn can_zero(&self) -> (bool, bool);

    /// Map of a range: runs in order from its start on, at most `max` (1 or more) of them and perhaps
    /// fewer, so that no call is long. What would block is done on another thread.
    fn extents(&self, range: Range<u64>, max: usize) -> BoxFuture<'_, Result<MapRuns>>;
}
