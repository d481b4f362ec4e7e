//! An open file of the file system in memory.
//!
//! Locks: the file system's one, for the length of a call. No call waits.

use super::state::{Shared, State};
use forebay_base::buf::AlignedBuf;
use forebay_base::sync::Arc;
use forebay_base::task::BoxFuture;
use forebay_base::{ErrorKind, IoFlags, Result};
use forebay_vfs::fs::{OpenFile, ReadResult, WriteResult, Wrote};
use forebay_vfs::rules::{self, refuse};
use forebay_vfs::types::{Fallocate, Ino, OpenFlags, Privileges, Seek};

/// One opening. Dropped, it releases the inode.
pub struct MemFile {
    shared: Arc<Shared>,
    ino: Ino,
    flags: OpenFlags,
}

impl MemFile {
    /// For an inode that was counted as open.
    pub fn new(shared: Arc<Shared>, ino: Ino, flags: OpenFlags) -> Self {
        Self { shared, ino, flags }
    }

    fn check(&self, op: &'static str, state: &State, needed: OpenFlags) -> Result<()> {
        rules::regular(state, op, self.ino)?;
        rules::check_handle(op, self.ino, self.flags, needed)
    }

    fn read_now(&self, offset: u64, dst: &mut [u8], flags: IoFlags) -> Result<usize> {
        flags.check(false)?;
        let mut state = self.shared.state.lock();
        self.check("read", &state, OpenFlags::READ)?;
        let size = state.attr("read", self.ino)?.size;
        let len = size.saturating_sub(offset).min(dst.len() as u64) as usize;
        state.data("read", self.ino)?.read(offset, &mut dst[..len]);
        if !dst.is_empty() {
            state.touch_atime(self.ino);
        }
        Ok(len)
    }

    fn write_now(
        &self,
        offset: u64,
        src: &[u8],
        flags: IoFlags,
        privileges: Privileges,
    ) -> Result<Wrote> {
        flags.check(true)?;
        let mut state = self.shared.state.lock();
        self.check("write", &state, OpenFlags::WRITE)?;
        let size = state.attr("write", self.ino)?.size;
        let offset = if flags.contains(IoFlags::APPEND) { size } else { offset };
        if src.is_empty() {
            return Ok(Wrote { offset, len: 0 });
        }
        let len = rules::attrs::write_len(offset, src.len())?;
        let (src, len) = (&src[..len], len as u64);
        state.check_blocks("write", state.data("write", self.ino)?.missing(offset, len))?;
        let now = state.now();
        state.change_data(self.ino, |data| data.write(offset, src));
        state.inode(self.ino).attr.size = size.max(offset + len);
        state.touch_content(self.ino, now, privileges)?;
        Ok(Wrote { offset, len: src.len() })
    }

    fn fallocate_now(
        &self,
        how: Fallocate,
        offset: u64,
        len: u64,
        privileges: Privileges,
    ) -> Result<()> {
        let mut state = self.shared.state.lock();
        rules::attrs::check_fallocate(&*state, (self.ino, self.flags), offset, len)?;
        if let Fallocate::Allocate { .. } = how {
            let missing = state.data("fallocate", self.ino)?.missing(offset, len);
            state.check_blocks("fallocate", missing)?;
        }
        let now = state.now();
        if let Fallocate::PunchHole | Fallocate::ZeroRange { .. } = how {
            state.change_data(self.ino, |data| data.zero(offset, offset + len));
        }
        if how.grows() {
            let attr = &mut state.inode(self.ino).attr;
            attr.size = attr.size.max(offset + len);
        }
        state.touch_content(self.ino, now, privileges)
    }

    fn seek_now(&self, what: Seek, offset: u64) -> Result<u64> {
        let state = self.shared.state.lock();
        self.check("seek", &state, OpenFlags::empty())?;
        let size = state.attr("seek", self.ino)?.size;
        let data = state.data("seek", self.ino)?;
        let found = match what {
            _ if offset >= size => None,
            Seek::Data => data.next_data(offset).filter(|at| *at < size),
            Seek::Hole => Some(data.next_hole(offset).min(size)),
        };
        match found {
            Some(at) => Ok(at),
            None => refuse(ErrorKind::PastEnd, "seek", format!("{offset} of {size}")),
        }
    }
}

impl Drop for MemFile {
    fn drop(&mut self) {
        self.shared.state.lock().released(self.ino);
    }
}

impl OpenFile for MemFile {
    fn ino(&self) -> Ino {
        self.ino
    }

    fn flags(&self) -> OpenFlags {
        self.flags
    }

    fn try_read(&self, offset: u64, dst: &mut [u8], flags: IoFlags) -> Option<Result<usize>> {
        Some(self.read_now(offset, dst, flags))
    }

    fn read(&self, offset: u64, mut buf: AlignedBuf, flags: IoFlags) -> BoxFuture<'_, ReadResult> {
        Box::pin(async move {
            let done = self.read_now(offset, &mut buf, flags);
            (buf, done)
        })
    }

    fn try_write(
        &self,
        offset: u64,
        src: &[u8],
        flags: IoFlags,
        privileges: Privileges,
    ) -> Option<Result<Wrote>> {
        Some(self.write_now(offset, src, flags, privileges))
    }

    fn write(
        &self,
        offset: u64,
        buf: AlignedBuf,
        flags: IoFlags,
        privileges: Privileges,
    ) -> BoxFuture<'_, WriteResult> {
        Box::pin(async move {
            let done = self.write_now(offset, &buf, flags, privileges);
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
        Box::pin(async move { self.fallocate_now(how, offset, len, privileges) })
    }

    fn seek(&self, what: Seek, offset: u64) -> BoxFuture<'_, Result<u64>> {
        Box::pin(async move { self.seek_now(what, offset) })
    }

    fn sync(&self, _data_only: bool) -> BoxFuture<'_, Result<()>> {
        Box::pin(async { Ok(()) })
    }
}
