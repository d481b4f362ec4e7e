//! Warm write-out allocates nothing from plan to completion: it makes memory free, so it must not
//! need any. Tested with passes made here, and with the flusher of the file's domain from its wake
//! on, with the threads that run it. In a file of its own, because it counts for its process, all
//! threads.
//!
//! The writer's own allocations are left out, here and nowhere else: it lists the blocks it
//! dirties, and may be made to wait, or be refused; a write-out may not. A flush may allocate; the
//! write-outs after it may not.

#[path = "suite/common/engines.rs"]
mod engines;

use engines::engine;
use forebay_base::IoFlags;
use forebay_base::task::FutureSlot;
use forebay_base::world::{RealWorld, split_mix};
use forebay_block::{Aio, Engine, FileDevice, FileOptions};
use forebay_cache::strategy::{DirtyTracking, StablePages, StableStrategy};
use forebay_cache::writeback::{Which, WriteOut, WriteOutPass};
use forebay_cache::{Config, PageCache};
use forebay_iomap::identity::Identity;
use forebay_iomap::{Handle, MappedFile, Source};
use forebay_sim::counted::{Counted, allocations, uncounted};
use std::future::Future;
use std::path::PathBuf;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

#[global_allocator]
static COUNTED: Counted = Counted;

const BLOCK: usize = 4096;
const FILE: u64 = 4 << 20;
/// Passes in a row without an allocation, of each variant.
const PASSES: usize = 400;
/// Passes counted together.
const STRETCH: usize = 50;

/// Wakes a thread that drives futures; made once.
struct Driver {
    thread: Thread,
    woken: AtomicBool,
}

impl Wake for Driver {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }
    fn wake_by_ref(self: &Arc<Self>) {
        self.woken.store(true, Ordering::SeqCst);
        self.thread.unpark();
    }
}

fn drive<T>(
    driver: &Arc<Driver>,
    waker: &Waker,
    mut future: Pin<&mut impl Future<Output = T>>,
) -> T {
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(waker)) {
            return value;
        }
        while !driver.woken.swap(false, Ordering::SeqCst) {
            std::thread::park();
        }
    }
}

/// Who writes out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    /// Passes that are made here; the flusher sleeps.
    Passes,
    /// The same, each after a flush.
    PassesAfterFlushes,
    /// The flusher, because a block is dirty, after a flush.
    Flusher,
}

struct Lab {
    by: By,
    cache: forebay_base::sync::Arc<PageCache>,
    file: Arc<MappedFile>,
    handle: Handle,
    driver: Arc<Driver>,
    waker: Waker,
    slot: FutureSlot<u64>,
    bytes: Vec<u8>,
    seed: u64,
}

impl Lab {
    fn new(engine: &Engine, by: By, tracking: DirtyTracking, stable: bool) -> Self {
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
        let path = path.join(format!("allocs-{by:?}-{tracking:?}-{stable}"));
        let _ = std::fs::remove_file(&path);
        let options = FileOptions { create_size: Some(FILE), ..FileOptions::default() };
        let device = FileDevice::open(&path, &options, engine).unwrap();
        std::fs::remove_file(&path).unwrap();
        let config = Config {
            huge_pages: false,
            dirty_tracking: tracking,
            stable: StableStrategy::Cow,
            // Nothing comes of age: it is the limit that the flusher goes by, or nothing.
            dirty_expire_centisecs: 360_000,
            ..Config::with_budget(64 << 20)
        };
        let cache = PageCache::new(config, RealWorld::with_seed(1)).unwrap();
        let map = Arc::new(Identity::new(device));
        let file = MappedFile::new(&cache, map, BLOCK as u32, FILE, false).unwrap();
        let pages = if stable { StablePages::On } else { StablePages::Off };
        file.set_stable_pages(pages).unwrap();
        let (handle, thread) = (file.open_handle(), std::thread::current());
        let driver = Arc::new(Driver { thread, woken: AtomicBool::new(false) });
        let (waker, slot) = (Waker::from(driver.clone()), FutureSlot::default());
        Self { by, cache, file, handle, driver, waker, slot, bytes: vec![1; 64 << 10], seed: 7 }
    }

    /// Dirties runs of blocks here and there, or `again` the last ones.
    fn write(&mut self, again: bool) {
        let mut seed = self.seed;
        for _ in 0..16 {
            let r = split_mix(&mut seed);
            let len = BLOCK * [1, 1, 2, 16][(r >> 40) as usize % 4];
            let at = (r % (FILE - len as u64)) / BLOCK as u64 * BLOCK as u64;
            let source = Source::Slice(&self.bytes[..len]);
            let mut write = pin!(self.file.write(&self.handle, at, source, IoFlags::empty()));
            let done = drive(&self.driver, &self.waker, write.as_mut());
            done.unwrap();
        }
        if again {
            self.seed = seed;
        }
    }

    /// The list of what the next flush answers for starts anew.
    fn flush(&mut self) {
        let flushes = self.cache.stats().flushes;
        let mut sync = pin!(self.file.sync(&self.handle));
        drive(&self.driver, &self.waker, sync.as_mut()).unwrap();
        assert!(self.cache.stats().flushes > flushes, "a flush is made");
    }

    /// What the flusher allocated from the first write to its last completion.
    fn flusher_writes(&mut self) -> usize {
        self.flush();
        let (before, issued) = (allocations(), self.written());
        uncounted(|| self.write(true));
        // Below the limit no writer was paused; now every dirty byte exceeds it.
        let usual = self.cache.dirty.background.load(Ordering::Relaxed);
        uncounted(|| self.cache.set_dirty_background_bytes(0).unwrap());
        let mapping = &self.file.mapping;
        while mapping.dirty_bytes.load(Ordering::SeqCst) > 0 || mapping.write_outs() > 0 {
            mapping.domain.wake_flusher();
            std::thread::yield_now();
        }
        let allocated = allocations() - before;
        uncounted(|| self.cache.set_dirty_background_bytes(usual).unwrap());
        assert!(self.written() > issued, "a flusher that writes nothing counts nothing");
        allocated
    }

    fn written(&self) -> u64 {
        self.cache.stats().written_bytes
    }

    /// One pass, from its plan to its last completion; what it allocated.
    fn pass(&mut self) -> usize {
        match self.by {
            By::Flusher => return self.flusher_writes(),
            By::PassesAfterFlushes => self.flush(),
            By::Passes => {}
        }
        uncounted(|| self.write(false));
        let before = allocations();
        let pass =
            WriteOutPass { range: 0..FILE, which: Which::All, max_bytes: u64::MAX, sync: false };
        self.file.clone().write_out(pass, &mut self.slot);
        let issued = drive(&self.driver, &self.waker, Pin::new(&mut self.slot));
        assert!(issued >= BLOCK as u64, "a pass of nothing counts nothing");
        // Blocks hit in flight get fresh frames, and the end of the write-out frees the old ones.
        uncounted(|| self.write(true));
        let mut over = pin!(self.file.mapping.wait_write_outs());
        drive(&self.driver, &self.waker, over.as_mut());
        allocations() - before
    }

    fn passes(&mut self, count: usize) -> usize {
        (0..count).map(|_| self.pass()).sum()
    }
}

/// Lists grow, and threads start, now and then: in the end there is a long stretch without. If each
/// pass, or each tenth, allocated, there would be none.
fn comes_to_rest(lab: &mut Lab, what: &str) {
    let (mut quiet, mut counts) = (0, Vec::new());
    while quiet < PASSES {
        assert!(counts.len() < 150, "{what}: allocations of each {STRETCH}: {counts:?}");
        counts.push(lab.passes(STRETCH));
        quiet = if counts.last() == Some(&0) { quiet + STRETCH } else { 0 };
    }
}

fn both(test: impl Fn(Aio, &Engine)) {
    for aio in [Aio::Threads, Aio::IoUring] {
        if let Some(engine) = engine(aio) {
            test(aio, &engine);
        }
    }
}

#[test]
fn write_out_warm_allocates_nothing() {
    both(|aio, engine| {
        for tracking in [DirtyTracking::Block, DirtyTracking::Folio] {
            for stable in [false, true] {
                let what = format!("{aio} {tracking:?} stable {stable}");
                let mut lab = Lab::new(engine, By::Passes, tracking, stable);
                comes_to_rest(&mut lab, &what);
                // An eighth of what the budget has for requests.
                let kept = lab.cache.record_bytes();
                assert!(kept > 0 && kept <= 512 << 10, "P2: {what}: {kept} bytes are kept");
                let stats = lab.cache.stats();
                assert_eq!(stats.stable_waits, 0, "{what}: the strategy is to copy");
                assert_eq!(stats.stable_copied_bytes + stats.stable_hits > 0, stable, "{what}");
            }
        }
    });
    // The same process, so the same test: one after the other.
    both(|aio, engine| {
        for by in [By::PassesAfterFlushes, By::Flusher] {
            let mut lab = Lab::new(engine, by, DirtyTracking::Block, false);
            comes_to_rest(&mut lab, &format!("{aio} {by:?}"));
        }
    });
}
