//! Looks at the state that may find that something is not in memory; and the state as the rules of names
//! see it ([`rules::View`]).
//!
//! ```text
//!   lock ─▶ try ─▶ done ─▶ let go of what is too much ─▶ unlock
//!            ▲ └─ missing ─▶ unlock ─▶ read it from the tree ─▶ lock ─▶ insert ─┐
//!            └──────────────────────────────────────────────────────────────────┘
//! ```
//! Invariants: Q11 what ends with `Missing` has changed nothing. Q12 what was loaded for a try is there when
//! it is tried again: it is not let go while somebody waits who began before.
//!
//! Lock: the state lock; never across a wait.

use crate::dir::Child as Entered;
use crate::format::change::Change;
use crate::format::key::{Cookie, Key, NameHash};
use crate::inode::kind_of;
use crate::load;
use crate::state::{Node, State};
use crate::volume::Inner;
use forebay_base::{Error, ErrorKind, Result};
use forebay_vfs::rules::{self, At, Child, Seen};
use forebay_vfs::{Ino, Timestamp};

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

impl Inner {
    /// Carries an operation out, and loads what it misses. It is given now.
    pub(crate) async fn tried<T>(
        &self,
        mut op: impl FnMut(&mut State, Timestamp) -> Tried<T>,
    ) -> Result<T> {
        let (mut waiter, mut made_room) = (None, false);
        loop {
            let now = self.options.clock.now();
            let stop = {
                let mut state = self.state.lock();
                match op(&mut state, now) {
                    Ok(done) => {
                        state.evict();
                        return Ok(done);
                    }
                    Err(stop) => {
                        if let Stop::Missing(_) = stop {
                            waiter.get_or_insert_with(|| Waiter {
                                inner: self,
                                since: state.cache.wait(),
                            });
                        }
                        stop
                    }
                }
            };
            match stop {
                Stop::Missing(want) => self.load(want).await?,
                Stop::Failed(error) if error.kind() == ErrorKind::NoSpace && !made_room => {
                    made_room = true;
                    if !self.make_room().await {
                        return Err(error);
                    }
                }
                Stop::Failed(error) => return Err(error),
            }
        }
    }

    /// Brings something into memory.
    async fn load(&self, want: Want) -> Result<()> {
        loop {
            let root = self.state.lock().root;
            let part = load::read(&self.tree, root, want).await;
            let mut state = self.state.lock();
            if state.root != root {
                // What was read may be of places that were used again.
                continue;
            }
            if state.insert_part(want, part?)? {
                return Ok(());
            }
        }
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
fn needed(change: &Change<'_>) -> [u64; 4] {
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
