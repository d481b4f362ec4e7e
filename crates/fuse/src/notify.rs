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
    /// A `Prune` waits or is under way.
    pruning: bool,
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

    /// Queues a notice to forget some inodes, unless one is under way or this kernel knows none.
    pub(crate) fn try_prune(&self, some: impl FnOnce() -> Vec<u64>) {
        let mut state = self.lock();
        if state.pruning || state.no_prune || state.queue.len() >= QUEUE_MAX {
            return;
        }
        state.pruning = true;
        self.put(state, Notice::Prune(some()));
    }

    /// Whether the kernel has refused such a notice.
    pub(crate) fn can_prune(&self) -> bool {
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
            if let Notice::Prune(_) = notice {
                state.pruning = false;
                state.no_prune |= refused;
            }
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

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    fn inode(node: u64) -> Notice {
        Notice::Inode { node, offset: -1, len: 0 }
    }

    /// V1: and `settle` waits for what was given.
    #[test]
    fn v1_notices_leave_in_order() {
        let kind = SocketType::SEQPACKET;
        let (ours, kernel) =
            socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
        let (device, notifier) = (Device::new(ours), Notifier::default());
        let theirs = notifier.clone();
        let thread = std::thread::spawn(move || theirs.run(&device));
        (0..10).for_each(|n| notifier.send(inode(n)));
        notifier.settle();
        for n in 0..10 {
            let mut bytes = [0; 64];
            assert_eq!(rustix::io::read(&kernel, &mut bytes).unwrap(), 40);
            assert_eq!(bytes[..40], inode(n).encode());
        }
        notifier.close();
        thread.join().unwrap();
        notifier.send(inode(1));
        notifier.settle();
    }

    /// V2: a kernel that does not know a kind of notice is not asked again.
    #[test]
    fn v2_what_the_kernel_does_not_know_is_no_error() {
        let null = std::fs::File::options().read(true).open("/dev/null").unwrap();
        assert!(!tell(&Device::new(null.into()), &inode(1)), "EBADF is not about the notice");
    }

    /// V3
    #[test]
    fn v3_the_queue_is_bounded() {
        let notifier = Notifier::default();
        (0..QUEUE_MAX as u64).for_each(|n| assert!(notifier.try_send(inode(n))));
        assert!(!notifier.try_send(inode(0)));
        let notifier = Notifier::default();
        (0..9).for_each(|n| notifier.try_prune(|| vec![n]));
        assert_eq!(notifier.lock().queue, [Notice::Prune(vec![0])], "one at a time");
    }
}
