//! Inodes that were read for somebody who goes through them in order, kept as the leaves of the tree that
//! they lie in. Who looks at a million files one after the other looks at each once: an object for each costs
//! more than the look. Whoever changes one has it made into an object, without reading anything.
//!
//! Invariants: Q61 what is found in a window is what all records say: it is of the newest tree, and nothing
//! has changed since. Q62 there are few windows, each a part of the bound of names, and they count as that.
//!
//! No locks: the volume's state lock covers it.

use crate::btree::cache::ENTRY_BYTES;
use crate::format::inode::Inode;
use crate::format::item::Item;
use crate::format::key::{Cookie, Key};
use crate::format::superblock::TreeRoot;
use crate::load::Part;
use crate::look::Want;
use crate::state::State;
use forebay_base::Result;
use std::collections::VecDeque;

/// Windows, at most: as many may go through files at the same time.
const WINDOWS: usize = 4;

/// What a leaf takes in memory, bytes.
pub(crate) const LEAF_BYTES: usize = 4096 + ENTRY_BYTES;

/// See the module.
#[derive(Default)]
pub(crate) struct Windows {
    /// The oldest first.
    list: VecDeque<Part>,
    leaves: usize,
}

impl Windows {
    /// Bytes that they keep in memory, about: some of it is among the cached nodes as well.
    pub fn bytes(&self) -> usize {
        self.leaves * LEAF_BYTES
    }

    /// A window more: in the stead of the one that it goes on from, else of the oldest.
    fn put(&mut self, ino: u64, part: Part) {
        let before = self.list.iter().position(|there| there.is_followed_by(ino));
        let full = (self.list.len() >= WINDOWS).then_some(0);
        if let Some(gone) = before.or(full).and_then(|at| self.list.remove(at)) {
            self.leaves -= gone.leaves();
        }
        self.leaves += part.leaves();
        self.list.push_back(part);
    }

    /// Leaves of the window that somebody who looks at this inode next has gone through.
    pub fn before(&self, ino: u64) -> Option<usize> {
        self.list.iter().find(|part| part.is_followed_by(ino)).map(Part::leaves)
    }

    fn find(&self, key: Key) -> Option<&Part> {
        let key = key.to_bytes();
        self.list.iter().rev().find(|part| part.covers(&key))
    }

    /// Those of another tree go.
    fn keep(&mut self, root: &TreeRoot) {
        if self.list.iter().any(|part| part.root() != root) {
            self.list.retain(|part| part.root() == root);
            self.leaves = self.list.iter().map(Part::leaves).sum();
        }
    }
}

impl State {
    /// What is in memory of names, bytes: objects and windows.
    pub fn names_bytes(&self) -> usize {
        self.cache.bytes() + self.windows.bytes()
    }

    /// An inode that no object was made of, if it is in a window (Q61).
    pub fn in_window(&self, ino: u64) -> Option<Inode> {
        let key = Key::Inode(ino);
        // What was never given out is nobody's, whatever an image says.
        let part = self
            .windows
            .find(key)
            .filter(|part| *part.root() == self.root && ino < self.next_ino)?;
        let value = part.get(key)?;
        if self.changed(key).is_some() {
            return None;
        }
        match Item::decode(key, value, &self.layout.geometry) {
            Ok(Item::Inode(inode)) => Some(inode),
            // Who makes an object of it finds out.
            _ => None,
        }
    }

    /// Makes an object of what is missing, if it is in a window. False: it has to be read.
    pub fn insert_from_window(&mut self, want: Want) -> Result<bool> {
        let Want::Inode(ino) = want else { return Ok(false) };
        let keys = Key::Inode(ino).to_bytes()..Key::Entry(ino, Cookie::FIRST).to_bytes();
        let found = self.windows.find(Key::Inode(ino));
        match found.filter(|part| *part.root() == self.root).map(|part| part.part(keys)) {
            Some(part) => self.insert_part(want, part),
            None => Ok(false),
        }
    }

    /// What was read with an inode that was missing is a window from now on; of the inode itself there is an
    /// object. False: the tree is another one by now.
    pub fn insert_window(&mut self, want: Want, part: Part) -> Result<bool> {
        let Want::Inode(ino) = want else { return self.insert_part(want, part) };
        let keys = Key::Inode(ino).to_bytes()..Key::Entry(ino, Cookie::FIRST).to_bytes();
        if !self.insert_part(want, part.part(keys))? {
            return Ok(false);
        }
        self.cache.loaded_to(part.last_ino().saturating_add(1));
        self.windows.put(ino, part);
        Ok(true)
    }

    /// Windows that are of no use go, all of them where there is no room for any.
    pub fn tidy_windows(&mut self) {
        if self.cache.bytes_max < self.windows.bytes() {
            self.windows = Windows::default();
        } else {
            let root = self.root;
            self.windows.keep(&root);
        }
    }
}
