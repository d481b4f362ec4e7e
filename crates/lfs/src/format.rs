//! The stored format of a volume: every structure with its encoder and its decoder, without I/O.
//! `docs/reference/format.md` has the byte diagrams, and the meaning of all numbers.
//!
//! Reading order: [`place`] (segments, places, seals), [`superblock`] with [`features`],
//! [`segment`], [`record`] with [`change`], [`extent`] and [`inode`], then [`node`] with [`key`]
//! and [`item`], [`usage`], [`summary`].
//!
//! Invariants: F1 no input makes a decoder panic, loop for ever, or allocate more than a fixed
//! multiple of the input. F2 a decoded value encodes to the same bytes. F3 a checksum covers every
//! byte of a stored structure, so that every flipped bit is detected. F4 an error names the
//! structure, the field and the offset; its kind is `Corrupt` for invalid data, `Unsupported` for
//! data that is newer than this program. F5 integers are little-endian, except in keys, where they
//! are big-endian: the order of keys is the order of their bytes.
//!
//! No locks, no state.

pub mod change;
pub mod extent;
pub mod features;
pub mod inode;
pub mod item;
pub mod key;
pub mod node;
pub mod place;
pub mod record;
pub mod segment;
pub mod summary;
pub mod superblock;
pub mod usage;

use forebay_base::{Error, ErrorKind};

/// Version of the whole format, in each superblock slot.
pub const FORMAT_VERSION: u32 = 1;
/// Longest name in a directory, bytes.
pub const MAX_NAME_BYTES: usize = 255;
/// Longest value of an extended attribute, bytes (in segments of at least 256 KiB; see
/// `docs/reference/format.md`).
pub const MAX_XATTR_BYTES: usize = 65_536;
/// Longest target of a symbolic link, bytes.
pub const MAX_TARGET_BYTES: usize = 4095;
/// Most blocks of one extent.
pub const MAX_EXTENT_BLOCKS: u16 = 128;
/// The highest data id: summaries of segments store 48 bits of it, and the next value denotes a
/// tree node.
pub const MAX_DATA_ID: u64 = (1 << 48) - 2;
/// Largest file, bytes: offsets are signed 64-bit numbers.
pub const MAX_FILE_BYTES: u64 = i64::MAX as u64;

/// Counters of a valid volume are below this: counting never reaches it. A higher stored value
/// could overflow.
pub(crate) const COUNT_MAX: u64 = 1 << 62;

/// A `Corrupt` error: `what` is invalid because of `why`.
pub(crate) fn corrupt(what: &str, why: impl AsRef<str>) -> Error {
    Error::new(ErrorKind::Corrupt, "decode", format!("{what}: {}", why.as_ref()))
}

/// An `Unsupported` error: `what` is newer than this program.
pub(crate) fn unsupported(what: &str, why: impl AsRef<str>) -> Error {
    Error::new(ErrorKind::Unsupported, "decode", format!("{what}: {}", why.as_ref()))
}

/// An `InvalidInput` error: the caller asked to store a value that a decoder would refuse.
pub(crate) fn refused(what: &str, why: impl AsRef<str>) -> Error {
    Error::new(ErrorKind::InvalidInput, "encode", format!("{what}: {}", why.as_ref()))
}
