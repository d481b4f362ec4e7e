//! What a file system in memory is like: its clock, its space, and its limits.
//!
//! No locks.

use super::dir::HASH_BITS_MAX;
use forebay_vfs::clock::{Clock, SystemClock};
use forebay_vfs::types::LINK_MAX;
use std::fmt;
use std::sync::Arc;

/// What a [`super::MemFs`] is like.
#[derive(Clone)]
pub struct MemOptions {
    /// What stamps inodes.
    pub clock: Arc<dyn Clock>,
    /// Reading leaves no trace.
    pub noatime: bool,
    /// Bytes of content.
    pub capacity_bytes: u64,
    /// Inodes, open ones without a name included.
    pub inodes_max: u64,
    /// Links of one inode.
    pub links_max: u32,
    /// Bits of a name's hash in a cookie, at most 46. With few bits many names share a hash.
    pub cookie_bits: u32,
}

impl Default for MemOptions {
    fn default() -> Self {
        Self {
            clock: Arc::new(SystemClock),
            noatime: false,
            capacity_bytes: 1 << 40,
            inodes_max: 1 << 32,
            links_max: LINK_MAX,
            cookie_bits: HASH_BITS_MAX,
        }
    }
}

impl fmt::Debug for MemOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemOptions")
            .field("capacity_bytes", &self.capacity_bytes)
            .field("inodes_max", &self.inodes_max)
            .field("links_max", &self.links_max)
            .field("cookie_bits", &self.cookie_bits)
            .finish_non_exhaustive()
    }
}
