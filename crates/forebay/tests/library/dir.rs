//! A folder of its own for each test, and caches and files in it.

use forebay::{Aio, Cache, CacheConfig, DirectIo, ErrorKind, File, OpenOptions};
use std::path::{Path, PathBuf};

pub struct Dir(PathBuf);

impl Dir {
    pub fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("forebay-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Self(dir)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _gone = std::fs::remove_dir_all(&self.0);
    }
}

pub fn config(budget: u64) -> CacheConfig {
    CacheConfig::with_budget(budget).aio(Aio::Threads)
}

pub fn cache(budget: u64) -> Cache {
    Cache::new(config(budget)).unwrap()
}

/// This machine lacks what a variant of the test requires: fails, or with `FOREBAY_ALLOW_SKIP=1`
/// prints that it skips the variant.
pub fn skip(why: &forebay::Error) {
    assert_eq!(std::env::var("FOREBAY_ALLOW_SKIP").as_deref(), Ok("1"), "{why}");
    println!("skipped: {why}");
}

/// A cache on the engine that the configuration names. Containers forbid io_uring; the threads
/// engine runs everywhere.
pub fn cache_on(config: CacheConfig) -> Option<Cache> {
    let aio = config.aio;
    match Cache::new(config) {
        Ok(cache) => Some(cache),
        Err(e) if aio == Aio::IoUring && e.kind() == ErrorKind::Unsupported => {
            skip(&e);
            None
        }
        Err(e) => panic!("{e}"),
    }
}

pub fn options(size: u64) -> OpenOptions {
    OpenOptions::read_write()
        .create(true)
        .create_size(size)
        .size_limit(size)
        .direct_io(DirectIo::Off)
        .clone()
}

pub fn open(cache: &Cache, path: impl AsRef<Path>, size: u64) -> File {
    options(size).open(cache, path).unwrap()
}

/// Waits for what happens in the background.
pub fn until(what: &str, done: impl Fn() -> bool) {
    let given_up = std::time::Instant::now() + std::time::Duration::from_secs(300);
    while !done() {
        assert!(std::time::Instant::now() < given_up, "{what}: not within 300 s");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}
