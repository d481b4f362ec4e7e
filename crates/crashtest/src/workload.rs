//! Workloads: the volume and its disk, the steps, and how both are drawn from a seed.
//!
//! Reading order: `setup`, `bounds`, `meter`, `repeats`; `furniture`, `crowding` and `ground`,
//! initial content; `base`; `script`; `short` and `replacing`, further steps; `case`, `draw`.

mod base;
mod bounds;
mod case;
mod crowding;
pub(crate) mod draw;
mod furniture;
mod ground;
mod meter;
mod repeats;
mod replacing;
mod script;
mod setup;
pub(crate) mod short;

pub use self::base::Base;
pub(crate) use self::base::all_kept;
pub use self::bounds::Usage;
pub(crate) use self::bounds::{Bounds, Operation};
pub use self::case::{Case, Kind};
pub use self::crowding::crowding;
pub(crate) use self::ground::{At, Ground};
pub(crate) use self::meter::Meter;
pub use self::replacing::replacing;
pub use self::script::Script;
pub(crate) use self::script::{Oracle, Paths, Unreadable, read_all, read_file, without_content};
pub use self::setup::Setup;
