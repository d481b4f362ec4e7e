//! An inode in memory.
//!
//! No locks: the volume's state lock covers it.

use crate::format::inode::Inode;
use crate::format::key::Cookie;
use crate::names::content::Content;
use crate::names::directory::Directory;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;

/// An inode, and what hangs on it.
pub(crate) struct Node {
    /// Attributes; the size is the one that recovery would find.
    pub inode: Inode,
    /// The same, without what is ahead of the log (S14).
    pub recorded: Inode,
    /// Of a symbolic link.
    pub target: Box<[u8]>,
    /// Extended attributes.
    pub xattrs: BTreeMap<Box<[u8]>, Box<[u8]>>,
    /// Where the attributes are in the tree, by name.
    pub cookies: BTreeMap<Box<[u8]>, Cookie>,
    /// Of a directory.
    pub entries: Directory,
    /// Open files.
    pub opens: u32,
    /// It never had a name and may get one.
    pub linkable: bool,
    /// Records that told its size were changed: the size is to be told again.
    pub regrow: bool,
    /// Of a closed file that has lost content: its size, which no record may hold yet.
    pub unlogged_size: Option<u64>,
    /// Of a regular file that is open or has unwritten data.
    pub content: Option<Arc<Content>>,
    /// Bytes that it was counted with.
    pub counted_bytes: usize,
    /// When it was loaded, by the cache's clock.
    pub loaded: u64,
    /// Since the hand of the cache passed by.
    pub looked_at: Cell<bool>,
}

impl Node {
    /// One that is not open.
    pub fn new(inode: Inode, target: &[u8]) -> Self {
        Self {
            inode,
            recorded: inode,
            target: target.into(),
            xattrs: BTreeMap::new(),
            cookies: BTreeMap::new(),
            entries: Directory::default(),
            opens: 0,
            linkable: false,
            regrow: false,
            unlogged_size: None,
            content: None,
            counted_bytes: 0,
            loaded: 0,
            looked_at: Cell::new(false),
        }
    }

    /// Takes over the time of the last write that is in [`Content::times`] only; the next write and
    /// the next read take the state lock (open_times.S20).
    pub fn take_open_times(&mut self) {
        let written = self.content.as_ref().and_then(|content| content.times.disarm());
        if let Some(written) = written {
            (self.inode.mtime, self.inode.ctime) = (written, written);
        }
    }

    /// Changes what is and what is recorded.
    pub fn change(&mut self, change: impl Fn(&mut Inode)) {
        change(&mut self.inode);
        change(&mut self.recorded);
    }

    /// Bytes, those that are not written out yet included; none: what is stored counts.
    pub fn live_size(&self) -> Option<u64> {
        match &self.content {
            Some(content) => Some(content.file.size()),
            None => self.unlogged_size,
        }
    }

    /// Where its cached content ends, which a write that makes the file longer moves before its
    /// bytes are there.
    pub fn end(&self) -> Option<u64> {
        self.content.as_ref().map(|content| content.file.end())
    }
}

impl Node {
    /// The size that recovery surely finds.
    pub fn published(&self) -> u64 {
        if self.regrow { 0 } else { self.inode.size }
    }
}
