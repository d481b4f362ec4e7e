//! A counting wrapper of the system's allocator: the global allocator of tests which assert that an
//! operation allocates nothing. It counts for the complete process, so such a test is alone in its
//! file.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

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
        // SAFETY: the caller promises a layout of a size that is not 0.
        unsafe { System.alloc(layout) }
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller promises a layout of a size that is not 0.
        unsafe { System.alloc_zeroed(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller promises that this allocator gave `ptr` for `layout`.
        unsafe { System.dealloc(ptr, layout) }
    }
    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: the caller promises that this allocator gave `ptr` for `layout`, and a `size`
        // that is not 0.
        unsafe { System.realloc(ptr, layout, size) }
    }
}
