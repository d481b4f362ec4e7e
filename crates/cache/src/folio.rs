//! Folios: [`read`](mod@read) (without the lock), [`guard`] (under it), `fills` (bringing blocks
//! in), `pins` and [`pinned`] (reading without a copy), [`batch`] and `pool` (frames on their way),
//! `lookup` (the operations of the cache that return guards). Their states are in
//! [`crate::table`].

pub mod batch;
mod fills;
pub mod guard;
mod lookup;
pub mod pinned;
mod pins;
mod pool;
pub mod read;

pub use crate::table::owners::Label;
pub use crate::table::{Blocks, Layout, STATES, Slot, State, Table};
pub use lookup::fault_in_for_writing;
