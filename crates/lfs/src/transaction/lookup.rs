//! Lookups in memory that report what is missing. They also present the state to the rules of names
//! ([`rules::View`]).
//!
//! Lock: the state lock, held by the caller.

use crate::format::change::Change;
use crate::format::key::{Cookie, Key, NameHash};
use crate::names::directory::Child as Entered;
use crate::names::evict::{Ahead, INODES_OF_LEAF};
use crate::names::inode::kind_of;
use crate::names::lookup::{Stop, Tried, Want, creates, needed};
use crate::names::node::Node;
use crate::transaction::state::State;
use forebay_base::Result;
use forebay_vfs::rules::{self, At, Child, Seen};
use forebay_vfs::{Attr, Ino};

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
        // The size of a directory is its number of entries.
        Ok(self.look(dir.0)?.is_some_and(|node| node.inode.size > 0))
    }
}

impl State {
    /// The attributes of the leading inodes of `inos` that are in memory.
    pub fn attrs_there(&self, inos: &[Ino]) -> Vec<Result<Attr>> {
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

    /// How much to read ahead with one of the inodes of a listing. If their numbers are close
    /// together, it is as many leaves as would be read for the inodes one by one.
    pub fn listed_ahead(&self, inos: &[Ino]) -> Ahead {
        let missing = || inos.iter().filter(|ino| self.look(ino.0).is_err()).map(|ino| ino.0);
        let (first, last) = (missing().min().unwrap_or(0), missing().max().unwrap_or(0));
        Ahead::of_listing(missing().count(), last - first)
    }

    /// The inode with this number. None: it does not exist.
    pub fn look(&self, ino: u64) -> Tried<Option<&Node>> {
        if let Some(node) = self.names.node(ino) {
            node.looked_at.set(true);
            return Ok(Some(node));
        }
        let never_was = ino == 0 || ino >= self.names.counters().next_ino();
        if never_was || self.names.cache().is_absent(ino) {
            return Ok(None);
        }
        match self.changed(Key::Inode(ino)) {
            Some(None) => Ok(None),
            None if self.tree.is_empty() => Ok(None),
            _ => Err(Stop::Missing(Want::Inode(ino))),
        }
    }

    /// How much to read ahead with a missing part.
    pub fn ahead(&self, want: Want) -> Ahead {
        match want {
            Want::Inode(ino) => {
                let before = self.names.windows().before(ino).map(|leaves| leaves * INODES_OF_LEAF);
                self.names.cache().inodes_ahead(ino, before)
            }
            Want::Entries(dir, cookie) => {
                let (mut size, mut loads, mut end) = (0, 0, None);
                if let Some(node) = self.names.node(dir) {
                    (size, loads) = (node.inode.size, node.entries.load_count());
                    end = node.entries.known_behind(cookie.hash());
                }
                self.names.cache().entries_ahead(size, loads, end)
            }
        }
    }

    /// An operation is tried. `names_max`: the limit on memory of names, bytes.
    pub fn begin_operation(&mut self, names_max: usize) {
        self.names.set_bytes_max(names_max);
        self.begin_attempt();
    }

    /// A task begins to wait for a missing part; returns the time (evict.Q32).
    pub fn begin_wait(&mut self) -> u64 {
        self.names.begin_wait()
    }

    /// A task that began at `since` does not wait any more.
    pub fn end_wait(&mut self, since: u64) {
        self.names.end_wait(since);
    }

    fn hash(&self, name: &[u8]) -> NameHash {
        NameHash::new(&self.layout.nonce, name)
    }

    /// Cookie and inode of a name. None: the name is free, or the directory does not exist.
    pub fn entry_of(&self, (dir, name): At<'_>) -> Tried<Option<(Cookie, Entered)>> {
        let Some(node) = self.look(dir.0)? else { return Ok(None) };
        let hash = self.hash(name.as_bytes());
        let missing = || Stop::Missing(Want::Entries(dir.0, Cookie::new(hash, 0)));
        node.entries.get(name.as_bytes(), hash).ok_or_else(missing)
    }

    /// The cookie that a new entry with this free name gets.
    pub fn cookie_for(&self, (dir, name): At<'_>) -> Tried<Cookie> {
        let hash = self.hash(name.as_bytes());
        let missing = || Stop::Missing(Want::Entries(dir.0, Cookie::new(hash, 0)));
        let cookie = self.get("add entry", dir)?.entries.cookie_for(hash);
        Ok(cookie.ok_or_else(missing)??)
    }

    /// What must be in memory before these changes are applied, and is missing. Directory entries
    /// are not needed.
    pub fn missing(&self, changes: &[Change<'_>]) -> Option<Want> {
        let mut inodes = changes.iter().flat_map(needed).filter(|ino| *ino != 0);
        // A record may have many changes, so they are searched only for what is missing.
        inodes.find_map(|ino| match self.look(ino) {
            Err(Stop::Missing(want)) if !creates(changes, ino) => Some(want),
            _ => None,
        })
    }
}
