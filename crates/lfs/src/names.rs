//! Inodes, directories and attributes: their copies in memory, and how missing ones are loaded.

pub(crate) mod closed;
pub(crate) mod content;
pub(crate) mod directory;
pub(crate) mod evict;
pub(crate) mod inode;
pub(crate) mod inode_table;
pub(crate) mod items;
pub(crate) mod load;
pub(crate) mod lookup;
pub(crate) mod name_cache;
pub(crate) mod node;
pub(crate) mod open_times;
pub(crate) mod scan_cache;
pub(crate) mod times_wanted;
