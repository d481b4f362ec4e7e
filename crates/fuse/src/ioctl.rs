//! The ioctls of a mount on open files. They set how the requests of one opening, or of a tree of
//! processes, use the cache. Also the default mode of a mount.
//!
//! No locks.

use forebay_base::IoFlags;
use forebay_base::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;

/// Sets the mode, a `u32`: `_IOW(0xfb, 1, u32)`.
pub const SET_MODE: u32 = 1 << 30 | 4 << 16 | 0xfb << 8 | 1;
/// Returns the mode, a `u32`: `_IOR(0xfb, 2, u32)`.
pub const GET_MODE: u32 = 2 << 30 | 4 << 16 | 0xfb << 8 | 2;
/// On an open directory: sets the mode of all files that the caller and its descendants open from
/// now on, until the directory is closed. `_IOW(0xfb, 3, u32)`. EREMOTE: the serving process cannot
/// see the caller's pid.
pub const SET_TREE_MODE: u32 = 1 << 30 | 4 << 16 | 0xfb << 8 | 3;

/// Requests use the cache.
pub const MODE_CACHED: u32 = 0;
/// Requests have the flag `UNCACHED`.
pub const MODE_UNCACHED: u32 = 1;
/// Requests have the flag `DIRECT`; unaligned ones fall back to `UNCACHED`.
pub const MODE_DIRECT: u32 = 2;

/// The default mode of a mount: of openings whose file has no policy and whose process is in no
/// tree with a mode. It can be changed while the mount is served. Clones share it. Initially
/// [`MODE_CACHED`].
#[derive(Debug, Clone, Default)]
pub struct MountMode(Arc<AtomicU32>);

impl MountMode {
    /// The current mode.
    pub fn get(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }

    /// Sets the mode of later openings. False: there is no such mode.
    pub fn set(&self, mode: u32) -> bool {
        let is_known = mode_flags(mode).is_some();
        if is_known {
            self.0.store(mode, Ordering::Relaxed);
        }
        is_known
    }
}

/// The flags of a mode; `None`: there is no such mode.
pub fn mode_flags(mode: u32) -> Option<IoFlags> {
    match mode {
        MODE_CACHED => Some(IoFlags::empty()),
        MODE_UNCACHED => Some(IoFlags::UNCACHED),
        MODE_DIRECT => Some(IoFlags::DIRECT | IoFlags::FALLBACK),
        _ => None,
    }
}
