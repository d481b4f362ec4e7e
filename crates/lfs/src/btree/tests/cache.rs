//! The bound of the cache, and that it never hands out what was at a place before.
//!
//! No locks.

use super::Bench;
use super::work::{SHAPES, Shape, batch};
use crate::btree::cache::ENTRY_BYTES;
use crate::fuzz::make::Make;

/// C1, and that inner nodes stay: a lookup in a tree much larger than the cache reads its leaf alone.
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
        assert!(counts.used_bytes <= budget && counts.nodes == 12, "{counts:?} (C1)");
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

/// C2: places are used again and again, and nobody tells the cache.
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
