//! The ioctls of Forebay's own mounts, whose argument is a number of 32 bits.
//!
//! Invariant: Y1 only our requests are passed on: of type [`TYPE`], with a `u32` as argument.
//!
//! No locks.

use std::io::{Error, Result};
use std::os::fd::{AsFd, AsRawFd};

/// The type of all of them.
pub const TYPE: u32 = 0xfb;

/// Whether a request is one of ours (Y1).
fn ours(request: u32) -> bool {
    request >> 8 & 0xff == TYPE && request >> 16 & 0x3fff == size_of::<u32>() as u32
}

fn call(fd: impl AsFd, request: u32, value: &mut u32) -> Result<()> {
    if !ours(request) {
        return Err(Error::from_raw_os_error(libc::ENOTTY));
    }
    let value: *mut u32 = value;
    // SAFETY: the request number (Y1) says that its argument is a `u32`, and no other driver has
    // this type. The value outlives the call.
    let done = unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), request as _, value) };
    if done < 0 { Err(Error::last_os_error()) } else { Ok(()) }
}

/// Passes `value` on: a request of the kind `_IOW(0xfb, n, u32)`.
pub fn set(fd: impl AsFd, request: u32, mut value: u32) -> Result<()> {
    call(fd, request, &mut value)
}

/// Asks for a number: a request of the kind `_IOR(0xfb, n, u32)`.
pub fn get(fd: impl AsFd, request: u32) -> Result<u32> {
    let mut value = 0;
    call(fd, request, &mut value)?;
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn y1_foreign_ioctls_are_refused() {
        const TIOCGWINSZ: u32 = 0x5413;
        const BLKGETSIZE64: u32 = 0x8008_1272;
        let null = std::fs::File::open("/dev/null").unwrap();
        for request in [TIOCGWINSZ, BLKGETSIZE64, 2 << 30 | 8 << 16 | TYPE << 8 | 1] {
            assert!(!ours(request), "{request:#x}");
            assert_eq!(get(&null, request).unwrap_err().raw_os_error(), Some(libc::ENOTTY));
        }
        assert!(ours(1 << 30 | 4 << 16 | TYPE << 8 | 1));
    }
}
