//! The control socket: how `stat`, `tune` and `fincore` talk to a running process.
//!
//! C1 Only the owner of the process and root are answered: the folder is 0700, the socket 0600,
//!    and the peer's uid is checked on every connection.
//! C2 One JSON object per line in both directions; a request line is at most [`proto::REQUEST_MAX`]
//!    bytes, a connection that is silent for [`server::REQUEST_TIMEOUT`] is closed.
//! C3 Counters and settings are read without waiting for I/O. Requests that change something, and
//!    `extents`, may wait for it. A session on a volume ([`crate::remote`]) has the connection for
//!    itself.

pub mod answers;
pub mod client;
pub mod paths;
pub mod proto;
pub mod server;
pub mod which;
