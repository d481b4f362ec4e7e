//! Files with outstanding content. Such a file was truncated to zero, written, and closed. A sync
//! that begins after the close writes this content out before it ends, if it can (`files::sync`).
//!
//! ```text
//!   truncated ─last close─▶ outstanding ─begin─▶ in write-out ─end─▶ written ─settle─▶ durable
//!                                ▲                    │ closed again meanwhile, or lost
//!                                └────────────────────┘
//! ```
//! Invariant: S17 a file has an entry in `written` from the beginning of its write-out until all of
//! its content is durable. So a sync cannot miss it.
//!
//! A sync reads without the state lock whether there is any entry: [`Flag`]. Each method that
//! changes the entries ends by storing it, so content of a file closed before the sync is either
//! seen, or durable.
//!
//! No locks: the volume's state lock covers it, except for the flag.

use crate::transaction::flag::Flag;
use std::collections::{BTreeMap, BTreeSet};

/// Content that is being written out, or was written out.
#[derive(Debug, Clone, Copy)]
struct Written {
    /// The content is durable when this ticket is.
    upto: u64,
    /// How often failed flushes have lost some of the content.
    lost: u32,
    /// How many of these losses a later write-out has repaired.
    repaired: u32,
}

/// A write-out of one file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WriteOut {
    /// The sequence number at the last close of the file.
    closed: Option<u64>,
    lost: u32,
    /// The write-out covers all content that failed flushes have lost.
    pub is_whole: bool,
}

impl WriteOut {
    /// The write-out of a file whose lost content is in the page cache again.
    pub fn whole(self) -> Self {
        Self { is_whole: true, ..self }
    }
}

/// Files with outstanding content, and the progress of their write-out.
#[derive(Default)]
pub(crate) struct Outstanding {
    /// Files that were truncated to zero and still have an opener from that time. Their inodes need
    /// not be in memory.
    truncated: BTreeSet<u64>,
    /// Outstanding files, with the sequence number at their last close.
    closed: BTreeMap<u64, u64>,
    written: BTreeMap<u64, Written>,
    /// Set while there is an entry in `closed` or `written`.
    flag: Flag,
}

impl Outstanding {
    /// Whether some content is not known to be durable, for readers without the state lock.
    pub fn flag(&self) -> Flag {
        self.flag.clone()
    }

    fn show(&self) {
        self.flag.set(!self.closed.is_empty() || !self.written.is_empty());
    }

    /// Notes that the file was truncated to zero.
    pub fn note_truncated(&mut self, ino: u64) {
        self.truncated.insert(ino);
    }

    pub fn is_truncated(&self, ino: u64) -> bool {
        self.truncated.contains(&ino)
    }

    /// Notes that the file is closed or removed. Returns whether it had been truncated.
    pub fn end_truncated(&mut self, ino: u64) -> bool {
        self.truncated.remove(&ino)
    }

    /// Notes that a truncated file was closed.
    pub fn add(&mut self, ino: u64, sequence: u64) {
        self.closed.insert(ino, sequence);
        self.show();
    }

    /// Whether the file has content that is not written out.
    pub fn contains(&self, ino: u64) -> bool {
        self.closed.contains_key(&ino)
    }

    /// Whether all content is durable.
    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.closed.is_empty() && self.written.is_empty()
    }

    /// The number of files whose content is not written out.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.closed.len()
    }

    /// Files with content that is not known to be durable.
    pub fn inos(&self) -> BTreeSet<u64> {
        self.closed.keys().chain(self.written.keys()).copied().collect()
    }

    /// Forgets a removed inode.
    pub fn forget(&mut self, ino: u64) {
        self.closed.remove(&ino);
        self.written.remove(&ino);
        self.show();
    }

    /// Begins a write-out (S17). `is_lost`: content was lost before the close, and is in the page
    /// cache.
    pub fn begin(&mut self, ino: u64, is_lost: bool) -> WriteOut {
        let closed = self.closed.get(&ino).copied();
        let new = Written { upto: 0, lost: u32::from(is_lost), repaired: 0 };
        let written = self.written.entry(ino).or_insert(new);
        written.upto = u64::MAX;
        let (lost, is_whole) = (written.lost, written.lost == written.repaired);
        self.show();
        WriteOut { closed, lost, is_whole }
    }

    /// Ends a successful write-out whose records have tickets up to `upto`. If the file was closed
    /// again meanwhile, it stays outstanding.
    pub fn end(&mut self, ino: u64, done: WriteOut, upto: u64) {
        if self.closed.get(&ino).copied() != done.closed {
            return;
        }
        self.closed.remove(&ino);
        if let Some(written) = self.written.get_mut(&ino).filter(|_| done.is_whole) {
            (written.upto, written.repaired) = (upto, written.repaired.max(done.lost));
        }
        self.show();
    }

    /// Notes that a failed flush has lost content of the file.
    pub fn note_lost(&mut self, ino: u64) {
        if let Some(written) = self.written.get_mut(&ino) {
            written.lost += 1;
        }
    }

    /// Notes that records up to `ticket` are durable. False: some content is lost and was not
    /// written again.
    pub fn settle(&mut self, ticket: u64) -> bool {
        self.written.retain(|_, written| written.lost != written.repaired || written.upto > ticket);
        self.show();
        self.written.values().all(|written| written.lost == written.repaired)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// S17: a file that is closed again during its write-out stays outstanding.
    #[test]
    fn outstanding_file_closed_during_write_out_stays() {
        let mut files = Outstanding::default();
        let flag = files.flag();
        files.note_truncated(7);
        assert!(files.is_truncated(7) && files.is_empty() && !flag.is_set());
        assert!(files.end_truncated(7) && !files.end_truncated(7));
        files.add(7, 1);
        let first = files.begin(7, false);
        files.add(7, 2);
        files.end(7, first, 5);
        assert!(files.contains(7) && files.settle(5) && !files.is_empty());
        assert!(flag.is_set(), "a sync without the lock sees it");
        let second = files.begin(7, false);
        files.end(7, second, 6);
        assert!(
            !files.contains(7) && files.settle(5) && !files.is_empty(),
            "ticket 6 is not durable"
        );
        assert!(flag.is_set(), "S17: until its ticket is durable");
        assert!(files.settle(6) && files.is_empty() && !flag.is_set());
    }

    /// S17: content that a failed flush has lost is written again before a sync may end.
    #[test]
    fn outstanding_content_lost_is_written_again() {
        let mut files = Outstanding::default();
        files.add(7, 1);
        let first = files.begin(7, false);
        files.note_lost(7);
        files.end(7, first, 5);
        assert!(!files.settle(9), "the first write-out began before the loss");
        let second = files.begin(7, false);
        assert!(!second.is_whole, "the cache has it as clean");
        files.end(7, second.whole(), 6);
        assert!(files.settle(6) && files.is_empty());
    }
}
