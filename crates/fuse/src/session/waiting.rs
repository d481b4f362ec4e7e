//! A request that has to wait: it was polled once by the thread that read it, and goes on elsewhere when it
//! is woken, not before: as a background task, or, if it may wait for a device, on a thread for such ones. So
//! a request that waits for a device costs one hand-over and not two.
//!
//! ```text
//!   first poll: ready ─▶ answered on the reader thread
//!               pending ─▶ PARKED ── wake ──▶ a background task polls it to its end, or a thread once
//!               pending, and woken meanwhile, or nobody can wake it ─▶ the same at once
//! ```
//! Invariants: A1 a wake is never lost: one that comes while a poll runs, or before the request is parked,
//! counts; and what nobody can wake any more is polled once more, instead of being dropped. A2 a request that
//! is dropped unfinished is answered EIO, and no longer counted.
//!
//! Lock: one for each request, a leaf; nothing is spawned, dropped or polled under it.

use super::Shared;
use crate::serve::{Core, Outcome};
use forebay_base::task::{BoxFuture, FutureSlot};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

const EIO: i32 = 5;

/// A request on its way to its answer.
pub(super) type Answering = BoxFuture<'static, ()>;

/// Who goes on with a request that is woken.
#[derive(Clone, Copy)]
pub(super) enum By {
    /// A background task.
    Task,
    /// A thread that may wait for a device.
    Syncs,
}

/// What is known of a request whose poll is over, or not yet.
enum Stage {
    /// It is being polled.
    Polled,
    /// It is being polled, or was, and has been woken.
    Woken,
    /// It waits for its wake.
    Parked(Answering),
    /// Somebody else has it.
    Gone,
}

/// See the module.
struct Parking {
    stage: Mutex<Stage>,
    shared: Arc<Shared>,
    by: By,
}

impl Parking {
    fn lock(&self) -> MutexGuard<'_, Stage> {
        self.stage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn new(shared: &Arc<Shared>, by: By) -> Arc<Self> {
        Arc::new(Self { stage: Mutex::new(Stage::Polled), shared: shared.clone(), by })
    }

    fn hand_over(&self, request: Answering) {
        match self.by {
            By::Task => self.shared.world.spawn("fuse request", request),
            By::Syncs => self.shared.syncs.push(&self.shared, request),
        }
    }

    /// A1.
    fn park(&self, request: Answering) {
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

/// A request that is counted until it is over, and answered EIO if nobody else does (A2, U1).
pub(super) struct Owed {
    shared: Arc<Shared>,
    core: Option<Arc<Core>>,
    unique: u64,
    answered: bool,
}

impl Owed {
    /// Counts one.
    pub fn new(shared: &Arc<Shared>, core: &Arc<Core>, unique: u64) -> Self {
        shared.task_begins();
        Self { shared: shared.clone(), core: Some(core.clone()), unique, answered: false }
    }

    /// Tells the kernel.
    pub fn answer(mut self, outcome: Outcome) {
        self.answered = true;
        if let Some(core) = &self.core {
            self.shared.finish(core, self.unique, outcome);
        }
    }
}

impl Drop for Owed {
    fn drop(&mut self) {
        if !self.answered {
            self.shared.device.reply(self.unique, EIO, &[]);
        }
        // Let go first: when no task is counted any more the file system is given back (session.S2).
        self.core = None;
        self.shared.task_ended();
    }
}

impl Shared {
    /// Polls a request that was put into the slot, once; if it has to wait, it goes on when it is woken, and
    /// takes the slot's memory along. `bytes`: what it holds meanwhile.
    pub(super) fn run(
        self: &Arc<Self>,
        core: &Arc<Core>,
        unique: u64,
        bytes: u64,
        slot: &mut FutureSlot<Outcome>,
    ) {
        // Its buffers may be there after the first poll.
        let held = self.payload.hold(bytes);
        let parking = Parking::new(self, By::Task);
        let waker = Waker::from(parking.clone());
        if let Poll::Ready(outcome) = Pin::new(&mut *slot).poll(&mut Context::from_waker(&waker)) {
            return self.finish(core, unique, outcome);
        }
        let request = std::mem::take(slot);
        let owed = Owed::new(self, core, unique);
        parking.park(Box::pin(async move {
            let outcome = request.await;
            owed.answer(outcome);
            drop(held);
        }));
    }

    /// Polls a request once, by a thread that may wait for a device; if it has to wait for something else, it
    /// goes on when it is woken.
    pub(super) fn go_on(self: &Arc<Self>, mut request: Answering, by: By) {
        let parking = Parking::new(self, by);
        let waker = Waker::from(parking.clone());
        let poll = || request.as_mut().poll(&mut Context::from_waker(&waker));
        match catch_unwind(AssertUnwindSafe(poll)) {
            Ok(Poll::Ready(())) => {}
            Ok(Poll::Pending) => parking.park(request),
            Err(_) => log::error!("a request panicked and was answered EIO (A2)"),
        }
    }
}
