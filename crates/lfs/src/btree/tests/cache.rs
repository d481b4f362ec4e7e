//! Tests that the node cache keeps its limit, and never returns a node from before its place was
//! reused; and of the read-ahead that fills the cache.
//!
//! No locks.

use super::Bench;
use super::work::{SHAPES, Shape, batch};
use crate::btree::cache::ENTRY_BYTES;
use crate::btree::read::InOrder;
use crate::btree::{Cursor, Link};
use crate::format::key::Key;
use crate::format::node::NodePointer;
use crate::format::place::Place;
use crate::fuzz::make::Make;
use forebay_base::task::block_on;

/// cache.B31, and that inner nodes stay cached: a lookup in a tree much larger than the cache reads
/// only its leaf.
#[test]
fn cache_stays_within_its_byte_limit() {
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

/// ahead.B45, ahead.B46. The story: a scan of a tree that is not in memory sent the device one
/// request for each leaf, although the leaves are contiguous.
#[test]
fn b45_b46_leaves_are_read_ahead_together() {
    let (mut make, mut bench) = (Make(3), Bench::new(0));
    let changes = batch(&mut make, Shape::LongExtents, 900, &bench.model);
    bench.merge(&changes).unwrap();
    bench.tree.cache().set_budget(1 << 20);
    let first = Key::decode(bench.model.keys().next().unwrap()).unwrap();
    let reads = || std::mem::take(&mut bench.store.state.lock().reads);
    let in_order = |count: usize| {
        let mut cursor = Cursor::all();
        for (key, value) in bench.model.iter().take(count) {
            let found = block_on(cursor.next(&bench.tree, &bench.root)).unwrap().unwrap();
            assert_eq!(found.raw(), (&key[..], &value[..]));
        }
    };
    reads();
    block_on(bench.tree.read_ahead(&bench.root, first, 16)).unwrap();
    let counts = bench.tree.cache().counts();
    let (level, had) = (u64::from(bench.root.level), reads());
    assert!(counts.nodes >= 16, "B46: {counts:?}");
    assert!(had <= level + 8, "{had} reads");
    block_on(bench.tree.read_ahead(&bench.root, first, 16)).unwrap();
    assert_eq!(reads(), 0, "B46: all of it is there");
    in_order(16);
    assert_eq!(reads(), 0, "the first leaves are there");
    // Read-ahead ignores bad copies. A reader that needs such a leaf reads its other copy.
    let places: Vec<Place> = {
        let state = bench.store.state.lock();
        state.nodes.keys().copied().filter(|place| place.segment % 2 == 0).collect()
    };
    for place in places {
        bench.store.damage(place, |bytes| bytes[100] ^= 1);
    }
    bench.tree.cache().set_budget(0);
    bench.tree.cache().forget(&all_places(&bench));
    bench.tree.cache().set_budget(1 << 20);
    block_on(bench.tree.read_ahead(&bench.root, first, 16)).unwrap();
    in_order(bench.model.len());
}

/// The story: a checkpoint of overwrites all over a large file looked up the partly overwritten
/// extents leaf by leaf, with one device request for each. Writers waited for seconds. ahead.B46.
#[test]
fn sequential_lookups_read_leaves_together() {
    let (mut make, mut bench) = (Make(4), Bench::new(0));
    let changes = batch(&mut make, Shape::LongExtents, 900, &bench.model);
    bench.merge(&changes).unwrap();
    let leaves = bench.model.len() as u64 / 7;
    bench.tree.cache().set_budget(4 << 20);
    let reads = || std::mem::take(&mut bench.store.state.lock().reads);
    let look = |step: usize| {
        let mut order = InOrder::default();
        for (key, value) in bench.model.iter().step_by(step) {
            let key_of = Key::decode(key).unwrap();
            let found = bench.tree.floor_in_order(&bench.root, key_of, &mut order);
            assert_eq!(block_on(found).unwrap().unwrap().raw(), (&key[..], &value[..]));
        }
        reads()
    };
    reads();
    let had = look(1);
    assert!(leaves > 60 && had < leaves / 4, "{had} reads of {leaves} leaves");
    bench.tree.cache().set_budget(0);
    bench.tree.cache().forget(&all_places(&bench));
    bench.tree.cache().set_budget(4 << 20);
    // Lookups far apart read no leaves between them.
    look(97);
    let nodes = bench.tree.cache().counts().nodes as u64;
    assert!(nodes < leaves / 2, "{nodes} nodes of {leaves} leaves");
}

/// ahead.B46. The story: read-ahead ended at the last leaf below one parent. The requested leaves
/// below the next parent were then read one by one.
#[test]
fn b46_read_ahead_continues_below_next_parent() {
    let (mut make, mut bench) = (Make(5), Bench::new(0));
    let changes = batch(&mut make, Shape::LongExtents, 900, &bench.model);
    bench.merge(&changes).unwrap();
    assert!(bench.root.level > 1, "there are several parents of leaves");
    let leaves = bench.model.len() / 8;
    bench.tree.cache().set_budget(4 << 20);
    let first = Key::decode(bench.model.keys().next().unwrap()).unwrap();
    block_on(bench.tree.read_ahead(&bench.root, first, 2 * leaves)).unwrap();
    bench.store.state.lock().reads = 0;
    assert_eq!(bench.scan().unwrap(), bench.model);
    assert_eq!(bench.store.state.lock().reads, 0, "all leaves were read");
}

fn all_places(bench: &Bench) -> Vec<[Place; 2]> {
    bench.store.state.lock().nodes.keys().map(|place| [*place; 2]).collect()
}

#[test]
fn cache_without_space_retains_nothing() {
    let (mut make, mut bench) = (Make(1), Bench::new(4096));
    let changes = batch(&mut make, Shape::LongExtents, 100, &bench.model);
    bench.merge(&changes).unwrap();
    assert_eq!(bench.scan().unwrap(), bench.model);
    assert_eq!(bench.tree.cache().counts().nodes, 0);
}

/// cache.B32: merges reuse places again and again, and do not notify the cache.
#[test]
fn reused_place_is_another_node() {
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

/// cache.B32: every field of the pointer must match.
#[test]
fn cached_node_is_found_only_by_complete_pointer() {
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
