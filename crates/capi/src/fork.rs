//! Which process a handle was made in.
//!
//! After fork(2) a child has the parent's handles, and none of the threads that serve them. A page
//! that the kernel empties in a child holds the *epoch*: a number of this process that none of its
//! ancestors had. A handle keeps the epoch that it was made in, so telling a child apart costs two
//! loads and no system call.
//!
//! Invariant: two processes of one line of descent never have the same epoch, and 0 is that of a
//! child that has made no cache.
//!
//! No locks: a child has only one thread, so a lock that another one held would stay locked there.

use crate::border::of_errno;
use forebay::Result;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

/// The page that holds the epoch; NULL before the first cache.
static PAGE: AtomicPtr<AtomicU64> = AtomicPtr::new(null_mut());
/// The last epoch that was given. A child inherits it, and gives others.
static LAST: AtomicU64 = AtomicU64::new(0);

/// The epoch of this process; 0 if it has made no cache.
#[inline]
pub(crate) fn epoch() -> u64 {
    let page = PAGE.load(Ordering::Acquire);
    // SAFETY: NULL, or the page, which is mapped for the life of the process and only accessed
    // atomically. The kernel empties it between processes, never below a running thread.
    unsafe { page.as_ref() }.map_or(0, |epoch| epoch.load(Ordering::Relaxed))
}

/// The epoch of this process, which is given one if it has none. Errors: no memory, or a kernel
/// before 4.14.
pub(crate) fn enter() -> Result<u64> {
    let page = match NonNull::new(PAGE.load(Ordering::Acquire)) {
        Some(page) => page,
        None => publish(map()?),
    };
    // SAFETY: as in `epoch`.
    let epoch = unsafe { page.as_ref() };
    let now = epoch.load(Ordering::Relaxed);
    if now != 0 {
        return Ok(now);
    }
    let new = LAST.fetch_add(1, Ordering::Relaxed) + 1;
    match epoch.compare_exchange(0, new, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => Ok(new),
        Err(other) => Ok(other),
    }
}

fn page_bytes() -> usize {
    // SAFETY: no argument is a pointer.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(bytes).unwrap_or(4096)
}

/// A page of zeros that a child gets empty.
fn map() -> Result<NonNull<AtomicU64>> {
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a fresh mapping at an address of the kernel's choice.
    let page = unsafe { libc::mmap(null_mut(), page_bytes(), rights, flags, -1, 0) };
    if page == libc::MAP_FAILED {
        return Err(of_errno("map a page", errno()));
    }
    // SAFETY: the page that was just mapped.
    if unsafe { libc::madvise(page, page_bytes(), libc::MADV_WIPEONFORK) } != 0 {
        let errno = errno();
        // SAFETY: as above; no reference to it was made.
        unsafe { libc::munmap(page, page_bytes()) };
        return Err(of_errno("mark a page for children (Linux 4.14)", errno));
    }
    Ok(NonNull::new(page.cast()).expect("the kernel maps nothing at NULL unless asked"))
}

fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::ENOMEM)
}

/// Makes `page` the page of this process, unless another thread was first. Returns the page that is
/// in use.
fn publish(page: NonNull<AtomicU64>) -> NonNull<AtomicU64> {
    let (new, order) = (page.as_ptr(), Ordering::AcqRel);
    match PAGE.compare_exchange(null_mut(), new, order, Ordering::Acquire) {
        Ok(_) => page,
        Err(first) => {
            // SAFETY: the page that `map` made, which no other thread has seen.
            unsafe { libc::munmap(new.cast(), page_bytes()) };
            NonNull::new(first).expect("the exchange failed because it is not NULL")
        }
    }
}
