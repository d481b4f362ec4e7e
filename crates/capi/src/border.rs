//! The border between C and Rust: results, the text of the last error, panics.
//!
//! No locks.

use forebay::{Error, ErrorKind, Result};
use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

std::thread_local! {
    /// `None` until a call fails: a thread without failures allocates nothing.
    static LAST: RefCell<Option<CString>> = const { RefCell::new(None) };
}

/// Sets the text of the calling thread's last error (capi.C2).
fn remember(text: String) {
    let text = CString::new(text.replace('\0', "?")).unwrap_or_default();
    // In a thread that ends, the variable may be gone already: then no text is kept.
    let _gone = LAST.try_with(|last| *last.borrow_mut() = Some(text));
}

/// Runs the body of a function of the interface: its value, or -errno (capi.C1, capi.C2).
#[inline]
pub(crate) fn border<T: From<i32>>(name: &str, body: impl FnOnce() -> Result<T>) -> T {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(value)) => value,
        Ok(Err(error)) => failed(name, &error),
        Err(panic) => panicked(name, &*panic),
    }
}

#[cold]
fn failed<T: From<i32>>(name: &str, error: &Error) -> T {
    remember(format!("{name}: {error}"));
    T::from(-error.errno().max(1))
}

#[cold]
fn panicked<T: From<i32>>(name: &str, panic: &(dyn Any + Send)) -> T {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    let text = text.unwrap_or("no text");
    remember(format!("{name}: a fault in the library, what was done is not known: {text}"));
    T::from(-libc::ENOTRECOVERABLE)
}

/// An error with an errno that no [`ErrorKind`] has.
pub(crate) fn of_errno(op: &'static str, errno: i32) -> Error {
    Error::from_io(op, io::Error::from_raw_os_error(errno))
}

/// A NULL where there must be none.
#[cold]
pub(crate) fn null(what: &'static str) -> Error {
    of_errno(what, libc::EFAULT)
}

/// A value that makes no sense.
#[cold]
pub(crate) fn invalid(op: &'static str, text: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidInput, op, text)
}

/// Text for people about the calling thread's last call that failed: function, operation, path,
/// range and cause. Never NULL; empty if no call has failed. It stays as it is until another call
/// of this thread fails, or the thread ends.
#[unsafe(no_mangle)]
pub extern "C" fn fby_last_error() -> *const c_char {
    let text = |last: &RefCell<Option<CString>>| last.borrow().as_ref().map(|text| text.as_ptr());
    LAST.try_with(text).ok().flatten().unwrap_or(c"".as_ptr())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CStr;

    fn last() -> String {
        // SAFETY: the text of this thread, which makes no other call meanwhile.
        unsafe { CStr::from_ptr(fby_last_error()) }.to_string_lossy().into_owned()
    }

    #[test]
    fn border_failure_sets_errno_and_text() {
        assert_eq!(border("f", || Ok(7_i64)), 7);
        assert_eq!(last(), "");
        let busy = || Err(Error::new(ErrorKind::Busy, "open", "a\0b").with_path("/p"));
        assert_eq!(border::<i32>("f", busy), -libc::EBUSY);
        assert_eq!(last(), "f: open /p: busy: a?b");
        assert_eq!(border("f", || Ok(1)), 1);
        assert_eq!(last(), "f: open /p: busy: a?b", "a success leaves it");
        let theirs = std::thread::spawn(last).join().unwrap();
        assert_eq!(theirs, "", "C2: each thread has its own");
    }

    #[test]
    fn border_panic_gives_errno_and_text() {
        assert_eq!(border::<i64>("f", || panic!("case {}", 5)), -i64::from(libc::ENOTRECOVERABLE));
        assert!(last().starts_with("f: a fault in the library") && last().ends_with("case 5"));
    }
}
