//! A request that has to wait: the thread that read it polled it once, and it goes on elsewhere
//! when it is woken, not before. It goes on as a background task, or, if it may wait for a device,
//! on a thread for such requests. So a request that waits for a device costs one hand-over, not two.
//!
//! ```text
//!   first poll: ready ─▶ answered on the reader thread
//!               pending ─▶ PARKED ── wake ──▶ a background task polls it to its end, or a thread once
//!               pending, and woken meanwhile, or without a waker left ─▶ the same at once
//! ```
//! Invariants: A1 a wake is never lost: one that comes while a poll runs, or before the request is
//! parked, counts; and a request without a waker is polled once more instead of being dropped. A2 a
//! request that is dropped unfinished is answered EIO, and no longer counted (`requests.rs` counts
//! and answers it).
//!
//! Lock: one for each request, a leaf; nothing is spawned, dropped or polled under it.

use forebay_base::task::BoxFuture;
use forebay_base::world::WorldRef;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

/// A request on its way to its answer.
pub(super) type Answering = BoxFuture<'static, ()>;

/// Carries on a request that is woken.
pub(super) trait Carrier: Send + Sync {
    /// Polls the request until it ends, or until it has to wait again.
    fn carry_on(self: Arc<Self>, request: Answering);
}

/// Carries each request on as a background task.
pub(super) struct Tasks(pub WorldRef);

impl Carrier for Tasks {
    fn carry_on(self: Arc<Self>, request: Answering) {
        self.0.spawn("fuse request", request);
    }
}

/// What is known of a request whose poll is over, or not yet.
enum Stage {
    /// It is being polled.
    Polled,
    /// It is being polled, or was, and has been woken.
    Woken,
    /// It waits for its wake.
    Parked(Answering),
    /// It went on elsewhere.
    Gone,
}

/// The place of a request between its polls.
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

    fn hand_over(&self, request: Answering) {
        self.carrier.clone().carry_on(request);
    }

    /// A1.
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
    /// A1: what it waited for has let go of it without a wake, and nobody else can wake it.
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

/// Polls a request once, by a thread that may wait for a device; if it has to wait for something
/// else, `carrier` goes on with it when it is woken.
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
