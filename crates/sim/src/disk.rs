//! The one simulated disk: sectors, a volatile write cache, latencies from the seed, and faults.
//!
//! Requests complete out of order at virtual times. Data moves at completion, so a buffer that is
//! changed in flight is stored changed; with [`SimConfig::stable_writes`] that is counted.
//!
//! Invariants: D1 the rules of [`BlockDevice`] hold: each bio completes once, a flush covers the
//! writes completed before it was submitted, FUA is durable at completion, requests outside the
//! size fail. D2 completed but unflushed writes read back, and a power loss may lose them. D3 the
//! power may fail at any submission ([`SimDisk::power_off_after`]); from then on every request
//! fails and nothing changes.
//!
//! Locks: one per disk; taken before the world's. No bio ends while it is held.

use crate::config::{SimConfig, changes_of, refuse};
use crate::fault::{Fault, FaultCounts, FaultRule};
use crate::image::{Image, split};
use crate::media::{Media, Pending};
use crate::power_cut::PowerCut;
use crate::reads::Reads;
use forebay_base::checksum::crc32c;
use forebay_base::sim_world::SimWorld;
use forebay_base::sync::Mutex;
use forebay_base::task::BoxFuture;
use forebay_base::world::{Nanos, World, split_mix};
use forebay_base::{ErrorKind, Result};
use forebay_block::bdev::{BlockDevice, Limits, MapRuns};
use forebay_block::bio::{Bio, BioFlags, BioOp};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// One request as the disk saw it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogEntry {
    /// When it was submitted.
    pub at: Nanos,
    /// Its operation.
    pub op: BioOp,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// Its flags.
    pub flags: BioFlags,
    /// The fault that was injected.
    pub fault: Option<Fault>,
    /// When it completed, and whether it succeeded; `None` while in flight.
    pub done: Option<(Nanos, bool)>,
}

struct InFlight {
    bio: Bio,
    fault: Option<Fault>,
    /// For a flush: the first serial it does not cover.
    until: u64,
    /// For a write with stable writes: the CRC of its data at submission.
    crc: u32,
    log_index: usize,
}

struct State {
    media: Media,
    rules: Vec<FaultRule>,
    in_flight: BTreeMap<u64, InFlight>,
    /// Writes of an earlier user of the disk that are still in flight.
    late: BTreeMap<u64, Pending>,
    next_id: u64,
    log: Vec<LogEntry>,
    /// Submissions until the power fails.
    power: Option<u64>,
    /// After a power loss: the writes that were in flight.
    dead: Option<Vec<Pending>>,
    /// The moments before each request that changes something, if they are recorded.
    cuts: Option<Vec<PowerCut>>,
    /// Tag of the next moments.
    tag: u64,
    /// The record of reads, if there is one.
    reads: Option<Reads>,
    unstable_writes: u64,
    overlapping_writes: u64,
}

struct Shared {
    world: Arc<SimWorld>,
    config: SimConfig,
    state: Mutex<State>,
}

/// A simulated disk; clones are handles to the same one.
#[derive(Clone)]
pub struct SimDisk(Arc<Shared>);

impl SimDisk {
    /// An empty disk in `world`.
    pub fn new(world: Arc<SimWorld>, config: SimConfig) -> Self {
        let image = Image::new(config.sector as usize);
        Self::with_image(world, config, image)
    }

    /// A disk that durably holds `image`.
    pub(crate) fn with_image(world: Arc<SimWorld>, config: SimConfig, image: Image) -> Self {
        let media = Media::new(&config, image, world.random());
        Self::with_media(world, config, media)
    }

    pub(crate) fn with_media(world: Arc<SimWorld>, config: SimConfig, media: Media) -> Self {
        assert!(matches!(config.sector, 512 | 4096), "sector size");
        assert!(config.size.is_multiple_of(u64::from(config.sector)), "whole sectors");
        let state = State {
            media,
            rules: Vec::new(),
            in_flight: BTreeMap::new(),
            late: BTreeMap::new(),
            next_id: 0,
            log: Vec::new(),
            power: None,
            dead: None,
            cuts: None,
            tag: 0,
            reads: None,
            unstable_writes: 0,
            overlapping_writes: 0,
        };
        Self(Arc::new(Shared { world, config, state: Mutex::new(state) }))
    }

    /// Its simulated world.
    pub fn world(&self) -> &Arc<SimWorld> {
        &self.0.world
    }

    /// Its settings.
    pub fn config(&self) -> &SimConfig {
        &self.0.config
    }

    /// Adds a fault rule.
    pub fn inject(&self, rule: FaultRule) {
        self.0.state.lock().rules.push(rule);
    }

    /// Removes all fault rules and the space limit.
    pub fn heal(&self) {
        let mut state = self.0.state.lock();
        state.rules.clear();
        state.media.space = None;
    }

    /// Lets at most this many bytes be allocated, as on a full file system below a sparse image:
    /// writes that need more fail with `NoSpace`. Discards and unmapping zeroes give space back.
    pub fn limit_space(&self, bytes: u64) {
        let sector = u64::from(self.0.config.sector);
        self.0.state.lock().media.space = Some(bytes / sector);
    }

    /// Flips a bit (by the seed) of the sector that holds byte `offset`, on the medium.
    pub fn rot(&self, offset: u64) {
        assert!(offset < self.0.config.size);
        self.0.state.lock().media.rot(offset / u64::from(self.0.config.sector));
    }

    /// Makes the power fail at the submission after the next `n`. That request, all later ones and
    /// those in flight fail, and only crash states can be taken.
    pub fn power_off_after(&self, n: u64) {
        self.0.state.lock().power = Some(n);
    }

    /// Whether the power has failed.
    pub fn is_off(&self) -> bool {
        self.0.state.lock().dead.is_some()
    }

    /// From now on records the moment before each write, zeroing, discard and flush.
    pub fn record_cuts(&self) {
        self.0.state.lock().cuts = Some(Vec::new());
    }

    /// Tags the moments recorded from now on with this number, the progress of the disk's user.
    pub fn tag_cuts(&self, tag: u64) {
        self.0.state.lock().tag = tag;
    }

    /// The moments since [`SimDisk::record_cuts`]; ends the recording.
    pub fn take_cuts(&self) -> Vec<PowerCut> {
        self.0.state.lock().cuts.take().unwrap_or_default()
    }

    /// From now on records reads of the state with which the disk began.
    pub fn record_reads(&self, reads: &Reads) {
        self.0.state.lock().reads = Some(reads.clone());
    }

    /// The moment now.
    pub fn cut_now(&self) -> PowerCut {
        self.0.state.lock().cut(&self.0.config)
    }

    /// The number of faults that happened, by class.
    pub fn fault_counts(&self) -> FaultCounts {
        self.0.state.lock().media.counts
    }

    /// Writes whose data changed in flight although the disk requires stable writes.
    pub fn unstable_writes(&self) -> u64 {
        self.0.state.lock().unstable_writes
    }

    /// Writes submitted while another one to some of the same sectors was in flight: which of
    /// the two is stored last is not determined.
    pub fn overlapping_writes(&self) -> u64 {
        self.0.state.lock().overlapping_writes
    }

    /// Every request since the start or the last `clear_log`.
    pub fn log(&self) -> Vec<LogEntry> {
        self.0.state.lock().log.clone()
    }

    /// Clears the log, unless a request is in flight.
    pub fn clear_log(&self) {
        let mut state = self.0.state.lock();
        if state.in_flight.is_empty() {
            state.log.clear();
        }
    }

    /// Numbers of requests: the oldest one in flight, and the next one. Equal: none is in flight.
    pub fn requests(&self) -> Range<u64> {
        let state = self.0.state.lock();
        state.in_flight.keys().next().copied().unwrap_or(state.next_id)..state.next_id
    }

    /// The number of completed writes that a power loss could lose.
    pub fn pending_writes(&self) -> usize {
        self.0.state.lock().media.pending.len()
    }

    /// Bytes as a read would see them now, without being a request.
    pub fn peek(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut out = vec![0; len];
        self.0.state.lock().media.current.read(offset, &mut out);
        out
    }

    /// Bytes that are durable now.
    pub fn peek_durable(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut out = vec![0; len];
        self.0.state.lock().media.durable.read(offset, &mut out);
        out
    }

    /// Puts bytes durably, without being a request; a whole number of sectors.
    pub fn poke(&self, offset: u64, bytes: &[u8]) {
        let sector = self.0.config.sector as usize;
        assert!(offset.is_multiple_of(sector as u64) && bytes.len().is_multiple_of(sector));
        let changes = split(offset / sector as u64, bytes.to_vec(), sector);
        self.0.state.lock().media.store(BioOp::Write, changes, true);
    }

    /// Bytes that are allocated.
    pub fn allocated(&self) -> u64 {
        self.0.state.lock().media.current.allocated() * u64::from(self.0.config.sector)
    }

    /// A hash of everything that reads as something else than zeros.
    pub fn content_digest(&self) -> u64 {
        let state = self.0.state.lock();
        let image = &state.media.current;
        let mut digest = 0;
        for number in image.numbers() {
            let bytes = image.get(number).expect("numbers() lists sectors that exist").bytes();
            if bytes.iter().any(|b| *b != 0) {
                let mut word = digest ^ number.rotate_left(32) ^ u64::from(crc32c(bytes));
                digest = split_mix(&mut word);
            }
        }
        digest
    }

    /// A copy of this disk in another world: durable and volatile content, no rules, nothing in
    /// flight, power on.
    pub fn in_world(&self, world: Arc<SimWorld>) -> SimDisk {
        let media = self.0.state.lock().media.clone();
        Self::with_media(world, self.0.config.clone(), media)
    }

    /// Completes a write of an earlier user of the disk after this many nanoseconds.
    pub(crate) fn land_later(&self, after: Nanos, part: Pending) {
        let id = {
            let mut state = self.0.state.lock();
            let id = state.next_id;
            state.next_id += 1;
            state.late.insert(id, Pending { serial: u64::MAX / 2 + id, ..part });
            id
        };
        let weak = Arc::downgrade(&self.0);
        let land = move || {
            let Some(shared) = weak.upgrade() else { return };
            let mut state = shared.state.lock();
            let Some(part) = state.late.remove(&id) else { return };
            if state.dead.is_none() {
                state.media.store(part.op, part.changes, false);
            }
        };
        self.0.world.at(self.0.world.now() + after, Box::new(land));
    }

    /// Writes of an earlier user of the disk that have not completed yet.
    pub fn late_writes(&self) -> usize {
        self.0.state.lock().late.len()
    }

    /// Executes a request at once, with faults, power and log as for any other.
    fn at_once(
        &self,
        op: BioOp,
        flags: BioFlags,
        offset: u64,
        len: u64,
        act: impl FnOnce(&mut State, Option<Fault>) -> Result<()>,
    ) -> Result<()> {
        let at = self.0.world.now();
        self.0.config.check(op, flags, offset, len)?;
        let mut state = self.0.state.lock();
        state.land_before(op);
        state.remember(op, &self.0.config);
        if state.power_gone(&self.0.config) {
            return refuse(ErrorKind::Io, "the power is off");
        }
        let fault = state.fault_for(op, offset, len);
        let result = act(&mut state, fault).map_err(|e| e.with_range(offset, len));
        let done = Some((at, result.is_ok()));
        state.log.push(LogEntry { at, op, offset, len, flags, fault, done });
        result
    }
}

impl State {
    /// The writes in flight as they would be stored.
    fn copy_in_flight(&mut self, config: &SimConfig) -> Vec<Pending> {
        let mut parts: Vec<Pending> = self.late.values().cloned().collect();
        let rng = &mut self.media.rng;
        for (id, flight) in &mut self.in_flight {
            let bio = &mut flight.bio;
            if flight.fault == Some(Fault::Lost) || matches!(bio.op, BioOp::Read | BioOp::Flush) {
                continue;
            }
            let changes = changes_of(config, rng, bio.op, bio.flags, bio.offset, bio.len, |dst| {
                bio.data.copy_out(0, dst);
            });
            parts.push(Pending { serial: u64::MAX / 2 + id, op: bio.op, changes });
        }
        parts
    }

    /// This moment.
    fn cut(&mut self, config: &SimConfig) -> PowerCut {
        let media = self.media.clone();
        let in_flight = self.dead.clone().unwrap_or_else(|| self.copy_in_flight(config));
        // Taking a moment changes nothing, not even later random numbers.
        self.media.rng = media.rng;
        PowerCut::new(media, in_flight, config.clone(), self.tag)
    }

    /// Writes of an earlier user of the disk complete at the latest when this one changes
    /// something, because the earlier user's lock outlives its requests.
    fn land_before(&mut self, op: BioOp) {
        if op == BioOp::Read {
            return;
        }
        for part in std::mem::take(&mut self.late).into_values() {
            self.media.store(part.op, part.changes, false);
        }
    }

    /// Records the moment before a request, if recording is on.
    fn remember(&mut self, op: BioOp, config: &SimConfig) {
        if op != BioOp::Read && self.cuts.is_some() {
            let cut = self.cut(config);
            self.cuts.get_or_insert_default().push(cut);
        }
    }

    /// Records what a read sees, if recording is on.
    fn note_read(&self, offset: u64, len: u64) {
        if let Some(reads) = &self.reads {
            reads.note_bytes(&self.media.current, offset, len);
        }
    }

    /// Counts a submission; returns whether the power is off or fails now.
    fn power_gone(&mut self, config: &SimConfig) -> bool {
        match &mut self.power {
            _ if self.dead.is_some() => return true,
            None => return false,
            Some(0) => {}
            Some(left) => {
                *left -= 1;
                return false;
            }
        }
        self.dead = Some(self.copy_in_flight(config));
        true
    }

    fn fault_for(&mut self, op: BioOp, offset: u64, len: u64) -> Option<Fault> {
        let at = offset..offset.saturating_add(len);
        let rng = &mut self.media.rng;
        let fault = self.rules.iter_mut().find_map(|rule| rule.fires(op, &at, rng));
        if let Some(fault) = fault {
            self.media.counts.count(fault);
        }
        fault
    }

    fn begin_log(&mut self, at: Nanos, bio: &Bio, fault: Option<Fault>) -> usize {
        let (op, offset, len, flags) = (bio.op, bio.offset, bio.len, bio.flags);
        self.log.push(LogEntry { at, op, offset, len, flags, fault, done: None });
        self.log.len() - 1
    }
}

impl Shared {
    /// Ends the request `id`: moves the data now.
    fn finish(&self, id: u64) {
        let now = self.world.now();
        let (bio, result) = {
            let mut state = self.state.lock();
            let Some(mut flight) = state.in_flight.remove(&id) else { return };
            let result = if state.dead.is_some() {
                refuse(ErrorKind::Io, "the power is off")
            } else {
                self.carry_out(&mut state, &mut flight)
            };
            if let Some(entry) = state.log.get_mut(flight.log_index) {
                entry.done = Some((now, result.is_ok()));
            }
            (flight.bio, result)
        };
        bio.complete(result);
    }

    fn carry_out(&self, state: &mut State, flight: &mut InFlight) -> Result<()> {
        let (bio, fault) = (&mut flight.bio, flight.fault);
        match bio.op {
            BioOp::Flush => return state.media.flush(flight.until, fault),
            BioOp::Read => {
                let mut data = vec![0; bio.len as usize];
                state.note_read(bio.offset, bio.len);
                let result = state.media.read(bio.offset, &mut data, fault);
                if result.is_ok() || fault == Some(Fault::Short) {
                    bio.data.copy_in(0, &data);
                }
                return result;
            }
            _ => {}
        }
        if bio.op == BioOp::Write && self.config.stable_writes && crc_of(bio) != flight.crc {
            state.unstable_writes += 1;
        }
        let rng = &mut state.media.rng;
        let (op, flags) = (bio.op, bio.flags);
        let changes = changes_of(&self.config, rng, op, flags, bio.offset, bio.len, |dst| {
            bio.data.copy_out(0, dst);
        });
        state.media.change(op, changes, flags.contains(BioFlags::FUA), fault)
    }
}

fn crc_of(bio: &mut Bio) -> u32 {
    let mut data = vec![0; bio.len as usize];
    bio.data.copy_out(0, &mut data);
    crc32c(&data)
}

impl BlockDevice for SimDisk {
    fn name(&self) -> String {
        format!("sim disk (seed {})", self.0.world.seed())
    }

    fn limits(&self) -> Limits {
        self.0.config.limits()
    }

    fn size(&self) -> u64 {
        self.0.config.size
    }

    fn submit(&self, mut bio: Bio) {
        let shared = &self.0;
        let now = shared.world.now();
        let mut guard = shared.state.lock();
        let state = &mut *guard;
        let checked = shared
            .config
            .check(bio.op, bio.flags, bio.offset, bio.len)
            .and_then(|()| shared.config.check_memory(&mut bio));
        if checked.is_ok() {
            state.land_before(bio.op);
            state.remember(bio.op, &shared.config);
        }
        let refused = match checked {
            Ok(()) if state.power_gone(&shared.config) => refuse(ErrorKind::Io, "the power is off"),
            other => other,
        };
        if refused.is_err() {
            drop(guard);
            let soon = now + 1;
            return shared.world.at(soon, Box::new(move || bio.complete(refused)));
        }
        let fault = state.fault_for(bio.op, bio.offset, bio.len);
        let log_index = state.begin_log(now, &bio, fault);
        let (mut crc, until) = (0, state.media.next_serial);
        if bio.op == BioOp::Write {
            let (from, to) = (bio.offset, bio.offset + bio.len);
            let hits = |b: &Bio| b.op == BioOp::Write && b.offset < to && from < b.offset + b.len;
            state.overlapping_writes += u64::from(state.in_flight.values().any(|f| hits(&f.bio)));
            if shared.config.stable_writes {
                crc = crc_of(&mut bio);
            }
        }
        let time = shared.config.latency(&mut state.media.rng, bio.len, fault);
        let id = state.next_id;
        state.next_id += 1;
        state.in_flight.insert(id, InFlight { bio, fault, until, crc, log_index });
        drop(guard);
        let weak = Arc::downgrade(shared);
        let finish = move || {
            if let Some(shared) = weak.upgrade() {
                shared.finish(id);
            }
        };
        shared.world.at(now + time, Box::new(finish));
    }

    /// Executed at once, with the faults of a bio: nothing may wait inside the simulated world.
    fn read_into(&self, offset: u64, dst: &mut [u8]) -> Result<()> {
        let len = dst.len() as u64;
        self.at_once(BioOp::Read, BioFlags::SYNC, offset, len, |state, fault| {
            state.note_read(offset, len);
            state.media.read(offset, dst, fault)
        })
    }

    /// Executed at once, with the faults of a bio.
    fn write_from(&self, offset: u64, src: &[u8], flags: BioFlags) -> Result<()> {
        let config = &self.0.config;
        let len = src.len() as u64;
        self.at_once(BioOp::Write, flags, offset, len, |state, fault| {
            let rng = &mut state.media.rng;
            let changes = changes_of(config, rng, BioOp::Write, flags, offset, len, |dst| {
                dst.copy_from_slice(src);
            });
            state.media.change(BioOp::Write, changes, flags.contains(BioFlags::FUA), fault)
        })
    }

    fn extents(&self, offset: u64, len: u64, max: usize) -> BoxFuture<'static, Result<MapRuns>> {
        Box::pin(std::future::ready(self.runs(offset, len, max.max(1))))
    }
}

impl SimDisk {
    fn runs(&self, offset: u64, len: u64, max: usize) -> Result<MapRuns> {
        self.0.config.check(BioOp::Read, BioFlags::empty(), offset, 0)?;
        let end = offset.saturating_add(len).min(self.0.config.size);
        let sector = u64::from(self.0.config.sector);
        let numbers = {
            let state = self.0.state.lock();
            // The answer shows which sectors are holes. A record has only content, so it is given
            // up.
            state.reads.iter().for_each(Reads::give_up);
            state.media.current.numbers()
        };
        let mut runs = MapRuns::new();
        let mut at = offset;
        for number in numbers {
            let (from, to) = ((number * sector).max(at), ((number + 1) * sector).min(end));
            if from >= to {
                continue;
            }
            if from > at {
                runs.push((at, from - at, false));
            }
            match runs.last_mut() {
                Some(run) if run.2 => run.1 += to - from,
                _ => runs.push((from, to - from, true)),
            }
            at = to;
        }
        if at < end {
            runs.push((at, end - at, false));
        }
        runs.truncate(max);
        Ok(runs)
    }
}
