//! What the log has of some files, read back while the volume is open.
//!
//! A repair leaves content out of its record that the device has lost, and sizes that cover it. The
//! changes in memory still have both. Only the log, from the newest checkpoint on, knows what a
//! recovery would find in their place. So a checkpoint reads the log back, up to the record at
//! which it froze the changes, and merges what it finds.
//!
//! Invariants: Q2 no lost content gets into a tree, and no size that covers it and is in no record:
//! of each file of which something was left out, a checkpoint merges exactly what a recovery of its
//! records finds.
//!
//! Lock: the state lock in turn; none across a wait. The caller has the turn of checkpoints, so the
//! newest checkpoint stays what it is.

use super::walk::{Held, Walk};
use super::{Replay, corrupt};
use crate::fault::Planted;
use crate::format::change::{Change, Size};
use crate::format::inode::Inode;
use crate::format::item::Item;
use crate::format::key::Key;
use crate::format::record::Record;
use crate::format::superblock::Superblock;
use crate::format::usage::Stream;
use crate::log::Head;
use crate::map::file_map::FileMap;
use crate::map::overlay::{Piece, Where};
use crate::transaction::resources::Resources;
use crate::transaction::state::{State, piece_of};
use forebay_base::{Error, ErrorKind, Result};
use std::collections::{BTreeMap, BTreeSet};

/// The content and the sizes that the log has of some files.
struct Logged {
    /// The data ids that are wanted, with the inodes that had them.
    wanted: BTreeMap<u64, u64>,
    /// Changes of their content.
    map: FileMap,
    /// Data ids that ended.
    dead: BTreeSet<u64>,
    /// The data id and the size of each inode that exists.
    sizes: BTreeMap<u64, (u64, u64)>,
    max_blocks: u64,
    block_bytes: u64,
}

impl Logged {
    /// Applies a change, as [`State::apply`] does, as far as it concerns these files.
    fn apply(&mut self, change: &Change<'_>, record: &Record<'_>) -> Result<()> {
        match change {
            Change::Map(data_id, block, extent) if self.wanted.contains_key(data_id) => {
                let piece = piece_of(extent, Where::Run(record.resolve(extent)?));
                self.map.put(*data_id, *block, &piece);
            }
            Change::Punch(at, sequence) if self.wanted.contains_key(&at.data_id) => {
                self.map.put(at.data_id, at.block, &Piece::hole(at.blocks, *sequence));
            }
            Change::Truncate(size) => self.size(size, true),
            Change::Grow(size) => self.size(size, false),
            Change::ReplaceData(size, dead) => {
                self.drop_data(*dead);
                if let Some(there) = self.sizes.get_mut(&size.ino) {
                    *there = (size.data_id, size.size);
                }
            }
            Change::CreateInode(ino, inode, _) => self.note_inode(*ino, inode),
            Change::RemoveInode(ino, data_id, _) => {
                self.drop_data(*data_id);
                self.sizes.remove(ino);
            }
            _ => {}
        }
        Ok(())
    }

    fn note_inode(&mut self, ino: u64, inode: &Inode) {
        if self.wanted.values().any(|wanted| *wanted == ino) {
            self.sizes.insert(ino, (inode.data_id, inode.size));
        }
    }

    fn size(&mut self, size: &Size, cut: bool) {
        let there = self.sizes.get_mut(&size.ino);
        if let Some((_, there)) = there.filter(|(data_id, _)| *data_id == size.data_id) {
            *there = if cut { size.size.min(*there) } else { size.size.max(*there) };
        }
        if cut && self.wanted.contains_key(&size.data_id) {
            let first = size.size.div_ceil(self.block_bytes);
            let hole = Piece::hole(self.max_blocks - first, size.sequence);
            self.map.put(size.data_id, first, &hole);
        }
    }

    fn drop_data(&mut self, data_id: u64) {
        self.map.drop_data(data_id);
        self.dead.insert(data_id);
    }
}

impl Walk<'_> {
    /// Reads the records up to the head `until`, which are all durable.
    async fn read_until(&mut self, until: Head, logged: &mut Logged) -> Result<()> {
        while self.head.sequence < until.sequence {
            self.switch();
            let Some(mut held) = self.next().await? else { break };
            self.follow(&mut held)?;
            let Held { bytes, at, .. } = &held;
            let geometry = self.layout.geometry;
            let record = Record::reopen(bytes, *at, &geometry)?;
            for change in record.changes(&geometry) {
                logged.apply(&change?, &record)?;
            }
        }
        let is_there = (self.head.sequence, self.head.predecessor);
        if is_there == (until.sequence, until.predecessor) {
            return Ok(());
        }
        let text = format!("the log ends at record {}", self.head.sequence);
        match self.hidden.is_empty() {
            true => Err(corrupt("checkpoint", text)),
            // A later checkpoint may be able to read it.
            false => Err(Error::new(ErrorKind::Io, "checkpoint", text)),
        }
    }
}

impl Resources {
    /// Corrects the frozen changes of the files of which the repair left something out (Q2). Their
    /// records end at `until`, with the ticket `mark`.
    pub(crate) async fn correct_left_out(
        &self,
        superblock: &Superblock,
        until: Head,
        mark: u64,
    ) -> Result<()> {
        let (wanted, log, root) = {
            let state = self.state.lock();
            let left = state.files().sync_errors().left_out().iter();
            let wanted: BTreeMap<u64, u64> = left.map(|(id, left)| (*id, left.ino)).collect();
            if wanted.is_empty() {
                return Ok(());
            }
            let segments = state.space().segments().iter();
            let log = segments.filter(|(_, segment)| segment.stream == Stream::Log);
            let log: Vec<u32> = log.map(|(number, _)| number).collect();
            (wanted, log, state.tree().root())
        };
        let mut logged = Logged {
            wanted,
            map: FileMap::new(self.layout.geometry),
            dead: BTreeSet::new(),
            sizes: BTreeMap::new(),
            max_blocks: self.layout.geometry.max_blocks(),
            block_bytes: self.layout.block_bytes(),
        };
        for ino in logged.wanted.values().copied().collect::<BTreeSet<_>>() {
            let key = Key::Inode(ino);
            if let Some(found) = self.tree.get(&root, key).await?
                && let (_, Item::Inode(inode)) = found.decode(self.tree.geometry())?
            {
                logged.note_inode(ino, &inode);
            }
        }
        let (state, replay) = (State::new(self.layout), Replay::Complete);
        let (device, tree, options) = (&self.device, &self.tree, &self.options);
        let mut walk = Walk::new(device, tree, superblock, state, options, replay);
        walk.read_headers(log).await?;
        walk.read_until(until, &mut logged).await?;
        let mut state = self.state.lock();
        if self.plant.has(Planted::LostForgotten) {
            logged.wanted.keys().for_each(|data_id| state.forget_lost(*data_id));
        }
        for (data_id, ino) in logged.wanted {
            let is_dead = logged.dead.contains(&data_id);
            let content = (!is_dead).then(|| logged.map.take_overlay(data_id));
            let size = logged.sizes.get(&ino).copied();
            state.correct_left_out((data_id, ino), content, size, mark)?;
        }
        Ok(())
    }
}
