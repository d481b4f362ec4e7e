//! The state of a volume: inodes, names, attributes, and the places of content. Only
//! [`State::apply`] changes it, for new changes and for replayed ones.
//!
//! Invariants: S11 a change that is recorded is applied while the state lock is held once. So the
//! order of the log is the order in which changes were applied. S12 an inode exists while it has a
//! name, is open, or is an orphan from before the volume was opened. S13 numbers are never given
//! out twice. S14 only moved times are ahead of the log: times that a sync of all metadata must
//! still write. `recorded` is the inode as the log has it. S15 a record never maps content over a
//! newer change. A publisher leaves out blocks for which a newer change is known. So in the log the
//! later record always wins.
//!
//! No locks: the volume's state lock covers it.

use crate::btree::empty_root;
use crate::device::layout::Layout;
use crate::format::change::{Change, Entry, Rename, Size};
use crate::format::extent::Extent;
use crate::format::inode::{FileType, Inode};
use crate::format::item::EntryItem;
use crate::format::superblock::{FILES_TREE, TreeRoot};
use crate::format::{corrupt, unsupported};
use crate::log::queue::RecordQueue;
use crate::map::file_map::FileMap;
use crate::map::overlay::{Piece, Sums, Where};
use crate::names::closed::RetainedMappings;
use crate::names::content::{Content, PendingWriteBack};
use crate::names::directory::Directory;
use crate::names::evict::Cache;
use crate::names::inode::assign;
use crate::names::inode_table::InodeTable;
use crate::names::items::Items;
use crate::names::node::Node;
use crate::names::scan_cache::Windows;
use crate::space::Space;
use crate::space::alloc::runs::Room;
use crate::transaction::counters::{Counters, RemovedBytes};
use crate::transaction::frozen::Frozen;
use crate::transaction::lifecycle::{Lifecycle, Refusal};
use crate::transaction::outstanding::Outstanding;
use crate::transaction::reservations::Reservations;
use crate::transaction::sync_errors::{Lost, SyncErrors};
use forebay_base::{Error, Result};
use std::collections::BTreeSet;
use std::sync::Arc;

fn missing(ino: u64) -> Error {
    corrupt("change", format!("names inode {ino}, which is not there"))
}

/// The state of an open volume.
pub(crate) struct State {
    pub layout: Layout,
    pub space: Space,
    /// Runs of data segments that are given out and not in use.
    pub room: Room,
    /// The inodes in memory.
    pub nodes: InodeTable,
    /// The eviction clock of the inodes.
    pub cache: Cache,
    /// Inodes for sequential scans, in stored form.
    pub windows: Windows,
    /// Changes of content that are not in the tree.
    pub map: FileMap,
    /// Names and attributes that have changed since the last freeze.
    pub items: Items,
    /// The changes that a checkpoint is merging into the tree.
    pub frozen: Option<Frozen>,
    /// The tree of the newest durable checkpoint.
    pub root: TreeRoot,
    pub orphans: BTreeSet<u64>,
    /// The next free numbers (S13).
    pub counters: Counters,
    /// Records that are applied and not laid out yet (S11).
    pub queue: RecordQueue,
    /// The reservations of files.
    pub reservations: Reservations,
    /// Content of removed inodes, whose dirty data must be dropped.
    pub removed: Vec<Arc<Content>>,
    /// Closed inodes that may have data to write back.
    pub pending_write_back: PendingWriteBack,
    /// Closed files whose content may be in the page cache.
    pub left: RetainedMappings,
    /// Inodes without a name or an opener whose removal found no space.
    pub unremoved: BTreeSet<u64>,
    /// Files with outstanding content.
    pub outstanding: Outstanding,
    /// The reasons why inodes cannot be synced.
    pub sync_errors: SyncErrors,
    /// Content that was removed since the volume was opened.
    pub removed_bytes: RemovedBytes,
    /// The approximate number of tree nodes.
    pub tree_nodes: u64,
    /// Memory that the cleaner uses for live data and copies, bytes.
    pub cleaning_bytes: u64,
    /// Whether the volume accepts changes.
    pub life: Lifecycle,
    /// Why the last change was refused.
    pub refusal: Refusal,
}

/// The piece of an extent whose bytes are at `at`.
pub(crate) fn piece_of(extent: &Extent<'_>, at: Where) -> Piece {
    let (blocks, birth) = (u64::from(extent.blocks), extent.birth);
    Piece { blocks, birth, at, sums: Sums::of(extent.sums.iter_crc32c(), blocks) }
}

/// The error for a change that this version does not make.
pub(crate) fn not_made() -> Error {
    unsupported("change", "not made by this version")
}

impl State {
    /// An empty state, without even a root directory.
    pub fn new(layout: Layout) -> Self {
        Self {
            layout,
            space: Space::new(layout),
            room: Room::new(&layout),
            nodes: InodeTable::default(),
            cache: Cache::new(),
            windows: Windows::default(),
            map: FileMap::new(layout.geometry),
            items: Items::default(),
            frozen: None,
            root: empty_root(FILES_TREE, 0),
            orphans: BTreeSet::new(),
            counters: Counters::first(),
            queue: RecordQueue::new(),
            reservations: Reservations::default(),
            removed: Vec::new(),
            pending_write_back: PendingWriteBack::default(),
            left: RetainedMappings::default(),
            unremoved: BTreeSet::new(),
            outstanding: Outstanding::default(),
            sync_errors: SyncErrors::default(),
            removed_bytes: RemovedBytes::default(),
            tree_nodes: 0,
            cleaning_bytes: 0,
            life: Lifecycle::default(),
            refusal: Refusal::default(),
        }
    }

    /// Changes an inode that a record names. A damaged log may name an inode that does not exist.
    fn update<T>(&mut self, ino: u64, change: impl FnOnce(&mut Node) -> T) -> Result<T> {
        self.nodes.update(ino, change).ok_or_else(|| missing(ino))
    }

    /// Checks that the inode is in memory.
    fn check_node(&self, ino: u64) -> Result<()> {
        self.nodes.get(ino).map(drop).ok_or_else(|| missing(ino))
    }

    /// Applies a change. `resolve` finds the place of the bytes of an extent.
    pub fn apply(
        &mut self,
        change: &Change<'_>,
        resolve: &dyn Fn(&Extent<'_>) -> Result<Where>,
    ) -> Result<()> {
        self.counters.note(change);
        match change {
            Change::CreateInode(ino, inode, target) => self.create(*ino, *inode, target),
            Change::SetAttributes(ino, set) => {
                self.update(*ino, |node| node.change(|inode| assign(inode, set)))?;
                self.note_inode(*ino)
            }
            Change::InsertEntry(entry) => self.insert(entry),
            Change::RemoveEntry(entry) => {
                self.remove_entry(entry)?;
                self.count_entries(entry.dir, -1)
            }
            Change::Rename(rename) => self.rename_entries(rename),
            Change::Map(data_id, block, extent) => {
                let at = resolve(extent)?;
                self.map_extent(*data_id, *block, extent, at);
                Ok(())
            }
            Change::Grow(size) => self.size(size, false),
            Change::Truncate(size) => self.size(size, true),
            Change::ReplaceData(size, dead) => self.replace_data(size, *dead),
            Change::Punch(blocks, sequence) => {
                let hole = Piece::hole(blocks.blocks, *sequence);
                self.map.put(blocks.data_id, blocks.block, &hole);
                Ok(())
            }
            Change::SetXattr(ino, name, value) => self.set_xattr(*ino, name, value),
            Change::RemoveXattr(ino, name) => {
                if let Some(old) = self.update(*ino, |node| node.xattrs.remove(*name))? {
                    self.note_no_xattr(*ino, name, old.len());
                }
                self.recount(*ino);
                Ok(())
            }
            Change::AddOrphan(ino) => {
                self.orphans.insert(*ino);
                self.check_node(*ino)?;
                self.note_orphan(*ino, true)
            }
            Change::RemoveOrphan(ino) => {
                self.orphans.remove(ino);
                self.note_orphan(*ino, false)
            }
            Change::RemoveInode(ino, data_id, sequence) => {
                self.remove_inode(*ino, *data_id, *sequence)
            }
            Change::NextSegment(_) => Ok(()),
            Change::ReapDead { .. } | Change::Move { .. } | Change::SetSegment(..) => {
                Err(not_made())
            }
        }
    }

    fn create(&mut self, ino: u64, inode: Inode, target: &[u8]) -> Result<()> {
        if self.nodes.contains(ino) {
            return Err(corrupt("change", format!("makes inode {ino} again")));
        }
        let mut node = Node::new(inode, target);
        if inode.file_type() == Some(FileType::Directory) {
            node.entries = Directory::empty();
        }
        self.keep(ino, node);
        self.nodes.note_created();
        if inode.data_id != 0 {
            self.map.set_owner(inode.data_id, ino);
        }
        self.note_inode(ino)?;
        self.note_target(ino, target)
    }

    fn remove_inode(&mut self, ino: u64, data_id: u64, sequence: u64) -> Result<()> {
        if self.orphans.remove(&ino) {
            self.note_orphan(ino, false)?;
        }
        let gone = self.stored_bytes(self.nodes.get(ino).ok_or_else(|| missing(ino))?);
        self.removed_bytes.add(gone);
        self.drop_data(ino, data_id, sequence);
        self.close_windows(ino);
        self.outstanding.end_truncated(ino);
        self.sync_errors.forget(ino);
        if let Some(node) = self.forget(ino) {
            self.nodes.note_removed();
            self.note_no_inode(ino, &node);
            self.removed.extend(node.content);
            self.left.remove(ino);
        }
        Ok(())
    }

    fn set_xattr(&mut self, ino: u64, name: &[u8], value: &[u8]) -> Result<()> {
        let old = self.update(ino, |node| node.xattrs.insert(name.into(), value.into()))?;
        let nonce = self.layout.nonce;
        self.note_xattr(ino, name, value, old.map(|old| old.len()), &nonce)?;
        self.recount(ino);
        Ok(())
    }

    /// Drops the content of a data id. The next checkpoint removes what the tree has of it.
    fn drop_data(&mut self, ino: u64, data_id: u64, sequence: u64) {
        self.map.drop_data(data_id);
        let may_be_in_tree = data_id != 0 && self.map.may_be_in_tree(data_id);
        if may_be_in_tree && !self.has_nothing(ino, data_id) {
            let blocks = self.layout.geometry.max_blocks();
            self.map.put_dead(data_id, &Piece::hole(blocks, sequence));
        }
    }

    fn set_entry(&mut self, at: &Entry<'_>, child: (u64, FileType)) -> Result<()> {
        self.update(at.dir, |node| node.entries.set(at.cookie, at.name, child))?;
        self.recount(at.dir);
        let item = EntryItem { child: child.0, kind: child.1, name: at.name };
        self.note_entry(at.dir, at.cookie, item)
    }

    fn remove_entry(&mut self, at: &Entry<'_>) -> Result<()> {
        self.update(at.dir, |node| node.entries.remove(at.cookie))?;
        self.recount(at.dir);
        self.note_no_entry(at.dir, at.cookie);
        Ok(())
    }

    /// Changes the number of entries of a directory, which is its size. So no operation has to load
    /// the entries to know whether there are any.
    fn count_entries(&mut self, dir: u64, more: i64) -> Result<()> {
        let count = |inode: &mut Inode| inode.size = inode.size.saturating_add_signed(more);
        self.update(dir, |node| node.change(count))?;
        self.note_inode(dir)
    }

    fn insert(&mut self, entry: &Entry<'_>) -> Result<()> {
        self.check_node(entry.child)?;
        self.set_entry(entry, (entry.child, entry.kind))?;
        self.count_entries(entry.dir, 1)
    }

    fn rename_entries(&mut self, rename: &Rename<'_>) -> Result<()> {
        let Rename { from, to, replaced, exchange } = rename;
        self.check_node(from.child)?;
        self.check_node(to.child)?;
        if !exchange {
            self.remove_entry(from)?;
            self.count_entries(from.dir, -1)?;
            self.set_entry(to, (to.child, to.kind))?;
            self.count_entries(to.dir, i64::from(*replaced == 0))?;
            return self.moved(from.child, from.kind, to.dir);
        }
        self.set_entry(from, (to.child, to.kind))?;
        self.set_entry(to, (from.child, from.kind))?;
        self.moved(from.child, from.kind, to.dir)?;
        self.moved(to.child, to.kind, from.dir)
    }

    fn moved(&mut self, ino: u64, kind: FileType, dir: u64) -> Result<()> {
        if kind == FileType::Directory {
            self.update(ino, |node| node.change(|inode| inode.parent = dir))?;
            self.note_inode(ino)?;
        }
        Ok(())
    }

    fn map_extent(&mut self, data_id: u64, block: u64, extent: &Extent<'_>, at: Where) {
        self.map.put(data_id, block, &piece_of(extent, at));
    }

    fn size(&mut self, size: &Size, cut: bool) -> Result<()> {
        let inode = self.nodes.get(size.ino).ok_or_else(|| missing(size.ino))?.inode;
        if inode.data_id != size.data_id {
            return Err(corrupt("change", format!("sizes other data of inode {}", size.ino)));
        }
        if !cut {
            self.update(size.ino, |node| {
                node.unlogged_size.take_if(|unlogged| *unlogged <= size.size);
                node.change(|inode| inode.size = inode.size.max(size.size));
            })?;
            return self.note_inode(size.ino);
        }
        let gone = inode.size.saturating_sub(size.size).min(inode.stored_bytes);
        self.update(size.ino, |node| {
            // An earlier larger size may have been taken back since, together with its bytes. So
            // this only lowers the size.
            node.change(|inode| inode.size = inode.size.min(size.size));
            node.unlogged_size = node.unlogged_size.map(|unlogged| unlogged.min(size.size));
        })?;
        self.removed_bytes.add(gone);
        self.note_inode(size.ino)?;
        let first = size.size.div_ceil(self.layout.block_bytes());
        let blocks = self.layout.geometry.max_blocks() - first;
        self.map.put(size.data_id, first, &Piece::hole(blocks, size.sequence));
        Ok(())
    }

    fn replace_data(&mut self, size: &Size, dead: u64) -> Result<()> {
        let gone = self.nodes.get(size.ino).map_or(0, |node| self.stored_bytes(node));
        self.removed_bytes.add(gone);
        self.drop_data(size.ino, dead, size.sequence);
        self.sync_errors.remove(size.ino, Lost::Run);
        self.map.set_owner(size.data_id, size.ino);
        self.update(size.ino, |node| {
            // The change contains the size, and all earlier data is gone: no content can be lost
            // any more.
            (node.regrow, node.unlogged_size) = (false, None);
            node.change(|inode| {
                (inode.data_id, inode.size, inode.stored_bytes) = (size.data_id, size.size, 0);
            });
        })?;
        self.note_inode(size.ino)
    }

    /// Gives out the next sequence number of content.
    pub fn draw(&mut self) -> u64 {
        self.counters.draw_sequence()
    }
}

impl State {
    /// The error of the last checkpoint, if changes have reached their limit since (read_only.F12).
    pub fn overfull(&self) -> Option<&Error> {
        self.life.overfull(|| self.held().changes)
    }
}
