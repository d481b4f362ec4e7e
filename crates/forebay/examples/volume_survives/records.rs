//! The records that the writer appends, and the check of them.

use forebay::{Cache, CacheConfig, IoFlags, OpenOptions, Result, Volume, VolumeOptions};
use std::io::Write;
use std::path::Path;

const RECORD: usize = 3000;

fn open(folder: &Path) -> Result<(Cache, Volume)> {
    let cache = Cache::new(CacheConfig::with_budget(16 << 20))?;
    let volume = cache.open_volume(folder.join("data.fby"), &VolumeOptions::default())?;
    Ok((cache, volume))
}

/// A record: its number, repeated.
fn record(number: u64) -> Vec<u8> {
    number.to_le_bytes().into_iter().cycle().take(RECORD).collect()
}

/// Appends records until it is killed; prints its number once it is durable. Now and then a
/// synced file replaces another by its name, as editors do.
pub fn write_on(folder: &Path) -> Result<()> {
    let (_cache, volume) = open(folder)?;
    let log = OpenOptions::new().append(true).create(true).open_in(&volume, "/log")?;
    let mut number = log.size()? / RECORD as u64;
    loop {
        let at = log.append(&record(number), IoFlags::DSYNC)?;
        assert_eq!(at, number * RECORD as u64, "appends follow one another");
        if number.is_multiple_of(8) {
            volume.write("/state.new", &number.to_le_bytes())?;
            volume.open_file("/state.new")?.sync_data()?;
            volume.rename("/state.new", "/state")?;
            volume.sync()?;
        }
        number += 1;
        let mut out = std::io::stdout().lock();
        let written = writeln!(out, "durable {number}").and_then(|()| out.flush());
        written.expect("the parent process reads on");
    }
}

/// Counts the records, which must be complete and in order; `state` names one of them.
pub fn count_records(folder: &Path) -> Result<u64> {
    let (_cache, volume) = open(folder)?;
    let log = volume.read("/log")?;
    let whole = log.chunks_exact(RECORD);
    let count = whole.len() as u64;
    for (number, bytes) in whole.enumerate() {
        assert_eq!(bytes, record(number as u64), "record {number}");
    }
    let state: [u8; 8] = volume.read("/state")?.try_into().expect("eight bytes, or none");
    assert!(u64::from_le_bytes(state) < count, "the state is of a record that is there");
    volume.close()?;
    Ok(count)
}
