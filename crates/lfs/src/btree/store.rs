//! What the tree asks of whatever keeps its nodes, and how a node is had from two copies.
//!
//! Invariants: B21 a node that is handed out verified: place, volume, checksum, and owner, birth, level and
//! sum as the pointer says. B22 the second copy is asked whenever the first cannot be had, for any reason.
//! B23 only if both fail does the read fail, and the error names both places.
//!
//! No locks.

use super::{Link, Tree};
use crate::format::node::{Node, Verified};
use crate::format::place::Place;
use forebay_base::buf::AlignedBuf;
use forebay_base::task::BoxFuture;
use forebay_base::{Error, ErrorKind, Result};
use std::sync::Arc;

/// Keeps nodes.
pub trait NodeStore: Send + Sync {
    /// The bytes of one copy of a node. Nothing needs to be verified.
    fn read(&self, place: Place) -> BoxFuture<'_, Result<AlignedBuf>>;

    /// The bytes of nodes that lie in these places, one behind the other on the device, as many as can be had
    /// at once: the first at least. Nothing needs to be verified.
    fn read_run<'a>(&'a self, places: &'a [Place]) -> BoxFuture<'a, Result<AlignedBuf>> {
        self.read(places[0])
    }

    /// Where a place is on the device, bytes, if the store knows.
    fn offset_of(&self, _place: Place) -> Option<u64> {
        None
    }

    /// Two places for a new node, which nothing that is durable refers to, best far apart from each other.
    /// They stay taken until somebody gives them back. `NoSpace` if there are none.
    fn allocate(&self) -> BoxFuture<'_, Result<[Place; 2]>>;

    /// Writes both copies of each node; over when all of them are written, not flushed. It goes on by itself
    /// from the first poll on, as far as the device has room.
    fn write(&self, nodes: Vec<Arc<StoredNode>>) -> BoxFuture<'_, Result<()>>;
}

/// A node that verified, and its bytes.
pub struct StoredNode {
    // Not aligned: an allocator would lose as much again between two that are.
    bytes: Box<[u8]>,
    known: Verified,
}

impl StoredNode {
    /// The node that `bytes` were opened as.
    pub(crate) fn new(bytes: &[u8], known: Verified) -> Self {
        Self { bytes: bytes.into(), known }
    }

    /// A node that was just made.
    pub(crate) fn made(bytes: Box<[u8]>, known: Verified) -> Self {
        Self { bytes, known }
    }

    /// The node.
    pub fn node(&self) -> Node<'_> {
        Node::again(&self.bytes, self.known)
    }

    /// Its bytes, which are the same in both places.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Its two places.
    pub fn places(&self) -> [Place; 2] {
        self.node().header.places
    }
}

impl Tree {
    /// The node that `link` leads to, from the cache or the store.
    pub(crate) async fn load(&self, link: &Link) -> Result<Arc<StoredNode>> {
        if let Some(node) = self.cached(link) {
            link.check_shape(&node.node())?;
            return Ok(node);
        }
        let node = self.load_stored(link).await?;
        self.cache.insert(&node);
        Ok(node)
    }

    pub(crate) fn cached(&self, link: &Link) -> Option<Arc<StoredNode>> {
        self.cache.get(&link.pointer, link.tree, link.level)
    }

    /// The node that `link` leads to, from the store.
    pub(crate) async fn load_stored(&self, link: &Link) -> Result<Arc<StoredNode>> {
        let first = match self.load_copy(link, 0).await {
            Ok(node) => return Ok(node),
            Err(e) => e,
        };
        match self.load_copy(link, 1).await {
            Ok(node) => {
                log::warn!("a tree node's first copy is bad, its second one is used: {first}");
                Ok(node)
            }
            Err(second) => {
                let error = both_bad(link, &first, &second);
                if is_unreadable(&error) {
                    *self.unreadable.lock() = Some((link.pointer.places, error.clone()));
                }
                Err(error)
            }
        }
    }

    /// The places of the node that this error says can be read from neither, if it is an error of
    /// that kind.
    pub(crate) fn unreadable_node(&self, error: &Error) -> Option<[Place; 2]> {
        let last = self.unreadable.lock();
        let same = |(_, said): &&([Place; 2], Error)| said.to_string() == error.to_string();
        last.as_ref().filter(same).map(|(places, _)| *places)
    }

    /// Whether the device still gives back none of these places.
    pub(crate) async fn is_still_unreadable(&self, places: [Place; 2]) -> bool {
        for place in places {
            if !self.store.read(place).await.is_err_and(|error| is_unreadable(&error)) {
                return false;
            }
        }
        true
    }

    /// Copy 0 or 1, verified.
    pub(crate) async fn load_copy(&self, link: &Link, copy: usize) -> Result<Arc<StoredNode>> {
        let bytes = self.store.read(link.pointer.places[copy]).await?;
        self.verified(link, copy, &bytes)
    }

    /// The node that `link` leads to, if these are its bytes (B21).
    pub(super) fn verified(
        &self,
        link: &Link,
        copy: usize,
        bytes: &[u8],
    ) -> Result<Arc<StoredNode>> {
        let (g, owner) = (&self.geometry, link.tree);
        let node = Node::follow(bytes, self.seal, &link.pointer, copy, owner, link.level, g)?;
        link.check_shape(&node)?;
        let known = node.verified();
        Ok(Arc::new(StoredNode::new(bytes, known)))
    }
}

/// Whether a read failed for its place: Linux says EIO, and of a bad medium also ENODATA.
pub(crate) fn is_unreadable(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Io | ErrorKind::NoAttribute)
}

/// B23. Damage counts more than a device that fails: it does not go away.
pub(crate) fn both_bad(link: &Link, first: &Error, second: &Error) -> Error {
    let corrupt = [first, second].iter().any(|e| e.kind() == ErrorKind::Corrupt);
    let kind = if corrupt { ErrorKind::Corrupt } else { first.kind() };
    let (tree, places) = (link.tree, link.pointer.places);
    let text = format!(
        "tree {tree}: neither copy of the node at {places:?}, level {}, can be had: {first}; {second}",
        link.level
    );
    Error::new(kind, "read", text)
}
