//! The JSON that the page and `top` read, with units at the end of names. Names of files are data,
//! never markup.
//!
//! Invariant: J1 the JSON of a view is bounded, because its snapshot is: below 100 KiB, in addition
//! to the names.

use crate::sample::{Point, View};
use forebay::{Bytes, FileSnapshot, StreamSnapshot};
use serde_json::{Map, Value, json};

/// Longest name of a file in the output, bytes of UTF-8. Longer names lose their middle.
const NAME_MAX: usize = 512;

/// The latest sample.
pub fn view(view: &View) -> Value {
    let stats: Map<String, Value> =
        view.point.stats.fields().into_iter().map(|(n, v)| (n.to_string(), v.into())).collect();
    let front: Map<String, Value> =
        view.front.iter().map(|n| (n.name.to_string(), n.value.into())).collect();
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "pid": std::process::id(),
        "what": view.what,
        "engine": view.engine,
        "healthy": view.health.is_ok(),
        "trouble": view.health.as_ref().err(),
        "now": point(&view.point),
        "cache": {
            "budget_bytes": view.point.stats.budget_bytes,
            "frames_bytes": view.point.stats.frames_total * 4096,
            "free_bytes": view.point.stats.frames_free * 4096,
            "sampled": view.snapshot.sampled,
            "bytes": bytes(&view.snapshot.sum),
        },
        "files": view.snapshot.files.iter().map(file).collect::<Vec<_>>(),
        "others": { "files": view.snapshot.others.0, "bytes": bytes(&view.snapshot.others.1) },
        "streams": view.snapshot.streams.iter().map(stream).collect::<Vec<_>>(),
        "stats": stats,
        "front": front,
    })
}

/// Points, oldest first.
pub fn history<'a>(points: impl Iterator<Item = &'a Point>) -> String {
    Value::Array(points.map(point).collect()).to_string()
}

/// One point.
fn point(point: &Point) -> Value {
    let since = &point.since;
    // Direct reads that reach the device are counted in `uncached_read_bytes`, too.
    let device = since.miss_bytes + since.readahead_bytes + since.uncached_read_bytes;
    let mut value = json!({
        "number": point.number,
        "at_seconds": point.at_seconds,
        "hit_ratio": point.hit_ratio(),
        "hits_per_second": point.rate(since.hits),
        "misses_per_second": point.rate(since.misses),
        "device_read_bytes_per_second": point.rate(device),
        "device_written_bytes_per_second": point.rate(since.written_bytes),
        "evicted_bytes_per_second": point.rate(since.evicted_blocks * 4096),
        "flushes_per_second": point.rate(since.flushes),
        "dirty_bytes": point.stats.dirty_bytes,
        "writeback_bytes": point.stats.writeback_bytes,
        "used_bytes": (point.stats.frames_total - point.stats.frames_free) * 4096,
    });
    for (name, taken) in &point.latencies {
        value[format!("{name}_per_second")] = point.rate(taken.count()).into();
        value[format!("{name}_p50_nanos")] = taken.quantile(0.5).into();
        value[format!("{name}_p99_nanos")] = taken.quantile(0.99).into();
    }
    value
}

fn bytes(bytes: &Bytes) -> Value {
    json!({
        "resident": bytes.resident,
        "hot": bytes.hot,
        "dirty": bytes.dirty,
        "writing": bytes.writing,
        "reading": bytes.reading,
        "unflushed": bytes.unflushed,
        "uncached": bytes.uncached,
    })
}

fn file(file: &FileSnapshot) -> Value {
    json!({
        "name": short(&file.name),
        "volume": file.volume.as_deref().map(short),
        "size_bytes": file.size,
        "bytes": bytes(&file.bytes),
        "cells": {
            "resident": levels(file, |b| b.resident),
            "hot": levels(file, |b| b.hot),
            "dirty": levels(file, |b| b.dirty),
            "writing": levels(file, |b| b.writing),
            "passing": levels(file, |b| b.reading.max(b.uncached)),
        },
    })
}

/// A digit for each cell: the part of its bytes in this state, in ninths, rounded up. An empty
/// string if no cell has any.
fn levels(file: &FileSnapshot, of: impl Fn(&Bytes) -> u64) -> String {
    let cell = (file.size / file.cells.len().max(1) as u64).max(1);
    if file.cells.iter().all(|bytes| of(bytes) == 0) {
        return String::new();
    }
    let digit = |bytes: &Bytes| {
        let ninths = (of(bytes) * 9).div_ceil(cell).min(9);
        char::from(b'0' + ninths as u8)
    };
    file.cells.iter().map(digit).collect()
}

fn stream(stream: &StreamSnapshot) -> Value {
    json!({
        "name": short(&stream.name),
        "reader": format!("{:x}", stream.reader),
        "position_bytes": stream.position,
        "window_bytes": stream.window,
        "uncached": stream.uncached,
        "passed_bytes": stream.bytes,
    })
}

fn short(name: &str) -> String {
    if name.len() <= NAME_MAX {
        return name.to_string();
    }
    let half = NAME_MAX / 2 - 2;
    let (mut head, mut tail) = (half, name.len() - half);
    while !name.is_char_boundary(head) {
        head -= 1;
    }
    while !name.is_char_boundary(tail) {
        tail += 1;
    }
    format!("{}...{}", &name[..head], &name[tail..])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Number;

    #[test]
    fn cells_are_digits() {
        let mut snapshot = FileSnapshot {
            name: "x".into(),
            volume: None,
            size: 4 * 65536,
            bytes: Bytes::default(),
            cells: vec![Bytes::default(); 4],
        };
        assert_eq!(levels(&snapshot, |b| b.resident), "");
        snapshot.cells[1].resident = 4096;
        snapshot.cells[3].resident = 65536;
        assert_eq!(levels(&snapshot, |b| b.resident), "0109");
    }

    #[test]
    fn j1_largest_snapshot_has_bounded_size() {
        let full = u64::MAX >> 20;
        let bytes = Bytes {
            resident: full,
            hot: full,
            dirty: full,
            writing: full,
            reading: full,
            unflushed: full,
            uncached: full,
        };
        let file = FileSnapshot {
            name: "/a".repeat(5000),
            volume: Some("v".repeat(5000)),
            size: full,
            bytes,
            cells: vec![bytes; forebay::CELLS],
        };
        let reader = StreamSnapshot {
            name: "n".repeat(5000),
            reader: full,
            position: full,
            window: full,
            uncached: true,
            bytes: full,
        };
        let snapshot = forebay::Snapshot {
            files: vec![file; forebay::FILES],
            others: (usize::MAX, bytes),
            sum: bytes,
            streams: vec![reader; 64],
            sampled: full,
        };
        let view = View {
            what: "export".into(),
            engine: "io_uring".into(),
            point: Point::default(),
            snapshot,
            front: vec![Number::counter("late_requests", "", full); 64],
            health: Err("no".into()),
        };
        let text = super::view(&view).to_string();
        let names = (2 * forebay::FILES + 64) * NAME_MAX;
        assert!(text.len() < (100 << 10) + names, "J1: {} bytes", text.len());
    }

    #[test]
    fn long_names_lose_their_middle() {
        let name = "\u{e4}".repeat(4000);
        let said = short(&name);
        assert!(said.len() <= NAME_MAX && said.contains("..."), "{}", said.len());
        assert_eq!(short("<script>"), "<script>");
    }
}
