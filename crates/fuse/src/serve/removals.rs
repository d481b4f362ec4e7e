//! Names that the kernel removes or replaces while another interface changes what they denote.
//!
//! Before `UNLINK`, `RMDIR` and `RENAME` the kernel checks the caller's rights on the inode that it
//! has looked up: in a directory with the sticky bit they depend on the inode's owner. The request
//! holds the name only. If another interface has put another inode there, the kernel has not
//! checked the rights on that one.
//!
//! The kernel holds the lock of the directory from its look-up to the answer, and carries out a
//! notice about a name under the same lock. So what it has looked up can be old only while a change
//! of the name is under way or the notice of one is queued.
//!
//! Invariants: R4 in that time a removal is carried out only if the caller may remove any inode
//! there, or owns the present one. Otherwise the answer is ESTALE: the kernel looks up and checks
//! again, once. R5 a change of a name begins after the removals of it that have begun, and a
//! removal that begins later sees the change: what R4 has checked is there until it is removed.
//!
//! Lock: one, a leaf.

use super::{Core, fail};
use crate::proto::request::Header;
use forebay_base::sync::Mutex;
use forebay_base::task::WaitQueue;
use forebay_base::{ErrorKind, Result};
use forebay_vfs::types::S_ISVTX;
use forebay_vfs::{FileKind, Ino, Name};
use std::collections::HashMap;

/// A directory and a name in it.
type Key = (u64, Box<[u8]>);

#[derive(Default)]
struct Counts {
    /// Requests of the kernel that remove or replace the name.
    removals: usize,
    /// Changes by other interfaces.
    changes: usize,
}

/// Removals and changes of names that are under way.
#[derive(Default)]
pub(crate) struct Removals {
    counts: Mutex<HashMap<Key, Counts>>,
    wait: WaitQueue,
}

/// A removal of a name; changes of the name wait until this is dropped (R5).
pub(super) struct Removal<'a>(&'a Removals, Key);

impl Removals {
    /// Begins a removal. None: another interface is changing the name.
    fn begin(&self, dir: Ino, name: &[u8]) -> Option<Removal<'_>> {
        let key = (dir.0, name.into());
        let mut all = self.counts.lock();
        let counts = all.entry(Key::clone(&key)).or_default();
        if counts.changes > 0 {
            return None;
        }
        counts.removals += 1;
        Some(Removal(self, key))
    }

    /// Announces a change by another interface: no removal begins until [`Removals::end_change`].
    pub fn begin_change(&self, dir: Ino, name: &[u8]) {
        self.counts.lock().entry((dir.0, name.into())).or_default().changes += 1;
    }

    /// Waits until no removal of a name is under way.
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

impl Core {
    /// Begins a removal of `name`; with `gets_parent` its inode gets another parent, for which the
    /// kernel checks rights on a directory itself. ESTALE: the kernel must look up again (R4).
    pub(super) async fn begin_removal(
        &self,
        header: &Header,
        (dir, name): (Ino, Name<'_>),
        gets_parent: bool,
    ) -> Result<Option<Removal<'_>>> {
        let removal = self.removals.begin(dir, name.as_bytes());
        // In this order: a change queues its notice before it ends.
        if removal.is_some() && !self.notifier.has_queued(dir.0, name.as_bytes()) {
            return Ok(removal);
        }
        let parent = self.fs.getattr(dir).await?;
        let may_any = parent.perm & S_ISVTX == 0 || parent.uid == header.uid;
        if may_any && !gets_parent {
            return Ok(removal);
        }
        if removal.is_some() {
            let may = match self.fs.lookup(dir, name).await {
                Err(e) if e.kind() == ErrorKind::NotFound => true,
                found => {
                    let attr = found?;
                    (may_any || attr.uid == header.uid)
                        && !(gets_parent && attr.kind == FileKind::Directory)
                }
            };
            if may {
                return Ok(removal);
            }
        }
        fail(ErrorKind::Stale, "remove", "another interface has changed the name")
    }
}

#[cfg(test)]
mod tests;
