//! Flags of one I/O. They travel from the front end to the mapping layer; an open file adds those
//! that it was opened with.

use crate::error::{Error, ErrorKind, Result};

bitflags::bitflags! {
    /// How one read or write is to be done. No flag: buffered, cached, written back later.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct IoFlags: u32 {
        /// Serve cached data, but leave nothing new in the cache, as far as the cache's strategy
        /// for uncached requests does that. `DONTCACHE` is the same flag.
        const UNCACHED = 1 << 0;
        /// Bypass the cache, coherently. Unaligned requests are an error without `FALLBACK`.
        const DIRECT = 1 << 1;
        /// Fail with `WouldBlock` rather than wait; a failed call changes nothing in the file. A
        /// write may be short.
        const NOWAIT = 1 << 2;
        /// Write: start write-out now; the blocks stay cached.
        const START_WRITEBACK = 1 << 3;
        /// Write: return when the data, and the metadata to find it, are durable.
        const DSYNC = 1 << 4;
        /// Write: return when data and all metadata are durable.
        const SYNC = 1 << 5;
        /// Write: at end of file, atomically.
        const APPEND = 1 << 6;
        /// A hint that the caller polls for completion.
        const HIPRI = 1 << 7;
        /// With `DIRECT`: an unaligned request falls back to `UNCACHED` instead of failing.
        /// Set by front ends that must accept any alignment, never by default.
        const FALLBACK = 1 << 8;
        /// The caller is a cache that keeps the bytes itself, such as the kernel's above a mount.
        /// Read: as `UNCACHED`, and cached blocks that only writers and fills of that cache have
        /// used are dropped after the copy. Write: an ordinary cached write, whose blocks are
        /// dropped once they are clean and flushed.
        const HELD_ABOVE = 1 << 9;
    }
}

impl IoFlags {
    /// The name the kernel gave to [`IoFlags::UNCACHED`].
    pub const DONTCACHE: IoFlags = IoFlags::UNCACHED;
    /// Flags that only a write may carry.
    pub const WRITE_ONLY: IoFlags =
        IoFlags::START_WRITEBACK.union(IoFlags::DSYNC).union(IoFlags::SYNC).union(IoFlags::APPEND);

    /// Checks a flag set for one direction. An unknown or unsupported flag is EOPNOTSUPP, never
    /// ignored.
    #[inline]
    pub fn check(self, write: bool) -> Result<()> {
        let refused = if write { Self::empty() } else { Self::WRITE_ONLY };
        if self.bits() & (!Self::all().bits() | refused.bits()) != 0 {
            return Err(self.unsupported());
        }
        Ok(())
    }

    #[cold]
    fn unsupported(self) -> Error {
        let unknown = self.bits() & !Self::all().bits();
        let text = match unknown {
            0 => format!("{:?} on a read", self & Self::WRITE_ONLY),
            _ => format!("unknown flag bits {unknown:#x}"),
        };
        Error::new(ErrorKind::Unsupported, "check flags", text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_unknown_or_misplaced_are_unsupported() {
        let unknown = IoFlags::from_bits_retain(1 << 30);
        assert_eq!(unknown.check(true).unwrap_err().kind(), ErrorKind::Unsupported);
        assert_eq!(IoFlags::DSYNC.check(false).unwrap_err().kind(), ErrorKind::Unsupported);
        assert!(IoFlags::all().check(true).is_ok());
        assert_eq!(IoFlags::DONTCACHE, IoFlags::UNCACHED);
    }
}
