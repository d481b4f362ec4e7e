//! Operations whose future is dropped while the device still has a request of theirs.

use super::harness::{Lab, NONE, both};
use forebay_base::sync::Mutex;
use forebay_base::task::WaitQueue;

use forebay_block::{Bio, BioOp, BlockDevice, DeviceRef, Limits};
use forebay_cache::{Config, State};
use forebay_iomap::identity::Identity;
use forebay_sim::SimConfig;
use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, OnceLock};

const BLOCK: usize = 4096;

/// A device that keeps requests of one kind in its queue until the test lets them run.
struct Queueing {
    lower: DeviceRef,
    kept: Mutex<(Option<BioOp>, Vec<Bio>)>,
    changed: WaitQueue,
}

impl Queueing {
    fn new(lower: DeviceRef) -> Arc<Self> {
        Arc::new(Self { lower, kept: Mutex::default(), changed: WaitQueue::new() })
    }

    /// Requests of this kind stay in the queue from now on.
    fn keep(&self, op: BioOp) {
        self.kept.lock().0 = Some(op);
    }

    async fn queued(&self) {
        self.changed.wait_until(|| (!self.kept.lock().1.is_empty()).then_some(())).await;
    }

    /// The requests of the queue run, or are destroyed.
    fn release(&self, run: bool) {
        let (_, bios) = std::mem::take(&mut *self.kept.lock());
        bios.into_iter().filter(|_| run).for_each(|bio| self.lower.submit(bio));
    }
}

impl BlockDevice for Queueing {
    fn name(&self) -> String {
        "requests kept in a queue".into()
    }
    fn limits(&self) -> Limits {
        self.lower.limits()
    }
    fn size(&self) -> u64 {
        self.lower.size()
    }
    fn submit(&self, bio: Bio) {
        let mut kept = self.kept.lock();
        if kept.0 == Some(bio.op) {
            kept.1.push(bio);
            drop(kept);
            return self.changed.wake_all();
        }
        drop(kept);
        self.lower.submit(bio);
    }
}

/// Polls an operation until the device has a request of it, then drops it.
async fn drop_when_queued<T>(device: &Queueing, op: impl Future<Output = T>) {
    let (mut op, mut queued) = (pin!(op), pin!(device.queued()));
    std::future::poll_fn(|cx| {
        assert!(op.as_mut().poll(cx).is_pending(), "its request is kept in the queue");
        queued.as_mut().poll(cx)
    })
    .await;
}

fn queueing_lab(sim: SimConfig) -> (Lab, Arc<Queueing>) {
    let keep = OnceLock::new();
    let size = sim.size;
    let lab = Lab::with_map(Config::with_budget(8 << 20), BLOCK as u32, sim, size, |disk| {
        Arc::new(Identity::new(keep.get_or_init(|| Queueing::new(disk)).clone()))
    });
    (lab, keep.into_inner().expect("set above"))
}

/// A server that stops drops what its clients have asked for. The range of a trim was held by its
/// future, so it was free again while the device had the request in its queue: what was written and
/// synced then was zeroed as soon as the request ran.
#[test]
fn trim_dropped_in_flight_keeps_later_synced_write() {
    // The device zeroes by itself, or zeros are written to it.
    for (write_zeroes, op) in [(true, BioOp::WriteZeroes), (false, BioOp::Write)] {
        for run in [true, false] {
            let sim = SimConfig { write_zeroes, ..Lab::sim(1 << 20) };
            let (lab, device) = queueing_lab(sim);
            lab.run(async {
                lab.write(0, &[7; 4 * BLOCK], NONE).await;
                device.keep(op);
                let trim = lab.zero(0, 4 * BLOCK as u64, false);
                drop_when_queued(&device, trim).await;
                let later = async {
                    lab.write(BLOCK as u64, &[9; BLOCK], NONE).await;
                    lab.sync().await
                };
                let device_goes_on = async {
                    lab.sleep_ms(20).await;
                    device.release(run);
                };
                let (synced, ()) = both(later, device_goes_on).await;
                synced.unwrap();
                lab.sleep_ms(20).await;
                lab.cache.drop_clean();
                let bytes = lab.read(0, 4 * BLOCK, NONE).await;
                let wrong = bytes[BLOCK..2 * BLOCK].iter().filter(|&&byte| byte != 9).count();
                assert_eq!(wrong, 0, "synced bytes that {op:?} has zeroed, it ran: {run}");
                for part in [&bytes[..BLOCK], &bytes[2 * BLOCK..]] {
                    assert!(
                        part.iter().all(|&byte| byte == 7),
                        "T2: dirty blocks of a dropped trim stay"
                    );
                }
                assert_eq!(lab.file.mapping.write_outs(), 0);
                assert!(!lab.file.mapping.bounds.is_exclusive(&(0..1 << 20)));
                assert!(
                    lab.blocks(State::Writing).is_empty() && lab.blocks(State::Dirty).is_empty()
                );
            });
        }
    }
}
