//! Looks at the state that may find that something is not in memory; and the state as the rules of names
//! see it ([`rules::View`]).
//!
//! ```text
//!   lock ─▶ try ─▶ done ─▶ let go of what is too much ─▶ unlock
//!            ▲ └─ missing ─▶ unlock ─▶ read it from the tree ─▶ lock ─▶ insert ─┐
//!            └──────────────────────────────────────────────────────────────────┘
//! ```
//! Invariants: Q11 what ends with `Missing` has changed nothing. Q12 what was loaded for a try is there when
//! it is tried again: it is not let go while somebody waits who began before. Q13 whoever changes names
//! or reserves room waits where too much of what has changed is in memory only.
//!
//! Lock: the state lock; never across a wait.

use crate::checkpoint::How;
use crate::format::change::Change;
use crate::format::key::{Cookie, Key, NameHash};
use crate::format::superblock::TreeRoot;
use crate::names::directory::Child as Entered;
use crate::names::evict::{Ahead, INODES_OF_LEAF};
use crate::names::inode::kind_of;
use crate::names::load;
use crate::names::node::Node;
use crate::names::scan_cache::LEAF_BYTES;
use crate::space::Need;
use crate::transaction::state::State;
use crate::volume::Inner;
use forebay_base::sync::atomic::Ordering;
use forebay_base::{Error, ErrorKind, Result};
use forebay_vfs::rules::{self, At, Child, Seen};
use forebay_vfs::{Attr, Ino, Timestamp};

/// What is not in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Want {
    /// An inode, with what hangs on it but for entries.
    Inode(u64),
    /// Entries of a directory: those about this cookie.
    Entries(u64, Cookie),
}

/// What ends a try.
#[derive(Debug)]
pub(crate) enum Stop {
    /// For good.
    Failed(Error),
    /// Until this is loaded.
    Missing(Want),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// A try, and how it went.
pub(crate) type Tried<T> = std::result::Result<T, Stop>;

impl Stop {
    /// For a look at an inode that somebody has open: it is in memory.
    pub fn open(self) -> Error {
        match self {
            Self::Failed(error) => error,
            Self::Missing(want) => {
                let text = format!("{want:?} of an open file is not in memory");
                Error::new(ErrorKind::Io, "look", text)
            }
        }
    }
}

/// Somebody who waits for what he misses (Q12).
struct Waiter<'a> {
    inner: &'a Inner,
    since: u64,
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        self.inner.state.lock().cache.end_wait(self.since);
    }
}

/// Records that wait to be written, at most, before somebody who makes more writes them.
const QUEUE_MAX: usize = 4096;
/// The same, bytes of content in them.
const QUEUE_BYTES_MAX: u64 = 4 << 20;

/// What an operation leaves to do.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Relief {
    None,
    /// The queue is long.
    Commit,
    /// So much has changed that it is to be merged into the tree.
    Checkpoint,
}

impl Inner {
    /// Carries an operation out, and loads what it misses. It is given now.
    pub(crate) async fn tried<T>(
        &self,
        mut op: impl FnMut(&mut State, Timestamp) -> Tried<T>,
    ) -> Result<T> {
        let (mut waiter, mut made_room, mut relieved) = (None, false, false);
        loop {
            let now = self.options.clock.now();
            let (tried, relief, held, waits, is_refused) = {
                let mut state = self.state.lock();
                state.cache.bytes_max = self.memory.names_max();
                state.fate.is_refused = false;
                let mut tried = op(&mut state, now);
                while let Err(Stop::Missing(want)) = tried {
                    match state.insert_from_window(want) {
                        Ok(true) => tried = op(&mut state, now),
                        Ok(false) => break,
                        Err(error) => tried = Err(error.into()),
                    }
                }
                match &tried {
                    Ok(_) => state.evict(),
                    Err(Stop::Missing(_)) if waiter.is_none() => {
                        waiter = Some(Waiter { inner: self, since: state.cache.wait() });
                    }
                    Err(_) => {}
                }
                let is_refused = state.fate.is_refused;
                (tried, self.relief(&state), state.held(), !state.queue.is_empty(), is_refused)
            };
            self.note_memory(held);
            if waits {
                self.arm_age();
            }
            match tried {
                Ok(done) => {
                    if relief != Relief::None {
                        self.owed_first().await;
                    }
                    if let Err(error) = self.relieve(relief).await {
                        log::warn!("changes wait to be written: {error}");
                    }
                    return Ok(done);
                }
                Err(Stop::Missing(want)) => self.load(want).await?,
                Err(Stop::Failed(error)) if error.kind() == ErrorKind::NoSpace && !made_room => {
                    made_room = true;
                    // Only where dirt may be what lacks: other things are refused for other reasons.
                    let block = self.layout.block_bytes();
                    if !self.state.lock().has_room(block, Need::New) {
                        self.write_out_dirt().await;
                    }
                    if !self.make_room().await {
                        return Err(error);
                    }
                }
                Err(Stop::Failed(_)) if is_refused && !relieved => {
                    relieved = true;
                    self.checkpoint(How::Log).await?;
                }
                Err(Stop::Failed(error)) => return Err(error),
            }
        }
    }

    /// What is to be done about what waits (Q13): nothing by who may not write (O13).
    fn relief(&self, state: &State) -> Relief {
        if state.is_read_only {
            return Relief::None;
        }
        let waits = state.changes_bytes();
        // What is frozen takes as much.
        let most = match &state.frozen {
            Some(_) => self.options.overlay_bytes / 2,
            None => self.options.overlay_bytes / 4 * 3,
        };
        match state.queue.len() > QUEUE_MAX || state.queued_bytes > QUEUE_BYTES_MAX {
            _ if waits > most => Relief::Checkpoint,
            true => Relief::Commit,
            false => Relief::None,
        }
    }

    async fn relieve(&self, relief: Relief) -> Result<()> {
        match relief {
            Relief::None => Ok(()),
            Relief::Commit => self.commit_queue().await,
            Relief::Checkpoint => self.checkpoint(How::Log).await,
        }
    }

    /// Too much waits in memory (Q13).
    pub(crate) fn is_crowded(&self) -> bool {
        self.relief(&self.state.lock()) != Relief::None
    }

    /// Writes what waits, if it is too much.
    pub(crate) async fn relieve_now(&self) -> Result<()> {
        let relief = self.relief(&self.state.lock());
        self.relieve(relief).await
    }

    /// Attributes of inodes as they stand together in a listing: what lies beside one that is missing comes
    /// with it, for it is listed, too, in another order.
    pub(crate) async fn attrs_listed(&self, inos: &[Ino]) -> Vec<Result<Attr>> {
        let (mut all, mut ahead) = (Vec::with_capacity(inos.len()), None);
        while let Some(rest) = inos.get(all.len()..).filter(|rest| !rest.is_empty()) {
            let there = self.tried(|state, _| Ok(state.attrs_there(rest))).await;
            all.extend(there.unwrap_or_default());
            let Some(ino) = inos.get(all.len()).copied() else { break };
            let ahead = *ahead.get_or_insert_with(|| self.state.lock().listed_ahead(rest));
            // What cannot be read whoever needs it finds out.
            if let Err(error) = self.load_with(Want::Inode(ino.0), Some(ahead)).await {
                log::debug!("neighbours of {ino:?}: {error}");
            }
            all.push(self.tried(|state, _| state.attr("getattr", ino)).await);
        }
        all
    }

    /// Brings something into memory.
    async fn load(&self, want: Want) -> Result<()> {
        self.load_with(want, None).await
    }

    /// The same, with so much beside it.
    async fn load_with(&self, want: Want, beside: Option<Ahead>) -> Result<()> {
        loop {
            let (root, ahead) = {
                let state = self.state.lock();
                (state.root, beside.unwrap_or_else(|| state.ahead(want)))
            };
            if let Want::Entries(dir, _) = want {
                self.read_on(root, Key::Entry(dir, Cookie::FIRST), ahead.meanwhile);
            }
            let part = load::read(&self.tree, root, want, ahead).await;
            let mut state = self.state.lock();
            if state.root != root {
                // What was read may be of places that were used again.
                continue;
            }
            let part = part?;
            let next = part.end();
            let is_there = match ahead.is_window {
                true => state.insert_window(want, part)?,
                false => state.insert_part(want, part)?,
            };
            drop(state);
            if is_there {
                if let (Want::Inode(_), Ok(next)) = (want, Key::decode(next.as_slice())) {
                    self.read_on(root, next, ahead.meanwhile);
                }
                return Ok(());
            }
        }
    }
}

impl Inner {
    /// Somebody goes through inodes in order, or through a directory: the leaves that he comes to next are
    /// read meanwhile.
    fn read_on(&self, root: TreeRoot, from: Key, leaves: usize) {
        // They are looked at before they are let go for others.
        let fits = 4 * leaves * LEAF_BYTES <= self.tree.cache().budget_bytes();
        if leaves == 0 || !fits || self.is_reading_on.swap(true, Ordering::AcqRel) {
            return;
        }
        let me = self.me.clone();
        let task = async move {
            let Some(inner) = me.upgrade() else { return };
            if let Err(error) = inner.tree.read_ahead(&root, from, leaves).await {
                // Whoever needs it finds out.
                log::debug!("reading on in the tree: {error}");
            }
            inner.is_reading_on.store(false, Ordering::Release);
        };
        self.world.spawn("forebay-lfs ahead", Box::pin(task));
    }
}

impl rules::View for State {
    type Stop = Stop;

    fn inode(&self, ino: Ino) -> Tried<Option<Seen>> {
        let seen = |node: &Node| Seen {
            kind: node.kind(),
            perm: node.perm(),
            nlink: node.inode.nlink,
            gid: node.inode.gid,
            parent: Ino(node.inode.parent),
            is_open: node.opens > 0,
            is_linkable: node.linkable,
        };
        Ok(self.look(ino.0)?.map(seen))
    }

    fn entry(&self, at: At<'_>) -> Tried<Option<Child>> {
        let found = self.entry_of(at)?;
        Ok(found.map(|(_, (ino, kind))| (Ino(ino), kind_of(kind))))
    }

    fn has_entries(&self, dir: Ino) -> Tried<bool> {
        // The size of a directory is the number of its entries.
        Ok(self.look(dir.0)?.is_some_and(|node| node.inode.size > 0))
    }
}

impl State {
    /// Attributes of the first of some inodes, as far as they are in memory.
    fn attrs_there(&self, inos: &[Ino]) -> Vec<Result<Attr>> {
        let mut all = Vec::with_capacity(inos.len());
        for ino in inos {
            match self.attr("getattr", *ino) {
                Ok(attr) => all.push(Ok(attr)),
                Err(Stop::Failed(error)) => all.push(Err(error)),
                Err(Stop::Missing(_)) => break,
            }
        }
        all
    }

    /// How much is loaded with one of some inodes that are listed: where their numbers lie close together, as
    /// many leaves as would be read for them one by one.
    fn listed_ahead(&self, inos: &[Ino]) -> Ahead {
        let missing = || inos.iter().filter(|ino| self.look(ino.0).is_err()).map(|ino| ino.0);
        let (first, last) = (missing().min().unwrap_or(0), missing().max().unwrap_or(0));
        Ahead::of_listing(missing().count(), last - first)
    }

    /// An inode; none: there is none with this number.
    pub fn look(&self, ino: u64) -> Tried<Option<&Node>> {
        if let Some(node) = self.nodes.get(&ino) {
            node.looked_at.set(true);
            return Ok(Some(node));
        }
        match self.changed(Key::Inode(ino)) {
            _ if ino >= self.next_ino || ino == 0 || self.cache.is_nobody(ino) => Ok(None),
            Some(None) => Ok(None),
            None if self.root.places.is_none() => Ok(None),
            _ => Err(Stop::Missing(Want::Inode(ino))),
        }
    }

    /// How much is loaded with what is missing.
    pub fn ahead(&self, want: Want) -> Ahead {
        match want {
            Want::Inode(ino) => {
                let before = self.windows.before(ino).map(|leaves| leaves * INODES_OF_LEAF);
                self.cache.inodes_ahead(ino, before)
            }
            Want::Entries(dir, cookie) => {
                let (mut size, mut loads, mut end) = (0, 0, None);
                if let Some(node) = self.nodes.get(&dir) {
                    (size, loads) = (node.inode.size, node.entries.load_count());
                    end = node.entries.known_behind(cookie.hash());
                }
                self.cache.entries_ahead(size, loads, end)
            }
        }
    }

    fn hash(&self, name: &[u8]) -> NameHash {
        NameHash::new(&self.layout.nonce, name)
    }

    /// Cookie and inode of a name; none: the name is free, or there is no such directory.
    pub fn entry_of(&self, (dir, name): At<'_>) -> Tried<Option<(Cookie, Entered)>> {
        let Some(node) = self.look(dir.0)? else { return Ok(None) };
        let hash = self.hash(name.as_bytes());
        let missing = || Stop::Missing(Want::Entries(dir.0, Cookie::new(hash, 0)));
        node.entries.get(name.as_bytes(), hash).ok_or_else(missing)
    }

    /// The cookie for a name that is free.
    pub fn cookie_for(&self, (dir, name): At<'_>) -> Tried<Cookie> {
        let hash = self.hash(name.as_bytes());
        let missing = || Stop::Missing(Want::Entries(dir.0, Cookie::new(hash, 0)));
        let cookie = self.get("add entry", dir)?.entries.cookie_for(hash);
        Ok(cookie.ok_or_else(missing)??)
    }

    /// What changes need in memory before they are applied, and is not: entries are none of it.
    pub fn missing(&self, changes: &[Change<'_>]) -> Option<Want> {
        let mut made = Vec::new();
        for change in changes {
            if let Change::CreateInode(ino, ..) = change {
                made.push(*ino);
            }
            for ino in needed(change).into_iter().filter(|ino| !made.contains(ino)) {
                if let Err(Stop::Missing(want)) = self.look(ino) {
                    return Some(want);
                }
            }
        }
        None
    }
}

/// Inodes that a change is applied to; 0: none.
pub(crate) fn needed(change: &Change<'_>) -> [u64; 4] {
    match change {
        Change::SetAttributes(ino, _)
        | Change::SetXattr(ino, ..)
        | Change::RemoveXattr(ino, _)
        | Change::AddOrphan(ino)
        | Change::RemoveInode(ino, ..) => [*ino, 0, 0, 0],
        Change::InsertEntry(entry) => [entry.dir, entry.child, 0, 0],
        Change::RemoveEntry(entry) => [entry.dir, 0, 0, 0],
        Change::Rename(rename) => {
            [rename.from.dir, rename.to.dir, rename.from.child, rename.to.child]
        }
        Change::Grow(size) | Change::Truncate(size) | Change::ReplaceData(size, _) => {
            [size.ino, 0, 0, 0]
        }
        Change::CreateInode(..)
        | Change::Map(..)
        | Change::Punch(..)
        | Change::RemoveOrphan(_)
        | Change::NextSegment(_)
        | Change::ReapDead { .. }
        | Change::Move { .. }
        | Change::SetSegment(..) => [0; 4],
    }
}
