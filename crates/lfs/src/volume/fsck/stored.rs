//! What inodes say is stored of them, against the extents of the tree; and extents that are nobody's.
//!
//! Invariants: E14 of a tree that could not be read whole nothing is said. E15 a checkpoint says of each
//! inode exactly what the extents below it store; the log changes that only for data that is new.
//!
//! No locks.

use super::{FindingKind, FsckReport, Names, Tree, path_of};
use crate::format::inode::Inode;
use std::collections::{BTreeMap, BTreeSet};

/// What the tree of a checkpoint says of content.
#[derive(Default)]
pub(super) struct Stored {
    /// Data of an inode, and the bytes that it says.
    said: BTreeMap<u64, (u64, u64)>,
    /// Bytes of extents, by data.
    found: BTreeMap<u64, u64>,
    /// All of the tree was read.
    pub is_complete: bool,
}

impl Stored {
    /// An inode of the tree.
    pub fn inode(&mut self, ino: u64, inode: &Inode) {
        self.said.insert(ino, (inode.data_id, inode.stored_bytes));
    }

    /// An extent of the tree.
    pub fn extent(&mut self, data_id: u64, bytes: u64) {
        *self.found.entry(data_id).or_default() += bytes;
    }

    /// Tells what does not go together (E14, E15), of the checkpoint and of what recovery makes of it.
    pub fn check(&self, (tree, names): (&Tree, &Names), report: &mut FsckReport) {
        if !self.is_complete {
            return;
        }
        let now = tree.inodes.iter().map(|(ino, i)| (*ino, (i.data_id, i.stored_bytes)));
        let newer = now.filter(|(ino, says)| self.said.get(ino) != Some(says));
        let stored = self.said.iter().map(|(ino, says)| (*ino, *says));
        for (ino, (data_id, said)) in stored.chain(newer) {
            let found = match data_id {
                0 => 0,
                data_id => self.found.get(&data_id).copied().unwrap_or(0),
            };
            if said != found {
                let text = format!(
                    "inode {ino} says that {said} bytes of it are stored, its extents have {found}"
                );
                let finding = report.add(FindingKind::Usage, text);
                (finding.ino, finding.path) = (Some(ino), path_of(names, ino));
                finding.figures = Some((said, found));
            }
        }
        let owned: BTreeSet<u64> = self.said.values().map(|(data_id, _)| *data_id).collect();
        for (data_id, bytes) in self.found.iter().filter(|(data_id, _)| !owned.contains(data_id)) {
            let text = format!("data {data_id} has extents of {bytes} bytes, and no inode has it");
            report.add(FindingKind::Tree, text).figures = Some((0, *bytes));
        }
    }
}
