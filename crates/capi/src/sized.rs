//! Structs that grow from version to version, and the other memory that a caller passes.
//!
//! Invariants: a caller's struct that is shorter than the library's is read as if zeros followed,
//! and refused with EINVAL if it is shorter than the struct ever was; one that is longer must end
//! in zeros, or it is refused with E2BIG. An answer fills no more than
//! the caller's size, and the size of the library's struct is returned.
//!
//! No locks.

use crate::border::{invalid, null};
use forebay::{Error, ErrorKind, Result};
use std::ffi::{CStr, OsStr, c_char};
use std::mem::{MaybeUninit, size_of};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The largest size of a struct that is accepted, bytes. No struct of the interface is longer.
const SIZE_MAX: usize = 4096;

/// A struct of the interface.
///
/// # Safety
/// Plain numbers without padding: every pattern of bytes is a value, and every value is bytes.
pub(crate) unsafe trait Plain: Copy {}

/// A struct that callers pass.
pub(crate) trait Given: Plain {
    /// Its size in the first version that had it. It stays when the struct grows.
    const LEAST: usize;
}

/// The caller's struct. NULL with size 0 is a struct of zeros. Another size below the first
/// version's is a mistake, such as that of a pointer.
///
/// # Safety
/// `from` is NULL, or `size` bytes can be read there.
pub(crate) unsafe fn input<T: Given>(from: *const T, size: usize) -> Result<T> {
    if from.is_null() && size > 0 {
        return Err(null("read a struct"));
    }
    if !from.is_null() && size < T::LEAST {
        let text = format!("{size} bytes, and it was never shorter than {}", T::LEAST);
        return Err(invalid("read a struct", text));
    }
    if size > SIZE_MAX {
        return Err(Error::new(ErrorKind::TooBig, "read a struct", format!("{size} bytes")));
    }
    let mut out = MaybeUninit::<T>::zeroed();
    if size > 0 {
        // SAFETY: the caller promises `size` bytes, which are plain numbers of C.
        let bytes = unsafe { std::slice::from_raw_parts(from.cast::<u8>(), size) };
        let (known, tail) = bytes.split_at(size.min(size_of::<T>()));
        if tail.iter().any(|byte| *byte != 0) {
            let text = format!("{size} bytes, and this version knows {}", known.len());
            return Err(Error::new(ErrorKind::TooBig, "read a struct", text));
        }
        // SAFETY: `known` is no longer than the struct, and does not overlap with it.
        unsafe {
            std::ptr::copy_nonoverlapping(known.as_ptr(), out.as_mut_ptr().cast(), known.len());
        }
    }
    // SAFETY: zeros and bytes of the caller: every pattern is a value (`Plain`).
    Ok(unsafe { out.assume_init() })
}

/// Answers with a struct. NULL with size 0 only asks for the size of the library's struct.
///
/// # Safety
/// `to` is NULL, or `size` bytes can be written there.
pub(crate) unsafe fn output<T: Plain, N: From<u16>>(
    to: *mut T,
    size: usize,
    value: &T,
) -> Result<N> {
    if to.is_null() && size > 0 {
        return Err(null("write a struct"));
    }
    let len = size.min(size_of::<T>());
    if len > 0 {
        // SAFETY: the caller promises `size` bytes at `to`; `value` is bytes (`Plain`).
        unsafe { std::ptr::copy_nonoverlapping((&raw const *value).cast::<u8>(), to.cast(), len) };
    }
    Ok(N::from(size_of::<T>() as u16))
}

/// Stores a new handle at `to`. `make` runs only if `to` is not NULL.
///
/// # Safety
/// `to` is NULL, or a pointer can be written there.
pub(crate) unsafe fn place<H>(
    to: *mut *mut H,
    make: impl FnOnce() -> Result<*mut H>,
) -> Result<i32> {
    if to.is_null() {
        return Err(null("return a handle"));
    }
    // SAFETY: the caller promises that a pointer can be written at `to`. NULL first, so that a
    // failure leaves no old value there.
    unsafe { to.write(std::ptr::null_mut()) };
    let handle = make()?;
    // SAFETY: the caller promises that a pointer can be written at `to`.
    unsafe { to.write(handle) };
    Ok(0)
}

/// A string of the caller.
///
/// # Safety
/// `text` is NULL, or ends in a zero and does not change while it is borrowed.
pub(crate) unsafe fn text<'a>(text: *const c_char, what: &'static str) -> Result<&'a str> {
    // SAFETY: the caller promises that `text` is NULL, or ends in a zero and does not change.
    let bytes = unsafe { c_str(text, what)? };
    bytes.to_str().map_err(|_| invalid(what, "not UTF-8"))
}

/// A path of the caller.
///
/// # Safety
/// As for [`text`].
pub(crate) unsafe fn path<'a>(path: *const c_char) -> Result<&'a Path> {
    // SAFETY: the caller promises that `path` is NULL, or ends in a zero and does not change.
    let bytes = unsafe { c_str(path, "read a path")? };
    Ok(Path::new(OsStr::from_bytes(bytes.to_bytes())))
}

/// # Safety
/// As for [`text`].
unsafe fn c_str<'a>(text: *const c_char, what: &'static str) -> Result<&'a CStr> {
    if text.is_null() {
        return Err(null(what));
    }
    // SAFETY: the caller promises a zero at its end, and that it does not change.
    Ok(unsafe { CStr::from_ptr(text) })
}
