//! Telling the kernel to forget: one thread, which holds no lock while the kernel works.
//!
//! A notice may wait in the kernel for pages that a request of ours has to fill, so no reply ever waits for
//! a notice; but for one of attributes alone of a file that is open, which waits for nothing. If the
//! process dies meanwhile, [`crate::watchdog`] ends the wait.
//!
//! Invariants: V1 notices leave in the order in which they were given. V2 what the kernel does not know
//! is no error. V3 the queue is bounded in number: callers wait for room, threads and tasks that answer
//! requests never. What they owe beyond it is told by inode as a whole, once for each.
//!
//! Lock: the queue's, a leaf.

use crate::device::Device;
use crate::drops::Drops;
pub use crate::proto::notify::Notice;
use crate::retrieve::Retriever;
use forebay_base::task::{Pick, WaitQueue, block_on};
use rustix::io::Errno;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

/// Most notices that wait.
const QUEUE_MAX: usize = 4096;

#[derive(Default)]
struct State {
    queue: VecDeque<Notice>,
    /// Names with notices that the kernel has not carried out: how many.
    names: HashMap<(u64, Box<[u8]>), usize>,
    /// Given, and gone to the kernel.
    given: u64,
    gone: u64,
    closed: bool,
    /// Inodes of which everything is stale, for which there was no room.
    owed: BTreeSet<u64>,
    /// A `Prune` waits or is under way.
    pruning: bool,
    /// The kernel refused a `Prune` as unknown.
    no_prune: bool,
}

struct Shared {
    state: Mutex<State>,
    /// For the thread.
    changed: Condvar,
    /// For callers: by the number of what they wait for, 0 for room.
    waiting: WaitQueue<u64>,
    /// For what is told at once.
    device: OnceLock<Weak<Device>>,
    /// Pages that the kernel is to drop, which have a thread of their own.
    drops: Drops,
    /// What the kernel holds of files.
    retriever: Retriever,
}

impl Default for Shared {
    fn default() -> Self {
        let (state, changed, device, drops, retriever) = Default::default();
        Self { state, changed, waiting: WaitQueue::with_keys(), device, drops, retriever }
    }
}

/// Gives notices to the thread. Clones share it.
#[derive(Clone, Default)]
pub struct Notifier(Arc<Shared>);

impl Notifier {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The queue of pages that the kernel is to drop.
    pub(crate) fn drops(&self) -> &Drops {
        &self.0.drops
    }

    /// Compares what the kernel has of files.
    pub(crate) fn retriever(&self) -> &Retriever {
        &self.0.retriever
    }

    /// The notices are for this connection.
    pub(crate) fn attach(&self, device: &Arc<Device>) {
        let _is_set_once = self.0.device.set(Arc::downgrade(device));
        self.0.retriever.attach(device);
    }

    /// Tells at once, by a thread that answers a request, that the attributes of an inode are stale which
    /// that request holds open: neither pages nor locks are waited for in the kernel.
    pub(crate) fn tell_attributes(&self, node: u64) {
        let notice = Notice::attributes(node);
        match self.0.device.get().and_then(Weak::upgrade) {
            Some(device) => drop(tell(&device, &notice)),
            None => drop(self.give(notice)),
        }
    }

    /// Queues a notice, and waits if too many wait already. Not for threads that answer requests.
    pub fn send(&self, notice: Notice) {
        block_on(self.room());
        self.put(self.lock(), notice);
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

    /// Queues a notice of someone who has waited for room. Gives its number.
    pub(crate) fn give(&self, notice: Notice) -> u64 {
        self.put(self.lock(), notice)
    }

    /// Queues that a range of a file is stale, by a thread that answers requests (V3).
    pub(crate) fn owe(&self, node: u64, offset: u64, len: u64) {
        let mut state = self.lock();
        match state.queue.len() < QUEUE_MAX {
            true => drop(self.put(state, Notice::content(node, offset, len))),
            false => drop(state.owed.insert(node)),
        }
    }

    fn put(&self, mut state: MutexGuard<'_, State>, notice: Notice) -> u64 {
        if state.closed {
            return 0;
        }
        if let Some((dir, name)) = notice.name() {
            *state.names.entry((dir, name.into())).or_default() += 1;
        }
        state.queue.push_back(notice);
        state.given += 1;
        self.0.changed.notify_one();
        state.given
    }

    /// Waits until there is room.
    pub(crate) async fn room(&self) {
        let room = || {
            let state = self.lock();
            (state.queue.len() < QUEUE_MAX || state.closed).then_some(())
        };
        self.0.waiting.wait_for(0, room).await;
    }

    /// Waits until the kernel has done what it was told by that number.
    pub(crate) async fn gone(&self, number: u64) {
        let gone = || {
            let state = self.lock();
            (state.gone >= number || state.closed).then_some(())
        };
        self.0.waiting.wait_for(number, gone).await;
    }

    /// Waits until the kernel has done what it was told before. Not for threads that answer requests.
    pub fn settle(&self) {
        let given = self.lock().given;
        block_on(self.gone(given));
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

    /// Whether a notice about a name is queued or being carried out by the kernel.
    pub(crate) fn has_queued(&self, dir: u64, name: &[u8]) -> bool {
        let state = self.lock();
        !state.names.is_empty() && state.names.contains_key(&(dir, name.into()))
    }

    /// Takes all queued notices as a kernel does.
    #[cfg(test)]
    pub(crate) fn deliver_all(&self) {
        let queue = std::mem::take(&mut self.lock().queue);
        for notice in &queue {
            self.told(notice, false);
        }
    }

    /// What waits.
    #[cfg(test)]
    pub(crate) fn queued(&self) -> Vec<Notice> {
        self.lock().queue.iter().cloned().collect()
    }

    pub(crate) fn close(&self) {
        self.0.drops.close();
        self.0.retriever.close();
        let mut state = self.lock();
        state.closed = true;
        state.queue.clear();
        state.names.clear();
        drop(state);
        self.0.changed.notify_all();
        self.0.waiting.wake_all();
    }

    /// Counts a notice that the kernel has answered. Gives how many have gone.
    fn told(&self, notice: &Notice, unknown: bool) -> u64 {
        let mut state = self.lock();
        state.gone += 1;
        if let Some((dir, name)) = notice.name() {
            let key = (dir, name.into());
            if let Some(count) = state.names.get_mut(&key) {
                *count -= 1;
                if *count == 0 {
                    state.names.remove(&key);
                }
            }
        }
        if let Notice::Prune(_) = notice {
            state.pruning = false;
            state.no_prune |= unknown;
        }
        state.gone
    }

    /// The thread's work, until [`Notifier::close`].
    pub(crate) fn run(&self, device: &Device) {
        loop {
            let mut state = self.lock();
            let notice = loop {
                if state.closed {
                    return;
                }
                if let Some(notice) = state.queue.pop_front() {
                    break notice;
                }
                if let Some(node) = state.owed.pop_first() {
                    state.given += 1;
                    break Notice::content(node, 0, u64::MAX);
                }
                state = self.0.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            };
            drop(state);
            let unknown = tell(device, &notice);
            let gone = self.told(&notice, unknown);
            let done = |number: &u64| if *number > gone { Pick::Skip } else { Pick::Wake };
            self.0.waiting.wake_matching(done);
        }
    }
}

/// What the kernel's answer to a notice means (V2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    /// It is done, or not cached or in use: then there is nothing to forget.
    Done,
    /// The kernel does not know such a notice.
    Unknown,
    /// Anything else.
    Failed(Errno),
}

fn meaning(answer: Result<(), Errno>) -> Answer {
    match answer {
        Ok(()) => Answer::Done,
        Err(Errno::NOENT | Errno::NOTEMPTY | Errno::BUSY | Errno::NODEV) => Answer::Done,
        Err(Errno::NOTDIR) => Answer::Done,
        Err(Errno::INVAL | Errno::NOSYS) => Answer::Unknown,
        Err(e) => Answer::Failed(e),
    }
}

/// True: the kernel does not know such a notice.
pub(crate) fn tell(device: &Device, notice: &Notice) -> bool {
    let answer = meaning(device.notify(&notice.encode()));
    if let Answer::Failed(e) = answer {
        log::warn!("the kernel refused {notice:?}: {e}");
    }
    answer == Answer::Unknown
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
        let nothing_to_forget = [Errno::NOENT, Errno::NOTEMPTY, Errno::BUSY, Errno::NODEV];
        for errno in nothing_to_forget.into_iter().chain([Errno::NOTDIR]) {
            assert_eq!(meaning(Err(errno)), Answer::Done, "{errno}");
        }
        assert_eq!(meaning(Ok(())), Answer::Done);
        for errno in [Errno::INVAL, Errno::NOSYS] {
            assert_eq!(meaning(Err(errno)), Answer::Unknown, "{errno}");
        }
        assert_eq!(meaning(Err(Errno::BADF)), Answer::Failed(Errno::BADF), "not of the notice");
        // The next one is asked after an ordinary answer, and none after that of a kernel without.
        let notifier = Notifier::default();
        for (unknown, can) in [(false, true), (true, false)] {
            notifier.try_prune(|| vec![1]);
            let notice = notifier.lock().queue.pop_front().expect("it is queued");
            notifier.told(&notice, unknown);
            assert_eq!(notifier.can_prune(), can);
        }
        notifier.try_prune(|| vec![1]);
        assert!(notifier.queued().is_empty(), "not asked again");
        let notifier = Notifier::default();
        notifier.told(&inode(1), true);
        assert!(notifier.can_prune(), "another kind of notice");
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
        // What is owed beyond the bound is owed once for each inode, and told.
        (0..QUEUE_MAX as u64).for_each(|n| notifier.owe(n, 0, 1));
        (0..9).for_each(|n| notifier.owe(n % 3, n, 1));
        let state = notifier.lock();
        assert_eq!((state.queue.len(), state.owed.len()), (QUEUE_MAX, 4));
    }
}
