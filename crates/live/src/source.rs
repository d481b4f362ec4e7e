//! The interface to a running process: what the collector samples.

use forebay::latency::Taken;
use forebay::{Cache, Snapshot, Stats};
use std::sync::Arc;

/// A number of the front end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Number {
    /// Its name, with the unit at the end.
    pub name: &'static str,
    /// Its help text, one line.
    pub help: &'static str,
    /// A counter, which only grows while the process lives; else a gauge.
    pub counts: bool,
    /// Its value now.
    pub value: u64,
}

impl Number {
    /// A counter.
    pub fn counter(name: &'static str, help: &'static str, value: u64) -> Self {
        Self { name, help, counts: true, value }
    }

    /// A gauge.
    pub fn gauge(name: &'static str, help: &'static str, value: u64) -> Self {
        Self { name, help, counts: false, value }
    }
}

/// A process that can be sampled. The collector calls it from one thread at a time, and limits how
/// often it takes a snapshot (collector.B1). No method waits for I/O.
pub trait Source: Send + Sync + 'static {
    /// What this process does, in a word: `export`, `mount`.
    fn what(&self) -> &str;

    /// Counters of the cache.
    fn stats(&self) -> Stats;

    /// Latencies of operations since the start.
    fn latencies(&self) -> [(&'static str, Taken); 3];

    /// A snapshot of the cache; see [`Cache::snapshot`].
    fn snapshot(&self, turn: usize) -> Snapshot;

    /// Name of the I/O engine.
    fn engine(&self) -> String;

    /// The front end, if there is one.
    fn front(&self) -> Option<&dyn FrontEnd>;

    /// The health check; an error is one line.
    fn health(&self) -> Result<(), String>;
}

/// A front end, which serves clients.
pub trait FrontEnd: Send + Sync + 'static {
    /// Prefix of its metrics: `nbd`, `fuse`.
    fn name(&self) -> &str;

    /// Its metrics.
    fn numbers(&self) -> Vec<Number>;

    /// More lines for [`crate::metrics`], with their types.
    fn more_metrics(&self) -> String {
        String::new()
    }
}

/// A cache, with or without a front end.
#[derive(Clone)]
pub struct CacheSource {
    what: String,
    cache: Cache,
    front: Option<Arc<dyn FrontEnd>>,
}

impl CacheSource {
    /// A source of a cache. From now on the open volumes keep the names of their files.
    pub fn new(what: &str, cache: &Cache) -> Self {
        cache.remember_names();
        Self { what: what.to_string(), cache: cache.clone(), front: None }
    }

    /// With a front end.
    #[must_use]
    pub fn with_front(self, front: Arc<dyn FrontEnd>) -> Self {
        Self { front: Some(front), ..self }
    }
}

impl Source for CacheSource {
    fn what(&self) -> &str {
        &self.what
    }

    fn stats(&self) -> Stats {
        self.cache.stats()
    }

    fn latencies(&self) -> [(&'static str, Taken); 3] {
        self.cache.latencies()
    }

    fn snapshot(&self, turn: usize) -> Snapshot {
        self.cache.snapshot(turn)
    }

    fn engine(&self) -> String {
        self.cache.engine().0.to_string()
    }

    fn front(&self) -> Option<&dyn FrontEnd> {
        self.front.as_deref()
    }

    fn health(&self) -> Result<(), String> {
        match self.cache.failed_bytes() {
            0 => Ok(()),
            bytes => Err(format!("{bytes} bytes could not be written and are kept in memory")),
        }
    }
}
