//! Telling the kernel to forget: one thread, which holds no lock while the kernel works.
//!
//! A notice may wait in the kernel for pages that a request of ours has to fill, so no reply ever waits for
//! a notice. If the process dies meanwhile, [`crate::watchdog`] ends the wait.
//!
//! Invariants: V1 notices leave in the order in which they were given. V2 what the kernel does not know
//! is no error. V3 the queue is bounded in number: a caller that is ahead by more waits on its own thread,
//! reader threads and tasks never.
//!
//! Lock: the queue's, a leaf.

use crate::device::Device;
pub use crate::proto::notify::Notice;
use rustix::io::Errno;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Most notices that wait.
const QUEUE_MAX: usize = 4096;

#[derive(Default)]
struct State {
    queue: VecDeque<Notice>,
    /// Given, and gone to the kernel.
    given: u64,
    gone: u64,
    closed: bool,
    /// The kernel refused a `Prune` as unknown.
    no_prune: bool,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

/// Gives notices to the thread. Clones share it.
#[derive(Clone, Default)]
pub struct Notifier(Arc<Shared>);

impl Notifier {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.0.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a notice, and waits if too many wait already. Not for threads that answer requests.
    pub fn send(&self, notice: Notice) {
        let mut state = self.lock();
        while state.queue.len() >= QUEUE_MAX && !state.closed {
            state = self.wait(state);
        }
        self.put(state, notice);
    }

    /// Queues a notice, unless too many wait already: then false.
    pub fn try_send(&self, notice: Notice) -> bool {
        let state = self.lock();
        let room = state.queue.len() < QUEUE_MAX;
        if room {
            self.put(state, notice);
        }
        room
    }

    fn put(&self, mut state: MutexGuard<'_, State>, notice: Notice) {
        if !state.closed {
            state.queue.push_back(notice);
            state.given += 1;
            self.0.changed.notify_all();
        }
    }

    /// Waits until the kernel has done what it was told before. Not for threads that answer requests.
    pub fn settle(&self) {
        let mut state = self.lock();
        let given = state.given;
        while state.gone < given && !state.closed {
            state = self.wait(state);
        }
    }

    /// Whether this kernel knows [`Notice::Prune`], as far as it was tried.
    pub fn can_prune(&self) -> bool {
        !self.lock().no_prune
    }

    pub(crate) fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        state.queue.clear();
        self.0.changed.notify_all();
    }

    /// The thread's work, until [`Notifier::close`].
    pub(crate) fn run(&self, device: &Device) {
        loop {
            let mut state = self.lock();
            let notice = loop {
                if state.closed {
                    return;
                }
                match state.queue.pop_front() {
                    Some(notice) => break notice,
                    None => state = self.wait(state),
                }
            };
            drop(state);
            let refused = tell(device, &notice);
            let mut state = self.lock();
            state.gone += 1;
            state.no_prune |= refused && matches!(notice, Notice::Prune(_));
            self.0.changed.notify_all();
        }
    }
}

/// True: the kernel does not know such a notice.
fn tell(device: &Device, notice: &Notice) -> bool {
    match device.notify(&notice.encode()) {
        // Not cached, or in use: there is nothing to forget (V2).
        Ok(()) | Err(Errno::NOENT | Errno::NOTEMPTY | Errno::BUSY | Errno::NODEV) => false,
        Err(Errno::NOTDIR) => false,
        Err(Errno::INVAL | Errno::NOSYS) => true,
        Err(e) => {
            log::warn!("the kernel refused {notice:?}: {e}");
            false
        }
    }
}
