//! Operations in terms that hold on any file system.
//!
//! No locks.

use forebay_vfs::types::{
    Fallocate, FileKind, OpenFlags, Privileges, RenameFlags, Seek, SetAttr, SetXattr,
};
use std::fmt;
use std::sync::OnceLock;

/// Open files of a [`super::Runner`].
pub const SLOTS: u8 = 6;
/// Names to choose from; see [`name`].
pub const NAMES: u8 = 12;
/// Names of extended attributes to choose from; see [`xattr_name`].
pub const XATTR_NAMES: u8 = 5;

/// A name by its number: short ones, then bytes that are no text, two of 255 bytes that differ in
/// the last, one of 256, which no file system may accept.
pub fn name(number: u8) -> &'static [u8] {
    static TABLE: OnceLock<Vec<Vec<u8>>> = OnceLock::new();
    let table = TABLE.get_or_init(|| {
        let long = |len: usize, last: u8| {
            let mut name = vec![b'n'; len];
            name[len - 1] = last;
            name
        };
        let short = [&b"a"[..], b"b", b"c", b"d", b"e", b"f", b"...", b"\xff\xfe\x01", b" "];
        let mut table: Vec<Vec<u8>> = short.iter().map(|name| name.to_vec()).collect();
        table.extend([long(255, b'1'), long(255, b'2'), long(256, b'3')]);
        table
    });
    &table[usize::from(number % NAMES)]
}

/// The name of an extended attribute by its number; the last one has 255 bytes.
pub fn xattr_name(number: u8) -> &'static [u8] {
    static LONG: OnceLock<Vec<u8>> = OnceLock::new();
    match number % XATTR_NAMES {
        0 => b"user.a",
        1 => b"user.b",
        2 => b"trusted.\xff\xfe",
        3 => b"security.x",
        _ => LONG.get_or_init(|| {
            let mut long = b"user.".to_vec();
            long.resize(255, b'l');
            long
        }),
    }
}

/// A path from the root: numbers of names. Empty: the root itself.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Path(pub Vec<u8>);

impl Path {
    /// The directory, and the number of the last name.
    pub fn split(&self) -> Option<(Path, u8)> {
        let (last, dir) = self.0.split_last()?;
        Some((Path(dir.to_vec()), *last))
    }
}

impl fmt::Debug for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("/")?;
        let parts: Vec<String> = self.0.iter().map(|n| format!("{n}")).collect();
        f.write_str(&parts.join("/"))
    }
}

/// An inode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// What a path denotes; no symbolic link is followed.
    Path(Path),
    /// What is open in a slot.
    Slot(u8),
}

/// Permissions and owner of a new inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Make {
    /// Permission bits.
    pub perm: u16,
    /// User and group.
    pub owner: (u32, u32),
}

/// One operation. If a slot that it uses is empty, it does nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is the call of the contract of that name")]
pub enum Op {
    Create { path: Path, make: Make, slot: u8, flags: OpenFlags },
    Tmpfile { dir: Path, make: Make, slot: u8 },
    Mknod { path: Path, kind: FileKind, make: Make },
    Mkdir { path: Path, make: Make },
    Symlink { path: Path, target_len: u16, make: Make },
    Link { from: Target, to: Path },
    Unlink { path: Path },
    Rmdir { path: Path },
    Rename { from: Path, to: Path, flags: RenameFlags },
    Open { path: Path, slot: u8, flags: OpenFlags },
    Close { slot: u8 },
    Read { slot: u8, offset: u64, len: u32 },
    Write { slot: u8, offset: u64, len: u32, fill: u64, append: bool, privileges: Privileges },
    Fallocate { slot: u8, how: Fallocate, offset: u64, len: u64, privileges: Privileges },
    Seek { slot: u8, what: Seek, offset: u64 },
    Copy { from: u8, from_offset: u64, to: u8, to_offset: u64, len: u64 },
    Setattr { of: Target, set: SetAttr },
    Getattr { of: Target },
    Readdir { path: Path },
    Readlink { path: Path },
    SetXattr { of: Target, name: u8, len: u32, fill: u8, how: SetXattr },
    GetXattr { of: Target, name: u8 },
    ListXattr { of: Target },
    RemoveXattr { of: Target, name: u8 },
    Sync { slot: u8, data_only: bool },
    SyncFs,
    Wait { seconds: u32 },
}

impl Op {
    /// A write at an offset that keeps set-id bits.
    pub fn write_at(slot: u8, offset: u64, len: u32, fill: u64) -> Self {
        Self::Write { slot, offset, len, fill, append: false, privileges: Privileges::Keep }
    }

    /// The paths it names.
    pub fn paths(&self) -> Vec<&Path> {
        match self {
            Self::Create { path, .. }
            | Self::Mknod { path, .. }
            | Self::Mkdir { path, .. }
            | Self::Symlink { path, .. }
            | Self::Unlink { path }
            | Self::Rmdir { path }
            | Self::Open { path, .. }
            | Self::Readdir { path }
            | Self::Readlink { path }
            | Self::Tmpfile { dir: path, .. } => vec![path],
            Self::Rename { from, to, .. } => vec![from, to],
            Self::Link { from: Target::Path(from), to } => vec![from, to],
            Self::Link { from: Target::Slot(_), to } => vec![to],
            Self::Setattr { of: Target::Path(path), .. }
            | Self::Getattr { of: Target::Path(path) }
            | Self::SetXattr { of: Target::Path(path), .. }
            | Self::GetXattr { of: Target::Path(path), .. }
            | Self::ListXattr { of: Target::Path(path) }
            | Self::RemoveXattr { of: Target::Path(path), .. } => vec![path],
            _ => Vec::new(),
        }
    }

    /// The slots it looks at.
    pub fn slots(&self) -> Vec<u8> {
        match self {
            Self::Read { slot, .. }
            | Self::Write { slot, .. }
            | Self::Fallocate { slot, .. }
            | Self::Seek { slot, .. }
            | Self::Close { slot }
            | Self::Create { slot, .. }
            | Self::Tmpfile { slot, .. }
            | Self::Open { slot, .. }
            | Self::Sync { slot, .. }
            | Self::Link { from: Target::Slot(slot), .. }
            | Self::Setattr { of: Target::Slot(slot), .. }
            | Self::Getattr { of: Target::Slot(slot) }
            | Self::SetXattr { of: Target::Slot(slot), .. }
            | Self::GetXattr { of: Target::Slot(slot), .. }
            | Self::ListXattr { of: Target::Slot(slot) }
            | Self::RemoveXattr { of: Target::Slot(slot), .. } => vec![*slot],
            Self::Copy { from, to, .. } => vec![*from, *to],
            _ => Vec::new(),
        }
    }
}
