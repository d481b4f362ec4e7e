//! The interface to the storage of tree nodes, and reading a node from its two copies.
//!
//! Invariants: B21 a returned node has verified: place, volume and checksum; owner, birth, level
//! and sum match the pointer. B22 the second copy is read whenever the first cannot be used, for
//! any reason. B23 a read fails only if both copies fail; the error names both places.
//!
//! No locks.

use super::{Link, Tree};
use crate::format::node::{Node, Verified};
use crate::format::place::Place;
use forebay_base::buf::AlignedBuf;
use forebay_base::task::BoxFuture;
use forebay_base::{Error, ErrorKind, Result};
use std::sync::Arc;

/// Stores tree nodes.
pub trait NodeStore: Send + Sync {
    /// Reads one copy of a node, without verification.
    fn read(&self, place: Place) -> BoxFuture<'_, Result<AlignedBuf>>;

    /// Reads the nodes of these places, which are adjacent on the device, as many as possible in
    /// one transfer, at least the first. Without verification.
    fn read_run<'a>(&'a self, places: &'a [Place]) -> BoxFuture<'a, Result<AlignedBuf>> {
        self.read(places[0])
    }

    /// Device offset of a place, bytes, if the store knows it.
    fn offset_of(&self, _place: Place) -> Option<u64> {
        None
    }

    /// Allocates two places for a new node, far apart if possible. Nothing durable refers to them.
    /// They stay allocated until they are given back. `NoSpace` if there are none.
    fn allocate(&self) -> BoxFuture<'_, Result<[Place; 2]>>;

    /// Writes both copies of each node; ends when all are written, without a flush. After the first
    /// poll the writes progress without further polls, as far as the device has capacity.
    fn write(&self, nodes: Vec<Arc<StoredNode>>) -> BoxFuture<'_, Result<()>>;
}

/// A verified node with its bytes.
pub struct StoredNode {
    // Not aligned, because an allocator would waste as much again between aligned buffers.
    bytes: Box<[u8]>,
    known: Verified,
}

impl StoredNode {
    /// A node whose bytes were verified.
    pub(crate) fn new(bytes: &[u8], known: Verified) -> Self {
        Self { bytes: bytes.into(), known }
    }

    /// A node that was just built.
    pub(crate) fn made(bytes: Box<[u8]>, known: Verified) -> Self {
        Self { bytes, known }
    }

    /// The node.
    pub fn node(&self) -> Node<'_> {
        Node::again(&self.bytes, self.known)
    }

    /// The bytes of the node, which are equal in both copies.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The places of the two copies.
    pub fn places(&self) -> [Place; 2] {
        self.node().header.places
    }
}

impl Tree {
    /// Loads the node at `link`, from the cache or the store.
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

    /// Loads the node at `link` from the store.
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

    /// The places of the last unreadable node, if `error` is the error of that read.
    pub(crate) fn unreadable_node(&self, error: &Error) -> Option<[Place; 2]> {
        let last = self.unreadable.lock();
        let same = |(_, said): &&([Place; 2], Error)| said.to_string() == error.to_string();
        last.as_ref().filter(same).map(|(places, _)| *places)
    }

    /// Whether the device still cannot read either of these places.
    pub(crate) async fn is_still_unreadable(&self, places: [Place; 2]) -> bool {
        for place in places {
            if !self.store.read(place).await.is_err_and(|error| is_unreadable(&error)) {
                return false;
            }
        }
        true
    }

    /// Reads and verifies copy 0 or 1.
    pub(crate) async fn load_copy(&self, link: &Link, copy: usize) -> Result<Arc<StoredNode>> {
        let bytes = self.store.read(link.pointer.places[copy]).await?;
        self.verified(link, copy, &bytes)
    }

    /// The node at `link`, if these are its bytes (B21).
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

/// Whether the device could not read an address: Linux reports EIO, for a bad medium also ENODATA.
pub(crate) fn is_unreadable(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Io | ErrorKind::NoAttribute)
}

/// The error if both copies fail (B23). `Corrupt` takes precedence over a device error, which may
/// be transient.
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
