//! Which process a thing was made in.
//!
//! After fork(2) a child has all that its parent had, and none of the threads that serve it. A page
//! that the kernel empties in a child holds the *epoch*: a number of this process that none of its
//! ancestors had. What keeps the epoch that it was made in tells a child apart by two loads and
//! without a system call. [`Process`] also holds the number of the process.
//!
//! Invariant: two processes of one line of descent never have the same epoch, and 0 is that of a
//! child that has asked for none.
//!
//! No locks: a child has only one thread, so a lock that another one held would stay locked there.

use crate::{Error, Result};
use std::io;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

/// The page that holds the epoch; NULL before the first [`enter`].
static PAGE: AtomicPtr<AtomicU64> = AtomicPtr::new(null_mut());
/// The last epoch that was given. A child inherits it, and gives others.
static LAST: AtomicU64 = AtomicU64::new(0);

/// The epoch of this process; 0 if it has asked for none by [`enter`].
#[inline]
pub fn epoch() -> u64 {
    let page = PAGE.load(Ordering::Acquire);
    // SAFETY: NULL, or the page, which is mapped for the life of the process and only accessed
    // atomically. The kernel empties it between processes, never below a running thread.
    unsafe { page.as_ref() }.map_or(0, |epoch| epoch.load(Ordering::Relaxed))
}

/// The epoch of this process, which is given one if it has none.
///
/// # Errors
/// No memory, or a kernel before 4.14.
pub fn enter() -> Result<u64> {
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

/// A process, also after its end. The default is none.
///
/// Its number alone does not tell a child from its parent: each may be the first process of a PID
/// namespace, and the number of a process that has ended is given again. The epoch alone is shared
/// with a child that has the same memory, as that of vfork(2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Process {
    pid: u32,
    epoch: u64,
}

impl Process {
    /// The calling process. Without an epoch (see [`enter`]) its number alone counts.
    pub fn current() -> Self {
        Self { pid: std::process::id(), epoch: enter().unwrap_or(0) }
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
        return Err(failed("map a page"));
    }
    // SAFETY: the page that was just mapped.
    if unsafe { libc::madvise(page, page_bytes(), libc::MADV_WIPEONFORK) } != 0 {
        let error = failed("mark a page for children (Linux 4.14)");
        // SAFETY: as above; no reference to it was made.
        unsafe { libc::munmap(page, page_bytes()) };
        return Err(error);
    }
    Ok(NonNull::new(page.cast()).expect("the kernel maps nothing at NULL unless asked"))
}

fn failed(op: &'static str) -> Error {
    Error::from_io(op, io::Error::last_os_error())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn child_with_the_number_of_its_parent_is_another_process() {
        let parent = Process::current();
        assert_eq!(Process::current(), parent);
        assert_ne!(Process::default(), parent);
        // SAFETY: the child takes no lock, and ends by _exit(2).
        let child = unsafe { libc::fork() };
        assert!(child >= 0);
        if child == 0 {
            let alike = Process { pid: std::process::id(), ..parent };
            let is_told_apart = alike != Process::current();
            // SAFETY: no argument is a pointer; nothing of the parent is run.
            unsafe { libc::_exit(i32::from(!is_told_apart)) };
        }
        let mut status = -1;
        // SAFETY: `status` is a place for a number.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
    }
}
