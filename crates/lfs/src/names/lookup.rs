//! Result of an operation on names in memory: it is done, it failed, or an object has to be loaded
//! first.
//!
//! No locks.

use crate::format::change::Change;
use crate::format::key::Cookie;
use forebay_base::{Error, ErrorKind};

/// An object that is not in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Want {
    /// An inode, with its items except entries.
    Inode(u64),
    /// Entries of a directory near this cookie.
    Entries(u64, Cookie),
}

/// Why an attempt ended.
#[derive(Debug)]
pub(crate) enum Stop {
    /// With an error.
    Failed(Error),
    /// This object has to be loaded; then the operation is tried again.
    Missing(Want),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// Result of an attempt.
pub(crate) type Tried<T> = std::result::Result<T, Stop>;

impl Stop {
    /// The error, for an operation on an open inode, which is always in memory.
    pub fn open(self) -> Error {
        match self {
            Self::Failed(error) => error,
            Self::Missing(want) => {
                let text = format!("{want:?} of an open file is not in memory");
                Error::new(ErrorKind::Io, "look", text)
            }
        }
    }
}

/// Whether one of these changes creates the inode.
pub(crate) fn creates(changes: &[Change<'_>], ino: u64) -> bool {
    changes.iter().any(|change| matches!(change, Change::CreateInode(new, ..) if *new == ino))
}

/// Inodes that are needed to apply a change; 0: none.
pub(crate) fn needed(change: &Change<'_>) -> [u64; 4] {
    match change {
        Change::SetAttributes(ino, _)
        | Change::SetXattr(ino, ..)
        | Change::RemoveXattr(ino, _)
        | Change::AddOrphan(ino)
        | Change::RemoveInode(ino, ..) => [*ino, 0, 0, 0],
        Change::InsertEntry(entry) => [entry.dir, entry.child, 0, 0],
        Change::RemoveEntry(entry) => [entry.dir, 0, 0, 0],
        Change::Rename(rename) => {
            [rename.from.dir, rename.to.dir, rename.from.child, rename.to.child]
        }
        Change::Grow(size) | Change::Truncate(size) | Change::ReplaceData(size, _) => {
            [size.ino, 0, 0, 0]
        }
        Change::CreateInode(..)
        | Change::Map(..)
        | Change::Punch(..)
        | Change::RemoveOrphan(_)
        | Change::NextSegment(_)
        | Change::ReapDead { .. }
        | Change::Move { .. }
        | Change::SetSegment(..) => [0; 4],
    }
}
