//! What all layers of an open volume use: device, state, log, tree and memory.
//!
//! The upper layers own more than this; they hold it by value, so a lower layer cannot reach them.
//!
//! Locks: see the crate.

use crate::btree::Tree;
use crate::device::layout::Layout;
use crate::fault::Plant;
use crate::log::Log;
use crate::log::staging::Staging;
use crate::space::alloc::Allocator;
use crate::space::nodes::VolumeStore;
use crate::transaction::memory::{Held, Memory};
use crate::transaction::options::OpenOptions;
use crate::transaction::state::State;
use forebay_base::sync::{Arc, Mutex};
use forebay_base::world::WorldRef;
use forebay_block::DeviceRef;

/// See the module.
pub(crate) struct Resources {
    pub device: DeviceRef,
    pub world: WorldRef,
    pub options: OpenOptions,
    pub layout: Layout,
    pub state: Mutex<State>,
    pub log: Arc<Log>,
    pub alloc: Allocator,
    pub staging: std::sync::Arc<Staging>,
    pub memory: Memory,
    pub plant: Plant,
    pub tree: Tree,
    pub store: std::sync::Arc<VolumeStore>,
}

impl Resources {
    /// Notes the memory in use; called without the state lock.
    pub fn note_memory(&self, held: Held) {
        self.memory.note(&self.tree, held);
    }

    /// Notes the memory in use after nodes of the tree were read; called without the state lock.
    pub fn note_nodes(&self) {
        if self.memory.is_outdated(&self.tree) {
            let held = self.state.lock().held();
            self.note_memory(held);
        }
    }

    /// Writes failed at these offsets on the device: later data goes to other segments if it can
    /// (W18, R24).
    pub fn writes_failed(&self, offsets: &[u64]) {
        for at in offsets.iter().filter_map(|at| self.layout.place_at(*at)) {
            let mut state = self.state.lock();
            let State { room, space, .. } = &mut *state;
            if space.fail(at.segment) {
                log::warn!("a write to segment {} failed: others are taken first", at.segment);
                room.fail(space, at.segment);
            }
        }
    }
}
