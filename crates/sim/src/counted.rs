//! A counting wrapper of the system's allocator: the global allocator of tests which assert that an
//! operation allocates nothing, or that it needs no more memory than a bound. It counts for the
//! complete process, so such a test is alone in its file.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);
static BYTES: AtomicUsize = AtomicUsize::new(0);
static PEAK_BYTES: AtomicUsize = AtomicUsize::new(0);

std::thread_local! {
    static LEFT_OUT: Cell<bool> = const { Cell::new(false) };
}

/// The counting allocator.
pub struct Counted;

/// Allocations so far, by all threads, except those within [`uncounted`].
pub fn allocations() -> usize {
    ALLOCATIONS.load(Ordering::SeqCst)
}

/// Runs `f` without counting the allocations of this thread.
pub fn uncounted<T>(f: impl FnOnce() -> T) -> T {
    let was = LEFT_OUT.replace(true);
    let value = f();
    LEFT_OUT.set(was);
    value
}

/// The most bytes that were allocated at any moment of `f`, by all threads, in addition to those
/// allocated before it.
pub fn peak_bytes<T>(f: impl FnOnce() -> T) -> (T, usize) {
    let before = BYTES.load(Ordering::SeqCst);
    PEAK_BYTES.store(before, Ordering::SeqCst);
    let value = f();
    (value, PEAK_BYTES.load(Ordering::SeqCst) - before)
}

fn add_bytes(bytes: usize) {
    let now = BYTES.fetch_add(bytes, Ordering::SeqCst) + bytes;
    PEAK_BYTES.fetch_max(now, Ordering::SeqCst);
}

fn subtract_bytes(bytes: usize) {
    BYTES.fetch_sub(bytes, Ordering::SeqCst);
}

fn count() {
    // A thread that ends may have lost its thread-locals: then its allocations count.
    if !LEFT_OUT.try_with(Cell::get).unwrap_or(false) {
        ALLOCATIONS.fetch_add(1, Ordering::SeqCst);
    }
}

// SAFETY: each method passes its call on to the system's allocator.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        add_bytes(layout.size());
        // SAFETY: the caller promises a layout of a size that is not 0.
        unsafe { System.alloc(layout) }
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        add_bytes(layout.size());
        // SAFETY: the caller promises a layout of a size that is not 0.
        unsafe { System.alloc_zeroed(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        subtract_bytes(layout.size());
        // SAFETY: the caller promises that this allocator gave `ptr` for `layout`.
        unsafe { System.dealloc(ptr, layout) }
    }
    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        add_bytes(size);
        subtract_bytes(layout.size());
        // SAFETY: the caller promises that this allocator gave `ptr` for `layout`, and a `size`
        // that is not 0.
        unsafe { System.realloc(ptr, layout, size) }
    }
}
