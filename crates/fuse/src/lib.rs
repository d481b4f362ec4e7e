//! forebay-fuse: a file system of ours, [`forebay_vfs::FileSystem`], as a mount of the kernel's.
//!
//! Reading order: [`proto`] (the kernel's protocol, no I/O), [`options`], [`mod@mount`] (how the
//! kernel is asked for a mount), [`device`] (one message of /dev/fuse in, one out), `inodes` and
//! `handles` (what the kernel knows of us), `deadlines` (of requests), `trees` (who asks), `serve`
//! (a request answered by the contract), `sweep` (what it shall forget), [`session`] (threads,
//! ending), [`notify`], [`watchdog`].
//!
//! ```text
//!   reader threads, as many as CPUs        background tasks of the world        notify thread
//!   read /dev/fuse ─▶ parse ─▶ first poll ──pending──▶ polled when woken           queue ─▶ write
//!        ▲              │ ready                              │ ready
//!        └── writev ◀───┘                          writev ◀──┘
//!   while another one listens, a reader thread does what has to wait itself: reads, writes, syncs
//!   and up to four threads that sync: fsync(2) is I/O upon I/O, on a thread that may wait
//! ```
//! Invariants: U1 each request that wants an answer gets one, also when its handler panics. U2 what the
//! kernel knows of an inode is counted before it is told, and taken back if it could not be told. U3 of the
//! reader threads at least half, and one at least, wait for no device and for no lock that is held across a
//! wait; none waits for a notification. U4 an inode that
//! has lost its last name lives until the kernel has forgotten it. U5 `DESTROY` is answered when everything
//! is durable and the file system is given back.
//!
//! Locks, all leaves, none held across a call of the file system: the table of handles, the shards of the
//! inodes, the inodes kept without a name, the queue of notices, the removals of names, the session's
//! state. And the slot of the file system, see [`session`].
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

/// An extended attribute that the root of each mount has: the process that serves it, in decimal, as that
/// process knows itself. Not listed.
pub const PID_ATTRIBUTE: &str = "system.forebay.pid";
/// Another one of roots: the path of the control socket of that process, if it has one. Not listed.
pub const CONTROL_ATTRIBUTE: &str = "system.forebay.control";
/// An extended attribute of files: what their openings do with the cache, `cached`, `uncached` or `direct`.
/// What is made in a directory that has it gets it, too.
pub const POLICY_ATTRIBUTE: &str = "user.forebay.policy";
