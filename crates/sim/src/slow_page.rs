//! A page of memory that is absent until a test provides it, as one of a mapped file may be: for
//! tests of the locks that a thread holds while it faults a page in.
//!
//! It needs userfaultfd(2).
//!
//! No locks.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsRawFd, FromRawFd};

/// Bytes of the page.
pub const PAGE: usize = 4096;

const UFFDIO_API: u64 = 0xc018_aa3f;
const UFFDIO_REGISTER: u64 = 0xc020_aa00;
const UFFDIO_ZEROPAGE: u64 = 0xc020_aa04;
const API: u64 = 0xaa;
const MODE_MISSING: u64 = 1;
const USER_MODE_ONLY: i32 = 1;
const EVENT_PAGEFAULT: u8 = 0x12;

/// The page. The first thread that touches it waits for its [`Pager`].
pub struct SlowPage {
    base: *mut u8,
}

// SAFETY: the mapping belongs to this value alone, and any thread may use it.
unsafe impl Send for SlowPage {}
// SAFETY: shared references only read, and the kernel writes before a first read returns.
unsafe impl Sync for SlowPage {}

/// Sees the fault of a page, and provides the page.
pub struct Pager {
    fault: File,
    base: u64,
}

impl SlowPage {
    /// An absent page.
    pub fn new() -> (Self, Pager) {
        // SAFETY: a system call without pointers.
        let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | USER_MODE_ONLY) };
        let error = std::io::Error::last_os_error();
        assert!(fd >= 0, "this test requires userfaultfd(2): {error}");
        // SAFETY: the descriptor is new, and owned by nothing else.
        let fault = unsafe { File::from_raw_fd(fd as i32) };
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping of its own, of one page.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), PAGE, access, flags, -1, 0) };
        assert_ne!(base, libc::MAP_FAILED);
        let pager = Pager { fault, base: base as u64 };
        pager.call(UFFDIO_API, &mut [API, 0, 0, 0]);
        pager.call(UFFDIO_REGISTER, &mut [pager.base, PAGE as u64, MODE_MISSING, 0]);
        (Self { base: base.cast() }, pager)
    }

    /// Its bytes: zeros, once it is there.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the page is mapped as long as self, and shared references only read.
        unsafe { std::slice::from_raw_parts(self.base, PAGE) }
    }

    /// The same, for writing.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the page is mapped as long as self, and this reference is the only one.
        unsafe { std::slice::from_raw_parts_mut(self.base, PAGE) }
    }
}

impl Drop for SlowPage {
    fn drop(&mut self) {
        // SAFETY: the mapping is that of `new`, and no reference to it remains.
        unsafe { libc::munmap(self.base.cast(), PAGE) };
    }
}

impl Pager {
    /// `ioctl` of a userfaultfd with four words.
    fn call(&self, number: u64, words: &mut [u64; 4]) {
        // SAFETY: each structure that is used here is at most four words long
        // (linux/userfaultfd.h), and the words live across the call.
        let done = unsafe { libc::ioctl(self.fault.as_raw_fd(), number as _, words.as_mut_ptr()) };
        assert_eq!(done, 0, "{number:x}: {}", std::io::Error::last_os_error());
    }

    /// Waits until a thread waits for the page.
    pub fn wait_for_fault(&self) {
        let mut message = [0; 32];
        (&self.fault).read_exact(&mut message).expect("a message of the kernel");
        assert_eq!(message[0], EVENT_PAGEFAULT, "a page fault");
    }

    /// Provides the page, full of zeros.
    pub fn provide(&self) {
        self.call(UFFDIO_ZEROPAGE, &mut [self.base, PAGE as u64, 0, 0]);
    }
}
