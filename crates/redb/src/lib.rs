//! Example: redb, an embedded database in Rust, on a file of Forebay.
//!
//! [`Backend`] serves a database from any [`File`]: one of the host or one of a volume. The pages
//! of redb then share the budget of the cache with all other files.
//!
//! ```
//! use forebay::{Cache, CacheConfig, OpenOptions};
//! use forebay_redb::Backend;
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let path = std::env::temp_dir().join(format!("forebay-redb-doc-{}", std::process::id()));
//! let cache = Cache::new(CacheConfig::with_budget(32 << 20))?;
//! let file = OpenOptions::read_write().create(true).open(&cache, &path)?;
//! let db = redb::Database::builder().create_with_backend(Backend::new(file))?;
//! let write = db.begin_write()?;
//! write.open_table(redb::TableDefinition::<&str, u64>::new("t"))?.insert("a", 1)?;
//! write.commit()?;
//! # drop(db);
//! # std::fs::remove_file(&path)?;
//! # Ok(())
//! # }
//! ```
//!
//! Invariants: durable: a commit of redb with `Durability::Immediate` returns after
//! [`File::sync_data`] has returned. closed: after `close` no call reaches the file, and its lock
//! is released.
//!
//! Locks: one read-write lock over the file; only `close` takes it for writing.

#![forbid(unsafe_code)]

use forebay::File;
use redb::StorageBackend;
use std::io;
use std::sync::{PoisonError, RwLock};

/// A file that a database of redb is stored in.
///
/// redb's locks on ranges of bytes are not supported, so redb opens such a database for one process
/// only. Forebay's own lock of a host file, or of the image of a volume, keeps other processes out.
#[derive(Debug)]
pub struct Backend(RwLock<Option<File>>);

impl Backend {
    /// Serves a database from this file. An empty file becomes a new database. A file that was
    /// opened with `append` is refused by each call: its writes would not go where redb wants them.
    pub fn new(file: File) -> Self {
        Self(RwLock::new(Some(file)))
    }

    fn with_file<T>(&self, operate: impl FnOnce(&File) -> forebay::Result<T>) -> io::Result<T> {
        let file = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let file = file.as_ref().ok_or_else(|| io::Error::other("the back end is closed"))?;
        if file.appends() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "the file was opened to append",
            ));
        }
        operate(file).map_err(io::Error::from)
    }
}

impl StorageBackend for Backend {
    fn len(&self) -> io::Result<u64> {
        self.with_file(File::size)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.with_file(|file| file.read_exact_at(out, offset))
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.with_file(|file| file.set_len(len))
    }

    fn sync_data(&self) -> io::Result<()> {
        self.with_file(File::sync_data)
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.with_file(|file| file.write_all_at(data, offset))
    }

    fn close(&self) -> io::Result<()> {
        let file = self.0.write().unwrap_or_else(PoisonError::into_inner).take();
        file.map_or(Ok(()), |file| file.close().map_err(io::Error::from))
    }
}
