//! The commands for volumes. `at` finds what `VOLUME:/PATH` names, here or in the process that has
//! the volume open; `side` is what a copy needs of either side, the host or a volume.

pub mod args;
pub mod at;
pub mod compare;
pub mod copy;
pub mod cp;
pub mod create;
pub mod extents;
pub mod fsck;
pub mod grow;
pub mod host;
pub mod inside;
pub mod ls;
pub mod map;
pub mod recover;
pub mod report;
pub mod side;
pub mod stat;
