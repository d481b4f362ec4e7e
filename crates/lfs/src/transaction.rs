//! The state of a volume and its changes. While the state lock is held once, a change is recorded,
//! queued for the log, and applied to names, map and space. This module also contains operations on
//! several of these parts: admission of content, lookups that report what is missing in memory, and
//! eviction.
//!
//! No locks: the volume's state lock covers it.

mod admission;
mod age;
mod allocated;
pub(crate) mod append;
mod attributes;
mod block_lookup;
mod capacity;
pub(crate) mod cleaning;
mod commit;
mod evict;
pub(crate) mod file_states;
pub(crate) mod flag;
mod inode;
pub(crate) mod items;
pub(crate) mod lifecycle;
mod load;
mod lookup;
pub(crate) mod memory;
mod namei;
mod openers;
pub(crate) mod options;
pub(crate) mod outstanding;
mod places;
mod queue;
pub(crate) mod relief;
pub(crate) mod requests;
pub(crate) mod resources;
mod segments;
pub(crate) mod state;
pub(crate) mod state_lock;
pub(crate) mod sync_errors;
pub(crate) mod tree_state;
mod windows;
