//! Tests of the NBD server: real clients, hostile ones, TLS, queues.
//!
//! No locks.

mod clients;
mod common;
mod hostile;
mod hostile_slow;
mod queue;
mod server;
mod tls;
