//! What the volume holds: inodes, names, attributes, where content is. Changed by [`State::apply`] alone,
//! live and in replay.
//!
//! Invariants: S11 what a record says and what is applied is the same thing: a change that is appended is
//! applied in the same hold of the lock, so that the order of the log is the order in which things happened.
//! S12 an inode is here while it has a name, is open, or is an orphan of the last life. S13 ids are never
//! given out twice.
//! S14 `times_moved` alone is ahead of the log: times that a sync of all metadata still has to write.
//!
//! No locks: the volume's state lock covers it.

use crate::alloc::room::Room;
use crate::content::Content;
use crate::dir::Directory;
use crate::format::change::{Change, Entry, Rename, Size};
use crate::format::corrupt;
use crate::format::extent::Extent;
use crate::format::inode::{FileType, Inode, SetAttributes};
use crate::layout::Layout;
use crate::log::Pending;
use crate::pending::{Overlay, Piece, Where};
use crate::space::Space;
use forebay_base::Result;
use forebay_base::world::split_mix;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// An inode, and what hangs on it.
pub(crate) struct Node {
    /// Attributes; the size is the one that recovery would find.
    pub inode: Inode,
    /// Of a symbolic link.
    pub target: Box<[u8]>,
    /// Extended attributes.
    pub xattrs: BTreeMap<Box<[u8]>, Box<[u8]>>,
    /// Of a directory.
    pub entries: Directory,
    /// Open files.
    pub opens: u32,
    /// It never had a name and may get one.
    pub linkable: bool,
    /// S14.
    pub times_moved: bool,
    /// It was cut to nothing, and not closed by everybody since.
    pub cut: bool,
    /// Records that told its size were changed: the size is to be told again.
    pub regrow: bool,
    /// Of a regular file that is open or owes something.
    pub content: Option<Arc<Content>>,
}

impl Node {
    /// Bytes, those that are not written out yet included; none: what is stored counts.
    pub fn live_size(&self) -> Option<u64> {
        self.content.as_ref().map(|content| content.file.size())
    }
}

impl Node {
    /// The size that recovery surely finds.
    pub fn published(&self) -> u64 {
        if self.regrow { 0 } else { self.inode.size }
    }
}

/// What found no room in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Lost {
    /// A size, which is tried again.
    Size,
    /// Content.
    Data,
}

/// See the module.
pub(crate) struct State {
    pub layout: Layout,
    pub space: Space,
    /// What of data segments is given out and not in use.
    pub room: Room,
    pub nodes: BTreeMap<u64, Node>,
    /// How many inodes there are, in memory or not.
    pub inodes: u64,
    /// Content, by data id.
    pub data: BTreeMap<u64, Overlay>,
    pub orphans: BTreeSet<u64>,
    /// Inodes whose times have moved (S14).
    pub moved: BTreeSet<u64>,
    pub next_ino: u64,
    pub next_data_id: u64,
    /// Volume-wide sequence of content.
    pub next_sequence: u64,
    /// Records that are applied and not laid out, in order (S11).
    pub queue: VecDeque<Pending>,
    /// Of the next record.
    pub next_ticket: u64,
    /// Promises of reservations, by their first offset, and how often the log had failed when they were made.
    pub shares: BTreeMap<u64, (u64, u64)>,
    /// Content of inodes that were removed; its dirt is to be dropped.
    pub removed: Vec<Arc<Content>>,
    /// Inodes that are closed and may owe something.
    pub lingering: BTreeSet<u64>,
    /// Inodes that were cut to nothing and closed, and when: they are written out before any commit.
    pub owed: BTreeMap<u64, u64>,
    /// Inodes that cannot be synced.
    pub unpublished: BTreeSet<(u64, Lost)>,
}

impl State {
    /// Nothing, not even a root.
    pub fn new(layout: Layout) -> Self {
        Self {
            layout,
            space: Space::new(layout),
            room: Room::new(&layout),
            nodes: BTreeMap::new(),
            inodes: 0,
            data: BTreeMap::new(),
            orphans: BTreeSet::new(),
            moved: BTreeSet::new(),
            next_ino: 1,
            next_data_id: 1,
            next_sequence: 1,
            queue: VecDeque::new(),
            next_ticket: 1,
            shares: BTreeMap::new(),
            removed: Vec::new(),
            lingering: BTreeSet::new(),
            owed: BTreeMap::new(),
            unpublished: BTreeSet::new(),
        }
    }

    /// An inode that a change names: replay of a damaged log may name any.
    fn node(&mut self, ino: u64) -> Result<&mut Node> {
        let missing = || corrupt("change", format!("names inode {ino}, which is not there"));
        self.nodes.get_mut(&ino).ok_or_else(missing)
    }

    /// Changes the state. `resolve` says where an extent's bytes are.
    pub fn apply(
        &mut self,
        change: &Change<'_>,
        resolve: &dyn Fn(&Extent<'_>) -> Result<Where>,
    ) -> Result<()> {
        match change {
            Change::CreateInode(ino, inode, target) => self.create(*ino, *inode, target),
            Change::SetAttributes(ino, set) => self.node(*ino).map(|node| assign(node, set)),
            Change::InsertEntry(entry) => self.insert(entry),
            Change::RemoveEntry(entry) => {
                self.node(entry.dir)?.entries.remove(entry.name);
                Ok(())
            }
            Change::Rename(rename) => self.rename_entries(rename),
            Change::Map(data_id, block, extent) => {
                let at = resolve(extent)?;
                self.map(*data_id, *block, extent, at);
                Ok(())
            }
            Change::Grow(size) => self.size(size, false),
            Change::Truncate(size) => self.size(size, true),
            Change::ReplaceData(size, dead) => self.replace_data(size, *dead),
            Change::Punch(blocks, sequence) => {
                let hole = Piece::hole(blocks.blocks, *sequence);
                self.put(blocks.data_id, blocks.block, &hole);
                Ok(())
            }
            Change::SetXattr(ino, name, value) => {
                self.node(*ino)?.xattrs.insert((*name).into(), (*value).into());
                Ok(())
            }
            Change::RemoveXattr(ino, name) => {
                self.node(*ino)?.xattrs.remove(*name);
                Ok(())
            }
            Change::AddOrphan(ino) => {
                self.orphans.insert(*ino);
                self.node(*ino).map(drop)
            }
            Change::RemoveOrphan(ino) => {
                self.orphans.remove(ino);
                Ok(())
            }
            Change::RemoveInode(ino, data_id, sequence) => {
                self.next_sequence = self.next_sequence.max(sequence.saturating_add(1));
                self.orphans.remove(ino);
                self.close_windows(*ino);
                self.data.remove(data_id);
                self.node(*ino)?;
                self.inodes = self.inodes.saturating_sub(1);
                let node = self.nodes.remove(ino);
                self.removed.extend(node.and_then(|node| node.content));
                Ok(())
            }
            Change::NextSegment(_) => Ok(()),
            Change::ReapDead { .. } | Change::Move { .. } | Change::SetSegment(..) => {
                Err(crate::format::unsupported("change", "of a volume with checkpoints"))
            }
        }
    }

    fn create(&mut self, ino: u64, inode: Inode, target: &[u8]) -> Result<()> {
        self.next_ino = self.next_ino.max(ino.saturating_add(1));
        self.next_data_id = self.next_data_id.max(inode.data_id.saturating_add(1));
        let node = Node {
            inode,
            target: target.into(),
            xattrs: BTreeMap::new(),
            entries: Directory::default(),
            opens: 0,
            linkable: false,
            times_moved: false,
            cut: false,
            regrow: false,
            content: None,
        };
        match self.nodes.insert(ino, node) {
            None => {
                self.inodes += 1;
                Ok(())
            }
            Some(_) => Err(corrupt("change", format!("makes inode {ino} again"))),
        }
    }

    fn insert(&mut self, entry: &Entry<'_>) -> Result<()> {
        self.node(entry.child)?;
        let dir = self.node(entry.dir)?;
        dir.entries.set(entry.cookie, entry.name, (entry.child, entry.kind));
        Ok(())
    }

    fn rename_entries(&mut self, rename: &Rename<'_>) -> Result<()> {
        let Rename { from, to, exchange, .. } = rename;
        self.node(from.child)?;
        self.node(to.child)?;
        if !exchange {
            self.node(from.dir)?.entries.remove(from.name);
            self.node(to.dir)?.entries.set(to.cookie, to.name, (to.child, to.kind));
            return self.moved(from.child, from.kind, to.dir);
        }
        self.node(from.dir)?.entries.set(from.cookie, from.name, (to.child, to.kind));
        self.node(to.dir)?.entries.set(to.cookie, to.name, (from.child, from.kind));
        self.moved(from.child, from.kind, to.dir)?;
        self.moved(to.child, to.kind, from.dir)
    }

    fn moved(&mut self, ino: u64, kind: FileType, dir: u64) -> Result<()> {
        if kind == FileType::Directory {
            self.node(ino)?.inode.parent = dir;
        }
        Ok(())
    }

    fn map(&mut self, data_id: u64, block: u64, extent: &Extent<'_>, at: Where) {
        let sums: Arc<[u32]> = extent.sums.iter_crc32c().collect();
        let (blocks, birth) = (u64::from(extent.blocks), extent.birth);
        self.put(data_id, block, &Piece { blocks, birth, at, sums, first_sum: 0 });
    }

    fn put(&mut self, data_id: u64, block: u64, piece: &Piece) {
        self.next_sequence = self.next_sequence.max(piece.birth.saturating_add(1));
        let block_bytes = self.layout.block_bytes();
        let overlay = self.data.entry(data_id).or_default();
        overlay.insert(block, piece, block_bytes);
    }

    fn size(&mut self, size: &Size, cut: bool) -> Result<()> {
        self.next_sequence = self.next_sequence.max(size.sequence.saturating_add(1));
        let inode = &mut self.node(size.ino)?.inode;
        if inode.data_id != size.data_id {
            return Err(corrupt("change", format!("sizes other data of inode {}", size.ino)));
        }
        if !cut {
            inode.size = inode.size.max(size.size);
            return Ok(());
        }
        inode.size = size.size;
        let first = size.size.div_ceil(self.layout.block_bytes());
        let blocks = self.layout.geometry.max_blocks() - first;
        self.put(size.data_id, first, &Piece::hole(blocks, size.sequence));
        Ok(())
    }

    fn replace_data(&mut self, size: &Size, dead: u64) -> Result<()> {
        self.next_sequence = self.next_sequence.max(size.sequence.saturating_add(1));
        self.next_data_id = self.next_data_id.max(size.data_id.saturating_add(1));
        self.data.remove(&dead);
        let inode = &mut self.node(size.ino)?.inode;
        (inode.data_id, inode.size) = (size.data_id, size.size);
        Ok(())
    }

    /// The next sequence of content.
    pub fn draw(&mut self) -> u64 {
        self.next_sequence = self.next_sequence.saturating_add(1);
        self.next_sequence - 1
    }

    /// One number for all that a recovery finds.
    pub fn digest(&self) -> u64 {
        let mut digest = 0;
        let mut mix = |text: String| {
            for byte in text.into_bytes() {
                let mut word = digest ^ u64::from(byte);
                digest = split_mix(&mut word);
            }
        };
        for (ino, node) in &self.nodes {
            let entries: Vec<_> = node.entries.list(0, usize::MAX).collect();
            mix(format!("{ino} {:?} {:?}", node.inode, node.target));
            mix(format!("{entries:?} {:?}", node.xattrs));
        }
        for (data_id, overlay) in &self.data {
            mix(format!("{data_id}"));
            overlay.pieces().for_each(|piece| mix(format!("{piece:?}")));
        }
        mix(format!("{:?} {} {}", self.orphans, self.next_ino, self.next_data_id));
        digest
    }
}

fn assign(node: &mut Node, set: &SetAttributes) {
    let inode = &mut node.inode;
    inode.mode = set.mode.unwrap_or(inode.mode);
    inode.uid = set.uid.unwrap_or(inode.uid);
    inode.gid = set.gid.unwrap_or(inode.gid);
    inode.nlink = set.nlink.unwrap_or(inode.nlink);
    inode.flags = set.flags.unwrap_or(inode.flags);
    inode.parent = set.parent.unwrap_or(inode.parent);
    inode.version = set.version.unwrap_or(inode.version);
    inode.atime = set.atime.unwrap_or(inode.atime);
    inode.mtime = set.mtime.unwrap_or(inode.mtime);
    inode.ctime = set.ctime.unwrap_or(inode.ctime);
    inode.btime = set.btime.unwrap_or(inode.btime);
}
