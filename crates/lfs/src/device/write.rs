//! Writes of several buffers; each keeps its turn taken until the device has ended it.
//!
//! No locks.

use crate::device::hold::Hold;
use forebay_base::Result;
use forebay_base::buf::{AlignedBuf, DataRef};
use forebay_block::{Awaited, Bio, BioFlags, BioOp, DeviceRef};
use forebay_iomap::ops::is_bad;

/// A write that owns `hold` until the device has ended it.
fn held_write(offset: u64, data: AlignedBuf, hold: &Hold) -> (Bio, Awaited) {
    let (len, held) = (data.len() as u64, hold.clone());
    Bio::awaited(BioOp::Write, offset, len, DataRef::Buf(data), |done| {
        drop(held);
        done
    })
}

/// [`write_each`] for a synchronous caller: the writes are carried out one after the other, on this
/// thread if the device permits that.
pub(crate) async fn write_here(
    device: &DeviceRef,
    writes: &[(u64, Vec<u8>)],
    flags: BioFlags,
    failed: &mut Vec<u64>,
    hold: Hold,
) -> Result<()> {
    let longest = device.limits().max_transfer as usize;
    for (offset, bytes) in writes {
        let mut at = *offset;
        for part in bytes.chunks(longest) {
            let (bio, completion) = held_write(at, AlignedBuf::copy_of(part), &hold);
            device.execute(bio.with_flags(flags));
            let done = completion.await.result;
            failed.extend(is_bad(&done).then_some(at));
            done?;
            at += part.len() as u64;
        }
    }
    Ok(())
}

/// Writes several buffers at once and waits for all. Each write owns `hold` until the device has
/// ended it, also if the caller is dropped.
pub(crate) async fn write_all(
    device: &DeviceRef,
    writes: Vec<(u64, Vec<u8>)>,
    flags: BioFlags,
    hold: Hold,
) -> Result<()> {
    write_each(device, &writes, flags, &mut Vec::new(), hold).await
}

/// [`write_all`] that adds the device offsets of failed writes to `failed`, without those that
/// failed for lack of space.
pub(crate) async fn write_each(
    device: &DeviceRef,
    writes: &[(u64, Vec<u8>)],
    flags: BioFlags,
    failed: &mut Vec<u64>,
    hold: Hold,
) -> Result<()> {
    let longest = device.limits().max_transfer as usize;
    let mut parts = Vec::new();
    for (offset, bytes) in writes {
        let part = |(n, part)| (offset + (n * longest) as u64, AlignedBuf::copy_of(part));
        parts.extend(bytes.chunks(longest).enumerate().map(part));
    }
    write_bufs(device, parts, flags, failed, hold).await
}

/// [`write_each`] of buffers that the device can each write in one request.
pub(crate) async fn write_bufs(
    device: &DeviceRef,
    writes: Vec<(u64, AlignedBuf)>,
    flags: BioFlags,
    failed: &mut Vec<u64>,
    hold: Hold,
) -> Result<()> {
    let mut waiting = Vec::new();
    for (offset, data) in writes {
        let (bio, completion) = held_write(offset, data, &hold);
        device.submit(bio.with_flags(flags));
        waiting.push((offset, completion));
    }
    let mut result = Ok(());
    for (at, completion) in waiting {
        let done = completion.await.result;
        failed.extend(is_bad(&done).then_some(at));
        result = result.and(done);
    }
    result
}
