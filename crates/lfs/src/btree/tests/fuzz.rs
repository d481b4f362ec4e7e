//! Damage that the checksums do not show: nodes are changed and sealed again, and so are all nodes
//! above them. Reading then ends in bounded work, without a panic, and with errors of the stated
//! kinds.
//!
//! No locks.

use super::work::{SHAPES, batch};
use super::{Bench, seeds};
use crate::btree::{Change, Cursor, Tree};
use crate::format::key::Key;
use crate::format::node::{NODE_HEADER_BYTES, Node};
use crate::format::place::Place;
use crate::format::superblock::TreeRoot;
use crate::fuzz::make::{Make, seal};
use crate::fuzz::mutate::{mutate, seal_node};
use crate::fuzz::word;
use forebay_base::task::block_on;
use forebay_base::{Error, ErrorKind};
use std::collections::BTreeMap;

type Places = [Place; 2];

/// A tree, and the parent of each node.
struct Family {
    bench: Bench,
    nodes: Vec<(Places, u8)>,
    parents: BTreeMap<Place, Places>,
}

fn family() -> Family {
    let (mut make, mut bench) = (Make(21), Bench::new(0));
    for shape in SHAPES {
        let changes = batch(&mut make, shape, 160, &bench.model);
        bench.merge(&changes).unwrap();
    }
    let nodes = bench.check().nodes;
    let mut parents = BTreeMap::new();
    let g = super::geometry();
    for (places, level) in nodes.iter().filter(|(_, level)| *level > 0) {
        let bytes = bench.store.state.lock().nodes[&places[0]].clone();
        let node = Node::open(&bytes, seal(), places[0], &g).unwrap();
        for n in 0..node.len() {
            let (_, pointer) = node.child(n, &g).unwrap().expect("a child");
            parents.insert(pointer.places[0], *places);
        }
        assert!(*level <= bench.root.level);
    }
    assert!(bench.root.level >= 2, "{:?}", bench.root);
    Family { bench, nodes, parents }
}

fn get(bench: &Bench, places: Places) -> Vec<u8> {
    bench.store.state.lock().nodes[&places[0]].clone()
}

/// Stores a node in both places, and updates the checksums in the nodes above it.
fn put(family: &Family, bench: &mut Bench, mut places: Places, mut bytes: Vec<u8>) {
    seal_node(&mut bytes);
    loop {
        let sum = word(&bytes, 4);
        for place in places {
            bench.store.damage(place, |stored| stored.clone_from(&bytes));
        }
        let Some(parent) = family.parents.get(&places[0]) else {
            bench.root.sum = sum;
            return;
        };
        let pattern = places.map(Place::to_bytes).concat();
        bytes = get(bench, *parent);
        let at = bytes.windows(16).position(|window| window == pattern);
        // An earlier change of the parent has removed the pointer.
        let Some(at) = at else { return };
        bytes[at + 24..at + 28].copy_from_slice(&sum.to_le_bytes());
        seal_node(&mut bytes);
        places = *parent;
    }
}

/// Where item `n` of a node begins.
fn item_at(bytes: &[u8], n: usize) -> usize {
    let at = NODE_HEADER_BYTES + 2 * n;
    bytes.get(at..at + 2).map_or(0, |two| usize::from(u16::from_le_bytes([two[0], two[1]])))
}

/// Offset of the 32 bytes of pointer `n`; any offset in a node that an earlier change damaged.
fn pointer_at(bytes: &[u8], n: usize) -> usize {
    let at = item_at(bytes, n);
    let at = at + 3 + usize::from(bytes.get(at).copied().unwrap_or(0));
    at.min(bytes.len() - 32)
}

fn change(family: &Family, bench: &mut Bench, make: &mut Make) {
    let inner = make.flip();
    let (places, level) = loop {
        let picked = make.pick(&family.nodes);
        if !inner || picked.1 > 0 {
            break picked;
        }
    };
    let mut bytes = get(bench, places);
    let items = u64::from(word(&bytes, 10) as u16).max(1);
    match make.below(8) {
        // The pointer of a sibling replaces a pointer, or below, one to any node: nodes are shared,
        // or reachable in a circle.
        0 | 1 if level > 0 => {
            let (from, to) = (make.below(items) as usize, make.below(items) as usize);
            let (from, to) = (pointer_at(&bytes, from), pointer_at(&bytes, to));
            bytes.copy_within(from..from + 32, to);
        }
        2 if level > 0 => {
            let target = make.pick(&family.nodes).0;
            let there = get(bench, target);
            let to = pointer_at(&bytes, make.below(items) as usize);
            bytes[to..to + 16].copy_from_slice(&target.map(Place::to_bytes).concat());
            bytes[to + 16..to + 24].copy_from_slice(&there[40..48]);
            bytes[to + 24..to + 28].copy_from_slice(&there[4..8]);
        }
        // Nothing is in it.
        3 => {
            bytes[10..12].fill(0);
            bytes[12..14].copy_from_slice(&(NODE_HEADER_BYTES as u16).to_le_bytes());
            bytes[NODE_HEADER_BYTES..].fill(0);
        }
        // A byte of a key.
        4 => {
            let at = item_at(&bytes, make.below(items) as usize) + 3 + make.below(12) as usize;
            if let Some(byte) = bytes.get_mut(at) {
                *byte = make.pick(&[0, 0x10, 0x20, 0xff, *byte ^ 1, byte.wrapping_add(1)]);
            }
        }
        // The items of another node of any level, with or without its level.
        5 => {
            let other = get(bench, make.pick(&family.nodes).0);
            let from = if make.flip() { 10 } else { 9 };
            bytes[from..14].copy_from_slice(&other[from..14]);
            bytes[NODE_HEADER_BYTES..].copy_from_slice(&other[NODE_HEADER_BYTES..]);
        }
        _ => {
            let other = get(bench, make.pick(&family.nodes).0);
            bytes = mutate(make, &bytes, &other);
            bytes.resize(4096, 0);
        }
    }
    put(family, bench, places, bytes);
}

fn expect_kind(e: &Error, what: &str) {
    let kinds = [ErrorKind::Corrupt, ErrorKind::Unsupported, ErrorKind::Io];
    assert!(kinds.contains(&e.kind()), "{what}: {e}");
}

/// Reads all items, and continues after one that cannot be decoded. Returns their number.
async fn read_all(tree: &Tree, root: &TreeRoot, what: &str) -> Result<usize, Error> {
    let (mut cursor, mut count, mut last) = (Cursor::all(), 0, Vec::new());
    while let Some(found) = cursor.next(tree, root).await? {
        let key = found.raw().0;
        assert!(key > &last[..], "{what}: keys rise (B42)");
        last = key.to_vec();
        if let Err(e) = found.decode(tree.geometry()) {
            expect_kind(&e, what);
        }
        count += 1;
    }
    Ok(count)
}

fn try_everything(bench: &mut Bench, make: &mut Make, nodes: u64, what: &str) -> bool {
    let reads = |bench: &Bench| std::mem::take(&mut bench.store.state.lock().reads);
    let levels = u64::from(bench.root.level) + 1;
    reads(bench);
    let scanned = block_on(read_all(&bench.tree, &bench.root, what));
    let most = 2 * levels * (nodes + 2);
    let done = reads(bench);
    assert!(done <= most, "{what}: {done} reads in a scan, at most {most}");
    let keys: Vec<Key> = bench.model.keys().map(|key| Key::decode(key).unwrap()).collect();
    for _ in 0..12 {
        let key = make.pick(&keys);
        for got in [
            block_on(bench.tree.get(&bench.root, key)),
            block_on(bench.tree.floor(&bench.root, key)),
        ] {
            got.err().iter().for_each(|e| expect_kind(e, what));
        }
    }
    assert!(reads(bench) <= 12 * 6 * levels, "{what}: reads of single keys");
    let checked = bench.check();
    // A check reads each place once; 400 reads more are allowed for pointers to invalid places.
    let done = reads(bench);
    assert!(done <= 2 * nodes + 400, "{what}: {done} reads in a check (B81)");
    match &scanned {
        Ok(count) if checked.report.is_complete() => {
            assert_eq!(*count, checked.keys.len(), "{what}: scan and check agree");
        }
        Ok(_) => {}
        Err(e) => {
            expect_kind(e, what);
            assert!(!checked.report.is_complete(), "{what}: a check sees what a scan met: {e}");
        }
    }
    let mut keys: Vec<Key> = (0..5).map(|_| make.pick(&keys)).collect();
    keys.sort();
    keys.dedup();
    let changes: Vec<Change> = keys.into_iter().map(Change::delete).collect();
    if let Err(e) = bench.merge(&changes) {
        expect_kind(&e, what);
    }
    scanned.is_err() || !checked.report.is_clean()
}

/// read.B42, btree.B12, btree.B13, check.B81; and every walk ends.
#[test]
fn sealed_garbage_makes_no_reader_panic_or_loop() {
    let family = family();
    let nodes = family.nodes.len() as u64;
    let (mut told, mut runs) = (0, 0);
    for seed in seeds(400) {
        let (mut make, mut bench) = (Make(seed), family.bench.fork());
        for _ in 0..1 + make.below(3) {
            change(&family, &mut bench, &mut make);
        }
        told += u64::from(try_everything(&mut bench, &mut make, nodes, &format!("seed {seed}")));
        runs += 1;
    }
    assert!(told * 2 > runs, "{told} of {runs} were told");
}
