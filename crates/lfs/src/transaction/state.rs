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

use crate::device::layout::Layout;
use crate::format::change::{Change, Entry, Rename, Size};
use crate::format::extent::Extent;
use crate::format::inode::{FileType, Inode};
use crate::format::item::EntryItem;
use crate::format::place::Place;
use crate::format::{corrupt, unsupported};
use crate::log::Pending;
use crate::log::queue::RecordQueue;
use crate::map::file_map::FileMap;
use crate::map::overlay::{Piece, Sums, Where};
use crate::names::Names;
use crate::names::counters::Counters;
use crate::names::directory::Directory;
use crate::names::inode::assign;
use crate::names::node::Node;
use crate::space::Space;
use crate::transaction::file_states::FileStates;
use crate::transaction::lifecycle::{Lifecycle, Refusal};
use crate::transaction::tree_state::TreeState;
use forebay_base::{Error, Result};
use std::sync::Arc;

fn missing(ino: u64) -> Error {
    corrupt("change", format!("names inode {ino}, which is not there"))
}

/// The state of an open volume.
pub(crate) struct State {
    pub(super) layout: Layout,
    /// Segments, grants, and runs that are not in use.
    pub(super) space: Space,
    /// Names and attributes.
    pub(super) names: Names,
    /// Changes of content that are not in the tree.
    pub(super) map: FileMap,
    /// The tree of the newest durable checkpoint, and what is being merged into it.
    pub(super) tree: TreeState,
    /// Records that are applied and not laid out yet (S11).
    pub(super) queue: RecordQueue,
    /// Open and recently closed files.
    pub(super) files: FileStates,
    /// Whether the volume accepts changes.
    pub(super) life: Lifecycle,
    /// Why the last change was refused.
    pub(super) refusal: Refusal,
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
            names: Names::new(&layout),
            map: FileMap::new(layout.geometry),
            tree: TreeState::new(),
            queue: RecordQueue::new(),
            files: FileStates::default(),
            life: Lifecycle::default(),
            refusal: Refusal::default(),
        }
    }

    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Changes of content that are not in the tree.
    pub fn map(&self) -> &FileMap {
        &self.map
    }

    /// Records that are applied and not laid out yet.
    pub fn queue(&self) -> &RecordQueue {
        &self.queue
    }

    /// The tree of the newest durable checkpoint.
    pub fn tree(&self) -> &TreeState {
        &self.tree
    }

    /// The next free numbers.
    pub fn counters(&self) -> &Counters {
        self.names.counters()
    }

    /// Names and attributes in memory.
    pub fn names(&self) -> &Names {
        &self.names
    }

    /// Open and recently closed files.
    pub fn files(&self) -> &FileStates {
        &self.files
    }

    /// Changes an inode that a record names. A damaged log may name an inode that does not exist.
    fn update<T>(&mut self, ino: u64, change: impl FnOnce(&mut Node) -> T) -> Result<T> {
        self.names.update(ino, change).ok_or_else(|| missing(ino))
    }

    /// Checks that the inode is in memory.
    fn check_node(&self, ino: u64) -> Result<()> {
        self.names.node(ino).map(drop).ok_or_else(|| missing(ino))
    }

    /// Applies a change. `resolve` finds the place of the bytes of an extent.
    pub fn apply(
        &mut self,
        change: &Change<'_>,
        resolve: &dyn Fn(&Extent<'_>) -> Result<Where>,
    ) -> Result<()> {
        self.names.note_numbers(change);
        match change {
            Change::CreateInode(ino, inode, target) => self.create(*ino, *inode, target),
            Change::SetAttributes(ino, set) => {
                self.update(*ino, |node| node.change(|inode| assign(inode, set)))?;
                self.names.note_inode(*ino)
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
                    self.names.note_no_xattr(*ino, name, old.len());
                }
                self.names.recount(*ino);
                Ok(())
            }
            Change::AddOrphan(ino) => {
                self.names.add_orphan(*ino);
                self.check_node(*ino)?;
                self.names.note_orphan(*ino, true)
            }
            Change::RemoveOrphan(ino) => {
                self.names.remove_orphan(*ino);
                self.names.note_orphan(*ino, false)
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
        if self.names.has_node(ino) {
            return Err(corrupt("change", format!("makes inode {ino} again")));
        }
        let mut node = Node::new(inode, target);
        if inode.file_type() == Some(FileType::Directory) {
            node.entries = Directory::empty();
        }
        self.names.create(ino, node);
        if inode.data_id != 0 {
            self.map.set_owner(inode.data_id, ino);
        }
        self.names.note_inode(ino)?;
        self.names.note_target(ino, target)
    }

    fn remove_inode(&mut self, ino: u64, data_id: u64, sequence: u64) -> Result<()> {
        if self.names.remove_orphan(ino) {
            self.names.note_orphan(ino, false)?;
        }
        let gone = self.stored_bytes(self.names.node(ino).ok_or_else(|| missing(ino))?);
        self.space.note_removed(gone);
        self.drop_data(ino, data_id, sequence);
        self.close_windows(ino);
        self.files.note_removal(ino);
        if let Some(node) = self.names.remove(ino) {
            self.files.drop_cached(ino, node.content);
        }
        Ok(())
    }

    fn set_xattr(&mut self, ino: u64, name: &[u8], value: &[u8]) -> Result<()> {
        let old = self.update(ino, |node| node.xattrs.insert(name.into(), value.into()))?;
        self.names.note_xattr(ino, name, value, old.map(|old| old.len()))?;
        self.names.recount(ino);
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
        self.names.recount(at.dir);
        let item = EntryItem { child: child.0, kind: child.1, name: at.name };
        self.names.note_entry(at.dir, at.cookie, item)
    }

    fn remove_entry(&mut self, at: &Entry<'_>) -> Result<()> {
        self.update(at.dir, |node| node.entries.remove(at.cookie))?;
        self.names.recount(at.dir);
        self.names.note_no_entry(at.dir, at.cookie);
        Ok(())
    }

    /// Changes the number of entries of a directory, which is its size. So no operation has to load
    /// the entries to know whether there are any.
    fn count_entries(&mut self, dir: u64, more: i64) -> Result<()> {
        let count = |inode: &mut Inode| inode.size = inode.size.saturating_add_signed(more);
        self.update(dir, |node| node.change(count))?;
        self.names.note_inode(dir)
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
            self.names.note_inode(ino)?;
        }
        Ok(())
    }

    fn map_extent(&mut self, data_id: u64, block: u64, extent: &Extent<'_>, at: Where) {
        self.map.put(data_id, block, &piece_of(extent, at));
    }

    fn size(&mut self, size: &Size, cut: bool) -> Result<()> {
        let inode = self.names.node(size.ino).ok_or_else(|| missing(size.ino))?.inode;
        if inode.data_id != size.data_id {
            return Err(corrupt("change", format!("sizes other data of inode {}", size.ino)));
        }
        if !cut {
            self.update(size.ino, |node| {
                node.unlogged_size.take_if(|unlogged| *unlogged <= size.size);
                node.change(|inode| inode.size = inode.size.max(size.size));
            })?;
            return self.names.note_inode(size.ino);
        }
        let gone = inode.size.saturating_sub(size.size).min(inode.stored_bytes);
        self.update(size.ino, |node| {
            // An earlier larger size may have been taken back since, together with its bytes. So
            // this only lowers the size.
            node.change(|inode| inode.size = inode.size.min(size.size));
            node.unlogged_size = node.unlogged_size.map(|unlogged| unlogged.min(size.size));
        })?;
        self.space.note_removed(gone);
        self.names.note_inode(size.ino)?;
        let first = size.size.div_ceil(self.layout.block_bytes());
        let blocks = self.layout.geometry.max_blocks() - first;
        self.map.put(size.data_id, first, &Piece::hole(blocks, size.sequence));
        Ok(())
    }

    fn replace_data(&mut self, size: &Size, dead: u64) -> Result<()> {
        let gone = self.names.node(size.ino).map_or(0, |node| self.stored_bytes(node));
        self.space.note_removed(gone);
        self.drop_data(size.ino, dead, size.sequence);
        self.files.note_replaced(size.ino);
        self.map.set_owner(size.data_id, size.ino);
        self.update(size.ino, |node| {
            // The change contains the size, and all earlier data is gone: no content can be lost
            // any more.
            (node.regrow, node.unlogged_size) = (false, None);
            node.change(|inode| {
                (inode.data_id, inode.size, inode.stored_bytes) = (size.data_id, size.size, 0);
            });
        })?;
        self.names.note_inode(size.ino)
    }

    /// Gives out the next sequence number of content.
    pub fn draw(&mut self) -> u64 {
        self.names.draw_sequence()
    }
}

impl State {
    /// Whether the volume accepts changes.
    pub fn life(&self) -> &Lifecycle {
        &self.life
    }

    /// Why the last change was refused.
    pub fn refusal(&self) -> Refusal {
        self.refusal
    }

    /// An operation is tried, perhaps again: what was refused before does not count.
    pub fn begin_attempt(&mut self) {
        self.refusal = Refusal::default();
    }

    /// The volume is opened read-only.
    pub fn open_for_reading(&mut self) {
        self.life.open_for_reading();
    }

    /// Sets the limit on changes in memory while checkpoints fail (read_only.F12).
    pub fn bound_changes(&mut self, bytes: u64) {
        self.life.bound_changes(bytes);
    }

    /// A checkpoint has succeeded.
    pub fn note_checkpoint_made(&mut self) {
        self.life.checkpoint_succeeded();
    }

    /// A checkpoint has failed. A later one may succeed.
    pub fn note_checkpoint_failed(&mut self, error: Error) {
        self.life.checkpoint_failed(error);
    }

    /// Turns the volume read-only after the loss of data that every checkpoint needs
    /// (read_only.F11).
    pub fn stop(&mut self, why: Error) {
        self.life.stop(why);
    }

    /// Closes the volume if no record follows the mark of the checkpoint in progress, and no
    /// reservation exists. False otherwise.
    pub fn close_if_last(&mut self) -> bool {
        let ticket = self.tree.frozen_ticket();
        let is_last = self.queue.last_ticket() == ticket && self.space.reservations().is_empty();
        if is_last {
            self.life.close();
        }
        is_last
    }

    /// Applies `change` to each queued record, newest first
    /// ([`RecordQueue::rewrite`](crate::log::queue::RecordQueue)).
    pub fn rewrite_records(
        &mut self,
        change: impl FnMut(&mut Pending) -> Result<()>,
    ) -> Result<()> {
        self.queue.rewrite(change)
    }

    /// The content at this place was written again, with these sums.
    pub fn renew(&mut self, data_id: u64, at: Place, sums: &Arc<[u32]>) {
        self.map.renew(data_id, at, sums);
    }

    /// The error of the last checkpoint, if changes have reached their limit since (read_only.F12).
    pub fn overfull(&self) -> Option<&Error> {
        self.life.overfull(|| self.held().changes)
    }
}
