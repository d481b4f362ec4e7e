//! How `--cache-size` is divided among the cache and the server.

use forebay_base::units::MIB;

/// Smallest `--cache-size`, bytes: half of it for requests of clients, a third or so for data.
pub const CACHE_MIN: u64 = 16 * MIB;
/// Least memory that is left of `--cache-size` for data, bytes.
pub const DATA_MIN: u64 = 4 * MIB;

/// The part of `--cache-size` for requests of clients, bytes. The server accepts requests of up to
/// a quarter of that part. Clients that do not ask for the limit send 32 MiB at most by the
/// protocol, and 1 MiB in practice (nbdfuse).
pub fn client_memory(whole: u64) -> u64 {
    (whole / 8).clamp(8 * MIB, 128 * MIB)
}
