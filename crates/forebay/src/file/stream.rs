//! A file with a position, for code that wants [`std::io`].

use super::File;
use forebay_base::{Error, ErrorKind, IoFlags};
use std::io::{self, Read, Seek, SeekFrom, Write};

/// A reader and writer of a [`File`] with a position of its own. [`File::stream`] makes it; a
/// clone starts where the original is. Errors keep their kind, and [`Error::errno_of`] gives their
/// errno.
///
/// `flush` makes nothing durable: [`File::sync_data`] does.
#[derive(Debug, Clone)]
pub struct Stream {
    file: File,
    position: u64,
}

impl Stream {
    pub(super) fn new(file: File) -> Self {
        Self { file, position: 0 }
    }

    /// The file.
    pub fn file(&self) -> &File {
        &self.file
    }
}

impl Read for Stream {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read_at(buf, self.position)?;
        self.position += read as u64;
        Ok(read)
    }
}

impl Write for Stream {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let (start, wrote) = match self.file.opener.write_flags.contains(IoFlags::APPEND) {
            true => (self.file.append(buf, IoFlags::empty())?, buf.len()),
            false => (self.position, self.file.write_at(buf, self.position)?),
        };
        self.position = start + wrote as u64;
        Ok(wrote)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for Stream {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let target = match to {
            SeekFrom::Start(offset) => Some(offset),
            SeekFrom::End(by) => self.file.size()?.checked_add_signed(by),
            SeekFrom::Current(by) => self.position.checked_add_signed(by),
        };
        let outside = || Error::new(ErrorKind::InvalidInput, "seek", "before the file's start");
        self.position = target.filter(|&to| to < 1 << 63).ok_or_else(outside)?;
        Ok(self.position)
    }
}
