//! The superblock's slots on the device.
//!
//! Invariants: U11 each state of the superblock is written to two slots, one at either end, in turn: any
//! single sector may be lost, and what was there before stays until the new one is durable. U12 of the valid
//! slots the one with the highest number counts.
//!
//! No locks: opening and checkpoints are alone.

use crate::commit::write_all;
use crate::format::superblock::{SLOT_BYTES, SLOTS, Superblock, slot_offsets};
use forebay_base::buf::{AlignedBuf, DataRef};
use forebay_base::{Error, ErrorKind, Result};
use forebay_block::{BioFlags, BioOp, DeviceRef, io};

/// Reads `len` bytes; both ends are multiples of the device's block.
pub(crate) async fn read_at(device: &DeviceRef, offset: u64, len: usize) -> Result<AlignedBuf> {
    let data = DataRef::Buf(AlignedBuf::new(len));
    let done = io(&**device, BioOp::Read, offset, len as u64, data, BioFlags::SYNC).await;
    done.result?;
    let gone = || Error::new(ErrorKind::Io, "read", "the buffer did not come back");
    done.data.into_buf().ok_or_else(gone)
}

/// The newest state (U12), and the one before it if there is one.
pub(crate) async fn read_newest(device: &DeviceRef) -> Result<(Superblock, Option<Superblock>)> {
    let half = SLOTS as usize / 2;
    let mut valid: Vec<Superblock> = Vec::new();
    let mut why = None;
    for (slot, offset) in slot_offsets(device.size()).into_iter().enumerate() {
        if offset + SLOT_BYTES as u64 > device.size() {
            continue;
        }
        let found = match read_at(device, offset, SLOT_BYTES).await {
            Ok(bytes) => Superblock::decode(&bytes, slot as u32),
            Err(error) => Err(error),
        };
        match found {
            Ok(found) => valid.push(found),
            // What is newer than this program says more than a slot that was never written.
            Err(error) if error.kind() == ErrorKind::Unsupported => return Err(error),
            Err(error) if slot < half => why = Some(error),
            Err(_) => {}
        }
    }
    let none = || Error::new(ErrorKind::Corrupt, "open", "no superblock slot is valid");
    valid.sort_by_key(|found| found.checkpoint);
    let Some(newest) = valid.pop() else { return Err(why.unwrap_or_else(none)) };
    let before = |found: &&Superblock| {
        found.uuid == newest.uuid && found.checkpoint + 1 == newest.checkpoint
    };
    let older = valid.iter().find(before).cloned();
    Ok((newest, older))
}

/// Makes all slots invalid. The caller flushes.
pub(crate) async fn wipe(device: &DeviceRef, recorded_end_bytes: u64) -> Result<()> {
    let offsets = slot_offsets(recorded_end_bytes);
    let zeros = offsets.map(|offset| (offset, vec![0; SLOT_BYTES]));
    write_all(device, zeros.into(), BioFlags::SYNC).await
}

/// Writes the state to the two slots whose turn it is (U11). The caller flushes.
pub(crate) async fn write(device: &DeviceRef, superblock: &Superblock) -> Result<()> {
    let half = SLOTS / 2;
    let turn = (superblock.checkpoint % u64::from(half)) as u32;
    let offsets = slot_offsets(superblock.recorded_end_bytes);
    let mut writes = Vec::new();
    for slot in [turn, half + turn] {
        let mut bytes = vec![0; SLOT_BYTES];
        Superblock { slot, ..superblock.clone() }.encode_into(&mut bytes)?;
        writes.push((offsets[slot as usize], bytes));
    }
    write_all(device, writes, BioFlags::SYNC).await
}
