//! The programs and caches that are compared: Forebay, the kernel, other servers, and the client
//! that drives them.

pub mod attached;
pub mod connection;
pub mod counted;
pub mod empty;
pub mod fileset;
pub mod fio;
pub mod kernel;
pub mod loopdev;
pub mod mounted;
pub mod ours;
pub mod server;
pub mod volume;
pub mod worker;
