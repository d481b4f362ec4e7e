//! What the caller holds: a pointer to an object whose content C cannot see.
//!
//! Invariants: an object begins with a number of its kind and the epoch of the process that made
//! it; a call checks both before it uses the object. Closing an object changes its number, so that
//! a second close is refused as long as the memory is not in use again.
//!
//! No locks.

use forebay::{Error, ErrorKind, Result};
use forebay_base::fork;

/// A kind of object.
pub(crate) trait Kind {
    /// The type that C sees.
    type Handle;
    /// The number that its objects begin with.
    const NUMBER: u64;
    /// For messages: "a cache".
    const NAME: &'static str;
}

/// What every object begins with.
#[repr(C)]
struct Head {
    number: u64,
    epoch: u64,
}

#[repr(C)]
struct Object<T> {
    head: Head,
    value: T,
}

/// Number of an object that was closed.
const CLOSED: u64 = 0;

#[cold]
fn refused<T: Kind>(kind: ErrorKind, text: &str) -> Error {
    Error::new(kind, "use a handle", format!("{text} {}", T::NAME))
}

/// A new handle, made in this process.
pub(crate) fn give<T: Kind>(value: T) -> *mut T::Handle {
    let head = Head { number: T::NUMBER, epoch: fork::epoch() };
    Box::into_raw(Box::new(Object { head, value })).cast()
}

/// Checks the kind and the process of an object; reads its head only.
///
/// # Safety
/// `handle` is NULL or comes from [`give`], of any kind, and is not closed.
#[inline]
unsafe fn check<T: Kind>(handle: *const T::Handle) -> Result<()> {
    if handle.is_null() {
        return Err(refused::<T>(ErrorKind::BadHandle, "NULL is not"));
    }
    // SAFETY: every object begins with a head, by `repr(C)`.
    let head = unsafe { &*handle.cast::<Head>() };
    if head.number != T::NUMBER {
        return Err(refused::<T>(ErrorKind::BadHandle, "this is not"));
    }
    if head.epoch != fork::epoch() {
        return Err(refused::<T>(ErrorKind::Shutdown, "a parent process made"));
    }
    Ok(())
}

/// The object of a handle.
///
/// # Safety
/// `handle` is NULL or comes from [`give`], of any kind, and is not closed before the reference
/// ends.
#[inline]
pub(crate) unsafe fn borrow<'a, T: Kind>(handle: *const T::Handle) -> Result<&'a T> {
    // SAFETY: the caller promises that `handle` is NULL, or comes from `give` and is not closed.
    unsafe { check::<T>(handle)? };
    // SAFETY: its number says that it is an object of this kind, and it is not closed meanwhile.
    Ok(unsafe { &(*handle.cast::<Object<T>>()).value })
}

/// As [`borrow`], for calls that change the object: one thread at a time.
///
/// # Safety
/// As for [`borrow`], and no other call uses the handle meanwhile.
pub(crate) unsafe fn borrow_mut<'a, T: Kind>(handle: *mut T::Handle) -> Result<&'a mut T> {
    // SAFETY: the caller promises that `handle` is NULL, or comes from `give` and is not closed.
    unsafe { check::<T>(handle)? };
    // SAFETY: as in `borrow`, and the caller promises that this is the only reference.
    Ok(unsafe { &mut (*handle.cast::<Object<T>>()).value })
}

/// Takes the object back: the handle is closed.
///
/// # Safety
/// `handle` is NULL or comes from [`give`], of any kind, is not closed, and no other call uses it.
pub(crate) unsafe fn take<T: Kind>(handle: *mut T::Handle) -> Result<T> {
    // SAFETY: the caller promises that `handle` is NULL, or comes from `give` and is not closed.
    unsafe { check::<T>(handle)? };
    // SAFETY: `give` made it of a box of this type, and no reference to it is left.
    let mut object = unsafe { Box::from_raw(handle.cast::<Object<T>>()) };
    // SAFETY: a write to a live object. Volatile, because the memory is freed next.
    unsafe { std::ptr::write_volatile(&mut object.head.number, CLOSED) };
    Ok(object.value)
}
