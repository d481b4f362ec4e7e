//! The maintenance of a volume: one task that alone decides on checkpoints and on cleaning.
//!
//! ```text
//!   requests (space, checkpoint, removals) ──┐
//!   a group of records was written ──────────┼──▶ due ──▶ a job of each kind, at most one at a time
//!   the oldest change is of age ─────────────┘                  │ ended: answers its requests
//!                                                               └──▶ looks again
//! ```
//! | job | what it waits for |
//! |---|---|
//! | write out | requests for space and for checkpoints, of the files that it writes |
//! | free removed | the same, then the turn of the cleaner and that of checkpoints |
//! | space, clean | the turn of the cleaner, then that of checkpoints |
//! | checkpoint | the turn of checkpoints |
//! | hold | the clock: until no answer holds back what is due (`requests.J6`) |
//!
//! The jobs are futures of the one task and progress independently. A job waits only for jobs
//! below it in the table, so there is no circle. That is why a checkpoint by age or size is two
//! jobs: writing out the files may need a checkpoint itself. The task ends when no job is left.
//!
//! Invariants: Z11 `NoSpace` is reported only after two checkpoints and the cleaner brought no
//! space: what is dead is free then, and little is dead next to what is live. Z12 space is made
//! without a lock, and without a reservation (`transaction::requests`). Z14 what was recorded,
//! synced or not, is in a checkpoint within `checkpoint_age` and the time that one takes, in a
//! busy volume within four times that: a volume that falls idle is opened at once, and what no
//! client syncs is durable some time. Z15 what is made durable by age, by size, or because much
//! waits in memory, and not for a sync, has outstanding content (`files::sync`) written first, if
//! that works. Only a job that makes space does not wait for it, because outstanding content may
//! itself wait for space. Z16 a task that ends, also by a panic or with its world, refuses the
//! requests that it leaves. Z17 a checkpoint by size merges a change, so its own mark makes no
//! other one due. Otherwise the task would take the turn of checkpoints for ever, and a close would
//! wait for it.
//!
//! Locks: the state lock, that of `control` and that of the requests in turn; none across a wait,
//! and none while a job is polled.

use crate::transaction::requests::Requests;
use forebay_base::sync::Mutex;
use forebay_base::task::BoxFuture;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// What the task does. Of each kind there is one job at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Writes out the files that a checkpoint waits for.
    WriteOut,
    FreeRemoved,
    Space,
    Clean,
    Checkpoint,
    /// Waits until answers that callers have not seen hold nothing back.
    Hold,
}

/// Why a checkpoint is made without a request.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Reasons {
    /// The oldest change is of age.
    pub age: bool,
    /// The log is long, or the changes take much memory.
    pub size: bool,
    /// Little is free: what is dead is to be free with it.
    pub short: bool,
}

impl Reasons {
    pub fn any(self) -> bool {
        self.age || self.size || self.short
    }

    pub fn join(&mut self, other: Self) {
        self.age |= other.age;
        self.size |= other.size;
        self.short |= other.short;
    }
}

/// What is due and not begun.
#[derive(Default)]
pub(crate) struct Control {
    is_running: bool,
    /// Of the task while it waits.
    waker: Option<Waker>,
    /// Something may have become due since the task looked.
    is_woken: bool,
    /// A checkpoint, before its files are written out, and after that.
    pub wanted: Reasons,
    pub prepared: Reasons,
    pub cleans: bool,
    pub frees_removed: bool,
    /// Of what was removed, bytes that were to be made free at once (W17).
    pub freeing_bytes: u64,
    /// Cleaning brought nothing after this checkpoint.
    pub idle_at: Option<u64>,
}

/// See the module. It outlives the volume if its task does.
pub(crate) struct Maintenance {
    pub control: Mutex<Control>,
    requests: Arc<Requests>,
}

/// A job in progress.
pub(crate) struct Job {
    pub kind: Kind,
    pub work: BoxFuture<'static, ()>,
}

impl Maintenance {
    /// Of a volume whose requests these are.
    pub fn new(requests: Arc<Requests>) -> Arc<Self> {
        Arc::new(Self { control: Mutex::default(), requests })
    }

    /// The task looks for what is due from now on. True: it has to be started.
    pub fn wake(&self) -> bool {
        let mut control = self.control.lock();
        control.is_woken = true;
        let starts = !std::mem::replace(&mut control.is_running, true);
        let waker = control.waker.take();
        drop(control);
        if let Some(waker) = waker {
            waker.wake();
        }
        starts
    }

    /// Ends the task if nothing became due since it looked.
    fn ends(&self) -> bool {
        let mut control = self.control.lock();
        control.is_running = control.is_woken;
        !control.is_running
    }

    /// The task ended in another way than by [`Self::poll`]: requests that it leaves are refused
    /// (Z16).
    pub fn abandon(&self) {
        {
            let mut control = self.control.lock();
            (control.is_running, control.waker, control.cleans) = (false, None, false);
        }
        self.requests.refuse_all();
    }

    /// Polls the jobs. `begin` begins those that are due; it answers false when the volume is
    /// gone.
    pub fn poll(
        &self,
        begin: impl Fn(&mut Vec<Job>) -> bool,
        jobs: &mut Vec<Job>,
        cx: &mut Context<'_>,
    ) -> Poll<()> {
        loop {
            {
                let mut control = self.control.lock();
                control.is_woken = false;
                control.waker = Some(cx.waker().clone());
            }
            if !begin(jobs) {
                self.requests.refuse_all();
            }
            let before = jobs.len();
            jobs.retain_mut(|job| job.work.as_mut().poll(cx).is_pending());
            // The end of a job lets the next one of its kind begin.
            if jobs.len() < before {
                continue;
            }
            if !jobs.is_empty() {
                return Poll::Pending;
            }
            if self.ends() {
                return Poll::Ready(());
            }
        }
    }
}
