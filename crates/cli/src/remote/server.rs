//! The server of a session, in the process that has the volume open: carries out calls one after
//! the other.
//!
//! No locks. A session runs on the thread of its connection and blocks there.

use super::proto::{Answer, Call, DATA_MAX, ENTRIES_MAX, FRAME_MAX, Told};
use forebay_base::buf::AlignedBuf;
use forebay_base::task::block_on;
use forebay_base::{Error, ErrorKind, IoFlags, Result};
use forebay_vfs::{FileSystem, Name, OpenFileRef, Privileges, XattrName};
use std::collections::HashMap;
use std::io::{Read, Write};

/// Most files that a session may have open (remote.R1).
pub const HANDLES_MAX: usize = 256;

/// Serves a session until the client goes, or breaks the protocol (remote.R2, remote.R3).
pub fn serve(
    fs: &dyn FileSystem,
    mut reader: impl Read,
    mut writer: impl Write,
) -> std::io::Result<()> {
    let mut session = Session { fs, files: HashMap::new(), next: 1 };
    let mut frame = Vec::new();
    loop {
        let mut length = [0; 4];
        match reader.read_exact(&mut length) {
            Err(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(()),
            read => read?,
        }
        let length = u32::from_le_bytes(length) as usize;
        if length > FRAME_MAX {
            let text = format!("a frame of {length} bytes, at most {FRAME_MAX}");
            return send(&mut writer, &broken(Error::new(ErrorKind::Protocol, "ask", text)));
        }
        frame.resize(length, 0);
        reader.read_exact(&mut frame)?;
        let call = match Call::decode(&frame) {
            Ok(call) => call,
            Err(error) => {
                let text = error.to_string();
                return send(&mut writer, &broken(Error::new(ErrorKind::Protocol, "ask", text)));
            }
        };
        let answer = session.carry_out(call).unwrap_or_else(broken);
        send(&mut writer, &answer)?;
    }
}

fn broken(error: Error) -> Answer {
    Answer::Failed(Told(error))
}

fn send(stream: &mut impl Write, answer: &Answer) -> std::io::Result<()> {
    let body = answer.encode();
    let mut frame = Vec::with_capacity(body.len() + 4);
    frame.extend((body.len() as u32).to_le_bytes());
    frame.extend(body);
    stream.write_all(&frame)
}

struct Session<'a> {
    fs: &'a dyn FileSystem,
    files: HashMap<u32, OpenFileRef>,
    next: u32,
}

impl Session<'_> {
    fn carry_out(&mut self, call: Call) -> Result<Answer> {
        match call {
            Call::Read(..)
            | Call::Write(..)
            | Call::Fallocate(..)
            | Call::Seek(..)
            | Call::Sync(..)
            | Call::Release(..) => self.of_file(call),
            Call::Create(..) | Call::Tmpfile(..) | Call::Open(..) => self.opening(call),
            _ => self.of_names(call),
        }
    }

    fn of_names(&self, call: Call) -> Result<Answer> {
        let fs = self.fs;
        block_on(async {
            Ok(match &call {
                Call::StatFs() => Answer::StatFs(fs.statfs().await?),
                Call::Lookup(dir, name) => Answer::Attr(fs.lookup(*dir, Name::new(name)?).await?),
                Call::Parent(dir) => Answer::Inode(fs.parent(*dir).await?),
                Call::Getattr(ino) => Answer::Attr(fs.getattr(*ino).await?),
                Call::Setattr(ino, set) => Answer::Attr(fs.setattr(*ino, set).await?),
                Call::Mknod(dir, name, new) => {
                    Answer::Attr(fs.mknod(*dir, Name::new(name)?, new).await?)
                }
                Call::Mkdir(dir, name, new) => {
                    Answer::Attr(fs.mkdir(*dir, Name::new(name)?, new).await?)
                }
                Call::Symlink(dir, name, target, new) => {
                    Answer::Attr(fs.symlink(*dir, Name::new(name)?, target, new).await?)
                }
                Call::Link(ino, dir, name) => {
                    Answer::Attr(fs.link(*ino, *dir, Name::new(name)?).await?)
                }
                Call::Unlink(dir, name) => done(fs.unlink(*dir, Name::new(name)?).await)?,
                Call::Rmdir(dir, name) => done(fs.rmdir(*dir, Name::new(name)?).await)?,
                Call::Rename(dir, old, new_dir, new, flags) => {
                    let (old, new) = (Name::new(old)?, Name::new(new)?);
                    done(fs.rename(*dir, old, *new_dir, new, *flags).await)?
                }
                Call::Readlink(ino) => Answer::Bytes(fs.readlink(*ino).await?.into()),
                Call::Readdir(dir, after, max) => {
                    let max = (*max).clamp(1, ENTRIES_MAX) as usize;
                    Answer::Entries(fs.readdir(*dir, *after, max).await?)
                }
                Call::Getxattr(ino, name) => {
                    Answer::Bytes(fs.getxattr(*ino, XattrName::new(name)?).await?.into())
                }
                Call::Setxattr(ino, name, value, how) => {
                    done(fs.setxattr(*ino, XattrName::new(name)?, value, *how).await)?
                }
                Call::Listxattr(ino) => Answer::Names(fs.listxattr(*ino).await?),
                Call::Removexattr(ino, name) => {
                    done(fs.removexattr(*ino, XattrName::new(name)?).await)?
                }
                Call::SyncFs() => done(fs.syncfs().await)?,
                other => {
                    let text = format!("{other:?}");
                    return Err(Error::new(ErrorKind::Protocol, "ask", text));
                }
            })
        })
    }

    fn opening(&mut self, call: Call) -> Result<Answer> {
        if self.files.len() >= HANDLES_MAX {
            let text = format!("{HANDLES_MAX} files are open");
            return Err(Error::new(ErrorKind::NoMemory, "open", text));
        }
        let fs = self.fs;
        let (attr, file) = match &call {
            Call::Create(dir, name, new, flags) => {
                let made = block_on(fs.create(*dir, Name::new(name)?, new, *flags))?;
                (Some(made.0), made.1)
            }
            Call::Tmpfile(dir, new, flags) => {
                let made = block_on(fs.tmpfile(*dir, new, *flags))?;
                (Some(made.0), made.1)
            }
            Call::Open(ino, flags) => (None, block_on(fs.open(*ino, *flags))?),
            other => {
                return Err(Error::new(ErrorKind::Protocol, "ask", format!("{other:?}")));
            }
        };
        let number = self.next;
        self.next = self.next.wrapping_add(1).max(1);
        self.files.insert(number, file);
        Ok(Answer::Opened(number, attr))
    }

    fn file(&self, number: u32) -> Result<&OpenFileRef> {
        let none = || Error::new(ErrorKind::BadHandle, "ask", format!("no open file {number}"));
        self.files.get(&number).ok_or_else(none)
    }

    fn of_file(&mut self, call: Call) -> Result<Answer> {
        match call {
            Call::Read(number, offset, len, flags) => {
                let file = self.file(number)?;
                let mut bytes = vec![0; (len as usize).min(DATA_MAX)];
                let read = file.read_slice(offset, &mut bytes, flags)?;
                bytes.truncate(read);
                Ok(Answer::Bytes(bytes.into()))
            }
            Call::Write(number, offset, flags, privileges, bytes) => {
                self.write(number, offset, flags, privileges, &bytes)
            }
            Call::Fallocate(number, how, offset, len, privileges) => {
                done(block_on(self.file(number)?.fallocate(how, offset, len, privileges)))
            }
            Call::Seek(number, what, offset) => {
                Ok(Answer::Offset(block_on(self.file(number)?.seek(what, offset))?))
            }
            Call::Sync(number, data_only) => done(block_on(self.file(number)?.sync(data_only))),
            Call::Release(number) => {
                self.file(number)?;
                self.files.remove(&number);
                Ok(Answer::Done())
            }
            other => Err(Error::new(ErrorKind::Protocol, "ask", format!("{other:?}"))),
        }
    }

    fn write(
        &self,
        number: u32,
        offset: u64,
        flags: IoFlags,
        privileges: Privileges,
        bytes: &[u8],
    ) -> Result<Answer> {
        let file = self.file(number)?;
        let wrote = match flags.contains(IoFlags::DIRECT) {
            // Direct I/O needs an aligned buffer, which the frame is not.
            true => block_on(file.write(offset, AlignedBuf::copy_of(bytes), flags, privileges)).1?,
            false => file.write_slice(offset, bytes, flags, privileges)?,
        };
        Ok(Answer::Wrote(wrote.offset, wrote.len as u32))
    }
}

fn done(result: Result<()>) -> Result<Answer> {
    result.map(|()| Answer::Done())
}
