//! How much of a file the kernel's page cache holds: cachestat(2), which rustix lacks.
//!
//! No locks.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// The number of the system call cachestat, which is the same on all architectures but Alpha.
const SYS_CACHESTAT: libc::c_long = 451;

/// Bytes of a file that the kernel's page cache holds, in full pages.
///
/// # Errors
/// Those of cachestat(2); on kernels before 6.5 that is ENOSYS (`Unsupported`).
pub fn cached_bytes(file: &File) -> io::Result<u64> {
    // Offset 0 and length 0: all of the file. The result begins with the number of cached pages.
    let (range, mut stat) = ([0_u64; 2], [0_u64; 5]);
    // SAFETY: both arrays live through the call and have the layout of the kernel's structures
    // `cachestat_range` and `cachestat`; the descriptor is open for as long as `file` is borrowed.
    let rc = unsafe {
        libc::syscall(SYS_CACHESTAT, file.as_raw_fd(), range.as_ptr(), stat.as_mut_ptr(), 0_u32)
    };
    match rc {
        0 => Ok(stat[0] * rustix::param::page_size() as u64),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn cached_bytes_are_those_that_were_written() {
        let path = std::env::temp_dir().join(format!("forebay-cachestat-{}", std::process::id()));
        let options = File::options().read(true).write(true).create_new(true).open(&path);
        std::fs::remove_file(&path).unwrap();
        let mut file = options.unwrap();
        assert_eq!(cached_bytes(&file).unwrap(), 0);
        file.write_all(&[1; 3 * 4096 + 1]).unwrap();
        assert_eq!(cached_bytes(&file).unwrap() % 4096, 0);
        assert!(cached_bytes(&file).unwrap() >= 4 * 4096);
    }
}
