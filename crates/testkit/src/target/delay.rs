//! A slow device: service time per request, per byte and per discontiguity, one request at a time,
//! like a disk with one arm.
//!
//! Invariant: requests are served in order of arrival, and each begins when the previous one is
//! over (or when it arrives, if that is later). No request is served between those of a batch.

use super::pace::Pacer;
use forebay_base::Result;
use forebay_base::sync::Mutex;
use forebay_base::task::{LocalQueue, block_on};
use forebay_base::world::{Nanos, WorldRef};
use forebay_block::bdev::{BlockDevice, DeviceRef};
use forebay_block::bio::{Bio, BioFlags, BioOp};
use std::sync::Arc;
use std::time::Duration;

/// How slow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DelayOptions {
    /// Per request.
    pub per_io: Duration,
    /// Bytes per second; none is without limit.
    pub bandwidth: Option<u64>,
    /// Added for a request that does not begin at the end of the previous one.
    pub seek: Duration,
    /// Per flush, instead of `per_io`.
    pub flush: Duration,
}

struct State {
    options: DelayOptions,
    free_at: Nanos,
    last_end: u64,
    seeks: u64,
}

/// A decorator that delays requests.
pub struct DelayDevice {
    lower: DeviceRef,
    world: WorldRef,
    state: Mutex<State>,
    pacer: Pacer,
}

impl DelayDevice {
    /// Stands on `lower`, with the clock of `world`.
    pub fn new(lower: DeviceRef, world: &WorldRef, options: DelayOptions) -> Arc<Self> {
        let state = State { options, free_at: 0, last_end: 0, seeks: 0 };
        let pacer = Pacer::new("forebay-delay", world, lower.clone());
        Arc::new(Self { lower, world: world.clone(), state: Mutex::new(state), pacer })
    }

    /// Changes the delays for the requests to come.
    pub fn set(&self, options: DelayOptions) {
        self.state.lock().options = options;
    }

    /// Reads and writes so far that did not begin at the end of the previous one.
    pub fn seeks(&self) -> u64 {
        self.state.lock().seeks
    }

    /// The time at which a request that arrives now is over.
    fn book(&self, state: &mut State, op: BioOp, offset: u64, len: u64) -> Nanos {
        let options = state.options;
        let mut service = if op == BioOp::Flush { options.flush } else { options.per_io };
        if matches!(op, BioOp::Read | BioOp::Write) {
            if offset != state.last_end {
                service += options.seek;
                state.seeks += 1;
            }
            state.last_end = offset + len;
            if let Some(rate) = options.bandwidth {
                let nanos = u128::from(len) * 1_000_000_000 / u128::from(rate.max(1));
                service += Duration::from_nanos(nanos as u64);
            }
        }
        state.free_at = state.free_at.max(self.world.now()) + service.as_nanos() as u64;
        state.free_at
    }

    fn wait(&self, op: BioOp, offset: u64, len: u64) {
        let at = self.book(&mut self.state.lock(), op, offset, len);
        block_on(self.world.sleep_until(at));
    }
}

impl BlockDevice for DelayDevice {
    forebay_block::delegate_block_device!([lower] limits size is_crowded wait_for_capacity extents);

    fn name(&self) -> String {
        format!("delay({})", self.lower.name())
    }

    fn submit(&self, bio: Bio) {
        // Under the lock, so that bios are queued in the order of their times (pace.P1).
        let mut state = self.state.lock();
        let at = self.book(&mut state, bio.op, bio.offset, bio.len);
        self.pacer.put(at, bio);
    }

    fn submit_batch(&self, bios: &mut Vec<Bio>) {
        let mut state = self.state.lock();
        for bio in bios.drain(..) {
            let at = self.book(&mut state, bio.op, bio.offset, bio.len);
            self.pacer.put(at, bio);
        }
    }

    fn read_into(&self, offset: u64, dst: &mut [u8]) -> Result<()> {
        self.wait(BioOp::Read, offset, dst.len() as u64);
        self.lower.read_into(offset, dst)
    }

    fn write_from(&self, offset: u64, src: &[u8], flags: BioFlags) -> Result<()> {
        self.wait(BioOp::Write, offset, src.len() as u64);
        self.lower.write_from(offset, src, flags)
    }

    fn attach_thread(&self) -> Option<Box<dyn LocalQueue>> {
        // The pacer's thread submits the requests.
        None
    }
}
