//! Our own ioctls on open files of a mount: what requests on this opening do with the cache.
//!
//! No locks.

use forebay_base::IoFlags;

/// Sets the mode, a `u32`: `_IOW(0xfb, 1, u32)`.
pub const SET_MODE: u32 = 1 << 30 | 4 << 16 | 0xfb << 8 | 1;
/// Gives the mode, a `u32`: `_IOR(0xfb, 2, u32)`.
pub const GET_MODE: u32 = 2 << 30 | 4 << 16 | 0xfb << 8 | 2;

/// As the mount has it.
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
