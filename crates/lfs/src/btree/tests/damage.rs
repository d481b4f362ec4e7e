//! Each node is damaged in turn. With one bad copy nothing is lost; with two the error names the
//! node.
//!
//! No locks.

use super::work::{SHAPES, Shape, batch};
use super::{Bench, Model, check};
use crate::btree::{Cursor, NodeStore, Problem, Seen};
use crate::format::key::Key;
use crate::format::node::{Node, NodeBuilder, NodeHeader, NodePointer};
use crate::format::place::Place;
use crate::format::superblock::TreeRoot;
use crate::fuzz::make::{Make, seal};
use forebay_base::task::block_on;
use forebay_base::{Error, ErrorKind};

/// Number of kinds of damage that [`spoil`] can do.
const WAYS: u64 = 6;

fn filled() -> Bench {
    let (mut make, mut bench) = (Make(11), Bench::new(0));
    for shape in SHAPES {
        let changes = batch(&mut make, shape, 160, &bench.model);
        bench.merge(&changes).unwrap();
    }
    assert!(bench.root.level >= 2, "{:?}", bench.root);
    bench
}

fn spoil(bench: &Bench, make: &mut Make, places: [Place; 2], copy: usize, way: u64, other: Place) {
    let place = places[copy];
    let other_bytes = bench.store.state.lock().nodes[&other].clone();
    match way {
        0 => {
            bench.store.damage(place, |bytes| bytes[make.below(4096) as usize] ^= 1 << (make.0 % 8))
        }
        1 => bench.store.damage(place, |bytes| bytes.fill(0)),
        2 => bench.store.damage(place, |bytes| bytes[512..1024].fill(0xff)),
        // A write that went to the wrong place.
        3 => bench.store.damage(place, |bytes| *bytes = other_bytes),
        4 => drop(bench.store.state.lock().unreadable.insert(place)),
        _ => drop(bench.store.state.lock().nodes.remove(&place)),
    }
}

/// store.B21, store.B22, check.B82: with one bad copy of a node, the other copy is used.
#[test]
fn one_copy_of_each_node_is_enough() {
    let (bench, mut make) = (filled(), Make(12));
    let nodes = bench.check().nodes;
    for (n, (places, level)) in nodes.iter().enumerate() {
        let copy = n % 2;
        let bad = bench.fork();
        let other = nodes[(n + 1) % nodes.len()].0[copy];
        spoil(&bad, &mut make, *places, copy, n as u64 % WAYS, other);
        let what = format!("node {n} at {places:?}, level {level}, copy {copy}");
        assert_eq!(bad.scan().expect(&what), bench.model, "{what}");
        let checked = bad.check();
        assert!(checked.report.is_complete() && !checked.report.is_clean(), "{what}");
        let [Problem::Copy(place, _)] = &checked.report.problems[..] else {
            panic!("{what}: {:?}", checked.report.problems);
        };
        assert_eq!(*place, places[copy], "{what}");
        assert!(checked.keys.iter().eq(bench.model.keys()), "{what}");
    }
}

/// All first copies at once, then all second ones.
#[test]
fn half_of_everything_is_enough() {
    let bench = filled();
    for copy in 0..2 {
        let bad = bench.fork();
        for (places, _) in bench.check().nodes {
            bad.store.damage(places[copy], |bytes| bytes.fill(0x5a));
        }
        assert_eq!(bad.scan().unwrap(), bench.model);
        assert!(bad.check().report.is_complete());
    }
}

fn names(e: &Error, places: [Place; 2]) -> bool {
    let text = e.to_string();
    places.iter().all(|place| text.contains(&format!("{place:?}")))
}

/// store.B23, check.B83: the error names the lost node, and all items outside of its range are
/// read.
#[test]
fn both_copies_bad_is_an_error_that_names_the_node() {
    let (bench, mut make) = (filled(), Make(13));
    let nodes = bench.check().nodes;
    for (n, (places, level)) in nodes.iter().enumerate() {
        let bad = bench.fork();
        let other = nodes[(n + 1) % nodes.len()].0;
        for (copy, other) in other.into_iter().enumerate() {
            spoil(&bad, &mut make, *places, copy, (n + copy) as u64 % WAYS, other);
        }
        let what = format!("node {n} at {places:?}, level {level}");
        let stored = bad.store.state.lock().nodes.clone();
        let checked = check(&bad.tree, &bad.root);
        assert!(bad.store.state.lock().nodes == stored, "{what}: nothing is written (B84)");
        let [Problem::Lost { places: lost, low, high, error }] = &checked.report.problems[..]
        else {
            panic!("{what}: {:?}", checked.report.problems);
        };
        assert!(lost == places && names(error, *places), "{what}: {error}");
        let is_lost = |key: &Vec<u8>| key >= low && high.as_ref().is_none_or(|high| key < high);
        let left = bench.model.keys().filter(|key| !is_lost(key));
        assert!(checked.keys.iter().eq(left), "{what}: the rest is seen");
        scan_before(&bad, &bench.model, *places, low, &what);
        for (key, value) in bench.model.iter().step_by(1 + bench.model.len() / 23) {
            let got = block_on(bad.tree.get(&bad.root, Key::decode(key).unwrap()));
            match got {
                Ok(found) => {
                    let found = found.map(|found| found.raw().1.to_vec());
                    assert!(!is_lost(key) && found.as_ref() == Some(value), "{what}");
                }
                Err(e) => assert!(is_lost(key) && names(&e, *places), "{what}: {e}"),
            }
        }
    }
}

/// A scan returns the items before the damage, then the error, and the same error again.
fn scan_before(bad: &Bench, model: &Model, places: [Place; 2], low: &Vec<u8>, what: &str) {
    let (mut cursor, mut wanted) = (Cursor::all(), model.iter());
    for _ in 0..2 {
        let e = loop {
            match block_on(cursor.next(&bad.tree, &bad.root)) {
                Ok(found) => {
                    let found = found.expect("an error comes before the end");
                    let (key, value) = wanted.next().expect("items are left");
                    assert!(key < low, "{what}");
                    assert_eq!(found.raw(), (&key[..], &value[..]), "{what}");
                }
                Err(e) => break e,
            }
        };
        assert!(names(&e, places), "{what}: {e}");
        assert!(matches!(e.kind(), ErrorKind::Corrupt | ErrorKind::Io), "{what}: {e}");
    }
}

/// A merge that must read the lost node fails and keeps no places; a merge elsewhere succeeds.
#[test]
fn merge_into_damage_fails_and_elsewhere_continues() {
    let bench = filled();
    let (mut failed, mut done) = (0, 0);
    for (n, (places, level)) in bench.check().nodes.into_iter().enumerate().step_by(2) {
        let mut bad = bench.fork();
        for place in places {
            bad.store.damage(place, |bytes| bytes.fill(n as u8));
        }
        let changes = batch(&mut Make(n as u64), Shape::Deletes, 3, &bench.model);
        let stored = bad.store.state.lock().nodes.len();
        match bad.merge(&changes) {
            Ok(_) => {
                done += 1;
                let problems = bad.check().report.problems;
                assert!(matches!(&problems[..], [Problem::Lost { .. }]), "{problems:?}");
            }
            Err(e) => {
                failed += 1;
                assert!(names(&e, places) && e.kind() == ErrorKind::Corrupt, "level {level}: {e}");
                assert_eq!(bad.store.state.lock().nodes.len(), stored);
            }
        }
    }
    assert!(done > 10 && failed > 2, "{done} done, {failed} failed");
}

/// check.B81, check.B85: nodes with one key are valid below many pointers. A check of a tree in
/// which all pointers of a level lead to the same chain of such nodes ends, and reads two copies
/// for each pointer.
#[test]
fn check_of_shared_chain_ends() {
    let (g, bench) = (super::geometry(), filled());
    let leaves: Vec<[Place; 2]> = bench
        .check()
        .nodes
        .into_iter()
        .filter(|node| node.1 == 0)
        .map(|node| node.0)
        .take(40)
        .collect();
    let read = |places: [Place; 2]| bench.store.state.lock().nodes[&places[0]].clone();
    let first = |places: [Place; 2]| {
        Node::open(&read(places), seal(), places[0], &g).unwrap().raw(0).unwrap().0.to_vec()
    };
    let keys: Vec<Vec<u8>> = leaves.iter().map(|places| first(*places)).collect();
    let bytes = read(leaves[5]);
    let node = Node::open(&bytes, seal(), leaves[5][0], &g).unwrap();
    let mut below = NodePointer { places: leaves[5], birth: node.header.birth, sum: node.sum };
    for level in 1..=6u8 {
        let mut bytes = vec![0; g.node_bytes()];
        let mut builder = NodeBuilder::new(&mut bytes, level, g).unwrap();
        assert!(builder.child(&[], &below).unwrap());
        if level == 6 {
            assert!(keys[1..].iter().all(|key| builder.child(key, &below).unwrap()));
        }
        let places = block_on(bench.store.allocate()).unwrap();
        let header = NodeHeader { places, owner: bench.root.tree, birth: 9, level };
        below = builder.finish(seal(), header).unwrap();
        for place in places {
            bench.store.state.lock().nodes.insert(place, bytes.clone());
        }
    }
    let root =
        TreeRoot { places: Some(below.places), birth: 9, sum: below.sum, level: 6, ..bench.root };
    bench.store.state.lock().reads = 0;
    let (mut pointers, mut items) = (0, 0);
    let mut seen = |seen: Seen<'_>| match seen {
        Seen::Pointer(_) => pointers += 1,
        Seen::Item(..) => items += 1,
        Seen::Node(..) => {}
    };
    let report = block_on(bench.tree.check(&root, &mut seen)).unwrap();
    let chains = (pointers - 1) / 6;
    assert!(chains > 20 && pointers == 1 + 6 * chains, "{pointers}");
    assert_eq!(bench.store.state.lock().reads, 2 * pointers);
    assert_eq!(items, node.len(), "the leaf is valid below one of them");
    let lost = report.problems.iter().filter(|p| matches!(p, Problem::Lost { .. })).count() as u64;
    assert!(lost == chains - 1 && !report.is_complete(), "{lost} of {chains}");
}
