//! Sizes as people write them, and rounding to powers of two.

use crate::error::{Error, ErrorKind, Result};

/// Bytes in a KiB.
pub const KIB: u64 = 1 << 10;
/// Bytes in a MiB.
pub const MIB: u64 = 1 << 20;
/// Bytes in a GiB.
pub const GIB: u64 = 1 << 30;

/// Rounds `value` down to a multiple of `align`, a power of two.
#[inline]
pub const fn round_down(value: u64, align: u64) -> u64 {
    debug_assert!(align.is_power_of_two());
    value & !(align - 1)
}

/// Rounds `value` up to a multiple of `align`, a power of two. The result must fit into 64 bits; it
/// does for file offsets, which are below 2^63.
#[inline]
pub const fn round_up(value: u64, align: u64) -> u64 {
    debug_assert!(align.is_power_of_two());
    (value + (align - 1)) & !(align - 1)
}

/// Whether `value` is a multiple of `align`, a power of two.
#[inline]
pub const fn is_aligned(value: u64, align: u64) -> bool {
    debug_assert!(align.is_power_of_two());
    value & (align - 1) == 0
}

/// Parses `4096`, `4k`, `1M`, `2G`, `1T` (binary multiples, either case, optional `B` or `iB`).
pub fn parse_size(text: &str) -> Result<u64> {
    let bad =
        |why: &str| Error::new(ErrorKind::InvalidInput, "parse size", format!("`{text}`: {why}"));
    let lower = text.trim().to_ascii_lowercase();
    let body = lower.strip_suffix("ib").or_else(|| lower.strip_suffix('b')).unwrap_or(&lower);
    let (digits, shift) = match body.as_bytes().last() {
        Some(b'k') => (&body[..body.len() - 1], 10),
        Some(b'm') => (&body[..body.len() - 1], 20),
        Some(b'g') => (&body[..body.len() - 1], 30),
        Some(b't') => (&body[..body.len() - 1], 40),
        Some(b'0'..=b'9') => (body, 0),
        _ => return Err(bad("a number with an optional k, M, G or T")),
    };
    let number: u64 = digits.parse().map_err(|_| bad("not a whole number"))?;
    number.checked_mul(1 << shift).filter(|v| *v < 1 << 63).ok_or_else(|| bad("too large"))
}

/// Prints bytes in the largest binary unit that they reach, rounded to one decimal: `1.5 GiB`.
pub fn format_size(bytes: u64) -> String {
    let units = [(1u64 << 40, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")];
    for (unit, name) in units {
        if bytes >= unit {
            let whole = bytes as f64 / unit as f64;
            return if bytes.is_multiple_of(unit) {
                format!("{} {name}", bytes / unit)
            } else {
                format!("{whole:.1} {name}")
            };
        }
    }
    format!("{bytes} B")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        assert_eq!(parse_size("4k").unwrap(), 4096);
        assert_eq!(parse_size("1M").unwrap(), MIB);
        assert_eq!(parse_size("2GiB").unwrap(), 2 * GIB);
        assert_eq!(parse_size("512").unwrap(), 512);
        for bad in ["", "k", "-1", "1.5G", "9999999999T", "1x"] {
            assert!(parse_size(bad).is_err(), "{bad}");
        }
        assert_eq!(format_size(1536 * MIB), "1.5 GiB");
        assert_eq!(format_size(4096), "4 KiB");
    }

    #[test]
    fn rounding() {
        assert_eq!(round_down(4097, 4096), 4096);
        assert_eq!(round_up(4097, 4096), 8192);
        assert_eq!(round_up(0, 4096), 0);
        assert!(is_aligned(8192, 4096) && !is_aligned(8191, 4096));
    }
}
