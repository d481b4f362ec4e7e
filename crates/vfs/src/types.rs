//! Types of the file-system interface: inodes, attributes, times, limits, flags; and functions on
//! attributes that all implementations share.
//!
//! Invariants: T1 a [`Timestamp`] has less than 10^9 nanoseconds; the second may be negative. T2
//! permission bits are within 0o7777.
//!
//! No locks.

use forebay_base::{Error, ErrorKind, Result};
use std::fmt;

/// Largest size of a file and end of a range, bytes: 2^63 - 1.
pub const FILE_SIZE_MAX: u64 = i64::MAX as u64;
/// Longest target of a symbolic link, bytes.
pub const SYMLINK_MAX: usize = 4095;
/// Most links of an inode, if an implementation has no lower limit.
pub const LINK_MAX: u32 = i32::MAX as u32;
/// Set user id on execution.
pub const S_ISUID: u16 = 0o4000;
/// Set group id on execution; on a directory: new inodes in it inherit its group.
pub const S_ISGID: u16 = 0o2000;
/// The sticky bit: only the owner of an inode or of the directory may remove or rename an entry.
pub const S_ISVTX: u16 = 0o1000;
/// Execute permission of the group: with it, [`S_ISGID`] gives a privilege.
pub const S_IXGRP: u16 = 0o0010;
/// The attribute that gives capabilities on execution: it is removed by every write, truncation and
/// change of owner.
pub const XATTR_CAPABILITY: &[u8] = b"security.capability";

/// Number of an inode. Never 0. Reused only with another generation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ino(pub u64);

impl Ino {
    /// The root directory.
    pub const ROOT: Ino = Ino(1);
}

impl fmt::Debug for Ino {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.0)
    }
}

/// Kind of an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FileKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
    /// A character device.
    CharDevice,
    /// A block device.
    BlockDevice,
}

impl FileKind {
    /// All kinds.
    pub const ALL: [FileKind; 7] = [
        Self::File,
        Self::Directory,
        Self::Symlink,
        Self::Fifo,
        Self::Socket,
        Self::CharDevice,
        Self::BlockDevice,
    ];

    /// The `S_IFMT` bits of a mode.
    pub fn mode_bits(self) -> u32 {
        match self {
            Self::File => 0o100_000,
            Self::Directory => 0o040_000,
            Self::Symlink => 0o120_000,
            Self::Fifo => 0o010_000,
            Self::Socket => 0o140_000,
            Self::CharDevice => 0o020_000,
            Self::BlockDevice => 0o060_000,
        }
    }

    /// The kind in a mode; `None` if there is none.
    pub fn of_mode(mode: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.mode_bits() == mode & 0o170_000)
    }
}

/// A time of day: seconds since 1970, may be negative, and nanoseconds after that (T1).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp {
    /// Seconds since the beginning of 1970.
    pub sec: i64,
    /// Nanoseconds after `sec`, below 10^9.
    pub nsec: u32,
}

impl Timestamp {
    /// `sec` seconds and `nsec` nanoseconds; larger values of `nsec` are reduced to 999,999,999.
    pub const fn new(sec: i64, nsec: u32) -> Self {
        Self { sec, nsec: if nsec > 999_999_999 { 999_999_999 } else { nsec } }
    }
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:09}", self.sec, self.nsec)
    }
}

/// Attributes of an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attr {
    /// The inode number.
    pub ino: Ino,
    /// Distinguishes inodes that successively had the same number.
    pub generation: u64,
    /// The kind of the file.
    pub kind: FileKind,
    /// Permission, set-id and sticky bits (T2).
    pub perm: u16,
    /// Number of its names; of a directory: 2, and one for each subdirectory.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a device, in the system's 32-bit encoding; else 0.
    pub rdev: u32,
    /// Size in bytes; of a symbolic link: length of its target. Of a directory: defined by the
    /// implementation.
    pub size: u64,
    /// Allocated storage, bytes. Approximate.
    pub allocated_bytes: u64,
    /// Time of access; see [`relatime`].
    pub atime: Timestamp,
    /// Time of modification of the content; of a directory: of its entries.
    pub mtime: Timestamp,
    /// Time of the last change of anything but `atime`.
    pub ctime: Timestamp,
    /// Time of creation.
    pub btime: Timestamp,
}

impl Attr {
    /// The mode as `stat` has it: kind and permissions.
    pub fn mode(&self) -> u32 {
        self.kind.mode_bits() | u32::from(self.perm)
    }
}

/// Attributes of a new inode. The front end applies umask and permissions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewInode {
    /// The kind of the file.
    pub kind: FileKind,
    /// Permission bits; bits beyond 0o7777 are ignored.
    pub perm: u16,
    /// Owner.
    pub uid: u32,
    /// Group, unless the directory has [`S_ISGID`].
    pub gid: u32,
    /// Device number; ignored for other kinds.
    pub rdev: u32,
}

impl NewInode {
    /// A new inode owned by root.
    pub const fn of(kind: FileKind, perm: u16) -> Self {
        Self { kind, perm, uid: 0, gid: 0, rdev: 0 }
    }

    /// Group and permission bits of a new inode in a directory with this group and these bits. A
    /// directory with [`S_ISGID`] passes its group to new inodes, and the bit itself to
    /// directories.
    pub fn inherit(&self, (dir_gid, dir_perm): (u32, u16)) -> (u32, u16) {
        let perm = self.perm & 0o7777;
        match (dir_perm & S_ISGID != 0, self.kind) {
            (false, _) => (self.gid, perm),
            (true, FileKind::Directory) => (dir_gid, perm | S_ISGID),
            (true, _) => (dir_gid, perm),
        }
    }
}

/// A time to set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetTime {
    /// The current time of the file system's clock (`UTIME_NOW`).
    Now,
    /// This time.
    To(Timestamp),
}

/// Attributes to set; `None`: unchanged (`UTIME_OMIT`, `-1`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SetAttr {
    /// Permission bits; bits beyond 0o7777 are ignored.
    pub perm: Option<u16>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size of a regular file, bytes. A smaller size truncates, a larger one adds a hole.
    pub size: Option<u64>,
    /// Time of access.
    pub atime: Option<SetTime>,
    /// Time of modification.
    pub mtime: Option<SetTime>,
    /// Whether a new size keeps set-id bits.
    pub privileges: Privileges,
}

impl SetAttr {
    /// Only a size.
    pub fn size(size: u64) -> Self {
        Self { size: Some(size), ..Self::default() }
    }

    /// Only permission bits.
    pub fn perm(perm: u16) -> Self {
        Self { perm: Some(perm), ..Self::default() }
    }

    /// Whether no attribute is to be set.
    pub fn is_empty(&self) -> bool {
        let Self { perm, uid, gid, size, atime, mtime, privileges: _ } = self;
        perm.is_none()
            && (uid.is_none() && gid.is_none())
            && size.is_none()
            && (atime.is_none() && mtime.is_none())
    }
}

/// Whether a write or truncation keeps set-id bits, which only a caller with `CAP_FSETID` may
/// request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Privileges {
    /// They are dropped; see [`without_set_id`].
    #[default]
    Drop,
    /// They are kept.
    Keep,
}

impl Privileges {
    /// The privileges that [`OpenFlags::TRUNCATE`] with these flags keeps.
    pub fn of_open(flags: OpenFlags) -> Self {
        match flags.contains(OpenFlags::KEEP_PRIVILEGES) {
            true => Self::Keep,
            false => Self::Drop,
        }
    }
}

/// Permission bits of a regular file after a write, truncation or change of owner that drops
/// privileges: set-user-id is dropped, set-group-id only if it gives a privilege.
pub fn without_set_id(perm: u16) -> u16 {
    match perm & S_IXGRP != 0 {
        true => perm & !(S_ISUID | S_ISGID),
        false => perm & !S_ISUID,
    }
}

/// Whether a read at `now` updates `atime`: if `atime` is not newer than the last change, or is a
/// day old.
pub fn relatime(attr: &Attr, now: Timestamp) -> bool {
    let day = 24 * 60 * 60;
    attr.atime <= attr.mtime
        || attr.atime <= attr.ctime
        || now.sec.saturating_sub(attr.atime.sec) >= day
}

/// Checks that `[offset, offset + len)` ends within the largest file size. Error: `FileTooLarge`.
pub fn check_range(op: &'static str, offset: u64, len: u64) -> Result<()> {
    match offset.checked_add(len) {
        Some(end) if end <= FILE_SIZE_MAX => Ok(()),
        _ => {
            let text = "ends beyond 2^63 - 1 bytes";
            Err(Error::new(ErrorKind::FileTooLarge, op, text).with_range(offset, len))
        }
    }
}

/// A position in a directory listing. Cookies of entries are from [`Cookie::FIRST`] to `i64::MAX`,
/// so that a front end can use lower values for `.` and `..`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cookie(pub u64);

impl Cookie {
    /// Before all entries.
    pub const START: Cookie = Cookie(0);
    /// The lowest cookie of an entry.
    pub const FIRST: Cookie = Cookie(16);
}

/// An entry of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirEntry {
    /// The position of the entry. After passing it, `readdir` continues after the entry.
    pub cookie: Cookie,
    /// The inode of the entry.
    pub ino: Ino,
    /// Kind of that inode.
    pub kind: FileKind,
    /// The name of the entry.
    pub name: Box<[u8]>,
}

bitflags::bitflags! {
    /// How a file is opened.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct OpenFlags: u32 {
        /// For reading.
        const READ = 1 << 0;
        /// For writing.
        const WRITE = 1 << 1;
        /// Truncates the file to 0 bytes. Needs `WRITE`.
        const TRUNCATE = 1 << 2;
        /// `create` only: `Exists` if the name exists.
        const EXCLUSIVE = 1 << 3;
        /// `TRUNCATE` keeps the set-id bits ([`Privileges::Keep`]).
        const KEEP_PRIVILEGES = 1 << 4;
    }

    /// Variants of a rename.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct RenameFlags: u32 {
        /// `Exists` if the new name exists. `RENAME_NOREPLACE`.
        const NOREPLACE = 1 << 0;
        /// Exchanges the two entries. `RENAME_EXCHANGE`.
        const EXCHANGE = 1 << 1;
    }
}

impl RenameFlags {
    /// `InvalidInput` for unknown bits, and for both flags together.
    pub fn check(self) -> Result<()> {
        let unknown = self.bits() & !Self::all().bits();
        if unknown != 0 || self == Self::all() {
            let text = format!("rename flags {:#x}", self.bits());
            return Err(Error::new(ErrorKind::InvalidInput, "rename", text));
        }
        Ok(())
    }
}

/// Operations of `fallocate` on a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fallocate {
    /// Prepares the range for writes. No space is reserved, so a write may still fail with
    /// `NoSpace`.
    Allocate {
        /// The size does not change.
        keep_size: bool,
    },
    /// Turns the range into a hole. The size does not change.
    PunchHole,
    /// Makes the range read as zeros.
    ZeroRange {
        /// The size does not change.
        keep_size: bool,
    },
}

impl Fallocate {
    /// The operation of Linux mode bits. `Unsupported` for collapse, insert, unshare and unknown
    /// bits.
    pub fn from_linux(mode: u32) -> Result<Self> {
        const KEEP_SIZE: u32 = 1;
        const PUNCH_HOLE: u32 = 2;
        const ZERO_RANGE: u32 = 0x10;
        let keep_size = mode & KEEP_SIZE != 0;
        match mode & !KEEP_SIZE {
            0 => Ok(Self::Allocate { keep_size }),
            PUNCH_HOLE if keep_size => Ok(Self::PunchHole),
            ZERO_RANGE => Ok(Self::ZeroRange { keep_size }),
            _ => {
                let text = format!("fallocate mode {mode:#x}");
                Err(Error::new(ErrorKind::Unsupported, "fallocate", text))
            }
        }
    }

    /// Whether a range beyond the end of file extends the file.
    pub fn grows(self) -> bool {
        matches!(self, Self::Allocate { keep_size: false } | Self::ZeroRange { keep_size: false })
    }
}

/// What to search for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seek {
    /// Bytes that may be other than zero.
    Data,
    /// Bytes that are zero; the end of file counts as a hole.
    Hole,
}

/// How an existing extended attribute is treated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SetXattr {
    /// Set it whether or not it exists.
    #[default]
    Any,
    /// `Exists` if it exists.
    Create,
    /// `NoAttribute` if it does not exist.
    Replace,
}

/// Statistics of a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StatFs {
    /// Unit of the block counts, bytes.
    pub block_size: u32,
    /// Total blocks.
    pub blocks: u64,
    /// Unused blocks.
    pub blocks_free: u64,
    /// Blocks that users can still write.
    pub blocks_available: u64,
    /// Total inodes, used or not.
    pub files: u64,
    /// Inodes that can still be created.
    pub files_free: u64,
    /// Longest name, bytes.
    pub name_max: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_and_modes_go_both_ways() {
        for kind in FileKind::ALL {
            assert_eq!(FileKind::of_mode(kind.mode_bits() | 0o7777), Some(kind));
        }
        assert_eq!(FileKind::of_mode(0o644), None);
    }

    /// T1: a value out of range is reduced to the range.
    #[test]
    fn t1_times_stay_in_range() {
        assert_eq!(Timestamp::new(-5, u32::MAX).nsec, 999_999_999);
    }

    #[test]
    fn privileges_go_where_they_are_privileges() {
        assert_eq!(without_set_id(0o6755), 0o755);
        assert_eq!(without_set_id(0o6745), 0o2745, "a group bit without execution means locks");
        assert_eq!(without_set_id(0o1644), 0o1644);
    }

    #[test]
    fn fallocate_modes_by_name_or_refused() {
        assert_eq!(Fallocate::from_linux(0).unwrap(), Fallocate::Allocate { keep_size: false });
        assert_eq!(Fallocate::from_linux(3).unwrap(), Fallocate::PunchHole);
        assert_eq!(Fallocate::from_linux(0x11).unwrap(), Fallocate::ZeroRange { keep_size: true });
        for mode in [2, 0x08, 0x20, 0x40, 0x12, 0x13, 0x100] {
            let error = Fallocate::from_linux(mode).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{mode:#x}");
        }
    }

    #[test]
    fn ranges_end_within_the_largest_file() {
        assert!(check_range("write", FILE_SIZE_MAX - 1, 1).is_ok());
        for (offset, len) in [(FILE_SIZE_MAX, 1), (u64::MAX, 1), (1, FILE_SIZE_MAX)] {
            let error = check_range("write", offset, len).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::FileTooLarge);
        }
    }
}
