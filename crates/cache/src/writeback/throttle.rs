//! Writers above the background limit. They pause at the pace of their domain's write-out. At the
//! domain's part of the dirty limit they wait in a queue, each woken alone, and continue when there
//! is space, a portion of a request at a time. None overtakes another, whatever the size of its
//! requests (lineage.U18).

use crate::cache::PageCache;
use crate::mapping::Mapping;
use crate::stats::Counters;
use forebay_base::sync::atomic::Ordering;
use forebay_base::world::Nanos;
use forebay_base::{Error, ErrorKind, Result};
use std::task::Poll;

/// Writers above the background limit wake their flusher at most once in this time, unless their
/// file has [`MUCH`] to write: a wake-up for each small write would cost more than the write.
const WAKE_OWN_EVERY: Nanos = 2_000_000;
/// From this many dirty bytes of a file on, each write wakes the flusher ([`WAKE_OWN_EVERY`]).
const MUCH: u64 = 1 << 20;
/// Pauses of a file's writers accumulate to this length: shorter sleeps would cost more than they
/// last.
const MIN_PAUSE: Nanos = 100_000;
/// No pause is longer.
const MAX_PAUSE: Nanos = 20_000_000;

impl PageCache {
    /// Holds back a writer that will dirty `bytes` of `mapping`. Fails when failed write-outs fill
    /// the domain's part of the limit: the device does not take the data, so no more is accepted.
    pub async fn throttle(&self, mapping: &Mapping, bytes: u64) -> Result<()> {
        let domain = &*mapping.domain;
        self.wake_flusher_above(mapping);
        let doomed = || {
            let dirty = mapping.dirty_bytes.load(Ordering::Relaxed);
            mapping.is_failing().then(|| dirty.saturating_sub(mapping.failed_bytes()))
        };
        let refused = || domain.refuses(doomed());
        if refused() {
            return Err(too_many_failures(mapping));
        }
        if domain.free_run() {
            return Ok(());
        }
        let start = self.world.now();
        self.pause(mapping, bytes).await;
        if domain.below_limit() {
            Counters::add(&self.counters.throttled_nanos, self.world.now() - start);
            return Ok(());
        }
        let place = domain.take_ticket();
        let outcome = std::future::poll_fn(|cx| {
            let first = place.first(cx.waker());
            if refused() {
                return Poll::Ready(Err(too_many_failures(mapping)));
            }
            if first && domain.has_room() {
                return Poll::Ready(Ok(()));
            }
            if domain.writeback_bytes() == 0 {
                domain.wake_flusher();
            }
            self.dirty.wake_all_flushers_at(self.world.now());
            Poll::Pending
        })
        .await;
        Counters::add(&self.counters.throttled_nanos, self.world.now() - start);
        outcome
    }

    async fn pause(&self, mapping: &Mapping, bytes: u64) {
        let pause = mapping.domain.pause(bytes);
        let debt = mapping.pause_debt.fetch_add(pause, Ordering::Relaxed) + pause;
        if debt >= MIN_PAUSE {
            mapping.pause_debt.store(0, Ordering::Relaxed);
            self.world.sleep(std::time::Duration::from_nanos(debt.min(MAX_PAUSE))).await;
        }
    }

    /// Wakes the flusher of a file that was written to, above the background limit.
    pub fn wake_flusher_above(&self, mapping: &Mapping) {
        if mapping.domain.above_background() {
            let much = mapping.dirty_bytes.load(Ordering::Relaxed) >= MUCH;
            mapping.domain.wake_flusher_at(self.world.now(), if much { 0 } else { WAKE_OWN_EVERY });
        }
    }
}

/// The error of a refused write. Its kind is that of the latest failure: a full file system is not
/// a broken disk.
fn too_many_failures(mapping: &Mapping) -> Error {
    let text = "write-outs that failed fill this device's part of the dirty limit";
    let kind = mapping.errseq.latest().map_or(ErrorKind::Io, |e| e.kind());
    Error::new(kind, "write", text)
}
