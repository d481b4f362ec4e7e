//! The maintenance of a volume: the only task that decides on checkpoints and on cleaning.
//!
//! ```text
//!   requests (space, checkpoint, removals) ──┐
//!   a group of records is laid out ──────────┼──▶ due ──▶ at most one job of each kind at a time
//!   the oldest change is of age ─────────────┘                  │ ended: answers its requests
//!                                                               └──▶ checks again what is due
//! ```
//! | job | what it waits for |
//! |---|---|
//! | write out | requests for space and for checkpoints, of the files that it writes |
//! | free removed | the same, then the turn of the cleaner and that of checkpoints |
//! | space, clean | the turn of the cleaner, then that of checkpoints |
//! | checkpoint | the turn of checkpoints |
//! | hold | the clock: until no answer holds back what is due (`requests.J6`) |
//!
//! The jobs are futures of one task and progress independently. A job waits only for jobs below it
//! in the table, so no deadlock is possible. For this reason a checkpoint by age or size consists
//! of two jobs: writing out the files may itself need a checkpoint. The task ends when no job is
//! left.
//!
//! Invariants: Z11 `NoSpace` is reported only if two checkpoints and the cleaner made no space.
//! Then all dead segments are free, and few dead bytes lie in live ones. Z14 a recorded change,
//! synced or not, is in a checkpoint after `checkpoint_age` plus the time of a checkpoint. In a
//! busy volume it takes at most four times `checkpoint_age`. So an idle volume opens at once, and
//! changes that no client syncs become durable, too. Z15 a checkpoint that no sync asked for has
//! outstanding content (`files::sync`) written first, if that succeeds. Its reason may be age,
//! size, or much memory. Only a job that makes space does not do so, because writing outstanding
//! content may itself wait for space. Z16 when the task ends, even by a panic or with its world, it
//! refuses the remaining requests. Z17 a checkpoint by size merges at least one change, so its own
//! mark makes no other one due. Otherwise the task would take the turn of checkpoints for ever, and
//! a close would wait for it.
//!
//! Locks: the state lock, the `control` lock and the lock of the requests, one at a time. None is
//! held across a wait, nor while a job is polled.

use crate::transaction::requests::Requests;
use forebay_base::sync::Mutex;
use forebay_base::task::BoxFuture;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// The kinds of jobs. At most one job of each kind runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Writes out the files before a checkpoint.
    WriteOut,
    FreeRemoved,
    Space,
    Clean,
    Checkpoint,
    /// Waits until answers that callers have not seen hold nothing back.
    Hold,
}

/// The reasons for a checkpoint that no caller requested.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Reasons {
    /// The oldest change has reached its age.
    pub age: bool,
    /// The log is long, or the changes take much memory.
    pub size: bool,
    /// Few segments are free, and the checkpoint must free dead ones.
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

/// What is due and has not begun.
#[derive(Default)]
pub(crate) struct Control {
    is_running: bool,
    /// The waker of the task while it waits.
    waker: Option<Waker>,
    /// A job may have become due since the task last looked.
    is_woken: bool,
    /// Reasons for a checkpoint: `wanted` before the files are written out, `prepared` afterwards.
    pub wanted: Reasons,
    pub prepared: Reasons,
    pub cleans: bool,
    pub frees_removed: bool,
    /// Removed bytes up to which a job to free them was started (segment.W17).
    pub freeing_bytes: u64,
    /// The number of the checkpoint after which cleaning had no effect.
    pub idle_at: Option<u64>,
}

/// What wakes the task of the maintenance, and what it decides by. Outlives the volume if the task
/// does.
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
    /// For the volume with these requests.
    pub fn new(requests: Arc<Requests>) -> Arc<Self> {
        Arc::new(Self { control: Mutex::default(), requests })
    }

    /// Notes that a job may be due. True: the task must be started.
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

    /// Ends the task if nothing became due since it last looked.
    fn ends(&self) -> bool {
        let mut control = self.control.lock();
        control.is_running = control.is_woken;
        !control.is_running
    }

    /// Handles a task that did not end by [`Self::poll`]: refuses the remaining requests (Z16).
    pub fn abandon(&self) {
        {
            let mut control = self.control.lock();
            (control.is_running, control.waker, control.cleans) = (false, None, false);
        }
        self.requests.refuse_all();
    }

    /// Polls the jobs. `begin` begins those that are due. It returns false when the volume is gone.
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
            // The end of a job allows the next one of its kind to begin.
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
