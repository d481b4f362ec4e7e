//! An open file: [`forebay_vfs::OpenFile`].
//!
//! Lock: the state lock, for the length of a look or a change; never across a wait.

use crate::content::Content;
use crate::fault::Planted;
use crate::format::change::Change;
use crate::inode::refuse;
use crate::namei::At;
use crate::pending::Where;
use crate::space::Need;
use crate::state::State;
use crate::volume::Inner;
use forebay_base::buf::AlignedBuf;
use forebay_base::task::BoxFuture;
use forebay_base::{ErrorKind, IoFlags, Result};
use forebay_iomap::file::ZeroFlags;
use forebay_iomap::{Handle, Source, Target};
use forebay_vfs::types::{FILE_SIZE_MAX, check_range};
use forebay_vfs::{
    Fallocate, FileKind, Ino, OpenFile, OpenFlags, Privileges, ReadResult, RenameFlags, Seek,
    SetAttr, WriteResult, Wrote,
};
use std::sync::{Arc, OnceLock};

/// See the module. Dropped, it releases the inode.
pub(crate) struct VolumeFile {
    inner: Arc<Inner>,
    ino: Ino,
    flags: OpenFlags,
    /// Of a regular file, from the first use of its content on.
    content: OnceLock<(Arc<Content>, Handle)>,
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
        Ok(Self { inner: inner.clone(), ino, flags, content: OnceLock::new() })
    }
}

impl VolumeFile {
    /// The content, and this opener's view of it: `IsDirectory`, `InvalidInput`, `BadHandle`.
    fn content(&self, op: &'static str, needed: OpenFlags) -> Result<&(Arc<Content>, Handle)> {
        self.inner.state.lock().regular(op, self.ino)?;
        if !self.flags.contains(needed) {
            let text = format!("{:?} is opened {:?}", self.ino, self.flags);
            return refuse(ErrorKind::BadHandle, op, text);
        }
        if let Some(there) = self.content.get() {
            return Ok(there);
        }
        let content = self.inner.content(op, self.ino)?;
        let handle = content.file.open_handle();
        Ok(self.content.get_or_init(|| (content, handle)))
    }

    async fn write_now(
        &self,
        offset: u64,
        buf: &mut AlignedBuf,
        flags: IoFlags,
        privileges: Privileges,
    ) -> Result<Wrote> {
        flags.check(true)?;
        let (content, handle) = self.content("write", OpenFlags::WRITE)?;
        let append = flags.contains(IoFlags::APPEND);
        let first = if append { content.file.size() } else { offset };
        check_range("write", first, buf.len() as u64)?;
        if buf.is_empty() {
            return Ok(Wrote { offset: first, len: 0 });
        }
        let range = content.file.write_placed(handle, offset, Source::Owned(buf), flags).await?;
        let call = self.inner.call();
        self.inner.state.lock().touch_content(self.ino, call, privileges)?;
        Ok(Wrote { offset: range.start, len: (range.end - range.start) as usize })
    }

    async fn read_now(&self, offset: u64, buf: &mut AlignedBuf, flags: IoFlags) -> Result<usize> {
        flags.check(false)?;
        let (content, handle) = self.content("read", OpenFlags::READ)?;
        if buf.is_empty() || offset >= content.file.size() {
            if !buf.is_empty() {
                self.touch_atime();
            }
            return Ok(0);
        }
        let most = FILE_SIZE_MAX - offset;
        let len = if buf.len() as u64 <= most {
            content.file.read(handle, offset, Target::Owned(buf), flags).await?
        } else {
            // Behind the last offset there is nothing.
            let mut part = AlignedBuf::new(most as usize);
            let len = content.file.read(handle, offset, Target::Owned(&mut part), flags).await?;
            buf[..len].copy_from_slice(&part[..len]);
            len
        };
        self.touch_atime();
        Ok(len)
    }

    fn touch_atime(&self) {
        let (call, noatime) = (self.inner.call(), self.inner.options.noatime);
        self.inner.state.lock().touch_atime(self.ino, call, noatime);
    }

    async fn fallocate_now(
        &self,
        how: Fallocate,
        offset: u64,
        len: u64,
        privileges: Privileges,
    ) -> Result<()> {
        self.inner.state.lock().regular("fallocate", self.ino)?;
        if len == 0 {
            return refuse(ErrorKind::InvalidInput, "fallocate", "no bytes");
        }
        let (content, _) = self.content("fallocate", OpenFlags::WRITE)?;
        check_range("fallocate", offset, len)?;
        let (file, end) = (&content.file, offset + len);
        if let Fallocate::PunchHole | Fallocate::ZeroRange { .. } = how {
            let end = end.min(file.size());
            if offset < end {
                file.zero(offset, end - offset, ZeroFlags::default()).await?;
            }
        }
        if how.grows() && end > file.size() {
            file.set_len(end).await?;
        }
        let call = self.inner.call();
        self.inner.state.lock().touch_content(self.ino, call, privileges)
    }

    async fn seek_now(&self, what: Seek, offset: u64) -> Result<u64> {
        let (content, _) = self.content("seek", OpenFlags::empty())?;
        let size = content.file.size();
        if offset < size {
            // What is dirty has a place then, and is found.
            content.file.write_out().await?;
        }
        let found = match offset < size {
            true => self.inner.find_stored(self.ino, what, offset, size).await?,
            false => None,
        };
        match found {
            Some(at) => Ok(at),
            None => refuse(ErrorKind::PastEnd, "seek", format!("{offset} of {size}")),
        }
    }
}

impl Drop for VolumeFile {
    fn drop(&mut self) {
        if let Some((content, handle)) = self.content.get() {
            content.file.close_handle(handle);
        }
        self.inner.state.lock().released(self.ino);
        self.inner.tidy();
    }
}

impl State {
    /// One opener less; what has no name goes with the last.
    pub fn released(&mut self, ino: Ino) {
        let Some(node) = self.nodes.get_mut(&ino.0) else { return };
        node.opens -= 1;
        let owed = node.cut && node.inode.nlink > 0;
        // Whoever has it open still may write what takes the place of what was cut.
        node.cut &= node.opens > 0;
        if owed {
            let closed = self.draw();
            self.owed.insert(ino.0, closed);
        }
        let Some(node) = self.nodes.get_mut(&ino.0) else { return };
        if node.opens > 0 {
            return;
        }
        if node.content.is_some() {
            self.lingering.insert(ino.0);
        }
        if node.inode.nlink > 0 {
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
    /// The first byte from `offset` on that is stored, or that is not.
    async fn find_stored(
        &self,
        ino: Ino,
        what: Seek,
        offset: u64,
        size: u64,
    ) -> Result<Option<u64>> {
        let unit = self.layout.block_bytes();
        let data_id = self.state.lock().get("seek", ino)?.inode.data_id;
        let mut at = offset;
        while at < size {
            let (piece, _) = self.piece_at(data_id, at / unit).await?;
            let stored = piece.at != Where::Hole;
            if stored == (what == Seek::Data) {
                return Ok(Some(at));
            }
            at = (at / unit).saturating_add(piece.blocks).saturating_mul(unit);
        }
        Ok((what == Seek::Hole).then_some(size))
    }

    pub(crate) async fn setattr(&self, ino: Ino, set: &SetAttr) -> Result<()> {
        self.state.lock().check_setattr(ino, set)?;
        if set.is_empty() {
            return Ok(());
        }
        if let Some(size) = set.size {
            let content = self.content("setattr", ino)?;
            content.file.set_len(size).await?;
        }
        let call = self.call();
        let mut state = self.state.lock();
        if set.size.is_some() && state.nodes.get(&ino.0).is_some_and(|node| node.opens == 0) {
            state.lingering.insert(ino.0);
        }
        state.setattr(ino, set, call)
    }

    /// What replaces another file is written out before its record: then it is found wherever the name is.
    pub(crate) async fn rename(&self, from: At<'_>, to: At<'_>, flags: RenameFlags) -> Result<()> {
        let mut written = None;
        loop {
            let call = self.call();
            let content = {
                let mut state = self.state.lock();
                let source = state.peek(from).filter(|(_, kind)| *kind == FileKind::File);
                let replaces = state.peek(to).is_some() && !flags.contains(RenameFlags::EXCHANGE);
                let source = source.filter(|_| replaces && !flags.contains(RenameFlags::NOREPLACE));
                let content = source.and_then(|(ino, _)| {
                    let content = state.nodes.get(&ino.0)?.content.clone()?;
                    (written != Some(ino)).then_some((ino, content))
                });
                match content {
                    Some(found) if !self.plant.has(Planted::RenameBeforeData) => found,
                    _ => {
                        let done = state.rename(from, to, flags, call);
                        drop(state);
                        self.tidy();
                        return done;
                    }
                }
            };
            // Without a lock; then everything is looked at again.
            content.1.file.write_out().await?;
            written = Some(content.0);
        }
    }
}

impl OpenFile for VolumeFile {
    fn ino(&self) -> Ino {
        self.ino
    }

    fn flags(&self) -> OpenFlags {
        self.flags
    }

    fn read(&self, offset: u64, mut buf: AlignedBuf, flags: IoFlags) -> BoxFuture<'_, ReadResult> {
        Box::pin(async move {
            let done = self.read_now(offset, &mut buf, flags).await;
            (buf, done)
        })
    }

    fn write(
        &self,
        offset: u64,
        mut buf: AlignedBuf,
        flags: IoFlags,
        privileges: Privileges,
    ) -> BoxFuture<'_, WriteResult> {
        Box::pin(async move {
            let done = self.write_now(offset, &mut buf, flags, privileges).await;
            (buf, done)
        })
    }

    fn fallocate(
        &self,
        how: Fallocate,
        offset: u64,
        len: u64,
        privileges: Privileges,
    ) -> BoxFuture<'_, Result<()>> {
        Box::pin(self.fallocate_now(how, offset, len, privileges))
    }

    fn seek(&self, what: Seek, offset: u64) -> BoxFuture<'_, Result<u64>> {
        Box::pin(self.seek_now(what, offset))
    }

    fn sync(&self, data_only: bool) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let file = self.inner.state.lock().get("sync", self.ino)?.kind() == FileKind::File;
            if !data_only {
                self.inner.state.lock().write_times(Some(self.ino))?;
            }
            if file && self.inner.options.cache.is_some() {
                let (content, handle) = self.content("sync", OpenFlags::empty())?;
                return content.file.sync(handle).await;
            }
            self.inner.commit_all(false).await
        })
    }
}
