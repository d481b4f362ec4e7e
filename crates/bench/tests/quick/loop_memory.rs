//! What the loop behaviour leaves in the kernel's page cache, which only cachestat or mincore can
//! tell. Ids are those of the checklist.

use forebay::{Aio, Cache, CacheConfig, DirectIo, File, OpenOptions};
use forebay_bench::harness::sys::page_cache_bytes;
use std::path::PathBuf;

const SIZE: u64 = 96 << 20;

struct Lab {
    path: PathBuf,
    cache: Cache,
    file: File,
    seen: std::fs::File,
}

impl Lab {
    fn new(name: &str, direct_io: DirectIo) -> Self {
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
        let config = CacheConfig::with_budget(16 << 20).aio(Aio::Threads);
        let cache = Cache::new(config).unwrap();
        let options =
            OpenOptions::read_write().create(true).create_size(SIZE).direct_io(direct_io).clone();
        let file = options.open(&cache, &path).unwrap();
        let seen = std::fs::File::open(&path).unwrap();
        Self { path, cache, file, seen }
    }

    /// Bytes of the image in the kernel's page cache.
    fn below(&self) -> u64 {
        page_cache_bytes(&self.seen, 0, SIZE).unwrap()
    }

    /// Whether the file is on a file system that does direct I/O.
    fn direct(&self) -> bool {
        let (on, why) = self.file.direct_io();
        if !on {
            assert!(
                std::env::var("FOREBAY_ALLOW_SKIP").is_ok_and(|v| v == "1"),
                "requires direct I/O: {why}"
            );
            eprintln!("skipped: requires a file that is eligible for direct I/O: {why}");
        }
        on
    }

    fn write_and_read_all(&self) -> u64 {
        let (mut buf, mut most) = (vec![7u8; 1 << 20], 0);
        for at in (0..SIZE).step_by(1 << 20) {
            self.file.write_at(&buf, at).unwrap();
            most = most.max(self.below());
        }
        self.file.sync_data().unwrap();
        for at in (0..SIZE).step_by(1 << 20) {
            self.file.read_at(&mut buf, at).unwrap();
            most = most.max(self.below());
        }
        most
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Any amount of data leaves next to nothing below; without direct I/O all of it stays there, so
/// that this test sees what it looks for.
#[test]
fn l15_data_leaves_nothing_in_the_cache_below() {
    let on = Lab::new("l15-on", DirectIo::Auto);
    if !on.direct() {
        return;
    }
    let most = on.write_and_read_all();
    assert!(most <= 1 << 20, "{most} bytes in the page cache");
    let off = Lab::new("l15-off", DirectIo::Off);
    let most = off.write_and_read_all();
    assert!(most > SIZE / 2, "{most} bytes in the page cache, with it in use");
}

/// Switching on writes the kernel's dirty pages out and drops them; from then on none comes back.
#[test]
fn l2_switching_on_empties_the_page_cache_of_the_image() {
    let lab = Lab::new("l2", DirectIo::Auto);
    if !lab.direct() {
        return;
    }
    for _ in 0..3 {
        lab.file.set_direct_io(DirectIo::Off).unwrap();
        lab.write_and_read_all();
        assert!(lab.below() > SIZE / 2);
        lab.file.set_direct_io(DirectIo::On).unwrap();
        assert_eq!(lab.below(), 0, "left behind by the switch");
        lab.cache.drop_clean();
        assert_eq!(lab.write_and_read_all(), 0);
    }
    lab.file.set_direct_io(DirectIo::Off).unwrap();
    let mut back = vec![0; 4096];
    lab.cache.drop_clean();
    lab.file.read_at(&mut back, SIZE / 2).unwrap();
    assert_eq!(back, vec![7; 4096]);
}
