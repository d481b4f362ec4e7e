//! forebay-nbd: an NBD server over [`forebay_vfs::Export`].
//!
//! Reading order: [`proto`] (bytes), [`handshake`] and [`transmission`] (what a connection may
//! say when, without I/O), `serve` (requests to answers), `exec` (late requests), `event_loop`
//! (sockets), [`server`].
//!
//! A few event-loop threads serve all clients; their number depends on neither clients nor queue
//! depth. One turn of a loop receives what is there, answers hits straight into the connection's
//! replies, starts what is late, and sends all replies of a connection with one system call.
//! The features of the protocol, and the test of each, are in `docs/reference/nbd.md`.

#![forbid(unsafe_code)]

pub mod config;
mod conn;
mod event_loop;
mod exec;
pub mod handshake;
mod listen;
mod out;
mod pool;
pub mod proto;
mod receive_buffer;
mod request_class;
mod serve;
pub mod server;
mod shared;
mod stats;
mod stream;
pub mod tls;
pub mod transmission;

pub use config::{DropReason, ServerConfig};
pub use server::Server;
pub use stats::{KINDS, Stats};
pub use tls::{TlsIdentity, TlsMode};
