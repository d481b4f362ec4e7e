//! Places for data that the state gives out and takes back.
//!
//! No locks: the volume's state lock covers it.

use crate::format::place::Place;
use crate::space::alloc::strategy::{Request, Who};
use crate::space::ledger::Kept;
use crate::space::reservations::Reserved;
use crate::transaction::state::State;
use forebay_base::world::Nanos;
use forebay_base::{Error, ErrorKind, Result};
use forebay_iomap::{Class, Place as Extent};
use std::ops::Range;

impl State {
    /// Closes the windows of a file that no task writes any more.
    pub fn close_windows(&mut self, ino: u64) {
        self.space.close_windows(ino);
    }

    /// The properties of the file of a request, for the allocator.
    fn who(&self, ino: u64, now: Nanos) -> Result<Who> {
        let Some(node) = self.names.node(ino) else {
            return Err(Error::new(ErrorKind::Stale, "reserve", format!("inode {ino}")));
        };
        let (open, stored) = (node.opens > 0, node.inode.size);
        Ok(Who { ino, open, size: node.end().unwrap_or(stored), stored, now })
    }

    /// A request for places for a run of a file.
    pub fn request(
        &mut self,
        ino: u64,
        run: Range<u64>,
        kept: Kept,
        now: Nanos,
    ) -> Result<Request<'_>> {
        let who = self.who(ino, now)?;
        Ok(self.space.request(who, run, kept))
    }

    /// Takes a block for a file, without a window.
    pub fn take_block(&mut self, at: u64, kept: Kept, places: &mut Vec<Extent>) -> Result<()> {
        self.space.take_block(at, kept, places)
    }

    /// Counts a hold of the lock for an allocation.
    pub fn count_hold(&mut self) {
        self.space.count_hold();
    }

    /// Counts the places that a request got. `has_turn`: it had the turn of `serialized`.
    pub fn count_taken(&mut self, class: Class, places: &[Extent], has_turn: bool) {
        if has_turn {
            self.space.count_turn();
        }
        self.space.count_taken(class, places);
    }

    /// Counts bytes of log records that map content to its place.
    pub fn count_record_bytes(&mut self, bytes: u64) {
        self.space.count_record_bytes(bytes);
    }

    /// Returns places that were not used.
    pub fn give_back(&mut self, places: &[Extent]) {
        self.space.give_back_places(places);
    }

    /// Returns the places of a reservation that were not published.
    pub fn give_back_reserved(&mut self, places: &[Extent]) {
        self.space.give_back_reserved(places);
    }

    /// Reserves places, which are in use from now on. `reserved`: what the reservation holds.
    pub fn reserve(&mut self, key: u64, reserved: Reserved, places: &[(Place, u64)]) {
        self.space.reserve(key, reserved, places);
    }

    /// Ends a reservation. True: a checkpoint waits for it (checkpoint.H14). `leaks`: an injected
    /// fault.
    pub fn end_reservation(&mut self, key: u64, leaks: bool) -> bool {
        self.space.end_reservation(key, leaks);
        self.tree.end_reservation(key)
    }

    /// Content of files goes into the open log segment.
    pub fn log_takes_content(&mut self) {
        self.space.log_takes_content();
    }
}
