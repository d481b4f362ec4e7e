//! An out-of-place map in memory: every write goes to fresh blocks of the device, and the map
//! changes when it is published. It keeps nothing across a restart. The tests of the identity map
//! run on it, too, with sums, and with waits wherever a volume may wait: so they prove the contract
//! of [`forebay_iomap::ops`]. A test of crashes takes an [`Image`] at each commit.
//!
//! Invariants: R1 a device block is free, reserved, mapped, or in limbo. R2 a block in limbo is
//! free once every pin handed out before it got there is gone (ops.O4). R3 the published size is
//! never above the sizes that were published, written or not (ops.O5).
//!
//! Lock: one, a leaf.

use forebay_base::buf::DataRef;
use forebay_base::sync::{Arc, Mutex};
use forebay_base::task::BoxFuture;
use forebay_base::world::WorldRef;
use forebay_base::{Error, ErrorKind, Result};
use forebay_block::{BioFlags, BioOp, DeviceRef, MapRuns, StableWrites, flush_blocking, io};
use forebay_iomap::ops::{
    Admit, Change, Class, Commit, Extent, GiveBack, Lookup, MapFuture, MapInfo, MapOps, Place,
    Reservation, Sums, Written,
};
use std::any::Any;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::sync::Weak;
use std::time::Duration;

/// Most blocks looked up in one call for the map.
const LOOKUPS_MAX: usize = 1 << 16;

/// An epoch: pins are clones of it.
struct Epoch;

/// Where a file block is.
#[derive(Debug, Clone, Copy)]
struct Mapped {
    device: u64,
    sequence: u64,
    sum: Option<u32>,
}

/// A map at one moment. The places that it names are not reused while it is kept (ops.O4).
#[derive(Clone)]
pub struct Image {
    map: BTreeMap<u64, Mapped>,
    _pin: std::sync::Arc<dyn Any + Send + Sync>,
}

impl Image {
    /// File block and device block of each that is mapped.
    pub fn places(&self) -> impl Iterator<Item = (u64, u64)> {
        self.map.iter().map(|(&file, mapped)| (file, mapped.device))
    }
}

struct State {
    map: BTreeMap<u64, Mapped>,
    /// Highest sequence that emptied a file block; one drawn before that is not published (ops.O2).
    zeroed: BTreeMap<u64, u64>,
    /// Truncates: first file block cut off, sequence; ascending in both.
    cuts: Vec<(u64, u64)>,
    free: Vec<u64>,
    reserved: u64,
    /// Bytes that were admitted and are not dirty yet.
    arriving: u64,
    limbo: VecDeque<(Weak<Epoch>, Vec<u64>)>,
    epoch: std::sync::Arc<Epoch>,
    sequence: u64,
    published_size: u64,
    commits: u64,
}

/// The part of a map that reservations give their blocks back to.
struct Shared {
    unit: u64,
    state: Mutex<State>,
}

/// How a map behaves.
#[derive(Clone, Default)]
pub struct RemapOptions {
    /// The size of the file may change.
    pub grows: bool,
    /// Sums are kept and verified; bytes must be stable then.
    pub sums: bool,
    /// Looking up and reserving wait at times, as this world's random numbers say.
    pub waits: Option<WorldRef>,
}

/// A map that writes every block to a new place.
pub struct Remap {
    device: DeviceRef,
    options: RemapOptions,
    shared: std::sync::Arc<Shared>,
}

impl Remap {
    /// An empty map, all holes, over a device; `unit` bytes a block.
    pub fn new(device: DeviceRef, unit: u32) -> Arc<Self> {
        Self::with_options(device, unit, RemapOptions::default())
    }

    /// The same, with options.
    pub fn with_options(device: DeviceRef, unit: u32, options: RemapOptions) -> Arc<Self> {
        assert!(unit.is_power_of_two() && unit >= device.limits().logical_block);
        let blocks = device.size() / u64::from(unit);
        let state = State {
            map: BTreeMap::new(),
            zeroed: BTreeMap::new(),
            cuts: Vec::new(),
            free: (0..blocks).rev().collect(),
            reserved: 0,
            arriving: 0,
            limbo: VecDeque::new(),
            epoch: std::sync::Arc::new(Epoch),
            sequence: 0,
            published_size: 0,
            commits: 0,
        };
        let shared = Shared { unit: u64::from(unit), state: Mutex::new(state) };
        Arc::new(Self { device, options, shared: std::sync::Arc::new(shared) })
    }

    /// The map as it is now.
    pub fn image(&self) -> Image {
        let state = self.shared.state.lock();
        Image { map: state.map.clone(), _pin: state.epoch.clone() }
    }

    /// A map that begins as another one was, on a device with the same bytes in those places.
    pub fn from_image(
        device: DeviceRef,
        unit: u32,
        options: RemapOptions,
        image: &Image,
    ) -> Arc<Self> {
        let new = Self::with_options(device, unit, options);
        let mut state = new.shared.state.lock();
        let taken: BTreeSet<u64> = image.map.values().map(|m| m.device).collect();
        state.free.retain(|block| !taken.contains(block));
        state.sequence = image.map.values().map(|m| m.sequence).max().unwrap_or(0);
        state.map = image.map.clone();
        drop(state);
        new
    }

    fn blocks(&self, range: &Range<u64>) -> Range<u64> {
        range.start / self.shared.unit..range.end.div_ceil(self.shared.unit)
    }

    /// Blocks free, in limbo or mapped: all of them, when nothing is reserved (R1).
    pub fn accounted(&self) -> u64 {
        let state = self.shared.state.lock();
        let limbo: usize = state.limbo.iter().map(|(_, b)| b.len()).sum();
        (state.free.len() + limbo + state.map.len()) as u64
    }

    /// Commits so far.
    pub fn commits(&self) -> u64 {
        self.shared.state.lock().commits
    }

    /// Waits at times, if the options say so.
    async fn wait(&self) {
        let Some(world) = &self.options.waits else { return };
        let draw = world.random();
        if draw.is_multiple_of(4) {
            world.sleep(Duration::from_nanos(1_000 + (draw >> 8) % 300_000)).await;
        }
    }

    fn look_up(&self, range: &Range<u64>) -> Extent {
        let unit = self.shared.unit;
        let state = self.shared.state.lock();
        let blocks = self.blocks(range);
        let at = |b: u64| state.map.get(&b);
        let first = at(blocks.start).map(|m| m.device);
        // A hole ends where the next mapped block is.
        let next = state.map.range(blocks.start..).next().map_or(u64::MAX, |(&next, _)| next);
        let mut len = if first.is_none() { next.min(blocks.end) - blocks.start } else { 1 };
        while first.is_some()
            && blocks.start + len < blocks.end
            && at(blocks.start + len).map(|m| m.device) == first.map(|f| f + len)
        {
            len += 1;
        }
        let sum = |i: u64| at(blocks.start + i)?.sum;
        let sums: Option<Vec<u32>> = first.and_then(|_| (0..len).map(sum).collect());
        let skip = range.start - blocks.start * unit;
        Extent {
            offset: range.start,
            len: (len * unit - skip).min(range.end - range.start),
            device_offset: first.map(|f| f * unit + skip),
            sums: sums.map(Sums::from),
            pin: Some(state.epoch.clone()),
            in_memory: false,
        }
    }

    fn take(&self, runs: &[Range<u64>]) -> Result<Reservation> {
        let unit = self.shared.unit;
        let mut state = self.shared.state.lock();
        state.collect();
        let blocks: Vec<u64> = runs.iter().flat_map(|run| self.blocks(run)).collect();
        if state.free.len() < blocks.len() {
            let text = format!("{} blocks wanted, {} free", blocks.len(), state.free.len());
            return Err(Error::new(ErrorKind::NoSpace, "reserve", text));
        }
        let at = state.free.len() - blocks.len();
        let taken = state.free.split_off(at);
        state.reserved += taken.len() as u64;
        let mut places: Vec<Place> = Vec::new();
        for (file, device) in blocks.into_iter().zip(taken.into_iter().rev()) {
            let (offset, device_offset) = (file * unit, device * unit);
            match places.last_mut() {
                Some(p)
                    if p.device_offset + p.len == device_offset && p.offset + p.len == offset =>
                {
                    p.len += unit
                }
                _ => places.push(Place { offset, len: unit, device_offset }),
            }
        }
        Ok(Reservation::new(places, self.shared.clone()))
    }
}

impl GiveBack for Shared {
    fn give_back(&self, places: &[Place]) {
        let mut state = self.state.lock();
        for place in places {
            let first = place.device_offset / self.unit;
            let count = place.len / self.unit;
            assert!(state.reserved >= count, "R1: what goes back was reserved");
            state.reserved -= count;
            state.free.extend(first..first + count);
        }
    }
}

impl State {
    /// Retires blocks. A reader that looked them up before may still read them.
    fn retire(&mut self, blocks: Vec<u64>) {
        if blocks.is_empty() {
            return;
        }
        let old = std::mem::replace(&mut self.epoch, std::sync::Arc::new(Epoch));
        self.limbo.push_back((std::sync::Arc::downgrade(&old), blocks));
    }

    /// The last sequence that emptied a file block.
    fn emptied(&self, file: u64) -> Option<u64> {
        let cut = self.cuts.iter().rev().find(|&&(first, _)| first <= file).map(|&(_, s)| s);
        cut.max(self.zeroed.get(&file).copied())
    }

    fn next_sequence(&mut self) -> u64 {
        self.sequence += 1;
        self.sequence
    }

    fn collect(&mut self) {
        while self.limbo.front().is_some_and(|(epoch, _)| epoch.strong_count() == 0) {
            let (_, blocks) = self.limbo.pop_front().expect("looked at it");
            self.free.extend(blocks);
        }
    }
}

impl Remap {
    async fn zero(&self, range: Range<u64>) -> Result<()> {
        self.wait().await;
        let mut state = self.shared.state.lock();
        let sequence = state.next_sequence();
        let mut gone = Vec::new();
        for block in self.blocks(&range) {
            gone.extend(state.map.remove(&block).map(|m| m.device));
            state.zeroed.insert(block, sequence);
        }
        state.retire(gone);
        Ok(())
    }

    async fn truncate(&self, size: u64) -> Result<()> {
        self.wait().await;
        let first = size.div_ceil(self.shared.unit);
        let mut state = self.shared.state.lock();
        let sequence = state.next_sequence();
        let cut = state.map.split_off(&first);
        state.cuts.retain(|&(other, _)| other < first);
        state.cuts.push((first, sequence));
        state.published_size = state.published_size.min(size);
        state.retire(cut.into_values().map(|m| m.device).collect());
        Ok(())
    }
}

impl MapOps for Remap {
    fn device(&self) -> &DeviceRef {
        &self.device
    }

    fn info(&self) -> MapInfo {
        let sums = self.options.sums;
        let stable = match sums {
            true => StableWrites { required: true, reason: "checksums of the map" },
            false => self.device.limits().stable_writes,
        };
        MapInfo {
            label: (0, 0),
            unit: self.shared.unit as u32,
            sums,
            stable,
            fua_suffices: false,
            tracks_losses: false,
            can_grow: self.options.grows,
            zeroes_fast: true,
            zeroing_frees: true,
        }
    }

    fn map(&self, range: Range<u64>, _why: Lookup) -> MapFuture<'_, Result<Extent>> {
        MapFuture::Later(Box::pin(async move {
            // The result may be the map before or after the wait: both are moments within the call.
            let early = self.look_up(&range);
            self.wait().await;
            let late = self.options.waits.as_ref().is_some_and(|w| w.random() & 1 == 0);
            Ok(if late { self.look_up(&range) } else { early })
        }))
    }

    fn admit(&self, new: u64, dirty: u64, of: Admit<'_>) -> Result<()> {
        let mut state = self.shared.state.lock();
        state.collect();
        let limbo: usize = state.limbo.iter().map(|(_, b)| b.len()).sum();
        let room = (state.free.len() + limbo) as u64 * self.shared.unit;
        let held = dirty + state.arriving;
        if new + held > room && !matches!(of, Admit::Edge) {
            let text = format!("{new} bytes, {held} dirty already, space for {room}");
            return Err(Error::new(ErrorKind::NoSpace, "write", text));
        }
        state.arriving += new;
        Ok(())
    }

    fn arrived(&self, bytes: u64) {
        let mut state = self.shared.state.lock();
        debug_assert!(state.arriving >= bytes, "E8: more has arrived than was admitted");
        state.arriving -= bytes;
    }

    fn reserve(
        &self,
        runs: &[Range<u64>],
        _class: Class,
        _places: &mut Vec<Place>,
    ) -> MapFuture<'_, Result<Reservation>> {
        let runs = runs.to_vec();
        MapFuture::Later(Box::pin(async move {
            self.wait().await;
            self.take(&runs)
        }))
    }

    fn sequence(&self) -> u64 {
        self.shared.state.lock().next_sequence()
    }

    fn publish(&self, reservation: &Reservation, written: &[Written], size: u64) {
        let unit = self.shared.unit;
        let mut state = self.shared.state.lock();
        let mut gone = Vec::new();
        for Written { place, sequence, sums } in written {
            reservation.note_published(place);
            for i in 0..place.len / unit {
                let (file, device) = (place.offset / unit + i, place.device_offset / unit + i);
                state.reserved -= 1;
                let newer = state.map.get(&file).is_some_and(|m| m.sequence > *sequence)
                    || state.emptied(file) > Some(*sequence);
                let sum = sums.get(i as usize).copied();
                let mapped = Mapped { device, sequence: *sequence, sum };
                if newer {
                    gone.push(device);
                } else if let Some(old) = state.map.insert(file, mapped) {
                    gone.push(old.device);
                }
            }
        }
        state.published_size = state.published_size.max(size);
        state.retire(gone);
    }

    fn published_size(&self) -> Option<u64> {
        Some(self.shared.state.lock().published_size)
    }

    fn commit(&self, _what: Commit, here: bool) -> BoxFuture<'_, Result<()>> {
        self.shared.state.lock().commits += 1;
        Box::pin(async move {
            let device = &*self.device;
            let done = match here {
                true => flush_blocking(device).await,
                false => io(device, BioOp::Flush, 0, 0, DataRef::None, BioFlags::SYNC).await,
            };
            done.result
        })
    }

    fn change(&self, change: Change) -> MapFuture<'_, Result<()>> {
        match change {
            Change::Zero { range, .. } => MapFuture::Later(Box::pin(self.zero(range))),
            // Space is found when bytes are written: a longer file has a hole at its end.
            Change::Grow(_) => MapFuture::Now(Some(Ok(()))),
            Change::Truncate(size, _) => MapFuture::Later(Box::pin(self.truncate(size))),
        }
    }

    fn extents(&self, range: Range<u64>, max: usize) -> BoxFuture<'_, Result<MapRuns>> {
        let unit = self.shared.unit;
        let state = self.shared.state.lock();
        let mut runs = MapRuns::new();
        for block in self.blocks(&range).take(LOOKUPS_MAX) {
            let start = (block * unit).max(range.start);
            let len = ((block + 1) * unit).min(range.end) - start;
            let data = state.map.contains_key(&block);
            let full = runs.len() == max.max(1);
            match runs.last_mut() {
                Some(last) if last.2 == data => last.1 += len,
                _ if full => break,
                _ => runs.push((start, len, data)),
            }
        }
        drop(state);
        Box::pin(std::future::ready(Ok(runs)))
    }
}
