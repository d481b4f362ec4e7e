//! The resources that all layers of an open volume share: device, state, log, tree and memory.
//!
//! The upper layers have resources of their own, and refer to these. So a lower layer cannot reach
//! those of an upper one.
//!
//! Locks: see the documentation of the crate.

use crate::btree::Tree;
use crate::device::layout::Layout;
use crate::fault::Plant;
use crate::log::Log;
use crate::log::commit::DataRepair;
use crate::log::queue::Tickets;
use crate::log::staging::Staging;
use crate::names::counters::Sequence;
use crate::space::alloc::Allocator;
use crate::space::nodes::VolumeStore;
use crate::transaction::cleaning::Cleaning;
use crate::transaction::flag::Flag;
use crate::transaction::memory::{Held, Memory};
use crate::transaction::options::OpenOptions;
use crate::transaction::requests::Requests;
use crate::transaction::state_lock::StateLock;
use forebay_base::Result;
use forebay_base::sync::Arc;
use forebay_base::sync::atomic::{AtomicBool, Ordering};
use forebay_base::task::WaitQueue;
use forebay_base::world::WorldRef;
use forebay_block::DeviceRef;
use std::sync::Weak;

/// The resources that all layers from `transaction` on share.
pub(crate) struct Resources {
    pub device: DeviceRef,
    pub world: WorldRef,
    pub options: OpenOptions,
    pub layout: Layout,
    pub state: StateLock,
    /// The volume-wide sequence of content; drawn without the state lock.
    pub sequence: Sequence,
    /// The last ticket; read without the state lock.
    pub tickets: Tickets,
    /// Some content of closed files is outstanding.
    pub has_outstanding: Flag,
    /// Some inode cannot be synced.
    pub has_sync_errors: Flag,
    pub log: Arc<Log>,
    /// The repair that writes data again after a failure.
    pub repair: Box<dyn DataRepair>,
    pub alloc: Allocator,
    pub staging: std::sync::Arc<Staging>,
    pub memory: Memory,
    pub plant: Plant,
    pub tree: Tree,
    pub store: std::sync::Arc<VolumeStore>,
    pub requests: std::sync::Arc<Requests>,
    pub cleaning: Cleaning,
    /// A timer for the oldest change is running.
    pub is_ageing: AtomicBool,
    /// The volume turned read-only. The state contains the reason.
    pub is_stopped: AtomicBool,
    /// Woken when a reservation ends for which a checkpoint waits (checkpoint.H14).
    pub reservation_ended: WaitQueue,
    pub me: Weak<Resources>,
}

impl Resources {
    /// Updates the claim on memory. The caller does not hold the state lock.
    pub fn note_memory(&self, held: Held) {
        self.memory.note(&self.tree, held);
    }

    /// Updates the claim on memory after tree nodes were read. The caller does not hold the state
    /// lock.
    pub fn note_nodes(&self) {
        if self.memory.is_outdated(&self.tree) {
            let held = self.state.lock().held();
            self.note_memory(held);
        }
    }

    /// `Lifecycle::check_writable` for a volume that turned read-only. On other volumes it takes no
    /// lock, because each write calls it.
    pub fn check_running(&self, op: &'static str) -> Result<()> {
        match self.is_stopped.load(Ordering::Acquire) {
            true => self.state.lock().life.check_writable(op),
            false => Ok(()),
        }
    }

    /// Notes failed writes at these device offsets. Later data goes to other segments if possible
    /// (segment.W18, runs.R24).
    pub fn writes_failed(&self, offsets: &[u64]) {
        for at in offsets.iter().filter_map(|at| self.layout.place_at(*at)) {
            if self.state.lock().note_write_failed(at.segment) {
                log::warn!("a write to segment {} failed: others are taken first", at.segment);
            }
        }
    }
}
