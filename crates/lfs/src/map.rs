//! Maps blocks of files to places: changes since the last checkpoint, over the extents of the tree.

pub(crate) mod allocated;
pub(crate) mod file_map;
pub(crate) mod lookup;
pub(crate) mod lost;
pub(crate) mod overlay;
