//! A policy per request: a hot set stays in the cache while a file many times its size is read
//! past it, uncached; the same scan without the flag pushes the hot set's neighbours out. Prints
//! what is resident.
//!
//! `cargo run --example policy`

use forebay::{Cache, CacheConfig, File, IoFlags, OpenOptions, Result};

const HOT: u64 = 2 << 20;
const BIG: u64 = 64 << 20;

fn scan(file: &File, flags: IoFlags) -> Result<()> {
    let mut buf = vec![0; 128 << 10];
    for at in (0..BIG).step_by(buf.len()) {
        file.read_at_with(&mut buf, at, flags)?;
    }
    Ok(())
}

/// Blocks of the hot file and of the big one in the cache: before, after the uncached scan, after
/// the ordinary one.
pub fn residency() -> Result<[(u64, u64); 3]> {
    let dir = std::env::temp_dir().join(format!("forebay-policy-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("the temporary folder is writable");
    let cache = Cache::new(CacheConfig::with_budget(8 << 20))?;
    let open = |name: &str, size| {
        let options = OpenOptions::read_write().create(true).create_size(size).clone();
        options.open(&cache, dir.join(name))
    };
    let (hot, big) = (open("hot", HOT)?, open("big", BIG)?);
    let mut buf = vec![0; 4096];
    for _ in 0..3 {
        for at in (0..HOT).step_by(4096) {
            hot.read_at(&mut buf, at)?;
        }
    }
    let cached = |file: &File, len| Ok(file.residency(0, len)?.resident_blocks);
    let now = || Ok((cached(&hot, HOT)?, cached(&big, BIG)?));
    let before = now()?;
    scan(&big, IoFlags::UNCACHED)?;
    let uncached = now()?;
    scan(&big, IoFlags::empty())?;
    let last = now()?;
    drop((hot, big));
    std::fs::remove_dir_all(&dir).expect("made above");
    Ok([before, uncached, last])
}

/// Shows it.
pub fn main() -> Result<()> {
    let names = ["before", "after an uncached scan", "after a cached scan"];
    for (name, (hot, big)) in names.into_iter().zip(residency()?) {
        println!("{name:24} hot file {hot:5} blocks, big file {big:5} blocks in the cache");
    }
    Ok(())
}
