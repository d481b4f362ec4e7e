//! Notifications to the kernel about stale caches. One thread sends them, and holds no lock during
//! a call of the kernel.
//!
//! In the kernel a notice may wait for pages that a request to this daemon has to fill, so no reply
//! waits for a notice. The exception is a notice of attributes alone, for an open file, which the
//! kernel never delays. If the process dies during a wait, [`crate::watchdog`] ends the connection.
//!
//! Invariants: V1 notices are sent in the order in which they were queued. V2 a notice about an
//! object that the kernel does not know is no error. V3 the queue is bounded: callers wait for
//! space, but threads and tasks that answer requests never do. If the queue is full they mark the
//! inode, and one notice later reports all of its content as stale, alternating with notices of the
//! queue. That notice has no number, and no place in the order.
//!
//! Lock: the queue's, a leaf.

use crate::device::Device;
use crate::drops::Drops;
pub use crate::proto::notify::Notice;
use crate::refills::Refills;
use crate::retrieve::Retriever;
use forebay_base::task::{Pick, WaitQueue, block_on};
use rustix::io::Errno;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::ops::Bound;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

/// Most notices in the queue.
const QUEUE_MAX: usize = 4096;
/// Notices that are taken from the queue between two reports of marked inodes, so that marked
/// inodes need not wait until the queue is empty.
const POPPED_MAX: usize = QUEUE_MAX / 8;

#[derive(Default)]
struct State {
    queue: VecDeque<Notice>,
    /// Names with a notice that the kernel has not carried out, and the number of these notices.
    names: HashMap<(u64, Box<[u8]>), usize>,
    /// Notices queued so far, and notices that the kernel has carried out.
    given: u64,
    gone: u64,
    closed: bool,
    /// Inodes whose whole content has to be reported as stale, because the queue was full (V3).
    stale: BTreeSet<u64>,
    /// The inode of `stale` that was reported last; the set is visited in cyclic order.
    last_stale: u64,
    /// Notices taken from the queue since the thread last looked for a marked inode.
    popped: usize,
    /// A `Prune` notice is queued or being sent.
    pruning: bool,
    /// The kernel refused a `Prune` as unknown.
    no_prune: bool,
}

impl State {
    /// The next notice, and whether it has a number: that of a marked inode has none (V1, V3).
    fn next(&mut self) -> Option<(Notice, bool)> {
        if self.popped < POPPED_MAX
            && let Some(notice) = self.queue.pop_front()
        {
            self.popped += 1;
            return Some((notice, true));
        }
        self.popped = 0;
        let after = (Bound::Excluded(self.last_stale), Bound::Unbounded);
        match self.stale.range(after).next().or(self.stale.first()).copied() {
            Some(node) => {
                self.stale.remove(&node);
                self.last_stale = node;
                Some((Notice::content(node, 0, u64::MAX), false))
            }
            None => self.queue.pop_front().map(|notice| (notice, true)),
        }
    }
}

struct Shared {
    state: Mutex<State>,
    /// Wakes the thread.
    changed: Condvar,
    /// Callers that wait: for the notice of that number, or for space in the queue (0).
    waiting: WaitQueue<u64>,
    /// For notices that are sent at once, without the queue.
    device: OnceLock<Weak<Device>>,
    /// Ranges of cached pages that the kernel is to drop; they have their own thread.
    drops: Drops,
    /// Retrieves copies of the kernel's cached pages.
    retriever: Retriever,
    /// Notices and reads that concern cached writes in progress.
    refills: Refills,
}

impl Default for Shared {
    fn default() -> Self {
        let (state, changed, device, drops, retriever, refills) = Default::default();
        Self { state, changed, waiting: WaitQueue::with_keys(), device, drops, retriever, refills }
    }
}

/// Queues notices for the thread. Clones share the queue.
#[derive(Clone, Default)]
pub struct Notifier(Arc<Shared>);

impl Notifier {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The queue of cached pages that the kernel is to drop.
    pub(crate) fn drops(&self) -> &Drops {
        &self.0.drops
    }

    /// Compares the kernel's cached pages with content that was read.
    pub(crate) fn retriever(&self) -> &Retriever {
        &self.0.retriever
    }

    /// Finds cached writes whose pages were dropped too early.
    pub(crate) fn refills(&self) -> &Refills {
        &self.0.refills
    }

    /// Sets the connection to which the notices are sent.
    pub(crate) fn attach(&self, device: &Arc<Device>) {
        let _is_set_once = self.0.device.set(Arc::downgrade(device));
        self.0.retriever.attach(device);
    }

    /// Sends at once that the attributes of an inode are stale. Called by a thread that answers a
    /// request which holds the inode open; the kernel then waits neither for pages nor for locks.
    pub(crate) fn tell_attributes(&self, node: u64) {
        let notice = Notice::attributes(node);
        match self.0.device.get().and_then(Weak::upgrade) {
            Some(device) => drop(self.tell(&device, &notice)),
            None => drop(self.give(notice)),
        }
    }

    /// Queues a notice, and waits while the queue is full. Not for threads that answer requests.
    pub fn send(&self, notice: Notice) {
        block_on(self.room());
        self.put(self.lock(), notice);
    }

    /// Queues a notice. False: the queue is full.
    pub fn try_send(&self, notice: Notice) -> bool {
        let state = self.lock();
        let room = state.queue.len() < QUEUE_MAX;
        if room {
            self.put(state, notice);
        }
        room
    }

    /// Queues a notice of a caller that has waited for space. Returns the notice's number.
    pub(crate) fn give(&self, notice: Notice) -> u64 {
        self.put(self.lock(), notice)
    }

    /// Queues that a range of a file is stale; for threads that answer requests, so it never waits
    /// (V3).
    pub(crate) fn queue_stale(&self, node: u64, offset: u64, len: u64) {
        let mut state = self.lock();
        match state.queue.len() < QUEUE_MAX {
            true => drop(self.put(state, Notice::content(node, offset, len))),
            false => drop(state.stale.insert(node)),
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

    /// Waits until the queue has space.
    pub(crate) async fn room(&self) {
        let room = || {
            let state = self.lock();
            (state.queue.len() < QUEUE_MAX || state.closed).then_some(())
        };
        self.0.waiting.wait_for(0, room).await;
    }

    /// Waits until the kernel has carried out the notice of that number.
    pub(crate) async fn gone(&self, number: u64) {
        let gone = || {
            let state = self.lock();
            (state.gone >= number || state.closed).then_some(())
        };
        self.0.waiting.wait_for(number, gone).await;
    }

    /// Waits until the kernel has carried out all notices queued before. Not for threads that
    /// answer requests.
    pub fn settle(&self) {
        let given = self.lock().given;
        block_on(self.gone(given));
    }

    /// Queues a notice to forget some inodes, unless one is in progress, the queue is full, or the
    /// kernel does not support it.
    pub(crate) fn try_prune(&self, some: impl FnOnce() -> Vec<u64>) {
        let mut state = self.lock();
        if state.pruning || state.no_prune || state.queue.len() >= QUEUE_MAX {
            return;
        }
        state.pruning = true;
        self.put(state, Notice::Prune(some()));
    }

    /// Whether the kernel supports `Prune`, as far as is known.
    pub(crate) fn can_prune(&self) -> bool {
        !self.lock().no_prune
    }

    /// Whether a notice about a name is queued or being carried out by the kernel.
    pub(crate) fn has_queued(&self, dir: u64, name: &[u8]) -> bool {
        let state = self.lock();
        !state.names.is_empty() && state.names.contains_key(&(dir, name.into()))
    }

    /// Takes all queued notices as if the kernel had carried them out.
    #[cfg(test)]
    pub(crate) fn deliver_all(&self) {
        let queue = std::mem::take(&mut self.lock().queue);
        for notice in &queue {
            self.0.refills.sending(notice, || ());
            self.told(notice, true, false);
        }
    }

    /// The queued notices.
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

    /// Counts a notice that the kernel has carried out, if it has a number. Returns the new count.
    fn told(&self, notice: &Notice, is_numbered: bool, unknown: bool) -> u64 {
        let mut state = self.lock();
        state.gone += u64::from(is_numbered);
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

    /// Sends a notice. True: the kernel does not support this kind.
    pub(crate) fn tell(&self, device: &Device, notice: &Notice) -> bool {
        self.0.refills.sending(notice, || tell(device, notice))
    }

    /// The thread's work, until [`Notifier::close`].
    pub(crate) fn run(&self, device: &Device) {
        loop {
            let mut state = self.lock();
            let (notice, is_numbered) = loop {
                if state.closed {
                    return;
                }
                if let Some(next) = state.next() {
                    break next;
                }
                state = self.0.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            };
            drop(state);
            let unknown = self.tell(device, &notice);
            let gone = self.told(&notice, is_numbered, unknown);
            let done = |number: &u64| if *number > gone { Pick::Skip } else { Pick::Wake };
            self.0.waiting.wake_matching(done);
        }
    }
}

/// What the kernel's answer to a notice means (V2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    /// Nothing remains to be done: the kernel has carried it out, has nothing cached of it, has
    /// found it in use, or has ended the connection.
    Done,
    /// The kernel does not support this kind of notice.
    Unknown,
    /// The kernel failed for another reason.
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

/// Sends a notice. True: the kernel does not support this kind.
fn tell(device: &Device, notice: &Notice) -> bool {
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

    /// V1: notices are sent in order, and `settle` waits for all queued ones.
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

    /// V2: a kind of notice that the kernel does not support is not sent again.
    #[test]
    fn v2_unsupported_notice_is_not_an_error() {
        let nothing_to_forget = [Errno::NOENT, Errno::NOTEMPTY, Errno::BUSY, Errno::NODEV];
        for errno in nothing_to_forget.into_iter().chain([Errno::NOTDIR]) {
            assert_eq!(meaning(Err(errno)), Answer::Done, "{errno}");
        }
        assert_eq!(meaning(Ok(())), Answer::Done);
        for errno in [Errno::INVAL, Errno::NOSYS] {
            assert_eq!(meaning(Err(errno)), Answer::Unknown, "{errno}");
        }
        assert_eq!(meaning(Err(Errno::BADF)), Answer::Failed(Errno::BADF), "not of the notice");
        // After an ordinary answer the next `Prune` is sent; after `Unknown` none is.
        let notifier = Notifier::default();
        for (unknown, can) in [(false, true), (true, false)] {
            notifier.try_prune(|| vec![1]);
            let notice = notifier.lock().queue.pop_front().expect("it is queued");
            notifier.told(&notice, true, unknown);
            assert_eq!(notifier.can_prune(), can);
        }
        notifier.try_prune(|| vec![1]);
        assert!(notifier.queued().is_empty(), "not asked again");
        let notifier = Notifier::default();
        notifier.told(&inode(1), true, true);
        assert!(notifier.can_prune(), "another kind of notice");
    }

    /// V3: earlier, a direct writer to one file kept the queue full, so another file's stale pages
    /// were never reported.
    #[test]
    fn v3_files_marked_stale_are_reported_while_the_queue_refills() {
        let notifier = Notifier::default();
        (0..QUEUE_MAX as u64).for_each(|n| notifier.queue_stale(n, 0, 1));
        notifier.queue_stale(9999, 0, 1);
        let is_marked = |notice: &Notice| *notice == Notice::content(9999, 0, u64::MAX);
        let found = (0..QUEUE_MAX).find(|n| {
            let (notice, _) = notifier.lock().next().expect("it is never empty");
            notifier.queue_stale(*n as u64, 0, 1);
            is_marked(&notice)
        });
        assert_eq!(found, Some(POPPED_MAX), "a writer refills the queue");
        let number = notifier.give(inode(1));
        let left = notifier.lock().queue.len() as u64;
        assert_eq!(number, POPPED_MAX as u64 + left, "V1: it has no number");
        let marked = |nodes: [u64; 2]| notifier.lock().stale.extend(nodes);
        let next_marked = || {
            let mut state = notifier.lock();
            let all = std::iter::from_fn(|| state.next());
            match all.take(POPPED_MAX + 1).find(|(_, is_numbered)| !is_numbered) {
                Some((Notice::Inode { node, .. }, _)) => node,
                other => panic!("{other:?}"),
            }
        };
        marked([1, 2]);
        assert_eq!(next_marked(), 1);
        marked([1, 3]);
        assert_eq!(next_marked(), 2, "in turns: one that is marked again comes last");
    }

    /// V3: the queue is bounded, and marked inodes are counted once.
    #[test]
    fn v3_notice_queue_is_bounded() {
        let notifier = Notifier::default();
        (0..QUEUE_MAX as u64).for_each(|n| assert!(notifier.try_send(inode(n))));
        assert!(!notifier.try_send(inode(0)));
        let notifier = Notifier::default();
        (0..9).for_each(|n| notifier.try_prune(|| vec![n]));
        assert_eq!(notifier.lock().queue, [Notice::Prune(vec![0])], "one at a time");
        // With a full queue each inode is marked once.
        (0..QUEUE_MAX as u64).for_each(|n| notifier.queue_stale(n, 0, 1));
        (0..9).for_each(|n| notifier.queue_stale(n % 3, n, 1));
        let state = notifier.lock();
        assert_eq!((state.queue.len(), state.stale.len()), (QUEUE_MAX, 4));
    }
}
