//! forebay-nbd: an NBD server over [`forebay_vfs::Export`].
//!
//! Reading order: [`proto`] (messages), [`handshake`] and [`transmission`] (the two phases of a
//! connection, without I/O), `serve` (carries out requests), `exec` (requests that have to wait),
//! `event_loop` (sockets), [`server`].
//!
//! A few event-loop threads serve all clients; their number depends on neither clients nor queue
//! depth. One turn of a loop receives bytes, copies cached data directly into the connection's
//! replies, and starts tasks for requests that have to wait. Then it sends all replies of a
//! connection with one system call. The features of the protocol, and the test of each, are in
//! `docs/reference/nbd.md`.

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
