//! Forebay: a page cache that its owner sizes and steers, over disk images and volumes of its
//! own.
//!
//! # Quick start
//!
//! A [`Cache`] has one budget for all its memory. [`OpenOptions`] opens a raw image on it; a
//! [`File`] reads and writes at offsets, and each request says by [`IoFlags`] how it uses the
//! cache:
//!
//! ```
//! use forebay::{Cache, CacheConfig, IoFlags, OpenOptions};
//! # fn main() -> forebay::Result<()> {
//! # let path = std::env::temp_dir().join(format!("forebay-doc-{}.img", std::process::id()));
//! let cache = Cache::new(CacheConfig::with_budget(16 << 20))?;
//! let mut options = OpenOptions::read_write();
//! let file = options.create(true).create_size(8 << 20).open(&cache, &path)?;
//! file.write_all_at(b"hello", 4096)?; // into the cache, written back later
//! file.sync_data()?; // durable
//! let mut back = [0; 5];
//! file.read_exact_at_with(&mut back, 4096, IoFlags::UNCACHED)?; // leaves nothing behind
//! assert_eq!(&back, b"hello");
//! file.close()?;
//! # std::fs::remove_file(&path).unwrap();
//! # Ok(())
//! # }
//! ```
//!
//! # Volumes
//!
//! A [`Volume`] is a file system of Forebay's own in one image, with checksums and a log. Its
//! paths are used as those of [`std::fs`], its files are the same [`File`]:
//!
//! ```
//! use forebay::{Cache, CacheConfig, CreateVolume, IoFlags, OpenOptions, Volume, VolumeOptions};
//! # fn main() -> forebay::Result<()> {
//! # let path = std::env::temp_dir().join(format!("forebay-doc-{}.fby", std::process::id()));
//! let cache = Cache::new(CacheConfig::with_budget(16 << 20))?;
//! Volume::create(&path, &CreateVolume::default().size(16 << 20))?;
//! let volume = cache.open_volume(&path, &VolumeOptions::default())?;
//! volume.create_dir("/logs")?;
//! let log = OpenOptions::new().append(true).create(true).open_in(&volume, "/logs/today")?;
//! log.append(b"hello\n", IoFlags::DSYNC)?;
//! assert_eq!(volume.read("/logs/today")?, b"hello\n");
//! drop(log);
//! volume.close()?;
//! # std::fs::remove_file(&path).unwrap();
//! # Ok(())
//! # }
//! ```
//!
//! # What to know
//!
//! - **Durable**: a write is complete once the cache has it. [`File::sync_data`] makes it durable,
//!   and so does a write with [`IoFlags::DSYNC`]. After a failed sync no later one of the same
//!   opener succeeds while accepted bytes are not durable. [`File::close`] reports an error that
//!   dropping a file can only log.
//! - **One owner**: an open image is locked against other processes and caches. In one cache it
//!   can be opened any number of times.
//! - **Reads without a copy**: [`File::pin`] gives the cached bytes themselves. They stay as they
//!   are whatever is written meanwhile, and hold an eighth of the cache at most.
//! - **What is cached**: [`File::residency`] says it for a range. A read at the start of a file
//!   begins a stream. Its read-ahead goes on after the read has returned.
//! - **Threads and futures**: calls block the calling thread and may be made from any number of
//!   threads. Those named `_async` are futures on owned buffers, for any executor.
//! - **Errors**: [`Error`] has a kind to match, the operation, the path and the range. As a
//!   [`std::io::Error`] it keeps its kind, and [`Error::errno_of`] gives the errno.
//! - **Servers**: [`File::export`] serves a file to event loops, [`Volume::file_system`] a
//!   volume.
//!
//! The folder `examples` has a program for each of these.
#![forbid(unsafe_code)]

/// A setter for each field of a struct of options, to be called in a chain.
macro_rules! setters {
    ($of:ident: $($name:ident: $kind:ty $(=> $wrap:ident)?,)*) => {
        impl $of {
            $(
                #[doc = concat!("Sets [`", stringify!($of), "::", stringify!($name), "`].")]
                #[must_use]
                pub fn $name(mut self, $name: $kind) -> Self {
                    self.$name = $($wrap)?($name);
                    self
                }
            )*
        }
    };
}

mod cache;
mod export;
mod file;
mod files;
mod map;
mod memory;
mod open_volumes;
mod registry;
mod snapshot;
mod unreported;
mod volume;

pub use cache::{Cache, CacheConfig};
pub use export::{ExportMode, LiveMode};
pub use file::{File, OpenOptions, Stream};
pub use forebay_base::buf::AlignedBuf;
pub use forebay_base::task::{BoxFuture, LocalQueue, block_on};
pub use forebay_base::world::WorldRef;
pub use forebay_base::{Error, ErrorKind, IoFlags, Result};
pub use forebay_block::{Aio, BlockDevice, DeviceRef, DirectIo, FileIdentity};
pub use forebay_cache::latency;
pub use forebay_cache::snapshot::Bytes;
pub use forebay_cache::strategy::{DirtyTracking, StablePages, StableStrategy, UncachedStrategy};
pub use forebay_cache::{Described, Pinned, Row, RowSource, Stats};
pub use forebay_vfs as vfs;
pub use map::Residency;
pub use snapshot::{CELLS, FILES, FileSnapshot, Snapshot, StreamSnapshot};
pub use volume::{
    AllocMode, AllocStats, CleanStats, CreateVolume, FileExtent, Finding, FindingKind,
    FsckProgress, FsckReport, HeldBack, LostContent, LostFile, ReadDir, SpaceStats, Volume,
    VolumeInfo, VolumeOptions, segment_for,
};
