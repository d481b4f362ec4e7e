//! Appends of programs to the end of file that the kernel knows, while they are in progress, and
//! changes by other front ends in progress.
//!
//! The kernel chooses the offset of an `O_APPEND` write by the size that it knows. After another
//! front end has changed the file, that size may be stale, and the daemon finds the end of file
//! itself; see coherent.K3 in [`super::coherent`]. The first such change waits for the appends that
//! began without knowledge of it.
//!
//! Invariants: K5 an append counts itself before it reads the file's mark (`Mark::Shared`); another
//! front end sets the mark before it reads the count of appends. So at least one of them sees the
//! other. K6 a change counts from before its file is marked until the kernel is notified; marking
//! has no effect on a file that the kernel does not know. An answer that makes a file known reads
//! that count afterwards. So one of them sets the mark.
//!
//! Locks: one for each of the two tables, leaves.

use forebay_base::sync::Mutex;
use forebay_base::sync::atomic::{AtomicUsize, Ordering};
use forebay_base::task::WaitQueue;
use forebay_vfs::Ino;
use std::collections::HashMap;

/// Counts of appends in progress, by inode.
#[derive(Default)]
pub(crate) struct Appends {
    counts: Mutex<HashMap<u64, usize>>,
    wait: WaitQueue,
}

/// An append in progress, until this is dropped.
pub(crate) struct Counted<'a>(&'a Appends, u64);

impl Appends {
    /// Counts an append.
    pub fn count(&self, ino: Ino) -> Counted<'_> {
        *self.counts.lock().entry(ino.0).or_default() += 1;
        Counted(self, ino.0)
    }

    /// Waits until no append to this file is in progress.
    pub async fn none(&self, ino: Ino) {
        let none = || (!self.counts.lock().contains_key(&ino.0)).then_some(());
        self.wait.wait_until(none).await;
    }
}

/// Changes by other front ends in progress, by inode.
#[derive(Default)]
pub(crate) struct Changes {
    counts: Mutex<HashMap<u64, usize>>,
    /// Number of files in `counts`.
    len: AtomicUsize,
}

impl Changes {
    /// Counts a change that begins.
    pub fn begin(&self, ino: Ino) {
        let mut counts = self.counts.lock();
        *counts.entry(ino.0).or_default() += 1;
        self.len.store(counts.len(), Ordering::SeqCst);
    }

    /// Counts the end of a change.
    pub fn end(&self, ino: Ino) {
        let mut counts = self.counts.lock();
        if let Some(count) = counts.get_mut(&ino.0) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&ino.0);
            }
        }
        self.len.store(counts.len(), Ordering::SeqCst);
    }

    /// Whether a change of this file is in progress.
    pub fn any(&self, ino: Ino) -> bool {
        self.len.load(Ordering::SeqCst) > 0 && self.counts.lock().contains_key(&ino.0)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        let Self(appends, ino) = self;
        let mut counts = appends.counts.lock();
        if let Some(count) = counts.get_mut(ino) {
            *count -= 1;
            if *count == 0 {
                counts.remove(ino);
                drop(counts);
                appends.wait.wake_all();
            }
        }
    }
}
