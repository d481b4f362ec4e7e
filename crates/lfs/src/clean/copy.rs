//! Copies live data: reads it as it lies on the device, verifies its sums, and writes it in order.
//!
//! ```text
//!   from:  ..cc..bbb.........a..     runs of a victim
//!            ▼                ▼      read as they lie, with small dead gaps between them
//!            cc..bbb          a
//!                    ▼               each block compared with its checksum
//!   buffer:       abbbcc             in the order of keys
//!                    ▼               one write
//!   to:           abbbcc             the segment that is being filled
//! ```
//! Invariants: clean.C42, see [`crate::clean`]. M32 a run that is copied lies in one segment, which
//! must not die while the write is in flight: each write owns the [`Flight`] until the device has
//! ended it, also if its task is dropped. M35 one read covers at most [`Cleaner::ahead_bytes`] live
//! bytes, and at most as many bytes again that are dead or that pad small buffers. While one part
//! is written, the next one is read: up to [`COPY_TIMES`] times that amount is in memory, the
//! descriptions of pieces included.
//!
//! Locks: the state lock, when a flight ends; none across a wait.

use super::Cleaner;
use super::live::{BUFFER_LEAST, Live};
use crate::device::slots::read_at;
use crate::format::MAX_EXTENT_BLOCKS;
use crate::format::place::Place;
use crate::transaction::resources::Resources;
use forebay_base::buf::{AlignedBuf, DataRef};
use forebay_base::checksum::crc32c;
use forebay_base::task::{OneReceiver, oneshot};
use forebay_base::units::{KIB, MIB};
use forebay_base::{Error, ErrorKind, Result};
use forebay_block::{Bio, BioFlags, BioOp, Completion};
use forebay_iomap::ops::is_bad;
use std::collections::BTreeSet;
use std::sync::{Arc, Weak};

/// Most bytes of a buffer, which one write takes.
const BUFFER_BYTES: u64 = MIB;
/// Live bytes that are read at once while as many are being written: maximum, minimum, and share of
/// the memory for changes.
const AHEAD_BYTES: u64 = 2 * MIB;
const AHEAD_LEAST: u64 = 64 * KIB;
const AHEAD_SHARE: u64 = 16;
/// M35: the memory of a copy, as a multiple of the live bytes of one read. Two reads with their
/// dead bytes take four times that, the write once, and the descriptions of the pieces once.
pub(super) const COPY_TIMES: u64 = 6;
/// Memory of a piece of a round with its sums, bytes; it exists twice.
const PIECE_BYTES: u64 = 256;
/// The most dead bytes between two runs that one transfer reads.
const GAP_BYTES: u64 = 16 * KIB;

/// Writes in flight to the segments that are being filled (M32).
pub(super) struct Flight {
    resources: Weak<Resources>,
    segments: BTreeSet<u32>,
}

impl Flight {
    /// Writes to `segments`, which the caller, who holds the state lock, has counted as having runs
    /// in flight.
    pub fn new(resources: &Resources, segments: BTreeSet<u32>) -> Self {
        Self { resources: resources.me.clone(), segments }
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        let Some(resources) = self.resources.upgrade() else { return };
        resources.state.lock().land(&self.segments);
    }
}

/// Result of copying.
#[derive(Default)]
pub(super) struct Copied {
    pub live: Vec<Live>,
    /// Segments with blocks that do not match their sums.
    pub bad: BTreeSet<u32>,
    /// Segments with blocks that could not be read, which may succeed next time.
    pub failed: BTreeSet<u32>,
    /// Number of blocks of both kinds.
    pub bad_blocks: u64,
}

impl Copied {
    /// Adds a block, merged with the previous one if it continues it.
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

/// Live data that is adjacent at its new place, and is read together.
struct Part {
    turn: u32,
    to: Place,
    /// In order of keys.
    live: Vec<Live>,
    bytes: u64,
}

/// Receivers of requests in flight.
type Waiting = Vec<OneReceiver<Result<()>>>;

async fn all(waiting: Waiting) -> Vec<Result<()>> {
    let mut results = Vec::with_capacity(waiting.len());
    for rx in waiting {
        let gone = || Error::new(ErrorKind::Shutdown, "clean", "the device went away");
        results.push(rx.await.unwrap_or_else(|| Err(gone())));
    }
    results
}

impl Cleaner {
    /// Reads, verifies and writes live data (clean.C42).
    pub(super) async fn copy(&self, live: Vec<Live>, flight: &Arc<Flight>) -> Result<Copied> {
        let parts = self.parts(live);
        let mut copied = Copied::default();
        let (mut writing, mut result) = (Waiting::new(), Ok(()));
        let mut rest = parts.chunk_by(|a, b| a.turn == b.turn);
        let mut next = match rest.next() {
            Some(some) => Some((some, self.read(some).await)),
            None => None,
        };
        while let Some((some, reading)) = next.take() {
            // The next part is read while the previous one is being written.
            if let Some(some) = rest.next() {
                next = Some((some, self.read(some).await));
            }
            let read = reading.done().await;
            for done in all(std::mem::take(&mut writing)).await {
                result = result.and(done);
            }
            result.clone()?;
            for part in some {
                let buf = self.check(part, &read, &mut copied).await;
                self.write_part(part, buf, flight, &mut writing);
            }
        }
        for done in all(writing).await {
            result = result.and(done);
        }
        result.map(|()| copied)
    }

    /// Most live bytes that are read together (M35).
    pub(super) fn ahead_bytes(&self) -> u64 {
        (self.options.overlay_bytes / AHEAD_SHARE).clamp(AHEAD_LEAST, AHEAD_BYTES)
    }

    /// Most pieces that are copied in one round (M35).
    pub(super) fn pieces_max(&self) -> u64 {
        self.ahead_bytes() / PIECE_BYTES
    }

    /// Most bytes of one transfer.
    fn longest(&self) -> u64 {
        u64::from(self.device.limits().max_transfer).min(BUFFER_BYTES)
    }

    /// Divides live data into parts of at most a buffer, each in one segment.
    fn parts(&self, live: Vec<Live>) -> Vec<Part> {
        let (unit, longest) = (self.layout.block_bytes(), self.longest());
        let mut parts: Vec<Part> = Vec::new();
        for live in live.into_iter().flat_map(|live| live.pieces(longest, unit)) {
            let bytes = live.blocks * unit;
            match parts.last_mut() {
                Some(part)
                    if part.turn == live.turn
                        && part.to.segment == live.to.segment
                        && u64::from(part.to.offset) + part.bytes == u64::from(live.to.offset)
                        && part.bytes + bytes <= longest =>
                {
                    part.bytes += bytes;
                    part.live.push(live);
                }
                _ => parts.push(Part { turn: live.turn, to: live.to, bytes, live: vec![live] }),
            }
        }
        parts
    }

    /// Submits the reads for these parts.
    async fn read(&self, parts: &[Part]) -> Reading {
        if self.device.is_crowded() {
            self.device.wait_for_capacity().await;
        }
        let (mut bios, mut reading) = (Vec::new(), Reading::default());
        for span in spans(parts, self.layout.block_bytes(), self.longest()) {
            let (tx, rx) = oneshot();
            let end = Box::new(move |done: Completion| tx.send(done));
            let (offset, len) = (self.layout.device_offset(span.from), span.bytes);
            let data = DataRef::Buf(AlignedBuf::new(len as usize));
            bios.push(
                Bio::new(BioOp::Read, offset, len, data, end).with_flags(BioFlags::BACKGROUND),
            );
            reading.0.push((span, rx));
        }
        self.device.submit_batch(&mut bios);
        reading
    }

    fn write_part(
        &self,
        part: &Part,
        buf: AlignedBuf,
        flight: &Arc<Flight>,
        writing: &mut Waiting,
    ) {
        let ((tx, rx), held, me) = (oneshot(), flight.clone(), self.me.clone());
        let offset = self.layout.device_offset(part.to);
        let end = Box::new(move |Completion { data, result }| {
            if let (true, Some(resources)) = (is_bad(&result), me.upgrade()) {
                resources.writes_failed(&[offset]);
            }
            drop((data, held));
            tx.send(result);
        });
        let bio = Bio::new(BioOp::Write, offset, part.bytes, DataRef::Buf(buf), end);
        self.device.submit(bio.with_flags(BioFlags::BACKGROUND));
        writing.push(rx);
    }

    /// Verifies the data of a part against its sums. Blocks that do not match are not moved.
    async fn check(&self, part: &Part, read: &Read, copied: &mut Copied) -> AlignedBuf {
        let unit = self.layout.block_bytes();
        let mut buf = AlignedBuf::new(part.bytes as usize);
        let mut blocks = buf.chunks_exact_mut(unit as usize);
        for live in &part.live {
            for n in 0..live.blocks {
                let block = live.part(n, 1, unit);
                let Some(bytes) = blocks.next() else { break };
                let done = match read.block(block.from, unit) {
                    Some(found) => {
                        bytes.copy_from_slice(found);
                        Ok(())
                    }
                    // The transfer has failed, perhaps because of another block of it.
                    None => self.read_block(&block, bytes).await,
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
        buf
    }

    async fn read_block(&self, block: &Live, into: &mut [u8]) -> Result<()> {
        let at = self.layout.device_offset(block.from);
        let bytes = read_at(&self.device, at, into.len()).await?;
        into.copy_from_slice(&bytes);
        Ok(())
    }
}

/// Sorts live data by place, divides it into groups that are read together (M35), and sorts each
/// group by key.
pub(super) fn in_order(live: Vec<Live>, unit: u64, ahead: u64) -> Vec<Live> {
    let mut ordered: Vec<Live> = Vec::with_capacity(live.len());
    let (mut first, mut turn, mut bytes, mut over) = (0, 0, 0, 0);
    let mut last: Option<(Place, u64)> = None;
    for mut live in live.into_iter().flat_map(|live| live.pieces(ahead, unit)) {
        let len = live.blocks * unit;
        let mut extra = read_over(last, live.from, len);
        if last.is_some() && (bytes + len > ahead || over + extra > ahead) {
            ordered[first..].sort_unstable_by_key(|live| (live.data_id, live.block));
            (first, turn, bytes, over) = (ordered.len(), turn + 1, 0, 0);
            extra = read_over(None, live.from, len);
        }
        (bytes, over, live.turn) = (bytes + len, over + extra, turn);
        last = Some((live.from, len));
        ordered.push(live);
    }
    ordered[first..].sort_unstable_by_key(|live| (live.data_id, live.block));
    ordered
}

/// Additional bytes of a run's read or buffer: the gap after the previous run, or the padding.
fn read_over(last: Option<(Place, u64)>, from: Place, len: u64) -> u64 {
    let of_its_own = BUFFER_LEAST.saturating_sub(len);
    match last.filter(|(last, _)| last.segment == from.segment) {
        // In a damaged volume runs may overlap.
        Some((last, len)) => {
            match u64::from(from.offset).saturating_sub(u64::from(last.offset) + len) {
                gap if gap <= GAP_BYTES => gap,
                _ => of_its_own,
            }
        }
        None => of_its_own,
    }
}

/// Bytes that are read in one transfer.
struct Span {
    from: Place,
    bytes: u64,
}

/// The transfers for parts: gaps between runs are read as well.
fn spans(parts: &[Part], unit: u64, longest: u64) -> Vec<Span> {
    let at = |live: &Live| (live.from, live.blocks * unit);
    let mut runs: Vec<(Place, u64)> = parts.iter().flat_map(|p| p.live.iter().map(at)).collect();
    runs.sort_unstable_by_key(|(from, _)| (from.segment, from.offset));
    let mut spans: Vec<Span> = Vec::new();
    for (from, bytes) in runs {
        if let Some(span) = spans.last_mut()
            && span.from.segment == from.segment
        {
            let upto = u64::from(from.offset - span.from.offset) + bytes;
            if upto <= longest && upto <= span.bytes + GAP_BYTES + bytes {
                span.bytes = span.bytes.max(upto);
                continue;
            }
        }
        spans.push(Span { from, bytes });
    }
    spans
}

/// Reads in flight.
#[derive(Default)]
struct Reading(Vec<(Span, OneReceiver<Completion>)>);

impl Reading {
    async fn done(self) -> Read {
        let mut read = Vec::with_capacity(self.0.len());
        for (span, rx) in self.0 {
            let done = rx.await.filter(|done| done.result.is_ok());
            read.push((span.from, done.and_then(|done| done.data.into_buf())));
        }
        Read(read)
    }
}

/// Results of reads, in order of places; `None`: the read failed.
struct Read(Vec<(Place, Option<AlignedBuf>)>);

impl Read {
    fn block(&self, at: Place, unit: u64) -> Option<&[u8]> {
        let key = |from: &Place| (from.segment, from.offset);
        let n = self.0.partition_point(|(from, _)| key(from) <= key(&at)).checked_sub(1)?;
        let (from, buf) = &self.0[n];
        let skip = (at.offset - from.offset) as usize;
        buf.as_ref().filter(|_| from.segment == at.segment)?.get(skip..skip + unit as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::usage::Stream;
    use crate::space::segment::Phase;
    use crate::tests::reuse::{open, setup};
    use forebay_base::world::World;
    use std::time::Duration;

    /// M35. The story: each gap of up to 16 KiB was read, too. With blocks of 512 bytes that was 66
    /// MiB for 2 MiB of live data, and no bound counted it.
    #[test]
    fn m35_gap_bytes_of_reads_are_bounded() {
        const SEGMENT: u64 = 16 * MIB;
        let ahead = 256 * KIB;
        for (unit, apart) in [(512, 16 * KIB), (512, 64 * KIB), (4096, 20 * KIB), (4096, 4096)] {
            let found = |n: u64| Live {
                data_id: 1 + n % 7,
                block: n,
                blocks: 1,
                birth: 1,
                from: Place::new((n * apart / SEGMENT) as u32, (n * apart % SEGMENT) as u32),
                sums: Vec::new(),
                to: Place::new(0, 0),
                turn: 0,
            };
            let ordered = in_order((0..3000).map(found).collect(), unit, ahead);
            assert_eq!(ordered.len(), 3000);
            let mut reads = 0;
            for together in ordered.chunk_by(|a, b| a.turn == b.turn) {
                let keys: Vec<_> = together.iter().map(|live| (live.data_id, live.block)).collect();
                assert!(keys.is_sorted(), "in the order of keys");
                let live = together.to_vec();
                let bytes = live.len() as u64 * unit;
                let part = Part { turn: 0, to: Place::new(0, 0), live, bytes };
                let spans = spans(&[part], unit, BUFFER_BYTES);
                let read: u64 = spans.iter().map(|span| span.bytes.max(BUFFER_LEAST)).sum();
                assert!(bytes <= ahead && read <= bytes + ahead, "{unit}, {apart}: {read}");
                reads += 1;
            }
            let all = 3000 * if apart - unit <= GAP_BYTES { apart } else { BUFFER_LEAST };
            assert!(reads <= 2 + all / (ahead / 2), "{unit}, {apart}: {reads} times");
        }
    }

    /// M32. The story: a task that waited for space was dropped while its copies were in flight.
    /// The segment counted as one without writes in flight, could die, and could have another user
    /// before the write arrived.
    #[test]
    fn m32_copy_in_flight_holds_segment_after_waiter_is_dropped() {
        let setup = setup(0);
        let disk = setup.blank();
        disk.world().run(async {
            let volume = open(&setup, &disk).await.unwrap();
            let inner = &*volume.0;
            let to = {
                let mut state = inner.state.lock();
                let segment = state.take_segment(Stream::Data).unwrap();
                state.keep_alive(segment);
                Place::new(segment, 0)
            };
            let in_flight = || {
                let state = inner.state.lock();
                let this = state.space().segments().get(to.segment).unwrap();
                assert_eq!(this.phase, Phase::Open);
                this.in_flight
            };
            let flight = Arc::new(Flight::new(inner, [to.segment].into()));
            let part = Part { turn: 0, to, live: Vec::new(), bytes: 4096 };
            let mut writing = Waiting::new();
            inner.cleaner.write_part(&part, AlignedBuf::new(4096), &flight, &mut writing);
            drop((flight, writing));
            assert_eq!(in_flight(), 1, "it is on its way still");
            World::sleep(&**disk.world(), Duration::from_secs(1)).await;
            assert_eq!(in_flight(), 0);
        });
        disk.world().stop();
    }
}
