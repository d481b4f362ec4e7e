//! `fby_pinned`: bytes of a file where the cache has them.
//!
//! Invariant: the memory that `fby_pinned_extents` returns stays, unchanged, until the pin is
//! given back: closing its file or volume ends no pin, and a cache with pins is not closed.
//!
//! No locks.

use crate::border::{border, null, of_errno};
use crate::cache::OpenCache;
use crate::file::{OpenFile, fby_file, offset_of};
use crate::flags::io_flags;
use crate::handle::{Kind, borrow, give, take};
use crate::sized::place;
use forebay::Pinned;
use libc::iovec;
use std::ffi::c_int;
use std::sync::Arc;

/// Bytes of a file that are pinned. Any number of threads may read them at once.
pub struct fby_pinned {
    _opaque: (),
}

/// fby_pin: -ENOBUFS where the bytes would be a copy.
pub const FBY_PIN_NO_COPY: u32 = 0x80000;

struct OpenPin {
    pinned: Pinned,
    extents: Extents,
    _cache: Arc<OpenCache>,
}

/// The runs of memory for C. A single run, the usual case, needs no allocation.
enum Extents {
    One([iovec; 1]),
    Many(Vec<iovec>),
}

impl Kind for OpenPin {
    type Handle = fby_pinned;
    const NUMBER: u64 = 0x6662_795f_5f70_696e;
    const NAME: &'static str = "a pin";
}

impl Extents {
    #[inline]
    fn of(pinned: &Pinned) -> Self {
        let run =
            |run: &&[u8]| iovec { iov_base: run.as_ptr().cast_mut().cast(), iov_len: run.len() };
        match pinned.extents() {
            [one] => Self::One([run(one)]),
            runs => Self::Many(runs.iter().map(run).collect()),
        }
    }

    fn all(&self) -> &[iovec] {
        match self {
            Self::One(one) => one,
            Self::Many(many) => many,
        }
    }
}

/// Pins `len` bytes at `offset`: reads them without a copy, where they are cached. What is missing
/// is read into the cache first. Returns the bytes pinned: fewer than asked only at the end of the
/// file, 0 after it; the pin has to be given back in each case. The bytes stay as they are until
/// fby_unpin, whatever is written, cut off or evicted meanwhile. No call waits for a pin, but for
/// fby_cache_resize, which gives up after a second; a thread may write what it has pinned.
///
/// All pins of a cache hold at most an eighth of its frames, and of its folios. What would exceed
/// that, or finds too few free frames, is a copy in memory outside the budget; with FBY_PIN_NO_COPY
/// it is -ENOBUFS. A copy larger than the budget is -ENOMEM. `flags`: FBY_PIN_NO_COPY,
/// FBY_RWF_DONTCACHE (cached bytes keep their age; if a byte is missing they are a copy),
/// FBY_RWF_NOWAIT, FBY_RWF_HIPRI; others are -EOPNOTSUPP.
///
/// # Safety
/// `file` is an open file, `pinned` is a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fby_pin(
    file: *mut fby_file,
    offset: i64,
    len: usize,
    flags: u32,
    pinned: *mut *mut fby_pinned,
) -> i64 {
    border("fby_pin", || {
        let mut bytes = 0;
        let make = || {
            // SAFETY: the caller promises that `file` stays open until the call returns.
            let open = unsafe { borrow::<OpenFile>(file)? };
            let (at, flags_of_io) =
                (offset_of("pin", offset)?, io_flags(flags & !FBY_PIN_NO_COPY)?);
            let taken = open.call_at(at, len as u64, |file| match flags & FBY_PIN_NO_COPY {
                0 => file.pin(at, len, flags_of_io),
                _ => match file.pin_no_copy(at, len, flags_of_io)? {
                    Some(pinned) => Ok(pinned),
                    None => Err(of_errno("pin without a copy", libc::ENOBUFS)),
                },
            })?;
            bytes = taken.len() as i64;
            let extents = Extents::of(&taken);
            Ok(give(OpenPin { pinned: taken, extents, _cache: open.cache() }))
        };
        // SAFETY: the caller promises that a pointer can be written at `pinned`.
        unsafe { place(pinned, make) }?;
        Ok(bytes)
    })
}

/// The runs of memory that hold the bytes, in the order of the file. Returns their number: 0 if
/// nothing is pinned, 1 for a copy and for up to one frame of 4096 bytes. Program and library only
/// read the bytes. `extents` and the memory end with fby_unpin.
///
/// # Safety
/// `pinned` is a pin, `extents` is a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fby_pinned_extents(
    pinned: *const fby_pinned,
    extents: *mut *const iovec,
) -> c_int {
    border("fby_pinned_extents", || {
        if extents.is_null() {
            return Err(null("return the extents of a pin"));
        }
        // SAFETY: the caller promises that `pinned` stays open until the call returns.
        let all = unsafe { borrow::<OpenPin>(pinned)? }.extents.all();
        // SAFETY: the caller promises a place for a pointer.
        unsafe { extents.write(all.as_ptr()) };
        Ok(all.len() as c_int)
    })
}

/// 1 if the bytes are a copy outside the budget of the cache, 0 if they are in the cache.
///
/// # Safety
/// `pinned` is a pin.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fby_pinned_is_copy(pinned: *const fby_pinned) -> c_int {
    border("fby_pinned_is_copy", || {
        // SAFETY: the caller promises that `pinned` stays open until the call returns.
        Ok(c_int::from(unsafe { borrow::<OpenPin>(pinned)? }.pinned.is_copy()))
    })
}

/// Gives a pin back, on any thread. Its memory must not be read any more. In a child process the
/// memory of a parent's pin must not be read either (-ESHUTDOWN here).
///
/// # Safety
/// `pinned` is a pin that no other thread uses.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fby_unpin(pinned: *mut fby_pinned) -> c_int {
    border("fby_unpin", || {
        // SAFETY: the caller promises that `pinned` is open, and no other call uses it.
        unsafe { take::<OpenPin>(pinned) }.map(|_| 0)
    })
}
