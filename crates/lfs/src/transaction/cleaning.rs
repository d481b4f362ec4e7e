//! Whether the cleaner runs, and what it has freed, for tasks that wait for space.
//!
//! Invariants: C51 one pass at a time has the turn. C52 while a task waits for space, or for the
//! end of a pass, the cleaner does not pause. C53 a task that lacks space waits only for a pass or
//! a job that has begun. Cleaning that is due may be held back (requests.J4) by a caller that does
//! not run.
//!
//! Lock: one lock, a leaf. No lock is held across a wait.

use forebay_base::sync::Mutex;
use forebay_base::task::WaitQueue;

/// The turn of the cleaner, and its progress.
#[derive(Default)]
pub(crate) struct Cleaning {
    progress: Mutex<Progress>,
    wait: WaitQueue,
}

#[derive(Default)]
struct Progress {
    has_pass: bool,
    /// Background cleaning is due or in progress, until enough segments are free.
    is_background: bool,
    /// A job of background cleaning is in progress.
    has_job: bool,
    /// The number of tasks that wait for space or for the end of a pass.
    waiting: u32,
    /// How often cleaned segments became free, or a job that makes space has ended.
    freed_count: u64,
}

impl Progress {
    /// Whether work is in progress that a task can wait for (C53).
    fn is_at_work(&self) -> bool {
        self.has_pass || self.has_job
    }
}

/// A job of background cleaning in progress.
pub(crate) struct CleaningJob<'a>(&'a Cleaning);

impl Drop for CleaningJob<'_> {
    fn drop(&mut self) {
        self.0.progress.lock().has_job = false;
        self.0.wait.wake_all();
    }
}

/// The turn to clean, until it is dropped.
pub(crate) struct CleaningTurn<'a>(&'a Cleaning);

impl Drop for CleaningTurn<'_> {
    fn drop(&mut self) {
        {
            let mut progress = self.0.progress.lock();
            debug_assert!(progress.has_pass, "C51: the pass that ends has the turn");
            progress.has_pass = false;
        }
        self.0.wait.wake_all();
    }
}

/// While this guard exists a task waits, so the cleaner does not pause (C52).
pub(crate) struct Hurry<'a>(&'a Cleaning);

impl Drop for Hurry<'_> {
    fn drop(&mut self) {
        let mut progress = self.0.progress.lock();
        debug_assert!(progress.waiting > 0, "C52: this task was counted");
        progress.waiting -= 1;
    }
}

impl Cleaning {
    /// Waits for the turn and takes it (C51).
    pub async fn take_turn(&self) -> CleaningTurn<'_> {
        let free = || {
            let mut progress = self.progress.lock();
            (!std::mem::replace(&mut progress.has_pass, true)).then_some(())
        };
        self.wait.wait_until(free).await;
        CleaningTurn(self)
    }

    /// Returns a guard for a task that waits (C52).
    pub fn hurry(&self) -> Hurry<'_> {
        self.progress.lock().waiting += 1;
        Hurry(self)
    }

    /// Whether a task waits for the cleaner (C52).
    pub fn is_hurried(&self) -> bool {
        self.progress.lock().waiting > 0
    }

    /// Notes that background cleaning is due, or has ended. It makes its own checkpoints, so no
    /// checkpoints are made for lack of free segments meanwhile.
    pub fn set_background(&self, is_background: bool) {
        self.progress.lock().is_background = is_background;
    }

    /// Whether background cleaning is due or in progress.
    pub fn is_background(&self) -> bool {
        self.progress.lock().is_background
    }

    /// A job of background cleaning begins. It ends when the guard is dropped.
    pub fn begin_job(&self) -> CleaningJob<'_> {
        self.progress.lock().has_job = true;
        CleaningJob(self)
    }

    /// Notes that cleaned segments became free, or that a job that makes space has ended. Wakes the
    /// tasks that wait.
    pub fn note_freed(&self) {
        self.progress.lock().freed_count += 1;
        self.wait.wake_all();
    }

    /// Counts the calls of [`Self::note_freed`].
    #[cfg(test)]
    pub fn freed_count(&self) -> u64 {
        self.progress.lock().freed_count
    }

    /// Waits until the work in progress has freed a segment or has ended (C53). False: none is in
    /// progress.
    pub async fn part_over(&self) -> bool {
        let (is_at_work, seen) = {
            let progress = self.progress.lock();
            (progress.is_at_work(), progress.freed_count)
        };
        if is_at_work {
            let _hurry = self.hurry();
            let over = || {
                let progress = self.progress.lock();
                (!progress.is_at_work() || progress.freed_count != seen).then_some(())
            };
            self.wait.wait_until(over).await;
        }
        is_at_work
    }

    /// Waits until the current pass has ended and has released its reservations.
    pub async fn pass_over(&self) {
        let _hurry = self.hurry();
        drop(self.take_turn().await);
    }
}
