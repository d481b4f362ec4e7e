//! Whether the cleaner runs, and what it has freed, for tasks that wait for space; and how far its
//! pass is, for writers.
//!
//! ```text
//!   space for writers   |........ above the mark ........|############ the mark ############|
//!   while a pass copies  writers go on                      given to them in step with the copying
//! ```
//! Invariants: C51 one pass at a time has the turn. C52 while a task waits for space, or for the
//! end of a pass, the cleaner does not pause. C53 a task that lacks space waits only for a pass or
//! a job that has begun. Cleaning that is due may be held back (requests.J4) by a caller that does
//! not run. C54 while a pass copies, a write waits if the space for writers would fall below the
//! share of the mark that belongs to the rest of the copying. It waits until the next part was
//! copied, or the pass no longer copies. It holds nothing meanwhile, and the pass needs no writer.
//!
//! Lock: one lock, a leaf. No lock is held across a wait.

use crate::transaction::flag::Flag;
use forebay_base::sync::Mutex;
use forebay_base::task::WaitQueue;

/// The turn of the cleaner, and its progress.
#[derive(Default)]
pub(crate) struct Cleaning {
    /// A pass copies, and writers keep pace with it (C54).
    is_paced: Flag,
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
    /// The number of writers that keep pace with the pass and wait (C54).
    pacing: u32,
    /// How often cleaned segments became free, or a job that makes space has ended.
    freed_count: u64,
    /// The copying of the pass in progress.
    copying: Option<Copying>,
}

/// How far the copying of a pass is.
struct Copying {
    /// Bytes that the pass copies, and those that it has copied.
    all_bytes: u64,
    done_bytes: u64,
    /// The space, in bytes, that writers get in step with the copying.
    mark_bytes: u64,
}

impl Copying {
    /// The space that the rest of the copying leaves to itself: writers wait below it (C54).
    fn kept_bytes(&self) -> u64 {
        let rest = self.all_bytes.saturating_sub(self.done_bytes);
        (u128::from(self.mark_bytes) * u128::from(rest) / u128::from(self.all_bytes)) as u64
    }
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

/// While this exists, writers keep pace with the copying of a pass (C54).
pub(crate) struct Pace<'a>(&'a Cleaning);

impl Pace<'_> {
    /// The pass has copied its first `done_bytes` bytes.
    pub fn copied(&self, done_bytes: u64) {
        if let Some(copying) = &mut self.0.progress.lock().copying {
            copying.done_bytes = done_bytes;
        }
        self.0.wait.wake_all();
    }
}

impl Drop for Pace<'_> {
    fn drop(&mut self) {
        {
            let mut progress = self.0.progress.lock();
            progress.copying = None;
            self.0.is_paced.set(false);
        }
        self.0.wait.wake_all();
    }
}

/// A writer that waits for the copying (C54).
struct Pacing<'a>(&'a Cleaning);

impl Drop for Pacing<'_> {
    fn drop(&mut self) {
        self.0.progress.lock().pacing -= 1;
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

    /// Whether a task waits for the cleaner, or a writer for its pace (C52, C54).
    pub fn is_awaited(&self) -> bool {
        let progress = self.progress.lock();
        progress.waiting > 0 || progress.pacing > 0
    }

    /// A pass begins to copy `all_bytes` bytes. Writers get the last `mark_bytes` bytes of their
    /// space in step with that (C54).
    pub fn begin_pace(&self, all_bytes: u64, mark_bytes: u64) -> Pace<'_> {
        let mut progress = self.progress.lock();
        progress.copying =
            (all_bytes > 0).then_some(Copying { all_bytes, done_bytes: 0, mark_bytes });
        self.is_paced.set(all_bytes > 0);
        Pace(self)
    }

    /// A part of the pass in progress was copied.
    pub fn note_copied(&self, bytes: u64) {
        if let Some(copying) = &mut self.progress.lock().copying {
            copying.done_bytes += bytes;
        }
        self.wait.wake_all();
    }

    /// Whether a writer waits now (C54). `space`: the bytes that writers may still accept.
    pub fn holds_back(&self, space: impl Fn() -> u64) -> bool {
        if !self.is_paced.is_set() {
            return false;
        }
        let kept = self.progress.lock().copying.as_ref().map(Copying::kept_bytes);
        kept.is_some_and(|kept| space() < kept)
    }

    /// Waits while a writer has to (C54). The caller holds nothing.
    pub async fn keep_pace(&self, space: impl Fn() -> u64) {
        if !self.holds_back(&space) {
            return;
        }
        self.progress.lock().pacing += 1;
        let _pacing = Pacing(self);
        self.wait.wait_until(|| (!self.holds_back(&space)).then_some(())).await;
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

#[cfg(test)]
mod tests {
    use super::*;

    /// C54: the mark is given to writers in step with the copying.
    #[test]
    fn c54_writers_get_mark_in_step_with_copying() {
        let cleaning = Cleaning::default();
        let waits = |space| cleaning.holds_back(|| space);
        assert!(!waits(0), "no pass copies");
        let pace = cleaning.begin_pace(1000, 500);
        assert!(waits(499) && !waits(500));
        pace.copied(500);
        assert!(waits(249) && !waits(250));
        cleaning.note_copied(400);
        assert!(waits(49) && !waits(50));
        drop(pace);
        assert!(!waits(0), "the pass does not copy any more");
        let _nothing_to_copy = cleaning.begin_pace(0, 500);
        assert!(!waits(0));
    }
}
