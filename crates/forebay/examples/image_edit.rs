//! Opens a disk image, changes 4 KiB in the middle of it, and shows how many bytes that made
//! dirty and how many were written: exactly these, not the page or the folio around them.
//!
//! `cargo run --example image_edit`

use forebay::{Cache, CacheConfig, OpenOptions, Result};

const SIZE: u64 = 64 << 20;

/// Bytes dirtied and bytes written.
pub fn edit() -> Result<(u64, u64)> {
    let dir = std::env::temp_dir().join(format!("forebay-image-edit-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("the temporary folder is writable");
    let cache = Cache::new(CacheConfig::with_budget(16 << 20))?;
    let options = OpenOptions::read_write().create(true).create_size(SIZE).clone();
    let image = options.open(&cache, dir.join("disk.img"))?;

    // The neighbourhood is cached, as it would be in an image in use.
    let mut around = vec![0; 1 << 20];
    image.read_at(&mut around, SIZE / 2)?;

    image.write_at(&[0xab; 4096], SIZE / 2 + 40960)?;
    let dirtied = cache.stats().dirty_bytes;
    image.sync_data()?;
    let written = cache.stats().written_bytes;

    drop(image);
    std::fs::remove_dir_all(&dir).expect("made above");
    Ok((dirtied, written))
}

/// Shows it.
pub fn main() -> Result<()> {
    let (dirtied, written) = edit()?;
    println!("4096 bytes changed: {dirtied} bytes dirty, {written} bytes written by the sync");
    Ok(())
}
