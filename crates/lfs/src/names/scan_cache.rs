//! Inodes that were read for somebody who goes through them in order, kept as the leaves of the tree that
//! they lie in. Who looks at a million files one after the other looks at each once: an object for each costs
//! more than the look. Whoever changes one has it made into an object, without reading anything.
//!
//! Invariants: Q61 what is found in a window is what all records say: it is of the newest tree, and nothing
//! has changed since. Q62 there are few windows, which count as names, and hold at most a quarter of the
//! bound of names: of more the oldest go.
//!
//! No locks: the volume's state lock covers it.

use crate::btree::cache::ENTRY_BYTES;
use crate::format::inode::Inode;
use crate::format::item::Item;
use crate::format::key::{Cookie, Key};
use crate::format::superblock::TreeRoot;
use crate::names::load::Part;
use crate::names::lookup::Want;
use crate::transaction::state::State;
use forebay_base::Result;
use std::collections::VecDeque;

/// Windows, at most: as many may go through files at the same time.
const WINDOWS: usize = 4;
/// Of the bound of names all windows together take such a part, at most (Q62).
const ALL_PART: usize = 4;

/// What a leaf takes in memory, bytes, about.
pub(crate) const LEAF_BYTES: usize = 4096 + ENTRY_BYTES;

/// See the module.
#[derive(Default)]
pub(crate) struct Windows {
    /// The oldest first.
    list: VecDeque<Part>,
    /// Of all of them.
    bytes: usize,
}

impl Windows {
    /// Bytes that they keep in memory, about: some of it is among the cached nodes as well.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// A window more: in the stead of the one that it goes on from, else of the oldest.
    fn put(&mut self, ino: u64, part: Part) {
        let before = self.list.iter().position(|there| there.is_followed_by(ino));
        let full = (self.list.len() >= WINDOWS).then_some(0);
        if let Some(gone) = before.or(full).and_then(|at| self.list.remove(at)) {
            self.bytes -= gone.bytes();
        }
        self.bytes += part.bytes();
        self.list.push_back(part);
    }

    /// The oldest go until they hold at most so many bytes.
    fn shrink(&mut self, bytes_max: usize) {
        while self.bytes > bytes_max
            && let Some(gone) = self.list.pop_front()
        {
            self.bytes -= gone.bytes();
        }
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
            self.bytes = self.list.iter().map(Part::bytes).sum();
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
        let last = part.last_ino();
        self.windows.put(ino, part);
        self.tidy_windows();
        // One that there is no room for is gone again.
        let is_there = self.windows.find(Key::Inode(last)).is_some();
        self.cache.loaded_to(if is_there { last } else { ino }.saturating_add(1));
        Ok(true)
    }

    /// Windows that are of no use go, and those that there is no room for (Q62).
    pub fn tidy_windows(&mut self) {
        self.windows.keep(&self.root);
        self.windows.shrink(self.cache.bytes_max / ALL_PART);
    }
}
