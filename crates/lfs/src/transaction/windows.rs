//! Lookups in scan windows: inodes in stored form that clients read in order.
//!
//! The invariants are those of [`crate::names::scan_cache`].
//!
//! No locks: the volume's state lock covers it.

use crate::format::inode::Inode;
use crate::format::item::Item;
use crate::format::key::{Cookie, Key};
use crate::names::load::Part;
use crate::names::lookup::Want;
use crate::transaction::state::State;
use forebay_base::Result;

impl State {
    /// The memory of names, bytes: inodes and scan windows.
    pub fn names_bytes(&self) -> usize {
        self.names.bytes()
    }

    /// An inode that has no object in memory, from a scan window (scan_cache.Q61).
    pub fn in_window(&self, ino: u64) -> Option<Inode> {
        let key = Key::Inode(ino);
        // An inode number that was never given out is not accepted, even if an image contains it.
        let part = self.names.windows().find(key).filter(|part| {
            *part.root() == self.tree.root() && ino < self.names.counters().next_ino()
        })?;
        let value = part.get(key)?;
        if self.changed(key).is_some() {
            return None;
        }
        match Item::decode(key, value, &self.layout.geometry) {
            Ok(Item::Inode(inode)) => Some(inode),
            // The caller that makes an object of the inode reports the error.
            _ => None,
        }
    }

    /// Makes an object of a missing inode from a scan window. False: the inode must be read.
    pub fn insert_from_window(&mut self, want: Want) -> Result<bool> {
        let Want::Inode(ino) = want else { return Ok(false) };
        let keys = Key::Inode(ino).to_bytes()..Key::Entry(ino, Cookie::FIRST).to_bytes();
        let found = self.names.windows().find(Key::Inode(ino));
        match found.filter(|part| *part.root() == self.tree.root()).map(|part| part.part(keys)) {
            Some(part) => self.insert_part(want, part),
            None => Ok(false),
        }
    }

    /// Makes an object of the missing inode, and a scan window of what was read with it. False: the
    /// tree was replaced since.
    pub fn insert_window(&mut self, want: Want, part: Part) -> Result<bool> {
        let Want::Inode(ino) = want else { return self.insert_part(want, part) };
        let keys = Key::Inode(ino).to_bytes()..Key::Entry(ino, Cookie::FIRST).to_bytes();
        if !self.insert_part(want, part.part(keys))? {
            return Ok(false);
        }
        let last = part.last_ino();
        self.names.put_window(ino, part, &self.tree.root());
        // The window was dropped at once if there is no space for it.
        let is_there = self.names.windows().find(Key::Inode(last)).is_some();
        self.names.loaded_to(if is_there { last } else { ino }.saturating_add(1));
        Ok(true)
    }

    /// Drops windows of an old tree, and windows above the limit (scan_cache.Q62).
    pub fn tidy_windows(&mut self) {
        self.names.tidy_windows(&self.tree.root());
    }
}
