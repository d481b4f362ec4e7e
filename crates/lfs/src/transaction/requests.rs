//! What operations request of the maintenance of their volume: space, checkpoints, and that
//! removed content becomes free.
//!
//! No layer below `checkpoint` makes a checkpoint or cleans a segment. A task that needs one posts
//! a request here and waits. The maintenance task (`volume::maintenance`) carries out all requests
//! of one kind together.
//! ```text
//!   posted ──a job of its kind begins──▶ taken ──the job ends──▶ answered
//!      └──no maintenance is left: volume dropped, world stopped──▶ refused
//! ```
//! Invariants: J1 a request is answered by a job that began after it was posted. J2 a request that
//! no maintenance will take is refused, so no task waits for one that has ended. J3 a caller that
//! is dropped while it waits stops no job. J4 between the answer to a request for space and the
//! moment in which its caller runs again, background cleaning does not begin: it would set aside
//! the space that was made. J5 nor is a pass in progress then, if the caller asked for that: a pass
//! sets aside space of the log for what it moves.
//!
//! Rule: a task that waits here holds no lock, no reservation and no turn, because the job may
//! need each of them.
//!
//! Lock: one, a leaf; none across a wait, and none while a sender is used or dropped.

use forebay_base::sync::Mutex;
use forebay_base::task::{OneReceiver, OneSender, oneshot};
use forebay_base::{Error, ErrorKind, Result};
use std::sync::{Arc, OnceLock, Weak};

/// The layer that decides on checkpoints and cleaning.
pub(crate) trait Maintainer: Send + Sync {
    /// Something was posted.
    fn wake(&self);

    /// A group of records was written, or failed: checks whether a checkpoint or cleaning is due.
    fn on_written(&self);
}

/// Requests that no job has taken.
#[derive(Default)]
pub(crate) struct Posted {
    /// For space. The answer: whether some was made.
    pub space: Vec<OneSender<Answer>>,
    /// A caller wants no pass to be in progress when it is answered (J5).
    pub ends_pass: bool,
    /// For a checkpoint.
    pub checkpoints: Vec<OneSender<Result<()>>>,
    /// That removed content becomes free.
    pub removals: Vec<OneSender<()>>,
    /// The oldest change is of age.
    pub is_of_age: bool,
    /// Answers to requests for space whose callers have not run again (J4).
    unseen: u32,
}

/// The answer to a request for space, until its caller has seen it (J4).
pub(crate) struct Answer {
    is_made: bool,
    requests: Arc<Requests>,
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.requests.posted.lock().unseen -= 1;
        if let Some(maintainer) = self.requests.maintainer() {
            maintainer.wake();
        }
    }
}

/// Requests of a volume, and the maintenance that takes them.
#[derive(Default)]
pub(crate) struct Requests {
    posted: Mutex<Posted>,
    /// Set when the volume is open.
    maintainer: OnceLock<Weak<dyn Maintainer>>,
}

impl Requests {
    /// Attaches the maintenance, once.
    pub fn attach(&self, maintainer: Weak<dyn Maintainer>) {
        if self.maintainer.set(maintainer).is_err() {
            debug_assert!(false, "attached once");
        }
    }

    /// The maintenance, while the volume is open.
    pub fn maintainer(&self) -> Option<Arc<dyn Maintainer>> {
        self.maintainer.get()?.upgrade()
    }

    /// Posts a request. `None`: it is refused (J2).
    fn post<T>(&self, put: impl FnOnce(&mut Posted, OneSender<T>)) -> Option<OneReceiver<T>> {
        // Alive until the wake, so it either takes the request or refuses it when it is dropped.
        let maintainer = self.maintainer()?;
        let (sender, receiver) = oneshot();
        put(&mut self.posted.lock(), sender);
        maintainer.wake();
        Some(receiver)
    }

    /// Makes space. False: none could be made.
    pub async fn make_space(&self) -> bool {
        match self.post(|posted, sender| posted.space.push(sender)) {
            Some(answer) => answer.await.is_some_and(|answer| answer.is_made),
            None => false,
        }
    }

    /// [`Self::make_space`], after which no pass of the cleaner is in progress (J5).
    pub async fn make_space_and_end_pass(&self) -> bool {
        let post = |posted: &mut Posted, sender| {
            posted.ends_pass = true;
            posted.space.push(sender);
        };
        match self.post(post) {
            Some(answer) => answer.await.is_some_and(|answer| answer.is_made),
            None => false,
        }
    }

    /// Makes a checkpoint.
    pub async fn checkpoint(&self) -> Result<()> {
        let gone = || Err(Error::new(ErrorKind::Shutdown, "checkpoint", "the volume is closed"));
        match self.post(|posted, sender| posted.checkpoints.push(sender)) {
            Some(answer) => answer.await.unwrap_or_else(gone),
            None => gone(),
        }
    }

    /// Waits until content that was removed is free, if it is much.
    pub async fn free_removed(&self) {
        if let Some(answer) = self.post(|posted, sender| posted.removals.push(sender)) {
            answer.await;
        }
    }

    /// The oldest change is of age: a checkpoint is due.
    pub fn post_age(&self) {
        if let Some(maintainer) = self.maintainer() {
            self.posted.lock().is_of_age = true;
            maintainer.wake();
        }
    }

    /// Answers requests for space.
    pub fn answer_space(self: &Arc<Self>, callers: Vec<OneSender<Answer>>, is_made: bool) {
        self.posted.lock().unseen += callers.len() as u32;
        for caller in callers {
            caller.send(Answer { is_made, requests: self.clone() });
        }
    }

    /// Whether a request for space was posted, or an answer to one is not seen (J4).
    pub fn has_space_caller(&self) -> bool {
        let posted = self.posted.lock();
        posted.unseen > 0 || !posted.space.is_empty()
    }

    /// For the maintenance: what was posted.
    pub fn with_posted<T>(&self, take: impl FnOnce(&mut Posted) -> T) -> T {
        take(&mut self.posted.lock())
    }

    /// Refuses what was posted (J2).
    pub fn refuse_all(&self) {
        let posted = {
            let mut posted = self.posted.lock();
            let unseen = posted.unseen;
            std::mem::replace(&mut *posted, Posted { unseen, ..Posted::default() })
        };
        // Without the lock: this wakes the callers.
        drop(posted);
    }
}
