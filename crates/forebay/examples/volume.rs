//! A volume: a file system of its own in one image, with checksums, used by path as `std::fs` is.
//!
//! `cargo run --example volume`

use forebay::{Cache, CacheConfig, CreateVolume, IoFlags, OpenOptions, Result};
use forebay::{Volume, VolumeOptions};
use std::io::{BufRead, BufReader};

/// The lines of a log that was written, closed, opened again and read.
pub fn lines() -> Result<Vec<String>> {
    let path = std::env::temp_dir().join(format!("forebay-volume-{}.fby", std::process::id()));
    Volume::create(&path, &CreateVolume::default().size(64 << 20))?;
    let cache = Cache::new(CacheConfig::with_budget(32 << 20))?;

    let volume = cache.open_volume(&path, &VolumeOptions::default())?;
    volume.create_dir("/logs")?;
    let log = OpenOptions::new().append(true).create(true).open_in(&volume, "/logs/today")?;
    for n in 1..=3 {
        // Durable when it returns; other writers may append at the same time.
        log.append(format!("line {n}\n").as_bytes(), IoFlags::DSYNC)?;
    }
    drop(log);
    // A new content takes the place of an old one in one step.
    volume.write("/state.new", b"3")?;
    volume.rename("/state.new", "/state")?;
    // The next opening needs no recovery.
    volume.close()?;

    let volume = cache.open_volume(&path, &VolumeOptions::default().read_only(true))?;
    let log = OpenOptions::new().read(true).open_in(&volume, "/logs/today")?;
    // `stream` is `io::Read + Write + Seek`.
    let lines: std::io::Result<Vec<String>> = BufReader::new(log.stream()).lines().collect();
    drop((log, volume));
    std::fs::remove_file(&path).expect("made above");
    Ok(lines.expect("text"))
}

/// Shows it.
pub fn main() -> Result<()> {
    lines()?.iter().for_each(|line| println!("{line}"));
    Ok(())
}
