//! The control socket: how `stat`, `tune` and `fincore` talk to a running process.
//!
//! C1 Only the owner of the process and root are answered: the folder is 0700, the socket 0600,
//!    and the peer's uid is checked on every connection.
//! C2 One JSON object per line in both directions; a request line is at most [`proto::REQUEST_MAX`]
//!    bytes, a connection at most [`server::REQUEST_TIMEOUT`] silent.
//! C3 Requests are answered from counters and never wait for I/O, except `drop-clean` and a session
//! on a
//!    volume ([`crate::remote`]), which has the connection for itself.

pub mod answers;
pub mod client;
pub mod paths;
pub mod proto;
pub mod server;
pub mod which;
