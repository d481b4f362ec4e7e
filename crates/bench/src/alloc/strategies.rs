//! The allocation strategies, the large request, and the cost of discontiguities on the slow
//! device.

use forebay_base::units::MIB;
use forebay_lfs::AllocMode;

/// Bytes of a large request.
pub const REQUEST: u64 = 2 * MIB;
/// Bandwidth of the slow device, bytes per second.
pub const BANDWIDTH: u64 = 100_000_000;
/// Milliseconds of a large request on the slow device without a discontiguity.
const REQUEST_MILLIS: f64 = REQUEST as f64 / BANDWIDTH as f64 * 1e3;

/// Each strategy: name, mode, and `serialized_dio_pages`. `serialized` is that of a kernel patch.
pub const STRATEGIES: [(&str, AllocMode, u32); 3] = [
    ("interleaved", AllocMode::Interleaved, 64),
    ("serialized", AllocMode::Serialized, 64),
    ("reserve", AllocMode::Reserve, 64),
];

/// Expected speed of a request with one discontiguity over that of one with `k`.
pub fn expected(k: f64) -> f64 {
    (REQUEST_MILLIS + k) / (REQUEST_MILLIS + 1.0)
}
