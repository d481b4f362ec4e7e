//! Names that the kernel removes or replaces while another front end changes them.
//!
//! Before `UNLINK`, `RMDIR` and `RENAME` the kernel checks the caller's permissions on the inode
//! that it has looked up: in a directory with the sticky bit they depend on the inode's owner. The
//! request carries only the name. If another front end has put another inode there, the kernel has
//! not checked permissions on that one.
//!
//! The kernel holds the lock of the directory from its look-up to the answer, and carries out a
//! notice about a name under the same lock. So its look-up can be stale only while a change of the
//! name is in progress or the notice of one is queued.
//!
//! Invariants: R4 in that time a removal is carried out only if the caller may remove any inode in
//! the directory, or owns the present one. Otherwise the answer is ESTALE: the kernel looks up and
//! checks again, once. R5 a change of a name waits for removals of it that have begun, and a
//! removal that begins later sees the change. So the inode that R4 has checked stays until it is
//! removed. R6 a removal is one call of the file system, which also opens an inode that the kernel
//! knows and that has lost its last name. The volume needs one hold of its lock for that.
//!
//! Lock: one, a leaf.

use forebay_base::sync::Mutex;
use forebay_base::task::WaitQueue;
use forebay_vfs::Ino;
use std::collections::HashMap;

/// A directory and a name in it.
type Key = (u64, Box<[u8]>);

#[derive(Default)]
struct Counts {
    /// Requests in progress of the kernel that remove or replace the name.
    removals: usize,
    /// Changes in progress by other front ends.
    changes: usize,
}

/// Removals and changes of names in progress.
#[derive(Default)]
pub(crate) struct Removals {
    counts: Mutex<HashMap<Key, Counts>>,
    wait: WaitQueue,
}

/// A removal of a name; changes of the name wait until this is dropped (R5).
pub(super) struct Removal<'a>(&'a Removals, Key);

impl Removals {
    /// Begins a removal. `None`: another front end is changing the name.
    pub(super) fn begin(&self, dir: Ino, name: &[u8]) -> Option<Removal<'_>> {
        let key = (dir.0, name.into());
        let mut all = self.counts.lock();
        let counts = all.entry(Key::clone(&key)).or_default();
        if counts.changes > 0 {
            return None;
        }
        counts.removals += 1;
        Some(Removal(self, key))
    }

    /// Announces a change by another front end: no removal begins until [`Removals::end_change`].
    pub fn begin_change(&self, dir: Ino, name: &[u8]) {
        self.counts.lock().entry((dir.0, name.into())).or_default().changes += 1;
    }

    /// Waits until no removal of a name is in progress.
    pub async fn none(&self, dir: Ino, name: &[u8]) {
        let key = (dir.0, name.into());
        let is_free = || self.counts.lock().get(&key).is_none_or(|counts| counts.removals == 0);
        self.wait.wait_until(|| is_free().then_some(())).await;
    }

    /// Ends a change.
    pub fn end_change(&self, dir: Ino, name: &[u8]) {
        self.subtract(&(dir.0, name.into()), |counts| &mut counts.changes);
    }

    fn subtract(&self, key: &Key, field: impl Fn(&mut Counts) -> &mut usize) {
        let mut all = self.counts.lock();
        let Some(counts) = all.get_mut(key) else { return };
        let count = field(counts);
        *count = count.saturating_sub(1);
        if counts.removals == 0 {
            if counts.changes == 0 {
                all.remove(key);
            }
            drop(all);
            self.wait.wake_all();
        }
    }
}

impl Drop for Removal<'_> {
    fn drop(&mut self) {
        self.0.subtract(&self.1, |counts| &mut counts.removals);
    }
}

#[cfg(test)]
mod tests;
