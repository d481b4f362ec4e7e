//! Roll-forward: applies the log from the checkpoint on, and finds its end.
//!
//! ```text
//!   record N: a segment header of a younger generation begins with N ──▶ go on there
//!             valid, of this generation, its predecessor's ────────────▶ hold; apply what is durable
//!             else ──▶ the end, unless something later tells that N was durable: corruption
//!   held at the end: out-of-line data is looked at; the first record whose data is bad is the end
//! ```
//! Invariants: R11 a record is applied only behind all before it. R12 a record that something later calls
//! durable is never taken for the tail. R13 what is read is not
//! assumed flushed: whoever serves flushes first. R14 recovery changes nothing on the device.
//!
//! No locks: nobody else has the volume.

mod window;

use crate::btree::Tree;
use crate::fault::{NO_SECRET, Plant, Planted};
use crate::format::change::Change;
use crate::format::extent::{Extent, Source};
use crate::format::place::{Place, Seal};
use crate::format::record::{MAGIC, RECORD_ALIGN, RECORD_HEADER_BYTES, Record, RecordHeader};
use crate::format::segment::{SEGMENT_HEADER_BYTES, SegmentHeader};
use crate::format::superblock::Superblock;
use crate::format::usage::Stream;
use crate::layout::Layout;
use crate::load;
use crate::log::Head;
use crate::open::head_of;
use crate::pending::Where;
use crate::segment::Phase;
use crate::slots::read_at;
use crate::state::State;
use crate::volume::OpenOptions;
use forebay_base::checksum::crc32c;
use forebay_base::units::{round_down, round_up};
use forebay_base::{Error, ErrorKind, Result};
use forebay_block::DeviceRef;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use window::Window;

/// Bytes of a region read at a time.
const READ_BYTES: u64 = 128 << 10;
/// How far behind a bad record something is looked for that calls it durable: groups of a MiB and what may be
/// written ahead of a flush, with room to spare.
const SCAN_BYTES: u64 = 8 << 20;
/// Bytes of records held before their data is looked at although it may be known durable further on.
const HELD_BYTES_MAX: usize = 16 << 20;

/// What was found.
pub(crate) struct Found {
    pub state: State,
    /// Behind the last record that counts; the generation is the highest one seen.
    pub head: Head,
    /// Records applied.
    pub records: u64,
    /// The log is damaged behind these: only reading is safe.
    pub damage: Option<Error>,
}

/// A record that may not count.
struct Held {
    /// Header and changes; content that came with it was verified, and is not wanted again.
    bytes: Vec<u8>,
    at: Place,
    sequence: u64,
    /// Head behind it.
    head: Head,
}

struct Walk<'a> {
    device: &'a DeviceRef,
    /// Of the checkpoint.
    tree: &'a Tree,
    layout: Layout,
    options: &'a OpenOptions,
    state: State,
    /// By the first sequence.
    headers: BTreeMap<u64, Vec<SegmentHeader>>,
    /// Where the next record is looked for.
    head: Head,
    held: VecDeque<Held>,
    held_bytes: usize,
    /// Every record up to this one is durable.
    durable: u64,
    /// A held record's data was bad: nothing from it on counts.
    cut: bool,
    last: Head,
    records: u64,
    window: Window<'a>,
}

/// Applies the log of `superblock`'s checkpoint, whose state is `state`.
pub(crate) async fn roll_forward(
    device: &DeviceRef,
    tree: &Tree,
    superblock: &Superblock,
    state: State,
    options: &OpenOptions,
) -> Result<Found> {
    let (head, layout) = (head_of(superblock), state.layout);
    let mut walk = Walk {
        device,
        tree,
        layout,
        options,
        state,
        headers: BTreeMap::new(),
        head,
        held: VecDeque::new(),
        held_bytes: 0,
        durable: superblock.log_sequence.saturating_sub(1),
        cut: false,
        last: head,
        records: 0,
        window: Window::new(device, layout),
    };
    walk.state.space.segments.found(superblock.log_head.segment, Stream::Log);
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
    let head = Head { generation, ..walk.last };
    Ok(Found { state: walk.state, head, records: walk.records, damage })
}

impl Walk<'_> {
    async fn scan_headers(&mut self) -> Result<()> {
        for segment in 0..self.layout.segments {
            // What was full of something else at the checkpoint is not the log behind it.
            let this = self.state.space.segments.get(segment);
            let other = |s: &crate::segment::Segment| {
                s.stream == Stream::Tree || s.stream == Stream::Data && s.phase == Phase::Sealed
            };
            if this.is_some_and(other) {
                continue;
            }
            if let Some(header) = self.header_of(segment).await? {
                self.headers.entry(header.first_sequence).or_default().push(header);
            }
        }
        Ok(())
    }

    /// What a segment begins with, from either copy.
    async fn header_of(&self, segment: u32) -> Result<Option<SegmentHeader>> {
        let layout = &self.layout;
        let copies = [0, layout.header_copy()];
        let len = round_up(SEGMENT_HEADER_BYTES as u64, u64::from(layout.align));
        let both = copies[1] as usize + len as usize;
        let at = layout.device_offset(Place::new(segment, 0));
        let together = read_at(self.device, at, both).await;
        for copy in copies {
            let part = match &together {
                Ok(bytes) => bytes[copy as usize..].to_vec(),
                Err(_) => {
                    let there = layout.device_offset(Place::new(segment, copy));
                    let Ok(bytes) = read_at(self.device, there, len as usize).await else {
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
        Ok(None)
    }

    async fn run(&mut self) -> Result<()> {
        loop {
            let stale = self.options.plant.has(Planted::StaleTail) && self.next().await?.is_some();
            if !stale {
                self.switch();
            }
            let Some(held) = self.next().await? else { break };
            self.advance(held).await?;
            if self.cut {
                return Ok(());
            }
        }
        self.look_behind().await?;
        while let Some(held) = self.held.pop_front() {
            if !self.data_is_good(&held).await? {
                return Ok(());
            }
            self.apply(&held).await?;
        }
        Ok(())
    }

    /// Goes on in a younger generation, if one begins here.
    fn switch(&mut self) {
        let Head { sequence, generation, predecessor, .. } = self.head;
        let Some(beginning) = self.headers.get(&sequence) else { return };
        let younger = beginning
            .iter()
            .filter(|header| header.predecessor == predecessor && header.generation > generation);
        if let Some(header) = younger.max_by_key(|header| header.generation) {
            self.head = enter(header, self.head);
            self.state.space.segments.found(header.segment, Stream::Log);
        }
    }

    /// The record at the head, if it is the next one of the log.
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
        Ok(Some(Held { bytes, at, sequence: fields.sequence, head: behind }))
    }

    /// Holds a valid record, and applies what is known to be durable.
    async fn advance(&mut self, held: Held) -> Result<()> {
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
            if let Some(header) = header.copied() {
                self.head = enter(&header, self.head);
                self.state.space.segments.found(header.segment, Stream::Log);
            }
        }
        self.held_bytes += held.bytes.len();
        self.held.push_back(held);
        self.drain().await
    }

    /// Applies held records from the front, while they are known to be durable, or too many.
    async fn drain(&mut self) -> Result<()> {
        while let Some(held) = self.held.front() {
            let durable = held.sequence <= self.durable;
            if !durable && self.held_bytes <= HELD_BYTES_MAX {
                break;
            }
            let held = self.held.pop_front().expect("looked at it");
            self.held_bytes -= held.bytes.len();
            if !durable && !self.data_is_good(&held).await? {
                // What follows could still tell that it was durable; nothing so old is undone by a crash.
                self.cut = true;
                return Ok(());
            }
            self.apply(&held).await?;
        }
        Ok(())
    }

    /// Applies a record, when all that it changes is in memory.
    async fn apply(&mut self, held: &Held) -> Result<()> {
        let layout = self.layout;
        let record = Record::reopen(&held.bytes, held.at, &layout.geometry)?;
        self.state.space.segments.found(held.at.segment, Stream::Log);
        let changes = record.changes(&layout.geometry).collect::<Result<Vec<_>>>()?;
        while let Some(want) = self.state.missing(&changes) {
            if self.state.insert_from_window(want)? {
                continue;
            }
            let ahead = self.state.ahead(want);
            let part = load::read(self.tree, self.state.root, want, ahead).await?;
            match ahead.is_window {
                true => self.state.insert_window(want, part)?,
                false => self.state.insert_part(want, part)?,
            };
        }
        let resolve = |extent: &Extent<'_>| record.resolve(extent).map(Where::Run);
        for change in &changes {
            self.state.apply(change, &resolve).map_err(|error| {
                let text = format!("record {} at {:?}: {error}", held.sequence, held.at);
                Error::new(error.kind(), "recover", text)
            })?;
            if let Change::Map(_, _, Extent { source: Source::Run(place), .. }) = change {
                self.state.space.segments.found(place.segment, Stream::Data);
            }
        }
        self.state.evict();
        self.last = held.head;
        self.records += 1;
        Ok(())
    }

    /// Whether what a record points at is there.
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
            let bytes = read_at(self.device, layout.device_offset(place), len).await?;
            let blocks = bytes.chunks(layout.block_bytes() as usize);
            if !sums.is_empty() && !blocks.map(crc32c).eq(sums) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The bytes of the record that may be at `at`; none if there is no room for one.
    async fn record_at(&mut self, at: Place) -> Result<Option<&[u8]>> {
        let layout = self.layout;
        let left = layout.segment_bytes().saturating_sub(u64::from(at.offset));
        if at.segment >= layout.segments || left < RECORD_HEADER_BYTES as u64 {
            return Ok(None);
        }
        let head = self.window.bytes(at, RECORD_HEADER_BYTES as u64).await?;
        if !head.starts_with(&MAGIC.to_le_bytes()) {
            return Ok(None);
        }
        let len = match RecordHeader::peek(head, at, &layout.geometry) {
            Ok(header) => u64::from(header.length),
            // The sum says whether it is to be believed that this is newer.
            Err(error) if error.kind() == ErrorKind::Unsupported => left.min(layout.max_record()),
            Err(_) => return Ok(None),
        };
        self.window.bytes(at, len.min(left)).await.map(Some)
    }

    /// R12: the log ends at the head; is there anything later that says it should not?
    async fn look_behind(&mut self) -> Result<()> {
        let (wanted, generation) = (self.head.sequence, self.head.generation);
        let mut from: Vec<Place> = Vec::new();
        if let Some(segment) = self.head.segment {
            from.push(Place::new(segment, self.head.offset));
        }
        let later = self.headers.range(wanted..).flat_map(|(_, headers)| headers);
        let later = later.filter(|header| header.generation >= generation);
        from.extend(later.map(|header| Place::new(header.segment, header.first_record)));
        for start in from {
            if let Some((place, sequence)) = self.tells_durable(start, wanted).await? {
                let segment = self.head.segment.or(self.head.previous).unwrap_or_default();
                let bad = Place::new(segment, self.head.offset);
                let text = format!(
                    "log record {wanted} at {bad:?} is bad; \
                     record {sequence} at {place:?} says it was durable"
                );
                let (at, len) = (self.layout.device_offset(bad), self.layout.block_bytes());
                let error = Error::new(ErrorKind::Corrupt, "recover", text);
                return Err(error.with_range(at, len));
            }
        }
        Ok(())
    }

    /// These bytes of a segment, read in steps.
    async fn region(&self, segment: u32, range: Range<u64>) -> Result<Vec<u8>> {
        let align = u64::from(self.layout.align);
        let mut bytes = Vec::with_capacity((range.end - range.start) as usize);
        let mut at = round_down(range.start, align);
        while at < range.end {
            let until = round_up(range.end, align).min(at + READ_BYTES);
            let offset = self.layout.device_offset(Place::new(segment, at as u32));
            let part = read_at(self.device, offset, (until - at) as usize).await?;
            bytes.extend_from_slice(&part[range.start.saturating_sub(at) as usize..]);
            at = until;
        }
        Ok(bytes)
    }

    /// A record from `start` on, in its segment, that calls record `wanted` durable. Anybody's content may
    /// lie there: the region is read once, whatever lengths are found in it, and what this version does not
    /// know, of which only the sum of all that may belong to it could say whether it is one, calls nothing
    /// durable.
    async fn tells_durable(&mut self, start: Place, wanted: u64) -> Result<Option<(Place, u64)>> {
        let (layout, segment) = (self.layout, self.layout.segment_bytes());
        let first = round_up(u64::from(start.offset), u64::from(RECORD_ALIGN));
        let end = segment.min(u64::from(start.offset) + SCAN_BYTES);
        if first >= end {
            return Ok(None);
        }
        // The last one may begin right before the end.
        let until = segment.min(end + layout.max_record());
        let there = self.region(start.segment, first..until).await?;
        let mut at = first;
        while at < end {
            let place = Place::new(start.segment, at as u32);
            let bytes = &there[(at - first) as usize..];
            let mut step = RECORD_ALIGN;
            if RecordHeader::peek(bytes, place, &layout.geometry).is_ok()
                && let Ok(record) = Record::open(bytes, layout.seal, place, &layout.geometry)
            {
                let fields = record.header.fields;
                if fields.sequence > wanted && fields.durable_through >= wanted {
                    return Ok(Some((place, fields.sequence)));
                }
                step = record.header.length;
            }
            at += u64::from(step);
        }
        Ok(None)
    }
}

/// The record at `at`, if one is there.
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

/// The head at the start of a segment.
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
