//! The calls of a volume that open a file of it by path, in the manner of [`std::fs`].
//!
//! No locks.

use super::{File, OpenOptions};
use crate::volume::Volume;
use forebay_base::Result;
use std::path::Path;

/// Bytes that [`Volume::read`] reads at a time, at most.
const READ_BYTES: usize = 1 << 20;

impl Volume {
    /// Opens a file to read.
    pub fn open_file(&self, path: impl AsRef<Path>) -> Result<File> {
        OpenOptions::new().read(true).open_in(self, path)
    }

    /// Opens a file to read and write, after creating it or truncating it to 0 bytes.
    pub fn create_file(&self, path: impl AsRef<Path>) -> Result<File> {
        OpenOptions::new().read(true).write(true).create(true).truncate(true).open_in(self, path)
    }

    /// The content of a file.
    pub fn read(&self, path: impl AsRef<Path>) -> Result<Vec<u8>> {
        let file = self.open_file(path)?;
        let mut content = Vec::new();
        loop {
            let done = content.len();
            let size = usize::try_from(file.size()?).unwrap_or(usize::MAX);
            content.resize(done + size.saturating_sub(done).clamp(1, READ_BYTES), 0);
            let read = file.read_at(&mut content[done..], done as u64)?;
            content.truncate(done + read);
            if read == 0 {
                return Ok(content);
            }
        }
    }

    /// Replaces the content of a file by `content`, and creates the file if it is missing. The
    /// result is not durable yet.
    pub fn write(&self, path: impl AsRef<Path>, content: &[u8]) -> Result<()> {
        let path = path.as_ref();
        let file = self.create_file(path)?;
        file.write_all_at(content, 0).map_err(|e| e.with_path(path))
    }
}
