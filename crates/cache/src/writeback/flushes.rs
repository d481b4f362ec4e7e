//! The flushes of one flush domain: how many failed, and which are under way.
//!
//! A flush that fails may have dropped what any file of the domain had written by then, whoever asked for
//! it: below them is one device. So failures are counted here, and each file compares
//! ([`crate::writeback::unflushed`]).
//!
//! Invariants: X1 a flush that failed is counted before it is over. X2 a flush that worked is believed once
//! every flush of the same object that was under way beside it is over: one of these may have failed in the
//! device before it, and be heard of after it. X3 a flush whose task is dropped counts as failed: nobody
//! knows what came of it.
//!
//! Lock: one, a leaf; wakers are called after it.

use forebay_base::sync::atomic::{AtomicU64, Ordering};
use forebay_base::sync::{Arc, Mutex};
use forebay_base::task::WaitQueue;
use std::collections::BTreeMap;

#[derive(Default)]
struct UnderWay {
    next: u64,
    /// By number, with the object that each was sent to.
    flushes: BTreeMap<u64, usize>,
}

/// See the module.
#[derive(Default)]
pub struct Flushes {
    failures: AtomicU64,
    under_way: Mutex<UnderWay>,
    over: WaitQueue,
}

impl Flushes {
    /// How many have failed.
    pub fn failures(&self) -> u64 {
        self.failures.load(Ordering::SeqCst)
    }

    /// A flush is about to be sent to `object` (the address of a device object). It has failed unless
    /// [`Flight::worked`] is called.
    pub fn begin(self: &Arc<Self>, object: usize) -> Flight {
        let mut under_way = self.under_way.lock();
        let number = under_way.next;
        under_way.next += 1;
        under_way.flushes.insert(number, object);
        Flight { flushes: self.clone(), number, object, worked: false }
    }

    /// Waits for the flushes of `object` that are under way.
    async fn wait_for_others(&self, object: usize) {
        let upto = self.under_way.lock().next;
        let over = || {
            let under_way = self.under_way.lock();
            let mut before = under_way.flushes.range(..upto);
            before.all(|(_, &other)| other != object).then_some(())
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
    worked: bool,
}

impl Flight {
    /// The device says that it worked. Waits until that can be believed (X2).
    pub async fn worked(mut self) {
        self.worked = true;
        let (flushes, object) = (self.flushes.clone(), self.object);
        drop(self);
        flushes.wait_for_others(object).await;
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        if !self.worked {
            // X1.
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
    fn a_flush_is_believed_when_those_beside_it_on_its_object_are_over() {
        let flushes = Arc::new(Flushes::default());
        let (slow, elsewhere) = (flushes.begin(1), flushes.begin(2));
        let mut good = pin!(flushes.begin(1).worked());
        let mut poll = || good.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(poll().is_pending(), "X2");
        let _later = flushes.begin(1);
        drop(slow);
        assert_eq!(flushes.failures(), 1, "X1, X3");
        assert!(poll().is_ready(), "neither one of another object nor one that began later counts");
        drop(elsewhere);
        assert_eq!(flushes.failures(), 2);
    }
}
