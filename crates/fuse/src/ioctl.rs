//! Our own ioctls on open files of a mount: what requests on this opening do with the cache, or those of
//! whole trees of processes.
//!
//! No locks.

use forebay_base::IoFlags;

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

/// The flags of a mode; none: there is no such mode.
pub fn mode_flags(mode: u32) -> Option<IoFlags> {
    match mode {
        MODE_CACHED => Some(IoFlags::empty()),
        MODE_UNCACHED => Some(IoFlags::UNCACHED),
        MODE_DIRECT => Some(IoFlags::DIRECT | IoFlags::FALLBACK),
        _ => None,
    }
}
