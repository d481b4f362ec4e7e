//! The bound of the cache, and that it never hands out what was at a place before.
//!
//! No locks.

use super::Bench;
use super::work::{SHAPES, Shape, batch};
use crate::btree::Link;
use crate::btree::cache::ENTRY_BYTES;
use crate::format::node::NodePointer;
use crate::fuzz::make::Make;

/// B31, and that inner nodes stay: a lookup in a tree much larger than the cache reads its leaf alone.
#[test]
fn the_cache_stays_within_its_bytes() {
    let budget = 12 * (4096 + ENTRY_BYTES) + 100;
    let (mut make, mut bench) = (Make(1), Bench::new(budget));
    let changes = batch(&mut make, Shape::LongExtents, 600, &bench.model);
    bench.merge(&changes).unwrap();
    let leaves = bench.check().report.nodes[0] as usize;
    assert!(leaves > 60, "{leaves} leaves");
    for round in 0..3 {
        bench.store.state.lock().reads = 0;
        assert_eq!(bench.scan().unwrap(), bench.model);
        let counts = bench.tree.cache().counts();
        assert!(counts.used_bytes <= budget && counts.nodes == 12, "{counts:?} (B31)");
        let reads = bench.store.state.lock().reads as usize;
        assert!(round == 0 || reads <= leaves + leaves / 4, "{reads} reads of {leaves} leaves");
    }
    let changes = batch(&mut make, Shape::Deletes, 100, &bench.model);
    let (_, ledger) = bench.merge(&changes).unwrap();
    let counts = bench.tree.cache().counts();
    assert!(counts.used_bytes <= budget && counts.hits > 0, "{counts:?}");
    bench.tree.cache().forget(&ledger.taken);
    assert_eq!(bench.scan().unwrap(), bench.model);
}

#[test]
fn a_cache_without_room_keeps_nothing() {
    let (mut make, mut bench) = (Make(1), Bench::new(4096));
    let changes = batch(&mut make, Shape::LongExtents, 100, &bench.model);
    bench.merge(&changes).unwrap();
    assert_eq!(bench.scan().unwrap(), bench.model);
    assert_eq!(bench.tree.cache().counts().nodes, 0);
}

/// B32: places are used again and again, and nobody tells the cache.
#[test]
fn a_place_that_is_used_again_is_another_node() {
    let (mut make, mut bench) = (Make(7), Bench::new(1 << 20));
    bench.is_cache_told = false;
    for round in 0..30 {
        let shape = make.pick(&SHAPES);
        let changes = batch(&mut make, shape, 60, &bench.model);
        bench.merge(&changes).unwrap();
        assert_eq!(bench.scan().unwrap(), bench.model, "round {round}: {shape:?}");
    }
    assert!(bench.tree.cache().counts().hits > 1000, "the cache was used");
}

/// B32: what the pointer says has to agree in each part.
#[test]
fn a_node_is_found_by_all_of_its_pointer() {
    let (mut make, mut bench) = (Make(1), Bench::new(1 << 20));
    let changes = batch(&mut make, Shape::LongExtents, 3, &bench.model);
    bench.merge(&changes).unwrap();
    assert_eq!(bench.scan().unwrap(), bench.model);
    let link = Link::root(&bench.root).unwrap().expect("a root");
    let (right, level) = (link.pointer, link.level);
    let get = |pointer, tree, level| bench.tree.cache().get(&pointer, tree, level).is_some();
    assert!(get(right, 1, level), "it is there");
    assert!(!get(NodePointer { birth: right.birth + 1, ..right }, 1, level), "another birth (B32)");
    assert!(!get(NodePointer { sum: right.sum ^ 1, ..right }, 1, level), "another sum (B32)");
    let places = [right.places[0], right.places[0]];
    assert!(!get(NodePointer { places, ..right }, 1, level), "another copy (B32)");
    assert!(!get(right, 2, level) && !get(right, 1, level + 1), "another tree or level (B32)");
}
