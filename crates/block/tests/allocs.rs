//! From submission to completion a write allocates nothing once it is warm: write-out that makes
//! memory free must not need memory for it. In a file of its own, because it counts for its
//! process.

#[path = "suite/common/mod.rs"]
#[expect(dead_code, reason = "shared with the suite")]
mod common;

use common::{engines, path};
use forebay_base::buf::{AlignedBuf, DataRef, IoMem, Segment, SharedMem};
use forebay_block::{
    Bio, BioFlags, BioOp, BlockDevice, Completion, EndBio, FileDevice, FileOptions,
};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

struct Counting;

// SAFETY: passes on to the system's allocator, and counts.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller promises a layout of a size that is not 0.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller promises that this allocator gave `ptr` for `layout`.
        unsafe { System.dealloc(ptr, layout) }
    }
    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller promises that this allocator gave `ptr` for `layout`, and a `size`
        // that is not 0.
        unsafe { System.realloc(ptr, layout, size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

const BIOS: u64 = 8;
const PIECES: usize = 16;

/// A write-out made beforehand: its memory in pieces, and its waiter.
struct WriteOut {
    pieces: Mutex<Vec<AlignedBuf>>,
    left: Mutex<u64>,
    over: Condvar,
}

// SAFETY: the buffers own their memory and do not move it. Between submission and completion no
// other code touches it.
unsafe impl SharedMem for WriteOut {
    fn segments(&self, out: &mut Vec<Segment>) {
        self.pieces.lock().unwrap().iter_mut().for_each(|buf| buf.segments(out));
    }
}

impl EndBio for WriteOut {
    fn end_bio(self: Arc<Self>, token: u64, done: Completion) {
        done.result.unwrap();
        assert!(token < BIOS);
        *self.left.lock().unwrap() -= 1;
        self.over.notify_one();
    }
}

fn round(device: &FileDevice, work: &Arc<WriteOut>, bios: &mut Vec<Bio>, flags: BioFlags) {
    let len = (PIECES * 4096) as u64;
    *work.left.lock().unwrap() = BIOS;
    for token in 0..BIOS {
        let data = DataRef::Shared(work.clone());
        let end = work.clone();
        let bio = Bio::with_token(BioOp::Write, token * len, len, data, end, token);
        bios.push(bio.with_flags(flags));
    }
    device.submit_batch(bios);
    let mut left = work.left.lock().unwrap();
    while *left > 0 {
        left = work.over.wait(left).unwrap();
    }
}

#[test]
fn warm_write_out_allocates_nothing() {
    for (aio, engine) in engines() {
        let options = FileOptions { create_size: Some(1 << 20), ..FileOptions::default() };
        let device = FileDevice::open(path(&format!("allocs-{aio}")), &options, &engine).unwrap();
        let pieces = (0..PIECES).map(|_| AlignedBuf::new(4096)).collect();
        let work =
            WriteOut { pieces: Mutex::new(pieces), left: Mutex::new(0), over: Condvar::new() };
        let (work, mut bios) = (Arc::new(work), Vec::with_capacity(BIOS as usize));
        for flags in [BioFlags::SYNC, BioFlags::BACKGROUND] {
            // Starting a worker (there are at most 16) allocates, so some stretches of rounds are
            // not warm. But if each write allocated, no stretch would be free of allocations.
            let mut counts = Vec::new();
            while counts.last() != Some(&0) {
                assert!(counts.len() < 40, "{aio} {flags:?} allocations per stretch: {counts:?}");
                let before = ALLOCATIONS.load(Ordering::Relaxed);
                (0..50).for_each(|_| round(&device, &work, &mut bios, flags));
                counts.push(ALLOCATIONS.load(Ordering::Relaxed) - before);
            }
        }
    }
}
