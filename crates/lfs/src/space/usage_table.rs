//! The usage table in the tree. Each checkpoint rewrites it completely, so the number of its nodes
//! depends only on the number of segments.
//!
//! Invariant: H15 the usage table counts its own nodes. Their places are taken before the table is
//! computed.
//!
//! No locks.

use crate::btree::{Change, Ledger, NodeCache, NodeStore, StoredNode, Tree};
use crate::format::item::{Item, SEGMENTS_PER_ITEM, Usage};
use crate::format::key::Key;
use crate::format::place::{Geometry, Place, Seal};
use crate::format::superblock::{TreeRoot, USAGE_TREE};
use crate::format::usage::{Segment, USAGE_BYTES};
use crate::space::nodes::VolumeStore;
use forebay_base::buf::AlignedBuf;
use forebay_base::codec::Writer;
use forebay_base::task::BoxFuture;
use forebay_base::{Error, ErrorKind, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Writes the usage table to the places that were reserved for it (H15).
pub(crate) async fn write_usage(
    tree: &Tree,
    store: &VolumeStore,
    entries: &[Segment],
    places: &[[Place; 2]],
    number: u64,
) -> Result<TreeRoot> {
    let reserved = store.reserve(places.iter().rev().copied().collect());
    let mut ledger = Ledger::default();
    let mut items = usage_items(entries, store.geometry())?.into_iter();
    let done = tree.rewrite(USAGE_TREE, 0, &mut items, number, 100, &mut ledger).await;
    drop(reserved);
    let root = done?.root;
    match ledger.taken == places {
        true => Ok(root),
        false => Err(Error::new(ErrorKind::Corrupt, "checkpoint", "the usage table's size")),
    }
}

/// The usage table as changes of tree items.
pub(crate) fn usage_items(entries: &[Segment], geometry: &Geometry) -> Result<Vec<Change>> {
    let mut out = Vec::new();
    for (n, some) in entries.chunks(SEGMENTS_PER_ITEM).enumerate() {
        let mut bytes = vec![0; some.len() * USAGE_BYTES];
        let mut w = Writer::new("usage item", &mut bytes);
        some.iter().try_for_each(|entry| entry.encode_into(&mut w))?;
        let key = Key::Usage((n * SEGMENTS_PER_ITEM) as u32);
        out.push(Change::put(key, &Item::Usage(Usage::new(&bytes)?), geometry)?);
    }
    Ok(out)
}

/// A store that counts nodes and keeps none.
struct Counting(AtomicU32, Geometry);

impl NodeStore for Counting {
    fn read(&self, place: Place) -> BoxFuture<'_, Result<AlignedBuf>> {
        let error = Error::new(ErrorKind::Io, "read", format!("nothing is kept at {place:?}"));
        Box::pin(std::future::ready(Err(error)))
    }

    fn allocate(&self) -> BoxFuture<'_, Result<[Place; 2]>> {
        let n = self.0.fetch_add(1, Ordering::Relaxed);
        let per = self.1.segment_bytes() >> self.1.node_shift;
        let offset = (n % per) << self.1.node_shift;
        let places = [0, 1].map(|copy| Place::new(n / per * 2 + copy, offset));
        Box::pin(std::future::ready(Ok(places)))
    }

    fn write(&self, _nodes: Vec<Arc<StoredNode>>) -> BoxFuture<'_, Result<()>> {
        Box::pin(std::future::ready(Ok(())))
    }
}

/// The number of nodes that the usage table of a volume takes, whatever its content.
pub(crate) async fn usage_nodes(segments: u32, geometry: Geometry, seal: Seal) -> Result<u64> {
    let store = Arc::new(Counting(AtomicU32::new(0), geometry));
    let tree = Tree::new(store, Arc::new(NodeCache::new(0)), geometry, seal);
    let entries = vec![Segment::FREE; segments as usize];
    let mut items = usage_items(&entries, &geometry)?.into_iter();
    let mut ledger = Ledger::default();
    tree.rewrite(USAGE_TREE, 0, &mut items, 1, 100, &mut ledger).await?;
    Ok(ledger.taken.len() as u64)
}
