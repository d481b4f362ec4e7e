//! Why inodes cannot be synced, and which content the device has lost. A sync reports the error
//! until the content is written again, truncated or removed.
//!
//! No locks: the volume's state lock covers it.

use crate::format::place::Place;
use std::collections::BTreeSet;

/// Why an inode cannot be synced. If there are several reasons, a sync reports the last one in this
/// order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Lost {
    /// The log had no space for a size. It is tried again.
    Size,
    /// The device did not return content. This lasts until the content is overwritten or truncated.
    Run,
    /// The log had no space for content. This lasts until every opener has closed the file.
    Data,
}

impl Lost {
    const ALL: [Self; 3] = [Self::Size, Self::Run, Self::Data];
}

/// The reasons by inode, and the runs that the device lost.
#[derive(Default)]
pub(crate) struct SyncErrors {
    reasons: BTreeSet<(u64, Lost)>,
    /// Device places, and lengths in bytes. The changes of a file may still refer to them (Q2).
    lost_runs: Vec<(Place, u64)>,
}

impl SyncErrors {
    pub fn add(&mut self, ino: u64, reason: Lost) {
        self.reasons.insert((ino, reason));
    }

    pub fn remove(&mut self, ino: u64, reason: Lost) {
        self.reasons.remove(&(ino, reason));
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

    /// Notes that the device lost `len` bytes at a place.
    pub fn add_run(&mut self, at: Place, len: u64) {
        self.lost_runs.push((at, len));
    }

    /// The runs that the device lost: places, and lengths in bytes.
    pub fn lost_runs(&self) -> &[(Place, u64)] {
        &self.lost_runs
    }

    /// Forgets all lost runs to which no file refers any more.
    pub fn retain_runs(&mut self, is_named: impl Fn((Place, u64)) -> bool) {
        self.lost_runs.retain(|run| is_named(*run));
    }
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
    }
}
