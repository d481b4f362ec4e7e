//! forebay-live: what a running Forebay does, for people and programs that watch: a page with the cache as a
//! picture, metrics in Prometheus' text form, a health answer, and the same as JSON for `forebay top`.
//!
//! ```text
//!   Source (cache and front end) ──▶ Board (looks once a second, whoever watches) ──▶ Server (HTTP) ──▶ page
//!                                                                                └──▶ control socket ──▶ top
//! ```
//! Reading order: [`source`] (what is asked), [`board`] (how often), [`json`] and [`metrics`] (what is said),
//! [`http`] (what a request may be), [`server`] (who is listened to, and for how long).
//!
//! ```
//! use forebay::{Cache, CacheConfig};
//! use forebay_live::{Board, CacheSource, Options, Server};
//! # fn main() -> forebay::Result<()> {
//! let cache = Cache::new(CacheConfig::with_budget(16 << 20))?;
//! let board = Board::new(CacheSource::new("example", &cache));
//! let server = Server::start(&board, &Options::parse("127.0.0.1:0", false)?)?;
//! println!("http://{}/", server.address());
//! server.stop();
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

pub mod board;
pub mod http;
pub mod json;
pub mod metrics;
pub mod server;
pub mod source;

pub use board::Board;
pub use server::{Bound, Options, Server};
pub use source::{CacheSource, FrontEnd, Number, Source};

/// The page: text, style and script in one, and nothing from elsewhere.
pub const PAGE: &str = include_str!("page.html");
