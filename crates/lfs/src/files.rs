//! Files that are open or were closed recently: the mapping that iomap uses, and their content.

pub(crate) mod content;
pub(crate) mod lookup;
pub(crate) mod map_ops;
pub(crate) mod open_files;
pub(crate) mod parts;
pub(crate) mod places;
pub(crate) mod read_ahead;
mod read_around;
pub(crate) mod reserve;
mod sync;
