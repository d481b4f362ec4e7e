//! `copy_file_range`: copies bytes by reading and writing in this process, so that the data does
//! not pass through the front end, and holes stay holes. The files share no storage.
//!
//! No locks. The copy is not atomic: a concurrent write to either file may appear in part.

use crate::fs::{FileSystem, OpenFile};
use crate::types::{Fallocate, FileKind, OpenFlags, Privileges, Seek, check_range};
use forebay_base::buf::AlignedBuf;
use forebay_base::{Error, ErrorKind, IoFlags, Result};

/// Bytes copied at a time.
const PIECE_BYTES: u64 = 1 << 20;
/// Most memory of a copy, bytes: a piece, and for a moment a second buffer of the same size.
pub const MEMORY_BYTES: u64 = 2 * PIECE_BYTES;

/// Copies up to `len` bytes between two open files of `fs`; returns the number of copied bytes.
/// That is smaller at the present end of `from`, or if an error follows the first piece.
/// `IsDirectory` and `InvalidInput` for an inode without content. `BadHandle` if `from` is not open
/// for reading or `to` not for writing. `InvalidInput` if the two ranges overlap in one file.
pub async fn copy_range(
    fs: &dyn FileSystem,
    (from, from_offset): (&dyn OpenFile, u64),
    (to, to_offset): (&dyn OpenFile, u64),
    len: u64,
    flags: IoFlags,
    privileges: Privileges,
) -> Result<u64> {
    check_range("copy", from_offset, len)?;
    check_range("copy", to_offset, len)?;
    let mut end = None;
    for ino in [from.ino(), to.ino()] {
        let attr = fs.getattr(ino).await?;
        match attr.kind {
            FileKind::File => drop(end.get_or_insert(attr.size)),
            FileKind::Directory => {
                return Err(Error::new(ErrorKind::IsDirectory, "copy", format!("{ino:?}")));
            }
            kind => {
                return Err(Error::new(ErrorKind::InvalidInput, "copy", format!("a {kind:?}")));
            }
        }
    }
    let handles = (OpenFlags::READ, OpenFlags::WRITE);
    if !from.flags().contains(handles.0) || !to.flags().contains(handles.1) {
        return Err(Error::new(ErrorKind::BadHandle, "copy", "open to read and to write"));
    }
    // A copy within one file does not read bytes that it has appended itself.
    let len = len.min(end.unwrap_or(0).saturating_sub(from_offset));
    if from.ino() == to.ino() && from_offset.abs_diff(to_offset) < len {
        return Err(Error::new(ErrorKind::InvalidInput, "copy", "the ranges overlap"));
    }
    let copy = Copy { fs, from, to, from_offset, to_offset, flags, privileges };
    let mut done = 0;
    while done < len {
        match copy.step(done, len - done).await {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(e) if done == 0 => return Err(e),
            Err(_) => break,
        }
    }
    Ok(done)
}

struct Copy<'a> {
    fs: &'a dyn FileSystem,
    from: &'a dyn OpenFile,
    to: &'a dyn OpenFile,
    from_offset: u64,
    to_offset: u64,
    flags: IoFlags,
    privileges: Privileges,
}

impl Copy<'_> {
    /// Copies a hole or a piece of data at `skip`; returns its length, 0 at the end.
    async fn step(&self, skip: u64, left: u64) -> Result<u64> {
        let (at, to) = (self.from_offset + skip, self.to_offset + skip);
        let size = self.fs.getattr(self.from.ino()).await?.size;
        let left = left.min(size.saturating_sub(at));
        if left == 0 {
            return Ok(0);
        }
        let data = match self.from.seek(Seek::Data, at).await {
            Err(e) if e.kind() == ErrorKind::PastEnd => size,
            data => data?,
        };
        if data > at {
            let len = (data - at).min(left);
            self.zero(to, len).await?;
            return Ok(len);
        }
        let buf = AlignedBuf::new(left.min(PIECE_BYTES) as usize);
        let (buf, read) = self.from.read(at, buf, self.flags - IoFlags::WRITE_ONLY).await;
        let read = read?;
        if read == 0 {
            return Ok(0);
        }
        let buf = if read == buf.len() { buf } else { AlignedBuf::copy_of(&buf[..read]) };
        let flags = self.flags - IoFlags::APPEND;
        let (_, wrote) = self.to.write(to, buf, flags, self.privileges).await;
        Ok(wrote?.len as u64)
    }

    /// Makes a hole in the target, extending it if necessary.
    async fn zero(&self, offset: u64, len: u64) -> Result<()> {
        self.to.fallocate(Fallocate::PunchHole, offset, len, self.privileges).await?;
        if self.fs.getattr(self.to.ino()).await?.size >= offset + len {
            return Ok(());
        }
        // Zeroes the last byte only, which extends the file: concurrent writes beyond it are kept.
        let how = Fallocate::ZeroRange { keep_size: false };
        self.to.fallocate(how, offset + len - 1, 1, self.privileges).await
    }
}
