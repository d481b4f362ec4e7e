//! The system's allocator, counting: what a test makes its global allocator when it says that something
//! allocates nothing. It counts for the whole process, so such a test is alone in its file.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

std::thread_local! {
    static LEFT_OUT: Cell<bool> = const { Cell::new(false) };
}

/// See the module.
pub struct Counted;

/// Calls that took memory so far, by all threads, save those within [`uncounted`].
pub fn allocations() -> usize {
    ALLOCATIONS.load(Ordering::SeqCst)
}

/// Runs `f`; what this thread allocates meanwhile does not count.
pub fn uncounted<T>(f: impl FnOnce() -> T) -> T {
    let was = LEFT_OUT.replace(true);
    let value = f();
    LEFT_OUT.set(was);
    value
}

fn count() {
    // A thread that ends may be beyond its thread-locals: that counts.
    if !LEFT_OUT.try_with(Cell::get).unwrap_or(false) {
        ALLOCATIONS.fetch_add(1, Ordering::SeqCst);
    }
}

// SAFETY: passes on to the system's allocator, and counts.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promise.
        unsafe { System.alloc_zeroed(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(ptr, layout) }
    }
    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: the caller's promise.
        unsafe { System.realloc(ptr, layout, size) }
    }
}
