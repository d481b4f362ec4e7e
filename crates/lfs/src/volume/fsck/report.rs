//! How much memory a check uses, and what it returns.
//!
//! No locks, no state.

use crate::btree::cache::DEFAULT_BUDGET_BYTES;

/// How much memory a check uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FsckOptions {
    /// The memory for tables, bytes. With less memory, a check of a large or damaged volume takes
    /// more passes. One segment and one inode at a time always fit.
    pub table_bytes: usize,
    /// The memory for clean tree nodes, bytes.
    pub node_cache_bytes: usize,
}

impl Default for FsckOptions {
    fn default() -> Self {
        Self { table_bytes: 64 << 20, node_cache_bytes: DEFAULT_BUDGET_BYTES }
    }
}

impl FsckOptions {
    /// Bytes of the bit maps of segments.
    pub(super) fn map_bytes(&self) -> usize {
        self.table_bytes / 4 * 3
    }

    /// Buckets of a comparison.
    pub(super) fn tally_buckets(&self) -> usize {
        (self.table_bytes / 256).clamp(16, 32 << 10)
    }

    /// Keys of a table of inodes or data ids. There are two of them at most, and a key takes up to
    /// 96 bytes.
    pub(super) fn window_keys(&self) -> usize {
        self.table_bytes / 3 / 96
    }
}

/// The subject of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum FindingKind {
    /// A superblock slot cannot be read. Another slot has the same content.
    Slot,
    /// One copy of a tree node is bad. The other copy is good.
    Copy,
    /// A tree node holds less than the minimum. Nothing is missing.
    Underfull,
    /// A part of a tree cannot be read, or has wrong content.
    Tree,
    /// The stored bytes in the usage table or in an inode differ from those of the extents.
    Usage,
    /// A name, a link count, a parent or an orphan is wrong.
    Name,
    /// Content of a file does not match its checksum, or cannot be read.
    Content,
    /// The log is damaged before the end of its durable part.
    Log,
}

impl FindingKind {
    /// Whether nothing is lost.
    pub fn is_harmless(self) -> bool {
        matches!(self, Self::Slot | Self::Copy | Self::Underfull)
    }
}

/// A defect of the volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The subject of the finding.
    pub kind: FindingKind,
    /// The inode, if the finding is about one.
    pub ino: Option<u64>,
    /// A path of the inode.
    pub path: Option<Vec<u8>>,
    /// The first byte in the file. If no file is affected, the first byte on the device.
    pub offset: Option<u64>,
    /// The number of bytes from `offset` on.
    pub bytes: Option<u64>,
    /// Two figures that should be equal: the recorded one, and the counted one.
    pub figures: Option<(u64, u64)>,
    /// The finding in words.
    pub text: String,
}

/// The progress of a check.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FsckProgress {
    /// Bytes of content that were checked.
    pub done_bytes: u64,
    /// Bytes of content according to the inodes of the last checkpoint. It does not include content
    /// from the log.
    pub total_bytes: u64,
}

/// The result of a check.
#[derive(Debug, Clone, Default)]
pub struct FsckReport {
    /// The findings, in the order of the checks: slots, log, trees, usage, stored bytes, names,
    /// content. Within one of these the order depends on how many passes it takes.
    pub findings: Vec<Finding>,
    /// The number of tree nodes.
    pub nodes: u64,
    /// The number of inodes.
    pub inodes: u64,
    /// Bytes of content that were read and compared with their checksums.
    pub content_bytes: u64,
    /// The volume was closed: no log follows the checkpoint.
    pub was_closed: bool,
}

impl FsckReport {
    /// Whether there are no findings.
    pub fn is_clean(&self) -> bool {
        self.findings.is_empty()
    }

    /// Whether nothing is lost: there are only harmless findings.
    pub fn is_complete(&self) -> bool {
        self.findings.iter().all(|finding| finding.kind.is_harmless())
    }

    pub(super) fn add(&mut self, kind: FindingKind, text: impl ToString) -> &mut Finding {
        let (ino, path, offset, bytes, text) = (None, None, None, None, text.to_string());
        self.findings.push(Finding { kind, ino, path, offset, bytes, figures: None, text });
        self.findings.last_mut().expect("it was put there")
    }
}
