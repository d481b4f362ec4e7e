//! Names in memory: the minimum with which creation, lookup, listing and removal work.
//!
//! Lock: none here; the server holds one around each call.

use forebay_vfs::{Attr, FileKind, Ino, Timestamp};
use std::collections::HashMap;

/// The entries of a directory.
#[derive(Default)]
struct Directory {
    /// Position in `list`, by name.
    places: HashMap<Box<[u8]>, usize>,
    /// Entries in order of creation; a removed one leaves a hole, so that positions remain valid.
    list: Vec<Option<(Box<[u8]>, u64)>>,
}

struct Node {
    size: u64,
    perm: u16,
    directory: Option<Directory>,
}

/// All nodes. They are numbered from 1, the root; numbers are not reused.
pub struct Tree {
    nodes: Vec<Node>,
}

/// An entry of a listing: name, node, and the position of the next one.
pub struct Entry<'a> {
    pub name: &'a [u8],
    pub node: u64,
    pub next: u64,
}

impl Default for Tree {
    fn default() -> Self {
        let directory = Some(Directory::default());
        Self { nodes: vec![Node { size: 4096, perm: 0o755, directory }] }
    }
}

impl Tree {
    fn node(&self, node: u64) -> Option<&Node> {
        self.nodes.get(usize::try_from(node.checked_sub(1)?).ok()?)
    }

    fn node_mut(&mut self, node: u64) -> Option<&mut Node> {
        self.nodes.get_mut(usize::try_from(node.checked_sub(1)?).ok()?)
    }

    /// The node of a name.
    pub fn lookup(&self, dir: u64, name: &[u8]) -> Option<u64> {
        let directory = self.node(dir)?.directory.as_ref()?;
        let place = directory.places.get(name)?;
        directory.list[*place].as_ref().map(|entry| entry.1)
    }

    /// Creates a name and its node.
    pub fn make(&mut self, dir: u64, name: &[u8], perm: u16, directory: bool) -> Option<u64> {
        let node = self.nodes.len() as u64 + 1;
        let within = self.node_mut(dir)?.directory.as_mut()?;
        within.places.insert(name.into(), within.list.len());
        within.list.push(Some((name.into(), node)));
        let (size, content) = match directory {
            true => (4096, Some(Directory::default())),
            false => (0, None),
        };
        self.nodes.push(Node { size, perm, directory: content });
        Some(node)
    }

    /// Removes a name. False: it does not exist.
    pub fn remove(&mut self, dir: u64, name: &[u8]) -> bool {
        let within = self.node_mut(dir).and_then(|node| node.directory.as_mut());
        let Some(within) = within else { return false };
        let Some(place) = within.places.remove(name) else { return false };
        within.list[place] = None;
        if within.places.is_empty() {
            within.list = Vec::new();
        }
        true
    }

    /// Size of a file, bytes.
    pub fn size(&self, node: u64) -> u64 {
        self.node(node).map_or(0, |node| node.size)
    }

    /// Sets the size of a file.
    pub fn set_size(&mut self, node: u64, size: u64) {
        if let Some(node) = self.node_mut(node) {
            node.size = size;
        }
    }

    /// Attributes of a node.
    pub fn attr(&self, node: u64) -> Option<Attr> {
        let found = self.node(node)?;
        let time = Timestamp::new(1_000_000_000, 0);
        let directory = found.directory.is_some();
        Some(Attr {
            ino: Ino(node),
            generation: 0,
            kind: if directory { FileKind::Directory } else { FileKind::File },
            perm: found.perm,
            nlink: if directory { 2 } else { 1 },
            uid: 0,
            gid: 0,
            rdev: 0,
            size: found.size,
            allocated_bytes: found.size,
            atime: time,
            mtime: time,
            ctime: time,
            btime: time,
        })
    }

    /// The entries of a directory from a position on.
    pub fn list(&self, dir: u64, from: u64) -> impl Iterator<Item = Entry<'_>> {
        let list = self.node(dir).and_then(|node| node.directory.as_ref());
        let all = list.map_or(&[][..], |directory| &directory.list);
        let from = (from as usize).min(all.len());
        all[from..].iter().enumerate().filter_map(move |(n, entry)| {
            let (name, node) = entry.as_ref()?;
            Some(Entry { name, node: *node, next: (from + n + 1) as u64 })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// empty.E2: created names are found and listed from any position on; removed names are not.
    #[test]
    fn e2_names_are_true() {
        let mut tree = Tree::default();
        let dir = tree.make(1, b"d", 0o755, true).unwrap();
        for name in [b"a", b"b", b"c"] {
            tree.make(dir, name, 0o644, false).unwrap();
        }
        let b = tree.lookup(dir, b"b").unwrap();
        tree.set_size(b, 4096);
        assert_eq!((tree.attr(b).unwrap().size, tree.lookup(1, b"b")), (4096, None));
        assert!(
            tree.remove(dir, b"b") && !tree.remove(dir, b"b") && tree.lookup(dir, b"b").is_none()
        );
        let names = |from| tree.list(dir, from).map(|e| e.name.to_vec()).collect::<Vec<_>>();
        assert_eq!(names(0), [b"a", b"c"]);
        let next = tree.list(dir, 0).next().unwrap().next;
        assert_eq!(names(next), [b"c"]);
        assert!(names(99).is_empty() && tree.attr(99).is_none());
    }
}
