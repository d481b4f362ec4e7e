//! Checks a whole volume: slots, both copies of every node, the usage table against the extents,
//! names and links, every checksum of content, and the log. It writes nothing.
//!
//! Invariants: E11 each finding names its subject, with file and offset where there are any, and
//! the check continues after it. E12 fsck writes nothing. E13 what a power loss may leave behind is
//! no finding, except a torn slot.
//!
//! It holds all names in memory, and about 40 bytes for each extent and inode.
//!
//! Locks: the state lock, taken briefly. No lock is held across a wait.

mod stored;

use self::stored::Stored;
use crate::btree::{Problem, Seen};
use crate::checkpoint::root_of;
use crate::device::layout::Layout;
use crate::device::slots::read_at;
use crate::format::extent::Source;
use crate::format::inode::{FileType, Inode, ROOT_INO};
use crate::format::item::Item;
use crate::format::key::Key;
use crate::format::place::Place;
use crate::format::superblock::{FILES_TREE, SLOT_BYTES, Superblock, USAGE_TREE, slot_offsets};
use crate::map::overlay::{Piece, Where};
use crate::recover::open::usage_entries;
use crate::volume::{OpenOptions, Volume};
use forebay_base::checksum::crc32c;
use forebay_base::world::WorldRef;
use forebay_base::{Error, ErrorKind, Result};
use forebay_block::DeviceRef;
use std::collections::{BTreeMap, BTreeSet};

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
    /// The findings in the order in which they were found.
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

    fn add(&mut self, kind: FindingKind, text: impl ToString) -> &mut Finding {
        let (ino, path, offset, bytes, text) = (None, None, None, None, text.to_string());
        self.findings.push(Finding { kind, ino, path, offset, bytes, figures: None, text });
        self.findings.last_mut().expect("it was put there")
    }
}

/// A name for each inode: the directory and name that were found first.
type Names = BTreeMap<u64, (u64, Box<[u8]>)>;

/// Checks the volume on a device on which no program has it open for writing. An error means that
/// there is no volume, or one of a kind that cannot be read.
pub async fn fsck(
    device: &DeviceRef,
    world: &WorldRef,
    progress: &mut (dyn FnMut(FsckProgress) + Send),
) -> Result<FsckReport> {
    let mut report = FsckReport::default();
    let superblock = check_slots(device, &mut report).await?;
    report.was_closed = superblock.state & crate::format::superblock::STATE_CLEAN != 0;
    let options = OpenOptions { read_only: true, ..OpenOptions::default() };
    let volume = match Volume::open(device, world, &options).await {
        Ok(volume) => volume,
        Err(error) if error.kind() == ErrorKind::Unsupported => return Err(error),
        Err(error) => {
            report
                .add(FindingKind::Tree, format!("it does not open, not even for reading: {error}"));
            return Ok(report);
        }
    };
    if let Some(damage) = &volume.0.damage {
        let finding = report.add(FindingKind::Log, damage);
        if let Some((offset, bytes)) = damage.range() {
            (finding.offset, finding.bytes) = (Some(offset), Some(bytes));
        }
    }
    let stored = check_trees(&volume, &superblock, &mut report).await?;
    let tree = match Tree::read(&volume).await {
        Ok(tree) => tree,
        Err(error) => {
            report.add(FindingKind::Tree, format!("names cannot be read: {error}"));
            Tree::default()
        }
    };
    let names = check_names(&tree, &mut report);
    check_stored(&stored, (&tree, &names), &mut report);
    check_content(&volume, (&tree, &names), &mut report, progress).await;
    Ok(report)
}

async fn check_slots(device: &DeviceRef, report: &mut FsckReport) -> Result<Superblock> {
    let (newest, _) = crate::device::slots::read_newest(device).await?;
    for (slot, offset) in slot_offsets(newest.recorded_end_bytes).into_iter().enumerate() {
        let found = match read_at(device, offset, SLOT_BYTES).await {
            Ok(bytes) => Superblock::decode(&bytes, slot as u32),
            Err(error) => Err(error),
        };
        if let Err(error) = found {
            let finding = report.add(FindingKind::Slot, format!("slot {slot}: {error}"));
            (finding.offset, finding.bytes) = (Some(offset), Some(SLOT_BYTES as u64));
        }
    }
    Ok(newest)
}

/// Checks both trees with all node copies, and compares the usage table with them. Returns the
/// stored bytes that the trees record for each data id.
async fn check_trees(
    volume: &Volume,
    superblock: &Superblock,
    report: &mut FsckReport,
) -> Result<Stored> {
    let inner = &volume.0;
    let (layout, node) = (inner.layout, inner.layout.geometry.node_bytes() as u64);
    let mut live: BTreeMap<u32, u64> = BTreeMap::new();
    let mut runs: Vec<(Place, u64, u64)> = Vec::new();
    let (mut places, mut stored) = (BTreeSet::new(), Stored::default());
    for tree in [FILES_TREE, USAGE_TREE] {
        let mut seen = |seen: Seen<'_>| match seen {
            Seen::Node(places, _) => {
                places.iter().for_each(|at| *live.entry(at.segment).or_default() += node);
            }
            Seen::Item(Key::Extent(data_id, _), Item::Extent(extent)) => {
                if let Source::Run(place) = extent.source {
                    let bytes = u64::from(extent.stored_bytes);
                    *live.entry(place.segment).or_default() += bytes;
                    runs.push((place, bytes, data_id));
                    stored.extent(data_id, bytes);
                }
            }
            Seen::Item(Key::Inode(ino), Item::Inode(inode)) => stored.inode(ino, &inode),
            Seen::Item(..) => {}
        };
        let found = inner.tree.check(&root_of(superblock, tree)?, &mut places, &mut seen).await?;
        report.nodes += found.nodes.iter().sum::<u64>();
        for problem in found.problems {
            let (kind, at) = match &problem {
                Problem::Copy(at, _) => (FindingKind::Copy, *at),
                Problem::Underfull(at, _) => (FindingKind::Underfull, at[0]),
                Problem::Twice(at) => (FindingKind::Tree, *at),
                Problem::Lost { places: at, .. } | Problem::Item(at, _) => {
                    (FindingKind::Tree, at[0])
                }
            };
            let finding = report.add(kind, format!("tree {tree}: {problem:?}"));
            (finding.offset, finding.bytes) = (Some(layout.device_offset(at)), Some(node));
        }
    }
    let complete = report.is_complete();
    check_usage(volume, superblock, &live, complete, report).await;
    check_runs(&layout, runs, report);
    stored.is_complete = complete;
    Ok(stored)
}

/// Checks that no two runs share a byte. A run is its place, its bytes, and its data id.
fn check_runs(layout: &Layout, mut runs: Vec<(Place, u64, u64)>, report: &mut FsckReport) {
    runs.sort_unstable();
    for pair in runs.windows(2) {
        let ((at, bytes, one), (next, _, other)) = (pair[0], pair[1]);
        if at.segment == next.segment && u64::from(at.offset) + bytes > u64::from(next.offset) {
            let text = format!("data {one} at {at:?} and data {other} at {next:?} overlap");
            report.add(FindingKind::Tree, text).offset = Some(layout.device_offset(next));
        }
    }
}

async fn check_usage(
    volume: &Volume,
    superblock: &Superblock,
    live: &BTreeMap<u32, u64>,
    complete: bool,
    report: &mut FsckReport,
) {
    let entries = match usage_entries(&volume.0.tree, superblock).await {
        Ok(entries) => entries,
        Err(error) => {
            report.add(FindingKind::Usage, error);
            return;
        }
    };
    for (segment, entry) in (0..).zip(&entries) {
        let found = live.get(&segment).copied().unwrap_or(0);
        if complete && found != u64::from(entry.live_bytes) {
            let text = format!("segment {segment}: {found} bytes are live, {entry:?}");
            let at = volume.0.layout.device_offset(Place::new(segment, 0));
            let finding = report.add(FindingKind::Usage, text);
            finding.offset = Some(at);
            finding.figures = Some((u64::from(entry.live_bytes), found));
        }
    }
}

/// Reports stored bytes that do not match the extents (stored.E14, stored.E15), in the checkpoint
/// and after recovery.
fn check_stored(stored: &Stored, (tree, names): (&Tree, &Names), report: &mut FsckReport) {
    if !stored.is_complete {
        return;
    }
    let now = tree.inodes.iter().map(|(ino, i)| (*ino, (i.data_id, i.stored_bytes)));
    let newer = now.filter(|(ino, says)| stored.said.get(ino) != Some(says));
    let checkpoint = stored.said.iter().map(|(ino, says)| (*ino, *says));
    for (ino, (data_id, said)) in checkpoint.chain(newer) {
        let found = match data_id {
            0 => 0,
            data_id => stored.found.get(&data_id).copied().unwrap_or(0),
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
    let owned: BTreeSet<u64> = stored.said.values().map(|(data_id, _)| *data_id).collect();
    for (data_id, bytes) in stored.found.iter().filter(|(data_id, _)| !owned.contains(data_id)) {
        let text = format!("data {data_id} has extents of {bytes} bytes, and no inode has it");
        report.add(FindingKind::Tree, text).figures = Some((0, *bytes));
    }
}

/// Names and inodes as recovery finds them.
#[derive(Default)]
struct Tree {
    inodes: BTreeMap<u64, Inode>,
    /// Directory, name, inode and type of each entry.
    entries: Vec<(u64, Box<[u8]>, u64, FileType)>,
    orphans: BTreeSet<u64>,
}

impl Tree {
    async fn read(volume: &Volume) -> Result<Self> {
        let mut tree = Self::default();
        for (key, value) in volume.0.names().await? {
            let key = Key::decode(key.as_slice())?;
            match (key, Item::decode(key, &value, &volume.0.layout.geometry)?) {
                (Key::Inode(ino), Item::Inode(inode)) => drop(tree.inodes.insert(ino, inode)),
                (Key::Entry(dir, _), Item::Entry(entry)) => {
                    tree.entries.push((dir, entry.name.into(), entry.child, entry.kind));
                }
                _ => {}
            }
        }
        tree.orphans.clone_from(volume.0.state.lock().names().orphans());
        Ok(tree)
    }
}

impl Tree {
    /// The sum of the stored bytes in all inodes. In a damaged volume they may have any value.
    fn total_bytes(&self) -> u64 {
        self.inodes.values().fold(0, |sum, inode| sum.saturating_add(inode.stored_bytes))
    }
}

/// Checks entries, link counts, parents and orphans.
fn check_names(tree: &Tree, report: &mut FsckReport) -> Names {
    let (mut names, mut links): (Names, BTreeMap<u64, (u32, u32)>) = Default::default();
    report.inodes = tree.inodes.len() as u64;
    let mut wrong: Vec<(u64, String)> = Vec::new();
    for (dir, name, child, kind) in &tree.entries {
        let shown = name.escape_ascii();
        let Some(inode) = tree.inodes.get(child) else {
            wrong.push((*dir, format!("`{shown}` names inode {child}, which is not there")));
            continue;
        };
        if !tree.inodes.contains_key(dir) {
            wrong.push((*child, format!("`{shown}` lies in inode {dir}, which is not there")));
        }
        if inode.file_type() != Some(*kind) {
            wrong.push((*child, format!("`{shown}` says it is a {kind:?}")));
        }
        if *kind == FileType::Directory {
            links.entry(*dir).or_default().1 += 1;
            if inode.parent != *dir {
                let text = format!("its parent is {}, and it lies in {dir}", inode.parent);
                wrong.push((*child, text));
            }
        }
        links.entry(*child).or_default().0 += 1;
        names.entry(*child).or_insert((*dir, name.clone()));
    }
    for (ino, inode) in &tree.inodes {
        let found = links.get(ino).copied().unwrap_or_default();
        wrong.extend(check_links(*ino, inode, found, tree.orphans.contains(ino)));
    }
    for ino in tree.orphans.iter().filter(|ino| !tree.inodes.contains_key(ino)) {
        wrong.push((*ino, "an orphan that is not there".into()));
    }
    for (ino, text) in wrong {
        let path = path_of(&names, ino);
        let finding = report.add(FindingKind::Name, text);
        (finding.ino, finding.path) = (Some(ino), path);
    }
    names
}

/// Reports what is wrong with an inode that `entries` entries name, and that contains `dirs`
/// directories.
fn check_links(
    ino: u64,
    inode: &Inode,
    (entries, dirs): (u32, u32),
    is_orphan: bool,
) -> Vec<(u64, String)> {
    let mut wrong = Vec::new();
    let wanted = match inode.file_type() == Some(FileType::Directory) {
        true if entries > 0 || ino == ROOT_INO => 2 + dirs,
        true => 0,
        false => entries,
    };
    if inode.nlink != wanted {
        wrong.push((ino, format!("{} links, there are {wanted}", inode.nlink)));
    }
    if is_orphan != (entries == 0 && ino != ROOT_INO) {
        let text = if is_orphan { "an orphan with a name" } else { "no name, and no orphan" };
        wrong.push((ino, text.into()));
    }
    wrong
}

/// A path of an inode.
fn path_of(names: &Names, ino: u64) -> Option<Vec<u8>> {
    if ino == ROOT_INO {
        return Some(b"/".to_vec());
    }
    let (mut parts, mut at) = (Vec::new(), ino);
    while at != ROOT_INO {
        let (dir, name) = names.get(&at)?;
        parts.push(name);
        // The directories of a damaged volume may form a loop.
        if parts.len() > names.len() {
            return None;
        }
        at = *dir;
    }
    let path = parts.into_iter().rev().flat_map(|part| b"/".iter().chain(part.iter()));
    Some(path.copied().collect())
}

/// Checks every block of every file, as recovery finds it.
async fn check_content(
    volume: &Volume,
    (tree, names): (&Tree, &Names),
    report: &mut FsckReport,
    progress: &mut (dyn FnMut(FsckProgress) + Send),
) {
    let inner = &volume.0;
    let files = tree.inodes.iter().filter(|(_, inode)| inode.data_id != 0);
    let owners: Vec<(u64, u64)> = files.map(|(ino, inode)| (inode.data_id, *ino)).collect();
    let total_bytes = tree.total_bytes();
    let unit = inner.layout.block_bytes();
    for (data_id, ino) in owners {
        let mut block = 0;
        while block < inner.layout.geometry.max_blocks() {
            let piece = match inner.piece_at(data_id, block).await {
                Ok((piece, _pin)) => piece,
                Err(error) => {
                    let finding = report.add(FindingKind::Tree, error);
                    (finding.ino, finding.path) = (Some(ino), path_of(names, ino));
                    finding.offset = Some(block * unit);
                    break;
                }
            };
            for (bad, error) in check_piece(volume, &piece).await {
                let text = format!("block {} of data {data_id}: {error}", block + bad);
                let finding = report.add(FindingKind::Content, text);
                (finding.ino, finding.path) = (Some(ino), path_of(names, ino));
                (finding.offset, finding.bytes) = (Some((block + bad) * unit), Some(unit));
            }
            if piece.at != Where::Hole {
                report.content_bytes += piece.blocks * unit;
                progress(FsckProgress { done_bytes: report.content_bytes, total_bytes });
            }
            block = block.saturating_add(piece.blocks);
        }
    }
}

/// The blocks of a piece that do not match their checksums.
async fn check_piece(volume: &Volume, piece: &Piece) -> Vec<(u64, Error)> {
    let (Where::Run(place), layout) = (piece.at, &volume.0.layout) else { return Vec::new() };
    let unit = layout.block_bytes();
    let offset = layout.device_offset(place);
    let bad = |n: u64, error: &Error| (n, error.clone().with_range(offset + n * unit, unit));
    if place.segment >= layout.segments {
        let error = Error::new(ErrorKind::Corrupt, "read", "behind the last segment");
        return (0..piece.blocks).map(|n| bad(n, &error)).collect();
    }
    let mut out = Vec::new();
    let all = read_at(&volume.0.device, offset, (piece.blocks * unit) as usize).await;
    for n in 0..piece.blocks {
        let one;
        let bytes = match &all {
            Ok(all) => &all[(n * unit) as usize..((n + 1) * unit) as usize],
            Err(_) => match read_at(&volume.0.device, offset + n * unit, unit as usize).await {
                Ok(bytes) => {
                    one = bytes;
                    &one[..]
                }
                Err(error) => {
                    out.push(bad(n, &error));
                    continue;
                }
            },
        };
        if piece.own_sums().get(n as usize).is_some_and(|sum| *sum != crc32c(bytes)) {
            let error = Error::new(ErrorKind::Corrupt, "read", "the checksum does not match");
            out.push(bad(n, &error));
        }
    }
    out
}

#[cfg(test)]
mod tests;
