//! What is asked of a running process.

use forebay::latency::Taken;
use forebay::{Cache, Picture, Stats};
use std::sync::Arc;

/// A number of the front end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Number {
    /// With its unit at the end.
    pub name: &'static str,
    /// What it is, in a line.
    pub help: &'static str,
    /// It only grows while the process lives; else it goes up and down.
    pub counts: bool,
    /// Now.
    pub value: u64,
}

impl Number {
    /// One that only grows.
    pub fn counter(name: &'static str, help: &'static str, value: u64) -> Self {
        Self { name, help, counts: true, value }
    }

    /// One that goes up and down.
    pub fn gauge(name: &'static str, help: &'static str, value: u64) -> Self {
        Self { name, help, counts: false, value }
    }
}

/// Who answers. Called once a second at most, from one thread at a time; nothing of it waits for I/O.
pub trait Source: Send + Sync + 'static {
    /// What this process does, in a word: `export`, `mount`.
    fn what(&self) -> &str;

    /// Numbers of the cache.
    fn stats(&self) -> Stats;

    /// How long operations took so far.
    fn latencies(&self) -> [(&'static str, Taken); 3];

    /// What is in the cache; see [`Cache::picture`].
    fn picture(&self, turn: usize) -> Picture;

    /// Name of the I/O engine.
    fn engine(&self) -> String;

    /// The front end, if there is one.
    fn front(&self) -> Option<&dyn FrontEnd>;

    /// Whether all is well; what is not, in a line.
    fn health(&self) -> Result<(), String>;
}

/// What talks to clients.
pub trait FrontEnd: Send + Sync + 'static {
    /// What its numbers are called after: `nbd`, `fuse`.
    fn name(&self) -> &str;

    /// Its numbers.
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
    /// Of a cache. Names of files in volumes that are open are remembered from now on.
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

    fn picture(&self, turn: usize) -> Picture {
        self.cache.picture(turn)
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
