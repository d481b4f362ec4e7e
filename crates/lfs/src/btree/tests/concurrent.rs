//! A merge builds nodes while the batch before is written; when it ends, no write is in flight.
//!
//! No locks.

use super::work::{Shape, batch};
use super::{Bench, geometry};
use crate::btree::store::{NodeStore, StoredNode};
use crate::btree::{Ledger, NodeCache, Tree, write::BATCH_NODES};
use crate::format::place::Place;
use crate::fuzz::make::{Make, seal};
use forebay_base::buf::AlignedBuf;
use forebay_base::task::{BoxFuture, block_on, yield_now};
use forebay_base::{Error, ErrorKind, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A store whose writes take several polls, and whose places may run out.
struct Slow {
    store: Arc<super::MemStore>,
    flying: AtomicUsize,
    /// Number of nodes made while others were being written.
    meanwhile: AtomicUsize,
    left: AtomicUsize,
}

impl NodeStore for Slow {
    fn read(&self, place: Place) -> BoxFuture<'_, Result<AlignedBuf>> {
        self.store.read(place)
    }

    fn allocate(&self) -> BoxFuture<'_, Result<[Place; 2]>> {
        let flying = self.flying.load(Ordering::Relaxed);
        self.meanwhile.fetch_add(usize::from(flying > 0), Ordering::Relaxed);
        if self.left.fetch_sub(1, Ordering::Relaxed) == 0 {
            let error = Error::new(ErrorKind::NoSpace, "allocate", "told to fail");
            return Box::pin(std::future::ready(Err(error)));
        }
        self.store.allocate()
    }

    fn write(&self, nodes: Vec<Arc<StoredNode>>) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let flying = self.flying.fetch_add(1, Ordering::Relaxed);
            assert_eq!(flying, 0, "B53: one batch at a time");
            assert!(nodes.len() <= BATCH_NODES, "B53");
            for _ in 0..3 {
                yield_now().await;
            }
            let done = self.store.write(nodes).await;
            self.flying.fetch_sub(1, Ordering::Relaxed);
            done
        })
    }
}

/// The story: a merge waited for each batch to be written before it made the next one. A merge that
/// fails must leave no write in flight, because other nodes get its places. write.B53,
/// checkpoint.B73.
#[test]
fn b53_b73_merge_overlaps_writes_and_failure_leaves_none_in_flight() {
    let (mut make, mut bench) = (Make(3), Bench::new(0));
    let changes = batch(&mut make, Shape::LongExtents, 900, &bench.model);
    bench.merge(&changes).unwrap();
    let more = batch(&mut make, Shape::LongExtents, 900, &bench.model);
    for left in [usize::MAX, 2 * BATCH_NODES + 3, BATCH_NODES + 1] {
        let fork = bench.fork();
        let [flying, meanwhile] = [0, 0].map(AtomicUsize::new);
        let left_then = AtomicUsize::new(left);
        let slow = Arc::new(Slow { store: fork.store.clone(), flying, meanwhile, left: left_then });
        let cache = Arc::new(NodeCache::new(0));
        let tree = Tree::new(slow.clone(), cache, geometry(), seal());
        let (mut ledger, mut stream) = (Ledger::default(), more.iter().cloned());
        let done = block_on(tree.merge(&fork.root, &mut stream, fork.birth + 1, &mut ledger));
        assert_eq!(done.is_ok(), left == usize::MAX, "{left}: {done:?}");
        assert_eq!(slow.flying.load(Ordering::Relaxed), 0, "B73: {left}");
        assert!(slow.meanwhile.load(Ordering::Relaxed) > 0, "{left}: nothing was made meanwhile");
    }
}
