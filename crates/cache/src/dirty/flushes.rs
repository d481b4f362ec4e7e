//! The flushes of one flush domain: how many failed, and which are in progress.
//!
//! A failed flush may have lost any completed write of the domain, whichever file it was for: they
//! share one device. So failures are counted here, and each file compares the count
//! ([`crate::dirty::unflushed`]).
//!
//! Invariants: X1 a failed flush is counted before it is over. X2 a successful flush counts once
//! every concurrent flush of the same object is over: one of these may have failed in the device
//! before it, and be reported after it. Where an object takes its flushes in turn, and reports each
//! failure before the next begins, it waits only for flushes that began before the last failure. X3
//! a flush that is dropped before it is over counts as failed: its outcome is unknown. X4 a request
//! of a map may fail although no flush of the device did, as for lack of space. Then nothing is
//! lost, and it counts neither as failed nor as successful.
//!
//! Lock: one, a leaf; wakers are called after it.

use forebay_base::sync::atomic::{AtomicU64, Ordering};
use forebay_base::sync::{Arc, Mutex};
use forebay_base::task::WaitQueue;
use std::collections::BTreeMap;

#[derive(Default)]
struct UnderWay {
    next: u64,
    /// The flushes in progress, by number.
    flushes: BTreeMap<u64, Sent>,
}

/// A flush under way.
struct Sent {
    /// The address of the device object that it was sent to.
    object: usize,
    /// Failed flushes of the object that were known when it began.
    heard: u64,
}

/// The flushes in progress, and the number of failed ones.
#[derive(Default)]
pub struct Flushes {
    failures: AtomicU64,
    under_way: Mutex<UnderWay>,
    over: WaitQueue,
}

impl Flushes {
    /// How many flushes of the domain have failed.
    pub fn failures(&self) -> u64 {
        self.failures.load(Ordering::SeqCst)
    }

    /// A flush is about to be sent to `object` (the address of a device object). It counts as
    /// failed unless [`Flight::worked`] or [`Flight::lost_nothing`] is called. `heard`: how many of
    /// the object's flushes have failed by now, if it takes them in turn; else `None`.
    pub fn begin(self: &Arc<Self>, object: usize, heard: Option<u64>) -> Flight {
        let mut under_way = self.under_way.lock();
        let number = under_way.next;
        under_way.next += 1;
        under_way.flushes.insert(number, Sent { object, heard: heard.unwrap_or(0) });
        Flight { flushes: self.clone(), number, object, is_lossless: false }
    }

    /// Waits for the flushes of `object` in progress that may have failed before one that succeeded
    /// when `heard` failures were known.
    async fn wait_for_others(&self, object: usize, heard: Option<u64>) {
        let heard = heard.unwrap_or(u64::MAX);
        let upto = self.under_way.lock().next;
        let over = || {
            let under_way = self.under_way.lock();
            let mut before = under_way.flushes.range(..upto);
            before.all(|(_, sent)| sent.object != object || sent.heard >= heard).then_some(())
        };
        self.over.wait_until(over).await;
    }
}

/// A flush under way; failed if it is dropped (X3).
#[must_use]
pub struct Flight {
    flushes: Arc<Flushes>,
    number: u64,
    object: usize,
    /// No completed write was lost.
    is_lossless: bool,
}

impl Flight {
    /// The device reports success. Waits until the success counts (X2). `heard`: as for
    /// [`Flushes::begin`], but how many have failed at the end of this flush.
    pub async fn worked(mut self, heard: Option<u64>) {
        self.is_lossless = true;
        let (flushes, object) = (self.flushes.clone(), self.object);
        drop(self);
        flushes.wait_for_others(object, heard).await;
    }

    /// The request failed, and no flush of the device did (X4).
    pub fn lost_nothing(mut self) {
        self.is_lossless = true;
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        if !self.is_lossless {
            // Counted before the flush is over (X1).
            self.flushes.failures.fetch_add(1, Ordering::SeqCst);
        }
        self.flushes.under_way.lock().flushes.remove(&self.number);
        self.flushes.over.wake_all();
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Waker};

    #[test]
    fn flush_success_counts_after_concurrent_flushes() {
        let flushes = Arc::new(Flushes::default());
        let (slow, elsewhere) = (flushes.begin(1, None), flushes.begin(2, None));
        let mut good = pin!(flushes.begin(1, None).worked(None));
        let mut poll = || good.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(poll().is_pending(), "X2");
        let _later = flushes.begin(1, None);
        drop(slow);
        assert_eq!(flushes.failures(), 1, "X1, X3");
        assert!(poll().is_ready(), "neither one of another object nor one that began later counts");
        drop(elsewhere);
        assert_eq!(flushes.failures(), 2);
        flushes.begin(1, Some(0)).lost_nothing();
        assert_eq!(flushes.failures(), 2, "X4");
        let mut good = pin!(flushes.begin(2, None).worked(None));
        let mut poll = || good.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(poll().is_ready(), "X4: it is over");
    }

    /// The story: sixteen files of a volume, each synced, waited for one another. A flush that had
    /// its answer waited for all that had begun since, although the log takes its flushes in turn.
    #[test]
    fn x2_flushes_in_turn_wait_only_for_those_before_failure() {
        let flushes = Arc::new(Flushes::default());
        let poll = |future: std::pin::Pin<&mut dyn Future<Output = ()>>| {
            future.poll(&mut Context::from_waker(Waker::noop()))
        };
        let (early, concurrent) = (flushes.begin(1, Some(0)), flushes.begin(1, Some(0)));
        let mut good = pin!(concurrent.worked(Some(0)));
        assert!(poll(good.as_mut()).is_ready(), "nothing failed: the other is of a later turn");
        let concurrent = flushes.begin(1, Some(0));
        let _later = flushes.begin(1, Some(1));
        let mut good = pin!(concurrent.worked(Some(1)));
        assert!(poll(good.as_mut()).is_pending(), "one failed that may be the early one");
        drop(early);
        assert!(poll(good.as_mut()).is_ready());
        assert_eq!(flushes.failures(), 1, "X1: counted by then");
    }
}
