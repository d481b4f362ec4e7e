//! Address space whose memory is resident only once touched: anonymous private memory, zero at
//! first, on huge pages where the kernel has them, released in part on request.
//!
//! Invariants: R1 the memory starts on a huge page boundary and has inaccessible pages on both
//! sides. Before those at its end lies one read-only page of zeros, for readers of pinned bytes
//! that read a little too far (SQLite does, up to 256 bytes, in a damaged database). R2 this module
//! makes no Rust reference into it: its owner decides on access. R3 huge pages lie fully below the
//! offset given to [`Region::advise`], so that resident memory exceeds that offset by at most a
//! small page.
//!
//! Locks: none. The calls are the kernel's own, and may be made by any thread.

use forebay_base::{Error, Result};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::ffi::c_void;
use std::ops::Range;

/// Bytes of a huge page.
pub(crate) const HUGE: usize = 2 << 20;
/// `MADV_COLLAPSE` (Linux 6.1): synchronously makes huge pages, also where they are switched off.
const MADV_COLLAPSE: i32 = 25;

/// A piece of address space. Unmapped on drop.
pub(crate) struct Region {
    base: *mut u8,
    bytes: usize,
    map_base: *mut c_void,
    map_bytes: usize,
}

// SAFETY: the region is plain memory, not bound to a thread; its owner decides on access (R2).
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// Reserves `bytes` of zeros. Nothing of it is resident yet.
    pub fn new(bytes: usize) -> Result<Self> {
        let fail = |e: rustix::io::Errno| Error::from_io("reserve memory", e.into());
        let bytes = bytes.next_multiple_of(rustix::param::page_size());
        let map_bytes = bytes + 2 * HUGE;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let map_base =
            unsafe { mmap_anonymous(std::ptr::null_mut(), map_bytes, ProtFlags::empty(), flags) }
                .map_err(fail)?;
        let skip = HUGE - map_base as usize % HUGE;
        let base = map_base.cast::<u8>().wrapping_add(skip);
        let region = Self { base, bytes, map_base, map_bytes };
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: [base, base + bytes) lies inside the mapping just made, which is not in use yet.
        unsafe { mmap_anonymous(base.cast(), bytes, rights, flags | MapFlags::FIXED) }
            .map_err(fail)?;
        let (end, page) = (base.wrapping_add(bytes).cast(), rustix::param::page_size());
        // SAFETY: the mapping has HUGE bytes at least behind `end`, which are not in use yet.
        unsafe { mmap_anonymous(end, page, ProtFlags::READ, flags | MapFlags::FIXED) }
            .map_err(fail)?;
        // Neither a core dump nor a child has a use for it; a child would share frames that a
        // device writes to.
        region.advise_range(0..bytes, Advice::LinuxDontDump);
        region.advise_range(0..bytes, Advice::LinuxDontFork);
        Ok(region)
    }

    /// First byte.
    #[inline]
    pub fn base(&self) -> *mut u8 {
        self.base
    }

    /// Has whole huge pages put under the first `upto` bytes when they are touched, and small ones
    /// under the rest (R3).
    pub fn advise(&self, upto: usize) {
        let whole = upto.min(self.bytes) / HUGE * HUGE;
        self.advise_range(0..whole, Advice::LinuxHugepage);
        self.advise_range(whole..self.bytes, Advice::LinuxNoHugepage);
    }

    fn advise_range(&self, range: Range<usize>, advice: Advice) {
        if !range.is_empty() {
            let at = self.base.wrapping_add(range.start).cast();
            // SAFETY: the range lies inside the region; none of these changes its content.
            let _ = unsafe { madvise(at, range.len(), advice) };
        }
    }

    /// Populates a range. False where the kernel cannot (before 5.14, or out of memory).
    pub fn populate(&self, range: Range<usize>) -> bool {
        let at = self.base.wrapping_add(range.start).cast();
        assert!(range.end <= self.bytes, "the range lies inside the region (R2)");
        // SAFETY: the range lies inside the region; the call keeps its content.
        unsafe { libc::madvise(at, range.len(), libc::MADV_POPULATE_WRITE) == 0 }
    }

    /// Makes huge pages of the populated part of a range.
    pub fn collapse(&self, range: Range<usize>) -> bool {
        let at = self.base.wrapping_add(range.start).cast();
        assert!(range.end <= self.bytes, "the range lies inside the region (R2)");
        // SAFETY: the range lies inside the region; the call keeps its content. libc's wrapper is
        // used because rustix knows no COLLAPSE.
        unsafe { libc::madvise(at, range.len(), MADV_COLLAPSE) == 0 }
    }

    /// Gives the memory of everything from byte `from` on back to the system, in whole pages: it
    /// reads as zeros then. The owner vouches that its content is not needed. Returns the first
    /// byte that was given back.
    pub fn release(&self, from: usize) -> usize {
        let from = from.next_multiple_of(rustix::param::page_size());
        if from < self.bytes {
            let at = self.base.wrapping_add(from).cast();
            // SAFETY: the range lies inside the region. A task that reads it without a lock
            // discards what it reads (the owner's promise), and zeros are valid (R2).
            let done = unsafe { libc::madvise(at, self.bytes - from, libc::MADV_DONTNEED) };
            return if done == 0 { from } else { self.bytes };
        }
        self.bytes
    }

    /// Bytes resident, and those of them on huge pages; zero where the kernel does not say.
    pub fn resident(&self) -> (usize, usize) {
        let text = std::fs::read_to_string("/proc/self/smaps").unwrap_or_default();
        let (start, end) = (self.base as usize, self.base as usize + self.bytes);
        let (mut inside, mut resident, mut huge) = (false, 0, 0);
        for line in text.lines() {
            let kib = |name: &str| -> Option<usize> {
                let rest = line.strip_prefix(name)?.strip_suffix("kB")?;
                rest.trim().parse().ok()
            };
            if let Some(at) = first_address(line) {
                inside = (start..end).contains(&at);
            } else if inside {
                resident += kib("Rss:").unwrap_or(0) << 10;
                huge += kib("AnonHugePages:").unwrap_or(0) << 10;
            }
        }
        (resident, huge)
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: mapped in `new`; the owner is dropped, so no address of it is used any more.
        let _ = unsafe { munmap(self.map_base, self.map_bytes) };
    }
}

/// The first address of a mapping, if a line of `smaps` is its head.
fn first_address(line: &str) -> Option<usize> {
    let (start, rest) = line.split_once('-')?;
    let end = rest.split(' ').next()?;
    usize::from_str_radix(end, 16).ok()?;
    usize::from_str_radix(start, 16).ok()
}

/// Whether the first access may map a huge page, where it was asked for.
pub(crate) fn huge_on_touch() -> bool {
    let text = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
    text.is_ok_and(|text| !text.contains("[never]"))
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn region_untouched_is_not_resident_and_released_is_zero() {
        let region = Region::new(64 << 30).unwrap();
        assert_eq!(region.resident().0, 0);
        assert!((region.base() as usize).is_multiple_of(HUGE), "R1");
        assert!(region.populate(0..3 * HUGE));
        assert!(region.resident().0 >= 3 * HUGE);
        let last = region.base().wrapping_add(3 * HUGE - 1);
        // SAFETY: inside the region, which this test alone uses.
        unsafe { last.write_volatile(7) };
        region.release(HUGE);
        assert!(region.resident().0 <= HUGE);
        // SAFETY: as above.
        assert_eq!(unsafe { last.read_volatile() }, 0);
    }

    /// R1: SQLite may read a few bytes past the last frame.
    #[test]
    fn region_page_behind_end_reads_zeros() {
        let region = Region::new(2 * HUGE).unwrap();
        let behind = region.base().wrapping_add(2 * HUGE);
        // SAFETY: a readable page lies there (R1), and it cannot be written.
        assert_eq!(unsafe { behind.wrapping_add(255).read_volatile() }, 0);
    }

    /// R3: a huge page across the given offset would add up to 2 MiB that are not counted.
    #[test]
    fn no_huge_page_lies_across_the_mark() {
        let region = Region::new(16 * HUGE).unwrap();
        let mark = 3 * HUGE + 25 * 4096;
        region.advise(mark);
        assert!(region.populate(0..mark));
        assert_eq!(region.resident().0, mark, "R3");
    }

    #[test]
    fn smaps_mapping_heads_are_recognised() {
        assert_eq!(first_address("7f00-7f10 rw-p 00000000 00:00 0"), Some(0x7f00));
        assert_eq!(first_address("AnonHugePages:      2048 kB"), None);
        assert_eq!(first_address("VmFlags: rd wr mr"), None);
    }
}
