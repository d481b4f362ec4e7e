//! Copies what is live: read, held against its sums where it lies in memory, and written from there.
//!
//! ```text
//!   from:  ..aa...bbb.....c..        runs of victims, wherever they lie
//!            ▼    ▼       ▼          read into their places of one buffer
//!   buffer:  aabbbc                  each block held against its sum
//!            ▼                       one write
//!   to:      aabbbc                  the segment that is being filled
//! ```
//! Invariants: C42, see [`crate::clean`]. M32 a run that is copied lies in one segment, which does not die
//! while it is on its way: each write holds the [`Flight`] until the device is done with it, whoever still
//! waits for it. What is in memory at a time is bounded: [`AHEAD_BYTES`] being read, as much being
//! written.
//!
//! Locks: the state lock, when a flight ends; none across a wait.

use super::moves::Live;
use crate::format::MAX_EXTENT_BLOCKS;
use crate::format::place::Place;
use crate::slots::read_at;
use crate::volume::Inner;
use forebay_base::buf::{AlignedBuf, DataRef, PartedBuf};
use forebay_base::checksum::crc32c;
use forebay_base::task::{OneReceiver, oneshot};
use forebay_base::units::MIB;
use forebay_base::{Error, ErrorKind, Result};
use forebay_block::{Bio, BioFlags, BioOp, Completion};
use std::collections::BTreeSet;
use std::sync::{Arc, Weak};

/// Bytes of a buffer, which one write takes, at most.
const BUFFER_BYTES: u64 = MIB;
/// Bytes that are read at once, while as many are being written.
const AHEAD_BYTES: u64 = 2 * MIB;

/// Runs on their way to the segments that are being filled (M32).
pub(super) struct Flight {
    inner: Weak<Inner>,
    segments: BTreeSet<u32>,
}

impl Flight {
    /// To `segments`, which are counted as on their way from now on, by who holds the state.
    pub fn new(inner: &Inner, segments: BTreeSet<u32>) -> Self {
        Self { inner: inner.me.clone(), segments }
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        let Some(inner) = self.inner.upgrade() else { return };
        let mut state = inner.state.lock();
        self.segments.iter().for_each(|segment| state.space.land(*segment));
    }
}

/// What was copied.
#[derive(Default)]
pub(super) struct Copied {
    pub live: Vec<Live>,
    /// Segments with blocks that are not what their sums say.
    pub bad: BTreeSet<u32>,
    /// Segments with blocks that could not be read, which may be otherwise next time.
    pub failed: BTreeSet<u32>,
    /// How many of both.
    pub bad_blocks: u64,
}

impl Copied {
    /// One block more, as a part of what it goes on with.
    fn keep(&mut self, block: Live, unit: u64) {
        if let Some(last) = self.live.last_mut() {
            let same = last.data_id == block.data_id && last.birth == block.birth;
            let behind = last.block + last.blocks == block.block && block.goes_on(last, unit);
            if same && behind && last.blocks < u64::from(MAX_EXTENT_BLOCKS) {
                last.blocks += 1;
                last.sums.extend(block.sums);
                return;
            }
        }
        self.live.push(block);
    }
}

/// What lies one behind the other where it goes.
struct Part {
    to: Place,
    /// In order.
    live: Vec<Live>,
    bytes: u64,
}

/// Waits for requests.
type Waiting = Vec<OneReceiver<Result<()>>>;

async fn all(waiting: Waiting) -> Vec<Result<()>> {
    let mut results = Vec::with_capacity(waiting.len());
    for rx in waiting {
        let gone = || Error::new(ErrorKind::Shutdown, "clean", "the device went away");
        results.push(rx.await.unwrap_or_else(|| Err(gone())));
    }
    results
}

impl Inner {
    /// Reads, checks and writes (C42).
    pub(super) async fn copy(&self, live: &[Live], flight: &Arc<Flight>) -> Result<Copied> {
        let parts = self.parts(live);
        let mut copied = Copied::default();
        let (mut writing, mut result) = (Waiting::new(), Ok(()));
        let most = (AHEAD_BYTES / BUFFER_BYTES) as usize;
        for some in parts.chunks(most) {
            if self.device.is_crowded() {
                self.device.room().await;
            }
            let mut asked = Vec::with_capacity(some.len());
            for part in some {
                asked.push(self.read_part(part));
            }
            // Those that were read before are on their way out meanwhile.
            let mut read = Vec::with_capacity(asked.len());
            for (buf, waiting) in asked {
                read.push((all(waiting).await, buf));
            }
            for done in all(std::mem::take(&mut writing)).await {
                result = result.and(done);
            }
            result.clone()?;
            for (part, (results, buf)) in some.iter().zip(read) {
                let gone =
                    || Error::new(ErrorKind::Shutdown, "clean", "a buffer did not come back");
                let mut buf = buf.into_buf().ok_or_else(gone)?;
                self.check(part, results, &mut buf, &mut copied).await;
                self.write_part(part, buf, flight, &mut writing);
            }
        }
        for done in all(writing).await {
            result = result.and(done);
        }
        result.map(|()| copied)
    }

    /// Parts of at most a buffer, each in one segment.
    fn parts(&self, live: &[Live]) -> Vec<Part> {
        let unit = self.layout.block_bytes();
        let longest = u64::from(self.device.limits().max_transfer).min(BUFFER_BYTES);
        let mut parts: Vec<Part> = Vec::new();
        let most = longest / unit;
        let pieces = live.iter().flat_map(|live| {
            let firsts = (0..live.blocks).step_by(most as usize);
            firsts.map(move |skip| live.part(skip, most.min(live.blocks - skip), unit))
        });
        for live in pieces {
            let bytes = live.blocks * unit;
            match parts.last_mut() {
                Some(part)
                    if part.to.segment == live.to.segment
                        && u64::from(part.to.offset) + part.bytes == u64::from(live.to.offset)
                        && part.bytes + bytes <= longest =>
                {
                    part.bytes += bytes;
                    part.live.push(live);
                }
                _ => parts.push(Part { to: live.to, bytes, live: vec![live] }),
            }
        }
        parts
    }

    /// Asks for what is to be in a buffer; a result for each run of neighbours, see [`runs_of`].
    fn read_part(&self, part: &Part) -> (PartedBuf, Waiting) {
        let unit = self.layout.block_bytes();
        let buf = PartedBuf::new(AlignedBuf::new(part.bytes as usize));
        let (mut bios, mut waiting, mut at) = (Vec::new(), Waiting::new(), 0);
        for run in runs_of(&part.live, unit) {
            let len: u64 = run.iter().map(|live| live.blocks * unit).sum();
            let (tx, rx) = oneshot();
            let end = Box::new(move |Completion { data, result }| {
                // Before whoever waits learns of it: he wants the whole buffer.
                drop(data);
                tx.send(result);
            });
            let (offset, data) =
                (self.layout.device_offset(run[0].from), buf.part(at, len as usize));
            let bio = Bio::new(BioOp::Read, offset, len, data, end);
            bios.push(bio.with_flags(BioFlags::BACKGROUND));
            waiting.push(rx);
            at += len as usize;
        }
        self.device.submit_batch(&mut bios);
        (buf, waiting)
    }

    fn write_part(
        &self,
        part: &Part,
        buf: AlignedBuf,
        flight: &Arc<Flight>,
        writing: &mut Waiting,
    ) {
        let ((tx, rx), held) = (oneshot(), flight.clone());
        let end = Box::new(move |Completion { data, result }| {
            drop((data, held));
            tx.send(result);
        });
        let offset = self.layout.device_offset(part.to);
        let bio = Bio::new(BioOp::Write, offset, part.bytes, DataRef::Buf(buf), end);
        self.device.submit(bio.with_flags(BioFlags::BACKGROUND));
        writing.push(rx);
    }

    /// Holds what was read against its sums. What is not as it was stays where it is.
    async fn check(
        &self,
        part: &Part,
        results: Vec<Result<()>>,
        buf: &mut AlignedBuf,
        copied: &mut Copied,
    ) {
        let unit = self.layout.block_bytes();
        let mut blocks = buf.chunks_exact_mut(unit as usize);
        for (run, result) in runs_of(&part.live, unit).zip(results) {
            for live in run {
                for n in 0..live.blocks {
                    let block = live.part(n, 1, unit);
                    let Some(bytes) = blocks.next() else { return };
                    let done = match &result {
                        Ok(()) => Ok(()),
                        // Another block may be at fault.
                        Err(_) => self.read_block(&block, bytes).await,
                    };
                    let same = || block.sums.first().is_none_or(|sum| *sum == crc32c(bytes));
                    if done.is_ok() && same() {
                        copied.keep(block, unit);
                        continue;
                    }
                    let whose = if done.is_ok() { &mut copied.bad } else { &mut copied.failed };
                    whose.insert(block.from.segment);
                    let why = done.err().map_or("the checksum".into(), |e| e.to_string());
                    let Live { data_id, block, from, .. } = block;
                    log::error!("block {block} of data {data_id} stays at {from:?}: {why}");
                    bytes.fill(0);
                    copied.bad_blocks += 1;
                }
            }
        }
    }

    async fn read_block(&self, block: &Live, into: &mut [u8]) -> Result<()> {
        let at = self.layout.device_offset(block.from);
        let bytes = read_at(&self.device, at, into.len()).await?;
        into.copy_from_slice(&bytes);
        Ok(())
    }
}

/// Neighbours, where they are and where they go: one read each.
fn runs_of(live: &[Live], unit: u64) -> impl Iterator<Item = &[Live]> {
    live.chunk_by(move |last, next| next.goes_on(last, unit))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::usage::Stream;
    use crate::segment::Phase;
    use crate::tests::reuse::{open, setup};
    use forebay_base::world::World;
    use std::time::Duration;

    /// Whoever waited for room went away while what was copied was on its way: the segment counted as one
    /// that nothing is on its way to, could die, and be somebody else's before the write came.
    #[test]
    fn m32_a_write_holds_its_segment_whoever_waits() {
        let setup = setup(0);
        let disk = setup.blank();
        disk.world().run(async {
            let volume = open(&setup, &disk).await.unwrap();
            let inner = &*volume.0;
            let to = {
                let mut state = inner.state.lock();
                let segment = state.space.segments.take(Stream::Data).unwrap();
                state.space.segments.fly(segment, 1);
                Place::new(segment, 0)
            };
            let in_flight = || {
                let state = inner.state.lock();
                let this = state.space.segments.get(to.segment).unwrap();
                assert_eq!(this.phase, Phase::Open);
                this.in_flight
            };
            let flight = Arc::new(Flight::new(inner, [to.segment].into()));
            let part = Part { to, live: Vec::new(), bytes: 4096 };
            let mut writing = Waiting::new();
            inner.write_part(&part, AlignedBuf::new(4096), &flight, &mut writing);
            drop((flight, writing));
            assert_eq!(in_flight(), 1, "it is on its way still");
            World::sleep(&**disk.world(), Duration::from_secs(1)).await;
            assert_eq!(in_flight(), 0);
        });
        disk.world().stop();
    }
}
