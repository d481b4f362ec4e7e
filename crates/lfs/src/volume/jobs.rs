//! The jobs of the maintenance task, and the conditions under which they are due. The invariants
//! are those of [`crate::volume::maintenance`].
//!
//! Locks: the state lock, the task's `control` lock and the lock of the requests, one at a time.
//! None is held across a wait.

use crate::checkpoint::How;
use crate::space::{Bytes, Need};
use crate::transaction::requests::{Held, Maintainer};
use crate::transaction::state::State;
use crate::volume::Inner;
use crate::volume::maintenance::{Job, Kind, Maintenance, Reasons};
use forebay_base::task::BoxFuture;
use std::future::poll_fn;
use std::sync::{Arc, Weak};

/// Records without content after a checkpoint may take at most the volume divided by this.
const LOG_PART: u64 = 12;

/// Removed content is freed at once if it is at least the volume divided by this, within a minimum
/// and a maximum in bytes.
const REMOVED_PART: u64 = 16;
const REMOVED_MIN: u64 = 32 << 20;
const REMOVED_MAX: u64 = 256 << 20;

/// A guard of the running task. If it is dropped before the task has ended by itself, it refuses
/// the remaining requests (maintenance.Z16).
struct Running {
    maintenance: Arc<Maintenance>,
    inner: Weak<Inner>,
    has_ended: bool,
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.has_ended {
            return;
        }
        self.maintenance.abandon();
        if let Some(inner) = self.inner.upgrade() {
            inner.cleaning.set_background(false);
        }
    }
}

impl Maintainer for Inner {
    fn wake(&self) {
        if !self.maintenance.wake() {
            return;
        }
        let (maintenance, inner) = (self.maintenance.clone(), self.me.clone());
        let running = Running { maintenance, inner, has_ended: false };
        let task = async move {
            let mut running = running;
            let mut jobs = Vec::new();
            let Running { maintenance, inner, .. } = &running;
            let begin = |jobs: &mut Vec<Job>| match inner.upgrade() {
                Some(inner) => {
                    inner.begin_due(jobs);
                    true
                }
                None => false,
            };
            poll_fn(|cx| maintenance.poll(begin, &mut jobs, cx)).await;
            running.has_ended = true;
        };
        self.world.spawn("forebay-lfs maintenance", Box::pin(task));
    }

    /// Runs for each group of records. So it examines the state directly, in the hold of the lock
    /// that counts the group as log, and wakes the task only if a job is due. If the group fails,
    /// its records are taken again, which comes here again.
    fn on_group(&self, take: &mut dyn FnMut(&mut State)) {
        let begun = self.maintenance.control.lock().freeing_bytes;
        let (reasons, is_low, removed) = {
            let mut state = self.state.lock();
            take(&mut state);
            let removed = self.removed_to_free(&state, begun);
            (self.reasons_to_checkpoint(&state), self.cleaner.is_low(&mut state), removed)
        };
        let cleans = is_low && self.should_clean();
        if !reasons.any() && !cleans && removed.is_none() {
            return;
        }
        if cleans {
            // Set before the job is due: a job that ends clears it only if no other one is due
            // (`begin_clean`).
            self.cleaning.set_background(true);
        }
        {
            let mut control = self.maintenance.control.lock();
            control.wanted.join(reasons);
            control.cleans |= cleans;
            if let Some(removed) = removed {
                (control.frees_removed, control.freeing_bytes) = (true, removed);
            }
        }
        self.wake();
    }
}

/// The conditions under which jobs are due.
impl Inner {
    /// The reasons why a checkpoint is due, if any.
    fn reasons_to_checkpoint(&self, state: &State) -> Reasons {
        if state.life().is_closed() || state.life().is_read_only() {
            return Reasons::default();
        }
        let Bytes { log, content, data } = state.space().written();
        // The less space is left, the sooner dead segments must become free.
        let some = || state.space().short_bytes(state.data_room(Need::New));
        // The cleaner makes its own checkpoints after it has emptied segments.
        let short =
            !self.cleaning.is_background() && state.is_short() && log + content + data >= some();
        let long = log >= self.own_log_max() || log + content >= self.options.checkpoint_bytes;
        let full = state.changes_bytes() >= self.options.overlay_bytes / 2;
        // Each checkpoint writes a mark, a record without changes. If a log of marks alone were
        // reason enough, each checkpoint would make the next one due (maintenance.Z17).
        let is_changed = state.names().items().len() > 0 || state.map().change_count() > 0;
        Reasons { age: false, size: is_changed && (long || full), short }
    }

    /// The most bytes of log after a checkpoint in addition to content. A checkpoint makes this
    /// space free.
    fn own_log_max(&self) -> u64 {
        let volume = u64::from(self.layout.segments) * self.layout.segment_bytes();
        (volume / LOG_PART).max(self.layout.segment_bytes())
    }

    /// Whether background cleaning may free segments, and has not begun. The caller has found that
    /// few are free.
    fn should_clean(&self) -> bool {
        if self.check_running("clean").is_err() {
            return false;
        }
        let number = self.checkpoints.number();
        let is_idle = self.maintenance.control.lock().idle_at == Some(number);
        !is_idle && !self.cleaner.is_over() && !self.cleaning.is_background()
    }

    /// Whether so much content was removed that it must be freed at once. Then the next writes use
    /// its space, and not segments that were never written (segment.W17). It is tried once for each
    /// such amount, beyond the `begun` bytes of the last time. Requests for space free the rest.
    /// Returns all removed bytes.
    fn removed_to_free(&self, state: &State, begun: u64) -> Option<u64> {
        let volume = u64::from(self.layout.segments) * self.layout.segment_bytes();
        let much = (volume / REMOVED_PART).clamp(REMOVED_MIN, REMOVED_MAX);
        let is_much = state.space().removed().not_free_beyond(begun) >= much;
        (is_much && !state.life().is_closed()).then_some(state.space().removed().total())
    }

    /// All removed bytes, if enough of them are not free.
    fn unsettled_bytes(&self) -> Option<u64> {
        let state = self.state.lock();
        let bytes = state.space().removed().not_free_beyond(0);
        let much = bytes >= self.layout.segment_bytes() && !state.life().is_read_only();
        much.then_some(state.space().removed().total())
    }
}

/// The jobs.
impl Inner {
    /// Begins the jobs that are due, unless a job of the same kind is in progress.
    fn begin_due(self: &Arc<Self>, jobs: &mut Vec<Job>) {
        self.begin(jobs, Kind::WriteOut, Self::begin_write_out);
        self.begin(jobs, Kind::FreeRemoved, Self::begin_free_removed);
        // Callers use the space first that was made for them (requests.J4, requests.J5).
        let held = self.requests.held(self.world.now());
        if held.space.is_none() {
            self.begin(jobs, Kind::Space, Self::begin_space);
        }
        let has_caller = jobs.iter().any(|job| job.kind == Kind::Space);
        if !has_caller && !self.requests.wants_space() && held.cleaning.is_none() {
            self.begin(jobs, Kind::Clean, Self::begin_clean);
        }
        self.begin(jobs, Kind::Checkpoint, Self::begin_checkpoint);
        self.begin(jobs, Kind::Hold, |inner| inner.begin_hold(held));
    }

    /// Waits until answers that their callers have not seen hold back none of the due work
    /// (requests.J6).
    fn begin_hold(self: Arc<Self>, held: Held) -> Option<BoxFuture<'static, ()>> {
        let cleans = self.maintenance.control.lock().cleans;
        let until = match self.requests.wants_space() {
            true => held.space,
            false => held.cleaning.filter(|_| cleans),
        };
        until.map(|until| self.world.sleep_until(until))
    }

    fn begin(
        self: &Arc<Self>,
        jobs: &mut Vec<Job>,
        kind: Kind,
        work: impl FnOnce(Arc<Self>) -> Option<BoxFuture<'static, ()>>,
    ) {
        if jobs.iter().all(|job| job.kind != kind)
            && let Some(work) = work(self.clone())
        {
            jobs.push(Job { kind, work });
        }
    }

    fn begin_write_out(self: Arc<Self>) -> Option<BoxFuture<'static, ()>> {
        let is_of_age = self.requests.with_posted(|posted| std::mem::take(&mut posted.is_of_age));
        let reasons = {
            let mut control = self.maintenance.control.lock();
            control.wanted.age |= is_of_age;
            std::mem::take(&mut control.wanted)
        };
        reasons.any().then(|| {
            Box::pin(async move {
                self.files.write_outstanding_first().await;
                if reasons.age {
                    self.files.publish_sizes();
                }
                self.maintenance.control.lock().prepared.join(reasons);
            }) as BoxFuture<'static, ()>
        })
    }

    fn begin_checkpoint(self: Arc<Self>) -> Option<BoxFuture<'static, ()>> {
        let callers = self.requests.with_posted(|posted| std::mem::take(&mut posted.checkpoints));
        let reasons = std::mem::take(&mut self.maintenance.control.lock().prepared);
        if callers.is_empty() && !reasons.any() {
            return None;
        }
        Some(Box::pin(async move {
            if reasons.short {
                // Counted as fruitless. A checkpoint after which segments die resets the count.
                self.state.lock().note_made_short();
            }
            let made = match reasons.short {
                true => self.checkpoints.make_and_free(How::Log).await,
                false => self.checkpoints.make(How::Log).await,
            };
            if let Err(error) = &made
                && reasons.any()
            {
                log::warn!("a checkpoint was not made: {error}");
                if reasons.age {
                    // The timer starts again, because perhaps no later change starts it.
                    self.note_change();
                }
            }
            callers.into_iter().for_each(|caller| caller.send(made.clone()));
        }))
    }

    fn begin_space(self: Arc<Self>) -> Option<BoxFuture<'static, ()>> {
        let (callers, ends_pass) = self.requests.with_posted(|posted| {
            (std::mem::take(&mut posted.space), std::mem::take(&mut posted.ends_pass))
        });
        (!callers.is_empty()).then(|| {
            Box::pin(async move {
                let is_made = self.make_space().await;
                if ends_pass {
                    self.cleaning.pass_over().await;
                }
                // A task that waits for a pass may see its end before the next job begins one.
                self.cleaning.note_freed();
                self.requests.answer_space(callers, (is_made, ends_pass), self.world.now());
            }) as BoxFuture<'static, ()>
        })
    }

    fn begin_clean(self: Arc<Self>) -> Option<BoxFuture<'static, ()>> {
        if !std::mem::take(&mut self.maintenance.control.lock().cleans) {
            return None;
        }
        self.cleaning.set_background(true);
        Some(Box::pin(async move {
            let _job = self.cleaning.begin_job();
            let number = self.checkpoints.number();
            let goes_on = self.cleaner.clean_background().await;
            let is_over = {
                let mut control = self.maintenance.control.lock();
                control.cleans |= goes_on;
                if !goes_on {
                    control.idle_at = Some(number);
                }
                !control.cleans
            };
            if is_over {
                self.cleaning.set_background(false);
            }
        }))
    }

    fn begin_free_removed(self: Arc<Self>) -> Option<BoxFuture<'static, ()>> {
        let callers = self.requests.with_posted(|posted| std::mem::take(&mut posted.removals));
        let is_due = std::mem::take(&mut self.maintenance.control.lock().frees_removed);
        (is_due || !callers.is_empty()).then(|| {
            Box::pin(async move {
                self.free_removed().await;
                callers.into_iter().for_each(|caller| caller.send(()));
            }) as BoxFuture<'static, ()>
        })
    }

    /// Makes dead segments free, and moves live data out of segments that have little of it
    /// (maintenance.Z11). It writes out no file: callers that may do so have done it. False:
    /// nothing could be done.
    async fn make_space(&self) -> bool {
        // Queued records were granted more log space than they take, and a commit returns the
        // difference.
        if let Err(error) = self.commit_queue().await {
            log::debug!("no space, and no commit: {error}");
        }
        let mut made = self.checkpoints.make_one().await;
        while self.lacks_free_space() && self.cleaner.clean_for_space().await {
            made = true;
        }
        if self.lacks_free_space() {
            made |= self.checkpoints.make_two().await;
        }
        made
    }

    fn lacks_free_space(&self) -> bool {
        self.state.lock().lacks_space()
    }

    /// Frees removed content if there is much of it.
    async fn free_removed(&self) {
        if self.unsettled_bytes().is_none() {
            return;
        }
        // No operation waits for space here, so this may write out files (files.sync.Z15).
        self.files.write_outstanding_first().await;
        // Segments that the current pass has emptied become free together with the removed content.
        self.cleaning.pass_over().await;
        // Another job may have freed it meanwhile.
        let Some(removed) = self.unsettled_bytes() else { return };
        if self.checkpoints.make_two().await {
            self.state.lock().note_removed_free(removed);
        }
    }

    /// Waits until removed content is free, so that a client that queries free space sees it.
    pub(crate) async fn wait_for_removed(&self) {
        if self.unsettled_bytes().is_some() {
            self.requests.free_removed().await;
        }
    }
}
