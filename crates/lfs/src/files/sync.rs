//! Writes files out: for a sync, before a checkpoint, and to free space.
//!
//! Content that was written after a truncation to 0 bytes is *outstanding* once the file is closed:
//! every sync that begins later writes it before it returns. If it cannot be written, the syncs of
//! its file and of the volume fail. A sync of another file makes that file durable all the same.
//!
//! A checkpoint without a sync also writes it first (`maintenance.Z15`).
//!
//! Locks: the state lock in turn; none across a wait.

use crate::files::open_files::OpenFiles;
use crate::names::content::Content;
use crate::names::node::Node;
use crate::names::times_wanted::TimesWanted;
use crate::space::Need;
use crate::transaction::file_states::Unwritten;
use forebay_base::sync::atomic::Ordering;
use forebay_base::{Error, ErrorKind, Result};
use forebay_vfs::Ino;
use std::sync::Arc;

/// How often a sync writes outstanding content again that a failed flush has lost.
const OUTSTANDING_ROUNDS: u32 = 3;

/// How often space is requested for content that overwrites, which is never refused permanently
/// (capacity.P25).
const OVERWRITE_ROUNDS: u32 = 4;

/// Most files whose records one commit of a volume sync covers, and most of their dirty bytes.
const TOGETHER: usize = 1024;
const TOGETHER_BYTES: u64 = 4 << 20;

impl OpenFiles {
    /// Makes all changes durable, with outstanding content. The caller returns the error to a
    /// program, without a wait before (sync_errors.E21).
    async fn commit_all(&self) -> Result<()> {
        for _ in 0..OUTSTANDING_ROUNDS {
            // Content of a file that was closed before this call is durable if there is no entry
            // (outstanding.S17). Files that are closed later are not this call's.
            if !self.has_outstanding.is_set() {
                return self.commit(self.last_ticket(), false).await;
            }
            let failed = self.write_outstanding().await;
            if failed.error.is_some() {
                return self.state.lock().reported(failed);
            }
            let ticket = self.last_ticket();
            self.commit(ticket, false).await?;
            if self.state.lock().settle_outstanding(ticket) {
                return Ok(());
            }
        }
        Err(Error::new(ErrorKind::Io, "commit", "content of a file that was cut was lost again"))
    }

    /// After a successful commit: checks that an inode is completely in the log.
    ///
    /// # Errors
    /// Some of its content, or its size, is not.
    fn check_published(&self, ino: u64) -> Result<()> {
        match self.has_sync_errors.is_set() {
            true => self.state.lock().check_published(ino),
            false => Ok(()),
        }
    }

    /// Makes the content of a file durable, and the times that syncs of it want.
    pub async fn commit_file(&self, ino: Ino, times: &TimesWanted, here: bool) -> Result<()> {
        if times.due().is_some() {
            self.state.lock().record_wanted_times(ino, times);
        }
        // Read before the last ticket (times_wanted.S23).
        let recorded = times.recorded();
        self.commit_for_flush(here).await?;
        times.note_durable(recorded);
        self.check_published(ino.0)
    }

    /// Makes all changes durable, for the sync of one inode. Outstanding content of other files
    /// becomes durable if it can be written; if not, their own syncs fail, and those of the volume.
    pub async fn commit_for_one(&self, here: bool) -> Result<()> {
        for _ in 0..OUTSTANDING_ROUNDS {
            if self.commit_for_flush(here).await? {
                break;
            }
        }
        Ok(())
    }

    /// Makes all changes durable, for a flush that perhaps no program waits for. It writes
    /// outstanding content first. What cannot be written fails the syncs of programs only. False:
    /// outstanding content was lost, and has to be written again.
    async fn commit_for_flush(&self, here: bool) -> Result<bool> {
        if !self.has_outstanding.is_set() {
            return self.commit(self.last_ticket(), here).await.map(|()| true);
        }
        self.write_outstanding_first().await;
        let ticket = self.last_ticket();
        self.commit(ticket, here).await?;
        Ok(self.state.lock().settle_outstanding(ticket))
    }

    /// Writes the outstanding content of all files. A file stays outstanding until it is written,
    /// so that no other task syncs past it meanwhile.
    async fn write_outstanding(&self) -> Unwritten {
        let inos = self.state.lock().files().outstanding().inos();
        let mut failed = Unwritten::default();
        for ino in inos {
            let begun = self.state.lock().begin_write_out(ino);
            let Some((content, mut begun, is_past)) = begun else { continue };
            // Content that a repair of the log has lost is in the cache or nowhere, and the file
            // itself may not have seen a failed flush. During a flush of the file its blocks cannot
            // be written again: then a loss fails the sync, unless only past openers had it.
            if !begun.is_whole && (content.file.take_back_unflushed() || is_past) {
                begun = begun.whole();
            }
            // What is lost concerns the openers of this file; the rest is written.
            content.file.take_back_lost();
            let done = content.file.write_out().await;
            if let Err(error) = self.unless_removed(&content, done) {
                log::warn!("content of #{ino}, which was truncated and closed: {error}");
                let state = self.state.lock();
                let lost = state.failing_loss_of(ino);
                let is_lost = lost.is_some();
                failed.add(ino, lost.unwrap_or(error), is_lost);
                continue;
            }
            self.state.lock().end_write_out(ino, begun);
        }
        failed
    }

    /// Writes outstanding content before a commit without a sync (maintenance.Z15). Errors are
    /// reported by syncs.
    pub async fn write_outstanding_first(&self) {
        if let Some(error) = self.write_outstanding().await.error {
            log::debug!("cut, and not written yet: {error}");
        }
    }

    /// The result of a sync or a durable write of a file, for the program that waits for it. An I/O
    /// error also says that content of the file is lost, if it is.
    pub fn passed_on<T>(&self, ino: Ino, done: Result<T>) -> Result<T> {
        let is_lost = done.as_ref().is_err_and(|error| error.kind() == ErrorKind::Io);
        if is_lost && self.has_sync_errors.is_set() {
            self.state.lock().note_loss_reported(ino.0);
        }
        done
    }

    /// Writes a file out before a rename puts it in the place of another one.
    pub async fn write_out_replacing(&self, content: &Arc<Content>) -> Result<()> {
        if self.has_sync_errors.is_set() {
            self.state.lock().note_used(content.ino.0);
        }
        let done = self.unless_removed(content, content.file.write_out().await);
        self.passed_on(content.ino, done)
    }

    /// The result of writing a file out for an operation on several files. If the inode was removed
    /// meanwhile, a failure does not matter, because its content cannot be reached.
    pub fn unless_removed(&self, content: &Arc<Content>, done: Result<()>) -> Result<()> {
        let Err(error) = done else { return Ok(()) };
        let state = self.state.lock();
        let node = state.names().node(content.ino.0);
        let own = node.and_then(|node| node.content.as_ref());
        match own.is_some_and(|own| Arc::ptr_eq(own, content)) {
            true => Err(error),
            false => Ok(()),
        }
    }

    /// Records the sizes of closed files with lost content, for a sync of everything. It goes on
    /// after an error.
    async fn publish_closed_ends(&self) -> Result<()> {
        if !self.has_sync_errors.is_set() {
            return Ok(());
        }
        let with_lost = self.state.lock().note_sync_of_all();
        let mut result = Ok(());
        for ino in with_lost {
            let done = self.with_space(|state| state.publish_closed_end(ino)).await;
            result = result.and(done);
        }
        result
    }

    /// Makes everything durable.
    pub async fn sync_everything(&self) -> Result<()> {
        self.with_space(|state| state.write_times(None)).await?;
        let mut result = self.publish_closed_ends().await;
        let contents: Vec<Arc<Content>> = {
            let state = self.state.lock();
            let is_unsynced = |node: &&Node| {
                let longer = node.live_size().is_some_and(|size| size > node.published());
                let settled = node.content.as_ref().is_none_or(|c| c.file.mapping.is_settled());
                longer || !settled
            };
            let nodes = state.names().nodes().map(|(_, node)| node).filter(is_unsynced);
            nodes.filter_map(|node| node.content.clone()).collect()
        };
        let mut rest = &contents[..];
        while !rest.is_empty() {
            let (together, others) = rest.split_at(count_together(rest));
            for content in together.iter().filter(|_| together.len() > 1) {
                // The sync below reports an error of this write.
                let _reported_below = content.file.write_out().await;
            }
            for content in together {
                let done = content.file.sync(&content.handle).await;
                result = self.unless_removed(content, done).and(result);
            }
            rest = others;
        }
        // Released before the files are tidied.
        drop(contents);
        // The commit may find that bytes of earlier uncached writes are lost.
        let committed = self.commit_all().await;
        let committed = committed.and_then(|()| self.state.lock().check_all_published());
        self.tidy(None, usize::MAX);
        committed.and(result)
    }

    /// Records the sizes of files without a sync, as far as they are written: recovery finds
    /// content only below the recorded size.
    pub fn publish_sizes(&self) {
        let contents: Vec<_> = {
            let state = self.state.lock();
            let is_longer =
                |node: &&Node| node.live_size().is_some_and(|size| size > node.published());
            let nodes = state.names().nodes().map(|(_, node)| node).filter(is_longer);
            nodes.filter_map(|node| node.content.clone()).collect()
        };
        contents.iter().for_each(|content| content.file.publish_size());
    }

    /// Writes dirty data before a request is refused for lack of space. Until then dirty data
    /// counts as new also where it overwrites, and the old content becomes free only afterwards.
    /// Sizes are not published, so this waits for no writer
    /// ([`MappedFile::write_out_dirty`](forebay_iomap::MappedFile)). The caller may be a writer,
    /// but has no reservation and holds no range.
    pub async fn write_out_dirty(&self) {
        let dirty: Vec<Arc<Content>> = {
            let state = self.state.lock();
            let is_dirty = state.accepted_bytes(0) > 0 && !state.life().is_read_only();
            let contents = state.names().nodes().filter_map(|(_, node)| node.content.as_ref());
            contents.filter(|c| is_dirty && !c.file.mapping.is_settled()).cloned().collect()
        };
        for content in dirty {
            content.file.write_out_dirty().await;
        }
    }

    /// Makes space for `new` bytes of content. `overwrites`: it overwrites stored content. False:
    /// there is none, and none can be made.
    pub async fn make_space_for(&self, new: u64, overwrites: bool) -> bool {
        let has = || {
            let state = self.state.lock();
            state.has_room(new, Need::New) || overwrites && state.has_room(new, Need::Overwrite)
        };
        // Meanwhile the tree may have shown that the caller overwrites, or another task has made
        // space. A caller with new content was refused just now, so space is made for it.
        if overwrites && has() {
            return true;
        }
        // The cleaner's pass in progress may suffice.
        if overwrites && self.wait_for_cleaner().await && has() {
            return true;
        }
        self.write_out_dirty().await;
        for _ in 0..if overwrites { OVERWRITE_ROUNDS } else { 1 } {
            // Another writer may take the space.
            if !self.requests.make_space().await || has() {
                break;
            }
        }
        has()
    }
}

/// Number of the next files that are written out before the first of them is synced, so that one
/// commit covers their records.
fn count_together(contents: &[Arc<Content>]) -> usize {
    let mut bytes = 0;
    let fits = contents.iter().take_while(|content| {
        bytes += content.file.mapping.dirty_bytes.load(Ordering::Relaxed);
        bytes <= TOGETHER_BYTES
    });
    fits.take(TOGETHER).count().max(1)
}
