//! The client of a session: a file system whose calls go to the process that has the volume open.
//!
//! Lock: one for the connection, held from a call to its answer.

use super::fields::Field;
use super::proto::{Answer, Bytes, Call, DATA_MAX, ENTRIES_MAX, FRAME_MAX, Told};
use forebay_base::buf::AlignedBuf;
use forebay_base::task::BoxFuture;
use forebay_base::{Error, ErrorKind, IoFlags, Result};
use forebay_vfs::{
    Attr, Cookie, DirEntry, Fallocate, FileSystem, Ino, Name, NewInode, OpenFile, OpenFileRef,
    OpenFlags, Privileges, ReadResult, RenameFlags, Seek, SetAttr, SetXattr, StatFs, WriteResult,
    Wrote, XattrName,
};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};

/// A connection in a session.
struct Wire(Mutex<UnixStream>);

impl Wire {
    fn ask(&self, call: &Call) -> Result<Answer> {
        let mut stream = self.0.lock().unwrap_or_else(|p| p.into_inner());
        let answer = exchange(&mut stream, &call.encode());
        match answer {
            Ok(Answer::Failed(Told(error))) => Err(error),
            Ok(answer) => Ok(answer),
            Err(error) => {
                // The answer is missing or invalid, so later answers cannot be trusted either.
                let _shut = stream.shutdown(std::net::Shutdown::Both);
                Err(error)
            }
        }
    }
}

fn exchange(stream: &mut UnixStream, body: &[u8]) -> Result<Answer> {
    let failed = |e| Error::from_io("ask the process that has the volume open", e);
    let mut frame = Vec::new();
    (body.len() as u32).put(&mut frame);
    frame.extend_from_slice(body);
    stream.write_all(&frame).map_err(failed)?;
    let mut length = [0; 4];
    stream.read_exact(&mut length).map_err(failed)?;
    let length = u32::from_le_bytes(length) as usize;
    if length > FRAME_MAX {
        let text = format!("an answer of {length} bytes");
        return Err(Error::new(ErrorKind::Protocol, "ask", text));
    }
    let mut frame = vec![0; length];
    stream.read_exact(&mut frame).map_err(failed)?;
    Answer::decode(&frame)
}

fn odd<T>(answer: &Answer) -> Result<T> {
    let text = format!("an answer to something else: {answer:?}");
    Err(Error::new(ErrorKind::Protocol, "ask", text.chars().take(200).collect::<String>()))
}

/// A file system whose calls are answered by the process that has the volume open.
pub struct RemoteFs(Arc<Wire>);

impl RemoteFs {
    /// On a connection on which the process has agreed to a session.
    pub fn new(stream: UnixStream) -> Self {
        Self(Arc::new(Wire(Mutex::new(stream))))
    }

    fn attr(&self, call: Call) -> BoxFuture<'_, Result<Attr>> {
        Box::pin(async move {
            match self.0.ask(&call)? {
                Answer::Attr(attr) => Ok(attr),
                other => odd(&other),
            }
        })
    }

    fn unit(&self, call: Call) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move { done(self.0.ask(&call)) })
    }

    fn bytes(&self, call: Call) -> BoxFuture<'_, Result<Vec<u8>>> {
        Box::pin(async move {
            match self.0.ask(&call)? {
                Answer::Bytes(bytes) => Ok(bytes.into()),
                other => odd(&other),
            }
        })
    }

    fn opened(
        &self,
        call: &Call,
        ino: Option<Ino>,
        flags: OpenFlags,
    ) -> Result<(Option<Attr>, OpenFileRef)> {
        let (number, attr) = match self.0.ask(call)? {
            Answer::Opened(number, attr) => (number, attr),
            other => return odd(&other),
        };
        let Some(ino) = ino.or(attr.map(|attr| attr.ino)) else {
            return Err(Error::new(ErrorKind::Protocol, "ask", "made, but what?"));
        };
        let file = RemoteFile { wire: self.0.clone(), number, ino, flags };
        Ok((attr, Arc::new(file)))
    }
}

fn done(answer: Result<Answer>) -> Result<()> {
    match answer? {
        Answer::Done() => Ok(()),
        other => odd(&other),
    }
}

fn made((attr, file): (Option<Attr>, OpenFileRef)) -> Result<(Attr, OpenFileRef)> {
    let odd = || Error::new(ErrorKind::Protocol, "ask", "made, but what?");
    Ok((attr.ok_or_else(odd)?, file))
}

fn bytes(name: Name<'_>) -> Bytes {
    name.as_bytes().into()
}

fn xattr(name: XattrName<'_>) -> Bytes {
    name.as_bytes().into()
}

impl FileSystem for RemoteFs {
    fn statfs(&self) -> BoxFuture<'_, Result<StatFs>> {
        Box::pin(async move {
            match self.0.ask(&Call::StatFs())? {
                Answer::StatFs(figures) => Ok(figures),
                other => odd(&other),
            }
        })
    }

    fn lookup<'a>(&'a self, dir: Ino, name: Name<'a>) -> BoxFuture<'a, Result<Attr>> {
        self.attr(Call::Lookup(dir, bytes(name)))
    }

    fn parent(&self, dir: Ino) -> BoxFuture<'_, Result<Ino>> {
        Box::pin(async move {
            match self.0.ask(&Call::Parent(dir))? {
                Answer::Inode(ino) => Ok(ino),
                other => odd(&other),
            }
        })
    }

    fn getattr(&self, ino: Ino) -> BoxFuture<'_, Result<Attr>> {
        self.attr(Call::Getattr(ino))
    }

    fn setattr<'a>(&'a self, ino: Ino, set: &'a SetAttr) -> BoxFuture<'a, Result<Attr>> {
        self.attr(Call::Setattr(ino, *set))
    }

    fn mknod<'a>(
        &'a self,
        dir: Ino,
        name: Name<'a>,
        new: &'a NewInode,
    ) -> BoxFuture<'a, Result<Attr>> {
        self.attr(Call::Mknod(dir, bytes(name), *new))
    }

    fn mkdir<'a>(
        &'a self,
        dir: Ino,
        name: Name<'a>,
        new: &'a NewInode,
    ) -> BoxFuture<'a, Result<Attr>> {
        self.attr(Call::Mkdir(dir, bytes(name), *new))
    }

    fn symlink<'a>(
        &'a self,
        dir: Ino,
        name: Name<'a>,
        target: &'a [u8],
        new: &'a NewInode,
    ) -> BoxFuture<'a, Result<Attr>> {
        self.attr(Call::Symlink(dir, bytes(name), target.into(), *new))
    }

    fn create<'a>(
        &'a self,
        dir: Ino,
        name: Name<'a>,
        new: &'a NewInode,
        flags: OpenFlags,
    ) -> BoxFuture<'a, Result<(Attr, OpenFileRef)>> {
        Box::pin(async move {
            made(self.opened(&Call::Create(dir, bytes(name), *new, flags), None, flags)?)
        })
    }

    fn tmpfile<'a>(
        &'a self,
        dir: Ino,
        new: &'a NewInode,
        flags: OpenFlags,
    ) -> BoxFuture<'a, Result<(Attr, OpenFileRef)>> {
        Box::pin(async move { made(self.opened(&Call::Tmpfile(dir, *new, flags), None, flags)?) })
    }

    fn link<'a>(&'a self, ino: Ino, dir: Ino, name: Name<'a>) -> BoxFuture<'a, Result<Attr>> {
        self.attr(Call::Link(ino, dir, bytes(name)))
    }

    fn unlink<'a>(&'a self, dir: Ino, name: Name<'a>) -> BoxFuture<'a, Result<()>> {
        self.unit(Call::Unlink(dir, bytes(name)))
    }

    fn rmdir<'a>(&'a self, dir: Ino, name: Name<'a>) -> BoxFuture<'a, Result<()>> {
        self.unit(Call::Rmdir(dir, bytes(name)))
    }

    fn rename<'a>(
        &'a self,
        dir: Ino,
        name: Name<'a>,
        new_dir: Ino,
        new_name: Name<'a>,
        flags: RenameFlags,
    ) -> BoxFuture<'a, Result<()>> {
        self.unit(Call::Rename(dir, bytes(name), new_dir, bytes(new_name), flags))
    }

    fn readlink(&self, ino: Ino) -> BoxFuture<'_, Result<Vec<u8>>> {
        self.bytes(Call::Readlink(ino))
    }

    fn readdir(&self, dir: Ino, after: Cookie, max: usize) -> BoxFuture<'_, Result<Vec<DirEntry>>> {
        Box::pin(async move {
            let max = max.clamp(1, ENTRIES_MAX as usize) as u32;
            match self.0.ask(&Call::Readdir(dir, after, max))? {
                Answer::Entries(entries) => Ok(entries),
                other => odd(&other),
            }
        })
    }

    fn getxattr<'a>(&'a self, ino: Ino, name: XattrName<'a>) -> BoxFuture<'a, Result<Vec<u8>>> {
        self.bytes(Call::Getxattr(ino, xattr(name)))
    }

    fn setxattr<'a>(
        &'a self,
        ino: Ino,
        name: XattrName<'a>,
        value: &'a [u8],
        how: SetXattr,
    ) -> BoxFuture<'a, Result<()>> {
        self.unit(Call::Setxattr(ino, xattr(name), value.into(), how))
    }

    fn listxattr(&self, ino: Ino) -> BoxFuture<'_, Result<Vec<Box<[u8]>>>> {
        Box::pin(async move {
            match self.0.ask(&Call::Listxattr(ino))? {
                Answer::Names(names) => Ok(names),
                other => odd(&other),
            }
        })
    }

    fn removexattr<'a>(&'a self, ino: Ino, name: XattrName<'a>) -> BoxFuture<'a, Result<()>> {
        self.unit(Call::Removexattr(ino, xattr(name)))
    }

    fn open(&self, ino: Ino, flags: OpenFlags) -> BoxFuture<'_, Result<OpenFileRef>> {
        Box::pin(async move {
            self.opened(&Call::Open(ino, flags), Some(ino), flags).map(|(_, file)| file)
        })
    }

    fn syncfs(&self) -> BoxFuture<'_, Result<()>> {
        self.unit(Call::SyncFs())
    }
}

/// An open file of the other process, released when this is dropped.
struct RemoteFile {
    wire: Arc<Wire>,
    number: u32,
    ino: Ino,
    flags: OpenFlags,
}

impl Drop for RemoteFile {
    fn drop(&mut self) {
        // An error says that the connection has ended, and with it the open file.
        let _released = self.wire.ask(&Call::Release(self.number));
    }
}

impl RemoteFile {
    fn read_some(&self, offset: u64, dst: &mut [u8], flags: IoFlags) -> Result<usize> {
        let mut total = 0;
        for piece in dst.chunks_mut(DATA_MAX) {
            let at = offset.saturating_add(total as u64);
            let call = Call::Read(self.number, at, piece.len() as u32, flags);
            let bytes = match self.wire.ask(&call)? {
                Answer::Bytes(bytes) if bytes.len() <= piece.len() => bytes,
                other => return odd(&other),
            };
            piece[..bytes.len()].copy_from_slice(&bytes);
            total += bytes.len();
            if bytes.len() < piece.len() {
                break;
            }
        }
        Ok(total)
    }

    fn write_some(
        &self,
        offset: u64,
        src: &[u8],
        flags: IoFlags,
        privileges: Privileges,
    ) -> Result<Wrote> {
        if src.len() > DATA_MAX && flags.contains(IoFlags::APPEND) {
            let text = format!("one append of {} bytes, at most {DATA_MAX} here", src.len());
            return Err(Error::new(ErrorKind::Unsupported, "write", text));
        }
        let mut wrote: Option<Wrote> = None;
        // An empty write is sent, too.
        let pieces = src.chunks(DATA_MAX).chain(src.is_empty().then_some(src));
        for piece in pieces {
            let done = wrote.map_or(0, |wrote| wrote.len);
            let at = offset.saturating_add(done as u64);
            let call = Call::Write(self.number, at, flags, privileges, piece.into());
            let (first, len) = match self.wire.ask(&call) {
                Ok(Answer::Wrote(first, len)) if len as usize <= piece.len() => {
                    (first, len as usize)
                }
                Ok(other) => return odd(&other),
                // The pieces that were written before count.
                Err(_) if done > 0 => break,
                Err(error) => return Err(error),
            };
            let offset = wrote.map_or(first, |wrote| wrote.offset);
            wrote = Some(Wrote { offset, len: done + len });
            if len < piece.len() {
                break;
            }
        }
        Ok(wrote.unwrap_or(Wrote { offset, len: 0 }))
    }
}

impl OpenFile for RemoteFile {
    fn ino(&self) -> Ino {
        self.ino
    }

    fn flags(&self) -> OpenFlags {
        self.flags
    }

    fn read(&self, offset: u64, mut buf: AlignedBuf, flags: IoFlags) -> BoxFuture<'_, ReadResult> {
        Box::pin(async move {
            let read = self.read_some(offset, &mut buf, flags);
            (buf, read)
        })
    }

    fn read_slice(&self, offset: u64, dst: &mut [u8], flags: IoFlags) -> Result<usize> {
        self.read_some(offset, dst, flags)
    }

    fn write(
        &self,
        offset: u64,
        buf: AlignedBuf,
        flags: IoFlags,
        privileges: Privileges,
    ) -> BoxFuture<'_, WriteResult> {
        Box::pin(async move {
            let wrote = self.write_some(offset, &buf, flags, privileges);
            (buf, wrote)
        })
    }

    fn write_slice(
        &self,
        offset: u64,
        src: &[u8],
        flags: IoFlags,
        privileges: Privileges,
    ) -> Result<Wrote> {
        self.write_some(offset, src, flags, privileges)
    }

    fn fallocate(
        &self,
        how: Fallocate,
        offset: u64,
        len: u64,
        privileges: Privileges,
    ) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            done(self.wire.ask(&Call::Fallocate(self.number, how, offset, len, privileges)))
        })
    }

    fn seek(&self, what: Seek, offset: u64) -> BoxFuture<'_, Result<u64>> {
        Box::pin(async move {
            match self.wire.ask(&Call::Seek(self.number, what, offset))? {
                Answer::Offset(offset) => Ok(offset),
                other => odd(&other),
            }
        })
    }

    fn sync(&self, data_only: bool) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move { done(self.wire.ask(&Call::Sync(self.number, data_only))) })
    }
}
