//! Damage that every decoder must detect: truncation at any length, and any flipped bit.
//!
//! No locks.

use forebay_base::{ErrorKind, Result};

/// `decode` must accept `bytes`, and refuse every shorter prefix.
pub fn cut_anywhere(bytes: &[u8], mut decode: impl FnMut(&[u8]) -> Result<()>) {
    decode(bytes).unwrap();
    for len in 0..bytes.len() {
        let error = decode(&bytes[..len]).expect_err("it was cut");
        assert_eq!(error.kind(), ErrorKind::Corrupt, "cut at {len}: {error}");
    }
}

/// `decode` must accept `bytes`, and refuse them with any single bit flipped (format.F3).
pub fn flip_anywhere(bytes: &[u8], mut decode: impl FnMut(&[u8]) -> Result<()>) {
    let mut bytes = bytes.to_vec();
    decode(&bytes).unwrap();
    for bit in 0..bytes.len() * 8 {
        bytes[bit / 8] ^= 1 << (bit % 8);
        let error = decode(&bytes).expect_err("a flipped bit goes unseen (F3)");
        assert_eq!(error.kind(), ErrorKind::Corrupt, "bit {bit}: {error}");
        bytes[bit / 8] ^= 1 << (bit % 8);
    }
}
