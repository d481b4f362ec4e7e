//! Content of regular files: creates and drops the cache mapping that belongs to an inode. Cached
//! content of a closed file is retained; [`crate::names::closed`] finds it again.
//!
//! Invariants: D11 an inode has at most one mapping at a time, which exists while the inode is open
//! or has outstanding content. D12 a mapping that was detached from its inode makes no file longer:
//! a size is valid only if it comes from the inode's present mapping.
//!
//! Locks: `making`, then the state lock; none across a wait. A mapping is created and dropped under
//! `making`, so that an open finds a retained mapping completely or not at all. It is never created
//! or dropped under the state lock.

use crate::files::map_ops::FileOps;
use crate::files::open_files::OpenFiles;
use crate::format::change::{Change, Size};
use crate::names::closed::RetainedMapping;
use crate::names::content::{Content, PendingWriteBack, Published};
use crate::names::lookup::Tried;
use crate::names::open_times::OpenTimes;
use crate::space::Need;
use crate::transaction::state::State;
use crate::transaction::sync_errors::Lost;
use forebay_base::{ErrorKind, Result};
use forebay_iomap::MappedFile;
use forebay_iomap::file::Geometry;
use forebay_vfs::Ino;
use forebay_vfs::rules::{self, refuse};
use std::sync::Arc;

impl State {
    /// Whether [`OpenFiles::tidy`] has something to drop, or closed files to inspect.
    pub fn needs_tidying(&self) -> bool {
        !self.removed.is_empty() || self.left.has_removed() || !self.pending_write_back.is_empty()
    }

    /// Whether a file can leave the list of closed files with pending write-back: it has nothing to
    /// write, is open again, or was removed. Records its size first.
    fn may_be_let_go(&mut self, ino: u64) -> bool {
        let Some(node) = self.nodes.get(ino).filter(|node| node.opens == 0) else { return true };
        let stays = node.content.as_ref().is_some_and(|content| !content.may_go());
        !stays && self.publish_end(ino).is_ok()
    }

    /// Detaches the mapping of a closed file that has nothing to write. The caller drops it without
    /// the state lock.
    fn let_go(&mut self, ino: u64) -> Option<Arc<Content>> {
        self.nodes.get(ino).filter(|node| node.opens == 0)?;
        // All openers have closed the file, so the error has no opener to be reported to.
        self.sync_errors.remove(ino, Lost::Data);
        self.close_windows(ino);
        let (content, inode) = self.nodes.update(ino, |node| {
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
            self.left.put(ino, left, |mapping| owners.knows(mapping));
        }
        Some(content)
    }

    /// Records the size of a file that has nothing else to write: the extension is a hole. If
    /// content is lost, the size is not recorded without its bytes (lfs.I15).
    pub fn publish_end(&mut self, ino: u64) -> Result<()> {
        let Some(node) = self.nodes.get(ino) else { return Ok(()) };
        let (data_id, published) = (node.inode.data_id, node.published());
        let live = node.live_size().unwrap_or(node.inode.size);
        let size = self.recordable_size(ino, data_id, live).filter(|size| *size > published);
        let Some(size) = size else { return Ok(()) };
        let grow = Size { ino, data_id, size, sequence: self.counters.last_sequence() };
        self.append(&[Change::Grow(grow)], Need::Urgent)?;
        self.nodes.update(ino, |node| node.note_size_recorded(size, size == live));
        Ok(())
    }

    /// Records the size of a file without a mapping, if it has lost content. Others have theirs.
    pub fn publish_closed_end(&mut self, ino: u64) -> Result<()> {
        match self.nodes.get(ino).is_some_and(|node| node.content.is_none()) {
            true => self.publish_end(ino),
            false => Ok(()),
        }
    }
}

impl OpenFiles {
    /// The content of a regular file; creates its mapping if necessary.
    pub fn content(&self, op: &'static str, ino: Ino) -> Tried<Arc<Content>> {
        if let Some(content) = self.content_there(op, ino)? {
            return Ok(content);
        }
        let Some(cache) = &self.options.cache else {
            return refuse(ErrorKind::Unsupported, op, "the volume was opened without a cache");
        };
        let _making = self.making.lock();
        let published = Arc::new(Published::default());
        let (size, left, ops) = {
            let mut state = self.state.lock();
            rules::regular(&*state, op, ino)?;
            let (data_id, size) = {
                let node = state.get(op, ino)?;
                if let Some(content) = &node.content {
                    return Ok(content.clone());
                }
                (node.inode.data_id, node.live_size().unwrap_or(node.inode.size))
            };
            let same = |left: &RetainedMapping| (left.data_id, left.size) == (data_id, size);
            let left = state.left.take(ino.0).map(|left| (left.mapping, same(&left)));
            (size, left, Arc::new(FileOps::of(self, ino, &state, published.clone())))
        };
        let block_size = self.layout.geometry.block_bytes();
        let geometry = Geometry { block_size, size, read_only: false };
        let domain = self.domain.clone().expect("there is one where there is a cache");
        if let Some((mapping, false)) = left {
            debug_assert!(false, "Y11: {ino:?} is not what it was left as");
            cache.drop_left(mapping, domain.clone(), block_size);
        }
        let left = left.filter(|(_, same)| *same).map(|(mapping, _)| mapping);
        let file = MappedFile::open_in(cache, domain, ops.clone(), geometry, left)?;
        let handle = file.open_handle();
        let times = OpenTimes::default();
        let new = Arc::new(Content { file, handle, ops, ino, times, published });
        let mut state = self.state.lock();
        let attached = state.nodes.update(ino.0, |node| {
            debug_assert!(node.content.is_none(), "D11: made by one at a time");
            node.unlogged_size = None;
            node.content.get_or_insert(new).clone()
        });
        match attached {
            Some(content) => Ok(content),
            None => refuse(ErrorKind::Stale, op, format!("{ino:?}")),
        }
    }

    /// The content of a regular file, if it has a mapping.
    fn content_there(&self, op: &'static str, ino: Ino) -> Tried<Option<Arc<Content>>> {
        let state = self.state.lock();
        rules::regular(&*state, op, ino)?;
        Ok(state.get(op, ino)?.content.clone())
    }

    /// Drops the dirty data of removed files, and the mappings of closed files that have nothing to
    /// write. Checks `first`, and at most `most` other files.
    pub fn tidy(&self, first: Option<u64>, most: usize) {
        let making = self.making.lock();
        let (removed, settled, gone) = {
            let mut state = self.state.lock();
            let removed = std::mem::take(&mut state.removed);
            let mut settled = Vec::new();
            let mut look = |state: &mut State, ino| {
                let goes = state.may_be_let_go(ino);
                if goes {
                    settled.extend(state.let_go(ino));
                }
                goes
            };
            if let Some(ino) = first.filter(|ino| state.pending_write_back.contains(*ino))
                && look(&mut state, ino)
            {
                state.pending_write_back.remove(ino);
            }
            PendingWriteBack::look_round(
                &mut *state,
                |state| &mut state.pending_write_back,
                first,
                most,
                look,
            );
            (removed, settled, state.left.take_removed())
        };
        drop(settled);
        self.drop_retained(gone);
        drop(making);
        for content in removed {
            let task = async move {
                // The file is not reachable any more, so its dirty data is dropped.
                if let Err(error) = content.file.set_len(0).await {
                    log::debug!("dropping removed content: {error}");
                }
            };
            self.world.spawn("forebay-lfs drop", Box::pin(task));
        }
    }
}
