//! forebay-block: the block layer, the only crate that talks to the kernel's storage.
//!
//! Reading order: [`bio`] (a request), [`bdev`] (the device interface), [`check`] (the checks of
//! every device), [`flush_turns`], [`engine`], then the devices: [`ram`], [`mod@file`]. Decorators
//! that change one property of a device are in forebay-testkit.

pub mod bdev;
pub mod bio;
pub mod check;
pub mod delegate;
pub mod engine;
pub mod file;
pub mod flush_turns;
pub mod ioctl;
pub mod loopdev;
pub mod ram;
mod sys;

pub use bdev::{
    BlockDevice, DeviceRef, Limits, MapRuns, StableWrites, flush_blocking, io, io_with_end,
};
pub use bio::{Awaited, Bio, BioFlags, BioOp, Completion, EndBio};
pub use engine::{Aio, Engine};
pub use file::{DirectIo, FileDevice, FileIdentity, FileOptions, FileStamp};
pub use flush_turns::FlushTurns;
pub use ram::RamDevice;
