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
//! space that was made. J5 if the caller asked for it, no pass is in progress either until the
//! caller has run: a pass reserves log space for its moves. So no job for later callers begins
//! before that. J6 an answer holds other work back for at most [`HOLD`]: a caller whose executor
//! does not poll it then competes for the space.
//!
//! Rule: a task that waits here holds no lock, no reservation and no turn, because the job may need
//! any of them.
//!
//! Lock: one lock, a leaf. It is not held across a wait, nor while a sender is used or dropped.

use crate::transaction::state::State;
use forebay_base::sync::Mutex;
use forebay_base::task::{OneReceiver, OneSender, oneshot};
use forebay_base::world::Nanos;
use forebay_base::{Error, ErrorKind, Result};
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

/// How long an answer that its caller has not seen holds other work back (J6).
pub(crate) const HOLD: Duration = Duration::from_millis(100);

/// The layer that decides on checkpoints and cleaning.
pub(crate) trait Maintainer: Send + Sync {
    /// Wakes the maintenance after a request was posted.
    fn wake(&self);

    /// Calls `take` with the state, which takes a group of records, and counts it as log. In the
    /// same hold of the lock this checks whether a checkpoint or cleaning is due.
    fn on_group(&self, take: &mut dyn FnMut(&mut State));
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
    /// Answers to requests for space whose callers have not run since (J4), by number.
    unseen: BTreeMap<u64, Unseen>,
}

/// An answer that its caller has not seen.
struct Unseen {
    /// Until when it holds other work back (J6).
    until: Nanos,
    /// No pass may begin, and not only background cleaning (J5).
    ends_pass: bool,
}

/// Until when unseen answers hold work back. `None`: it is not held back.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Held {
    /// Background cleaning (J4).
    pub cleaning: Option<Nanos>,
    /// Jobs that make space (J5).
    pub space: Option<Nanos>,
}

/// The answer to a request for space, until its caller has received it (J4).
pub(crate) struct Answer {
    is_made: bool,
    number: u64,
    requests: Arc<Requests>,
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.requests.posted.lock().unseen.remove(&self.number);
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

    /// Answers requests for space. `ends_pass`: one of the callers wants no pass in progress (J5).
    pub fn answer_space(
        self: &Arc<Self>,
        callers: Vec<OneSender<Answer>>,
        (is_made, ends_pass): (bool, bool),
        now: Nanos,
    ) {
        let until = now + HOLD.as_nanos() as u64;
        let first = {
            let mut posted = self.posted.lock();
            let first = posted.unseen.last_key_value().map_or(0, |(last, _)| last + 1);
            let numbers = first..first + callers.len() as u64;
            posted.unseen.extend(numbers.map(|number| (number, Unseen { until, ends_pass })));
            first
        };
        for (number, caller) in (first..).zip(callers) {
            caller.send(Answer { is_made, number, requests: self.clone() });
        }
    }

    /// Whether a request for space was posted.
    pub fn wants_space(&self) -> bool {
        !self.posted.lock().space.is_empty()
    }

    /// Until when answers that were not seen hold work back (J4 to J6).
    pub fn held(&self, now: Nanos) -> Held {
        let mut held = Held::default();
        for unseen in self.posted.lock().unseen.values().filter(|unseen| unseen.until > now) {
            held.cleaning = held.cleaning.max(Some(unseen.until));
            if unseen.ends_pass {
                held.space = held.space.max(Some(unseen.until));
            }
        }
        held
    }

    /// Gives the maintenance access to the posted requests.
    pub fn with_posted<T>(&self, take: impl FnOnce(&mut Posted) -> T) -> T {
        take(&mut self.posted.lock())
    }

    /// Refuses all posted requests (J2).
    pub fn refuse_all(&self) {
        let posted = {
            let mut posted = self.posted.lock();
            let unseen = std::mem::take(&mut posted.unseen);
            std::mem::replace(&mut *posted, Posted { unseen, ..Posted::default() })
        };
        // After the lock is released, because this wakes the callers.
        drop(posted);
    }
}
