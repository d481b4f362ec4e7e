//! Decorators: devices on top of another device that change one property of it. For tests, those of
//! the block layer included, and for benches.
//!
//! Invariants, for all of them: D1 a bio is passed on or completed, exactly once. D2 limits are
//! those of the device below, read anew each time, with the decorator's own on top; the need for
//! stable writes is the OR of both (lineage.S5), unless [`limits`] forces it. D3 `read_into` and
//! `write_from` never wait for a queue of the calling thread: they use the blocking calls of the
//! device below.

pub mod checksum;
pub mod delay;
pub mod error;
pub mod limits;
pub mod log;
mod pace;
pub mod throttle;

pub use checksum::{ChecksumDevice, ChecksumStats};
pub use delay::{DelayDevice, DelayOptions};
pub use error::{ErrorDevice, Fault, When};
pub use limits::{LimitsDevice, LimitsOverride};
pub use log::{LogDevice, Record};
pub use throttle::{ThrottleDevice, ThrottleOptions};
