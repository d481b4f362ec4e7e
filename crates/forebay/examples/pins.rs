//! Reads without a copy: a pin shows the cached bytes as they were when it was taken.
//!
//! `cargo run --example pins`

use forebay::{Cache, CacheConfig, IoFlags, OpenOptions, Result};

/// What a search and an update of the same image show.
#[derive(Debug, PartialEq)]
pub struct Shown {
    /// Newlines that were counted in place.
    pub newlines: usize,
    /// Runs of memory that they were in.
    pub runs: usize,
    /// The first bytes of the pin after a write.
    pub pinned: Vec<u8>,
    /// The same bytes of the file, read then.
    pub read: Vec<u8>,
    /// Frames of 4 KiB that the pin held.
    pub frames: u64,
}

/// Counts in place, and writes what is pinned.
pub fn show() -> Result<Shown> {
    let path = std::env::temp_dir().join(format!("forebay-pins-{}.txt", std::process::id()));
    let cache = Cache::new(CacheConfig::with_budget(16 << 20))?;
    let mut options = OpenOptions::read_write();
    let file = options.create(true).open(&cache, &path)?;
    file.write_all_at("old line\n".repeat(10_000).as_bytes(), 0)?;

    // The bytes where they are cached; one or more runs of memory.
    let pinned = file.pin(0, 64 << 10, IoFlags::empty())?;
    assert!(!pinned.is_copy(), "an eighth of the cache may be pinned");
    let lines = |run: &&[u8]| run.iter().filter(|&&byte| byte == b'\n').count();
    let newlines = pinned.extents().iter().map(lines).sum();

    // A writer gets fresh frames and waits for no pin, not even its own.
    file.write_all_at(b"new line\n", 0)?;
    let mut read = vec![0; 8];
    file.read_exact_at(&mut read, 0)?;
    let first = pinned.extents()[0][..8].to_vec();

    let shown = Shown {
        newlines,
        runs: pinned.extents().len(),
        pinned: first,
        read,
        frames: cache.stats().pinned_frames,
    };
    drop(pinned);
    assert_eq!(cache.stats().pinned_frames, 0, "given back");
    file.close()?;
    std::fs::remove_file(&path).expect("made above");
    Ok(shown)
}

/// Shows it.
pub fn main() -> Result<()> {
    println!("{:#?}", show()?);
    Ok(())
}
