//! Why inodes cannot be synced, and of which data records were left out. A sync reports the error
//! until the content is written again, truncated or removed.
//!
//! Invariant: E21 content that the device has lost fails each sync of its inode until it is written
//! again, truncated or removed, or until the last opener of that time has closed the file. If it
//! shows while the file has no opener, that close does not count before a program has got an error
//! for it. A flush that no program waits for ends nothing.
//!
//! The next sync, of the inode or of the volume, that finds nothing lost in the inode removes the
//! mark of a loss. Until then the mark fails no sync.
//!
//! No locks: the volume's state lock covers it, except for the flag.

use crate::transaction::flag::Flag;
use forebay_base::{Error, ErrorKind};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Why an inode cannot be synced. If there are several reasons, a sync reports the last one in this
/// order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Lost {
    /// The log had no space for a size. Recording it is tried again.
    Size,
    /// The device did not return content. A sync reports it until the content is overwritten or
    /// truncated, or until every opener of that time has closed the file.
    Run,
    /// The log had no space for content. This lasts until every opener has closed the file.
    Data,
}

impl Lost {
    const ALL: [Self; 3] = [Self::Size, Self::Run, Self::Data];
}

/// Data of which the repair left content or a size out of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LeftOut {
    /// The inode that had the data.
    pub ino: u64,
    /// Nothing was left out of records after this ticket.
    pub ticket: u64,
}

/// The reasons by inode, and the data of which the log lacks something.
#[derive(Default)]
pub(crate) struct SyncErrors {
    reasons: BTreeSet<(u64, Lost)>,
    /// Inodes with lost content of which all openers of that time have closed the file. True: it
    /// was opened again, or written out for a sync or a rename since.
    closed: BTreeMap<u64, bool>,
    /// Inodes with lost content that showed while they had no opener, and that no program has got
    /// an error for.
    unseen: BTreeSet<u64>,
    /// By data id: data whose changes in memory are not those of the log (logged.Q2).
    left_out: BTreeMap<u64, LeftOut>,
    /// Set while there is a reason.
    flag: Flag,
}

impl SyncErrors {
    /// Whether some inode cannot be synced, for readers without the state lock. A task that causes
    /// a reason adds it before it ends its commit or its publishing. So a sync that depends on it
    /// sees it.
    pub fn flag(&self) -> Flag {
        self.flag.clone()
    }

    pub fn add(&mut self, ino: u64, reason: Lost) {
        self.reasons.insert((ino, reason));
        self.flag.set(true);
        if reason == Lost::Run {
            self.closed.remove(&ino);
        }
    }

    /// Content of an inode is lost. `is_open`: it has an opener, whose syncs fail.
    pub fn add_lost(&mut self, ino: u64, is_open: bool) {
        self.add(ino, Lost::Run);
        if !is_open {
            self.unseen.insert(ino);
        }
    }

    pub fn remove(&mut self, ino: u64, reason: Lost) {
        self.reasons.remove(&(ino, reason));
        self.flag.set(!self.reasons.is_empty());
        if reason == Lost::Run {
            self.closed.remove(&ino);
            self.unseen.remove(&ino);
        }
    }

    /// The last opener of the inode has closed it: later openers sync the rest of it.
    pub fn note_closed(&mut self, ino: u64) {
        if self.has(ino, Lost::Run) && !self.unseen.contains(&ino) {
            self.closed.entry(ino).or_default();
        }
    }

    /// A program gets an error for the lost content of the inode.
    pub fn note_seen(&mut self, ino: u64) {
        self.unseen.remove(&ino);
    }

    /// The inode is open again, or is written out for a sync or a rename, which need its size.
    pub fn note_used(&mut self, ino: u64) {
        if let Some(is_used) = self.closed.get_mut(&ino) {
            *is_used = true;
        }
    }

    /// A sync of everything begins. Returns the inodes of which it covers all but the lost content.
    pub fn note_sync_of_all(&mut self) -> Vec<u64> {
        self.closed.values_mut().for_each(|is_used| *is_used = true);
        self.closed.keys().copied().collect()
    }

    /// Whether records may have sizes of the inode that cover lost content: a later opener may ask
    /// for them, or a sync or a rename has.
    pub fn may_cover_lost(&self, ino: u64) -> bool {
        self.closed.get(&ino).is_some_and(|is_used| *is_used)
    }

    /// Forgets the reasons of a removed inode.
    pub fn forget(&mut self, ino: u64) {
        Lost::ALL.into_iter().for_each(|reason| self.remove(ino, reason));
    }

    pub fn has(&self, ino: u64, reason: Lost) -> bool {
        self.reasons.contains(&(ino, reason))
    }

    /// Whether syncs of the inode fail for this reason.
    pub fn fails(&self, ino: u64, reason: Lost) -> bool {
        self.has(ino, reason) && !(reason == Lost::Run && self.closed.contains_key(&ino))
    }

    /// The reason that a sync of the inode reports.
    pub fn worst(&self, ino: u64) -> Option<Lost> {
        Lost::ALL.into_iter().rev().find(|reason| self.fails(ino, *reason))
    }

    /// The inodes with a reason.
    pub fn inos(&self) -> BTreeSet<u64> {
        self.reasons.iter().map(|(ino, _)| *ino).collect()
    }

    /// Whether every inode can be synced.
    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.reasons.is_empty()
    }

    /// Notes that something of this data was left out of records up to this ticket.
    pub fn leave_out(&mut self, data_id: u64, left: LeftOut) {
        self.left_out.insert(data_id, left);
    }

    /// The data of which records lack something, until a checkpoint has corrected its changes.
    pub fn left_out(&self) -> &BTreeMap<u64, LeftOut> {
        &self.left_out
    }

    /// Whether records lack something of data that this inode had.
    pub fn has_left_out_of(&self, ino: u64) -> bool {
        self.left_out.values().any(|left| left.ino == ino)
    }

    /// Notes that the changes of this data in memory are those of the records up to this ticket.
    pub fn note_corrected(&mut self, data_id: u64, ticket: u64) {
        if self.left_out.get(&data_id).is_some_and(|left| left.ticket <= ticket) {
            self.left_out.remove(&data_id);
        }
    }
}

/// The error for lost blocks of an inode.
pub(crate) fn lost_error(
    op: &'static str,
    ino: u64,
    blocks: &Range<u64>,
    block_bytes: u64,
) -> Error {
    let (start, end) = (blocks.start * block_bytes, blocks.end * block_bytes);
    let text = format!("content of inode {ino} that was accepted is lost: bytes {start} to {end}");
    Error::new(ErrorKind::Io, op, text).with_range(start, end - start)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sync_errors_report_worst_reason_of_inode() {
        let mut errors = SyncErrors::default();
        errors.add(3, Lost::Size);
        errors.add(3, Lost::Data);
        errors.add(4, Lost::Run);
        assert_eq!((errors.worst(3), errors.worst(4)), (Some(Lost::Data), Some(Lost::Run)));
        errors.remove(3, Lost::Data);
        assert_eq!((errors.worst(3), errors.worst(5)), (Some(Lost::Size), None));
        errors.forget(3);
        assert_eq!(errors.inos(), BTreeSet::from([4]));
        assert!(errors.flag().is_set());
        errors.forget(4);
        assert!(!errors.flag().is_set(), "no inode has a reason");
    }

    /// E21: a close before the loss does not count, and a new loss starts anew.
    #[test]
    fn sync_errors_of_lost_content_end_with_last_close() {
        let mut errors = SyncErrors::default();
        errors.note_closed(4);
        errors.add_lost(4, true);
        errors.note_used(4);
        assert!(errors.fails(4, Lost::Run) && !errors.may_cover_lost(4));
        errors.note_closed(4);
        assert!(errors.has(4, Lost::Run) && !errors.may_cover_lost(4));
        assert_eq!((errors.worst(4), errors.inos()), (None, BTreeSet::from([4])));
        errors.note_used(4);
        assert!(errors.may_cover_lost(4) && errors.note_sync_of_all() == [4]);
        errors.add_lost(4, true);
        assert_eq!((errors.worst(4), errors.may_cover_lost(4)), (Some(Lost::Run), false));
    }

    /// E21: a loss that shows without an opener fails syncs until a program has seen it. Later
    /// closes do not count before that.
    #[test]
    fn sync_errors_without_opener_end_when_a_program_saw_them() {
        let mut errors = SyncErrors::default();
        errors.add_lost(4, false);
        errors.note_closed(4);
        assert_eq!(errors.worst(4), Some(Lost::Run), "the close of a later opener");
        errors.note_seen(4);
        assert_eq!(errors.worst(4), Some(Lost::Run), "until it is closed");
        errors.note_closed(4);
        assert_eq!(errors.worst(4), None);
        errors.add_lost(4, false);
        errors.remove(4, Lost::Run);
        errors.add_lost(4, true);
        errors.note_closed(4);
        assert_eq!(errors.worst(4), None, "the first loss has healed");
    }
}
