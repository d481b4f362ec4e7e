//! Write-outs of outstanding content, and what syncs report.
//!
//! Lock: the state lock, held by the caller.

use crate::names::content::Content;
use crate::transaction::outstanding::WriteOut;
use crate::transaction::state::State;
use crate::transaction::sync_errors::Lost;
use forebay_base::{Error, ErrorKind, Result};
use std::sync::Arc;

impl State {
    /// After a successful commit: checks that an inode is completely in the log.
    ///
    /// # Errors
    /// Some of its content, or its size, is not.
    pub fn check_published(&mut self, ino: u64) -> Result<()> {
        match self.unpublished_of(ino) {
            None => Ok(()),
            Some(Lost::Size) => {
                Err(Error::new(ErrorKind::NoSpace, "commit", "no room in the log for a size"))
            }
            Some(Lost::Run) => Err(self.lost_of(ino)),
            Some(Lost::Data) => {
                Err(Error::new(ErrorKind::Io, "commit", "content that was accepted is lost"))
            }
        }
    }

    /// A program gets an error of an inode whose content may be lost. Without an opener the loss
    /// has no other end (sync_errors.E21).
    pub fn note_loss_reported(&mut self, ino: u64) {
        self.files.sync_errors.note_seen(ino);
        let node = self.names.node(ino);
        if node.is_none_or(|node| node.opens == 0) {
            if let Some(content) = node.and_then(|node| node.content.as_ref()) {
                content.file.mapping.forget_seen_loss();
            }
            self.files.sync_errors.note_closed(ino);
        }
    }

    /// After a successful commit: checks that all inodes are completely in the log. The error also
    /// reports the losses of all inodes.
    ///
    /// # Errors
    /// The error of the first inode that is not, of those with lost content if there are any.
    pub fn check_all_published(&mut self) -> Result<()> {
        let mut failed = Unwritten::default();
        for ino in self.files.sync_errors.inos() {
            if let Err(error) = self.check_published(ino) {
                failed.add(ino, error, self.files.sync_errors.fails(ino, Lost::Run));
            }
        }
        self.reported(failed)
    }

    /// The result for a program, which has seen what is lost from now on.
    pub fn reported(&mut self, failed: Unwritten) -> Result<()> {
        failed.lost.iter().for_each(|ino| self.note_loss_reported(*ino));
        failed.error.map_or(Ok(()), Err)
    }

    /// Records that outstanding content is about to be written. Also returns whether all openers of
    /// a loss have closed the file. `None`: the inode was removed.
    pub fn begin_write_out(&mut self, ino: u64) -> Option<(Arc<Content>, WriteOut, bool)> {
        let content = self.names.node(ino).and_then(|node| node.content.clone());
        let Some(content) = content else {
            self.files.outstanding.forget(ino);
            return None;
        };
        // Recorded before anything is written, so that losses from now on count. Losses from before
        // the close count, too, if their content is in the cache.
        let is_lost = self.files.sync_errors.has(ino, Lost::Run);
        self.files.sync_errors.note_used(ino);
        let is_past = self.files.sync_errors.may_cover_lost(ino);
        let mut begun = self.files.outstanding.begin(ino, is_lost);
        // What was lost was written, punched or truncated since. If records lack the size, this
        // write-out has it.
        if !self.has_lost_of(ino) {
            begun = begun.whole();
        }
        Some((content, begun, is_past))
    }

    /// The error of an inode whose syncs fail because of content that is still lost, if they do.
    pub fn failing_loss_of(&self, ino: u64) -> Option<Error> {
        let is_lost = self.files.sync_errors.fails(ino, Lost::Run) && self.has_lost_of(ino);
        is_lost.then(|| self.lost_of(ino))
    }

    /// A file is written out for a sync or a rename, which need its size.
    pub fn note_used(&mut self, ino: u64) {
        self.files.sync_errors.note_used(ino);
    }

    /// A sync of everything begins. Returns the inodes of which it covers all but the lost content.
    pub fn note_sync_of_all(&mut self) -> Vec<u64> {
        self.files.sync_errors.note_sync_of_all()
    }

    /// The file was truncated to zero. What is written next is outstanding after the close.
    pub fn note_cut(&mut self, ino: u64) {
        self.files.outstanding.note_truncated(ino);
    }

    /// A size of the file has its record. Not `is_whole`: the file is longer.
    pub fn note_size_published(&mut self, ino: u64, size: u64, is_whole: bool) {
        self.files.sync_errors.remove(ino, Lost::Size);
        self.names.update(ino, |node| node.note_size_recorded(size, is_whole));
    }

    /// The log had no space for content or for a size: syncs of the inode fail.
    pub fn note_unpublished(&mut self, ino: u64, lost: Lost) {
        self.files.sync_errors.add(ino, lost);
    }

    /// The write-out of a file has succeeded: its content is durable with the last record.
    pub fn end_write_out(&mut self, ino: u64, begun: WriteOut) {
        self.files.outstanding.end(ino, begun, self.queue.last_ticket());
    }

    /// Records up to `ticket` are durable. False: some outstanding content is lost and was not
    /// written again.
    pub fn settle_outstanding(&mut self, ticket: u64) -> bool {
        self.files.outstanding.settle(ticket)
    }
}

/// Files that could not be written.
#[derive(Default)]
pub(crate) struct Unwritten {
    /// The first error of a file that has lost content; without such a file, the first error.
    pub error: Option<Error>,
    /// The files with lost content.
    lost: Vec<u64>,
}

impl Unwritten {
    pub fn add(&mut self, ino: u64, error: Error, is_lost: bool) {
        if is_lost && self.lost.is_empty() {
            self.error = Some(error);
        } else {
            self.error.get_or_insert(error);
        }
        self.lost.extend(is_lost.then_some(ino));
    }
}
