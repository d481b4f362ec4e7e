//! The superblock's slots on the device.
//!
//! Invariants: U11 each state of the superblock is written to two slots, one at either end, in
//! turn: any single sector may be lost, and what was there before stays until the new one is
//! durable. U12 of the valid slots the one with the highest number counts. U13 slots of another
//! volume do not count beside one at the start: a device that was made smaller, got another volume
//! and was made larger has those of the old one at its end. U14 a state that only one of its slots
//! takes is written again under the next number, so that two slots have it whichever slot is bad.
//! The one that does not take it has no state of the same number. device.slots.R1 nothing is
//! written to a volume while slots cannot be read that may hold the newest state: both slots of a
//! state, or one of each of the two states that would follow. They may come back later, and lead
//! to what was overwritten since.
//!
//! No locks: opening and checkpoints are alone.

use crate::device::hold::Hold;
use crate::device::write::write_all;
use crate::format::superblock::{SLOT_BYTES, SLOTS, Superblock, slot_offsets};
use forebay_base::buf::{AlignedBuf, DataRef};
use forebay_base::units::round_down;
use forebay_base::{Error, ErrorKind, Result};
use forebay_block::{BioFlags, BioOp, DeviceRef, io};
use std::ops::Range;

/// Reads `len` bytes; both ends are multiples of the device's block.
pub(crate) async fn read_at(device: &DeviceRef, offset: u64, len: usize) -> Result<AlignedBuf> {
    let data = DataRef::Buf(AlignedBuf::new(len));
    let done = io(&**device, BioOp::Read, offset, len as u64, data, BioFlags::SYNC).await;
    done.result?;
    let gone = || Error::new(ErrorKind::Io, "read", "the buffer did not come back");
    done.data.into_buf().ok_or_else(gone)
}

/// All valid states, by their number (U12); what is wrong with one if there is none.
pub(crate) async fn read_valid(device: &DeviceRef) -> Result<Vec<Superblock>> {
    read_all(device).await.map(|found| found.slots)
}

async fn read_all(device: &DeviceRef) -> Result<Valid> {
    let mut found = Valid::default();
    let end = round_down(device.size(), SLOT_BYTES as u64);
    found.read(device, end, 0..SLOTS as usize).await?;
    let first = found.slots.iter().filter(|slot| slot.slot < SLOTS / 2);
    let own = first.max_by_key(|slot| slot.checkpoint).map(|slot| (slot.uuid, slot.nonce));
    let is_own = |slot: &Superblock| own.is_none_or(|own| own == (slot.uuid, slot.nonce));
    found.slots.retain(is_own);
    // A device that is larger than the volume: the other slots lie before the volume's end. Only the newest
    // of those that are found first says where that is: elsewhere anything may be.
    let newest = found.slots.iter().max_by_key(|slot| slot.checkpoint);
    if let Some(recorded) = newest.map(|newest| newest.recorded_end_bytes)
        && recorded < end
    {
        found.unreadable.retain(|(slot, ..)| *slot < SLOTS / 2);
        found.read(device, recorded, SLOTS as usize / 2..SLOTS as usize).await?;
        found.slots.retain(is_own);
    }
    let none = || Error::new(ErrorKind::Corrupt, "open", "no superblock slot is valid");
    if found.slots.is_empty() {
        return Err(found.why.unwrap_or_else(none));
    }
    found.slots.sort_by_key(|slot| slot.checkpoint);
    Ok(found)
}

/// The newest state (U12), and the one before it if there is one.
pub(crate) async fn read_newest(device: &DeviceRef) -> Result<(Superblock, Option<Superblock>)> {
    read_newest_to_read(device).await.map(|(newest, older, _)| (newest, older))
}

/// As [`read_newest`], with the error of the device if a newer state may be hidden.
pub(crate) async fn read_newest_to_read(
    device: &DeviceRef,
) -> Result<(Superblock, Option<Superblock>, Option<Error>)> {
    let found = read_all(device).await?;
    let hidden = found.hidden();
    let (newest, older) = found.newest();
    Ok((newest, older, hidden))
}

/// As [`read_newest`], for a volume that is about to be written to. The error of the device if a
/// newer state may be hidden (device.slots.R1).
pub(crate) async fn read_newest_to_write(
    device: &DeviceRef,
) -> Result<(Superblock, Option<Superblock>)> {
    let (newest, older, hidden) = read_newest_to_read(device).await?;
    hidden.map_or(Ok((newest, older)), Err)
}

/// The newest state but for `passed_over` newer ones, which are damaged elsewhere.
pub(crate) async fn read_older(device: &DeviceRef, passed_over: u32) -> Result<Superblock> {
    let mut valid = read_valid(device).await?;
    valid.dedup_by_key(|slot| slot.checkpoint);
    let none = || Error::new(ErrorKind::Corrupt, "open", "no older superblock slot is valid");
    let at = valid.len().checked_sub(passed_over as usize + 1).ok_or_else(none)?;
    Ok(valid.swap_remove(at))
}

/// Slots that were read.
#[derive(Default)]
struct Valid {
    slots: Vec<Superblock>,
    /// What is wrong with one of the start.
    why: Option<Error>,
    /// Slots that the device does not give back, where they are, and why.
    unreadable: Vec<(u32, u64, Error)>,
}

impl Valid {
    /// Reads some slots of a volume that ends at `end`.
    async fn read(&mut self, device: &DeviceRef, end: u64, slots: Range<usize>) -> Result<()> {
        for (slot, offset) in slot_offsets(end).into_iter().enumerate() {
            if !slots.contains(&slot) || offset + SLOT_BYTES as u64 > device.size() {
                continue;
            }
            let mut bytes = read_at(device, offset, SLOT_BYTES).await;
            if bytes.is_err() {
                // A read that fails once is no loss.
                bytes = read_at(device, offset, SLOT_BYTES).await;
            }
            if let Err(error) = &bytes {
                self.unreadable.push((slot as u32, offset, error.clone()));
            }
            let found = bytes.and_then(|bytes| Superblock::decode(&bytes, slot as u32));
            match found {
                Ok(found) => self.slots.push(found),
                // What is newer than this program says more than a slot that was never written.
                Err(error) if error.kind() == ErrorKind::Unsupported => return Err(error),
                Err(error) if slot < SLOTS as usize / 2 => self.why = Some(error),
                Err(_) => {}
            }
        }
        Ok(())
    }

    /// The newest state, and the one before it; there is one.
    fn newest(mut self) -> (Superblock, Option<Superblock>) {
        let newest = self.slots.pop().expect("one at least is valid");
        let before = |found: &&Superblock| {
            found.uuid == newest.uuid && found.checkpoint + 1 == newest.checkpoint
        };
        let older = self.slots.iter().find(before).cloned();
        (newest, older)
    }

    /// A slot of which the other one is not valid: they may both have had the newest state.
    fn hidden_in_pair(&self) -> Option<&(u32, u64, Error)> {
        let is_hidden = |(slot, ..): &&(u32, u64, Error)| {
            let other = (slot + SLOTS / 2) % SLOTS;
            !self.slots.iter().any(|valid| valid.slot == other)
        };
        self.unreadable.iter().find(is_hidden)
    }

    /// A slot whose turn comes next, if one of the turn after that is unreadable, too: the other
    /// slots of both may have older states because they did not take the newest one (U14).
    fn hidden_in_turns(&self) -> Option<&(u32, u64, Error)> {
        let newest = self.slots.iter().map(|slot| slot.checkpoint).max()?;
        let lost_in = |number: u64| {
            let half = SLOTS / 2;
            let turn = (number % u64::from(half)) as u32;
            self.unreadable.iter().find(|(slot, ..)| slot % half == turn)
        };
        let (next, then) = (newest.wrapping_add(1), newest.wrapping_add(2));
        lost_in(next).filter(|_| lost_in(then).is_some())
    }

    /// Why a state may be hidden (device.slots.R1).
    fn hidden(&self) -> Option<Error> {
        let found = self.hidden_in_pair().or_else(|| self.hidden_in_turns());
        let (slot, offset, error) = found?;
        let text = format!(
            "slot {slot} of the superblock cannot be read, which may hold the newest state: {error}; \
             the state before can be opened for reading"
        );
        Some(Error::new(error.kind(), "open", text).with_range(*offset, SLOT_BYTES as u64))
    }
}

/// Makes all slots invalid. The caller flushes.
pub(crate) async fn wipe(device: &DeviceRef, recorded_end_bytes: u64) -> Result<()> {
    let offsets = slot_offsets(recorded_end_bytes);
    let zeros = offsets.map(|offset| (offset, vec![0; SLOT_BYTES]));
    write_all(device, zeros.into(), BioFlags::SYNC, Hold::default()).await
}

/// A state as the two slots whose turn it is have it (U11): number, place, bytes.
fn slots_of(superblock: &Superblock) -> Result<[(u32, u64, Vec<u8>); 2]> {
    let half = SLOTS / 2;
    let turn = (superblock.checkpoint % u64::from(half)) as u32;
    let offsets = slot_offsets(superblock.recorded_end_bytes);
    let encoded = |slot: u32| {
        let mut bytes = vec![0; SLOT_BYTES];
        Superblock { slot, ..superblock.clone() }.encode_into(&mut bytes)?;
        Ok((slot, offsets[slot as usize], bytes))
    };
    Ok([encoded(turn)?, encoded(half + turn)?])
}

/// Writes the state to two slots of a volume that is not open. The caller flushes.
pub(crate) async fn write(device: &DeviceRef, superblock: &Superblock) -> Result<()> {
    write_both(device, superblock, Hold::default()).await
}

async fn write_both(device: &DeviceRef, superblock: &Superblock, hold: Hold) -> Result<()> {
    let writes = slots_of(superblock)?.map(|(_, offset, bytes)| (offset, bytes));
    write_all(device, writes.into(), BioFlags::SYNC, hold).await
}

/// How many slots have a state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Copies {
    One,
    Two,
}

impl Copies {
    /// Refuses to begin a life with a state in one slot: without that slot nothing leads to what is
    /// written in the life. A later state is one that the log leads to, too.
    pub fn for_a_life(self) -> Result<()> {
        let text = "only one slot of the superblock takes the state of this opening";
        match self {
            Self::One => Err(Error::new(ErrorKind::Io, "open", text)),
            Self::Two => Ok(()),
        }
    }
}

/// Writes the state to two slots, or to the one of them that takes it. `hold`: of the turn of
/// checkpoints (H18). The caller flushes, and writes it again if only one slot has it (U14).
pub(crate) async fn write_either(
    device: &DeviceRef,
    superblock: &Superblock,
    hold: Hold,
) -> Result<Copies> {
    if write_both(device, superblock, hold.clone()).await.is_ok() {
        return Ok(Copies::Two);
    }
    let mut failed = Vec::new();
    for (slot, offset, bytes) in slots_of(superblock)? {
        let write = write_all(device, vec![(offset, bytes)], BioFlags::SYNC, hold.clone());
        if let Err(error) = write.await {
            failed.push((slot, offset, error));
        }
    }
    let Some((slot, offset, error)) = failed.pop() else { return Ok(Copies::Two) };
    let there = read_at(device, offset, SLOT_BYTES).await;
    let there = there.and_then(|bytes| Superblock::decode(&bytes, slot)).ok();
    // Of two that differ, and have the same number, the wrong one could count.
    let other = there.is_some_and(|there| {
        let ours = Superblock { slot, ..superblock.clone() };
        there.checkpoint == superblock.checkpoint && there != ours
    });
    if other || !failed.is_empty() {
        return Err(error);
    }
    log::warn!("slot {slot} of the superblock cannot be written: {error}");
    Ok(Copies::One)
}
