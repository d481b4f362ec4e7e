//! How much memory a check uses, and what it returns.
//!
//! No locks, no state.

use crate::btree::cache::DEFAULT_BUDGET_BYTES;
use std::collections::BTreeMap;

/// The most findings of a kind that a report lists.
pub(super) const MAX_FINDINGS: usize = 4000;

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
    /// A path of the inode. Of a path of more than 4096 bytes the end, after `...`.
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
    /// content. Within one of these the order depends on how many passes it takes. After the first
    /// 4000 of a kind, one at the end says how many more there are.
    pub findings: Vec<Finding>,
    /// The number of tree nodes.
    pub nodes: u64,
    /// The number of inodes.
    pub inodes: u64,
    /// Bytes of content that were read and compared with their checksums.
    pub content_bytes: u64,
    /// The volume was closed: no log follows the checkpoint.
    pub was_closed: bool,
    /// How many findings of each kind were added. The list has fewer if there are too many.
    pub(super) counts: BTreeMap<FindingKind, usize>,
    /// The last finding that is not in the list.
    pub(super) spare: Option<Finding>,
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

    /// Adds a finding to the list, if there are not too many of its kind.
    pub(super) fn add(&mut self, kind: FindingKind, text: impl ToString) -> &mut Finding {
        let count = self.counts.entry(kind).or_default();
        *count += 1;
        if *count > MAX_FINDINGS {
            return self.spare.insert(new_finding(kind, text.to_string()));
        }
        self.push(kind, text)
    }

    /// Adds a finding that the list always has.
    pub(super) fn push(&mut self, kind: FindingKind, text: impl ToString) -> &mut Finding {
        self.findings.push(new_finding(kind, text.to_string()));
        self.findings.last_mut().expect("it was put there")
    }

    /// Adds the findings of another report.
    pub(super) fn append(&mut self, mut other: Self) {
        self.findings.append(&mut other.findings);
        for (kind, count) in other.counts {
            *self.counts.entry(kind).or_default() += count;
        }
    }

    /// How many findings were added.
    pub(super) fn added(&self) -> usize {
        self.counts.values().sum()
    }

    /// Says how many findings of each kind are not in the list.
    pub(super) fn end(&mut self) {
        for (kind, count) in std::mem::take(&mut self.counts) {
            let listed = self.findings.iter().filter(|finding| finding.kind == kind).count();
            if count > listed {
                self.push(kind, format!("{} more findings of this kind", count - listed));
            }
        }
    }
}

fn new_finding(kind: FindingKind, text: String) -> Finding {
    let (ino, path, offset, bytes, figures) = (None, None, None, None, None);
    Finding { kind, ino, path, offset, bytes, figures, text }
}
