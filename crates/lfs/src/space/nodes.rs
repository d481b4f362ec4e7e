//! Places for tree nodes in segments of the volume. The two copies of a node lie in different
//! segments. A single place is reused once the two newest checkpoints no longer need it.
//!
//! ```text
//! free slot ──allocated──▶ node ──replaced by checkpoint k──▶ limbo ──k + 1 durable──▶ free
//!                           └── its checkpoint failed ──▶ free (N15), or limbo if a slot may name
//!                                                         it, until the slot is replaced (N16)
//! ```
//! Invariants: N11 a node that one of the two newest durable checkpoints leads to is not
//! overwritten. N12 the copies of a node lie in different segments. N13 a segment without nodes,
//! and with none in limbo, is free. N14 if a write to a segment failed since the volume was opened,
//! its places are given out last (segment.W18). They still count as free, so that grants based on
//! them are honoured. N15 places of a checkpoint that failed before it wrote a slot are free when
//! the next checkpoint has its turn: all writes to them have ended (checkpoint.H18). N16 before a
//! checkpoint takes nodes, the durable state counts before each slot that may have another one
//! (repeat.H17): of a failed checkpoint, or that the opening could not read. So such a slot names
//! no node that is overwritten, and a number of failed checkpoints hold no more places than one.
//!
//! Locks: the [`NodeOwner`] takes the state lock to allocate. No lock is held across a wait.

use crate::btree::{NodeStore, StoredNode};
use crate::device::hold::Hold;
use crate::device::layout::Layout;
use crate::device::slots::read_at;
use crate::device::write::write_bufs;
use crate::format::place::{Geometry, Place};
use forebay_base::buf::AlignedBuf;
use forebay_base::sync::Mutex;
use forebay_base::task::BoxFuture;
use forebay_base::{Error, ErrorKind, Result};
use forebay_block::{BioFlags, DeviceRef};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock, Weak};

/// The node slots of one segment.
struct Slots {
    /// A set bit means that the slot is free.
    free: Vec<u64>,
    left: u32,
    /// A write to this segment failed since the volume was opened (N14).
    has_failed: bool,
}

/// How many pairs of nodes fit into the free slots of the tree segments.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct NodeRoom {
    pairs: u64,
    /// Free slots that are left then. All of them lie in one segment.
    rest: u64,
    /// The number of nodes that fit in a segment.
    per: u64,
}

impl NodeRoom {
    /// How many more segments are needed for `pairs` pairs. Two more segments take as many pairs as
    /// a segment has slots: some next to the rest, the others next to each other.
    pub fn segments_for(&self, pairs: u64) -> u64 {
        let Some(last) = pairs.checked_sub(self.pairs + 1) else { return 0 };
        2 * (last / self.per) + if last % self.per < self.rest { 1 } else { 2 }
    }
}

/// A tree segment with free slots: it had no failed write, its free slots, and its number.
type Emptiness = (bool, u32, u32);

/// The segments for tree nodes, with their used, free and given-up places.
pub(crate) struct NodeSlots {
    geometry: Geometry,
    segments: BTreeMap<u32, Slots>,
    /// The two segments from which the next copies are allocated.
    current: [Option<u32>; 2],
    /// Places that the newest durable checkpoint gave up. The checkpoint before it still needs
    /// them.
    limbo: Vec<Place>,
    /// Places that a failed checkpoint took, and that no slot names (N15).
    failed: Vec<Place>,
    left: u64,
    room: NodeRoom,
}

impl NodeSlots {
    /// No segments at all.
    pub fn new(geometry: Geometry) -> Self {
        let (segments, limbo, failed, room) = Default::default();
        let mut this =
            Self { geometry, segments, current: [None; 2], limbo, failed, left: 0, room };
        this.recount();
        this
    }

    /// The number of nodes that fit in a segment.
    pub fn per_segment(&self) -> u32 {
        self.geometry.segment_bytes() >> self.geometry.node_shift
    }

    /// The number of slots in use.
    #[cfg(test)]
    pub fn used(&self) -> u64 {
        self.segments.len() as u64 * u64::from(self.per_segment()) - self.left
    }

    /// The bytes of the bit maps of slots.
    #[cfg(test)]
    pub fn map_bytes(&self) -> usize {
        self.segments.values().map(|slots| slots.free.len() * 8).sum()
    }

    /// Whether this segment holds nodes.
    #[cfg(test)]
    pub fn has_segment(&self, segment: u32) -> bool {
        self.segments.contains_key(&segment)
    }

    /// The pairs that fit into the free slots.
    pub fn room(&self) -> NodeRoom {
        self.room
    }

    /// Counts [`Self::room`] from scratch, in the order in which [`Self::take`] uses segments. This
    /// runs once for each checkpoint, which also sorts the segments in [`Self::pack`], and when a
    /// segment is added: then at most one has a free slot, unless one has failed.
    fn recount(&mut self) {
        let emptiness = |(n, slots): (&u32, &Slots)| (!slots.has_failed, slots.left, *n);
        let none: Emptiness = (false, 0, u32::MAX);
        let of = |n: Option<u32>| {
            n.and_then(|n| self.segments.get_key_value(&n)).map_or(none, emptiness)
        };
        let with_space = self.segments.iter().filter(|(_, slots)| slots.left > 0);
        let mut by_space: BTreeSet<Emptiness> = with_space.map(emptiness).collect();
        let (mut current, mut pairs) = (self.current.map(of), 0);
        loop {
            let is_filled = |this: Emptiness| this.0 && this.1 > 0;
            let emptiest =
                |not: Emptiness| by_space.iter().rev().find(|this| **this != not).copied();
            let first = match is_filled(current[0]) {
                true => Some(current[0]),
                false => emptiest(current[1]).or_else(|| emptiest(none)),
            };
            let Some(a) = first else { break };
            let second = match is_filled(current[1]) && current[1] != a {
                true => Some(current[1]),
                false => emptiest(a),
            };
            let Some(b) = second else { break };
            let taken = a.1.min(b.1);
            current = [a, b].map(|(is_sound, space, n)| {
                by_space.remove(&(is_sound, space, n));
                let rest = (is_sound, space - taken, n);
                by_space.extend((space > taken).then_some(rest));
                rest
            });
            pairs += u64::from(taken);
        }
        let rest = by_space.first().map_or(0, |(_, space, _)| u64::from(*space));
        self.room = NodeRoom { pairs, rest, per: u64::from(self.per_segment()) };
    }

    /// Adds a segment whose slots are all free.
    pub fn add(&mut self, segment: u32) {
        let per = self.per_segment();
        let slots = Slots { free: all_free(per), left: per, has_failed: false };
        if self.segments.insert(segment, slots).is_none() {
            self.left += u64::from(per);
        }
        self.recount();
    }

    /// Adds a segment that holds nodes according to the usage table. Memory for its slots is
    /// allocated when the first node is [`found`](Self::found) there. Until then no slot in it is
    /// given out. If no node is found, [`release`](Self::release) removes it.
    pub fn adopt(&mut self, segment: u32) {
        let left = self.per_segment();
        let slots = Slots { free: Vec::new(), left, has_failed: false };
        if self.segments.insert(segment, slots).is_none() {
            self.left += u64::from(left);
        }
    }

    /// Notes a failed write to this segment (N14), if it holds nodes.
    pub fn fail(&mut self, segment: u32) {
        if let Some(slots) = self.segments.get_mut(&segment) {
            slots.has_failed = true;
            self.recount();
        }
    }

    /// Whether a next copy would have to go to a segment with a failed write.
    pub fn lacks_sound(&self) -> bool {
        let with_space = |failed: bool| {
            let these = self.segments.values();
            these.filter(move |slots| slots.left > 0 && slots.has_failed == failed).count()
        };
        let failed = with_space(true);
        failed > 0 && with_space(false) < 2
    }

    /// Whether another segment is needed: fewer than two segments have a free slot, so the two
    /// copies do not fit.
    pub fn wants_segment(&self) -> bool {
        self.room.pairs == 0 && self.segments.values().filter(|slots| slots.left > 0).count() < 2
    }

    /// Takes places for both copies (N12). None: [`wants_segment`](Self::wants_segment) is true.
    pub fn take(&mut self) -> Option<[Place; 2]> {
        let first = self.side(0, None)?;
        let second = self.side(1, Some(first))?;
        self.current = [Some(first), Some(second)];
        let places = [self.slot(first)?, self.slot(second)?];
        match self.room.pairs.checked_sub(1) {
            Some(pairs) => self.room.pairs = pairs,
            // Segments with a failed write may have space for more pairs than were counted.
            None => self.recount(),
        }
        Some(places)
    }

    /// The segment for a copy: the current one, or else the emptiest one (N14).
    fn side(&self, n: usize, not: Option<u32>) -> Option<u32> {
        let has_room = |segment: &u32| {
            Some(*segment) != not && self.segments.get(segment).is_some_and(|s| s.left > 0)
        };
        let emptiest = || {
            let others = self.segments.iter().filter(|(segment, _)| {
                has_room(segment) && (n == 1 || self.current[1] != Some(**segment))
            });
            let by_room = |(_, slots): &(&u32, &Slots)| (!slots.has_failed, slots.left);
            others.max_by_key(by_room).map(|(segment, _)| *segment)
        };
        let any = || self.segments.keys().copied().find(has_room);
        let is_sound = |n: &u32| self.segments.get(n).is_some_and(|slots| !slots.has_failed);
        let filled = self.current[n].filter(|n| has_room(n) && is_sound(n));
        filled.or_else(emptiest).or_else(any)
    }

    fn slot(&mut self, segment: u32) -> Option<Place> {
        let slots = self.segments.get_mut(&segment)?;
        let (word, bits) = slots.free.iter_mut().enumerate().find(|(_, bits)| **bits != 0)?;
        let bit = bits.trailing_zeros();
        *bits &= !(1 << bit);
        slots.left -= 1;
        self.left -= 1;
        Some(Place::new(segment, (word as u32 * 64 + bit) << self.geometry.node_shift))
    }

    fn bit(&mut self, place: Place) -> Option<(&mut Slots, usize, u64)> {
        let (n, per) = (place.offset >> self.geometry.node_shift, self.per_segment());
        let slots = self.segments.get_mut(&place.segment)?;
        if slots.free.is_empty() {
            slots.free = all_free(per);
        }
        Some((slots, (n / 64) as usize, 1 << (n % 64)))
    }

    /// Marks the place of a node that recovery found. False: the place is in use already, or lies
    /// in no tree segment.
    pub fn found(&mut self, place: Place) -> bool {
        let Some((slots, word, bit)) = self.bit(place) else { return false };
        if slots.free[word] & bit == 0 {
            return false;
        }
        slots.free[word] &= !bit;
        slots.left -= 1;
        self.left -= 1;
        true
    }

    /// Frees places that no checkpoint refers to any more.
    fn free(&mut self, places: impl IntoIterator<Item = Place>) {
        for place in places {
            let Some((slots, word, bit)) = self.bit(place) else { continue };
            debug_assert!(slots.free[word] & bit == 0, "N11: {place:?} was taken");
            slots.free[word] |= bit;
            slots.left += 1;
            self.left += 1;
        }
    }

    /// Keeps these places in limbo until the next checkpoint is durable.
    pub fn hold(&mut self, places: impl IntoIterator<Item = Place>) {
        self.limbo.extend(places);
    }

    /// Keeps the places of a failed checkpoint until the next one has its turn.
    pub fn fail_places(&mut self, places: impl IntoIterator<Item = Place>) {
        self.failed.extend(places);
    }

    /// Frees what the checkpoint before took, if it failed (N15). Called by the task that has the
    /// turn of checkpoints. Returns the segments that have no node any more (N13).
    pub fn free_failed(&mut self) -> Vec<u32> {
        let failed = std::mem::take(&mut self.failed);
        let is_any = !failed.is_empty();
        self.free(failed);
        if is_any { self.release() } else { Vec::new() }
    }

    /// Handles a durable checkpoint that gave up these places. It frees the places that the
    /// checkpoint before gave up. Returns the segments that have no node any more (N13).
    pub fn settle(&mut self, given_up: Vec<Place>) -> Vec<u32> {
        let free = std::mem::replace(&mut self.limbo, given_up);
        self.free(free);
        let released = self.remove_empty();
        self.pack();
        self.recount();
        released
    }

    /// If the nodes would fit into two segments less, the next nodes go to the fullest segments. So
    /// the emptier ones become free over time (N13).
    fn pack(&mut self) {
        let per = u64::from(self.per_segment());
        if self.segments.len() <= 2 || self.left + (self.limbo.len() as u64) < 2 * per {
            return;
        }
        let mut gone: BTreeMap<u32, u32> = BTreeMap::new();
        self.limbo.iter().for_each(|place| *gone.entry(place.segment).or_default() += 1);
        let with_space = self.segments.iter().filter(|(_, slots)| slots.left > 0);
        let empty = |(segment, slots): (&u32, &Slots)| {
            let left = slots.left + gone.get(segment).copied().unwrap_or(0);
            (slots.has_failed, left, *segment)
        };
        let mut fullest: Vec<(bool, u32, u32)> = with_space.map(empty).collect();
        fullest.sort_unstable();
        if let [(.., first), (.., second), ..] = fullest[..] {
            self.current = [Some(first), Some(second)];
        }
    }

    /// Removes and returns the segments that have no node (N13).
    pub fn release(&mut self) -> Vec<u32> {
        let released = self.remove_empty();
        self.recount();
        released
    }

    fn remove_empty(&mut self) -> Vec<u32> {
        let per = self.per_segment();
        let empty = self.segments.iter().filter(|(_, slots)| slots.left == per);
        let empty: Vec<u32> = empty.map(|(segment, _)| *segment).collect();
        for segment in &empty {
            self.segments.remove(segment);
            self.left -= u64::from(per);
            for current in &mut self.current {
                *current = current.filter(|current| current != segment);
            }
        }
        empty
    }
}

/// A bit map of `slots` slots, all free.
fn all_free(slots: u32) -> Vec<u64> {
    let mut free = vec![u64::MAX; slots.div_ceil(64) as usize];
    if !slots.is_multiple_of(64) {
        free[(slots / 64) as usize] = (1 << (slots % 64)) - 1;
    }
    free
}

/// The volume, as its store of nodes sees it.
pub(crate) trait NodeOwner: Send + Sync {
    /// Takes two places for the copies of a node.
    fn take_node(&self) -> Result<[Place; 2]>;

    /// Returns a hold for one write of nodes: it keeps the turn of the checkpoint that writes them.
    fn hold(&self) -> Hold;

    /// Reports failed writes at these device offsets (N14).
    fn writes_failed(&self, offsets: &[u64]);
}

/// Reads and writes nodes of the volume, and allocates places for them.
pub(crate) struct VolumeStore {
    device: DeviceRef,
    layout: Layout,
    /// The volume. It is set when the volume is open.
    owner: OnceLock<Weak<dyn NodeOwner>>,
    /// Places that were taken in advance. They are given out first.
    reserved: Mutex<Vec<[Place; 2]>>,
}

/// While this exists, the places given to [`VolumeStore::reserve`] are given out first.
pub(crate) struct Reserved<'a>(&'a VolumeStore);

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        self.0.reserved.lock().clear();
    }
}

impl VolumeStore {
    /// A store on `device`, not attached to a volume yet.
    pub fn new(device: DeviceRef, layout: Layout) -> Self {
        Self { device, layout, owner: OnceLock::new(), reserved: Mutex::default() }
    }

    /// The geometry of the volume.
    pub fn geometry(&self) -> &Geometry {
        &self.layout.geometry
    }

    /// Attaches the volume, in which places are allocated from now on.
    pub fn attach(&self, owner: Weak<dyn NodeOwner>) {
        if self.owner.set(owner).is_err() {
            debug_assert!(false, "attached once");
        }
    }

    /// Gives out these places next, the last one first, until the returned guard is dropped. The
    /// task that takes them may be dropped midway. Then the rest is no longer reserved.
    pub fn reserve(&self, places: Vec<[Place; 2]>) -> Reserved<'_> {
        *self.reserved.lock() = places;
        Reserved(self)
    }

    /// Takes two places for the copies of a node.
    pub fn take(&self) -> Result<[Place; 2]> {
        if let Some(places) = self.reserved.lock().pop() {
            return Ok(places);
        }
        let closed = || Error::new(ErrorKind::Shutdown, "allocate", "the volume is not open");
        let owner = self.owner.get().and_then(Weak::upgrade).ok_or_else(closed)?;
        owner.take_node()
    }

    async fn read_node(&self, place: Place) -> Result<AlignedBuf> {
        let (layout, len) = (&self.layout, self.layout.geometry.node_bytes());
        if place.segment >= layout.segments {
            let text = format!("a node at {place:?}, behind the last segment");
            return Err(Error::new(ErrorKind::Corrupt, "read", text));
        }
        layout.geometry.check_run("tree node", place, len as u64)?;
        read_at(&self.device, layout.device_offset(place), len).await
    }

    async fn read_nodes(&self, places: &[Place]) -> Result<AlignedBuf> {
        let (layout, len) = (&self.layout, self.layout.geometry.node_bytes());
        // A read does not cross the end of the segment: no node continues there.
        let room = layout.segment_bytes().saturating_sub(u64::from(places[0].offset));
        let room = room as usize / len;
        let most = self.device.limits().max_transfer as usize / len;
        let count = places.len().min(room).min(most);
        if count < 2 || places[0].segment >= layout.segments {
            return self.read_node(places[0]).await;
        }
        layout.geometry.check_run("tree nodes", places[0], (count * len) as u64)?;
        read_at(&self.device, layout.device_offset(places[0]), count * len).await
    }

    /// Joins adjacent copies in one segment into one write. A failed write then belongs to one
    /// segment (N14).
    fn in_runs(&self, copies: &[(u64, &[u8])]) -> Vec<(u64, AlignedBuf)> {
        let (layout, len) = (&self.layout, self.layout.geometry.node_bytes());
        let most = (self.device.limits().max_transfer as usize / len).max(1);
        let left = |offset: u64| {
            let at = layout.place_at(offset).map_or(0, |at| u64::from(at.offset));
            (layout.segment_bytes() - at) as usize / len
        };
        let (mut writes, mut rest) = (Vec::new(), copies);
        while let [(offset, _), ..] = rest {
            let next_to = |(n, (at, _)): &(usize, &(u64, &[u8]))| *at == offset + (n * len) as u64;
            let most = most.min(left(*offset));
            let count = rest.iter().enumerate().take(most).take_while(next_to).count().max(1);
            let mut run = AlignedBuf::new(count * len);
            for (to, (_, from)) in run.chunks_exact_mut(len).zip(rest) {
                to.copy_from_slice(from);
            }
            writes.push((*offset, run));
            rest = &rest[count..];
        }
        writes
    }

    async fn write_nodes(&self, nodes: Vec<Arc<StoredNode>>) -> Result<()> {
        let mut copies: Vec<(u64, &[u8])> = Vec::with_capacity(2 * nodes.len());
        for node in &nodes {
            let places = node.places();
            copies.extend(places.map(|place| (self.layout.device_offset(place), node.bytes())));
        }
        copies.sort_unstable_by_key(|(offset, _)| *offset);
        let writes = self.in_runs(&copies);
        drop(nodes);
        let mut failed = Vec::new();
        let owner = self.owner.get().and_then(Weak::upgrade);
        let hold = owner.map(|owner| owner.hold()).unwrap_or_default();
        let flags = BioFlags::BACKGROUND;
        let done = write_bufs(&self.device, writes, flags, &mut failed, hold).await;
        if let Some(owner) = self.owner.get().and_then(Weak::upgrade) {
            owner.writes_failed(&failed);
        }
        done
    }
}

impl NodeStore for VolumeStore {
    fn read(&self, place: Place) -> BoxFuture<'_, Result<AlignedBuf>> {
        Box::pin(self.read_node(place))
    }

    fn read_run<'a>(&'a self, places: &'a [Place]) -> BoxFuture<'a, Result<AlignedBuf>> {
        Box::pin(self.read_nodes(places))
    }

    fn offset_of(&self, place: Place) -> Option<u64> {
        let is_there = place.segment < self.layout.segments;
        is_there.then(|| self.layout.device_offset(place))
    }

    fn allocate(&self) -> BoxFuture<'_, Result<[Place; 2]>> {
        Box::pin(std::future::ready(self.take()))
    }

    fn write(&self, nodes: Vec<Arc<StoredNode>>) -> BoxFuture<'_, Result<()>> {
        Box::pin(self.write_nodes(nodes))
    }
}

#[cfg(test)]
mod tests;
