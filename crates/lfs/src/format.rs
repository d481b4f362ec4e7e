//! The stored form of a volume: every structure with its encoder and its decoder, and no I/O.
//! `docs/reference/format.md` has the byte diagrams; what the numbers mean is said there once.
//!
//! Reading order: [`place`] (segments, places, seals), [`superblock`] with [`features`], [`segment`],
//! [`record`] with [`change`], [`extent`] and [`inode`], then [`node`] with [`key`] and [`item`],
//! [`usage`], [`summary`].
//!
//! Invariants: F1 no input makes a decoder panic, loop for ever, or allocate more than a fixed multiple
//! of the input. F2 what decodes encodes to the same bytes. F3 every byte of a stored structure is
//! covered by a checksum, so that no flipped bit goes unseen. F4 an error names the structure, the field
//! and the offset; its kind is `Corrupt` for what cannot be, `Unsupported` for what is newer than this.
//! F5 integers are little-endian, those of keys big-endian: the order of keys is the order of their bytes.
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
/// Bytes of a name in a directory, at most.
pub const MAX_NAME_BYTES: usize = 255;
/// Bytes of an extended attribute's value, at most (in segments of 256 KiB and up;
/// see `docs/reference/format.md`).
pub const MAX_XATTR_BYTES: usize = 65_536;
/// Bytes of a symbolic link's target, at most.
pub const MAX_TARGET_BYTES: usize = 4095;
/// Blocks of one extent, at most.
pub const MAX_EXTENT_BLOCKS: u16 = 128;
/// The highest id of data: summaries of segments hold 48 bits of it, and the next one means a tree node.
pub const MAX_DATA_ID: u64 = (1 << 48) - 2;
/// Bytes of a file, at most: offsets stay signed.
pub const MAX_FILE_BYTES: u64 = i64::MAX as u64;

/// Numbers that count up do not get so far by themselves, and could overflow when they go on.
pub(crate) const COUNT_MAX: u64 = 1 << 62;

/// `Corrupt`: `what` cannot be, because of `why`.
pub(crate) fn corrupt(what: &str, why: impl AsRef<str>) -> Error {
    Error::new(ErrorKind::Corrupt, "decode", format!("{what}: {}", why.as_ref()))
}

/// `Unsupported`: `what` is newer than this program.
pub(crate) fn unsupported(what: &str, why: impl AsRef<str>) -> Error {
    Error::new(ErrorKind::Unsupported, "decode", format!("{what}: {}", why.as_ref()))
}

/// `InvalidInput`: the caller asked to store what a decoder would refuse.
pub(crate) fn refused(what: &str, why: impl AsRef<str>) -> Error {
    Error::new(ErrorKind::InvalidInput, "encode", format!("{what}: {}", why.as_ref()))
}
