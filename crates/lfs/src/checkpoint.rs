//! Checkpoints: merge the changes since the last one into the trees, and write a slot of the
//! superblock that names the new roots.
//!
//! ```text
//!   freeze (state lock: changes of content and names become the frozen ones, a mark is queued)
//!     > commit up to the mark ............ everything frozen is durable, and has a place
//!     > merge content, then names ........ nodes in new places, usage counted
//!     > usage table, rewritten ........... its places were taken before it was counted
//!     > flush > slots > flush ............ durable
//!     > settle ........................... new root in memory, dead places may become free
//!   any step fails: the frozen changes are put back below the newer ones; the old root holds
//! ```
//! Invariants: H11 a checkpoint contains exactly the records up to its mark (a record without
//! changes, queued at the freeze), or up to the record that a replay in parts has reached. H12 a
//! slot is written after everything that it refers to was flushed. H13 a checkpoint succeeds only
//! if no write or flush failed between its first node and its last slot. H14 a task that reserved
//! space before the freeze may still look up older content in the frozen changes. So the next
//! freeze waits until such tasks have ended. H18 after the task of a checkpoint was dropped, the
//! next one begins only when the device has ended every write of nodes and slots. A late slot would
//! replace a newer one, and refer to freed nodes. H19 a checkpoint that follows a failed one, with
//! no record in between, queues no mark of its own. So failing checkpoints take no more of the log
//! than the records between them were granted.
//!
//! Locks: the state lock and the log's in turn, never both; none across a wait. One checkpoint is
//! made at a time.

pub(crate) mod changes;
mod close;
mod discard;
mod free;
mod making;
mod read_only;
mod repeat;
mod stats;

pub use stats::CheckpointStats;

use crate::btree::map::MapChanges;
use crate::btree::{Change, Ledger};
use crate::checkpoint::changes::{find_owners, overlaid, pieces_of};
use crate::device::hold::{Hold, TurnLock};
use crate::fault::Planted;
use crate::files::open_files::OpenFiles;
use crate::format::item::Item;
use crate::format::key::Key;
use crate::format::place::Place;
use crate::format::superblock::{FILES_TREE, STATE_CLEAN, Superblock, TreeRoot};
use crate::log::{ANY, Head};
use crate::map::overlay::{Overlay, Where};
use crate::names::items::Items;
use crate::space::nodes::NodeOwner;
use crate::space::segment::{Deltas, Plan};
use crate::space::usage_table::write_usage;
use crate::transaction::resources::Resources;
use crate::transaction::tree_state::{MergedTree, ToMerge, Written};
use forebay_base::sync::Mutex;
use forebay_base::{Error, ErrorKind, Result};
use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;

/// Where the log of a checkpoint begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum How {
    /// After a mark.
    Log,
    /// After a mark, in a new log segment: the previous one is left, so that it becomes free.
    Moving,
    /// After a mark, and nothing follows: the volume is closed.
    Close,
    /// In an unused segment: there is no log yet.
    Fresh,
    /// Behind the last record that a replay in parts has applied (bounded.R27).
    Replayed,
}

/// Makes checkpoints, one at a time.
pub(crate) struct Checkpoints {
    files: Arc<OpenFiles>,
    turn: Mutex<Turn>,
    /// Taken by the task that makes a checkpoint, and held by its writes (H18).
    pub turns: TurnLock,
    /// Places of the nodes of the usage table.
    usage: Mutex<Vec<[Place; 2]>>,
    usage_nodes: u64,
}

struct Turn {
    stats: CheckpointStats,
    superblock: Superblock,
    /// A checkpoint that closes the volume: its slot may be on the device, but is not known to be
    /// durable (close.H16).
    closing: Option<Settled>,
    /// Number of segments whose discard before reuse has ended, also with an error.
    discarded: u64,
    /// Free segments that are not discarded yet, for an injected fault.
    late: Vec<u32>,
    /// Ticket of the mark with which the newest checkpoint ends; 0: it has none of this life.
    mark: u64,
    /// The highest number under which a slot may have a state that is not the newest durable one,
    /// and names nodes that are held or seem to be free (nodes.N16); 0: none.
    doubtful: u64,
    /// The highest number under which a slot was written since the volume was opened.
    attempted: u64,
}

impl Deref for Checkpoints {
    type Target = Resources;

    fn deref(&self) -> &Resources {
        &self.files
    }
}

/// Result of merging into the tree of files.
struct Merged {
    root: TreeRoot,
    ledger: Ledger,
    deltas: Deltas,
    /// By data id: its inode, and the change of its stored bytes.
    stored: BTreeMap<u64, (u64, i64)>,
    nodes: i64,
    changed_leaves: u64,
    written_nodes: u64,
}

impl Checkpoints {
    /// For a volume whose newest slot is `superblock`, and whose usage table has these nodes.
    pub fn new(
        files: Arc<OpenFiles>,
        superblock: Superblock,
        usage: Vec<[Place; 2]>,
        usage_nodes: u64,
    ) -> Self {
        let (discarded, late) = (0, Vec::new());
        let stats = CheckpointStats::default();
        let (closing, mark, doubtful, attempted) = (None, 0, 0, 0);
        let turn = Turn { stats, superblock, closing, discarded, late, mark, doubtful, attempted };
        let (turn, usage) = (Mutex::new(turn), Mutex::new(usage));
        Self { files, turn, turns: TurnLock::new(), usage, usage_nodes }
    }

    /// The newest slot.
    pub fn superblock(&self) -> Superblock {
        self.turn.lock().superblock.clone()
    }

    /// Number of the newest checkpoint.
    pub fn number(&self) -> u64 {
        self.turn.lock().superblock.checkpoint
    }

    /// Number of merged checkpoints since the volume was opened: each counts the live bytes of
    /// segments again.
    pub fn merged(&self) -> u64 {
        self.stats().checkpoints
    }

    /// Counters since the volume was opened.
    pub fn stats(&self) -> CheckpointStats {
        self.turn.lock().stats
    }

    /// Waits until the checkpoint in progress has ended.
    pub async fn made(&self) {
        drop(self.turns.take().await);
    }
}

impl NodeOwner for Checkpoints {
    fn take_node(&self) -> Result<[Place; 2]> {
        self.state.lock().take_node()
    }

    fn hold(&self) -> Hold {
        self.turns.hold()
    }

    fn writes_failed(&self, offsets: &[u64]) {
        Resources::writes_failed(self, offsets);
    }
}

impl Checkpoints {
    /// Makes a checkpoint. After an error the previous one is valid, and no change is lost.
    pub async fn make(&self, how: How) -> Result<()> {
        let guard = self.turns.take().await;
        let mut done = self.checkpoint_in_turn(how).await;
        if how == How::Log && self.plant.has(Planted::CheckpointRepeats) {
            for _ in 0..300 {
                done = done.and(self.checkpoint_in_turn(how).await);
            }
        }
        self.discard_freed().await;
        drop(guard);
        done
    }

    /// Freezes the changes, makes them durable, merges them, and writes the slots. Called by
    /// [`Checkpoints::checkpoint_in_turn`] only.
    pub(crate) async fn attempt(&self, how: How) -> Result<()> {
        let free = || {
            let mut state = self.state.lock();
            state.drop_shadow();
            (!state.tree().has_frozen()).then_some(())
        };
        self.reservation_ended.wait_until(free).await;
        self.free_named().await?;
        let unused = self.unused_mark();
        let ticket = {
            let mut state = self.state.lock();
            if state.life().is_closed() {
                return Ok(());
            }
            let ticket = match how {
                How::Fresh | How::Replayed => 0,
                How::Log | How::Close if unused == Some(state.queue().last_ticket()) => {
                    state.queue().last_ticket()
                }
                How::Log | How::Close => state.append_cut(false),
                How::Moving => state.append_cut(true),
            };
            state.freeze(ticket, self.plant.has(Planted::HalfRename));
            ticket
        };
        let mut making = self.begin();
        if ticket > 0 {
            self.commit(ticket, false).await?;
        }
        let head = self.cut_head(ticket)?;
        self.resolved().await;
        self.correct_left_out(&self.superblock(), head, ticket).await?;
        let failures = self.log.failures();
        let number = self.superblock().checkpoint + 1;
        let ToMerge { data, items } = self.state.lock().to_merge().expect("it was frozen above");
        let taken = &mut making.taken;
        let done = self.write_checkpoint(how, head, number, (&data, &items), failures, taken);
        let done = done.await;
        drop((data, items));
        let mut settled = done?;
        settled.mark = ticket;
        if settled.superblock.state == STATE_CLEAN {
            making.is_over = true;
            self.turn.lock().closing = Some(settled);
            return self.write_last_slot().await;
        }
        making.is_named = true;
        let copies = self.write_slots(&mut settled.superblock, failures).await?;
        making.is_over = true;
        let number = settled.superblock.checkpoint;
        self.settle(settled, number);
        if how == How::Fresh { copies.for_a_life() } else { Ok(()) }
    }

    /// The head of the log at which the checkpoint's log begins.
    fn cut_head(&self, ticket: u64) -> Result<Head> {
        let ctl = self.log.ctl.lock();
        match ctl.cut {
            _ if ticket == 0 => Ok(ctl.head),
            Some((cut, head)) if cut == ticket => Ok(head),
            _ => Err(Error::new(ErrorKind::Io, "checkpoint", "its mark went astray")),
        }
    }

    /// Waits until the places of all frozen content are known. The content is durable already.
    async fn resolved(&self) {
        let resolved = || {
            // Under the lock, without a reference of its own: a task that sets places would
            // otherwise change a copy of the overlays.
            let state = self.state.lock();
            let frozen = state.map().frozen();
            let staged = frozen.is_some_and(|changes| changes.values().any(Overlay::is_staged));
            (!staged).then_some(())
        };
        self.log.wait_for(ANY, resolved).await;
    }
}

/// A checkpoint of which everything but the slot is durable.
struct Settled {
    merged: Merged,
    usage: Vec<[Place; 2]>,
    given_up: Vec<Place>,
    plan: Plan,
    superblock: Superblock,
    /// The ticket of its mark.
    mark: u64,
}

impl Checkpoints {
    async fn write_checkpoint(
        &self,
        how: How,
        head: Head,
        number: u64,
        frozen: (&BTreeMap<u64, Overlay>, &Items),
        failures: u64,
        taken: &mut Ledger,
    ) -> Result<Settled> {
        let mut merged = self.merge(frozen.0, frozen.1, number, taken).await?;
        let mut usage = Vec::new();
        for _ in 0..self.usage_nodes {
            usage.push(self.store.take()?);
            taken.taken.extend(usage.last());
        }
        let old_usage = self.usage.lock().clone();
        let given_up = [taken.freed.concat(), old_usage.concat()].concat();
        let (plan, mut superblock) = {
            let deltas = std::mem::take(&mut merged.deltas);
            let written =
                Written { number, deltas, taken: &taken.taken.concat(), given_up: &given_up };
            let mut superblock = self.superblock();
            let is_early = self.plant.has(Planted::SegmentReusedEarly);
            let plan = self.state.lock().plan_checkpoint(written, &mut superblock, is_early)?;
            (plan, superblock)
        };
        let table = write_usage(&self.tree, &self.store, &plan.entries, &usage, number).await?;
        let is_early = how == How::Fresh && self.plant.has(Planted::UnflushedRecovery)
            || self.plant.has(Planted::SlotBeforeNodes);
        if !is_early {
            self.flush_all().await?;
        }
        self.unfailed(failures)?;
        superblock.trees = vec![merged.root, table];
        superblock.checkpoint = number;
        superblock.generation = head.generation;
        superblock.log_head = match (head.segment, head.offset) {
            (Some(segment), 0) => Place::new(segment, self.layout.first_record()),
            (Some(segment), offset) => Place::new(segment, offset),
            (None, _) => {
                return Err(Error::new(ErrorKind::Io, "checkpoint", "the log has no head"));
            }
        };
        (superblock.log_sequence, superblock.log_predecessor) = (head.sequence, head.predecessor);
        superblock.state = if how == How::Close && self.seal()? { STATE_CLEAN } else { 0 };
        Ok(Settled { merged, usage, given_up, plan, superblock, mark: 0 })
    }

    /// Writes a slot for a volume that was closed and is opened again, with the new generation,
    /// before anything else is written.
    pub(crate) async fn begin_life(&self) -> Result<()> {
        let head = self.log.ctl.lock().head;
        let failures = self.log.failures();
        let mut superblock = self.superblock();
        superblock.checkpoint += 1;
        superblock.state = 0;
        superblock.generation = head.generation;
        let segment = head.segment.unwrap_or_default();
        superblock.log_head = Place::new(segment, self.layout.first_record());
        superblock.next_sequence = self.state.lock().counters().next_sequence();
        let copies = self.write_slots(&mut superblock, failures).await?;
        let number = superblock.checkpoint;
        {
            let mut state = self.state.lock();
            let mut turn = self.turn.lock();
            (turn.superblock, turn.doubtful) = (superblock, 0);
            state.settle_repeated(number);
        }
        self.discard_freed().await;
        copies.for_a_life()
    }

    /// Fails if a write or flush has failed since `failures` was read (H13).
    fn unfailed(&self, failures: u64) -> Result<()> {
        match self.log.failures() == failures || self.plant.has(Planted::SwallowedFlushError) {
            true => Ok(()),
            false => Err(self.log.failed_meanwhile("checkpoint")),
        }
    }

    /// Completes a checkpoint that is durable.
    fn settle(&self, settled: Settled, number: u64) {
        let Settled { merged, usage, given_up, plan, superblock, mark } = settled;
        let mut pairs = merged.ledger.freed.clone();
        pairs.append(&mut self.usage.lock());
        self.tree.cache().forget(&pairs);
        *self.usage.lock() = usage;
        {
            let mut turn = self.turn.lock();
            (turn.superblock, turn.mark) = (superblock, mark);
            turn.stats.checkpoints += 1;
            turn.stats.changed_leaves += merged.changed_leaves;
            turn.stats.written_nodes += merged.written_nodes;
        }
        let Merged { root, nodes, stored, .. } = merged;
        let merged = MergedTree { root, nodes, stored };
        let is_early = self.plant.has(Planted::NodesReusedEarly);
        self.state.lock().settle_checkpoint(merged, (&plan, given_up), number, is_early);
        self.files.tidy(None, usize::MAX);
    }

    /// Merges the frozen changes: content first, so that inodes get their stored bytes.
    async fn merge(
        &self,
        data: &BTreeMap<u64, Overlay>,
        items: &Items,
        number: u64,
        ledger: &mut Ledger,
    ) -> Result<Merged> {
        let root = self.state.lock().tree().root();
        let mut deltas = Deltas::new();
        let mut stored: BTreeMap<u64, (u64, i64)> = BTreeMap::new();
        let block_bytes = self.layout.block_bytes();
        for (data_id, overlay) in data {
            for (_, piece) in overlay.pieces() {
                let Where::Run(place) = piece.at else { continue };
                let bytes = (piece.blocks * block_bytes) as i64;
                let delta = deltas.entry(place.segment).or_default();
                delta.bytes += bytes;
                delta.youngest = delta.youngest.max(piece.birth);
                stored.entry(*data_id).or_insert((overlay.owner, 0)).1 += bytes;
            }
        }
        let pieces = pieces_of(data);
        let mut given_up = |gone: crate::btree::GivenUp| {
            let bytes = i64::from(gone.bytes);
            deltas.entry(gone.place.segment).or_default().bytes -= bytes;
            let owner = data.get(&gone.data_id).map_or(0, |overlay| overlay.owner);
            let said = if self.plant.has(Planted::StoredBytesDrift) { 0 } else { bytes };
            stored.entry(gone.data_id).or_insert((owner, 0)).1 -= said;
        };
        let mut changes = MapChanges::new(&self.tree, root, pieces, &mut given_up);
        let content = self.tree.merge(&root, &mut changes, number, ledger).await?;
        drop(changes);
        find_owners(&self.tree, &content.root, (data, items), &mut stored).await?;
        let patches = self.inodes(&content.root, items, &stored).await?;
        let mut changes = overlaid(items.changes(), patches);
        let names = self.tree.merge(&content.root, &mut changes, number, ledger).await?;
        let written_nodes = content.written + names.written;
        let nodes = written_nodes as i64 - (content.replaced + names.replaced) as i64;
        let changed_leaves = content.touched_leaves + names.touched_leaves;
        let (root, ledger) = (names.root, ledger.clone());
        Ok(Merged { root, ledger, deltas, stored, nodes, changed_leaves, written_nodes })
    }

    /// Changes of inodes whose stored bytes have changed.
    async fn inodes(
        &self,
        root: &TreeRoot,
        items: &Items,
        stored: &BTreeMap<u64, (u64, i64)>,
    ) -> Result<BTreeMap<u64, Change>> {
        let geometry = &self.layout.geometry;
        let mut out = BTreeMap::new();
        for (data_id, (ino, bytes)) in stored {
            if *ino == 0 || *bytes == 0 {
                continue;
            }
            let key = Key::Inode(*ino);
            let in_tree;
            let value = match items.get(key) {
                Some(value) => value,
                None => {
                    in_tree = self.tree.get(root, key).await?;
                    in_tree.as_ref().map(|found| found.raw().1)
                }
            };
            let Some(value) = value else { continue };
            let Item::Inode(mut inode) = Item::decode(key, value, geometry)? else { continue };
            if inode.data_id == *data_id {
                inode.stored_bytes = inode.stored_bytes.saturating_add_signed(*bytes);
                out.insert(*ino, Change::put(key, &Item::Inode(inode), geometry)?);
            }
        }
        Ok(out)
    }
}

/// The root of a tree in a slot.
pub(crate) fn root_of(superblock: &Superblock, tree: u64) -> Result<TreeRoot> {
    let found = superblock.trees.iter().find(|root| root.tree == tree);
    let which = if tree == FILES_TREE { "files" } else { "usage" };
    let missing =
        || Error::new(ErrorKind::Corrupt, "open", format!("the slot has no tree of {which}"));
    found.copied().ok_or_else(missing)
}
