//! Appends of programs that go where the kernel has the end of a file, while they are on their way; and the
//! changes by others that are.
//!
//! The kernel chooses the place of an `O_APPEND` by the size that it knows. Once somebody else in the process
//! has changed the file that size may be old, and the append looks for the end itself; see K3 in
//! [`super::beside`]. Between the two lies the first change: whoever makes it waits for the appends that did
//! not know of it.
//!
//! Invariants: K5 an append counts itself before it looks whether others write, and they mark the file before
//! they look whether an append counts: one of them sees the other. K6 a change counts before its file is
//! marked, which does nothing where the kernel does not know it, and until it is told; an answer that makes a
//! file known looks whether one counts after that: one of them marks it.
//!
//! Locks: the counts of either, leaves.

use forebay_base::sync::Mutex;
use forebay_base::sync::atomic::{AtomicUsize, Ordering};
use forebay_base::task::WaitQueue;
use forebay_vfs::Ino;
use std::collections::HashMap;

/// See the module.
#[derive(Default)]
pub(crate) struct Appends {
    counts: Mutex<HashMap<u64, usize>>,
    wait: WaitQueue,
}

/// An append that counts until this goes.
pub(crate) struct Counted<'a>(&'a Appends, u64);

impl Appends {
    /// Counts one.
    pub fn count(&self, ino: Ino) -> Counted<'_> {
        *self.counts.lock().entry(ino.0).or_default() += 1;
        Counted(self, ino.0)
    }

    /// Waits until none of this file counts.
    pub async fn none(&self, ino: Ino) {
        let none = || (!self.counts.lock().contains_key(&ino.0)).then_some(());
        self.wait.wait_until(none).await;
    }
}

/// Changes by others that are on their way, by file.
#[derive(Default)]
pub(crate) struct Changes {
    counts: Mutex<HashMap<u64, usize>>,
    /// Files.
    len: AtomicUsize,
}

impl Changes {
    /// One begins.
    pub fn begin(&self, ino: Ino) {
        let mut counts = self.counts.lock();
        *counts.entry(ino.0).or_default() += 1;
        self.len.store(counts.len(), Ordering::SeqCst);
    }

    /// It is over.
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

    /// Whether there is one to this file.
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
