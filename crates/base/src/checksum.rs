//! CRC-32C (Castagnoli, as in iSCSI, ext4 and btrfs): the checksum of all stored formats.
//!
//! The crate `crc-fast` was chosen by measurement on the build machine (Intel Xeon with AVX-512 and
//! VPCLMULQDQ, two cores), `cargo run --release -p forebay-base --example crc_bench`, alternating 8
//! MiB slices, medians of 41 rounds:
//!
//! | bytes   | crc-fast GiB/s | crc32c GiB/s | ratio |
//! |---------|----------------|--------------|-------|
//! | 512     | 43.2           | 16.6         | 2.6   |
//! | 4096    | 60.6           | 17.9         | 3.4   |
//! | 65536   | 79.3           | 20.1         | 3.9   |
//! | 1048576 | 78.9           | 21.7         | 3.6   |
//!
//! The crate `crc32c` stays as the oracle of the tests. No lock, no state.

use crc_fast::{CrcAlgorithm, Digest};

/// The CRC-32C of `bytes`; of no bytes it is 0.
#[inline]
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

/// Continues a CRC-32C: `crc32c_append(crc32c(a), b)` is the CRC of `a` and `b` joined.
#[inline]
pub fn crc32c_append(crc: u32, bytes: &[u8]) -> u32 {
    // The register holds the inverse of the published value.
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(!crc));
    digest.update(bytes);
    digest.finalize() as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::world::split_mix;

    #[test]
    fn published_vectors() {
        assert_eq!(crc32c(b""), 0);
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        // RFC 3720, B.4: 32 bytes of zeros, of ones, and counting up.
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
        let counting: Vec<u8> = (0..32).collect();
        assert_eq!(crc32c(&counting), 0x46dd_794e);
    }

    #[test]
    fn crc32c_any_length_and_alignment_matches_oracle() {
        let mut seed = 3;
        let data: Vec<u8> = (0..160 << 10).map(|_| split_mix(&mut seed) as u8).collect();
        for round in 0..3000u64 {
            let longest = [80, 600, 5000, 70_000][(round % 4) as usize];
            let start = (split_mix(&mut seed) % 4200) as usize;
            let len = (split_mix(&mut seed) % longest) as usize;
            let piece = &data[start..start + len];
            let want = ::crc32c::crc32c(piece);
            assert_eq!(crc32c(piece), want, "{start}+{len}");
            let (left, right) = piece.split_at((split_mix(&mut seed) % (len as u64 + 1)) as usize);
            assert_eq!(crc32c_append(crc32c(left), right), want, "{start}+{len}");
        }
    }
}
