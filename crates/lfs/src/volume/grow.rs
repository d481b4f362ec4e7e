//! Growth: adds segments at the end of a volume that is not open.
//!
//! ```text
//!   device grown > flush > new-size slots, one of each half > flush > the next two > flush > ...
//! ```
//! Invariants: X11 after any part of these steps the volume has the old size or the new one, with
//! all its content. The slots of both sizes refer to the same trees and the same log. X12 the old
//! slots at the end are abandoned only when slots of the new size are durable in two places. X13 a
//! growth is no larger than the next opening accepts (open.O14).
//!
//! No locks: the volume is not open.

use crate::device::slots;
use crate::format::features::Access;
use crate::format::superblock::{SLOT_BYTES, SLOTS, Superblock};
use crate::recover::open::{check_growth, usage_entries};
use crate::volume::info::VolumeInfo;
use crate::volume::{OpenOptions, Parts, align_of};
use forebay_base::buf::DataRef;
use forebay_base::{Error, ErrorKind, Result};
use forebay_block::{BioFlags, BioOp, DeviceRef, io};

/// The number of checkpoints that a growth writes. Each is written to one slot of each half (X12),
/// so that all slots get the new size.
const TURNS: u64 = SLOTS as u64 / 2;

fn invalid<T>(text: String) -> Result<T> {
    Err(Error::new(ErrorKind::InvalidInput, "grow", text))
}

/// Grows the volume to `bytes` bytes, and the device too if it is smaller and can grow. Without a
/// size, the volume becomes as large as the device. Returns the volume before and after.
/// `InvalidInput` if the size does not add a segment, or adds more segments than a volume can have
/// or than the next opening accepts.
pub async fn grow(device: &DeviceRef, bytes: Option<u64>) -> Result<(VolumeInfo, VolumeInfo)> {
    let (old, ..) = slots::read_newest_to_write(device).await?;
    if let Access::ReadOnly(why) = old.access()? {
        return Err(Error::new(ErrorKind::ReadOnly, "grow", why));
    }
    let bytes = bytes.unwrap_or(device.size());
    let new = larger(&old, bytes)?;
    let parts = Parts::of(device, &old, align_of(device), &OpenOptions::default());
    let known = usage_entries(&parts.tree, &old).await?.len();
    if check_growth(known, new.segment_count).is_err() {
        let segments = new.segment_count;
        return invalid(format!(
            "{segments} segments are too many more than {known} at once: grow it in several steps, and \
             open it for writing after each"
        ));
    }
    if device.size() < bytes {
        device.grow(bytes)?;
    }
    // The flush makes durable the new size of the device, and the state that was read.
    flush(device).await?;
    for turn in 1..=TURNS {
        let checkpoint = old.checkpoint + turn;
        slots::write(device, &Superblock { checkpoint, ..new.clone() }).await?;
        flush(device).await?;
    }
    Ok((VolumeInfo::from(&old), VolumeInfo::from(&new)))
}

fn larger(old: &Superblock, bytes: u64) -> Result<Superblock> {
    let slot = SLOT_BYTES as u64;
    let recorded_end_bytes = bytes / slot * slot;
    let segment_bytes = u64::from(old.geometry.segment_bytes());
    let room =
        recorded_end_bytes.saturating_sub(old.data_start_bytes + slot * u64::from(SLOTS / 2));
    let segments = room / segment_bytes;
    if segments <= u64::from(old.segment_count) {
        let end = old.recorded_end_bytes;
        return invalid(format!(
            "{bytes} bytes are no segment of {segment_bytes} bytes more than {end}"
        ));
    }
    match u32::try_from(segments) {
        Ok(segment_count) if segment_count <= u32::MAX / 2 => {
            Ok(Superblock { recorded_end_bytes, segment_count, ..old.clone() })
        }
        _ => invalid(format!("{bytes} bytes are {segments} segments")),
    }
}

async fn flush(device: &DeviceRef) -> Result<()> {
    io(&**device, BioOp::Flush, 0, 0, DataRef::None, BioFlags::SYNC).await.result
}
