//! What processes of every kind answer alike: of their cache, and how a failure is told.
//!
//! No locks.

use super::proto::Refusal;
use forebay::{Cache, Error, ErrorKind, Residency};
use serde_json::{Map, Value, json};
use std::time::Instant;

/// The process and its cache; what it serves is added to it. `start`: when it began to serve.
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

/// What of a file is in the cache.
pub fn residency(name: &str, r: &Residency) -> Value {
    json!({
        "name": name,
        "block_size": r.block_size,
        "total_blocks": r.total_blocks,
        "resident_blocks": r.resident_blocks,
        "dirty_blocks": r.dirty_blocks,
        "referenced_blocks": r.referenced_blocks,
        "runs": r.runs,
    })
}

/// Counters as an object.
pub fn numbers(fields: Vec<(&'static str, u64)>) -> Map<String, Value> {
    fields.into_iter().map(|(name, value)| (name.to_string(), value.into())).collect()
}

/// Why something could not be done.
pub fn refusal(e: &Error) -> Refusal {
    let kind = match e.kind() {
        ErrorKind::InvalidInput => "invalid",
        ErrorKind::NotFound => "not-found",
        ErrorKind::Busy => "busy",
        _ => "failed",
    };
    Refusal::new(kind, e.to_string())
}
