//! Forebay: a page cache that its owner sizes and steers, over files and disk images.
//!
//! ```
//! use forebay::{Cache, CacheConfig, IoFlags, RawOptions};
//! # fn main() -> forebay::Result<()> {
//! # let dir = std::env::temp_dir().join(format!("forebay-doc-{}", std::process::id()));
//! # std::fs::create_dir_all(&dir).unwrap();
//! # let path = dir.join("disk.img");
//! let cache = Cache::new(CacheConfig::with_budget(16 << 20))?;
//! let options = RawOptions { create_size: Some(8 << 20), ..RawOptions::default() };
//! let file = cache.open_raw(&path, &options)?;
//! file.write_at(b"hello", 4096)?;
//! file.sync_data()?;
//! let mut back = [0; 5];
//! file.read_at_with(&mut back, 4096, IoFlags::UNCACHED)?;
//! assert_eq!(&back, b"hello");
//! # drop(file);
//! # std::fs::remove_dir_all(&dir).unwrap();
//! # Ok(())
//! # }
//! ```
//!
//! A volume is a file system of Forebay's own in one image, with checksums and a log:
//!
//! ```
//! use forebay::{Cache, CacheConfig, CreateVolume, IoFlags, Volume, VolumeOptions};
//! # fn main() -> forebay::Result<()> {
//! # let dir = std::env::temp_dir().join(format!("forebay-doc-volume-{}", std::process::id()));
//! # std::fs::create_dir_all(&dir).unwrap();
//! # let path = dir.join("data.fby");
//! let cache = Cache::new(CacheConfig::with_budget(16 << 20))?;
//! Volume::create(&path, &CreateVolume { size: Some(16 << 20), ..CreateVolume::default() })?;
//! let volume = cache.open_volume(&path, &VolumeOptions::default())?;
//! volume.create_dir("/logs")?;
//! let file = volume.create_file("/logs/today")?;
//! file.append(b"hello\n", IoFlags::DSYNC)?;
//! assert_eq!(volume.read("/logs/today")?, b"hello\n");
//! drop(file);
//! volume.close()?;
//! # std::fs::remove_dir_all(&dir).unwrap();
//! # Ok(())
//! # }
//! ```
//!
//! The calls block the calling thread and may be made from any number of threads; exports
//! ([`File::export`]) serve event loops.
#![forbid(unsafe_code)]

mod cache;
mod export;
mod file;
mod memory;
mod picture;
mod registry;
mod untold;
mod volume;

pub use cache::{Cache, CacheConfig, RawOptions};
pub use export::{ExportMode, LiveMode};
pub use file::{File, Residency};
pub use forebay_base::{Error, ErrorKind, IoFlags, Result};
pub use forebay_block::{Aio, DirectIo};
pub use forebay_cache::latency;
pub use forebay_cache::picture::Bytes;
pub use forebay_cache::strategy::{DirtyTracking, StablePages, StableStrategy, UncachedStrategy};
pub use forebay_cache::{Row, RowSource, Stats};
pub use forebay_vfs as vfs;
pub use picture::{CELLS, FILES, FilePicture, Picture, StreamPicture};
pub use volume::{
    AllocMode, AllocStats, CleanStats, CreateVolume, FileExtent, Finding, FindingKind,
    FsckProgress, FsckReport, OpenOptions, ReadDir, Volume, VolumeFile, VolumeInfo, VolumeOptions,
    segment_for,
};
