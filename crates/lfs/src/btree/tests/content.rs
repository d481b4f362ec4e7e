//! The tree that a merge makes: its content is that of a full rewrite and of the model, nodes are
//! filled and rewritten within the limits of btree.B15, write.B52 and merge.B63.
//!
//! No locks.

use super::work::{SHAPES, Shape, batch, extent};
use super::{Bench, Model, check, geometry, scan, seeds};
use crate::btree::write::{FILL_PERCENT, room_bytes};
use crate::btree::{Change, Cursor, Ledger, empty_root, min_used_bytes};
use crate::format::key::Key;
use crate::format::node::Node;
use crate::format::place::Place;
use crate::fuzz::make::{Make, seal};
use forebay_base::ErrorKind;
use forebay_base::task::block_on;
use std::collections::BTreeSet;

/// Merges one batch and checks content, places and counts.
fn merge_and_check(bench: &mut Bench, changes: &[Change], what: &str) {
    let before = bench.check().places;
    let levels = u64::from(bench.root.level) + 1;
    let (merged, ledger) = bench.merge(changes).expect(what);
    let checked = bench.check();
    let report = &checked.report;
    assert!(report.is_clean(), "{what}: {:?} (B15, B51, B12)", report.problems.first());
    assert!(checked.keys.iter().eq(bench.model.keys()), "{what}: other keys (B61)");
    assert_eq!(bench.scan().unwrap(), bench.model, "{what}: other content (B61)");
    let is_new = |places: &[Place; 2]| !ledger.taken.contains(places);
    assert!(ledger.freed.iter().all(is_new), "{what}: a new node is replaced");
    let mut places = before;
    ledger.taken.iter().flatten().for_each(|place| assert!(places.insert(*place), "{what}: B91"));
    ledger.freed.iter().flatten().for_each(|place| assert!(places.remove(place), "{what}"));
    assert_eq!(places, checked.places, "{what}: the ledger tells what is in the tree");
    let bound = 2 * merged.touched + levels;
    let (replaced, touched) = (merged.replaced, merged.touched);
    assert!(replaced <= bound, "{what}: {replaced} replaced for {touched} touched (B63)");
    assert_eq!(merged.changes, changes.len() as u64, "{what}");
    assert_eq!(merged.replaced, ledger.freed.len() as u64, "{what}");
    // The new nodes hold the items of the replaced ones and the new items, at least at the lowest
    // fill.
    let came: usize = changes.iter().filter_map(Change::value).map(|value| value.len() + 25).sum();
    let new = came / min_used_bytes(&geometry()) + 1;
    let most = 3 * replaced as usize + 2 * new + levels as usize + 2;
    assert!(merged.written as usize <= most, "{what}: {merged:?}, at most {most}");
}

fn rewritten(bench: &Bench) -> Model {
    let other = Bench::new(0);
    let put = |(key, _): (&Vec<u8>, _)| Key::decode(key).expect("a key of the model");
    let items: Vec<Change> = bench
        .model
        .iter()
        .map(|(key, value)| {
            let decoded = put((key, ()));
            let item = crate::format::item::Item::decode(decoded, value, &geometry()).unwrap();
            Change::put(decoded, &item, &geometry()).unwrap()
        })
        .collect();
    let mut ledger = Ledger::default();
    let mut stream = items.into_iter();
    let work = other.tree.rewrite(1, 0, &mut stream, 1, FILL_PERCENT, &mut ledger);
    let root = block_on(work).unwrap().root;
    assert!(ledger.freed.is_empty());
    let checked = check(&other.tree, &root);
    assert!(checked.report.is_clean(), "{:?}", checked.report.problems.first());
    block_on(scan(&other.tree, &root)).unwrap()
}

#[test]
fn merge_makes_same_content_as_rewrite() {
    for seed in seeds(24) {
        let mut make = Make(seed);
        let node_shift = make.pick(&[12, 12, 12, 13, 15]);
        let mut bench = Bench::with_nodes(node_shift, if make.flip() { 1 << 20 } else { 0 });
        let mut shapes = Vec::new();
        for round in 0..10 {
            let shape = match seed % 3 {
                0 => SHAPES[(seed / 3) as usize % SHAPES.len()],
                _ => make.pick(&SHAPES),
            };
            shapes.push(shape);
            let count = make.pick(&[1, 3, 30, 300, 700]);
            let changes = batch(&mut make, shape, count, &bench.model);
            let what = format!("seed {seed}, round {round}, {shapes:?}, {count}");
            merge_and_check(&mut bench, &changes, &what);
        }
        assert_eq!(rewritten(&bench), bench.model, "seed {seed}");
    }
}

/// Deep trees of small batches: single changes that empty and fill nodes at all levels.
#[test]
fn deep_tree_shrinks_and_grows() {
    for seed in seeds(3) {
        let mut make = Make(seed);
        let mut bench = Bench::new(1 << 20);
        let large = batch(&mut make, Shape::Largest, 900, &bench.model);
        merge_and_check(&mut bench, &large, "the first");
        let small = batch(&mut make, Shape::Clustered, 3000, &bench.model);
        merge_and_check(&mut bench, &small, "the second");
        assert!(bench.root.level >= 2, "{:?}", bench.root);
        let mut rounds = 0;
        while !bench.model.is_empty() {
            rounds += 1;
            let shape = make.pick(&[Shape::DeleteRun, Shape::DeleteRun, Shape::Deletes]);
            let count = make.pick(&[1, 40, 800]);
            let mut changes = batch(&mut make, shape, count, &bench.model);
            if rounds > 20 {
                changes.retain(|change| change.value().is_none());
            }
            if rounds > 60 {
                let keys = bench.model.keys().map(|key| Key::decode(key).unwrap());
                changes = keys.map(Change::delete).collect();
            }
            merge_and_check(&mut bench, &changes, &format!("seed {seed}, round {rounds}"));
        }
        assert_eq!(bench.root.places, None, "B14");
        assert!(bench.store.state.lock().nodes.is_empty(), "all places came back");
    }
}

/// write.B52, merge.B63: one change in a large tree replaces its path, and one neighbour at most.
#[test]
fn one_change_rewrites_one_path() {
    let mut make = Make(5);
    let mut bench = Bench::new(1 << 20);
    let changes: Vec<Change> = (0..9000).map(|n| extent(&mut make, 3, 2 * n, 1)).collect();
    bench.merge(&changes).unwrap();
    assert_eq!(bench.root.level, 2, "the tree is deep enough");
    let path = u64::from(bench.root.level) + 1;
    for n in [0, 1, 4501, 8999, 17_999, 1 << 40] {
        let (merged, _) = bench.merge(&[extent(&mut make, 3, n, 1)]).unwrap();
        assert_eq!(merged.touched, path, "block {n}");
        assert!(merged.replaced <= path + 1 && merged.written <= path + 2, "block {n}: {merged:?}");
    }
    let (merged, ledger) = bench.merge(&[]).unwrap();
    assert_eq!((merged.written, merged.replaced), (0, 0), "nothing to do");
    assert_eq!(ledger, Ledger::default());
}

/// Nearly all items below one or more inner nodes are deleted. The remaining ones are too few for
/// nodes of their own at several levels, and the nodes before them were not changed. At the front
/// only the following nodes can take them.
#[test]
fn remaining_items_of_inner_node_join_neighbours() {
    let (mut make, mut bench) = (Make(5), Bench::new(1 << 20));
    let changes: Vec<Change> = (0..9000).map(|n| extent(&mut make, 3, n, 1)).collect();
    bench.merge(&changes).unwrap();
    assert_eq!(bench.root.level, 2, "the tree is deep enough");
    let top = bench.root.places.expect("a root")[0];
    let bytes = bench.store.state.lock().nodes[&top].clone();
    let top = Node::open(&bytes, seal(), top, &geometry()).unwrap();
    let block = |n| match top.raw(n).map(|(key, _)| Key::decode(key)) {
        Some(Ok(Key::Extent(_, block))) => block,
        _ => panic!("the key of child {n}"),
    };
    let mut starts: Vec<u64> = (1..top.len()).map(block).collect();
    starts.insert(0, 0);
    starts.push(9000);
    assert!(starts.len() >= 4, "{starts:?}");
    for (i, from) in starts.iter().enumerate() {
        for upto in &starts[i + 1..] {
            // One or three items remain at the end of the range, or one at its start.
            for gone in [*from..upto - 1, *from..upto - 3, from + 1..*upto] {
                let mut other = bench.fork();
                let what = format!("{gone:?} of {starts:?} goes");
                let keys: Vec<_> = gone.map(|n| Change::delete(Key::Extent(3, n))).collect();
                merge_and_check(&mut other, &keys, &what);
            }
        }
    }
}

/// A rewrite fills nodes to the requested percentage, 70 to 100, and the tree is valid.
#[test]
fn rewrite_packs_to_requested_fill() {
    let mut make = Make(9);
    let changes: Vec<Change> = (0..5000).map(|n| extent(&mut make, 3, n, 1)).collect();
    let mut leaves = Vec::new();
    for percent in [70, 90, 100] {
        let bench = Bench::new(0);
        let (mut ledger, mut stream) = (Ledger::default(), changes.iter().cloned());
        let work = bench.tree.rewrite(1, 0, &mut stream, 1, percent, &mut ledger);
        let merged = block_on(work).unwrap();
        let report = check(&bench.tree, &merged.root).report;
        assert!(report.is_clean() && report.items == 5000);
        let fill =
            report.used_bytes as f64 / (report.nodes[0] as usize * room_bytes(&geometry())) as f64;
        assert!((percent as f64 / 100.0 - fill).abs() < 0.03, "{percent} %: {fill}");
        leaves.push(report.nodes[0]);
        assert_eq!(merged.written, report.nodes.iter().sum::<u64>());
    }
    assert!(leaves.is_sorted_by(|a, b| a > b), "{leaves:?}");
}

/// Every operation may run as a task of any thread.
#[test]
fn operations_may_move_between_threads() {
    fn is_send<T: Send>(_: &T) {}
    let bench = Bench::new(0);
    let (tree, root) = (&bench.tree, &bench.root);
    let (mut ledger, mut stream) = (Ledger::default(), std::iter::empty::<Change>());
    is_send(&tree.merge(root, &mut stream, 1, &mut ledger));
    is_send(&tree.get(root, Key::Inode(1)));
    is_send(&tree.floor(root, Key::Inode(1)));
    is_send(&Cursor::all().next(tree, root));
    is_send(&tree.check(root, &mut |_| ()));
}

#[test]
fn changes_out_of_order_are_refused() {
    let mut bench = Bench::new(0);
    let mut make = Make(1);
    let changes = [extent(&mut make, 3, 5, 1), extent(&mut make, 3, 5, 1)];
    assert_eq!(bench.merge(&changes).unwrap_err().kind(), ErrorKind::InvalidInput);
    assert_eq!(bench.root, empty_root(1, 0));
}

/// A write that fails at any point: the old tree reads as before, the places become free, and the
/// same merge works later.
#[test]
fn failed_merge_leaves_old_tree() {
    let mut make = Make(4);
    let mut bench = Bench::new(1 << 20);
    let first = batch(&mut make, Shape::LongExtents, 200, &bench.model);
    bench.merge(&first).unwrap();
    let changes = batch(&mut make, Shape::LongExtents, 100, &bench.model);
    let before: BTreeSet<_> = bench.check().places;
    let mut failed = 0;
    for n in 0.. {
        bench.store.state.lock().writes_left = Some(n);
        if bench.merge(&changes).is_ok() {
            break;
        }
        failed += 1;
        assert_eq!(bench.scan().unwrap(), bench.model, "write {n} failed (B72)");
        let stored: BTreeSet<_> = bench.store.state.lock().nodes.keys().copied().collect();
        assert_eq!(stored, before, "write {n}: what was taken comes back");
    }
    assert!(failed > 40, "{failed} points of failure");
    assert_eq!(bench.scan().unwrap(), bench.model);
    assert!(bench.check().report.is_clean());
}
