//! forebay-vfs: the interfaces that front ends use.
//!
//! Two interfaces: [`Export`], a range of bytes (NBD), and [`FileSystem`] with [`OpenFile`], the
//! POSIX tree (mount, library, command line). In addition, code that callers and implementations
//! share: [`rules`] decide which calls fail and what a call changes, [`path`] resolves paths,
//! [`copy`] copies a range. forebay-testkit has a file system in memory, and compares any two with
//! each other.
//!
//! Reading order: [`types`], [`name`], [`fs`] (the interface, rule by rule), [`rules`], [`path`],
//! [`copy`], [`coherent`] (notifies a mount of changes), [`delegate`] (for wrappers).
//!
//! No locks, apart from those in [`coherent`].
#![forbid(unsafe_code)]

pub mod clock;
pub mod coherent;
pub mod copy;
pub mod delegate;
pub mod disk;
pub mod export;
pub mod fs;
pub mod name;
pub mod path;
pub mod readonly;
pub mod rules;
pub mod types;

pub use clock::{Clock, ManualClock, SystemClock};
pub use coherent::NotifyingFs;
pub use export::{BufResult, Export, ExportInfo, Extent, ZeroMode};
pub use fs::{
    FileSystem, KeepInode, OpenFile, OpenFileRef, Opened, ReadResult, WriteResult, Wrote,
};
pub use name::{Name, XattrName};
pub use readonly::ReadOnly;
pub use types::{
    Attr, Cookie, DirEntry, Fallocate, FileKind, Ino, NewInode, OpenFlags, Privileges, RenameFlags,
    Seek, SetAttr, SetTime, SetXattr, StatFs, Timestamp,
};
