//! Which files have outstanding content: it was written after the file was truncated to nothing,
//! and the file was closed. A sync that begins after the close writes it out before it ends
//! (`files::sync`).
//!
//! ```text
//!   truncated ─last close─▶ outstanding ─begin─▶ in write-out ─end─▶ written ─settle─▶ durable
//!                                ▲                    │ closed again meanwhile, or lost
//!                                └────────────────────┘
//! ```
//! Invariant: S17 a file has an entry in `written` from the begin of its write-out until all of its
//! content is durable, so a sync cannot miss it.
//!
//! No locks: the volume's state lock covers it.

use std::collections::{BTreeMap, BTreeSet};

/// Content that is being written out, or was.
#[derive(Debug, Clone, Copy)]
struct Written {
    /// Durable with this ticket.
    upto: u64,
    /// How often failed flushes have lost some of it.
    lost: u32,
    /// How many of these losses a later write-out has made good.
    repaired: u32,
}

/// A write-out of one file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WriteOut {
    /// When the file was closed last, as a sequence.
    closed: Option<u64>,
    lost: u32,
    /// It covers all content that failed flushes have lost.
    pub is_whole: bool,
}

impl WriteOut {
    /// The same, of a file whose lost content is in the cache again.
    pub fn whole(self) -> Self {
        Self { is_whole: true, ..self }
    }
}

/// Files with outstanding content, by how far it is written.
#[derive(Default)]
pub(crate) struct Outstanding {
    /// Truncated to nothing, and not closed by every opener since. The inodes need not be in
    /// memory.
    truncated: BTreeSet<u64>,
    /// Outstanding, and the sequence at the last close.
    closed: BTreeMap<u64, u64>,
    written: BTreeMap<u64, Written>,
}

impl Outstanding {
    /// The file was truncated to nothing.
    pub fn note_truncated(&mut self, ino: u64) {
        self.truncated.insert(ino);
    }

    pub fn is_truncated(&self, ino: u64) -> bool {
        self.truncated.contains(&ino)
    }

    /// The file is closed, or gone: whether it was truncated.
    pub fn end_truncated(&mut self, ino: u64) -> bool {
        self.truncated.remove(&ino)
    }

    /// The file was closed after it was truncated.
    pub fn add(&mut self, ino: u64, sequence: u64) {
        self.closed.insert(ino, sequence);
    }

    /// Whether the file has content that is not written out.
    pub fn contains(&self, ino: u64) -> bool {
        self.closed.contains_key(&ino)
    }

    /// Whether everything is durable.
    pub fn is_empty(&self) -> bool {
        self.closed.is_empty() && self.written.is_empty()
    }

    /// Files whose content is not written out.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.closed.len()
    }

    /// Files with content that is not known to be durable.
    pub fn inos(&self) -> BTreeSet<u64> {
        self.closed.keys().chain(self.written.keys()).copied().collect()
    }

    /// The inode is gone.
    pub fn forget(&mut self, ino: u64) {
        self.closed.remove(&ino);
        self.written.remove(&ino);
    }

    /// A write-out begins (S17). `is_lost`: content was lost before the close, and is in the cache.
    pub fn begin(&mut self, ino: u64, is_lost: bool) -> WriteOut {
        let closed = self.closed.get(&ino).copied();
        let new = Written { upto: 0, lost: u32::from(is_lost), repaired: 0 };
        let written = self.written.entry(ino).or_insert(new);
        written.upto = u64::MAX;
        WriteOut { closed, lost: written.lost, is_whole: written.lost == written.repaired }
    }

    /// The write-out succeeded; its records have tickets up to `upto`. If the file was closed again
    /// meanwhile, it stays outstanding.
    pub fn end(&mut self, ino: u64, done: WriteOut, upto: u64) {
        if self.closed.get(&ino).copied() != done.closed {
            return;
        }
        self.closed.remove(&ino);
        if let Some(written) = self.written.get_mut(&ino).filter(|_| done.is_whole) {
            (written.upto, written.repaired) = (upto, written.repaired.max(done.lost));
        }
    }

    /// A failed flush has lost content of the file.
    pub fn note_lost(&mut self, ino: u64) {
        if let Some(written) = self.written.get_mut(&ino) {
            written.lost += 1;
        }
    }

    /// Records up to `ticket` are durable. False: some content is lost, and not written again.
    pub fn settle(&mut self, ticket: u64) -> bool {
        self.written.retain(|_, written| written.lost != written.repaired || written.upto > ticket);
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
        files.note_truncated(7);
        assert!(files.is_truncated(7) && files.is_empty());
        assert!(files.end_truncated(7) && !files.end_truncated(7));
        files.add(7, 1);
        let first = files.begin(7, false);
        files.add(7, 2);
        files.end(7, first, 5);
        assert!(files.contains(7) && files.settle(5) && !files.is_empty());
        let second = files.begin(7, false);
        files.end(7, second, 6);
        assert!(
            !files.contains(7) && files.settle(5) && !files.is_empty(),
            "ticket 6 is not durable"
        );
        assert!(files.settle(6) && files.is_empty());
    }

    /// S17: what a failed flush loses is written once more before a sync may end.
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
