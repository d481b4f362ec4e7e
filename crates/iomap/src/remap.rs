//! An out-of-place map in memory: every write goes to fresh blocks of the device, and the map changes
//! when it is published. It keeps nothing across a restart; it exists to prove the contract of
//! [`crate::ops`] under the same tests as the identity.
//!
//! Invariants: R1 a device block is free, reserved, mapped, or in limbo. R2 a block in limbo is
//! free once every pin handed out before it got there is gone (O4).

use crate::ops::{Extent, MapFuture, MapOps, Place, Reservation};
use forebay_base::sync::{Arc, Mutex};
use forebay_base::task::BoxFuture;
use forebay_base::{Error, ErrorKind, Result};
use forebay_block::{DeviceRef, MapRuns};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Weak;

/// Most blocks looked up in one call for the map.
const LOOKUPS_MAX: usize = 1 << 16;

/// An epoch: pins are clones of it.
struct Epoch;

struct State {
    /// File block to (device block, seq of the write that put it there).
    map: BTreeMap<u64, (u64, u64)>,
    /// Highest seq that emptied a file block; a write reserved before that is not published (O2).
    zeroed: BTreeMap<u64, u64>,
    free: Vec<u64>,
    limbo: VecDeque<(Weak<Epoch>, Vec<u64>)>,
    epoch: std::sync::Arc<Epoch>,
    seq: u64,
}

/// See the module.
pub struct Remap {
    device: DeviceRef,
    unit: u32,
    state: Mutex<State>,
}

impl Remap {
    /// An empty map, all holes, over a device; `unit` bytes a block.
    pub fn new(device: DeviceRef, unit: u32) -> Arc<Self> {
        assert!(unit.is_power_of_two() && unit >= device.limits().logical_block);
        let blocks = device.size() / u64::from(unit);
        let state = State {
            map: BTreeMap::new(),
            zeroed: BTreeMap::new(),
            free: (0..blocks).rev().collect(),
            limbo: VecDeque::new(),
            epoch: std::sync::Arc::new(Epoch),
            seq: 0,
        };
        Arc::new(Self { device, unit, state: Mutex::new(state) })
    }

    fn blocks(&self, range: &Range<u64>) -> Range<u64> {
        let unit = u64::from(self.unit);
        range.start / unit..range.end.div_ceil(unit)
    }

    /// Blocks free, in limbo or mapped: all of them, when nothing is reserved (R1).
    pub fn accounted(&self) -> u64 {
        let state = self.state.lock();
        let limbo: usize = state.limbo.iter().map(|(_, b)| b.len()).sum();
        (state.free.len() + limbo + state.map.len()) as u64
    }
}

impl State {
    /// Retires blocks that may still be read by somebody who looked before.
    fn retire(&mut self, blocks: Vec<u64>) {
        if blocks.is_empty() {
            return;
        }
        let old = std::mem::replace(&mut self.epoch, std::sync::Arc::new(Epoch));
        self.limbo.push_back((std::sync::Arc::downgrade(&old), blocks));
    }

    fn collect(&mut self) {
        while self.limbo.front().is_some_and(|(epoch, _)| epoch.strong_count() == 0) {
            let (_, blocks) = self.limbo.pop_front().expect("looked at it");
            self.free.extend(blocks);
        }
    }
}

impl MapOps for Remap {
    fn device(&self) -> &DeviceRef {
        &self.device
    }

    fn unit(&self) -> u32 {
        self.unit
    }

    fn map(&self, range: Range<u64>) -> MapFuture<'_, Result<Extent>> {
        let unit = u64::from(self.unit);
        let state = self.state.lock();
        let blocks = self.blocks(&range);
        let at = |b: u64| state.map.get(&b).map(|&(device, _)| device);
        let first = at(blocks.start);
        let mut len = 1;
        while blocks.start + len < blocks.end && at(blocks.start + len) == first.map(|f| f + len) {
            len += 1;
        }
        let skip = range.start - blocks.start * unit;
        let extent = Extent {
            offset: range.start,
            len: (len * unit - skip).min(range.end - range.start),
            device_offset: first.map(|f| f * unit + skip),
            pin: Some(state.epoch.clone()),
        };
        // Boxed, so that the callers' waits are exercised as a volume will exercise them.
        MapFuture::Later(Box::pin(async move { Ok(extent) }))
    }

    fn reserve(&self, range: Range<u64>) -> Result<Reservation> {
        let unit = u64::from(self.unit);
        let mut state = self.state.lock();
        state.collect();
        let blocks = self.blocks(&range);
        let count = (blocks.end - blocks.start) as usize;
        if state.free.len() < count {
            let text = format!("{count} blocks wanted, {} free", state.free.len());
            return Err(Error::new(ErrorKind::NoSpace, "reserve", text));
        }
        state.seq += 1;
        let at = state.free.len() - count;
        let taken = state.free.split_off(at);
        let mut places: Vec<Place> = Vec::new();
        for (file, device) in blocks.zip(taken.into_iter().rev()) {
            let offset = file * unit;
            let len = unit.min(range.end - offset);
            match places.last_mut() {
                Some(p) if p.device_offset + p.len == device * unit && p.len % unit == 0 => {
                    p.len += len
                }
                _ => places.push(Place { offset, len, device_offset: device * unit }),
            }
        }
        Ok(Reservation { seq: state.seq, places })
    }

    fn publish(&self, reservation: Reservation) -> Result<()> {
        let unit = u64::from(self.unit);
        let mut state = self.state.lock();
        let mut gone = Vec::new();
        for place in &reservation.places {
            for i in 0..place.len.div_ceil(unit) {
                let (file, device) = (place.offset / unit + i, place.device_offset / unit + i);
                let newer = state.map.get(&file).is_some_and(|&(_, seq)| seq > reservation.seq)
                    || state.zeroed.get(&file).is_some_and(|&seq| seq > reservation.seq);
                if newer {
                    gone.push(device);
                } else if let Some((old, _)) = state.map.insert(file, (device, reservation.seq)) {
                    gone.push(old);
                }
            }
        }
        state.retire(gone);
        Ok(())
    }

    fn abort(&self, reservation: Reservation, _error: &Error) {
        let unit = u64::from(self.unit);
        let mut state = self.state.lock();
        for place in reservation.places {
            let first = place.device_offset / unit;
            state.free.extend(first..first + place.len.div_ceil(unit));
        }
    }

    fn zero(&self, range: Range<u64>, _keep: bool, _fast: bool) -> BoxFuture<'_, Result<()>> {
        let blocks = self.blocks(&range);
        let mut state = self.state.lock();
        state.seq += 1;
        let seq = state.seq;
        let mut gone = Vec::new();
        for block in blocks {
            gone.extend(state.map.remove(&block).map(|(device, _)| device));
            state.zeroed.insert(block, seq);
        }
        state.retire(gone);
        Box::pin(async { Ok(()) })
    }

    fn can_zero(&self) -> (bool, bool) {
        (true, true)
    }

    fn extents(&self, range: Range<u64>, max: usize) -> BoxFuture<'_, Result<MapRuns>> {
        let unit = u64::from(self.unit);
        let state = self.state.lock();
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
