//! Requests of operations to the maintenance of their volume: to make space, to make a checkpoint,
//! and to free removed content.
//!
//! No layer below `checkpoint` makes a checkpoint or cleans a segment. A task that needs one posts
//! a request here and waits. The maintenance task (`volume::maintenance`) carries out all requests
//! of one kind together.
//! ```text
//!   posted ──a job of its kind begins──▶ taken ──the job ends──▶ answered
//!      └──no maintenance is left: volume dropped, world stopped──▶ refused
//! ```
//! Invariants: J1 a request is answered by a job that began after it was posted. J2 a request is
//! refused if no maintenance will take it. So no task waits for maintenance that has ended. J3 a
//! caller that is dropped while it waits stops no job. J4 after a request for space is answered,
//! background cleaning does not begin until the caller has run. Otherwise cleaning would take the
//! space that was made. J5 if the caller asked for that, no pass is in progress then either: a pass
//! reserves log space for its moves.
//!
//! Rule: a task that waits here holds no lock, no reservation and no turn, because the job may need
//! any of them.
//!
//! Lock: one lock, a leaf. It is not held across a wait, nor while a sender is used or dropped.

use forebay_base::sync::Mutex;
use forebay_base::task::{OneReceiver, OneSender, oneshot};
use forebay_base::{Error, ErrorKind, Result};
use std::sync::{Arc, OnceLock, Weak};

/// The layer that decides on checkpoints and cleaning.
pub(crate) trait Maintainer: Send + Sync {
    /// Wakes the maintenance after a request was posted.
    fn wake(&self);

    /// Notes that a group of records was written or failed. Checks whether a checkpoint or cleaning
    /// is due.
    fn on_written(&self);
}

/// Requests that no job has taken yet.
#[derive(Default)]
pub(crate) struct Posted {
    /// Requests for space. The answer tells whether space was made.
    pub space: Vec<OneSender<Answer>>,
    /// A caller asked that no pass is in progress when it is answered (J5).
    pub ends_pass: bool,
    /// Requests for a checkpoint.
    pub checkpoints: Vec<OneSender<Result<()>>>,
    /// Requests to free removed content.
    pub removals: Vec<OneSender<()>>,
    /// The oldest change has reached its age.
    pub is_of_age: bool,
    /// Answers to requests for space whose callers have not run since (J4).
    unseen: u32,
}

/// The answer to a request for space, until its caller has received it (J4).
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

/// The requests of a volume, and the maintenance that takes them.
#[derive(Default)]
pub(crate) struct Requests {
    posted: Mutex<Posted>,
    /// The maintenance. It is set when the volume is open.
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

    /// Posts a request. `None`: the request is refused (J2).
    fn post<T>(&self, put: impl FnOnce(&mut Posted, OneSender<T>)) -> Option<OneReceiver<T>> {
        // This reference lives until the wake. So the maintenance either takes the request, or
        // refuses it when it is dropped.
        let maintainer = self.maintainer()?;
        let (sender, receiver) = oneshot();
        put(&mut self.posted.lock(), sender);
        maintainer.wake();
        Some(receiver)
    }

    /// Requests space. False: no space could be made.
    pub async fn make_space(&self) -> bool {
        match self.post(|posted, sender| posted.space.push(sender)) {
            Some(answer) => answer.await.is_some_and(|answer| answer.is_made),
            None => false,
        }
    }

    /// [`Self::make_space`]; after it no pass of the cleaner is in progress (J5).
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

    /// Requests a checkpoint.
    pub async fn checkpoint(&self) -> Result<()> {
        let gone = || Err(Error::new(ErrorKind::Shutdown, "checkpoint", "the volume is closed"));
        match self.post(|posted, sender| posted.checkpoints.push(sender)) {
            Some(answer) => answer.await.unwrap_or_else(gone),
            None => gone(),
        }
    }

    /// Waits until removed content is free, if there is much of it.
    pub async fn free_removed(&self) {
        if let Some(answer) = self.post(|posted, sender| posted.removals.push(sender)) {
            answer.await;
        }
    }

    /// Posts that the oldest change has reached its age: a checkpoint is due.
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

    /// Whether a request for space is posted, or an answer was not received yet (J4).
    pub fn has_space_caller(&self) -> bool {
        let posted = self.posted.lock();
        posted.unseen > 0 || !posted.space.is_empty()
    }

    /// Gives the maintenance access to the posted requests.
    pub fn with_posted<T>(&self, take: impl FnOnce(&mut Posted) -> T) -> T {
        take(&mut self.posted.lock())
    }

    /// Refuses all posted requests (J2).
    pub fn refuse_all(&self) {
        let posted = {
            let mut posted = self.posted.lock();
            let unseen = posted.unseen;
            std::mem::replace(&mut *posted, Posted { unseen, ..Posted::default() })
        };
        // After the lock is released, because this wakes the callers.
        drop(posted);
    }
}
