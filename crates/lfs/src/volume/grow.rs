//! Growing: a volume gets more segments at its end, while nobody has it open.
//!
//! ```text
//!   device grown > flush > slots of the new size, one of each half > flush > the next two > flush > ...
//! ```
//! Invariants: X11 whatever is left of these steps, the volume has the old size or the new one,
//! with everything in it: slots of either size name the same trees and the same log. X12 the old
//! slots at the end are given up only when slots of the new size are durable in two places. X13 a
//! growth is no larger than the next opening believes (O14).
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

/// Checkpoints that a growth writes: each goes to one slot of each half (X12), so that all are of
/// the new size.
const TURNS: u64 = SLOTS as u64 / 2;

fn invalid<T>(text: String) -> Result<T> {
    Err(Error::new(ErrorKind::InvalidInput, "grow", text))
}

/// Makes the volume on a device as large as `bytes`, and the device itself if it is smaller and can
/// grow; without a size, as large as the device. What it was and what it is. `InvalidInput` for a
/// size that is no larger by a segment at least, for more segments than a volume can have, and for
/// more than the next opening believes.
pub async fn grow(device: &DeviceRef, bytes: Option<u64>) -> Result<(VolumeInfo, VolumeInfo)> {
    let (old, _) = slots::read_newest_to_write(device).await?;
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
    // The size, and what was read of a life before.
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
