//! Appends of programs that go where the kernel has the end of a file, while they are on their way.
//!
//! The kernel chooses the place of an `O_APPEND` by the size that it knows. Once somebody else in the process
//! has changed the file that size may be old, and the append looks for the end itself; see K3 in
//! [`super::beside`]. Between the two lies the first change: whoever makes it waits for the appends that did
//! not know of it.
//!
//! Invariant: K5 an append counts itself before it looks whether others write, and they mark the file before
//! they look whether an append counts: one of them sees the other.
//!
//! Lock: the counts, a leaf.

use forebay_base::sync::Mutex;
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
