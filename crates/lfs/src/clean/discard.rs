//! The device is told of segments that nothing in is wanted any more.
//!
//! Invariants: W16, see [`crate::segment`].
//!
//! Locks: the state lock and the turn in turn; none across a wait.

use crate::fault::Planted;
use crate::format::place::Place;
use crate::volume::Inner;
use forebay_base::buf::DataRef;
use forebay_block::{BioFlags, BioOp, io};

impl Inner {
    /// Discards what two checkpoints do without, and gives it back. For whoever has the turn of checkpoints.
    pub(crate) async fn discard_freed(&self) {
        let mut segments = self.state.lock().space.segments.discarding();
        if self.plant.has(Planted::DiscardAfterReuse) {
            let mut state = self.state.lock();
            segments.iter().for_each(|segment| state.space.segments.give_back(*segment));
            drop(state);
            std::mem::swap(&mut self.cleaner.turn.lock().late, &mut segments);
        }
        for segment in segments {
            let (offset, len) =
                (self.layout.device_offset(Place::new(segment, 0)), self.layout.segment_bytes());
            let flags = BioFlags::BACKGROUND;
            let done = io(&*self.device, BioOp::Discard, offset, len, DataRef::None, flags).await;
            if let Err(error) = done.result {
                log::debug!("segment {segment} is used again as it is: {error}");
            }
            let mut state = self.state.lock();
            if state.space.segments.discarding().contains(&segment) {
                state.space.segments.give_back(segment);
            }
            drop(state);
            self.cleaner.turn.lock().stats.discarded += 1;
        }
    }
}
