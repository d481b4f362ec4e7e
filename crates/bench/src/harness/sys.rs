//! The only unsafe code of the harness: anonymous memory, page-cache residency, process usage.
//!
//! Invariants: S1 a [`Region`] is the only owner of its mapping from `new` to drop. S2 a file
//! mapped for `mincore` is never read or written through the mapping.

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};
use std::fs::File;
use std::io;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, AsRawFd};

const MADV_COLLAPSE: i32 = 25;
const SYS_CACHESTAT: i64 = 451;
const PAGE: usize = 4096;
const HUGE: usize = 2 << 20;

/// Private anonymous memory on huge pages where the kernel grants them.
pub struct Region {
    map: *mut u8,
    map_len: usize,
    skip: usize,
    len: usize,
}

// SAFETY: S1: the mapping belongs to this value alone, like a Box<[u8]>.
unsafe impl Send for Region {}
// SAFETY: shared access only hands out &[u8].
unsafe impl Sync for Region {}

impl Region {
    /// `len` bytes, touched once, 2 MiB aligned, advised and collapsed to huge pages.
    pub fn huge(len: usize) -> io::Result<Self> {
        let map_len = len + HUGE;
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a new mapping at an address the kernel chooses touches nothing that exists.
        let map = unsafe { mmap_anonymous(std::ptr::null_mut(), map_len, prot, flags)? };
        let map = map.cast::<u8>();
        let skip = map.align_offset(HUGE);
        let mut region = Self { map, map_len, skip, len };
        let at = region.map.wrapping_add(skip).cast();
        // SAFETY: the range lies inside our own mapping (S1); the advice changes no content.
        let _ = unsafe { madvise(at, len, Advice::LinuxHugepage) };
        for (index, chunk) in region.chunks_mut(PAGE).enumerate() {
            chunk.fill(index as u8 | 1);
        }
        // SAFETY: as above; collapsing keeps the content.
        let _ = unsafe { libc::madvise(at, len, MADV_COLLAPSE) };
        Ok(region)
    }

    /// Share of the region, 0..=1, on pages of 2 MiB, by /proc/self/smaps.
    pub fn huge_share(&self) -> f64 {
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap_or_default();
        let start = self.map as usize + self.skip;
        let (mut inside, mut huge_kib) = (false, 0u64);
        for line in smaps.lines() {
            let head = line.split(' ').next().unwrap_or_default();
            if let Some((low, high)) = head.split_once('-')
                && let (Ok(low), Ok(high)) =
                    (usize::from_str_radix(low, 16), usize::from_str_radix(high, 16))
            {
                inside = low < start + self.len && start < high;
            } else if inside && head == "AnonHugePages:" {
                huge_kib += line.split_whitespace().nth(1).map_or(0, |n| n.parse().unwrap_or(0));
            }
        }
        (huge_kib as f64 * 1024.0 / self.len as f64).min(1.0)
    }
}

impl Deref for Region {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: S1, and skip + len <= map_len; fresh anonymous memory is initialised (zero).
        unsafe { std::slice::from_raw_parts(self.map.add(self.skip), self.len) }
    }
}

impl DerefMut for Region {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in deref, and self is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.map.add(self.skip), self.len) }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: mapped in `huge` with this length; no reference into it outlives self.
        let _ = unsafe { munmap(self.map.cast(), self.map_len) };
    }
}

/// The first bytes of a file, mapped shared for reading and writing, and populated.
///
/// Invariant: S3 only one bench uses the file, and does not shorten it while it is mapped.
pub struct FileMap {
    map: *mut u8,
    len: usize,
}

impl FileMap {
    /// Maps `len` bytes.
    pub fn new(file: &File, len: usize) -> io::Result<Self> {
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping at an address the kernel chooses.
        let map = unsafe {
            let null = std::ptr::null_mut();
            mmap(null, len, prot, flags | MapFlags::POPULATE, file.as_fd(), 0)?
        };
        Ok(Self { map: map.cast(), len })
    }

    /// Copies out of it.
    #[inline]
    pub fn read(&self, buf: &mut [u8], offset: u64) {
        assert!(offset as usize + buf.len() <= self.len, "within the mapping");
        // SAFETY: within the mapping (asserted) and the file (S3); `buf` is not in the mapping.
        unsafe {
            let from = self.map.add(offset as usize);
            std::ptr::copy_nonoverlapping(from, buf.as_mut_ptr(), buf.len());
        }
    }

    /// Copies into it.
    #[inline]
    pub fn write(&self, buf: &[u8], offset: u64) {
        assert!(offset as usize + buf.len() <= self.len, "within the mapping");
        // SAFETY: as in read; no reference into the mapping exists.
        unsafe {
            let to = self.map.add(offset as usize);
            std::ptr::copy_nonoverlapping(buf.as_ptr(), to, buf.len());
        }
    }
}

impl Drop for FileMap {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` with this length; no reference into it exists.
        let _ = unsafe { munmap(self.map.cast(), self.len) };
    }
}

/// Bytes of `[offset, offset + len)` of the file in the kernel's page cache: by cachestat, or by
/// mincore before Linux 6.5.
pub fn page_cache_bytes(file: &File, offset: u64, len: u64) -> io::Result<u64> {
    let range = [offset, len];
    let mut stat = [0u64; 5];
    // SAFETY: both arrays live through the call and have the layout of cachestat_range and
    // cachestat; the fd is open for as long as `file`.
    let rc = unsafe {
        libc::syscall(SYS_CACHESTAT, file.as_raw_fd(), range.as_ptr(), stat.as_mut_ptr(), 0)
    };
    if rc == 0 { Ok(stat[0] * PAGE as u64) } else { mincore_bytes(file, offset, len) }
}

/// As [`page_cache_bytes`], by mincore alone.
pub fn mincore_bytes(file: &File, offset: u64, len: u64) -> io::Result<u64> {
    let pages = mincore(file, offset, len as usize)?;
    Ok(pages.into_iter().filter(|cached| *cached).count() as u64 * PAGE as u64)
}

/// For each page of the file, whether it is in the kernel's page cache.
pub fn mincore_pages(file: &File) -> io::Result<Vec<bool>> {
    match file.metadata()?.len() {
        0 => Ok(Vec::new()),
        len => mincore(file, 0, len as usize),
    }
}

fn mincore(file: &File, offset: u64, len: usize) -> io::Result<Vec<bool>> {
    let mut pages = vec![0u8; len.div_ceil(PAGE)];
    // SAFETY: a new read-only mapping at an address the kernel chooses; S2.
    let map = unsafe {
        let null = std::ptr::null_mut();
        mmap(null, len, ProtFlags::READ, MapFlags::SHARED, file.as_fd(), offset)?
    };
    // SAFETY: the mapping has `len` bytes and `pages` one byte for each of its pages.
    let rc = unsafe { libc::mincore(map, len, pages.as_mut_ptr()) };
    let result = if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) };
    // SAFETY: mapped above with this length, and not referenced (S2).
    let _ = unsafe { munmap(map, len) };
    result.map(|()| pages.iter().map(|page| page & 1 == 1).collect())
}

/// Voluntary and involuntary context switches so far of all threads of this process, with ended
/// ones.
pub fn own_switches() -> (u64, u64) {
    // SAFETY: rusage is plain data for which all zeros is a valid value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a live rusage.
    let rc = unsafe { libc::getrusage(libc::RUSAGE_SELF, &mut usage) };
    if rc != 0 {
        return (0, 0);
    }
    (usage.ru_nvcsw as u64, usage.ru_nivcsw as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn region_is_writable_and_reports_page_size() {
        let mut region = Region::huge(4 << 20).unwrap();
        region[(4 << 20) - 1] = 9;
        assert_eq!(region[(4 << 20) - 1], 9);
        assert!((0.0..=1.0).contains(&region.huge_share()));
    }

    #[test]
    fn cachestat_and_mincore_see_written_pages() {
        let path = std::env::temp_dir().join(format!("forebay-bench-sys-{}", std::process::id()));
        let mut file =
            File::options().create(true).truncate(true).read(true).write(true).open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        file.write_all(&[1; 64 << 10]).unwrap();
        assert_eq!(page_cache_bytes(&file, 0, 64 << 10).unwrap(), 64 << 10);
        assert_eq!(mincore_bytes(&file, 0, 64 << 10).unwrap(), 64 << 10);
        let map = FileMap::new(&file, 64 << 10).unwrap();
        map.write(&[7; 100], 5000);
        let mut back = [0; 102];
        map.read(&mut back, 4999);
        assert_eq!((back[0], back[1], back[100], back[101]), (1, 7, 7, 1));
    }
}
