//! Pins on real threads and both real engines, with frames that are poisoned when they are given
//! back: each pin shows one version of its bytes to its end, while writers, truncates, punches,
//! direct writes, evictions and resizes of the cache run. Then threads pin all that the cache gives
//! them: never more than an eighth of its frames, and its parts stay within the budget.
//!
//! `FOREBAY_PIN_ROUNDS=500` plays longer.

use crate::engines::engine;
use forebay_base::task::block_on;
use forebay_base::world::{RealWorld, split_mix};
use forebay_base::{ErrorKind, IoFlags};
use forebay_block::{Aio, DirectIo, Engine, FileDevice, FileOptions};
use forebay_cache::{Config, PageCache, Pinned};
use forebay_iomap::file::ZeroFlags;
use forebay_iomap::identity::Identity;
use forebay_iomap::{MappedFile, PinRequest, Source};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const BLOCK: u64 = 4096;
const SIZE: u64 = 2 << 20;
/// Blocks that are changed and pinned: few, so that the threads meet.
const BLOCKS: u64 = 64;
const STEPS: usize = 200;
/// Threads that pin all they can, the blocks of each, and the pins that each holds: together more
/// than an eighth of the largest cache, which has 1024 frames.
const CROWD: (u64, u64, usize) = (4, 128, 40);
const MIB: u64 = 1 << 20;

struct Image(PathBuf);

impl Drop for Image {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

struct Subject {
    cache: forebay_base::sync::Arc<PageCache>,
    file: Arc<MappedFile>,
    direct: bool,
}

/// Each block of a pin holds one value that a writer chose, and zeros; no writer writes poison. A
/// copy is a read, of which the blocks of the cache may be of different moments.
fn check(bytes: &[u8], is_copy: bool) {
    let what = if is_copy { "a copy" } else { "a pin" };
    for block in bytes.chunks(BLOCK as usize) {
        let value = block.iter().copied().max().unwrap_or(0);
        assert!(value < 0x80, "pin.P3: {what} shows a frame that was given back: {value:#x}");
        let is_one = block.iter().all(|&byte| byte == value || byte == 0);
        assert!(is_copy || is_one, "pin.P1: {what} is torn");
    }
}

impl Subject {
    fn open(path: &Path, engine: &Engine, seed: u64) -> Self {
        let mut rng = seed;
        let direct = split_mix(&mut rng).is_multiple_of(2);
        let block = [512, 4096][(split_mix(&mut rng) % 2) as usize];
        let options = FileOptions {
            direct_io: if direct { DirectIo::Auto } else { DirectIo::Off },
            create_size: Some(SIZE),
            ..FileOptions::default()
        };
        let _ = std::fs::remove_file(path);
        let device = FileDevice::open(path, &options, engine).unwrap();
        let config = Config {
            huge_pages: false,
            poison_frames: true,
            budget_max: Some(4 * MIB),
            ..Config::with_budget(2 * MIB)
        };
        let cache = PageCache::new(config, RealWorld::with_seed(seed)).unwrap();
        let ops = Arc::new(Identity::new(device));
        let file = MappedFile::new(&cache, ops, block, SIZE, false).unwrap();
        Self { cache, file, direct: split_mix(&mut rng).is_multiple_of(2) }
    }

    fn write(&self, rng: &mut u64) {
        let handle = self.file.open_handle();
        let (block, value) = (split_mix(rng) % BLOCKS, 1 + split_mix(rng) % 0x7e);
        let flags = match split_mix(rng) % 8 {
            0 if self.direct => IoFlags::DIRECT,
            1 => IoFlags::UNCACHED,
            2 => IoFlags::START_WRITEBACK,
            _ => IoFlags::empty(),
        };
        let count = 1 + split_mix(rng) % 3;
        let mut bytes =
            forebay_base::buf::AlignedBuf::copy_of(&vec![value as u8; (count * BLOCK) as usize]);
        let source = Source::Owned(&mut bytes);
        block_on(self.file.write(&handle, block * BLOCK, source, flags)).unwrap();
    }

    fn cut(&self, rng: &mut u64) {
        let at = split_mix(rng) % (BLOCKS * BLOCK);
        match split_mix(rng) % 4 {
            0 => block_on(self.file.set_len(at)).unwrap(),
            1 => block_on(self.file.set_len(SIZE)).unwrap(),
            _ => {
                let flags = ZeroFlags { keep_allocated: false, fast_only: false };
                let done = block_on(self.file.zero(at, 1 + split_mix(rng) % 9000, flags));
                // Cut off meanwhile.
                assert!(done.is_ok() || done.unwrap_err().kind() == ErrorKind::OutOfRange);
            }
        }
    }

    fn evict(&self, rng: &mut u64) {
        let at = split_mix(rng) % SIZE;
        match split_mix(rng) % 4 {
            0 => drop(self.cache.drop_clean()),
            1 => self.cache.drop_range(&self.file.mapping, at..at + 65536),
            2 => drop(self.cache.reclaim(8)),
            _ => {
                let to = 2 * MIB + split_mix(rng) % (2 * MIB);
                // Pins may hold what would go.
                let done = block_on(self.cache.resize(to));
                assert!(done.is_ok() || done.unwrap_err().kind() == ErrorKind::Busy);
            }
        }
    }

    fn pin(&self, rng: &mut u64, held: &mut Vec<(Pinned, Vec<u8>)>) {
        let handle = self.file.open_handle();
        let (offset, len) = (split_mix(rng) % BLOCKS * BLOCK, split_mix(rng) as usize % 20_000 + 1);
        let may_copy = split_mix(rng).is_multiple_of(4);
        let flags = [IoFlags::empty(), IoFlags::UNCACHED][usize::from(may_copy)];
        let request = PinRequest { offset, len, flags, may_copy, blocking: true };
        let pinned = match self.file.try_pin(&handle, &request) {
            Some(pinned) => Some(pinned.unwrap()),
            None => block_on(self.file.pin(&handle, request)).unwrap(),
        };
        if let Some(pinned) = pinned {
            let bytes = pinned.to_vec();
            check(&bytes, pinned.is_copy());
            held.push((pinned, bytes));
        }
        // The counters are read one by one, and this thread may stop in between.
        let are_frames = |_| {
            let stats = self.cache.stats();
            stats.pinned_orphans <= stats.pinned_frames + 8
        };
        assert!((0..3).any(are_frames), "orphans are pinned frames");
        // A write to what this thread has pinned itself.
        self.write(rng);
        if held.len() > 6 {
            let at = split_mix(rng) as usize % held.len();
            let (pinned, bytes) = held.swap_remove(at);
            assert!(pinned.to_vec() == bytes, "pin.P1: the bytes of a pin have changed");
        }
    }
}

/// What several threads have pinned, each frame once, and how often they were refused.
#[derive(Default)]
struct Crowd {
    held: AtomicU64,
    refused: AtomicU64,
}

impl Crowd {
    fn end_pin(&self, held: &mut Vec<(Pinned, Vec<u8>)>, rng: &mut u64) {
        let (pinned, bytes) = held.swap_remove(split_mix(rng) as usize % held.len());
        assert!(pinned.to_vec() == bytes, "pin.P1: the bytes of a pin have changed");
        self.held.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Subject {
    /// Pins frames that no other pin holds: each was written after the last pin of its block. The
    /// cache's own count is no judge: it has what a refused pin reserves for a moment.
    fn pin_all(&self, blocks: Range<u64>, rng: &mut u64, crowd: &Crowd) -> Vec<(Pinned, Vec<u8>)> {
        let (handle, mut held) = (self.file.open_handle(), Vec::new());
        for _ in 0..STEPS {
            let offset = (blocks.start + split_mix(rng) % (blocks.end - blocks.start)) * BLOCK;
            let value = vec![1 + (split_mix(rng) % 0x7e) as u8; BLOCK as usize];
            let mut bytes = forebay_base::buf::AlignedBuf::copy_of(&value);
            let source = Source::Owned(&mut bytes);
            block_on(self.file.write(&handle, offset, source, IoFlags::empty())).unwrap();
            let (len, flags) = (BLOCK as usize, IoFlags::empty());
            let request = PinRequest { offset, len, flags, may_copy: false, blocking: true };
            match block_on(self.file.pin(&handle, request)).unwrap() {
                Some(pinned) => {
                    let now = crowd.held.fetch_add(1, Ordering::SeqCst) + 1;
                    let limit = self.cache.pin_limit();
                    assert!(now <= limit, "pin.P5: {now} frames are pinned, of {limit}");
                    held.push((pinned, value));
                }
                None => _ = crowd.refused.fetch_add(1, Ordering::SeqCst),
            }
            let used: u64 = self.cache.budget().iter().map(|(_, now, _)| now).sum();
            let budget = self.cache.budget_bytes();
            assert!(used <= budget, "{used} bytes are in use, of a budget of {budget}");
            if held.len() > CROWD.2 {
                crowd.end_pin(&mut held, rng);
            }
        }
        held
    }

    /// pin.P5, and the budget, while no resize moves them.
    fn crowd(&self, rng: &mut u64) {
        block_on(self.file.set_len(SIZE)).unwrap();
        let crowd = Crowd::default();
        std::thread::scope(|scope| {
            let start = |thread: u64| {
                let (blocks, mut rng) = (thread * CROWD.1..(thread + 1) * CROWD.1, split_mix(rng));
                let crowd = &crowd;
                scope.spawn(move || self.pin_all(blocks, &mut rng, crowd))
            };
            let threads: Vec<_> = (0..CROWD.0).map(start).collect();
            // All stay pinned until the last thread has ended, so that the limit is met.
            let held: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
            for (pinned, bytes) in held.iter().flatten() {
                assert!(pinned.to_vec() == *bytes, "pin.P1: the bytes of a pin have changed");
            }
        });
        assert!(crowd.refused.into_inner() > 0, "the limit of pins was met");
    }
}

fn round(seed: u64, path: &Path, engine: &Engine) -> (u64, u64) {
    let subject = Subject::open(path, engine, seed);
    let mut rng = seed;
    std::thread::scope(|scope| {
        for role in 0..6 {
            let (subject, mut rng) = (&subject, split_mix(&mut rng));
            scope.spawn(move || {
                let mut held = Vec::new();
                for _ in 0..STEPS {
                    match role {
                        0 | 1 => subject.write(&mut rng),
                        2 => subject.cut(&mut rng),
                        3 => subject.evict(&mut rng),
                        _ => subject.pin(&mut rng, &mut held),
                    }
                }
                for (pinned, bytes) in held {
                    assert!(pinned.to_vec() == bytes, "pin.P1: the bytes of a pin have changed");
                }
            });
        }
    });
    subject.crowd(&mut rng);
    let (file, cache) = (&subject.file, &subject.cache);
    block_on(file.sync(&file.open_handle())).unwrap();
    block_on(file.wait_fills());
    let stats = cache.stats();
    assert_eq!((stats.pinned_frames, stats.pinned_orphans), (0, 0), "pin.P4: seed {seed}");
    cache.drop_clean();
    cache.check_books();
    let left = cache.stats();
    assert_eq!(left.frames_free, left.frames_total, "pin.P3: seed {seed}");
    (stats.pins, stats.pin_detached_frames)
}

fn rounds(aio: Aio, name: &str) {
    let rounds = std::env::var("FOREBAY_PIN_ROUNDS").map_or(4, |v| v.parse().expect("a number"));
    let Some(engine) = engine(aio) else { return };
    let name = format!("forebay-pins-{}-{name}", std::process::id());
    let image = Image(std::env::temp_dir().join(name));
    let (mut pins, mut detached) = (0, 0);
    for seed in 1..=rounds {
        let done = round(seed, &image.0, &engine);
        (pins, detached) = (pins + done.0, detached + done.1);
    }
    assert!(pins > 100 * rounds && detached > 0, "{pins} pins, {detached} frames replaced");
}

#[test]
fn pins_on_threads_engine_show_one_version_each() {
    rounds(Aio::Threads, "threads");
}

#[test]
fn pins_on_io_uring_show_one_version_each() {
    rounds(Aio::IoUring, "uring");
}
