//! forebay-vfs: the interfaces that front ends use.
//!
//! Two contracts: [`Export`], a range of bytes (NBD), and [`FileSystem`] with [`OpenFile`], the
//! POSIX tree (mount, library, command line). In addition, the parts that users and implementors
//! share: [`rules`] decide errors and changes, [`path`] finds an inode by path, [`copy`] copies a
//! range, [`mem`] is a file system in memory and the oracle of the others, [`check`] compares two
//! file systems.
//!
//! Reading order: [`types`], [`name`], [`fs`] (the contract, rule by rule), [`rules`], [`path`],
//! [`copy`], [`mem`], [`beside`] (notifying a mount of changes), [`check`].
//!
//! No locks of its own, apart from the one in [`mem`].
#![forbid(unsafe_code)]

pub mod beside;
pub mod check;
pub mod clock;
pub mod copy;
pub mod disk;
pub mod export;
pub mod fs;
pub mod mem;
pub mod name;
pub mod path;
pub mod readonly;
pub mod rules;
pub mod types;

pub use beside::NotifyingFs;
pub use clock::{Clock, ManualClock, SystemClock};
pub use export::{BufResult, Export, ExportInfo, Extent, ZeroMode};
pub use fs::{FileSystem, OpenFile, OpenFileRef, ReadResult, WriteResult, Wrote};
pub use name::{Name, XattrName};
pub use readonly::ReadOnly;
pub use types::{
    Attr, Cookie, DirEntry, Fallocate, FileKind, Ino, NewInode, OpenFlags, Privileges, RenameFlags,
    Seek, SetAttr, SetTime, SetXattr, StatFs, Timestamp,
};
