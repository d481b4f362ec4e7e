//! One number bounds everything.

use crate::dir::{Dir, cache, config, open, until};
use forebay::{Cache, IoFlags};

fn check(cache: &Cache, budget: u64, what: &str) {
    let lines = cache.budget();
    for (name, now, bound) in &lines {
        assert!(now <= bound, "{what}: {name} uses {now} of {bound}");
    }
    let sum: u64 = lines.iter().map(|(_, _, bound)| bound).sum();
    assert!(sum <= budget, "{what}: the bounds add up to {sum}, not {budget}: {lines:?}");
    assert!(sum >= budget * 7 / 10, "{what}: only {sum} of {budget} is used: {lines:?}");
}

#[test]
fn memory_bounds_add_up_for_every_budget_and_folio() {
    for folio_size in [4096, 16384, 65536, 2 << 20] {
        for budget in (20..=30).map(|shift| 1u64 << shift) {
            // Memory is only touched when it is used, except huge pages: none with up to 64 MiB
            // here.
            if budget > 64 << 20 && folio_size != 65536 {
                continue;
            }
            let config = config(budget).folio_size(folio_size);
            match Cache::new(config) {
                Ok(cache) => check(&cache, budget, &format!("{budget} in folios of {folio_size}")),
                Err(e) => assert!(budget < 8 << 20, "{budget} {folio_size}: {e}"),
            }
        }
    }
}

#[test]
fn budget_bounds_hold_under_load() {
    let dir = Dir::new("budget");
    for block_size in [512, 4096] {
        let cache = cache(2 << 20);
        cache.tune("dirty_bytes", "1M").unwrap();
        cache.tune("dirty_background_bytes", "1M").unwrap();
        let options = crate::dir::options(32 << 20).block_size(block_size).clone();
        let file = options.open(&cache, dir.path("a")).unwrap();
        let mut buf = vec![1; 300_000];
        for i in 0..100u64 {
            // One block in each folio is the worst case for what is kept per folio.
            file.write_at(&[1; 512], i * 65536).unwrap();
            check(&cache, 2 << 20, "small writes");
            file.read_at(&mut buf, i * 100_000).unwrap();
            file.read_at_with(&mut buf, i * 90_001, IoFlags::UNCACHED).unwrap();
            check(&cache, 2 << 20, "reads");
        }
        for i in 0..100u64 {
            file.write_at(&buf, i * 300_000).unwrap();
            check(&cache, 2 << 20, "large writes");
        }
    }
}

/// The story: the memory of the dirty sets was estimated from dirty bytes. One small block in each
/// folio counted for next to nothing, and all blocks of all folios for more than the bound.
#[test]
fn dirty_sets_are_counted_by_the_folio() {
    let dir = Dir::new("dirty-sets");
    let cache = cache(16 << 20);
    let options = crate::dir::options(16 << 20).block_size(512).clone();
    let file = options.open(&cache, dir.path("a")).unwrap();
    (0..50).for_each(|i| drop(file.write_at(&[1; 512], i * 65536)));
    let lines = cache.budget();
    let (_, now, _) = lines.iter().find(|l| l.0 == "dirty sets").unwrap();
    assert_eq!(*now, 50 * 72);
}

#[test]
fn many_files_on_one_small_cache() {
    let dir = Dir::new("many");
    let cache = cache(4 << 20);
    let files: Vec<_> = (0..32).map(|i| open(&cache, dir.path(&format!("{i}")), 1 << 20)).collect();
    std::thread::scope(|scope| {
        for part in 0..4 {
            let (files, cache) = (&files, &cache);
            scope.spawn(move || {
                for round in 0..60u64 {
                    for (i, file) in files.iter().enumerate().skip(part).step_by(4) {
                        let at = round * 17_000 % 1_000_000;
                        file.write_at(&[i as u8 + 1; 5000], at).unwrap();
                        let mut back = [0; 5000];
                        file.read_at(&mut back, at).unwrap();
                        assert!(back.iter().all(|b| *b == i as u8 + 1));
                    }
                    check(cache, 4 << 20, "many files");
                    // What is kept until a flush is bounded over all files: it cannot be reclaimed.
                    let stats = cache.stats();
                    assert!(stats.unflushed_bytes <= stats.arena_bytes / 4 + 65536, "{stats:?}");
                }
            });
        }
    });
    cache.shutdown().unwrap();
    drop(files);
    for i in 0..32u8 {
        let bytes = std::fs::read(dir.path(&format!("{i}"))).unwrap();
        assert!(bytes.iter().all(|b| *b == 0 || *b == i + 1), "file {i} holds another's bytes");
        assert!(bytes[..5000].iter().all(|b| *b == i + 1));
    }
}

/// Files without writers must not keep the window of unflushed blocks full. Otherwise each later
/// writer would flush after every pass.
#[test]
fn idle_files_leave_unflushed_window_free() {
    let dir = Dir::new("idle");
    let cache = cache(16 << 20);
    cache.tune("dirty_expire_centisecs", "1").unwrap();
    let window = cache.stats().arena_bytes / 5;
    let files: Vec<_> = (0..9).map(|i| open(&cache, dir.path(&format!("{i}")), 8 << 20)).collect();
    let (busy, idle) = files.split_first().unwrap();
    for file in idle {
        file.write_at(&vec![1; window as usize / 12], 0).unwrap();
    }
    until("the idle files' bytes are written out", || {
        let stats = cache.stats();
        stats.dirty_bytes + stats.writeback_bytes == 0
    });
    busy.write_at(&[2; 65536], 0).unwrap();
    until("the window is open again", || {
        busy.write_at(&[2; 4096], 0).unwrap();
        cache.stats().unflushed_bytes <= window / 2
    });
}
