//! An open file of the host behind the contract.

use super::descriptors::{Shared, fail, kind_of, refuse, stat};
use forebay_base::buf::AlignedBuf;
use forebay_base::task::BoxFuture;
use forebay_base::{ErrorKind, IoFlags, Result};
use forebay_vfs::fs::{OpenFile, ReadResult, WriteResult, Wrote};
use forebay_vfs::{Fallocate, FileKind, Ino, OpenFlags, Privileges, Seek};
use std::io::IoSlice;
use std::os::fd::OwnedFd;
use std::sync::Arc;

pub struct HostFile {
    pub(super) shared: Arc<Shared>,
    pub(super) ino: Ino,
    pub(super) fd: OwnedFd,
    pub(super) flags: OpenFlags,
}

impl Drop for HostFile {
    fn drop(&mut self) {
        self.shared.count(self.ino, false);
    }
}

impl HostFile {
    /// Refuses inodes without content. The host's errors for them would differ by kind and call.
    fn check(&self, op: &'static str) -> Result<()> {
        match kind_of(&self.fd)? {
            FileKind::File => Ok(()),
            FileKind::Directory => refuse(ErrorKind::IsDirectory, op),
            _ => refuse(ErrorKind::InvalidInput, op),
        }
    }

    fn read_now(&self, offset: u64, dst: &mut [u8]) -> Result<usize> {
        self.check("read")?;
        if !self.flags.contains(OpenFlags::READ) {
            return refuse(ErrorKind::BadHandle, "read");
        }
        let mut done = 0;
        while done < dst.len() {
            let some = rustix::io::pread(&self.fd, &mut dst[done..], offset + done as u64);
            match some.map_err(|e| fail("read", e))? {
                0 => break,
                n => done += n,
            }
        }
        Ok(done)
    }

    fn write_now(&self, offset: u64, src: &[u8], flags: IoFlags) -> Result<Wrote> {
        self.check("write")?;
        if !flags.contains(IoFlags::APPEND) {
            let len = rustix::io::pwrite(&self.fd, src, offset).map_err(|e| fail("write", e))?;
            return Ok(Wrote { offset, len });
        }
        let append = rustix::io::ReadWriteFlags::APPEND;
        // The descriptor's position is where this append ended. The size may already include
        // another writer's append, and half a record of it.
        let len = rustix::io::pwritev2(&self.fd, &[IoSlice::new(src)], u64::MAX, append)
            .map_err(|e| fail("append", e))?;
        let end = rustix::fs::tell(&self.fd).map_err(|e| fail("append", e))?;
        Ok(Wrote { offset: end - len as u64, len })
    }

    fn fallocate_now(&self, how: Fallocate, offset: u64, len: u64) -> Result<()> {
        use rustix::fs::FallocateFlags as Flags;
        self.check("fallocate")?;
        let keep = |keep_size| if keep_size { Flags::KEEP_SIZE } else { Flags::empty() };
        let flags = match how {
            Fallocate::Allocate { keep_size } => keep(keep_size),
            Fallocate::PunchHole => Flags::PUNCH_HOLE | Flags::KEEP_SIZE,
            Fallocate::ZeroRange { keep_size } => Flags::ZERO_RANGE | keep(keep_size),
        };
        match rustix::fs::fallocate(&self.fd, flags, offset, len) {
            Err(rustix::io::Errno::OPNOTSUPP) if matches!(how, Fallocate::ZeroRange { .. }) => {
                // tmpfs has no ZERO_RANGE: the range is punched, and the file extended if it must
                // be.
                self.fallocate_now(Fallocate::PunchHole, offset, len)?;
                let size = stat(&self.fd)?.stx_size;
                match how.grows() && offset + len > size {
                    true => rustix::fs::ftruncate(&self.fd, offset + len)
                        .map_err(|e| fail("fallocate", e)),
                    false => Ok(()),
                }
            }
            done => done.map_err(|e| fail("fallocate", e)),
        }
    }
}

impl OpenFile for HostFile {
    fn ino(&self) -> Ino {
        self.ino
    }

    fn flags(&self) -> OpenFlags {
        self.flags
    }

    fn read(&self, offset: u64, mut buf: AlignedBuf, _flags: IoFlags) -> BoxFuture<'_, ReadResult> {
        Box::pin(async move {
            let done = self.read_now(offset, &mut buf);
            (buf, done)
        })
    }

    fn write(
        &self,
        offset: u64,
        buf: AlignedBuf,
        flags: IoFlags,
        _privileges: Privileges,
    ) -> BoxFuture<'_, WriteResult> {
        Box::pin(async move {
            let done = self.write_now(offset, &buf, flags);
            (buf, done)
        })
    }

    fn fallocate(
        &self,
        how: Fallocate,
        offset: u64,
        len: u64,
        _privileges: Privileges,
    ) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move { self.fallocate_now(how, offset, len) })
    }

    fn seek(&self, what: Seek, offset: u64) -> BoxFuture<'_, Result<u64>> {
        Box::pin(async move {
            self.check("seek")?;
            let to = match what {
                Seek::Data => rustix::fs::SeekFrom::Data(offset),
                Seek::Hole => rustix::fs::SeekFrom::Hole(offset),
            };
            rustix::fs::seek(&self.fd, to).map_err(|e| fail("seek", e))
        })
    }

    fn sync(&self, _data_only: bool) -> BoxFuture<'_, Result<()>> {
        Box::pin(async { Ok(()) })
    }
}
