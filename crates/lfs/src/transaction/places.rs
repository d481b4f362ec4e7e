//! Places for data that the state gives out and takes back.
//!
//! No locks: the volume's state lock covers it.

use crate::device::layout::Layout;
use crate::space::alloc::strategy::Who;
use crate::transaction::state::State;
use forebay_base::world::Nanos;
use forebay_base::{Error, ErrorKind, Result};
use forebay_iomap::{Class, Place};

impl State {
    /// Returns places that were not used.
    pub fn give_back(&mut self, layout: &Layout, places: &[Place]) {
        for place in places.iter().rev() {
            let Some(at) = layout.place_at(place.device_offset) else { continue };
            let run = (self.room.sizes.address(at), place.len);
            self.room.give_back(&mut self.space, run);
        }
    }

    /// Closes the windows of a file that no task writes any more.
    pub fn close_windows(&mut self, ino: u64) {
        self.room.close(&mut self.space, ino);
    }

    /// The properties of the file of a request, for the allocator.
    pub fn who(&self, ino: u64, now: Nanos) -> Result<Who> {
        let Some(node) = self.nodes.get(ino) else {
            return Err(Error::new(ErrorKind::Stale, "reserve", format!("inode {ino}")));
        };
        let (open, stored) = (node.opens > 0, node.inode.size);
        Ok(Who { ino, open, size: node.end().unwrap_or(stored), stored, now })
    }

    /// Counts the places that a request got.
    pub fn note_taken(&mut self, class: Class, places: &[Place]) {
        let bytes: u64 = places.iter().map(|place| place.len).sum();
        let stats = &mut self.room.stats;
        let (requests, sum, extents) = match class {
            Class::Direct => {
                (&mut stats.direct_requests, &mut stats.direct_bytes, &mut stats.direct_extents)
            }
            _ => (
                &mut stats.written_back,
                &mut stats.written_back_bytes,
                &mut stats.written_back_extents,
            ),
        };
        *requests += 1;
        *sum += bytes;
        *extents += places.len() as u64;
    }
}
