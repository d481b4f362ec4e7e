//! The ways of giving out blocks, the large request, and what discontiguities cost it on the slow
//! device.

use forebay_base::units::MIB;
use forebay_lfs::AllocMode;

/// Bytes of a large request.
pub const REQUEST: u64 = 2 * MIB;
/// Of the slow device, bytes per second.
pub const BANDWIDTH: u64 = 100_000_000;
/// Milliseconds that a request takes there without a discontiguity.
const REQUEST_MILLIS: f64 = REQUEST as f64 / BANDWIDTH as f64 * 1e3;

/// Each way by its name, and its `serialized_dio_pages`.
pub const WAYS: [(&str, AllocMode, u32); 3] = [
    ("interleaved", AllocMode::Interleaved, 64),
    ("serialized", AllocMode::Serialized, 64),
    ("reserve", AllocMode::Reserve, 64),
];

/// How much faster a request without discontiguities but one is than one with `k`.
pub fn expected(k: f64) -> f64 {
    (REQUEST_MILLIS + k) / (REQUEST_MILLIS + 1.0)
}
