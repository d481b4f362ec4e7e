//! The superblock's slots on the device.
//!
//! Invariants: U11 each state of the superblock is written to two slots, one at either end of the
//! volume, in rotation. So any single sector may be lost, and the previous state remains until the
//! new one is durable. U12 of the valid slots the one with the highest number counts. U13 slots of
//! another volume do not count if there is a valid slot at the start. A device that was shrunk, got
//! another volume and was grown still has slots of the old volume at its end. U14 if only one of
//! its slots can be written, a state is written again under the next number, so that two slots have
//! it whichever slot is bad. Slots do not count for that while a slot that may have a different
//! state has the same number or a higher one. A number is used only when some slot has a state
//! under the number before.
//! device.slots.R1 nothing is written to a volume while unreadable slots may contain the newest
//! state: both slots of a state, or one of each of the two following states. They may become
//! readable later, and refer to data that was overwritten since.
//!
//! No locks: opening and checkpoints never run concurrently.

use crate::device::hold::Hold;
use crate::device::write::write_all;
use crate::format::superblock::{SLOT_BYTES, SLOTS, Superblock, slot_offsets};
use forebay_base::buf::{AlignedBuf, DataRef};
use forebay_base::units::round_down;
use forebay_base::{Error, ErrorKind, Result};
use forebay_block::{BioFlags, BioOp, DeviceRef, io};
use std::ops::Range;

/// Reads `len` bytes; offset and length are multiples of the device's block.
pub(crate) async fn read_at(device: &DeviceRef, offset: u64, len: usize) -> Result<AlignedBuf> {
    let data = DataRef::Buf(AlignedBuf::new(len));
    let done = io(&**device, BioOp::Read, offset, len as u64, data, BioFlags::SYNC).await;
    done.result?;
    let gone = || Error::new(ErrorKind::Io, "read", "the buffer did not come back");
    done.data.into_buf().ok_or_else(gone)
}

/// All valid states, in order of their numbers (U12); the error of one slot if there is none.
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
    // The device may be larger than the volume: then the other slots lie before the volume's end.
    // Only the newest of the slots found first is trusted for that end, since other slots may be
    // outdated.
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

/// As [`read_newest`], with the device's error if a newer state may be unreadable.
pub(crate) async fn read_newest_to_read(
    device: &DeviceRef,
) -> Result<(Superblock, Option<Superblock>, Option<Error>)> {
    let found = read_all(device).await?;
    let hidden = found.hidden();
    let (newest, older) = found.newest();
    Ok((newest, older, hidden))
}

/// As [`read_newest`], for a volume that is about to be written, and the number that
/// [`Valid::doubtful`] gives. Fails with the device's error if a newer state may be unreadable
/// (device.slots.R1).
pub(crate) async fn read_newest_to_write(
    device: &DeviceRef,
) -> Result<(Superblock, Option<Superblock>, u64)> {
    let found = read_all(device).await?;
    if let Some(hidden) = found.hidden() {
        return Err(hidden);
    }
    let doubtful = found.doubtful();
    let (newest, older) = found.newest();
    Ok((newest, older, doubtful))
}

/// The newest state after skipping `passed_over` newer ones, whose trees or logs are damaged.
pub(crate) async fn read_older(device: &DeviceRef, passed_over: u32) -> Result<Superblock> {
    let mut valid = read_valid(device).await?;
    valid.dedup_by_key(|slot| slot.checkpoint);
    let none = || Error::new(ErrorKind::Corrupt, "open", "no older superblock slot is valid");
    let at = valid.len().checked_sub(passed_over as usize + 1).ok_or_else(none)?;
    Ok(valid.swap_remove(at))
}

/// Result of reading slots.
#[derive(Default)]
struct Valid {
    slots: Vec<Superblock>,
    /// The error of a slot at the start.
    why: Option<Error>,
    /// Slots that the device cannot read: number, offset and error.
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
                // A read that fails once may succeed the next time.
                bytes = read_at(device, offset, SLOT_BYTES).await;
            }
            if let Err(error) = &bytes {
                self.unreadable.push((slot as u32, offset, error.clone()));
            }
            let found = bytes.and_then(|bytes| Superblock::decode(&bytes, slot as u32));
            match found {
                Ok(found) => self.slots.push(found),
                // "Newer than this program" is more informative than the error of a slot that was
                // never written.
                Err(error) if error.kind() == ErrorKind::Unsupported => return Err(error),
                Err(error) if slot < SLOTS as usize / 2 => self.why = Some(error),
                Err(_) => {}
            }
        }
        Ok(())
    }

    /// The newest state, and the one before it. At least one slot must be valid. Of two states with
    /// one number that at the end counts.
    fn newest(mut self) -> (Superblock, Option<Superblock>) {
        let newest = self.slots.pop().expect("one at least is valid");
        let before = |found: &&Superblock| {
            found.uuid == newest.uuid && found.checkpoint.checked_add(1) == Some(newest.checkpoint)
        };
        let older = self.slots.iter().rev().find(before).cloned();
        (newest, older)
    }

    /// The highest number under which a slot may have a state that would count in place of the
    /// newest one, or next after it. 0: none. A state gets a number only after some slot has it
    /// under the number before. So an unreadable slot may have the newest number or the next, and
    /// two slots with the number before the newest may have different states.
    fn doubtful(&self) -> u64 {
        let Some(newest) = self.slots.last().map(|slot| slot.checkpoint) else { return 0 };
        let half = SLOTS / 2;
        let is_hidden = |number: &u64| {
            let turn = number % u64::from(half);
            self.unreadable.iter().any(|(slot, ..)| u64::from(slot % half) == turn)
        };
        let is_tied = |number: &u64| {
            let mut all = self.slots.iter().filter(|slot| slot.checkpoint == *number);
            let first = all.next().map(|first| Superblock { slot: 0, ..first.clone() });
            all.any(|other| first != Some(Superblock { slot: 0, ..other.clone() }))
        };
        let hidden = [newest.saturating_add(1), newest].into_iter().find(is_hidden);
        let tied = [newest, newest.saturating_sub(1)].into_iter().find(is_tied);
        hidden.max(tied).unwrap_or(0)
    }

    /// An unreadable slot whose other slot is not valid: both may have had the newest state.
    fn hidden_in_pair(&self) -> Option<&(u32, u64, Error)> {
        let is_hidden = |(slot, ..): &&(u32, u64, Error)| {
            let other = (slot + SLOTS / 2) % SLOTS;
            !self.slots.iter().any(|valid| valid.slot == other)
        };
        self.unreadable.iter().find(is_hidden)
    }

    /// An unreadable slot of the next state, if one of the state after that is unreadable, too. The
    /// other slots of both may have older states because they could not take the newest one (U14).
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

    /// The error if a newer state may be unreadable (device.slots.R1).
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

/// The two slots to which a state has to be written (U11): number, offset, bytes.
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

/// Writes the state to the two slots of a volume that is not open. The caller flushes.
pub(crate) async fn write(device: &DeviceRef, superblock: &Superblock) -> Result<()> {
    write_both(device, superblock, Hold::default()).await
}

async fn write_both(device: &DeviceRef, superblock: &Superblock, hold: Hold) -> Result<()> {
    let writes = slots_of(superblock)?.map(|(_, offset, bytes)| (offset, bytes));
    write_all(device, writes.into(), BioFlags::SYNC, hold).await
}

/// Number of slots that have a state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Copies {
    /// One, and the other one has a different state of the same number, which could count.
    Contested,
    One,
    Two,
}

impl Copies {
    /// Refuses to open a volume for writing if only one slot has its state: without that slot
    /// nothing would lead to the data written from then on. For a later state the log leads there
    /// as well.
    pub fn for_a_life(self) -> Result<()> {
        let text = "only one slot of the superblock takes the state of this opening";
        match self {
            Self::Contested | Self::One => Err(Error::new(ErrorKind::Io, "open", text)),
            Self::Two => Ok(()),
        }
    }
}

/// Writes the state to two slots, or to the one of them that can be written. `hold`: keeps the turn
/// of checkpoints (checkpoint.H18). The caller flushes, and writes it again if only one slot has it
/// (U14).
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
    let is_contested = there.is_some_and(|there| {
        let ours = Superblock { slot, ..superblock.clone() };
        there.checkpoint == superblock.checkpoint && there != ours
    });
    if !failed.is_empty() {
        return Err(error);
    }
    log::warn!("slot {slot} of the superblock cannot be written: {error}");
    Ok(if is_contested { Copies::Contested } else { Copies::One })
}
