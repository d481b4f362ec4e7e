//! The resources that an operation holds of a file while the device may carry out its requests: one
//! value, owned by the operation and by each of its bios.
//!
//! ```text
//!   take: range, ticket, dirty blocks, places, memory
//!     └──share──▶ operation ──────────clone──────────▶ bio, bio, ..
//!                   │ ends, or is dropped                │ completes, or is destroyed
//!                   └───────────────┬────────────────────┘
//!                                   ▼ after the last of them
//!         record unflushed bytes; give back: dirty blocks, places, memory, ticket, range
//! ```
//!
//! A caller may drop its future at any time; the device still runs the request in its queue. So no
//! resource is released before the last bio has ended.
//!
//! Invariants: T1 while a request that changes the device may run, its range is held and its ticket
//! counts. T2 taken blocks are dropped only if the operation declares itself done; otherwise they
//! are dirty again. T3 taken blocks are given back before the ticket ends, and the ticket ends
//! before the range is free.
//!
//! No locks of its own.

use crate::file::MappedFile;
use crate::ops::{BioOwned, MapOps, Place, Reservation, is_bad, may_be_lost};
use crate::records::Ticket;
use crate::taken::Taken;
use forebay_base::Result;
use forebay_base::sync::Arc;
use forebay_base::sync::atomic::{AtomicBool, Ordering};
use forebay_cache::bounds::{Exclusive, HoldsBlocks};
use forebay_cache::dirty::unflushed::Epoch;
use forebay_cache::held::Held;
use forebay_cache::{Mapping, OwnedPermit, PageCache};
use std::ops::Range;

/// What one operation holds of a file. Shared with its bios, and released with the last reference:
/// the taken blocks first, the other fields in this order (T3).
pub(crate) struct InFlight {
    /// Dirty blocks that the operation replaces.
    pub replaced: Taken,
    /// Dirty blocks that the operation keeps from write-out; they are dirty again at its end in any
    /// case.
    pub kept_back: Taken,
    /// The places that the operation writes to.
    pub reservation: Option<Reservation>,
    /// Private memory that its bios use.
    pub permit: Option<OwnedPermit>,
    _ticket: Ticket,
    held: Held,
    /// Number of failed flushes just before the first request was submitted; `None`: no request
    /// was.
    epoch: Option<Epoch>,
    is_done: AtomicBool,
    is_durable: AtomicBool,
    ops: std::sync::Arc<dyn MapOps>,
    mapping: Arc<Mapping>,
    cache: Arc<PageCache>,
}

impl InFlight {
    /// An operation of `file` that changes bytes of `range`, whose blocks it holds. From here on a
    /// sync waits for it.
    pub fn new(file: &MappedFile, held: Exclusive<'_>, range: Range<u64>) -> Self {
        Self {
            replaced: Taken::default(),
            kept_back: Taken::default(),
            reservation: None,
            permit: None,
            _ticket: Ticket::new(&file.mapping, range),
            held: held.keep(&file.mapping),
            epoch: None,
            is_done: AtomicBool::new(false),
            is_durable: AtomicBool::new(false),
            ops: file.ops.clone(),
            mapping: file.mapping.clone(),
            cache: file.cache.clone(),
        }
    }

    /// The range that it holds.
    pub fn held(&self) -> &Held {
        &self.held
    }

    /// Called just before requests are submitted: from here on its bios own the value, too.
    pub fn share(mut self) -> std::sync::Arc<Self> {
        self.epoch = Some(self.mapping.unflushed.epoch());
        std::sync::Arc::new(self)
    }

    /// A reference for each request that the map submits.
    pub fn owned(self: &std::sync::Arc<Self>) -> BioOwned {
        self.clone()
    }

    /// The operation has succeeded: the blocks it replaces are dropped.
    pub fn done(&self) {
        self.is_done.store(true, Ordering::Release);
    }

    /// Its bytes are durable, or the caller flushes them: no later flush has to cover them.
    pub fn durable(&self) {
        self.is_durable.store(true, Ordering::Release);
    }

    /// The places of [`InFlight::reservation`].
    pub fn places(&self) -> &[Place] {
        self.reservation.as_ref().map_or(&[], Reservation::places)
    }

    /// A write of `place` is over: tells the map if it has failed because the place is bad.
    pub fn wrote(&self, place: &Place, result: &Result<()>) {
        if let Some(reservation) = self.reservation.as_ref().filter(|_| is_bad(result)) {
            reservation.write_failed(place);
        }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        debug_assert!(
            self.mapping.is_exclusive(&self.held.range()),
            "T3: the range is held to the end"
        );
        let is_done = self.is_done.load(Ordering::Acquire);
        // The device has new bytes that no frame holds: if a flush fails from now on, or has failed
        // since `epoch`, they cannot be written again. With a map that writes in place this holds
        // after a failure, too: the write may be partly done. A map that writes elsewhere publishes
        // no place of a failed operation.
        let may_have_changed = is_done || self.ops.info().fua_suffices;
        if let Some(epoch) = self.epoch
            && may_have_changed
            && !self.is_durable.load(Ordering::Acquire)
            && !self.mapping.unflushed.completed(epoch, None, Default::default)
        {
            let why = "a flush failed while a write was in flight that no frame holds";
            may_be_lost(&self.mapping, &*self.ops, why);
        }
        // Dropped if the operation is done, otherwise dirty again (T2).
        self.replaced.give_back(&self.cache, &self.mapping, !is_done);
        self.kept_back.give_back(&self.cache, &self.mapping, true);
    }
}
