//! Folios: [`table`] (states, invariants and the folio lock), [`index`] (finding one), [`guard`]
//! (reading and changing one), `fills` (bringing blocks in), `pins` (reading without a copy),
//! [`owners`] (the folios of a file), `lookup` (the operations of the cache that return guards).

mod fills;
pub mod guard;
pub mod index;
mod lookup;
pub mod owners;
mod pins;
mod pool;
pub mod table;

pub use lookup::fault_in_for_writing;
pub use owners::Label;
pub use table::{Blocks, Layout, STATES, Slot, State, Table};
