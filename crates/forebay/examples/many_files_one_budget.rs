//! Many files share one cache and one number: sixteen files of 4 MiB each are read and changed
//! through a cache of 8 MiB, and no line of the budget is ever above its bound.
//!
//! `cargo run --example many_files_one_budget`

use forebay::{Cache, CacheConfig, OpenOptions, Result};

const BUDGET: u64 = 8 << 20;
const SIZE: u64 = 4 << 20;

/// The lines of the budget after the work: what, bytes now, bound.
pub fn work() -> Result<Vec<(String, u64, u64)>> {
    let dir = std::env::temp_dir().join(format!("forebay-many-files-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("the temporary folder is writable");
    let cache = Cache::new(CacheConfig::with_budget(BUDGET))?;
    let options = OpenOptions::read_write().create(true).create_size(SIZE).clone();
    let open = |i| options.open(&cache, dir.join(format!("file-{i}")));
    let files = (0..16).map(open).collect::<Result<Vec<_>>>()?;
    let mut buf = vec![0; 64 << 10];
    for at in (0..SIZE).step_by(buf.len()) {
        for file in &files {
            file.read_at(&mut buf, at)?;
            file.write_at(&buf[..4096], at)?;
        }
    }
    let lines = cache.budget();
    cache.shutdown()?;
    drop(files);
    std::fs::remove_dir_all(&dir).expect("made above");
    Ok(lines)
}

/// Shows it.
pub fn main() -> Result<()> {
    let lines = work()?;
    for (what, now, bound) in &lines {
        println!("{what:32} {now:9} of {bound:9} bytes");
    }
    println!(
        "{:32} {:22} bytes",
        "all bounds, of a budget of 8 MiB",
        lines.iter().map(|l| l.2).sum::<u64>()
    );
    Ok(())
}
