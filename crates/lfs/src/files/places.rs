//! Allocates device addresses for write-back or a direct write, by the volume's strategy.
//!
//! Invariants: T21 places allocated for a request that ends before it has a reservation, by an
//! error or because its task was dropped, are released. T22 with the strategy `reserve` a request
//! is served in one hold of the state lock.
//!
//! Locks: see [`crate::space::alloc`].

use crate::space::alloc::AllocMode;
use crate::transaction::resources::Resources;
use forebay_base::units::{round_down, round_up};
use forebay_base::{Error, ErrorKind, Result};
use forebay_iomap::{Class, Place};
use std::ops::Range;

/// Allocated places that are not part of a reservation yet (T21).
pub(crate) struct Taken<'a> {
    resources: &'a Resources,
    places: Vec<Place>,
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        if !self.places.is_empty() {
            self.resources.state.lock().give_back(&self.places);
        }
    }
}

impl Taken<'_> {
    /// Passes the places to a reservation, which releases them from now on.
    pub fn keep(mut self) -> Vec<Place> {
        std::mem::take(&mut self.places)
    }

    /// The places allocated so far.
    pub fn places(&self) -> &[Place] {
        &self.places
    }
}

impl Resources {
    /// Allocates by the strategy `reserve` (T22). `over`: the request overwrites stored content.
    pub(crate) fn take_reserved(
        &self,
        ino: u64,
        runs: &[Range<u64>],
        (class, over): (Class, bool),
    ) -> Result<Taken<'_>> {
        let mut taken = Taken { resources: self, places: Vec::new() };
        let mut state = self.state.lock();
        let bytes = runs.iter().map(|run| run.end - run.start).sum();
        // No claim changes while data is given out, so one look suffices for all runs.
        let kept = state.kept_by(bytes, class, over)?;
        state.count_hold();
        for run in runs {
            let done = state
                .request(ino, run.clone(), kept, self.world.now())
                .and_then(|mut request| request.take(&self.layout, &mut taken.places));
            if let Err(error) = done {
                // Dropping `taken` takes the lock.
                drop(state);
                return Err(error);
            }
        }
        state.count_taken(class, &taken.places, false);
        drop(state);
        Ok(taken)
    }

    /// Called before each uncached buffered write. With the strategy `reserve` it opens the windows
    /// that the range needs, if the write is large or continues a stream.
    pub(crate) fn announce(&self, ino: u64, range: &Range<u64>) {
        if self.alloc.mode != AllocMode::Reserve {
            return;
        }
        let block = self.layout.block_bytes();
        let run = round_down(range.start, block)..round_up(range.end, block);
        let mut state = self.state.lock();
        let kept = state.kept();
        let request = state.request(ino, run, kept, self.world.now());
        let done = request.and_then(|mut request| request.announce());
        if let Err(error) = done {
            // Write-back tries again.
            log::debug!("inode {ino}: no window: {error}");
        }
    }

    /// Allocates places by the configured strategy.
    pub(crate) async fn take_places(
        &self,
        ino: u64,
        runs: &[Range<u64>],
        (class, over): (Class, bool),
    ) -> Result<Taken<'_>> {
        let bytes: u64 = runs.iter().map(|run| run.end - run.start).sum();
        if self.alloc.mode == AllocMode::Reserve {
            self.alloc.point().await;
            return self.take_reserved(ino, runs, (class, over));
        }
        let serializes = self.alloc.serializes(class == Class::Direct, bytes);
        let turn = if serializes { Some(self.alloc.turn().await) } else { None };
        let mut taken = Taken { resources: self, places: Vec::new() };
        for run in runs {
            for at in run.clone().step_by(self.layout.block_bytes() as usize) {
                self.alloc.point().await;
                self.take_block(ino, at, (class, over), &mut taken.places)?;
            }
        }
        let mut state = self.state.lock();
        state.count_taken(class, &taken.places, turn.is_some());
        drop((state, turn));
        Ok(taken)
    }

    /// Allocates the next block of the open segment, with all checks of a single block: the
    /// position, the space, and the owner.
    fn take_block(
        &self,
        ino: u64,
        at: u64,
        (class, over): (Class, bool),
        places: &mut Vec<Place>,
    ) -> Result<()> {
        let block = self.layout.block_bytes();
        let mut state = self.state.lock();
        let Some(node) = state.names().node(ino) else {
            return Err(Error::new(ErrorKind::Stale, "reserve", format!("inode {ino}")));
        };
        let data_id = node.inode.data_id;
        let there = state.map().overlay(data_id).map(|overlay| overlay.look_up(at / block, block));
        std::hint::black_box(there.is_some_and(|found| found.is_ok()));
        let kept = state.kept_by(block, class, over)?;
        state.take_block(at, kept, places)
    }
}
