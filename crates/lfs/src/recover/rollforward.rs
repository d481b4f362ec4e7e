//! Roll-forward: applies the records of the log after the checkpoint, and finds the end of the log.
//!
//! ```text
//!   record N: a segment header of a younger generation begins with N ──▶ continue there
//!             valid, of this generation, after its predecessor ──▶ hold it; apply what is durable
//!             else ──▶ the end, unless a later record calls N durable: corruption
//!   held at the end: applied if a later record calls it durable, even if its data is bad; of the
//!   others the first one whose out-of-line data is bad is the end
//! ```
//! Invariants: R11 a record is applied only after all records before it. R12 a record that a later
//! record calls durable is never taken for the torn tail. This holds even if its data is bad, or a
//! record between them is lost. [`evidence`] searches for such later records. R13 recovery does not
//! assume that what it read was flushed: the volume flushes before it serves requests. R14 recovery
//! writes nothing to the device. R18 an unreadable place ends the log only if the search for
//! evidence could read everything else (`docs/reference/crash-contract.md`). R30 segment headers
//! are read together, 32 at most.
//!
//! Memory: [`bounded`].
//!
//! No locks: during recovery nothing else uses the volume.

mod bounded;
mod evidence;
mod logged;
mod walk;
mod window;

pub(crate) use walk::Replay;

use crate::btree::Tree;
use crate::btree::store::is_unreadable;
use crate::device::layout::Layout;
use crate::device::slots::read_at;
use crate::fault::{NO_SECRET, Plant, Planted};
use crate::format::change::Change;
use crate::format::extent::{Extent, Source};
use crate::format::place::{Place, Seal};
use crate::format::record::{MAGIC, RECORD_HEADER_BYTES, Record, RecordHeader};
use crate::format::segment::{SEGMENT_HEADER_BYTES, SegmentHeader};
use crate::format::superblock::Superblock;
use crate::format::usage::Stream;
use crate::format::{COUNT_MAX, corrupt};
use crate::log::Head;
use crate::map::overlay::Where;
use crate::names::load;
use crate::space::segment::Phase;
use crate::transaction::options::OpenOptions;
use crate::transaction::state::State;
use evidence::Evidence;
use forebay_base::buf::AlignedBuf;
use forebay_base::checksum::crc32c;
use forebay_base::task::{BoxFuture, join_all};
use forebay_base::units::round_up;
use forebay_base::{Error, ErrorKind, Result};
use forebay_block::DeviceRef;
use std::collections::{BTreeMap, VecDeque};
use walk::{Bound, Held, Walk};
use window::Window;

/// The most bytes of records that are held while no record calls them durable. The writer has at
/// most three groups of about 1 MiB each that are not flushed (log.L6). So records further back
/// were flushed.
const HELD_BYTES_MAX: usize = 16 << 20;

/// Most segment headers that are read at the same time.
const HEADERS: usize = 32;

/// Bytes that are read for one copy of a segment header.
fn header_bytes(layout: &Layout) -> u64 {
    round_up(SEGMENT_HEADER_BYTES as u64, u64::from(layout.align))
}

/// The result of the roll-forward.
pub(crate) struct Found {
    pub state: State,
    /// The position after the last applied record. The generation is the highest one seen.
    pub head: Head,
    /// Records applied.
    pub records: u64,
    /// The log is damaged after these records: the volume may only be opened read-only.
    pub damage: Option<Error>,
    /// Where further records of the log begin, for which memory has no space
    /// (bounded.R27).
    pub rest: Option<Head>,
    /// The end of the log behind the checkpoint, in the generation of the last record.
    pub end: Option<Head>,
    /// Most that the changes took in memory, bytes.
    pub changes_peak: u64,
}

impl Found {
    /// A checkpoint that no log follows.
    pub fn clean(state: State, head: Head) -> Self {
        let (rest, end) = (None, None);
        Self { state, head, records: 0, damage: None, rest, end, changes_peak: 0 }
    }
}

/// Applies the log after the checkpoint of `superblock` to `state`, or a part of it.
pub(crate) async fn roll_forward(
    device: &DeviceRef,
    tree: &Tree,
    superblock: &Superblock,
    state: State,
    options: &OpenOptions,
    replay: Replay,
) -> Result<Found> {
    let mut walk = Walk::new(device, tree, superblock, state, options, replay);
    walk.state.note_named(superblock.log_head.segment, Stream::Log);
    walk.scan_headers().await?;
    let generations = walk.headers.values().flatten().map(|header| header.generation);
    let youngest = generations.max().unwrap_or(0);
    let mut damage = None;
    if let Err(error) = walk.run().await {
        if !options.read_only {
            return Err(error);
        }
        log::warn!("{}: opened as far as the log can be read: {error}", device.name());
        damage = Some(error);
    }
    let generation = youngest.max(superblock.generation);
    let rest = walk.protect_rest();
    let head = rest.unwrap_or(Head { generation, ..walk.last });
    let (records, changes_peak) = (walk.records, walk.bound.changes_peak);
    let end = Some(walk.last);
    Ok(Found { state: walk.state, head, records, damage, rest, end, changes_peak })
}

impl<'a> Walk<'a> {
    /// A walk that begins at the log position of this checkpoint.
    fn new(
        device: &'a DeviceRef,
        tree: &'a Tree,
        superblock: &Superblock,
        state: State,
        options: &'a OpenOptions,
        replay: Replay,
    ) -> Self {
        let (head, layout) = (Head::of(superblock), *state.layout());
        let counters = state.counters().snapshot();
        Self {
            device,
            tree,
            layout,
            options,
            state,
            headers: BTreeMap::new(),
            hidden: Vec::new(),
            head,
            held: VecDeque::new(),
            held_bytes: 0,
            durable: superblock.log_sequence.saturating_sub(1),
            asked: (superblock.log_head, 0),
            named: None,
            last: head,
            bound: Bound::new(replay, options.overlay_bytes, counters),
            records: 0,
            window: Window::new(device, layout),
        }
    }
}

impl Walk<'_> {
    async fn scan_headers(&mut self) -> Result<()> {
        // A tree segment or a sealed data segment at the checkpoint cannot be a log segment after
        // it.
        let other = |s: &crate::space::segment::Segment| {
            s.stream == Stream::Tree || s.stream == Stream::Data && s.phase == Phase::Sealed
        };
        let segments = self.state.space().segments();
        let may_be = |segment: &u32| !segments.get(*segment).is_some_and(other);
        let may_be: Vec<u32> = (0..self.layout.segments).filter(may_be).collect();
        self.read_headers(may_be).await
    }

    /// Reads the headers of these segments, some at a time (R30).
    async fn read_headers(&mut self, segments: Vec<u32>) -> Result<()> {
        let (device, layout) = (self.device, self.layout);
        let both = layout.header_copy() as usize + header_bytes(&layout) as usize;
        let read = |segment: &u32| -> BoxFuture<'_, Result<AlignedBuf>> {
            let at = layout.device_offset(Place::new(*segment, 0));
            Box::pin(read_at(device, at, both))
        };
        for some in segments.chunks(HEADERS) {
            let copies = join_all(some.iter().map(read)).await;
            for (&segment, together) in some.iter().zip(copies) {
                let Some(header) = self.header_of(segment, together).await? else { continue };
                if header.generation.max(header.first_sequence) > COUNT_MAX {
                    let text = format!("the numbers of segment {segment} are out of range");
                    return Err(corrupt("log segment header", text));
                }
                self.headers.entry(header.first_sequence).or_default().push(header);
            }
        }
        Ok(())
    }

    /// The segment header, from either of its two copies. `together`: what was read from the first
    /// one to the end of the second; if that failed, each is read alone.
    async fn header_of(
        &mut self,
        segment: u32,
        together: Result<AlignedBuf>,
    ) -> Result<Option<SegmentHeader>> {
        let (layout, mut unread) = (self.layout, 0);
        let (copies, len) = ([0, layout.header_copy()], header_bytes(&layout));
        for copy in copies {
            let part = match &together {
                Ok(bytes) => bytes[copy as usize..].to_vec(),
                Err(_) => {
                    let there = layout.device_offset(Place::new(segment, copy));
                    let Ok(bytes) = read_at(self.device, there, len as usize).await else {
                        unread += 1;
                        continue;
                    };
                    bytes.to_vec()
                }
            };
            let decode = |seal| SegmentHeader::decode(&part, seal, segment, &layout.geometry);
            let found = match decode(layout.seal) {
                Err(_) if self.options.plant.has(Planted::ForgedRecord) => {
                    decode(Seal::new(&NO_SECRET))
                }
                found => found,
            };
            match found {
                Ok(header) => return Ok(Some(header)),
                Err(error) if error.kind() == ErrorKind::Unsupported => return Err(error),
                Err(_) => {}
            }
        }
        if unread == copies.len() {
            self.hidden.push(segment);
        }
        Ok(None)
    }

    async fn run(&mut self) -> Result<()> {
        let unreadable = self.walk().await?;
        let found = self.search(unreadable.is_some()).await?;
        self.durable = self.durable.max(found.durable);
        let end = self.end(unreadable, &found);
        // The held records are applied even if the log is damaged after them: a read-only volume
        // shows them.
        self.apply_held(&found).await?;
        end
    }

    /// Reads and holds each record up to the end of the log. Returns the read error if the place
    /// after the last record cannot be read.
    async fn walk(&mut self) -> Result<Option<Error>> {
        for count in 0_u64.. {
            if self.options.plant.has(Planted::RecoveryQuadratic) {
                for _ in 0..count {
                    self.scan_headers().await?;
                }
            }
            let stale = self.options.plant.has(Planted::StaleTail) && self.next().await?.is_some();
            if !stale {
                self.switch();
            }
            match self.next().await {
                Ok(Some(held)) => self.advance(held).await?,
                Ok(None) => return Ok(None),
                Err(error) if is_unreadable(&error) => return Ok(Some(error)),
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// Decides whether the log may end at the head (R12, R18).
    fn end(&self, unreadable: Option<Error>, found: &Evidence) -> Result<()> {
        if let Some((place, sequence)) = found.refutes_end {
            let (wanted, bad) = (self.head.sequence, self.head_place());
            let text = format!(
                "log record {wanted} at {bad:?} is bad; \
                 record {sequence} at {place:?} says it was durable"
            );
            let (at, len) = (self.layout.device_offset(bad), self.layout.block_bytes());
            return Err(Error::new(ErrorKind::Corrupt, "recover", text).with_range(at, len));
        }
        if let Some(error) = &found.refused {
            return Err(error.clone());
        }
        match (unreadable, &found.unread) {
            (Some(error), _) => self.unreadable_end(self.head.sequence, &error, found),
            (None, Some(error)) => {
                let name = self.device.name();
                log::warn!("{name}: a place behind the end of the log cannot be read: {error}");
                Ok(())
            }
            (None, None) => Ok(()),
        }
    }

    /// Handles a log that ends at an unreadable place (R18). If nothing else is unreadable, this
    /// logs a warning. It returns an error if a record that calls this place durable may be hidden,
    /// too. It also returns an error for a read-only volume, whose user must know what may be
    /// missing.
    fn unreadable_end(&self, sequence: u64, error: &Error, found: &Evidence) -> Result<()> {
        let hidden = found.unread.is_some();
        if !hidden && !self.options.read_only {
            let name = self.device.name();
            log::warn!("{name}: the log ends at a place that cannot be read: {error}");
            return Ok(());
        }
        let text = match &found.unread {
            Some(other) => format!(
                "the log may go on at record {sequence}: its place cannot be read ({error}), \
                 nor can one that may say that it was durable ({other})"
            ),
            None => {
                format!("the log may go on at record {sequence}, which cannot be read: {error}")
            }
        };
        let wrong = Error::new(ErrorKind::Io, "recover", text);
        Err(match error.range() {
            Some((offset, len)) => wrong.with_range(offset, len),
            None => wrong,
        })
    }

    /// Applies the records that are still held at the end of the log: those known to be durable,
    /// and those after them whose data is good.
    async fn apply_held(&mut self, found: &Evidence) -> Result<()> {
        while let Some(held) = self.held.pop_front() {
            let is_durable = held.sequence <= self.durable;
            match self.data_is_good(&held).await {
                Ok(true) => {}
                Ok(false) | Err(_) if is_durable => log::warn!(
                    "{}: log record {} at {:?} was durable, and not all of its data is good",
                    self.device.name(),
                    held.sequence,
                    held.at
                ),
                Ok(false) => return Ok(()),
                Err(error) if is_unreadable(&error) => {
                    return self.unreadable_end(held.sequence, &error, found);
                }
                Err(error) => return Err(error),
            }
            self.take(&held).await?;
        }
        Ok(())
    }

    /// The place where the next record would begin.
    fn head_place(&self) -> Place {
        let segment = self.head.segment.or(self.head.previous).unwrap_or_default();
        Place::new(segment, self.head.offset)
    }

    /// Continues in a segment of a younger generation, if one begins with this sequence number.
    fn switch(&mut self) {
        let Head { sequence, generation, predecessor, .. } = self.head;
        let Some(beginning) = self.headers.get(&sequence) else { return };
        let younger = beginning
            .iter()
            .filter(|header| header.predecessor == predecessor && header.generation > generation);
        if let Some(header) = younger.max_by_key(|header| header.generation) {
            self.head = enter(header, self.head);
            self.named = None;
            self.state.note_named(header.segment, Stream::Log);
        }
    }

    /// Reads the record at the head. None: the next record of the log is not there.
    async fn next(&mut self) -> Result<Option<Held>> {
        let Some(segment) = self.head.segment else { return Ok(None) };
        let at = Place::new(segment, self.head.offset);
        let (layout, plant, head) = (self.layout, self.options.plant, self.head);
        let Some(bytes) = self.record_at(at).await? else { return Ok(None) };
        let record = match open_record(bytes, &layout, at, plant) {
            Ok(record) => record,
            Err(error) if error.kind() == ErrorKind::Unsupported => return Err(error),
            Err(_) => return Ok(None),
        };
        let fields = record.header.fields;
        let ours = fields.sequence == head.sequence
            && fields.generation == head.generation
            && fields.predecessor == head.predecessor;
        if !ours {
            return Ok(None);
        }
        match record.check(&layout.geometry) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::Unsupported => return Err(error),
            Err(_) => return Ok(None),
        }
        if record.payload().is_err() && !plant.has(Planted::TornRecord) {
            return Ok(None);
        }
        let header = record.header;
        let behind = Head {
            offset: at.offset + header.length,
            sequence: fields.sequence.saturating_add(1),
            predecessor: header.sum,
            ..head
        };
        let bytes = bytes[..record.head_bytes()].to_vec();
        Ok(Some(Held { bytes, at, sequence: fields.sequence, head: behind, next: behind }))
    }

    /// Holds a valid record, and applies the held records that are known to be durable.
    async fn advance(&mut self, mut held: Held) -> Result<()> {
        self.follow(&mut held)?;
        self.held_bytes += held.bytes.len();
        self.held.push_back(held);
        self.drain().await
    }

    /// Moves the head behind a valid record.
    fn follow(&mut self, held: &mut Held) -> Result<()> {
        let layout = self.layout;
        let record = Record::reopen(&held.bytes, held.at, &layout.geometry)?;
        self.durable = self.durable.max(record.header.fields.durable_through);
        let mut next = None;
        for change in record.changes(&layout.geometry) {
            if let Change::NextSegment(segment) = change? {
                next = Some(segment);
            }
        }
        self.head = held.head;
        if let Some(next) = next {
            self.head.previous = self.head.segment;
            self.head.segment = None;
            let Head { sequence, generation, predecessor, .. } = self.head;
            let beginning = self.headers.get(&sequence).into_iter().flatten();
            let header = beginning.into_iter().find(|header| {
                let place = header.segment == next && header.generation == generation;
                place && header.predecessor == predecessor
            });
            self.named = if header.is_some() { None } else { Some(next) };
            if let Some(header) = header.copied() {
                self.head = enter(&header, self.head);
                self.state.note_named(header.segment, Stream::Log);
            }
        }
        held.next = self.head;
        Ok(())
    }

    /// Applies held records from the front while they are known to be durable.
    async fn drain(&mut self) -> Result<()> {
        while let Some(held) = self.held.front() {
            if held.sequence > self.durable && self.held_bytes <= HELD_BYTES_MAX {
                break;
            }
            let held = self.held.pop_front().expect("looked at it");
            self.held_bytes -= held.bytes.len();
            self.take(&held).await?;
        }
        Ok(())
    }

    /// Applies a record. First loads into memory everything that it changes.
    async fn apply(&mut self, held: &Held) -> Result<()> {
        let layout = self.layout;
        let record = Record::reopen(&held.bytes, held.at, &layout.geometry)?;
        self.state.note_named(held.at.segment, Stream::Log);
        let changes = record.changes(&layout.geometry).collect::<Result<Vec<_>>>()?;
        self.load_missing(&changes).await?;
        let resolve = |extent: &Extent<'_>| record.resolve(extent).map(Where::Run);
        for change in &changes {
            self.state.apply(change, &resolve).map_err(|error| {
                let text = format!("record {} at {:?}: {error}", held.sequence, held.at);
                Error::new(error.kind(), "recover", text)
            })?;
            if let Change::Map(_, _, Extent { source: Source::Run(place), .. }) = change {
                self.state.note_named(place.segment, Stream::Data);
            }
        }
        self.state.evict();
        self.last = held.head;
        self.records += 1;
        Ok(())
    }

    /// Loads into memory what must be there before the changes are applied.
    async fn load_missing(&mut self, changes: &[Change<'_>]) -> Result<()> {
        while let Some(want) = self.state.missing(changes) {
            if self.state.insert_from_window(want)? {
                continue;
            }
            let ahead = self.state.ahead(want);
            let part = load::read(self.tree, self.state.tree().root(), want, ahead).await?;
            match ahead.is_window {
                true => self.state.insert_window(want, part)?,
                false => self.state.insert_part(want, part)?,
            };
        }
        Ok(())
    }

    /// Whether the data runs of a record match their checksums.
    async fn data_is_good(&self, held: &Held) -> Result<bool> {
        if self.options.plant.has(Planted::UnverifiedData) {
            return Ok(true);
        }
        let layout = self.layout;
        let record = Record::reopen(&held.bytes, held.at, &layout.geometry)?;
        let mut runs = Vec::new();
        for change in record.changes(&layout.geometry) {
            if let Change::Map(_, _, extent) = change?
                && let Source::Run(place) = extent.source
            {
                let sums: Vec<u32> = extent.sums.iter_crc32c().collect();
                runs.push((place, extent.stored_bytes as usize, sums));
            }
        }
        for (place, len, sums) in runs {
            if place.segment >= layout.segments {
                return Ok(false);
            }
            // Without checksums nothing can be verified. The writer flushed the data before it
            // wrote the record.
            if sums.is_empty() {
                continue;
            }
            let bytes = read_at(self.device, layout.device_offset(place), len).await?;
            let blocks = bytes.chunks(layout.block_bytes() as usize);
            if !blocks.map(crc32c).eq(sums) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The bytes of the record that may begin at `at`. None: the rest of the segment is too short
    /// for a record.
    async fn record_at(&mut self, at: Place) -> Result<Option<&[u8]>> {
        let layout = self.layout;
        let left = layout.segment_bytes().saturating_sub(u64::from(at.offset));
        if at.segment >= layout.segments || left < RECORD_HEADER_BYTES as u64 {
            return Ok(None);
        }
        self.asked = (at, RECORD_HEADER_BYTES as u64);
        let head = self.window.bytes(at, RECORD_HEADER_BYTES as u64).await?;
        if !head.starts_with(&MAGIC.to_le_bytes()) {
            return Ok(None);
        }
        let len = match RecordHeader::peek(head, at, &layout.geometry) {
            Ok(header) => u64::from(header.length),
            // The header claims a newer format version. Only the checksum of the record shows
            // whether that is true.
            Err(error) if error.kind() == ErrorKind::Unsupported => left.min(layout.max_record()),
            Err(_) => return Ok(None),
        };
        self.asked = (at, len.min(left));
        self.window.bytes(at, len.min(left)).await.map(Some)
    }
}

/// The record at `at`, if a valid one is there.
fn open_record<'a>(
    bytes: &'a [u8],
    layout: &Layout,
    at: Place,
    plant: Plant,
) -> Result<Record<'a>> {
    let open = |seal| Record::open(bytes, seal, at, &layout.geometry);
    match open(layout.seal) {
        Err(_) if plant.has(Planted::ForgedRecord) => open(Seal::new(&NO_SECRET)),
        opened => opened,
    }
}

/// The head at the beginning of a segment.
fn enter(header: &SegmentHeader, from: Head) -> Head {
    Head {
        segment: Some(header.segment),
        previous: from.segment.or(from.previous),
        offset: header.first_record,
        sequence: header.first_sequence,
        generation: header.generation,
        predecessor: header.predecessor,
    }
}
