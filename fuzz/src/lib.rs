//! The shared code of the cargo-fuzz targets: each `fuzz_targets/NAME.rs` is one line, [`stored`]
//! or [`message`].
//!
//! Invariant: Z1 a target never panics, and its error is one of the kinds that its module names.
//! The targets themselves assert fuzz.Z2 (`crates/lfs/src/fuzz.rs`, `crates/fuse/src/fuzz.rs`).
//!
//! No locks.

use forebay_base::ErrorKind;
use forebay_lfs::fuzz::{Reseal, TARGETS, Target};

/// The target of that name among those of the stored form, and the function that corrects its
/// checksums.
pub fn volume(name: &str) -> (Target, Reseal) {
    let found = TARGETS.iter().find(|target| target.0 == name);
    let (_, target, reseal) = found.expect("a target of the stored form");
    (*target, *reseal)
}

/// Tries one input; its error has to be one of the kinds (Z1).
pub fn run(target: Target, data: &[u8], kinds: &[ErrorKind]) {
    if let Err(e) = target(data) {
        assert!(kinds.contains(&e.kind()), "{e} (Z1)");
    }
}

/// A target for a decoder of the stored form. Most inputs have correct checksums, so that they
/// reach the code behind the check.
#[macro_export]
macro_rules! stored {
    ($name:literal) => {
        use forebay_base::ErrorKind::{Corrupt, Unsupported};

        libfuzzer_sys::fuzz_target!(|data: &[u8]| {
            $crate::run($crate::volume($name).0, data, &[Corrupt, Unsupported]);
        });

        libfuzzer_sys::fuzz_mutator!(|data: &mut [u8], size: usize, most: usize, seed: u32| {
            let size = libfuzzer_sys::fuzzer_mutate(data, size, most);
            if seed % 16 != 0 {
                $crate::volume($name).1(&mut data[..size]);
            }
            size
        });
    };
}

/// The kernel's messages, which have no checksum.
#[macro_export]
macro_rules! message {
    ($target:path) => {
        use forebay_base::ErrorKind::{Corrupt, Protocol};

        libfuzzer_sys::fuzz_target!(|data: &[u8]| {
            $crate::run($target, data, &[Corrupt, Protocol]);
        });
    };
}
