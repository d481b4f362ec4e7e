//! A request that has to wait. The thread that has read it polls it once. After its wake a
//! [`Carrier`] continues it: as a background task or, if it is a sync, on a sync thread, which may
//! wait for a device itself.
//!
//! ```text
//!   first poll: ready ─▶ answered on the reader thread
//!               pending ─▶ PARKED ── wake ──▶ a background task polls it to its end, or a
//!                                             thread once
//!               pending, and woken meanwhile, or without a waker left ─▶ the same at once
//! ```
//! Invariants: A1 no wake is lost. A wake during a poll, or before the request is parked, counts,
//! and a request without a waker is polled once more instead of being dropped. A2 a request that is
//! dropped unfinished is answered EIO and no longer counted (by `requests.rs`).
//!
//! Lock: one for each request, a leaf; nothing is spawned, dropped or polled under it.

use forebay_base::task::BoxFuture;
use forebay_base::world::WorldRef;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

/// The rest of a request up to its answer.
pub(super) type Answering = BoxFuture<'static, ()>;

/// Continues requests that were woken.
pub(super) trait Carrier: Send + Sync {
    /// Polls the request until it ends, or until it has to wait again.
    fn carry_on(self: Arc<Self>, request: Answering);
}

/// Continues each request as a background task.
pub(super) struct Tasks(pub WorldRef);

impl Carrier for Tasks {
    fn carry_on(self: Arc<Self>, request: Answering) {
        self.0.spawn("fuse request", request);
    }
}

/// State of a request.
enum Stage {
    /// It is being polled, and was not woken.
    Polled,
    /// It was woken during its poll or before it was parked.
    Woken,
    /// It waits for its wake.
    Parked(Answering),
    /// A carrier has taken it over.
    Gone,
}

/// State of a request between its polls, and its waker.
pub(super) struct Parking {
    stage: Mutex<Stage>,
    carrier: Arc<dyn Carrier>,
}

impl Parking {
    fn lock(&self) -> MutexGuard<'_, Stage> {
        self.stage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For a request that is about to be polled.
    pub fn new(carrier: Arc<dyn Carrier>) -> Arc<Self> {
        Arc::new(Self { stage: Mutex::new(Stage::Polled), carrier })
    }

    /// As [`Parking::new`], with the memory of an earlier request if no waker of that is left.
    pub fn renewed(spare: Option<Arc<Self>>, carrier: &Arc<dyn Carrier>) -> Arc<Self> {
        let Some(mut spare) = spare else { return Self::new(carrier.clone()) };
        let Some(parking) = Arc::get_mut(&mut spare) else { return Self::new(carrier.clone()) };
        // The earlier request may have been woken during its poll.
        *parking.stage.get_mut().unwrap_or_else(PoisonError::into_inner) = Stage::Polled;
        spare
    }

    fn hand_over(&self, request: Answering) {
        self.carrier.clone().carry_on(request);
    }

    /// Stores the request until its wake; hands it over at once if it was woken already (A1).
    pub fn park(&self, request: Answering) {
        let mut stage = self.lock();
        if matches!(*stage, Stage::Polled) {
            *stage = Stage::Parked(request);
            return;
        }
        *stage = Stage::Gone;
        drop(stage);
        self.hand_over(request);
    }
}

impl Drop for Parking {
    /// The last waker was dropped without a wake, so nothing else can continue the request (A1).
    fn drop(&mut self) {
        let stage = self.stage.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Stage::Parked(request) = std::mem::replace(stage, Stage::Gone) {
            self.hand_over(request);
        }
    }
}

impl Wake for Parking {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let mut stage = self.lock();
        match std::mem::replace(&mut *stage, Stage::Gone) {
            Stage::Polled | Stage::Woken => *stage = Stage::Woken,
            Stage::Parked(request) => {
                drop(stage);
                self.hand_over(request);
            }
            Stage::Gone => {}
        }
    }
}

/// Polls a request once, on a thread that may wait for a device. If it has to wait for something
/// else, `carrier` continues it after its wake.
pub(super) fn go_on(mut request: Answering, carrier: Arc<dyn Carrier>) {
    let parking = Parking::new(carrier);
    let waker = Waker::from(parking.clone());
    let poll = || request.as_mut().poll(&mut Context::from_waker(&waker));
    match catch_unwind(AssertUnwindSafe(poll)) {
        Ok(Poll::Ready(())) => {}
        Ok(Poll::Pending) => parking.park(request),
        Err(_) => log::error!("a request panicked and was answered EIO (A2)"),
    }
}
