//! forebay-fuse: serves a [`forebay_vfs::FileSystem`] as a FUSE mount.
//!
//! Reading order: [`proto`] (the kernel's protocol, no I/O), [`options`], [`mod@mount`] (makes and
//! ends mounts), [`device`] (messages of /dev/fuse), `inodes` and `handles` (what the kernel
//! knows), `deadlines` (of requests), `trees` (modes of process trees), `serve` (answers a request
//! by calls of the file system), `sweep` (bounds the inodes that the kernel knows), [`session`]
//! (threads, start and end), [`notify`], [`watchdog`].
//!
//! ```text
//!   reader threads, as many as CPUs        background tasks of the world        notify thread
//!   read /dev/fuse ─▶ parse ─▶ first poll ──pending──▶ polled when woken           queue ─▶ write
//!        ▲              │ ready                              │ ready
//!        └── writev ◀───┘                          writev ◀──┘
//!   Reads, writes and syncs that have to wait run on a reader thread while another one listens.
//!   Up to four sync threads take the other syncs: fsync(2) is several I/Os in a row.
//! ```
//! Invariants: U1 each request that expects an answer gets one, also when its handler panics. U2
//! the daemon counts an inode before the reply that names it leaves, and takes the count back if
//! the kernel did not accept the reply. U3 as long as waiting requests leave memory (`payload`), at
//! least half of the reader threads, and at least one, wait neither for a device nor for a lock
//! that is held across a wait. No reader thread waits for a notification. U4 an inode that has lost
//! its last name lives until the kernel has forgotten it. U5 the session answers `DESTROY` after
//! everything is durable and the file system is released.
//!
//! Locks: the header of each module names its own. None is held across a call of the file system,
//! except the lock of the slot of the file system, see [`session`].
#![forbid(unsafe_code)]

mod deadlines;
pub mod device;
mod drops;
mod handles;
mod inodes;
pub mod ioctl;
pub mod mount;
pub mod notify;
pub mod options;
mod payload;
pub mod proto;
mod refills;
mod retrieve;
mod serve;
pub mod session;
mod sweep;
mod trees;
pub mod watchdog;

#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;

pub use mount::{MountKind, Mounted, mount};
pub use options::{CacheMode, Options};
pub use serve::Served;
pub use session::{Ending, Session};

/// An extended attribute of the root of each mount: the pid of the serving process, in decimal, in
/// that process's own pid namespace. It is not listed.
pub const PID_ATTRIBUTE: &str = "system.forebay.pid";
/// An extended attribute of the root of each mount: the path of the serving process's control
/// socket, if it has one. It is not listed.
pub const CONTROL_ATTRIBUTE: &str = "system.forebay.control";
/// An extended attribute of files: how their openings use the cache, `cached`, `uncached` or
/// `direct`. New files and directories inherit it from their directory.
pub const POLICY_ATTRIBUTE: &str = "user.forebay.policy";
