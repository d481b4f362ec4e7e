//! A device with a ceiling on requests and bytes per second, and credit for quiet times.
//!
//! Invariant: over any time t, at most `rate * (t + burst)` passes, plus one request.

use super::pace::Pacer;
use forebay_base::Result;
use forebay_base::sync::Mutex;
use forebay_base::task::{LocalQueue, block_on};
use forebay_base::world::{Nanos, WorldRef};
use forebay_block::bdev::{BlockDevice, DeviceRef};
use forebay_block::bio::{Bio, BioFlags, BioOp};
use std::sync::Arc;
use std::time::Duration;

/// How much.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ThrottleOptions {
    /// Requests per second; none is without limit.
    pub iops: Option<u64>,
    /// Bytes per second; none is without limit.
    pub bandwidth: Option<u64>,
    /// Longest unused time whose requests and bytes may be caught up with.
    pub burst: Duration,
}

struct State {
    options: ThrottleOptions,
    /// Time up to which the requests so far use up the rate of requests; likewise for bytes.
    paid_iops: Nanos,
    paid_bytes: Nanos,
}

/// A decorator that limits requests and bytes per second.
pub struct ThrottleDevice {
    lower: DeviceRef,
    world: WorldRef,
    state: Mutex<State>,
    pacer: Pacer,
}

impl ThrottleDevice {
    /// Stands on `lower`, with the clock of `world`.
    pub fn new(lower: DeviceRef, world: &WorldRef, options: ThrottleOptions) -> Arc<Self> {
        let state = State { options, paid_iops: 0, paid_bytes: 0 };
        let pacer = Pacer::new("forebay-throttl", world, lower.clone());
        Arc::new(Self { lower, world: world.clone(), state: Mutex::new(state), pacer })
    }

    /// Changes the ceilings for the requests to come.
    pub fn set(&self, options: ThrottleOptions) {
        self.state.lock().options = options;
    }

    /// The time at which a request that arrives now may start.
    fn book(&self, state: &mut State, op: BioOp, len: u64) -> Nanos {
        let (now, options) = (self.world.now(), state.options);
        let floor = now.saturating_sub(options.burst.as_nanos() as u64);
        let pay = |paid: &mut Nanos, rate: Option<u64>, units: u64| {
            let start = (*paid).max(floor);
            let cost = rate.map_or(0, |rate| {
                (u128::from(units) * 1_000_000_000 / u128::from(rate.max(1))) as u64
            });
            *paid = start + cost;
            start
        };
        let bytes = if matches!(op, BioOp::Read | BioOp::Write) { len } else { 0 };
        let a = pay(&mut state.paid_iops, options.iops, 1);
        let b = pay(&mut state.paid_bytes, options.bandwidth, bytes);
        a.max(b).max(now)
    }

    fn wait(&self, op: BioOp, len: u64) {
        let at = self.book(&mut self.state.lock(), op, len);
        if at > self.world.now() {
            block_on(self.world.sleep_until(at));
        }
    }
}

impl BlockDevice for ThrottleDevice {
    forebay_block::delegate_block_device!([lower] limits size is_crowded wait_for_capacity extents);

    fn name(&self) -> String {
        format!("throttle({})", self.lower.name())
    }

    fn submit(&self, bio: Bio) {
        // Under the lock, so that bios are queued in the order of their times (pace.P1).
        let mut state = self.state.lock();
        let at = self.book(&mut state, bio.op, bio.len);
        self.pacer.put(at, bio);
    }

    fn read_into(&self, offset: u64, dst: &mut [u8]) -> Result<()> {
        self.wait(BioOp::Read, dst.len() as u64);
        self.lower.read_into(offset, dst)
    }

    fn write_from(&self, offset: u64, src: &[u8], flags: BioFlags) -> Result<()> {
        self.wait(BioOp::Write, src.len() as u64);
        self.lower.write_from(offset, src, flags)
    }

    fn attach_thread(&self) -> Option<Box<dyn LocalQueue>> {
        None
    }
}
