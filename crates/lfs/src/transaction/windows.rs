//! Lookups in the windows of inodes that clients scan in order.
//!
//! The invariants are those of [`crate::names::scan_cache`].
//!
//! No locks: the volume's state lock covers it.

use crate::format::inode::Inode;
use crate::format::item::Item;
use crate::format::key::{Cookie, Key};
use crate::names::load::Part;
use crate::names::lookup::Want;
use crate::names::scan_cache::ALL_PART;
use crate::transaction::state::State;
use forebay_base::Result;

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
            .filter(|part| *part.root() == self.root && ino < self.counters.next_ino())?;
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

    /// What was read with an inode that was missing is a window from now on; of the inode itself
    /// there is an object. False: the tree is another one by now.
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
