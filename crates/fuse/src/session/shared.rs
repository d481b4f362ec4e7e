//! What the threads of a session share, and how a request is counted and answered.
//!
//! Locks: the session's state, a leaf; and the slot of the file system. See [`super`].

use super::readers::Readers;
use super::syncs::Syncs;
use super::waiting::Carrier;
use crate::device::Device;
use crate::inodes::Inodes;
use crate::notify::Notifier;
use crate::payload::Payload;
use crate::serve::{Answer, Core, Outcome, Undo};
use forebay_base::Error;
use forebay_base::sync::RwLock;
use forebay_vfs::NotifyingFs;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};

#[derive(Default)]
pub(super) struct State {
    pub(super) ready: bool,
    pub(super) failed: Option<Error>,
    /// The request to answer last.
    pub(super) destroy: Option<u64>,
    pub(super) readers: usize,
    /// Requests that background tasks have.
    pub(super) tasks: usize,
    /// Requests that the kernel may have under way of its own accord.
    pub(super) background: u16,
    /// The kernel's limit for an answer, seconds; 0: none.
    pub(super) kernel_timeout: u16,
    /// No [`super::Ending`] will end the session (session.S4).
    pub(super) abandoned: bool,
    pub(super) ended: bool,
}

/// What the threads of a session share.
pub(super) struct Shared {
    pub(super) device: Arc<Device>,
    pub(super) core: RwLock<Option<Arc<Core>>>,
    /// Those of `core`.
    pub(super) inodes: Arc<Inodes>,
    /// Other front ends of the file system, which report their changes here.
    pub(super) beside: Weak<NotifyingFs>,
    pub(super) notifier: Notifier,
    pub(super) payload: Arc<Payload>,
    pub(super) readers: Readers,
    pub(super) syncs: Arc<Syncs>,
    /// Carries requests on as background tasks.
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
        // No thread waits for more of them.
        self.lock().tasks += 1;
    }

    pub(super) fn task_ended(&self) {
        let mut state = self.lock();
        state.tasks -= 1;
        // Only an `Ending` waits for that. Waking all waiters at the end of each task would be in
        // vain.
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

    /// Other front ends have nothing to report any more.
    pub(super) fn leave(&self) {
        if let Some(beside) = self.beside.upgrade() {
            beside.forget();
        }
    }
}
