//! Checks entries, link counts, parents and orphans, and that the directories form one tree.
//!
//! Invariants: E22 of each loop of directories one is reported. E23 nothing is reported if the
//! names could not be read completely.
//!
//! The entries that name an inode lie anywhere in the tree. One pass compares in a [`Tally`] what
//! inodes say about their entries with the entries. Only if they differ, more passes find out
//! where: one over the entries, and one for each window of inodes.
//!
//! Locks: the state lock, taken briefly. No lock is held across a wait.

use super::report::{FindingKind, FsckOptions, FsckReport, MAX_FINDINGS};
use super::scan::{Name, Scan, inode_of};
use super::stored;
use super::tally::Tally;
use super::window::Window;
use crate::format::inode::{FileType, Inode, ROOT_INO};
use crate::format::item::Item;
use crate::format::key::Key;
use crate::format::superblock::TreeRoot;
use crate::volume::Inner;
use forebay_base::Result;
use forebay_base::world::split_mix;
use std::collections::{BTreeMap, BTreeSet};

/// What a pass over all names has found.
#[derive(Default)]
pub(super) struct Totals {
    pub inodes: u64,
    /// The sum of the stored bytes in all inodes. In a damaged volume they may have any value.
    pub stored_bytes: u64,
}

/// Checks all names. `checkpoint`: the tree whose extents the stored bytes of changed inodes are
/// compared with (stored.E15). Findings are added to `report` unless there is an error.
pub(super) async fn check_names(
    volume: &Inner,
    checkpoint: Option<&TreeRoot>,
    options: &FsckOptions,
    report: &mut FsckReport,
) -> Result<Totals> {
    let seed = volume.world.random();
    let (mut totals, mut links) = (Totals::default(), Links::new(options, seed));
    let (mut loops, mut found) = (Loops::new(options, seed), FsckReport::default());
    let (mut scan, mut orphans) = (Scan::all(volume), 0);
    while let Some(item) = scan.next().await? {
        match item {
            Name::Entry { dir, child, kind, .. } => links.entry(dir, child, kind),
            Name::Inode(ino, inode) => {
                totals.inodes += 1;
                totals.stored_bytes = totals.stored_bytes.saturating_add(inode.stored_bytes);
                let is_orphan = volume.state.lock().names().orphans().contains(&ino);
                orphans += usize::from(is_orphan);
                links.inode(ino, &inode, is_orphan);
                if let Some(root) = checkpoint {
                    check_changed(volume, root, (ino, &inode), &mut found).await?;
                }
                loops.check(volume, ino, &inode, &mut found).await?;
            }
        }
    }
    links.end();
    if orphans != volume.state.lock().names().orphans().len() {
        check_orphans(volume, &mut found).await?;
    }
    if !links.tally.is_balanced() {
        check_entries(volume, &mut links.tally, &mut found).await?;
        check_links(volume, &links.tally, options, &mut found).await?;
    }
    report.append(found);
    Ok(totals)
}

/// Compares the stored bytes of an inode that the log has changed with its extents.
async fn check_changed(
    volume: &Inner,
    root: &TreeRoot,
    (ino, inode): (u64, &Inode),
    report: &mut FsckReport,
) -> Result<()> {
    if volume.state.lock().changed(Key::Inode(ino)).is_none() {
        return Ok(());
    }
    let before = volume.tree.get(root, Key::Inode(ino)).await?;
    if let Some(before) = before
        && let (_, Item::Inode(before)) = before.decode(&volume.layout.geometry)?
        && (before.data_id, before.stored_bytes) == (inode.data_id, inode.stored_bytes)
    {
        return Ok(());
    }
    stored::check_inode((&volume.tree, root), ino, inode, report).await
}

async fn check_orphans(volume: &Inner, report: &mut FsckReport) -> Result<()> {
    let mut from = 0;
    loop {
        let next = volume.state.lock().names().orphans().range(from..).next().copied();
        let Some(ino) = next else { return Ok(()) };
        if inode_of(volume, ino).await?.is_none() {
            report.add(FindingKind::Name, "an orphan that is not there").ino = Some(ino);
        }
        from = ino + 1;
    }
}

/// Compares inodes with the entries that name them.
struct Links {
    tally: Tally,
    /// The last inode, whether it is an orphan, and the directories in it so far.
    last: Option<(u64, Inode, bool, u32)>,
}

impl Links {
    fn new(options: &FsckOptions, seed: u64) -> Self {
        Self { tally: Tally::new(options.tally_buckets(), seed), last: None }
    }

    fn inode(&mut self, ino: u64, inode: &Inode, is_orphan: bool) {
        self.end();
        self.last = Some((ino, *inode, is_orphan, 0));
    }

    fn entry(&mut self, dir: u64, child: u64, kind: FileType) {
        match &mut self.last {
            Some((ino, _, _, dirs)) if *ino == dir => {
                *dirs += u32::from(kind == FileType::Directory);
            }
            // The directory is not there.
            _ => self.tally.suspect(child),
        }
        self.tally.subtract(child, figures(kind, dir));
    }

    /// Adds what the last inode says about its entries: their number, their type, and for a
    /// directory, where they lie.
    fn end(&mut self) {
        let Some((ino, inode, is_orphan, dirs)) = self.last.take() else { return };
        let entries = match inode.file_type() {
            Some(FileType::Directory) if inode.nlink == 0 && ino != ROOT_INO => Some(0),
            Some(FileType::Directory) if inode.nlink == dirs.saturating_add(2) => {
                Some(u64::from(ino != ROOT_INO))
            }
            Some(FileType::Directory) | None => None,
            Some(_) => Some(u64::from(inode.nlink)),
        };
        match (inode.file_type(), entries) {
            (Some(kind), Some(entries)) if is_orphan == (entries == 0 && ino != ROOT_INO) => {
                self.tally.add(ino, figures(kind, inode.parent), entries);
            }
            _ => self.tally.suspect(ino),
        }
    }
}

/// What an entry and its inode must agree on.
fn figures(kind: FileType, parent: u64) -> [u64; 2] {
    [kind as u64, if kind == FileType::Directory { parent } else { 0 }]
}

/// Checks the entries of suspects. A directory that has an entry of a directory that is not there
/// becomes a suspect.
async fn check_entries(volume: &Inner, tally: &mut Tally, report: &mut FsckReport) -> Result<()> {
    let (mut scan, mut last) = (Scan::all(volume), 0);
    while let Some(item) = scan.next().await? {
        let (dir, name, child, kind) = match item {
            Name::Entry { dir, name, child, kind } => (dir, name, child, kind),
            Name::Inode(ino, _) => {
                last = ino;
                continue;
            }
        };
        if !tally.is_suspect(child) {
            continue;
        }
        let shown = name.escape_ascii();
        let mut add = |ino: u64, text: String| report.add(FindingKind::Name, text).ino = Some(ino);
        let Some(inode) = inode_of(volume, child).await? else {
            add(dir, format!("`{shown}` names inode {child}, which is not there"));
            if kind == FileType::Directory && !tally.is_suspect(dir) {
                tally.suspect(dir);
            }
            continue;
        };
        if dir != last {
            add(child, format!("`{shown}` lies in inode {dir}, which is not there"));
        }
        if inode.file_type() != Some(kind) {
            add(child, format!("`{shown}` says it is a {kind:?}"));
        }
        if kind == FileType::Directory && inode.parent != dir {
            add(child, format!("its parent is {}, and it lies in {dir}", inode.parent));
        }
    }
    Ok(())
}

/// The entries that name an inode, and the directories in it.
#[derive(Default)]
struct Linked {
    inode: Option<(Option<FileType>, u32)>,
    entries: u32,
    dirs: u32,
}

/// Checks the link counts of suspects.
async fn check_links(
    volume: &Inner,
    tally: &Tally,
    options: &FsckOptions,
    report: &mut FsckReport,
) -> Result<()> {
    let mut next = Some(Window::new(0, options.window_keys()));
    while let Some(mut window) = next {
        let mut scan = Scan::all(volume);
        while let Some(item) = scan.next().await? {
            match item {
                Name::Inode(ino, inode) if tally.is_suspect(ino) => {
                    if let Some(this) = window.get(ino, Linked::default) {
                        this.inode = Some((inode.file_type(), inode.nlink));
                    }
                }
                Name::Inode(..) => {}
                Name::Entry { dir, child, kind, .. } => {
                    let is_suspect = tally.is_suspect(child);
                    if is_suspect && let Some(this) = window.get(child, Linked::default) {
                        this.entries += 1;
                    }
                    let is_counted =
                        kind == FileType::Directory && tally.is_suspect(dir) && window.covers(dir);
                    if is_counted
                        && (!is_suspect || inode_of(volume, child).await?.is_some())
                        && let Some(this) = window.get(dir, Linked::default)
                    {
                        this.dirs += 1;
                    }
                }
            }
        }
        for (ino, this) in window.iter() {
            let is_orphan = volume.state.lock().names().orphans().contains(ino);
            for text in wrong_links(*ino, this, is_orphan) {
                report.add(FindingKind::Name, text).ino = Some(*ino);
            }
        }
        next = window.into_next();
    }
    Ok(())
}

/// What is wrong with the links of an inode.
fn wrong_links(ino: u64, this: &Linked, is_orphan: bool) -> Vec<String> {
    let Some((kind, nlink)) = this.inode else { return Vec::new() };
    let (mut wrong, entries) = (Vec::new(), this.entries);
    let wanted = match kind == Some(FileType::Directory) {
        true if entries > 0 || ino == ROOT_INO => 2 + this.dirs,
        true => 0,
        false => entries,
    };
    if nlink != wanted {
        wrong.push(format!("{nlink} links, there are {wanted}"));
    }
    if is_orphan != (entries == 0 && ino != ROOT_INO) {
        let text = if is_orphan { "an orphan with a name" } else { "no name, and no orphan" };
        wrong.push(text.into());
    }
    wrong
}

/// Finds loops of directories. In a loop some directory has a parent with a higher number, or is
/// its own parent. A path of parents begins at each such directory, and ends at a lower number: no
/// loop with a lower number is new, because the lowest directory of a loop begins a path, too.
///
/// A path also ends at a mark of an earlier path. Directories are marked by their hash: all at
/// first, and only each second, fourth and so on of those when the marks do not fit. So a path that
/// has met an earlier one ends after about that many steps more, whatever the order of the paths.
pub(super) struct Loops {
    /// The directories of all paths whose hash has no bit of `mask`, and the first one of the path.
    marks: BTreeMap<u64, u64>,
    marks_max: usize,
    mask: u64,
    /// A random number, so that no image has a choice of hashes.
    seed: u64,
    /// The lowest directory of each loop; as many as a report lists.
    found: BTreeSet<u64>,
    /// How many parents were looked up.
    pub lookups: u64,
}

impl Loops {
    pub fn new(options: &FsckOptions, seed: u64) -> Self {
        let (marks, found) = (BTreeMap::new(), BTreeSet::new());
        let marks_max = options.window_keys().max(1);
        Self { marks, marks_max, mask: 0, seed, found, lookups: 0 }
    }

    pub async fn check(
        &mut self,
        volume: &Inner,
        ino: u64,
        inode: &Inode,
        report: &mut FsckReport,
    ) -> Result<()> {
        let is_directory = inode.file_type() == Some(FileType::Directory);
        if !is_directory || ino == ROOT_INO || inode.parent < ino {
            return Ok(());
        }
        if let Some(lowest) = self.find(volume, ino, inode.parent).await?
            && !self.found.contains(&lowest)
        {
            if self.found.len() < MAX_FINDINGS {
                self.found.insert(lowest);
            }
            let text = "a loop of directories: its parents do not lead to the root";
            report.add(FindingKind::Name, text).ino = Some(lowest);
        }
        Ok(())
    }

    /// The lowest directory of the loop to which the parents of a directory lead.
    async fn find(&mut self, volume: &Inner, first: u64, parent: u64) -> Result<Option<u64>> {
        // Brent's algorithm: a loop comes back to the directory after each power of two of steps.
        let (mut at, mut mark, mut steps, mut power) = (parent, first, 1u64, 1u64);
        while at != mark {
            if at < first || self.marks.get(&at).is_some_and(|other| *other != first) {
                return Ok(None);
            }
            self.add_mark(at, first);
            if steps == power {
                (mark, steps, power) = (at, 0, power.saturating_mul(2));
            }
            let Some(above) = self.parent_of(volume, at).await? else { return Ok(None) };
            (at, steps) = (above, steps + 1);
        }
        let mut lowest = at;
        while let Some(above) = self.parent_of(volume, at).await? {
            lowest = lowest.min(above);
            if above == mark {
                return Ok(Some(lowest));
            }
            at = above;
        }
        Ok(None)
    }

    fn add_mark(&mut self, at: u64, first: u64) {
        let seed = self.seed;
        let has_mark = |at: u64, mask: u64| split_mix(&mut { at ^ seed }) & mask == 0;
        if has_mark(at, self.mask) {
            self.marks.insert(at, first);
        }
        // The hashes differ, so this ends.
        while self.marks.len() > self.marks_max {
            self.mask = self.mask << 1 | 1;
            let mask = self.mask;
            self.marks.retain(|at, _| has_mark(*at, mask));
        }
    }

    async fn parent_of(&mut self, volume: &Inner, ino: u64) -> Result<Option<u64>> {
        self.lookups += 1;
        parent_of(volume, ino).await
    }
}

/// The parent of a directory. `None`: it is no directory, or is not there.
async fn parent_of(volume: &Inner, ino: u64) -> Result<Option<u64>> {
    let inode = inode_of(volume, ino).await?;
    let inode = inode.filter(|inode| inode.file_type() == Some(FileType::Directory));
    Ok(inode.map(|inode| inode.parent))
}
