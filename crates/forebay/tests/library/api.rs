//! The documented behaviour of the calls, one test for each topic.

use crate::dir::{Dir, cache, config, open, options};
use forebay::{Cache, CacheConfig, DirectIo, ErrorKind, ExportMode, IoFlags, OpenOptions};
use forebay_base::task::block_on;
use std::os::unix::fs::MetadataExt;

#[test]
fn residency_and_extents() {
    let dir = Dir::new("residency");
    let cache = cache(8 << 20);
    let file = open(&cache, dir.path("a"), 4 << 20);
    file.write_at(&[1; 8192], 1 << 20).unwrap();
    let seen = file.residency(0, 4 << 20).unwrap();
    assert_eq!((seen.block_size, seen.total_blocks), (4096, 1024));
    assert_eq!((seen.resident_blocks, seen.dirty_blocks), (2, 2));
    assert_eq!(seen.runs, [(1 << 20, 8192)]);
    // A hole on the disk, data in the cache: data.
    let map = file.extents(0, 4 << 20).unwrap();
    let data: Vec<_> = map.iter().filter(|e| !e.hole).map(|e| e.len).collect();
    assert_eq!((map.len(), data), (3, vec![8192]));
    file.sync_data().unwrap();
    assert_eq!(file.residency(0, 4 << 20).unwrap().dirty_blocks, 0);
    file.trim(1 << 20, 8192).unwrap();
    assert_eq!(file.residency(0, 4 << 20).unwrap().resident_blocks, 0);
    assert_eq!(file.extents(4 << 20, 1).unwrap_err().kind(), ErrorKind::OutOfRange);
}

/// The story: a map of many extents was built in one poll, however many were wanted, and a prefetch
/// planned its complete range in one poll. An event loop served no other request meanwhile.
#[test]
fn maps_and_prefetches_go_in_steps() {
    let dir = Dir::new("steps");
    let cache = cache(64 << 20);
    let file = open(&cache, dir.path("a"), 32 << 20);
    for block in (0..4096).step_by(2) {
        file.write_at(&[1; 4096], block * 4096).unwrap();
    }
    file.sync_data().unwrap();
    let all = file.extents(0, 32 << 20).unwrap();
    assert_eq!(all.len(), 4096, "a checkerboard, and the hole behind it as part of its last");
    let export = file.export(ExportMode::Cached).unwrap();
    let (some, polls) = counted(export.clone().extents(0, 32 << 20, 1000));
    assert_eq!(some.unwrap(), all[..1000]);
    assert!(polls >= 4, "{polls}");
    assert_eq!(counted(export.clone().extents(8192, 1 << 20, 1)).0.unwrap().len(), 1);
    // Dirty blocks above a hole, far away.
    file.write_at(&[1; 4096], 31 << 20).unwrap();
    let (one, polls) = counted(export.clone().extents(4095 * 4096, 16 << 20, 1));
    assert_eq!(one.unwrap()[0].len, (31 << 20) - 4095 * 4096);
    assert!(polls >= 1);
    cache.drop_clean();
    let (done, polls) = counted(export.prefetch(0, 32 << 20));
    done.unwrap();
    assert!(polls >= 64, "{polls}");
    assert!(file.residency(0, 16 << 20).unwrap().resident_blocks > 2000);
}

/// Runs a future to its end; how many polls that took.
fn counted<T>(future: impl Future<Output = T>) -> (T, usize) {
    let (mut future, mut polls) = (std::pin::pin!(future), 0);
    let value = block_on(std::future::poll_fn(|cx| {
        polls += 1;
        future.as_mut().poll(cx)
    }));
    (value, polls)
}

#[test]
fn tunables_change_and_unknown_ones_are_named() {
    let cache = cache(16 << 20);
    for (name, _) in cache.tunables() {
        let (value, shown) = match name {
            "dirty_tracking" => ("folio", "folio"),
            "stable" => ("snapshot", "snapshot"),
            "stable_pages" => ("on", "on"),
            "uncached_strategy" => ("noaccess", "noaccess"),
            "cache_size" => ("12M", "12582912"),
            _ => ("1M", "1048576"),
        };
        cache.tune(name, value).unwrap();
        let now = cache.tunables().into_iter().find(|(n, _)| *n == name).unwrap();
        assert_eq!(now.1, shown, "{name}");
    }
    let bad = [
        ("dirty_byte", "1M"),
        ("dirty_bytes", "0"),
        ("dirty_bytes", "1T"),
        ("dirty_background_bytes", "2M"),
        ("stable", "1"),
    ];
    for (name, value) in bad {
        let error = cache.tune(name, value).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.to_string().contains(name), "{error}");
    }
    assert!(cache.tune("dirty_bytes", "lots").unwrap_err().to_string().contains("lots"));
}

/// The story: `dirty_bytes` could be set below the background limit. Writers then waited for
/// write-out that the flusher had not started.
#[test]
fn background_limit_is_never_above_dirty_limit() {
    let cache = cache(16 << 20);
    let limits = |cache: &forebay::Cache| -> Vec<u64> {
        let all = cache.tunables();
        let of = |name| all.iter().find(|(n, _)| *n == name).unwrap().1.parse().unwrap();
        vec![of("dirty_background_bytes"), of("dirty_bytes")]
    };
    let before = limits(&cache);
    cache.tune("dirty_bytes", "64k").unwrap();
    assert_eq!(limits(&cache), [65536, 65536]);
    assert_eq!(
        cache.tune("dirty_background_bytes", "65537").unwrap_err().kind(),
        ErrorKind::InvalidInput
    );
    // It is lowered with the limit, and raised with it again, to its earlier value.
    cache.tune("dirty_bytes", "8M").unwrap();
    assert_eq!(limits(&cache), [before[0], 8 << 20]);
    cache.tune("dirty_background_bytes", "6M").unwrap();
    cache.tune("dirty_bytes", "4M").unwrap();
    assert_eq!(limits(&cache), [4 << 20, 4 << 20]);
}

#[test]
fn another_caches_open_is_busy_until_the_first_is_closed() {
    let dir = Dir::new("busy");
    let (one, two) = (cache(4 << 20), cache(4 << 20));
    for round in 0..30u8 {
        let file = open(&one, dir.path("a"), 1 << 20);
        let error = options(1 << 20).open(&two, dir.path("a")).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Busy);
        assert!(error.to_string().contains("forebay-busy"), "no path in: {error}");
        // The cache that has it shares it.
        drop(options(1 << 20).open(&one, dir.path("a")).unwrap());
        file.write_at(&[round; 300_000], 5).unwrap();
        // The flusher and readahead are at work while it is closed.
        file.write_at_with(&[round; 4096], 0, IoFlags::UNCACHED).unwrap();
        let mut buf = vec![0; 65536];
        (0..4).for_each(|i| drop(file.read_at(&mut buf, (1 << 19) + i * 65536)));
        drop(file);
        let file = options(1 << 20).open(&two, dir.path("a")).unwrap();
        let mut back = vec![0; 300_000];
        file.read_at(&mut back, 5).unwrap();
        assert!(back.iter().all(|b| *b == round), "closing lost something in round {round}");
    }
    // Readers share.
    let ro = OpenOptions::read_write().write(false).create(false).clone();
    let _a = ro.open(&one, dir.path("a")).unwrap();
    let _b = ro.open(&two, dir.path("a")).unwrap();
}

#[test]
fn wrong_options_name_the_thing() {
    let dir = Dir::new("options");
    let cache = cache(4 << 20);
    let fails = |options: &OpenOptions, word: &str| {
        let error = options.open(&cache, dir.path("a")).expect_err(word);
        assert!(error.to_string().contains(word), "`{word}` is not in: {error}");
    };
    fails(&OpenOptions::read_write(), "/a");
    fails(&options(1 << 20).block_size(1000).clone(), "1000");
    fails(&options(1 << 20).block_size(8192).clone(), "8192");
    fails(&options(1 << 20).offset(2 << 20).clone(), "2097152");
    let wrong = |config: CacheConfig, word: &str| {
        let error = Cache::new(config).expect_err(word);
        assert!(error.to_string().contains(word), "`{word}` is not in: {error}");
    };
    wrong(config(1000), "1000");
    wrong(config(8 << 20).folio_size(5000), "5000");
    let unknown = IoFlags::from_bits_retain(1 << 30);
    let file = open(&cache, dir.path("b"), 1 << 20);
    assert_eq!(file.write_at_with(&[1], 0, unknown).unwrap_err().kind(), ErrorKind::Unsupported);
    let error = file.read_at_with(&mut [0], 0, IoFlags::DSYNC).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
}

#[test]
fn direct_wants_aligned_memory_and_says_so() {
    let dir = Dir::new("unaligned");
    let cache = cache(4 << 20);
    let options = options(1 << 20).direct_io(DirectIo::Auto).clone();
    let file = options.open(&cache, dir.path("a")).unwrap();
    let mut memory = vec![7u8; 3 * 4096];
    let skip = 4096 - memory.as_ptr() as usize % 4096 + 1;
    let odd = &mut memory[skip..skip + 4096];
    for flags in [IoFlags::DIRECT, IoFlags::DIRECT | IoFlags::FALLBACK] {
        let write = file.write_at_with(odd, 4096, flags);
        let read = file.read_at_with(odd, 4096, flags);
        if file.direct_io().0 && !flags.contains(IoFlags::FALLBACK) {
            assert_eq!(write.unwrap_err().kind(), ErrorKind::Unaligned);
            assert_eq!(read.unwrap_err().kind(), ErrorKind::Unaligned);
        } else {
            assert_eq!((write.unwrap(), read.unwrap()), (4096, 4096));
        }
    }
    let error = file.write_at_with(&[1; 100], 4096, IoFlags::DIRECT).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unaligned);
    assert!(odd.iter().all(|b| *b == 7));
}

#[test]
fn nowait_on_a_cold_and_a_warm_file() {
    let dir = Dir::new("nowait");
    let cache = cache(8 << 20);
    let file = open(&cache, dir.path("a"), 1 << 20);
    let mut buf = [0; 4096];
    let error = file.read_at_with(&mut buf, 0, IoFlags::NOWAIT).unwrap_err();
    assert_eq!((error.kind(), error.errno()), (ErrorKind::WouldBlock, 11));
    file.read_at(&mut buf, 0).unwrap();
    assert_eq!(file.read_at_with(&mut buf, 0, IoFlags::NOWAIT).unwrap(), 4096);
    assert_eq!(file.write_at_with(&[1; 8192], 1 << 19, IoFlags::NOWAIT).unwrap(), 8192);
}

#[test]
fn read_only_refuses_every_change() {
    let dir = Dir::new("read-only");
    std::fs::write(dir.path("a"), vec![3; 1 << 20]).unwrap();
    let cache = cache(4 << 20);
    let ro = OpenOptions::read_write().write(false).create(false).clone();
    let file = ro.open(&cache, dir.path("a")).unwrap();
    for flags in [IoFlags::empty(), IoFlags::UNCACHED, IoFlags::DSYNC] {
        assert_eq!(file.write_at_with(&[1], 0, flags).unwrap_err().kind(), ErrorKind::BadHandle);
    }
    assert_eq!(file.trim(0, 4096).unwrap_err().kind(), ErrorKind::BadHandle);
    assert_eq!(file.zero(0, 4096).unwrap_err().kind(), ErrorKind::BadHandle);
    file.sync_all().unwrap();
    let mut buf = [0; 10];
    assert_eq!(file.read_at(&mut buf, (1 << 20) - 5).unwrap(), 5);
    assert_eq!(buf, [3, 3, 3, 3, 3, 0, 0, 0, 0, 0]);
}

#[test]
fn shutdown_writes_everything_out() {
    let dir = Dir::new("shutdown");
    let cache = cache(8 << 20);
    let files: Vec<_> =
        (0..4u8).map(|i| open(&cache, dir.path(&format!("{i}")), 1 << 20)).collect();
    for (i, file) in files.iter().enumerate() {
        file.write_at(&vec![i as u8 + 1; 100_000], 777).unwrap();
    }
    assert!(cache.unwritten_bytes() > 0);
    cache.shutdown().unwrap();
    assert_eq!(cache.unwritten_bytes(), 0);
    for i in 0..4u8 {
        let bytes = std::fs::read(dir.path(&format!("{i}"))).unwrap();
        assert!(bytes[777..100_777].iter().all(|b| *b == i + 1));
    }
}

#[test]
fn trim_frees_host_space() {
    let dir = Dir::new("trim");
    let cache = cache(8 << 20);
    let file = open(&cache, dir.path("a"), 4 << 20);
    file.write_at(&vec![9; 4 << 20], 0).unwrap();
    file.sync_all().unwrap();
    let blocks = || std::fs::metadata(dir.path("a")).unwrap().blocks() * 512;
    assert!(blocks() >= 4 << 20);
    file.trim(0, 4 << 20).unwrap();
    assert!(blocks() < 1 << 20, "{}", blocks());
    let mut buf = vec![1; 4 << 20];
    file.read_at(&mut buf, 0).unwrap();
    assert!(buf.iter().all(|b| *b == 0));
}

/// The story: the last opener wrote out only if no other thread held the file at that moment. The
/// flusher holds it while it works, so blocks that were dirty then were lost without an error.
#[test]
fn close_writes_out_during_flusher_pass() {
    let dir = Dir::new("closing");
    let cache = cache(16 << 20);
    for round in 1..40u8 {
        let file = open(&cache, dir.path(&format!("{round}")), 4 << 20);
        file.write_at(&vec![round; 2 << 20], 0).unwrap();
        file.write_at_with(&[round; 65536], 2 << 20, IoFlags::UNCACHED).unwrap();
        cache.tune("dirty_background_bytes", if round % 2 == 0 { "0" } else { "1M" }).unwrap();
        file.write_at(&vec![round; 1 << 20], 3 << 20).unwrap();
        drop(file);
        let bytes = std::fs::read(dir.path(&format!("{round}"))).unwrap();
        let right = |range: std::ops::Range<usize>| bytes[range].iter().all(|b| *b == round);
        assert!(right(0..2 << 20) && right(3 << 20..4 << 20), "round {round}");
    }
    assert_eq!(cache.unwritten_bytes(), 0);
}
