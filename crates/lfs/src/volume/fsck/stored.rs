//! Compares the stored bytes in inodes with the extents of the tree, and finds extents without an
//! inode.
//!
//! Invariants: E14 nothing is reported for a tree that could not be read completely. E15 in a
//! checkpoint the stored bytes of each inode are exactly those of its extents. Records of the log
//! change the stored bytes of an inode only together with its data id. No two inodes have one data
//! id.
//!
//! Inodes and extents lie in the tree in different orders, by inode and by data id. One pass
//! compares both sides in a [`Tally`]. Only if they differ, more passes find out where.
//!
//! No locks.

use super::report::{Finding, FindingKind, FsckOptions, FsckReport};
use super::tally::Tally;
use super::window::Window;
use crate::btree::{Cursor, Seen, Tree};
use crate::format::extent::{Extent, Source};
use crate::format::inode::Inode;
use crate::format::item::Item;
use crate::format::key::Key;
use crate::format::superblock::TreeRoot;
use forebay_base::Result;

/// What the tree of a checkpoint says about the bytes of each data id.
pub(super) struct Stored {
    tally: Tally,
    /// The data id of the last extents, and the sum of their bytes.
    last: (u64, u64),
}

impl Stored {
    pub fn new(options: &FsckOptions, seed: u64) -> Self {
        Self { tally: Tally::new(options.tally_buckets(), seed), last: (0, 0) }
    }

    /// Notes what a pass over the tree sees.
    pub fn see(&mut self, seen: &Seen<'_>) {
        match seen {
            // Without stored bytes there are no extents.
            Seen::Item(Key::Inode(_), Item::Inode(inode)) if inode.stored_bytes != 0 => {
                self.tally.add(inode.data_id, [inode.stored_bytes, 0], 1);
            }
            Seen::Item(Key::Extent(data_id, _), Item::Extent(extent)) => {
                if *data_id != self.last.0 {
                    self.finish();
                    self.last.0 = *data_id;
                }
                self.last.1 += bytes_of(extent);
            }
            _ => {}
        }
    }

    /// Ends the pass.
    pub fn finish(&mut self) {
        let (data_id, bytes) = std::mem::take(&mut self.last);
        if bytes != 0 {
            self.tally.subtract(data_id, [bytes, 0]);
        }
    }

    /// Reports the inodes and the data ids that differ.
    pub async fn report(
        &self,
        (tree, root): (&Tree, &TreeRoot),
        options: &FsckOptions,
        report: &mut FsckReport,
    ) -> Result<()> {
        if self.tally.is_balanced() {
            return Ok(());
        }
        let (mut next, mut is_first) = (Some(Window::new(0, options.window_keys())), true);
        let before = report.added();
        while let Some(mut window) = next {
            let mut cursor = Cursor::new(Key::Inode(0), Some(Key::Dead(0, 0)));
            while let Some(found) = cursor.next(tree, root).await? {
                match found.decode(tree.geometry())? {
                    (Key::Inode(ino), Item::Inode(inode)) => {
                        if !self.tally.is_suspect(inode.data_id) {
                            continue;
                        }
                        if is_first {
                            check_inode((tree, root), ino, &inode, report).await?;
                        }
                        window.get(inode.data_id, Extents::default).into_iter().for_each(|this| {
                            this.has_inode = true;
                            // An inode without extents is in no tally.
                            if inode.stored_bytes != 0 && inode.data_id != 0 {
                                this.first = this.first.or(Some(ino));
                                this.inodes += 1;
                            }
                        });
                    }
                    (Key::Extent(data_id, _), Item::Extent(extent))
                        if self.tally.is_suspect(data_id) =>
                    {
                        window.get(data_id, Extents::default).into_iter().for_each(|this| {
                            this.bytes += bytes_of(&extent);
                        });
                    }
                    _ => {}
                }
            }
            for (data_id, this) in window.iter().filter(|(_, this)| !this.has_inode) {
                let bytes = this.bytes;
                let text =
                    format!("data {data_id} has extents of {bytes} bytes, and no inode has it");
                report.add(FindingKind::Tree, text).figures = Some((0, bytes));
            }
            for (data_id, this) in window.iter().filter(|(_, this)| this.inodes > 1) {
                let text = format!("{} inodes have data {data_id}", this.inodes);
                let finding = report.add(FindingKind::Tree, text);
                (finding.ino, finding.figures) = (this.first, Some((1, this.inodes)));
            }
            (next, is_first) = (window.into_next(), false);
        }
        if report.added() == before {
            let text = "inodes and extents differ in stored bytes; which ones is not known";
            report.add(FindingKind::Tree, text);
        }
        Ok(())
    }
}

/// The extents of a data id.
#[derive(Default)]
struct Extents {
    bytes: u64,
    has_inode: bool,
    /// The inodes that say that they have such extents: their number, and the first one.
    inodes: u64,
    first: Option<u64>,
}

fn bytes_of(extent: &Extent<'_>) -> u64 {
    match extent.source {
        Source::Run(_) => u64::from(extent.stored_bytes),
        Source::Inline(_) => 0,
    }
}

/// Compares an inode with its extents in a checkpoint.
pub(super) async fn check_inode(
    (tree, root): (&Tree, &TreeRoot),
    ino: u64,
    inode: &Inode,
    report: &mut FsckReport,
) -> Result<()> {
    let (said, data_id, mut found) = (inode.stored_bytes, inode.data_id, 0);
    let mut extents = Cursor::new(Key::Extent(data_id, 0), Some(Key::Extent(data_id + 1, 0)));
    while let Some(item) = extents.next(tree, root).await? {
        if let (_, Item::Extent(extent)) = item.decode(tree.geometry())? {
            found += bytes_of(&extent);
        }
    }
    if said != found {
        let text = format!(
            "inode {ino} says that {said} bytes of it are stored, its extents have {found}"
        );
        let finding: &mut Finding = report.add(FindingKind::Usage, text);
        (finding.ino, finding.figures) = (Some(ino), Some((said, found)));
    }
    Ok(())
}
