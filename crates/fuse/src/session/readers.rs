//! Decides which reader threads may wait for a device themselves. A request that the reader thread
//! carries out itself wakes no other thread, and neither does its answer.
//!
//! Invariants: X1 at most half of the reader threads wait: one of two, none if there is only one.
//! X2 a thread begins to wait only while another one listens to the kernel. If none listens,
//! requests that have to wait go to other threads.
//!
//! No locks.

use forebay_base::sync::atomic::{AtomicUsize, Ordering};

/// Counts of reader threads that listen and that wait.
pub(super) struct Readers {
    listening: AtomicUsize,
    waiting: AtomicUsize,
    /// Most threads that may wait (X1).
    waiting_max: usize,
}

/// One thread in a count, until this is dropped.
pub(super) struct One<'a>(&'a AtomicUsize);

impl Drop for One<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Readers {
    /// For `count` reader threads.
    pub fn new(count: usize) -> Self {
        let (listening, waiting) = Default::default();
        Self { listening, waiting, waiting_max: count / 2 }
    }

    /// The calling thread reads from the device until the result is dropped.
    pub fn listen(&self) -> One<'_> {
        self.listening.fetch_add(1, Ordering::Relaxed);
        One(&self.listening)
    }

    /// Lets the calling thread wait for a device until the result is dropped. `None`: it must not
    /// (X1, X2).
    pub fn may_wait(&self) -> Option<One<'_>> {
        if self.listening.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let one_more = |now| (now < self.waiting_max).then_some(now + 1);
        let begun = self.waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more);
        begun.ok().map(|_| One(&self.waiting))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// X1, X2: a thread may wait only while another one listens, and half of the threads at most.
    #[test]
    fn x1_x2_one_thread_always_listens() {
        let alone = Readers::new(1);
        let listens = alone.listen();
        assert!(alone.may_wait().is_none(), "X1");
        drop(listens);
        let readers = Readers::new(5);
        assert!(readers.may_wait().is_none(), "X2");
        let others = [readers.listen(), readers.listen(), readers.listen()];
        let first = readers.may_wait().unwrap();
        let second = readers.may_wait().unwrap();
        assert!(readers.may_wait().is_none(), "X1: two of five");
        drop(first);
        let third = readers.may_wait().unwrap();
        drop(others);
        drop((second, third));
        assert!(readers.may_wait().is_none(), "X2: no thread listens any more");
        let _listens = readers.listen();
        assert!(readers.may_wait().is_some());
    }
}
