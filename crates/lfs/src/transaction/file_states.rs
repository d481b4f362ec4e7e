//! What the state knows of the content of open and recently closed files: when it is written, what
//! was lost, and what the cache still has.
//!
//! ```text
//!   open ──last close──▶ unwritten ──nothing to write──▶ retained ──▶ open again, or forgotten
//!     │                                                     │
//!     └── cut, closed: outstanding until durable            └── removed: its dirty data goes
//! ```
//! Reading order: `content` (mappings of closed files), `write_out` (outstanding content, results
//! of syncs), `loss` (content that the device has lost).
//!
//! No locks: the volume's state lock covers it.

mod content;
mod loss;
mod write_out;

pub(crate) use content::Tidied;
pub(crate) use write_out::Unwritten;

use crate::names::closed::{RetainedMapping, RetainedMappings};
use crate::names::content::{Content, PendingWriteBack};
use crate::transaction::outstanding::Outstanding;
use crate::transaction::sync_errors::{Lost, SyncErrors};
use std::sync::Arc;

/// The part of the state that belongs to open and recently closed files.
#[derive(Default)]
pub(crate) struct FileStates {
    /// Content of removed inodes, whose dirty data must be dropped.
    removed: Vec<Arc<Content>>,
    /// Closed inodes that may have data to write back.
    unwritten: PendingWriteBack,
    /// Closed files whose content may be in the page cache.
    retained: RetainedMappings,
    /// Files with outstanding content.
    outstanding: Outstanding,
    /// The reasons why inodes cannot be synced.
    sync_errors: SyncErrors,
}

impl FileStates {
    /// Files with outstanding content.
    pub fn outstanding(&self) -> &Outstanding {
        &self.outstanding
    }

    /// The reasons why inodes cannot be synced.
    pub fn sync_errors(&self) -> &SyncErrors {
        &self.sync_errors
    }

    /// Whether the file is closed and may have content to write, so that its inode stays in memory.
    pub fn has_unwritten(&self, ino: u64) -> bool {
        self.outstanding.contains(ino) || self.unwritten.contains(ino)
    }

    /// Whether there is something to drop, or there are closed files to inspect.
    pub fn needs_tidying(&self) -> bool {
        !self.removed.is_empty() || self.retained.has_removed() || !self.unwritten.is_empty()
    }

    /// Notes that an opener has gone. `is_last`: it was the last one, and it closed the file.
    /// Returns whether the file was truncated to zero since it was opened first.
    pub fn note_opener_gone(&mut self, ino: u64, is_last: bool) -> bool {
        // Another opener may still write the content that replaces the truncated content.
        match is_last {
            true => self.outstanding.end_truncated(ino),
            false => self.outstanding.is_truncated(ino),
        }
    }

    /// The content of a file that was truncated and is closed becomes outstanding. `closed`: the
    /// sequence number of the close.
    pub fn note_outstanding(&mut self, ino: u64, closed: u64) {
        self.outstanding.add(ino, closed);
    }

    /// The last opener has closed the file.
    pub fn note_closed(&mut self, ino: u64) {
        self.sync_errors.note_closed(ino);
    }

    /// A closed file may have content to write.
    pub fn note_unwritten(&mut self, ino: u64) {
        self.unwritten.insert(ino);
    }

    /// The inode is removed: no sync of it fails any more, or writes its content first.
    pub fn note_removal(&mut self, ino: u64) {
        self.outstanding.end_truncated(ino);
        self.sync_errors.forget(ino);
    }

    /// What the cache has of a removed inode is dropped by the next tidying.
    pub fn drop_cached(&mut self, ino: u64, content: Option<Arc<Content>>) {
        self.removed.extend(content);
        self.retained.remove(ino);
    }

    /// All content of the file was replaced: none of it can be lost.
    pub fn note_replaced(&mut self, ino: u64) {
        self.sync_errors.remove(ino, Lost::Run);
    }

    /// The retained mapping of a file that is opened.
    pub fn take_retained(&mut self, ino: u64) -> Option<RetainedMapping> {
        self.retained.take(ino)
    }

    /// All retained mappings, because the volume is closed.
    pub fn take_all_retained(&mut self) -> Vec<u32> {
        self.retained.take_all()
    }

    /// The number of retained mappings.
    #[cfg(test)]
    pub fn retained_count(&self) -> usize {
        self.retained.len()
    }
}
