//! Our own ioctls on open files of a mount: what requests on this opening do with the cache, or those of
//! whole trees of processes. And the mode of openings that have none of their own.
//!
//! No locks.

use forebay_base::IoFlags;
use forebay_base::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;

/// Sets the mode, a `u32`: `_IOW(0xfb, 1, u32)`.
pub const SET_MODE: u32 = 1 << 30 | 4 << 16 | 0xfb << 8 | 1;
/// Gives the mode, a `u32`: `_IOR(0xfb, 2, u32)`.
pub const GET_MODE: u32 = 2 << 30 | 4 << 16 | 0xfb << 8 | 2;
/// On an open directory: what the caller and all that it starts open from now on has this mode, until the
/// directory is closed. `_IOW(0xfb, 3, u32)`. EREMOTE: the process of the mount cannot see the caller.
pub const SET_TREE_MODE: u32 = 1 << 30 | 4 << 16 | 0xfb << 8 | 3;

/// Through the cache.
pub const MODE_CACHED: u32 = 0;
/// `UNCACHED`.
pub const MODE_UNCACHED: u32 = 1;
/// `DIRECT`; what is not aligned is `UNCACHED`.
pub const MODE_DIRECT: u32 = 2;

/// The mode of openings whose file has no policy and whose process is in no tree with a mode; it
/// can be changed while the mount is served. Clones share it. At first: through the cache.
#[derive(Debug, Clone, Default)]
pub struct MountMode(Arc<AtomicU32>);

impl MountMode {
    /// The mode now.
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

/// The flags of a mode; none: there is no such mode.
pub fn mode_flags(mode: u32) -> Option<IoFlags> {
    match mode {
        MODE_CACHED => Some(IoFlags::empty()),
        MODE_UNCACHED => Some(IoFlags::UNCACHED),
        MODE_DIRECT => Some(IoFlags::DIRECT | IoFlags::FALLBACK),
        _ => None,
    }
}
