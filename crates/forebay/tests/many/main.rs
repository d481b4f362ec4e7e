//! Ten thousand files at once: few threads, no more memory than the budget accounts for, and all of
//! it released. A process of its own, so that its memory is that of one cache.

#[path = "../library/dir.rs"]
#[expect(dead_code, reason = "shared with the other tests of the library")]
mod dir;

use crate::dir::{Dir, cache_on, config, open, until};
use forebay::{Aio, Cache, File};
use rustix::process::{Resource, getrlimit, setrlimit};

/// Bytes that no row of the budget covers: the program's own pages, stacks of its threads, and
/// memory that the allocator retains.
const ALLOWANCE: u64 = 8 << 20;

const FILES: usize = 10_000;
const BUDGET: u64 = 96 << 20;
/// Descriptors: one for each file, without direct I/O, and some for everything else.
const DESCRIPTORS: u64 = FILES as u64 + 600;
/// Threads that a cache may have on io_uring, whatever the number of files: eight of the kernel's
/// for each of two rings, the shared one and that of the flusher; one for requests that a ring
/// cannot carry out; five of its own. And the threads of the other engine, which do the I/O without
/// io_uring.
const THREADS: usize = 22;
const IO_THREADS: usize = 16;

/// File descriptors that this process may have, after the limit was raised as far as it goes.
fn descriptors() -> u64 {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    let _raised = setrlimit(Resource::Nofile, limit);
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

fn status(key: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|l| l.starts_with(key)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// The threads of this process, by name.
fn threads() -> Vec<String> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    tasks.filter_map(|t| std::fs::read_to_string(t.path().join("comm")).ok()).collect()
}

/// Reads as much as the cache holds, so that all of its frames are used.
fn fill(cache: &Cache, dir: &Dir) {
    let file = open(cache, dir.path("large"), BUDGET);
    let mut block = vec![0; 1 << 20];
    (0..BUDGET)
        .step_by(1 << 20)
        .for_each(|at| assert_eq!(file.read_at(&mut block, at).unwrap(), 1 << 20));
}

fn bounds(cache: &Cache) -> u64 {
    cache.budget().iter().map(|(_, _, bound)| bound).sum()
}

/// The story: each open file had a thread and 8 MiB of stack. Opening one walked all files, and
/// closing one walked the table of folios. Later the memory of the files came on top of the budget,
/// 50 MiB here.
#[test]
fn ten_thousand_files_open_at_once() {
    let descriptors = descriptors();
    if descriptors < DESCRIPTORS {
        let missing = format!("{DESCRIPTORS} open files (ulimit -Hn), there are {descriptors}");
        let allowed = std::env::var("FOREBAY_ALLOW_SKIP").is_ok_and(|v| v == "1");
        assert!(allowed, "this test requires {missing}");
        return println!("skipped: requires {missing}");
    }
    let dir = Dir::new("ten-thousand");
    let (before, threads_before) = (status("VmRSS"), threads().len());
    let on = |aio| cache_on(config(BUDGET).aio(aio));
    let (cache, most) = match on(Aio::IoUring) {
        Some(cache) => (cache, THREADS),
        None => (on(Aio::Threads).unwrap(), THREADS + IO_THREADS),
    };
    let path = |i: usize| dir.path(&format!("{i}"));
    let stamp = |i: usize| vec![(i % 251) as u8 + 1; 4096];
    fill(&cache, &dir);
    let files: Vec<File> = (0..FILES).map(|i| open(&cache, path(i), 4096)).collect();
    for (i, file) in files.iter().enumerate() {
        file.write_at(&stamp(i), 0).unwrap();
    }
    let threads = threads();
    let ours = threads.len() - threads_before;
    assert!((1..=most).contains(&ours), "{ours} threads for {FILES} files: {threads:?}");
    // The sum of `stat --budget`, and the allowance for memory that no row covers.
    let grown = || (status("VmRSS") - before) << 10;
    let fits = || bounds(&cache) <= BUDGET && grown() <= BUDGET + ALLOWANCE;
    until("files and frames are within the budget (T1)", fits);
    println!("{} bytes, rows {:?}", grown(), cache.budget());
    for file in &files {
        file.sync_data().unwrap();
    }
    let frames = || cache.stats().frames_total;
    let with_files_open = frames();
    drop(files);
    until("the frames are given back", || frames() > with_files_open + (20 << 20) / 4096);
    assert_eq!(cache.unwritten_bytes(), 0);
    let mut back = vec![0; 4096];
    for i in 0..FILES {
        let file = open(&cache, path(i), 4096);
        assert_eq!(file.read_at(&mut back, 0).unwrap(), 4096);
        assert!(back == stamp(i), "file {i}");
    }
    let stats = cache.stats();
    assert_eq!(stats.dirty_bytes + stats.writeback_bytes + stats.unflushed_bytes, 0);
    for i in (0..FILES).step_by(97) {
        assert!(std::fs::read(path(i)).unwrap() == stamp(i), "file {i} below");
    }
}
