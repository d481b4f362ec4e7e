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

/// An inode, with its further state in memory.
pub(crate) struct Node {
    /// Attributes; the size is the one that recovery would restore.
    pub inode: Inode,
    /// The attributes without changes that are ahead of the log (state.S14).
    pub recorded: Inode,
    /// Target of a symbolic link.
    pub target: Box<[u8]>,
    /// Extended attributes.
    pub xattrs: BTreeMap<Box<[u8]>, Box<[u8]>>,
    /// Cookies of the attributes in the tree, by name.
    pub cookies: BTreeMap<Box<[u8]>, Cookie>,
    /// Entries of a directory.
    pub entries: Directory,
    /// Number of open files.
    pub opens: u32,
    /// It never had a name (`O_TMPFILE`) and may get one.
    pub linkable: bool,
    /// A repair removed or lowered its size in records: the size has to be recorded again.
    pub regrow: bool,
    /// The size that was recorded again since, if no truncation was.
    pub regrown: u64,
    /// Size of a closed file that has lost content; no record may have it yet.
    pub unlogged_size: Option<u64>,
    /// Content of a regular file that is open or has unwritten data.
    pub content: Option<Arc<Content>>,
    /// The bytes that were counted for this inode.
    pub counted_bytes: usize,
    /// Time of loading, by the cache's clock.
    pub loaded: u64,
    /// Used since the clock hand passed it.
    pub looked_at: Cell<bool>,
}

impl Node {
    /// An inode that is not open.
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
            regrown: 0,
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

    /// Applies a change to the current and to the recorded attributes.
    pub fn change(&mut self, change: impl Fn(&mut Inode)) {
        change(&mut self.inode);
        change(&mut self.recorded);
    }

    /// Size with unwritten data, bytes; `None`: the recorded size is valid.
    pub fn live_size(&self) -> Option<u64> {
        match &self.content {
            Some(content) => Some(content.file.size()),
            None => self.unlogged_size,
        }
    }

    /// End of its cached content, which an extending write moves before its bytes are in the cache.
    pub fn end(&self) -> Option<u64> {
        self.content.as_ref().map(|content| content.file.end())
    }
}

impl Node {
    /// The size that recovery restores at least.
    pub fn published(&self) -> u64 {
        if self.regrow { self.regrown.min(self.inode.size) } else { self.inode.size }
    }

    /// Notes that this size was recorded. Not `is_whole`: the file is longer.
    pub fn note_size_recorded(&mut self, size: u64, is_whole: bool) {
        self.regrow &= !is_whole || size < self.inode.size;
        self.regrown = size;
    }

    /// Shows the published size to readers without the state lock (content.D13).
    pub fn show_published(&self) {
        if let Some(content) = &self.content {
            content.published.size.set(self.published());
        }
    }

    /// The inode leaves memory, or another copy replaces it: its mapping is not that of an inode
    /// any more (content.D12).
    pub fn detach(&self) {
        if let Some(content) = &self.content {
            content.published.size.detach();
        }
    }
}
