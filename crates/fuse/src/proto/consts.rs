//! Numbers of the protocol.
//!
//! No locks.

/// Major version.
pub const VERSION_MAJOR: u32 = 7;
/// Newest minor version that the daemon speaks.
pub const VERSION_MINOR: u32 = 45;
/// Oldest minor version that it serves: Linux 6.6, the first with `STATX` and shared maps of direct
/// files.
pub const VERSION_MINOR_MIN: u32 = 39;

/// Bytes before the arguments of a request.
pub const IN_HEADER_BYTES: usize = 40;
/// Bytes before the payload of a `WRITE`.
pub const WRITE_HEADER_BYTES: usize = 80;
/// Bytes before the body of a reply.
pub const OUT_HEADER_BYTES: usize = 16;
/// Node of the root directory.
pub const ROOT_NODE: u64 = 1;

/// Codes of requests.
#[expect(missing_docs, reason = "the kernel's names")]
pub mod opcode {
    pub const LOOKUP: u32 = 1;
    pub const FORGET: u32 = 2;
    pub const GETATTR: u32 = 3;
    pub const SETATTR: u32 = 4;
    pub const READLINK: u32 = 5;
    pub const SYMLINK: u32 = 6;
    pub const MKNOD: u32 = 8;
    pub const MKDIR: u32 = 9;
    pub const UNLINK: u32 = 10;
    pub const RMDIR: u32 = 11;
    pub const RENAME: u32 = 12;
    pub const LINK: u32 = 13;
    pub const OPEN: u32 = 14;
    pub const READ: u32 = 15;
    pub const WRITE: u32 = 16;
    pub const STATFS: u32 = 17;
    pub const RELEASE: u32 = 18;
    pub const FSYNC: u32 = 20;
    pub const SETXATTR: u32 = 21;
    pub const GETXATTR: u32 = 22;
    pub const LISTXATTR: u32 = 23;
    pub const REMOVEXATTR: u32 = 24;
    pub const FLUSH: u32 = 25;
    pub const INIT: u32 = 26;
    pub const OPENDIR: u32 = 27;
    pub const READDIR: u32 = 28;
    pub const RELEASEDIR: u32 = 29;
    pub const FSYNCDIR: u32 = 30;
    pub const ACCESS: u32 = 34;
    pub const CREATE: u32 = 35;
    pub const INTERRUPT: u32 = 36;
    pub const BMAP: u32 = 37;
    pub const DESTROY: u32 = 38;
    pub const IOCTL: u32 = 39;
    pub const POLL: u32 = 40;
    pub const NOTIFY_REPLY: u32 = 41;
    pub const BATCH_FORGET: u32 = 42;
    pub const FALLOCATE: u32 = 43;
    pub const READDIRPLUS: u32 = 44;
    pub const RENAME2: u32 = 45;
    pub const LSEEK: u32 = 46;
    pub const COPY_FILE_RANGE: u32 = 47;
    pub const SYNCFS: u32 = 50;
    pub const TMPFILE: u32 = 51;
    pub const STATX: u32 = 52;
    pub const COPY_FILE_RANGE_64: u32 = 53;
}

bitflags::bitflags! {
    /// Capabilities of kernel and daemon; the daemon's answer selects from those that the kernel
    /// offers.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct InitFlags: u64 {
        /// Several reads of a file in parallel.
        const ASYNC_READ = 1 << 0;
        /// `OPEN` truncates.
        const ATOMIC_O_TRUNC = 1 << 3;
        /// `LOOKUP` of `.` and `..`, for file handles.
        const EXPORT_SUPPORT = 1 << 4;
        /// Writes of more than a page.
        const BIG_WRITES = 1 << 5;
        /// Directories have ioctls.
        const HAS_IOCTL_DIR = 1 << 11;
        /// The kernel may use `READDIRPLUS`.
        const DO_READDIRPLUS = 1 << 13;
        /// The kernel uses `READDIRPLUS` only if it expects to need attributes.
        const READDIRPLUS_AUTO = 1 << 14;
        /// Parts of a direct request in parallel.
        const ASYNC_DIO = 1 << 15;
        /// Lookups and listings of a directory in parallel.
        const PARALLEL_DIROPS = 1 << 18;
        /// After an abort, reading the device fails with `ECONNABORTED`.
        const ABORT_ERROR = 1 << 21;
        /// More than 32 pages in a request.
        const MAX_PAGES = 1 << 22;
        /// The kernel caches targets of symbolic links.
        const CACHE_SYMLINKS = 1 << 23;
        /// The kernel drops cached data only when the daemon reports it stale.
        const EXPLICIT_INVAL_DATA = 1 << 25;
        /// The daemon drops set-id bits and capabilities when the kernel's request says so.
        const HANDLE_KILLPRIV_V2 = 1 << 28;
        /// The second word of flags is valid.
        const INIT_EXT = 1 << 30;
        /// Files opened with `FOPEN_DIRECT_IO` may be mapped shared.
        const DIRECT_IO_ALLOW_MMAP = 1 << 36;
        /// The kernel ends a connection if a request exceeds its time limit.
        const REQUEST_TIMEOUT = 1 << 42;
    }

    /// How the kernel treats an open file.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct FOpen: u32 {
        /// Reads and writes bypass the kernel's cache.
        const DIRECT_IO = 1 << 0;
        /// The kernel keeps its cached pages of the file at this open.
        const KEEP_CACHE = 1 << 1;
        /// The kernel may cache the listing of the directory.
        const CACHE_DIR = 1 << 3;
        /// No `FLUSH` when a descriptor is closed.
        const NOFLUSH = 1 << 5;
        /// Writes that do not extend the file run in parallel.
        const PARALLEL_DIRECT_WRITES = 1 << 6;
    }

    /// Which attributes a `SETATTR` sets.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct Valid: u32 {
        /// Permission bits.
        const MODE = 1 << 0;
        /// Owner.
        const UID = 1 << 1;
        /// Group.
        const GID = 1 << 2;
        /// Size.
        const SIZE = 1 << 3;
        /// Time of access.
        const ATIME = 1 << 4;
        /// Time of modification.
        const MTIME = 1 << 5;
        /// Time of access: now.
        const ATIME_NOW = 1 << 7;
        /// Time of modification: now.
        const MTIME_NOW = 1 << 8;
        /// Set-id bits are dropped with the new size.
        const KILL_SUIDGID = 1 << 11;
    }
}

/// Flag of `OPEN` and `CREATE`: the truncation drops set-id bits.
pub const OPEN_KILL_SUIDGID: u32 = 1;
/// Flag of `WRITE`: the data come from the kernel's page cache, not directly from a process.
pub const WRITE_CACHE: u32 = 1;
/// In `read_flags`: a program reads directly. Without it the read fills the kernel's cache.
pub const READ_LOCKOWNER: u32 = 2;
/// Flag of `WRITE`: drop set-id bits.
pub const WRITE_KILL_SUIDGID: u32 = 1 << 2;
/// Flag of `GETATTR`: the handle is valid.
pub const GETATTR_FH: u32 = 1;
/// Flag of `FSYNC`: content only.
pub const FSYNC_FDATASYNC: u32 = 1;

/// Open flags that the daemon uses and that are the same on all architectures (`O_DIRECT` is not).
pub mod open {
    /// Mask of the access mode.
    pub const ACCMODE: u32 = 3;
    /// For writing.
    pub const WRONLY: u32 = 1;
    /// For reading and writing.
    pub const RDWR: u32 = 2;
    /// Fails if the name exists.
    pub const EXCL: u32 = 0o200;
    /// Truncates the file.
    pub const TRUNC: u32 = 0o1000;
    /// Each write goes to the end of the file.
    pub const APPEND: u32 = 0o2000;
    /// Each write is durable when it returns, with the metadata needed to read it.
    pub const DSYNC: u32 = 0o10_000;
    /// Together with [`DSYNC`]: all metadata as well.
    pub const SYNC_ONLY: u32 = 0o4_000_000;
}

/// Codes of notifications.
pub mod notify_code {
    /// Attributes of an inode are stale, and optionally cached content.
    pub const INVAL_INODE: i32 = 2;
    /// Puts content into the cache of an inode.
    pub const STORE: i32 = 4;
    /// A name is stale.
    pub const INVAL_ENTRY: i32 = 3;
    /// A name was removed.
    pub const DELETE: i32 = 6;
    /// Asks for a copy of the cached content of an inode.
    pub const RETRIEVE: i32 = 5;
    /// Asks the kernel to forget unused inodes.
    pub const PRUNE: i32 = 9;
}
