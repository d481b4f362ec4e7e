//! The content of files that were closed: until when its mapping stays, and what is left of it.
//!
//! Lock: the state lock, held by the caller.

use crate::format::change::{Change, Size};
use crate::names::closed::RetainedMapping;
use crate::names::content::{Content, PendingWriteBack};
use crate::space::Need;
use crate::transaction::state::State;
use crate::transaction::sync_errors::Lost;
use forebay_base::Result;
use std::sync::Arc;

/// What removed and closed files leave behind. The caller drops it without the state lock.
pub(crate) struct Tidied {
    /// Content of removed inodes, whose dirty data must be dropped.
    pub removed: Vec<Arc<Content>>,
    /// Content of closed files that have nothing to write.
    pub settled: Vec<Arc<Content>>,
    /// Mappings of removed files, whose folios must be dropped.
    pub gone: Vec<u32>,
}

impl State {
    /// Whether [`Self::tidy`] has something to drop, or closed files to inspect.
    pub fn needs_tidying(&self) -> bool {
        self.files.needs_tidying()
    }

    /// The retained mapping of a file that is opened.
    pub fn take_retained(&mut self, ino: u64) -> Option<RetainedMapping> {
        self.files.take_retained(ino)
    }

    /// All retained mappings, because the volume is closed (closed.Y12).
    pub fn take_all_retained(&mut self) -> Vec<u32> {
        self.files.take_all_retained()
    }

    /// Gives an inode its content; returns the content that it has then. `None`: the inode is not
    /// in memory.
    pub fn attach_content(&mut self, ino: u64, content: Arc<Content>) -> Option<Arc<Content>> {
        self.names.update(ino, |node| {
            debug_assert!(node.content.is_none(), "content.D11: made by one at a time");
            node.unlogged_size = None;
            node.content.get_or_insert(content).clone()
        })
    }

    /// Takes what removed and closed files leave behind. Checks `first`, and at most `most` other
    /// closed files.
    pub fn tidy(&mut self, first: Option<u64>, most: usize) -> Tidied {
        let removed = std::mem::take(&mut self.files.removed);
        let mut settled = Vec::new();
        let mut look = |state: &mut Self, ino| {
            let goes = state.may_be_let_go(ino);
            if goes {
                settled.extend(state.let_go(ino));
            }
            goes
        };
        if let Some(ino) = first.filter(|ino| self.files.unwritten.contains(*ino))
            && look(self, ino)
        {
            self.files.unwritten.remove(ino);
        }
        PendingWriteBack::look_round(self, |state| &mut state.files.unwritten, first, most, look);
        Tidied { removed, settled, gone: self.files.retained.take_removed() }
    }

    /// Whether a file can leave the list of closed files with pending write-back: it has nothing to
    /// write, is open again, or was removed. Records its size first.
    fn may_be_let_go(&mut self, ino: u64) -> bool {
        let Some(node) = self.names.node(ino).filter(|node| node.opens == 0) else { return true };
        let stays = node.content.as_ref().is_some_and(|content| !content.may_go());
        !stays && self.publish_end(ino).is_ok()
    }

    /// Detaches the mapping of a closed file that has nothing to write. The caller drops it without
    /// the state lock.
    fn let_go(&mut self, ino: u64) -> Option<Arc<Content>> {
        self.names.node(ino).filter(|node| node.opens == 0)?;
        // All openers have closed the file, so the error has no opener to be reported to.
        self.files.sync_errors.remove(ino, Lost::Data);
        self.close_windows(ino);
        let (content, inode) = self.names.update(ino, |node| {
            let content = node.content.take()?;
            content.published.size.detach();
            let size = content.file.size();
            // No record may have the size while the device lacks content below it (lfs.I15).
            let is_unlogged = node.regrow && size > node.inode.size;
            if is_unlogged {
                node.unlogged_size = Some(size);
            }
            Some((content, (!is_unlogged).then_some(node.inode)))
        })??;
        let Some(inode) = inode else { return Some(content) };
        if let Some(left) = content.leave(inode.data_id) {
            debug_assert_eq!(left.size, inode.size, "Y11: #{ino} is published as it is");
            let owners = &content.file.cache.owners;
            self.files.retained.put(ino, left, |mapping| owners.knows(mapping));
        }
        Some(content)
    }

    /// Records the size of a file that has nothing else to write: the extension is a hole. If
    /// content is lost, the size is not recorded without its bytes (lfs.I15).
    pub fn publish_end(&mut self, ino: u64) -> Result<()> {
        let Some(node) = self.names.node(ino) else { return Ok(()) };
        let (data_id, published) = (node.inode.data_id, node.published());
        let live = node.live_size().unwrap_or(node.inode.size);
        let size = self.recordable_size(ino, data_id, live).filter(|size| *size > published);
        let Some(size) = size else { return Ok(()) };
        let grow = Size { ino, data_id, size, sequence: self.names.counters().last_sequence() };
        self.append(&[Change::Grow(grow)], Need::Urgent)?;
        self.names.update(ino, |node| node.note_size_recorded(size, size == live));
        Ok(())
    }

    /// Records the size of a file without a mapping, if it has lost content. Others have theirs.
    pub fn publish_closed_end(&mut self, ino: u64) -> Result<()> {
        match self.names.node(ino).is_some_and(|node| node.content.is_none()) {
            true => self.publish_end(ino),
            false => Ok(()),
        }
    }
}
