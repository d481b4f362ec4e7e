//! Forebay for C: `libforebay.so.0` and `forebay.h`.
//!
//! Each function of `forebay.h` is here, in the module of what it works on: [`cache`], [`file`],
//! [`volume`], [`names`], [`pin`]. What they have in common: [`border`] (results, the last error,
//! panics), [`handle`] (what the caller holds, and in which process), [`sized`] (structs that
//! grow), [`flags`]. `docs/guide/c-library.md` says what may change within `.so.0`.
//!
//! Invariants: C1 no panic leaves a function: the caller gets -ENOTRECOVERABLE. C2 every failure
//! sets the text of `fby_last_error`. A flag, or a byte of a struct, that this version does not
//! know is refused. A handle of a parent process is refused in a child.
//!
//! Unsafe: C's pointers. What a caller has to keep stands at each function of [`handle`] and
//! [`sized`], and in `forebay.h`.
//!
//! No locks.
#![expect(non_camel_case_types, reason = "the types have the names that C sees")]

mod border;
mod buffers;
mod cache;
mod file;
mod flags;
mod handle;
mod names;
mod pin;
mod sized;
mod volume;
mod volumes;

/// Version of the interface that a program was compiled with: the number of the soname in the
/// upper 16 bits, and a number that grows with each addition in the lower 16.
pub const FBY_ABI_VERSION: u32 = 0x0000_0003;

/// The version of the interface that the library has, as `FBY_ABI_VERSION` counts. A program may
/// use what its header declares if this is not lower than its own `FBY_ABI_VERSION`.
#[unsafe(no_mangle)]
pub extern "C" fn fby_abi_version() -> u32 {
    FBY_ABI_VERSION
}
