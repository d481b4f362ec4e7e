//! forebay-iomap: file range to storage. It answers reads and writes of any flag out of the page
//! cache and the device, and asks the file's [`ops::MapOps`] only where bytes are. The loop over a
//! request is in this crate, the map's answer comes from a layer above.
//!
//! Reading order: [`ops`] (the contract: map, reserve, publish, abort), [`mod@file`] (one open
//! object), `fill`, `read` and `pin` (in), `write`, `writeout` and `records` (out), `inflight`,
//! `direct`, `uncached`, `sync`, `zero`, `resize`, `discard`, `seek`, then
//! [`identity`], the map of raw images. Tests of maps are in forebay-testkit.
#![forbid(unsafe_code)]

mod admitted;
mod direct;
mod discard;
pub mod file;
mod fill;
pub mod identity;
mod inflight;
mod obstacle;
pub mod ops;
mod passing;
mod pin;
mod plan;
mod published;
mod read;
mod read_now;
mod records;
mod resize;
mod seek;
mod stable;
mod sync;
mod taken;
mod uncached;
mod write;
mod writeout;
mod zero;

pub use file::{Handle, MappedFile, Source, Target};
pub use ops::{
    Admit, BioOwned, Change, Class, Commit, Extent, GiveBack, Lookup, LostContent, MapFuture,
    MapInfo, MapOps, Place, Reservation, Sums, Written,
};
pub use pin::PinRequest;
