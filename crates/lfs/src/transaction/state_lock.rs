//! The state lock: the one mutex over names, map, space and the queue of records.
//!
//! A commit does not take it to say that records are durable. It leaves that here, and the next
//! holder learns it first:
//! ```text
//!   note_durable ──▶ in `durable` ──the next hold begins──▶ the map names the place in the log
//! ```
//! Invariant: S22 a hold of the lock that begins after `note_durable` has returned finds the
//! content of these records on the device. `has_durable` is set with release under the lock of
//! `durable`, and cleared under it by the holder who takes all of them. So no holder misses one.
//!
//! Tests count how often an operation takes the lock (`tests::lock_count`); other builds have no
//! counter.
//!
//! Locks: the state lock, below it that of `durable`, a leaf lock.

use crate::format::place::Place;
use crate::log::staging::Staging;
use crate::log::{Group, Payload};
use crate::transaction::state::State;
use forebay_base::sync::atomic::{AtomicBool, Ordering};
use forebay_base::sync::{Mutex, MutexGuard};
use std::ops::Range;
use std::sync::Arc;

/// Content of a durable record.
pub(crate) struct Stored {
    /// The data ids and blocks that it belongs to.
    pub blocks: Vec<(u64, Range<u64>)>,
    /// Its range in the staging area.
    pub staged: Range<u64>,
    /// Its place in the log.
    pub at: Place,
}

/// The state, and the mutex around it.
pub(crate) struct StateLock {
    state: Mutex<State>,
    /// Content of which the state does not know yet that it is durable (S22).
    durable: Mutex<Vec<Stored>>,
    /// `durable` is not empty.
    has_durable: AtomicBool,
    staging: Arc<Staging>,
    #[cfg(test)]
    acquisitions: forebay_base::sync::atomic::AtomicU64,
}

impl StateLock {
    /// `staging`: the area with the content of records that are not durable.
    pub fn new(state: State, staging: Arc<Staging>) -> Self {
        Self {
            state: Mutex::new(state),
            durable: Mutex::default(),
            has_durable: AtomicBool::new(false),
            staging,
            #[cfg(test)]
            acquisitions: forebay_base::sync::atomic::AtomicU64::new(0),
        }
    }

    /// Waits for the lock. It is held for a lookup or a change, never across a wait.
    pub fn lock(&self) -> MutexGuard<'_, State> {
        #[cfg(test)]
        self.acquisitions.fetch_add(1, Ordering::Relaxed);
        let mut state = self.state.lock();
        if self.has_durable.load(Ordering::Acquire) {
            self.tell(&mut state);
        }
        state
    }

    /// Notes that groups are durable: their content is found on the device from the next hold on
    /// (S22). The caller does not hold the lock.
    pub fn note_durable(&self, groups: Vec<Group>) {
        let stored: Vec<Stored> = groups.into_iter().flat_map(stored_in).collect();
        if stored.is_empty() {
            return;
        }
        let mut durable = self.durable.lock();
        durable.extend(stored);
        self.has_durable.store(true, Ordering::Release);
    }

    /// Tells the state what is durable.
    fn tell(&self, state: &mut State) {
        let stored = {
            let mut durable = self.durable.lock();
            self.has_durable.store(false, Ordering::Release);
            std::mem::take(&mut *durable)
        };
        for stored in stored {
            state.note_durable(&stored);
            self.staging.forget(&stored.staged);
        }
    }

    /// How often the lock was taken.
    #[cfg(test)]
    pub fn acquisitions(&self) -> u64 {
        self.acquisitions.load(Ordering::Relaxed)
    }
}

/// The content of a group's records. Of a record, the payloads are contiguous.
fn stored_in(group: Group) -> Vec<Stored> {
    let mut all = Vec::new();
    for (record, at) in group.records.into_iter().zip(group.payloads) {
        let Some(mut at) = at else { continue };
        for Payload { staged, bytes, blocks } in record.payloads {
            let next = Place::new(at.segment, at.offset + bytes.len() as u32);
            all.push(Stored { blocks, staged, at: std::mem::replace(&mut at, next) });
        }
    }
    all
}

/// A model of the lock with a few staged blocks. For tests, also with random thread interleavings
/// under `--cfg shuttle`.
#[cfg(any(test, shuttle))]
#[doc(hidden)]
pub mod model {
    use super::*;
    use crate::device::layout::Layout;
    use crate::format::place::{Geometry, Seal};
    use crate::format::record::RecordKind;
    use crate::log::{Head, Pending};
    use crate::map::overlay::{Piece, Where};
    use forebay_block::RamDevice;

    const BLOCK: u64 = 4096;
    const DATA_ID: u64 = 5;

    /// The state of a volume with staged blocks, each in a record of its own.
    pub struct Model {
        lock: StateLock,
        staged: Vec<Range<u64>>,
    }

    impl Model {
        /// A file of this number of blocks, all staged.
        pub fn new(blocks: u64) -> Self {
            let (geometry, seal) = (Geometry::with_segment_shift(20), Seal::new(&[1; 16]));
            let (nonce, data_start, align) = ([1; 16], 16384, 512);
            let mut state =
                State::new(Layout { geometry, seal, nonce, data_start, segments: 9, align });
            let staging =
                Arc::new(Staging::new(Arc::new(RamDevice::new(4096)), Default::default()));
            let staged: Vec<_> = (0..blocks).map(|_| staging.take(BLOCK)).collect();
            for (block, staged) in (0..).zip(&staged) {
                let at = Where::Staged(staged.start);
                let piece =
                    Piece { blocks: 1, birth: 1, at, sums: crate::map::overlay::Sums::None };
                state.map.put(DATA_ID, block, &piece);
            }
            Self { lock: StateLock::new(state, staging), staged }
        }

        /// The record of this block is durable.
        pub fn note_durable(&self, block: u64) {
            let staged = self.staged[block as usize].clone();
            let bytes = vec![0; BLOCK as usize].into();
            let blocks = vec![(DATA_ID, block..block + 1)];
            let record = Pending {
                ticket: block + 1,
                kind: RecordKind::Changes,
                body: Vec::new(),
                changes: 0,
                payloads: vec![Payload { staged, bytes, blocks }],
                runs: Vec::new(),
                grant: Default::default(),
                cut: None,
            };
            let head = Head {
                segment: Some(1),
                previous: None,
                offset: 0,
                sequence: 1,
                generation: 1,
                predecessor: 0,
            };
            let payloads = vec![Some(Place::new(1, (block * BLOCK) as u32))];
            let (records, opened) = (vec![record], Vec::new());
            self.lock.note_durable(vec![Group { records, payloads, head, cut: None, opened }]);
        }

        /// Whether a hold of the lock finds the block on the device, and nothing of it staged.
        pub fn is_on_device(&self, block: u64) -> bool {
            let state = self.lock.lock();
            let piece = state.map.known(DATA_ID, block).expect("it is in memory");
            piece.at == Where::Run(Place::new(1, (block * BLOCK) as u32))
                && self.lock.staging.pin_at(self.staged[block as usize].start, BLOCK).is_none()
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::model::Model;

    /// S22: the next hold of the lock finds what was reported as durable, and nothing else.
    #[test]
    fn s22_next_hold_finds_durable_content_on_the_device() {
        let model = Model::new(3);
        assert!(!model.is_on_device(0) && !model.is_on_device(1));
        model.note_durable(1);
        assert!(model.is_on_device(1) && !model.is_on_device(0));
        model.note_durable(0);
        model.note_durable(2);
        assert!((0..3).all(|block| model.is_on_device(block)));
    }
}
