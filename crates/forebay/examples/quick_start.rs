//! Quick start: one cache, one image, a read, a write, and what of it is cached.
//!
//! `cargo run --example quick_start`

use forebay::{Cache, CacheConfig, IoFlags, OpenOptions, Residency, Result};

const SIZE: u64 = 16 << 20;

/// What is cached after one block was read, one was written, and the rest was read uncached.
pub fn start() -> Result<Residency> {
    let path = std::env::temp_dir().join(format!("forebay-start-{}.img", std::process::id()));

    // One number bounds all memory that grows with data or load.
    let cache = Cache::new(CacheConfig::with_budget(32 << 20))?;
    let image = OpenOptions::read_write().create(true).create_size(SIZE).open(&cache, &path)?;

    // Through the cache: the block stays.
    let mut block = vec![0; 4096];
    image.read_exact_at(&mut block, 0)?;

    // Into the cache: written back later, durable after the sync.
    image.write_all_at(b"hello", 8192)?;
    image.sync_data()?;

    // Past the cache: cached blocks are served, the others leave nothing behind.
    let mut buf = vec![0; 1 << 20];
    for at in (0..SIZE).step_by(buf.len()) {
        image.read_exact_at_with(&mut buf, at, IoFlags::UNCACHED)?;
    }

    let cached = image.residency(0, SIZE)?;
    // Reports an error that dropping the file could only log.
    image.close()?;
    std::fs::remove_file(&path).expect("made above");
    Ok(cached)
}

/// Shows it.
pub fn main() -> Result<()> {
    let cached = start()?;
    println!("{} of {} blocks are cached:", cached.resident_blocks, cached.total_blocks);
    for (offset, len) in cached.runs {
        println!("  {len} bytes from {offset} on");
    }
    Ok(())
}
