//! The steps of a checkpoint on the state: freeze, plan, settle; and what a failed one puts back.
//!
//! Lock: the state lock, held by the caller.

use super::{Frozen, MergedTree, ToMerge, TreeState, Written};
use crate::format::change::Change as Recorded;
use crate::format::item::Item;
use crate::format::key::{Key, KeyBytes};
use crate::format::place::Place;
use crate::format::superblock::{Superblock, TreeRoot};
use crate::map::overlay::{Overlay, Where};
use crate::space::admission::Growth;
use crate::space::segment::Plan;
use crate::transaction::state::State;
use forebay_base::Result;
use forebay_base::codec::Reader;
use std::sync::Arc;

impl State {
    /// Freezes the changes, which the record with this ticket ends. `is_half`: an injected fault.
    pub fn freeze(&mut self, ticket: u64, is_half: bool) {
        self.space.free_failed_nodes();
        let half = is_half.then(|| self.half_rename()).flatten();
        let (nodes, bytes) = (self.merge_nodes(Growth::default()), self.changes_bytes());
        let items = Arc::new(self.names.freeze());
        self.map.freeze(self.names.counters().next_data_id());
        let before = self.space.freeze_all();
        self.tree.frozen = Some(Frozen {
            items,
            in_flight: self.space.reservations().keys().collect(),
            is_merged: false,
            before,
            counters: self.names.counters().snapshot(),
            inodes: self.names.inode_count(),
            ticket,
            nodes,
            bytes,
        });
        half.into_iter().for_each(|name| self.names.put_item(name, None));
    }

    /// The frozen changes.
    pub fn to_merge(&self) -> Option<ToMerge> {
        let (data, frozen) = (self.map.frozen()?, self.tree.frozen.as_ref()?);
        Some(ToMerge { data: data.clone(), items: frozen.items.clone() })
    }

    /// Puts the frozen changes of a failed checkpoint back below the newer ones. `places`: those of
    /// its nodes. `is_named`: a slot that names them may be on the device (nodes.N16).
    pub fn thaw(&mut self, places: Vec<Place>, is_named: bool) {
        self.thaw_changes();
        self.space.keep_failed_nodes(places, is_named);
    }

    fn thaw_changes(&mut self) {
        let Some(frozen) = self.tree.frozen.take_if(|frozen| !frozen.is_merged) else { return };
        self.map.thaw();
        self.names.thaw(Arc::unwrap_or_clone(frozen.items));
        // The freeze assumed that this checkpoint would count these runs.
        for (_, piece) in self.map.changes().values().flat_map(Overlay::pieces) {
            if let Where::Run(place) = piece.at {
                self.space.touch(place.segment);
            }
        }
    }

    /// Drops the merged changes, when no reservation from before the freeze is left
    /// (checkpoint.H14).
    pub fn drop_shadow(&mut self) {
        let is_over = |frozen: &mut Frozen| frozen.is_merged && frozen.in_flight.is_empty();
        if self.tree.frozen.take_if(is_over).is_some() {
            self.map.drop_frozen();
        }
    }

    /// The usage of segments after a checkpoint that writes this. Stores the frozen numbers in
    /// `superblock`. `is_early`: an injected fault.
    pub fn plan_checkpoint(
        &mut self,
        written: Written<'_>,
        superblock: &mut Superblock,
        is_early: bool,
    ) -> Result<Plan> {
        let Written { number, mut deltas, taken, given_up } = written;
        self.space.count_nodes(taken, given_up, &mut deltas);
        let frozen = self.tree.frozen.as_ref().expect("until it is settled");
        let plan = self.space.plan(&frozen.before, deltas, number, is_early)?;
        frozen.counters.store(superblock);
        superblock.inode_count = frozen.inodes;
        Ok(plan)
    }

    /// Completes checkpoint `number`, which is durable: the tree has the frozen changes. `plan` has
    /// the usage of segments, and `given_up` places of nodes. `is_early`: an injected fault.
    pub fn settle_checkpoint(
        &mut self,
        merged: MergedTree,
        (plan, given_up): (&Plan, Vec<Place>),
        number: u64,
        is_early: bool,
    ) {
        self.tree.root = merged.root;
        self.tidy_windows();
        self.tree.nodes = self.tree.nodes.saturating_add_signed(merged.nodes);
        self.space.settle_checkpoint(plan, given_up, number);
        if is_early {
            self.settle_repeated(number);
        }
        if let Some(frozen) = &mut self.tree.frozen {
            frozen.is_merged = true;
            self.map.note_merged();
            let reservations = self.space.reservations();
            frozen.in_flight.retain(|key| reservations.contains(*key));
        }
        self.drop_shadow();
        for (data_id, (ino, bytes)) in merged.stored {
            self.store_bytes(ino, data_id, bytes);
        }
        self.remove_left();
    }

    /// Completes checkpoint `number`, which is durable and has the trees of the one before.
    pub fn settle_repeated(&mut self, number: u64) {
        self.space.settle_repeated(number);
    }

    /// Replaces the frozen content of some data, and the frozen size of its inode, by those that
    /// the log has. Its records end with the ticket `mark`. `content`: `None` if the data has
    /// ended.
    pub fn correct_left_out(
        &mut self,
        (data_id, ino): (u64, u64),
        content: Option<Option<Overlay>>,
        size: Option<(u64, u64)>,
        mark: u64,
    ) -> Result<()> {
        if let Some(content) = content {
            self.map.correct_frozen(data_id, content);
        }
        match self.correct_size(ino, size)? {
            // The next checkpoint corrects this size, and what was left out since.
            true => self.leave_out_after(data_id, ino, mark + 1),
            false => self.note_corrected(data_id, mark),
        }
        Ok(())
    }

    /// The tree of a checkpoint that an opening has read, and the data id below which it may have
    /// content.
    pub fn load_tree(&mut self, root: TreeRoot, next_data_id: u64) {
        self.tree = TreeState::of(root);
        self.map.set_tree_data_ids(next_data_id);
    }

    /// Sets the number of nodes of the tree, which an opening has counted.
    pub fn set_node_count(&mut self, nodes: u64) {
        self.tree.set_node_count(nodes);
    }

    /// These bytes of recorded content were moved, and are not new.
    pub fn uncount_fresh(&mut self, bytes: u64) {
        self.map.uncount_fresh(bytes);
    }

    /// An injected fault: forgets that content of this data is lost.
    pub fn forget_lost(&mut self, data_id: u64) {
        self.map.forget_lost(data_id);
    }

    /// Corrects the frozen size of an inode, which has this data id and size in the log. Returns
    /// whether the inode has changed since the freeze: then its size in memory is not known.
    fn correct_size(&mut self, ino: u64, logged: Option<(u64, u64)>) -> Result<bool> {
        let Some((data_id, size)) = logged else { return Ok(false) };
        let (key, geometry) = (Key::Inode(ino), self.layout.geometry);
        if let Some(frozen) = &mut self.tree.frozen
            && let Some(Some(value)) = frozen.items.get(key)
            && let Item::Inode(mut inode) = Item::decode(key, value, &geometry)?
            && inode.data_id == data_id
            && inode.size > size
        {
            inode.size = size;
            let items = std::sync::Arc::make_mut(&mut frozen.items);
            items.item(key, &Item::Inode(inode), &geometry)?;
        }
        if self.names.items().get(key).is_some() {
            return Ok(true);
        }
        let has_lost = self.has_lost(data_id);
        self.names.update(ino, |node| {
            if node.recorded.data_id == data_id {
                node.recorded.size = node.recorded.size.min(size);
                node.regrow = has_lost || size < node.inode.size;
                node.regrown = size;
            }
        });
        Ok(false)
    }

    /// An injected fault: removes the deletion of the old name, of the last rename in the queue,
    /// from the changes that the checkpoint merges.
    fn half_rename(&mut self) -> Option<KeyBytes> {
        let mut gone = None;
        for record in self.queue.iter() {
            let mut reader = Reader::new("record", &record.body);
            while reader.remaining() > 0 {
                let geometry = &self.layout.geometry;
                match Recorded::decode(&mut reader, geometry).ok()? {
                    Some(Recorded::Rename(rename)) if !rename.exchange => {
                        gone = Some(Key::Entry(rename.from.dir, rename.from.cookie).to_bytes());
                    }
                    _ => {}
                }
            }
        }
        gone.inspect(|name| self.names.forget_item(name))
    }

    /// Adds `bytes` to a file's stored bytes, which the tree now has.
    fn store_bytes(&mut self, ino: u64, data_id: u64, bytes: i64) {
        let is_stored = self.names.update(ino, |node| {
            let is_own = node.recorded.data_id == data_id && bytes != 0;
            if is_own {
                let stored = node.recorded.stored_bytes.saturating_add_signed(bytes);
                (node.recorded.stored_bytes, node.inode.stored_bytes) = (stored, stored);
            }
            is_own
        });
        match is_stored {
            None => return self.store_bytes_of_item(ino, data_id, bytes),
            Some(false) => return,
            Some(true) => {}
        }
        if self.names.items().get(Key::Inode(ino)).is_some()
            && let Err(error) = self.names.note_inode(ino)
        {
            log::error!("inode {ino} cannot be stored: {error}");
        }
    }

    /// As [`State::store_bytes`], for an inode that is not in memory and has changed again.
    fn store_bytes_of_item(&mut self, ino: u64, data_id: u64, bytes: i64) {
        let (key, geometry) = (Key::Inode(ino), self.layout.geometry);
        let Some(Some(value)) = self.names.items().get(key) else { return };
        let Ok(Item::Inode(mut inode)) = Item::decode(key, value, &geometry) else { return };
        if inode.data_id == data_id {
            inode.stored_bytes = inode.stored_bytes.saturating_add_signed(bytes);
            if let Err(error) = self.names.note_stored_inode(ino, inode) {
                log::error!("inode {ino} cannot be stored: {error}");
            }
        }
    }
}
