//! Content of regular files: the mapping in the cache that belongs to an inode, and when it comes and goes.
//! What is in the cache of a file that no client has open stays there; [`crate::names::closed`] says
//! how it is found again.
//!
//! Invariants: D11 an inode has at most one mapping at a time, and it stays while it is open or owes
//! something. D12 whoever still holds one that was let go makes no file longer with it: a size counts only
//! if it comes from the inode's mapping of now.
//!
//! Locks: `making`, then the state lock; none across a wait. A mapping is made and let go of under the
//! first, so that who opens a file finds all or nothing of what the last one left, and never under the
//! second.

use crate::files::map_ops::FileOps;
use crate::format::change::{Change, Size};
use crate::names::closed::RetainedMapping;
use crate::names::content::{Content, PendingWriteBack};
use crate::names::lookup::Tried;
use crate::names::node::Node;
use crate::space::Need;
use crate::transaction::state::{Lost, OwedWritten, State};
use crate::volume::Inner;
use forebay_base::sync::atomic::Ordering;
use forebay_base::{Error, ErrorKind, Result};
use forebay_iomap::MappedFile;
use forebay_iomap::file::Geometry;
use forebay_vfs::Ino;
use forebay_vfs::rules::{self, refuse};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Files whose records a sync of everything makes durable together, at most, and bytes that they have dirty.
const TOGETHER: usize = 1024;
const TOGETHER_BYTES: u64 = 4 << 20;

impl State {
    /// The last ticket, where no file owes what was written since it was cut and closed.
    pub fn ticket_if_nothing_owed(&self) -> Option<u64> {
        let nothing = self.owed.is_empty() && self.owed_written.is_empty();
        nothing.then_some(self.next_ticket - 1)
    }

    /// After a commit that worked: whether all of an inode is in the log.
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

    /// The same of every inode.
    ///
    /// # Errors
    /// Of the first inode that is not.
    pub fn check_all_published(&mut self) -> Result<()> {
        let inos: BTreeSet<u64> = self.unpublished.iter().map(|(ino, _)| *ino).collect();
        inos.into_iter().try_for_each(|ino| self.check_published(ino))
    }

    /// What was owed is durable up to a ticket. False: some of it was taken by a flush that failed.
    pub fn settle_owed(&mut self, ticket: u64) -> bool {
        self.owed_written.retain(|_, written| {
            let whole = written.lost == written.healed;
            !whole || written.upto > ticket
        });
        self.owed_written.values().all(|written| written.lost == written.healed)
    }

    /// Whether a file owes nothing any more, or does not linger: it was opened again, or went.
    fn may_be_let_go(&mut self, ino: u64) -> bool {
        let Some(node) = self.nodes.get(&ino).filter(|node| node.opens == 0) else { return true };
        let stays = node.content.as_ref().is_some_and(|content| !content.may_go());
        !stays && self.publish_end(ino).is_ok()
    }

    /// Lets go of the mapping of a file that nobody has open and that owes nothing. It is to be dropped
    /// without the lock.
    fn let_go(&mut self, ino: u64) -> Option<Arc<Content>> {
        self.nodes.get(&ino).filter(|node| node.opens == 0)?;
        // Everybody has closed it: nobody is left to be told.
        self.unpublished.remove(&(ino, Lost::Data));
        self.close_windows(ino);
        let node = self.nodes.get_mut(&ino)?;
        let content = node.content.take()?;
        let size = content.file.size();
        if node.regrow && size > node.inode.size {
            // No record may hold the size while the device lacks content below it (map_ops.I15).
            node.unlogged_size = Some(size);
            return Some(content);
        }
        if let Some(left) = content.leave(node.inode.data_id) {
            debug_assert_eq!(left.size, node.inode.size, "Y11: #{ino} is published as it is");
            let owners = &content.file.cache.owners;
            self.left.put(ino, left, |mapping| owners.knows(mapping));
        }
        Some(content)
    }

    /// The size of a file that owes nothing else: what it grew by is a hole. Where content of it is
    /// lost there is no size without its bytes (map_ops.I15).
    fn publish_end(&mut self, ino: u64) -> Result<()> {
        let Some(node) = self.nodes.get(&ino) else { return Ok(()) };
        let (data_id, published) = (node.inode.data_id, node.published());
        if node.regrow && self.has_lost(data_id) {
            return Ok(());
        }
        let Some(size) = node.live_size().filter(|size| *size > published) else { return Ok(()) };
        let grow = Size { ino, data_id, size, sequence: self.next_sequence - 1 };
        self.append(&[Change::Grow(grow)], Need::Urgent).map(drop)
    }
}

impl Inner {
    /// The content of a regular file.
    pub(crate) fn content(&self, op: &'static str, ino: Ino) -> Tried<Arc<Content>> {
        if let Some(content) = self.content_there(op, ino)? {
            return Ok(content);
        }
        let Some(cache) = &self.options.cache else {
            return refuse(ErrorKind::Unsupported, op, "the volume was opened without a cache");
        };
        let _making = self.making.lock();
        if let Some(content) = self.content_there(op, ino)? {
            return Ok(content);
        }
        let ops = Arc::new(FileOps::new(self, ino));
        let (size, left) = {
            let mut state = self.state.lock();
            let (data_id, size) = {
                let node = state.get(op, ino)?;
                (node.inode.data_id, node.live_size().unwrap_or(node.inode.size))
            };
            let same = |left: &RetainedMapping| (left.data_id, left.size) == (data_id, size);
            (size, state.left.take(ino.0).map(|left| (left.mapping, same(&left))))
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
        let new = Arc::new(Content { file, handle, ops, ino });
        let mut state = self.state.lock();
        let Some(node) = state.nodes.get_mut(&ino.0) else {
            return refuse(ErrorKind::Stale, op, format!("{ino:?}"));
        };
        debug_assert!(node.content.is_none(), "D11: made by one at a time");
        node.unlogged_size = None;
        Ok(node.content.get_or_insert(new).clone())
    }

    /// The content of a regular file, if it has a mapping.
    fn content_there(&self, op: &'static str, ino: Ino) -> Tried<Option<Arc<Content>>> {
        let state = self.state.lock();
        rules::regular(&*state, op, ino)?;
        Ok(state.get(op, ino)?.content.clone())
    }

    /// What was removed drops its dirt; what owes nothing and is not open goes: looks at `first`, and at so
    /// many others.
    pub(crate) fn tidy(&self, first: Option<u64>, most: usize) {
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
        self.drop_left(gone);
        drop(making);
        for content in removed {
            let task = async move {
                // Nobody can see it any more: nothing of it is written.
                if let Err(error) = content.file.set_len(0).await {
                    log::debug!("dropping removed content: {error}");
                }
            };
            self.world.spawn("forebay-lfs drop", Box::pin(task));
        }
    }

    /// Folios of mappings that are gone, and that nobody goes on with.
    pub(crate) fn drop_left(&self, mappings: Vec<u32>) {
        let (Some(cache), Some(domain)) = (&self.options.cache, &self.domain) else { return };
        let block_size = self.layout.geometry.block_bytes();
        for mapping in mappings {
            cache.drop_left(mapping, domain.clone(), block_size);
        }
    }

    /// Files that were cut to nothing and closed by now: what was written since goes before whatever is
    /// synced now. One stays owed until it is written, so that nobody syncs past it meanwhile: if it cannot
    /// be written, that is an error of every sync until it can.
    pub(crate) async fn write_owed(&self) -> Result<()> {
        let owed: BTreeSet<u64> = {
            let state = self.state.lock();
            state.owed.keys().chain(state.owed_written.keys()).copied().collect()
        };
        let mut result = Ok(());
        for ino in owed {
            let (last, lost, whole, content) = {
                let mut state = self.state.lock();
                let last = state.owed.get(&ino).copied();
                let content = state.nodes.get(&ino).and_then(|node| node.content.clone());
                let Some(content) = content else {
                    state.owed.remove(&ino);
                    state.owed_written.remove(&ino);
                    continue;
                };
                // There before anything is written: what is lost meanwhile counts. So does what was lost
                // before it was owed, and is held in the cache.
                let lost = u32::from(state.unpublished.contains(&(ino, Lost::Run)));
                let new = OwedWritten { lost, ..OwedWritten::ON_ITS_WAY };
                let written = state.owed_written.entry(ino).or_insert(new);
                written.upto = u64::MAX;
                (last, written.lost, written.lost == written.healed, content)
            };
            // What a repair of the log has left out is held in the cache, if anywhere: no flush of the file's
            // own need have failed.
            let whole = whole || content.file.take_back_unflushed();
            let done = match content.file.take_back_lost() {
                Ok(()) => content.file.write_out().await,
                lost => lost,
            };
            if let Err(error) = self.unless_removed(&content, done) {
                log::warn!("content of #{ino}, which was truncated and closed: {error}");
                result = Err(error);
                continue;
            }
            let mut state = self.state.lock();
            // Who was closed again meanwhile owes what was written since.
            if state.owed.get(&ino).copied() == last {
                state.owed.remove(&ino);
                let upto = state.next_ticket - 1;
                if let Some(written) = state.owed_written.get_mut(&ino).filter(|_| whole) {
                    (written.upto, written.healed) = (upto, written.healed.max(lost));
                }
            }
        }
        result
    }

    /// The result of writing a file out for an operation on others. A write-out of an inode that
    /// was removed meanwhile may fail; nothing finds its content, so that is no error of the
    /// operation.
    pub(crate) fn unless_removed(&self, content: &Arc<Content>, done: Result<()>) -> Result<()> {
        let Err(error) = done else { return Ok(()) };
        let state = self.state.lock();
        let node = state.nodes.get(&content.ino.0);
        let own = node.and_then(|node| node.content.as_ref());
        match own.is_some_and(|own| Arc::ptr_eq(own, content)) {
            true => Err(error),
            false => Ok(()),
        }
    }

    /// Makes everything durable.
    pub(crate) async fn sync_everything(&self) -> Result<()> {
        let contents: Vec<Arc<Content>> = {
            self.with_room(|state| state.write_times(None)).await?;
            let state = self.state.lock();
            let owes = |node: &&Node| {
                let longer = node.live_size().is_some_and(|size| size > node.published());
                let settled = node.content.as_ref().is_none_or(|c| c.file.mapping.is_settled());
                longer || !settled
            };
            state
                .nodes
                .values()
                .map(|node| &**node)
                .filter(owes)
                .filter_map(|node| node.content.clone())
                .collect()
        };
        let mut result = Ok(());
        let mut rest = &contents[..];
        while !rest.is_empty() {
            let (together, others) = rest.split_at(count_together(rest));
            for content in together.iter().filter(|_| together.len() > 1) {
                // What fails here its own sync tells.
                let _told_below = content.file.write_out().await;
            }
            for content in together {
                let done = content.file.sync(&content.handle).await;
                result = self.unless_removed(content, done).and(result);
            }
            rest = others;
        }
        // Nobody holds them when they are tidied.
        drop(contents);
        // That commit itself may have lost what a file had written past the cache before.
        let committed = self.commit_then(false, State::check_all_published).await;
        self.tidy(None, usize::MAX);
        committed.and_then(|published| published).and(result)
    }
}

/// How many of the next files are written out before the first of them is synced, so that their records
/// become durable together.
fn count_together(contents: &[Arc<Content>]) -> usize {
    let mut bytes = 0;
    let fits = contents.iter().take_while(|content| {
        bytes += content.file.mapping.dirty_bytes.load(Ordering::Relaxed);
        bytes <= TOGETHER_BYTES
    });
    fits.take(TOGETHER).count().max(1)
}
