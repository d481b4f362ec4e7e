//! Ten thousand files at once: few threads, the memory that is accounted for, and none of it lost. In a
//! process of its own, whose memory is that of one cache.

#[path = "../library/dir.rs"]
#[expect(dead_code, reason = "shared with the other tests of the library")]
mod dir;

use crate::dir::{Dir, cache, open};
use forebay::File;

/// Bytes that no row of the budget covers: the program's own pages, stacks of its threads, and what the
/// allocator keeps to itself.
const ALLOWANCE: u64 = 8 << 20;

/// File descriptors that this process may have.
fn descriptors() -> usize {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap();
    let line = limits.lines().find(|l| l.starts_with("Max open files")).unwrap();
    let soft = line.split_whitespace().nth(3).unwrap();
    soft.parse::<usize>().unwrap_or(usize::MAX)
}

fn status(key: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|l| l.starts_with(key)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// The threads of this process that belong to a cache.
fn own_threads() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let names = tasks.filter_map(|t| std::fs::read_to_string(t.path().join("comm")).ok());
    names.filter(|name| name.starts_with("forebay-bg")).count()
}

/// Each open file had a thread and 8 MiB of stack, opening one cost a walk over all, and closing one a
/// walk over the table of folios.
#[test]
fn ten_thousand_files_open_at_once() {
    // A file takes one while it does without direct I/O.
    let descriptors = descriptors();
    let count = if descriptors >= 10_600 { 10_000 } else { 2_000 };
    assert!(descriptors >= 2_600, "{descriptors} descriptors are too few for the test");
    let dir = Dir::new("ten-thousand");
    let before = status("VmRSS");
    let cache = cache(32 << 20);
    let path = |i: usize| dir.path(&format!("{i}"));
    let stamp = |i: usize| vec![(i % 251) as u8 + 1; 4096];
    let files: Vec<File> = (0..count).map(|i| open(&cache, path(i), 4096)).collect();
    for (i, file) in files.iter().enumerate() {
        file.write_at(&stamp(i), 0).unwrap();
    }
    assert!(own_threads() <= 16, "{} threads", own_threads());
    // What `stat --budget` adds up to, and no more than is allowed for beside it.
    let rows = cache.budget();
    let sum: u64 = rows.iter().map(|(_, _, bound)| bound).sum();
    let grown = (status("VmRSS") - before) << 10;

    assert!(grown <= sum + ALLOWANCE, "{grown} bytes, {sum} are accounted for: {rows:?}");
    for file in &files {
        file.sync_data().unwrap();
    }
    drop(files);
    assert_eq!(cache.unwritten_bytes(), 0);
    let mut back = vec![0; 4096];
    for i in 0..count {
        let file = open(&cache, path(i), 4096);
        assert_eq!(file.read_at(&mut back, 0).unwrap(), 4096);
        assert!(back == stamp(i), "file {i}");
    }
    let stats = cache.stats();
    assert_eq!(stats.dirty_bytes + stats.writeback_bytes + stats.unflushed_bytes, 0);
    for i in (0..count).step_by(97) {
        assert!(std::fs::read(path(i)).unwrap() == stamp(i), "file {i} below");
    }
}
