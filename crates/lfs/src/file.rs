//! An open file: [`forebay_vfs::OpenFile`].
//!
//! Lock: the state lock, for the length of a look or a change; never across a wait.

use crate::format::change::Change;
use crate::inode::refuse;
use crate::namei::At;
use crate::space::Need;
use crate::state::State;
use crate::volume::Inner;
use forebay_base::buf::AlignedBuf;
use forebay_base::task::BoxFuture;
use forebay_base::{ErrorKind, IoFlags, Result};
use forebay_vfs::{
    Fallocate, Ino, OpenFile, OpenFlags, Privileges, ReadResult, RenameFlags, Seek, SetAttr,
    WriteResult,
};
use std::sync::Arc;

/// See the module. Dropped, it releases the inode.
pub(crate) struct VolumeFile {
    inner: Arc<Inner>,
    ino: Ino,
    flags: OpenFlags,
}

impl VolumeFile {
    /// Opens an inode.
    pub fn new(inner: &Arc<Inner>, ino: Ino, flags: OpenFlags) -> Result<Self> {
        Self::count(inner, &mut inner.state.lock(), ino, flags)
    }

    /// The same, for a caller that holds the state.
    pub fn count(
        inner: &Arc<Inner>,
        state: &mut State,
        ino: Ino,
        flags: OpenFlags,
    ) -> Result<Self> {
        match state.nodes.get_mut(&ino.0) {
            Some(node) => node.opens += 1,
            None => return refuse(ErrorKind::Stale, "open", format!("{ino:?}")),
        }
        Ok(Self { inner: inner.clone(), ino, flags })
    }
}

impl Drop for VolumeFile {
    fn drop(&mut self) {
        self.inner.state.lock().released(self.ino);
    }
}

impl State {
    /// One opener less; what has no name goes with the last.
    pub fn released(&mut self, ino: Ino) {
        let Some(node) = self.nodes.get_mut(&ino.0) else { return };
        node.opens -= 1;
        if node.opens > 0 || node.inode.nlink > 0 {
            return;
        }
        let data_id = node.inode.data_id;
        let sequence = self.draw();
        let change = Change::RemoveInode(ino.0, data_id, sequence);
        if let Err(error) = self.append(&[change], Need::Urgent) {
            // It stays an orphan, and goes when the volume is opened again.
            log::warn!("{ino:?} without a name stays until the next opening: {error}");
        }
    }
}

impl Inner {
    pub(crate) async fn setattr(&self, ino: Ino, set: &SetAttr) -> Result<()> {
        let call = self.call();
        let mut state = self.state.lock();
        state.check_setattr(ino, set)?;
        if set.is_empty() {
            return Ok(());
        }
        state.setattr(ino, set, call)
    }

    pub(crate) async fn rename(
        &self,
        from: At<'_>,
        to: At<'_>,
        flags: RenameFlags,
    ) -> Result<()> {
        let call = self.call();
        self.state.lock().rename(from, to, flags, call)
    }

    pub(crate) async fn sync_everything(&self) -> Result<()> {
        self.state.lock().write_times(None)?;
        self.commit_all(false).await
    }
}

impl OpenFile for VolumeFile {
    fn ino(&self) -> Ino {
        self.ino
    }

    fn flags(&self) -> OpenFlags {
        self.flags
    }

    fn read(&self, _offset: u64, buf: AlignedBuf, _flags: IoFlags) -> BoxFuture<'_, ReadResult> {
        Box::pin(async move { (buf, refuse(ErrorKind::Unsupported, "read", "content")) })
    }

    fn write(
        &self,
        _offset: u64,
        buf: AlignedBuf,
        _flags: IoFlags,
        _privileges: Privileges,
    ) -> BoxFuture<'_, WriteResult> {
        Box::pin(async move { (buf, refuse(ErrorKind::Unsupported, "write", "content")) })
    }

    fn fallocate(
        &self,
        _how: Fallocate,
        _offset: u64,
        _len: u64,
        _privileges: Privileges,
    ) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move { refuse(ErrorKind::Unsupported, "fallocate", "content") })
    }

    fn seek(&self, _what: Seek, _offset: u64) -> BoxFuture<'_, Result<u64>> {
        Box::pin(async move { refuse(ErrorKind::Unsupported, "seek", "content") })
    }

    fn sync(&self, data_only: bool) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            if !data_only {
                self.inner.state.lock().write_times(Some(self.ino))?;
            }
            self.inner.commit_all(false).await
        })
    }
}
