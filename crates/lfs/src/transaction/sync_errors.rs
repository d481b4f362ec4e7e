//! Why inodes cannot be synced, and of which data records were left out. A sync reports the error
//! until the content is written again, truncated or removed.
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
    /// The device did not return content. This lasts until the content is overwritten or truncated.
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
    }

    pub fn remove(&mut self, ino: u64, reason: Lost) {
        self.reasons.remove(&(ino, reason));
        self.flag.set(!self.reasons.is_empty());
    }

    /// Forgets the reasons of a removed inode.
    pub fn forget(&mut self, ino: u64) {
        Lost::ALL.into_iter().for_each(|reason| self.remove(ino, reason));
    }

    pub fn has(&self, ino: u64, reason: Lost) -> bool {
        self.reasons.contains(&(ino, reason))
    }

    /// The reason that a sync of the inode reports.
    pub fn worst(&self, ino: u64) -> Option<Lost> {
        Lost::ALL.into_iter().rev().find(|reason| self.has(ino, *reason))
    }

    /// The inodes that cannot be synced.
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
}
