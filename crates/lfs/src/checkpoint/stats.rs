//! Counters of the work that checkpoints do. No locks.

/// Counters of checkpoints since the volume was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CheckpointStats {
    /// Checkpoints that merged changes into the trees, without repeated slots.
    pub checkpoints: u64,
    /// Leaves of the tree of files with a change.
    pub changed_leaves: u64,
    /// Nodes of the tree of files that were written, each in two copies.
    pub written_nodes: u64,
}
