//! State that the threads of a session share; counting and answering requests.
//!
//! Locks: the session's state, a leaf; and the slot of the file system. See [`super`].

use super::readers::Readers;
use super::syncs::Syncs;
use super::waiting::Carrier;
use crate::device::Device;
use crate::inodes::Inodes;
use crate::notify::Notifier;
use crate::payload::Payload;
use crate::proto::reply;
use crate::serve::{Answer, Core, Outcome, Undo};
use forebay_base::Error;
use forebay_base::sync::RwLock;
use forebay_vfs::NotifyingFs;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};

#[derive(Default)]
pub(super) struct State {
    pub(super) ready: bool,
    pub(super) failed: Option<Error>,
    /// The `DESTROY` request, which is answered last.
    pub(super) destroy: Option<u64>,
    pub(super) readers: usize,
    /// Requests that background tasks and sync threads carry out.
    pub(super) tasks: usize,
    /// Most requests of the kernel's own in progress at a time.
    pub(super) background: u16,
    /// The kernel's time limit for a request, seconds; 0: none.
    pub(super) kernel_timeout: u16,
    /// The session ends without an [`super::Ending`] (session.S4).
    pub(super) abandoned: bool,
    pub(super) ended: bool,
}

/// State that the threads of a session share.
pub(super) struct Shared {
    pub(super) device: Arc<Device>,
    pub(super) core: RwLock<Option<Arc<Core>>>,
    /// The inodes of `core`.
    pub(super) inodes: Arc<Inodes>,
    /// Wrapper for other front ends of the file system, which report their changes here.
    pub(super) notifying: Weak<NotifyingFs>,
    pub(super) notifier: Notifier,
    pub(super) payload: Arc<Payload>,
    pub(super) readers: Readers,
    pub(super) syncs: Arc<Syncs>,
    /// Hands woken requests to background tasks.
    pub(super) tasks: Arc<dyn Carrier>,
    pub(super) state: Mutex<State>,
    pub(super) changed: Condvar,
}

impl Shared {
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn wait(&self, until: impl Fn(&State) -> bool) {
        let mut state = self.lock();
        while !until(&state) {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    pub(super) fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.lock());
        self.changed.notify_all();
    }

    pub(super) fn task_begins(&self) {
        // No thread waits for this count to rise, so none is woken.
        self.lock().tasks += 1;
    }

    pub(super) fn task_ended(&self) {
        let mut state = self.lock();
        state.tasks -= 1;
        // Only an `Ending` waits for the count to become 0, so others are not woken for each task.
        let ending = state.destroy.is_some() || state.readers == 0;
        if state.tasks == 0 && ending {
            drop(state);
            self.changed.notify_all();
        }
    }

    pub(super) fn finish(&self, core: &Core, unique: u64, outcome: Outcome) {
        let Outcome { answer, undo } = outcome;
        let told = match answer {
            Answer::Errno(errno) => self.device.reply(unique, errno, &[]),
            Answer::Body(body) => self.device.reply(unique, 0, body.as_bytes()),
            Answer::Wrote(len) => self.device.reply(unique, 0, &reply::write_out(len)),
            Answer::Data(buf, len) => {
                let told = self.device.reply(unique, 0, &buf[..len]);
                core.spares.give(buf);
                told
            }
        };
        let Undo { inodes, opened } = &undo;
        if !told && (!inodes.is_empty() || opened.is_some()) {
            core.undo(undo);
        }
    }

    /// From now on other front ends report no changes here.
    pub(super) fn leave(&self) {
        if let Some(notifying) = self.notifying.upgrade() {
            notifying.forget();
        }
    }
}
