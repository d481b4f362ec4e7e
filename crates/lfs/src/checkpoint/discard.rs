//! Discards segments on the device in which nothing is live any more.
//!
//! Invariants: segment.W16, see [`crate::space::segment`]. D41 a segment is not released while a
//! discard of it is in flight, also if no task waits for that: a late discard would destroy the
//! data of the segment's next user.
//!
//! Locks: the state lock and that of the turn, one after the other; none across a wait.

use crate::checkpoint::Checkpoints;
use crate::fault::Planted;
use crate::format::place::Place;
use crate::transaction::resources::Resources;
use forebay_base::buf::DataRef;
use forebay_block::{BioFlags, BioOp, Completion, io_with_end};
use std::sync::Weak;

/// A discard in flight (D41).
struct Discard {
    resources: Weak<Resources>,
    segment: u32,
}

impl Drop for Discard {
    fn drop(&mut self) {
        if let Some(resources) = self.resources.upgrade() {
            resources.state.lock().end_discard(self.segment);
        }
    }
}

impl Checkpoints {
    /// Number of segments whose discard before reuse has ended, also with an error.
    pub fn discarded(&self) -> u64 {
        self.turn.lock().discarded
    }

    /// Discards and releases segments to which two checkpoints do not refer. The caller has the
    /// turn of checkpoints.
    pub(super) async fn discard_freed(&self) {
        let mut segments = self.state.lock().space().segments().discarding();
        if self.plant.has(Planted::DiscardAfterReuse) {
            self.state.lock().free_undiscarded(&segments);
            std::mem::swap(&mut self.turn.lock().late, &mut segments);
        }
        for segment in segments {
            let (offset, len) =
                (self.layout.device_offset(Place::new(segment, 0)), self.layout.segment_bytes());
            self.state.lock().begin_discard(segment);
            let held = Discard { resources: self.me.clone(), segment };
            let (op, data, flags) = (BioOp::Discard, DataRef::None, BioFlags::BACKGROUND);
            let on_end = move |_: &Completion| drop(held);
            let done = io_with_end(&*self.device, op, offset, len, data, flags, on_end).await;
            if let Err(error) = done.result {
                log::debug!("segment {segment} is used again as it is: {error}");
            }
            self.state.lock().free_discarded(segment);
            self.turn.lock().discarded += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::format::usage::Stream;
    use crate::space::segment::Phase;
    use crate::tests::reuse::{open, setup};
    use forebay_base::world::World;
    use std::future::{Future, poll_fn};
    use std::pin::pin;
    use std::task::Poll;
    use std::time::Duration;

    /// D41. The story: the task of a checkpoint was dropped during a discard. The next checkpoint
    /// discarded the segment again and released it, while the first discard was still in flight.
    #[test]
    fn d41_segment_stays_unused_until_discard_of_dropped_task_ends() {
        let setup = setup(0);
        let disk = setup.blank();
        disk.world().run(async {
            let volume = open(&setup, &disk).await.unwrap();
            let inner = &*volume.0;
            let segment = {
                let mut state = inner.state.lock();
                state.set_discards(true);
                let segment = state.take_segment(Stream::Data).unwrap();
                state.discard_soon(segment);
                segment
            };
            let phase = || inner.state.lock().space().segments().get(segment).unwrap().phase;
            {
                let mut gone = pin!(inner.checkpoints.discard_freed());
                let polled = poll_fn(|cx| Poll::Ready(gone.as_mut().poll(cx).is_pending())).await;
                assert!(polled, "the device has it");
            }
            inner.checkpoints.discard_freed().await;
            assert_eq!(phase(), Phase::Discarding, "the first one can still come");
            World::sleep(&**disk.world(), Duration::from_secs(1)).await;
            assert_eq!(inner.cleaner.coming_bytes(), inner.layout.segment_bytes(), "K24");
            inner.checkpoints.discard_freed().await;
            assert_eq!(phase(), Phase::Free);
            // Earlier, the segment counted both as about to become free and as free until the next
            // checkpoint.
            assert_eq!(inner.cleaner.coming_bytes(), 0, "K24");
        });
        disk.world().stop();
    }
}
