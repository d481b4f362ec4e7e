//! forebay-live: live monitoring of a running Forebay. A page shows the content of the cache.
//! Programs get metrics in Prometheus' text form, a health check, and JSON for `forebay top`.
//!
//! ```text
//!   Source (cache, front end) ──▶ Collector (samples once a second) ──▶ Server (HTTP) ──▶ page
//!                                                                   └──▶ control socket ──▶ top
//! ```
//!
//! Programs also install the [`logger`].
//!
//! Reading order: [`source`] and [`sample`] (what is sampled), [`json`] and [`metrics`] (the
//! outputs), [`collector`] (how often), [`http`] (requests), [`server`] (connections and their
//! limits).
//!
//! ```
//! use forebay::{Cache, CacheConfig};
//! use forebay_live::{Collector, CacheSource, Options, Server};
//! # fn main() -> forebay::Result<()> {
//! let cache = Cache::new(CacheConfig::with_budget(16 << 20))?;
//! let collector = Collector::new(CacheSource::new("example", &cache));
//! let server = Server::start(&collector, &Options::parse("127.0.0.1:0", false)?)?;
//! println!("http://{}/", server.address());
//! server.stop();
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

pub mod collector;
pub mod http;
pub mod json;
pub mod logger;
pub mod metrics;
pub mod sample;
pub mod server;
pub mod source;

pub use collector::Collector;
pub use server::{Bound, Options, Server};
pub use source::{CacheSource, FrontEnd, Number, Source};

/// The page: text, style and script in one file that loads nothing from elsewhere.
pub const PAGE: &str = include_str!("page.html");
