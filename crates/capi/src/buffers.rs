//! The buffers of a caller: lists of them, and one alone.
//!
//! No locks.

use crate::border::{invalid, null};
use forebay::Result;
use libc::iovec;
use std::ffi::{c_int, c_void};

/// The caller's buffers.
///
/// # Safety
/// `iov` is NULL, or has `iovcnt` elements that do not change meanwhile.
#[inline]
pub(crate) unsafe fn vector<'a>(
    op: &'static str,
    iov: *const iovec,
    iovcnt: c_int,
) -> Result<&'a [iovec]> {
    let count = usize::try_from(iovcnt).ok().filter(|count| *count <= libc::UIO_MAXIOV as usize);
    let count = count.ok_or_else(|| invalid(op, format!("{iovcnt} buffers")))?;
    if count == 0 {
        return Ok(&[]);
    }
    if iov.is_null() {
        return Err(null(op));
    }
    // SAFETY: the caller promises `iovcnt` elements.
    let vector = unsafe { std::slice::from_raw_parts(iov, count) };
    let mut total = 0_usize;
    for buf in vector {
        if buf.iov_base.is_null() && buf.iov_len > 0 {
            return Err(null(op));
        }
        total = total.saturating_add(buf.iov_len);
    }
    if total > isize::MAX as usize {
        return Err(invalid(op, "the buffers are longer than memory"));
    }
    Ok(vector)
}

/// The memory of the caller's buffer, if there is exactly one and `vector` would accept it. Most
/// reads have one buffer, and this check is shorter than the loop over a list.
///
/// # Safety
/// As for [`vector`], and no other thread uses the memory.
#[inline]
pub(crate) unsafe fn only_buffer<'a>(iov: *const iovec, iovcnt: c_int) -> Option<&'a mut [u8]> {
    if iovcnt != 1 || iov.is_null() {
        return None;
    }
    // SAFETY: the caller promises one element.
    let buf = unsafe { &*iov };
    if buf.iov_base.is_null() || buf.iov_len > isize::MAX as usize {
        return None;
    }
    // SAFETY: the caller promises that no other thread uses the memory of the element; it is not
    // NULL, and no longer than memory can be.
    Some(unsafe { std::slice::from_raw_parts_mut(buf.iov_base.cast(), buf.iov_len) })
}

/// Memory of the caller.
///
/// # Safety
/// `len` bytes can be read at `at` and do not change; it may be NULL if `len` is 0.
#[inline]
pub(crate) unsafe fn bytes<'a>(at: *const c_void, len: usize) -> &'a [u8] {
    match len {
        0 => &[],
        // SAFETY: the caller promises that `len` bytes can be read at `at` and do not change.
        len => unsafe { std::slice::from_raw_parts(at.cast(), len) },
    }
}
