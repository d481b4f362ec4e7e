//! Answers that processes of every kind give: about their cache, and refusals.
//!
//! No locks.

use super::proto::Refusal;
use forebay::{Cache, Error, ErrorKind, Residency, Volume};
use forebay_base::units::format_size;
use serde_json::{Map, Value, json};
use std::time::Instant;

/// The state of the process and its cache; callers add what it serves. `start`: when it began to
/// serve.
pub fn stat(cache: &Cache, start: Instant) -> Value {
    let counters = cache.stats();
    let mut stats: Map<String, Value> = numbers(counters.fields());
    stats.insert("write_amplification".into(), counters.write_amplification().into());
    let (engine, reason) = cache.engine();
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "pid": std::process::id(),
        "uptime_seconds": start.elapsed().as_secs(),
        "aio": engine,
        "aio_reason": reason,
        "unwritten_bytes": cache.unwritten_bytes(),
        "stats": stats,
    })
}

/// How a volume allocates blocks, and what it has allocated since it was opened.
pub fn alloc(volume: &Volume) -> Value {
    let stats = volume.alloc_stats();
    json!({
        "mode": volume.alloc_mode().to_string(),
        "direct_requests": stats.direct_requests,
        "direct_bytes": stats.direct_bytes,
        "direct_extents": stats.direct_extents,
        "written_back": stats.written_back,
        "written_back_bytes": stats.written_back_bytes,
        "written_back_extents": stats.written_back_extents,
        "turns": stats.turns,
        "windows": stats.windows,
        "returned_bytes": stats.returned_bytes,
        "held_bytes": stats.held_bytes,
    })
}

/// Memory by purpose.
pub fn budget(cache: &Cache) -> Value {
    let row =
        |what: String, now: u64, bound: u64| json!({ "what": what, "now": now, "bound": bound });
    let rows = cache.budget().into_iter();
    Value::Array(rows.map(|(what, now, bound)| row(what, now, bound)).collect())
}

/// The knobs of the cache.
pub fn tunables(cache: &Cache) -> Map<String, Value> {
    cache.tunables().into_iter().map(|(n, v)| (n.to_string(), v.into())).collect()
}

/// Checks a new `cache_size`; `least`: what this process needs, bytes.
pub fn whole_size(whole: u64, least: u64) -> forebay::Result<u64> {
    if whole < least {
        let text = format!("cache_size={whole}: at least {}", format_size(least));
        return Err(Error::new(ErrorKind::InvalidInput, "tune", text));
    }
    Ok(whole)
}

/// Which blocks of a file are cached.
pub fn residency(name: &str, r: &Residency) -> Value {
    json!({
        "name": name,
        "block_size": r.block_size,
        "total_blocks": r.total_blocks,
        "resident_blocks": r.resident_blocks,
        "dirty_blocks": r.dirty_blocks,
        "referenced_blocks": r.referenced_blocks,
        "pinned_blocks": r.pinned_blocks,
        "runs": r.runs,
    })
}

/// Counters as an object.
pub fn numbers(fields: impl IntoIterator<Item = (&'static str, u64)>) -> Map<String, Value> {
    fields.into_iter().map(|(name, value)| (name.to_string(), value.into())).collect()
}

/// The refusal of a process that serves no block device.
pub fn no_device() -> Refusal {
    Refusal::new("not-found", "this process serves no block device")
}

/// The refusal of a process that serves no mount.
pub fn no_mount() -> Refusal {
    Refusal::new("not-found", "this process serves no mount")
}

/// The refusal for an error of the library.
pub fn refusal(e: &Error) -> Refusal {
    let kind = match e.kind() {
        ErrorKind::InvalidInput => "invalid",
        ErrorKind::NotFound => "not-found",
        ErrorKind::Busy => "busy",
        _ => "failed",
    };
    Refusal::new(kind, e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay::{CacheConfig, IoFlags, OpenOptions};

    /// No command pins, so the answers of `stat` and `fincore` are made here, for a program that
    /// does.
    #[test]
    fn pin_shows_in_stat_budget_and_residency() {
        let path = std::env::temp_dir().join(format!("forebay-answers-{}", std::process::id()));
        let cache = Cache::new(CacheConfig::with_budget(16 << 20)).unwrap();
        let file = OpenOptions::read_write().create(true).open(&cache, &path).unwrap();
        file.write_all_at(&[1; 64 << 10], 0).unwrap();
        let shown = || {
            let stat = stat(&cache, Instant::now());
            let rows = budget(&cache);
            let row = rows.as_array().unwrap().iter().find(|row| row["what"] == "pinned frames");
            let of_file = residency("f", &file.residency(0, 64 << 10).unwrap());
            (
                stat["stats"]["pinned_frames"].as_u64().unwrap(),
                row.map_or(0, |row| row["now"].as_u64().unwrap()),
                of_file["pinned_blocks"].as_u64().unwrap(),
            )
        };
        assert_eq!(shown(), (0, 0, 0));
        let pinned = file.pin(4096, 12_000, IoFlags::empty()).unwrap();
        assert!(!pinned.is_copy());
        assert_eq!(shown(), (3, 3 * 4096, 3));
        drop(pinned);
        assert_eq!(shown(), (0, 0, 0));
        file.close().unwrap();
        std::fs::remove_file(&path).unwrap();
    }
}
