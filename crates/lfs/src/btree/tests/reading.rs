//! Lookups and cursors, compared with the model.
//!
//! No locks.

use super::work::{SHAPES, Shape, batch, extent};
use super::{Bench, Model, geometry, seeds};
use crate::btree::{Cursor, NodeStore, StoredNode};
use crate::format::item::Item;
use crate::format::key::{Key, KeyBytes};
use crate::format::node::{Node, NodeBuilder, NodeHeader, NodePointer, POINTER_BYTES};
use crate::format::superblock::TreeRoot;
use crate::fuzz::make::{Make, seal};
use forebay_base::buf::AlignedBuf;
use forebay_base::codec::Writer;
use forebay_base::task::block_on;
use std::ops::Bound;
use std::sync::Arc;

fn filled(seed: u64, cache_bytes: usize) -> (Make, Bench) {
    let (mut make, mut bench) = (Make(seed), Bench::new(cache_bytes));
    for shape in SHAPES {
        let changes = batch(&mut make, shape, 250, &bench.model);
        bench.merge(&changes).unwrap();
    }
    (make, bench)
}

/// A key of the model, one near it, or any other.
fn some_key(make: &mut Make, model: &Model) -> Key {
    let there = model.keys().nth(make.below(model.len() as u64) as usize).expect("some key");
    let key = Key::decode(there).unwrap();
    match (make.below(3), key) {
        (0, _) => key,
        (1, Key::Extent(id, block)) => Key::Extent(id, block + make.below(200)),
        (1, Key::Inode(ino)) => Key::Target(ino, 0),
        _ => make.item(make.0 % 8, &geometry()).0,
    }
}

/// read.B42: a range read leaf by leaf has the same items as read item by item, and another cursor
/// can continue at the same key.
#[test]
fn leaves_have_what_a_cursor_gives_one_by_one() {
    for seed in seeds(4) {
        let (mut make, bench) = filled(seed, if seed % 2 == 0 { 1 << 20 } else { 0 });
        for _ in 0..40 {
            let mut ends = [0, 1].map(|_| some_key(&mut make, &bench.model).to_bytes());
            ends.sort_by(|a, b| a.as_slice().cmp(b.as_slice()));
            let [from, end] = ends;
            let end = (make.below(3) > 0).then_some(end);
            let again = make.below(2) == 0;
            let upto = end.map_or(Bound::Unbounded, |end| Bound::Excluded(end.as_slice().to_vec()));
            let wanted = bench.model.range((Bound::Included(from.as_slice().to_vec()), upto));
            let wanted: Vec<_> = wanted.map(|(key, value)| (key.clone(), value.clone())).collect();
            let mut found = Vec::new();
            let mut cursor = Cursor::over(from, end);
            while let Some(leaf) = block_on(cursor.leaf(&bench.tree, &bench.root)).unwrap() {
                let before = found.len();
                found.extend(leaf.iter().map(|item| {
                    let (key, value) = item.raw();
                    assert_eq!(item.decode(&geometry()).unwrap().0.to_bytes().as_slice(), key);
                    (key.to_vec(), value.to_vec())
                }));
                assert!(leaf.len() > 0 && found.len() == before + leaf.len());
                if let Some(place) = cursor.place().filter(|_| again) {
                    cursor = Cursor::over(place, end);
                }
            }
            assert_eq!(found, wanted, "seed {seed}");
        }
    }
}

/// read.B41: `get` reads at most one node for each level, `floor` two.
#[test]
fn single_keys_are_found_as_the_model_says() {
    for seed in seeds(4) {
        let (mut make, bench) = filled(seed, if seed % 2 == 0 { 1 << 20 } else { 0 });
        for _ in 0..400 {
            let key = some_key(&mut make, &bench.model);
            let stored = key.to_bytes().as_slice().to_vec();
            bench.store.state.lock().reads = 0;
            let got = block_on(bench.tree.get(&bench.root, key)).unwrap();
            let reads = bench.store.state.lock().reads;
            assert!(reads <= u64::from(bench.root.level) + 1, "{reads} reads (B41)");
            let value = got.as_ref().map(|found| found.raw().1.to_vec());
            assert_eq!(value.as_ref(), bench.model.get(&stored), "seed {seed}: {key:?}");
            if let Some(found) = got {
                assert_eq!(found.decode(&geometry()).unwrap().0, key);
            }
            let floor = block_on(bench.tree.floor(&bench.root, key)).unwrap();
            let reads = bench.store.state.lock().reads - reads;
            assert!(reads <= 2 * (u64::from(bench.root.level) + 1), "{reads} reads (B41)");
            let floor = floor.map(|found| found.raw().0.to_vec());
            let wanted = bench.model.range(..=stored).next_back().map(|(key, _)| key.clone());
            assert_eq!(floor, wanted, "seed {seed}: {key:?}");
        }
    }
}

/// A node by hand.
fn store(bench: &Bench, level: u8, entries: &[(&[u8], &[u8])]) -> NodePointer {
    let mut bytes = AlignedBuf::new(4096);
    let places = block_on(bench.store.allocate()).unwrap();
    let mut builder = NodeBuilder::new(&mut bytes, level, geometry()).unwrap();
    for (key, value) in entries {
        assert!(builder.raw(key, value).unwrap());
    }
    let header = NodeHeader { places, owner: 1, birth: 3, level };
    let pointer = builder.finish(seal(), header).unwrap();
    let node = Node::open(&bytes, seal(), places[0], &geometry()).unwrap();
    let known = node.verified();
    block_on(bench.store.write(vec![Arc::new(StoredNode::new(&bytes, known))])).unwrap();
    pointer
}

/// A leaf may begin above the lowest key that it may hold (btree.B12). The floor of a key before
/// its first item is then the last item of the leaf before, below another parent. The writer of
/// this crate leaves no such gap.
#[test]
fn floor_of_key_may_be_in_previous_leaf() {
    let (mut make, mut bench) = (Make(3), Bench::new(0));
    let mut leaf = |blocks: [u64; 2]| {
        let items = blocks.map(|block| extent(&mut make, 3, block, 1));
        let entries = items.each_ref().map(|item| (item.key(), item.value().expect("a value")));
        store(&bench, 0, &entries)
    };
    let leaves = [leaf([10, 20]), leaf([60, 70])];
    let key = |block| Key::Extent(3, block).to_bytes();
    let parent = |level, children: &[(&[u8], NodePointer)]| {
        let values: Vec<_> = children
            .iter()
            .map(|(_, pointer)| {
                let mut value = [0; POINTER_BYTES];
                pointer.encode_into(&mut Writer::new("pointer", &mut value)).unwrap();
                value
            })
            .collect();
        let entries: Vec<_> =
            children.iter().zip(&values).map(|((key, _), value)| (*key, &value[..])).collect();
        store(&bench, level, &entries)
    };
    let inner = leaves.map(|leaf| parent(1, &[(&[], leaf)]));
    let top = parent(2, &[(&[], inner[0]), (key(50).as_slice(), inner[1])]);
    let (places, birth, sum) = (Some(top.places), top.birth, top.sum);
    bench.root = TreeRoot { tree: 1, places, birth, sum, level: 2, since: 0 };
    let cases = [(5, None), (10, Some(10)), (19, Some(10)), (40, Some(20)), (55, Some(20))];
    for (block, wanted) in cases.into_iter().chain([(60, Some(60)), (99, Some(70))]) {
        let found = block_on(bench.tree.floor(&bench.root, Key::Extent(3, block))).unwrap();
        let found = found.map(|found| found.decode(&geometry()).unwrap().0);
        assert_eq!(found, wanted.map(|block| Key::Extent(3, block)), "block {block}");
    }
    assert_eq!(bench.scan().unwrap().len(), 4);
}

/// How a map finds the extent of a block.
#[test]
fn extent_of_block_is_floor_of_its_key() {
    let (mut make, mut bench) = (Make(3), Bench::new(1 << 20));
    let changes: Vec<_> = (0..900).map(|n| extent(&mut make, 4, n * 128, 100)).collect();
    bench.merge(&changes).unwrap();
    for block in (0..900 * 128).step_by(37) {
        let key = Key::Extent(4, block);
        let found = block_on(bench.tree.floor(&bench.root, key)).unwrap().expect("one below");
        let (key, Item::Extent(extent)) = found.decode(&geometry()).unwrap() else { panic!() };
        assert_eq!((key, extent.blocks), (Key::Extent(4, block / 128 * 128), 100));
    }
    let before = block_on(bench.tree.floor(&bench.root, Key::Extent(3, 5))).unwrap();
    assert!(before.is_none(), "nothing is below");
}

/// read.B42: ranges with any ends.
#[test]
fn cursor_returns_its_range_and_ends() {
    for seed in seeds(3) {
        let (mut make, bench) = filled(seed, 1 << 20);
        for _ in 0..40 {
            let (from, end) =
                (some_key(&mut make, &bench.model), some_key(&mut make, &bench.model));
            let end = Some(end).filter(|_| make.below(4) > 0);
            let mut cursor = Cursor::new(from, end);
            let mut got = Vec::new();
            while let Some(found) = block_on(cursor.next(&bench.tree, &bench.root)).unwrap() {
                got.push(found.raw().0.to_vec());
            }
            assert!(block_on(cursor.next(&bench.tree, &bench.root)).unwrap().is_none(), "for good");
            let from = from.to_bytes().as_slice().to_vec();
            let wanted = bench.model.range(from..).map(|(key, _)| key.clone());
            let end = end.map(|end| end.to_bytes().as_slice().to_vec());
            let wanted: Vec<_> =
                wanted.take_while(|key| end.as_ref().is_none_or(|end| key < end)).collect();
            assert_eq!(got, wanted, "seed {seed}");
        }
    }
}

/// btree.B16, read.B43: the tree changes under a cursor, which continues after its last key in the
/// new tree.
#[test]
fn cursor_keeps_its_key_across_new_roots() {
    for seed in seeds(3) {
        let (mut make, mut bench) = filled(seed, 1 << 20);
        let mut cursor = Cursor::over(KeyBytes::EMPTY, None);
        let mut last: Option<Vec<u8>> = None;
        let mut steps = 0;
        loop {
            if make.below(40) == 0 && steps < 4000 {
                let shape = make.pick(&[Shape::Few, Shape::Random, Shape::DeleteRun]);
                let changes = batch(&mut make, shape, 60, &bench.model);
                bench.merge(&changes).unwrap();
            }
            steps += 1;
            let low = last.clone().map_or(Bound::Unbounded, Bound::Excluded);
            let wanted = bench.model.range((low, Bound::Unbounded)).next();
            let wanted = wanted.map(|(key, value)| (key.clone(), value.clone()));
            let found = block_on(cursor.next(&bench.tree, &bench.root)).unwrap();
            let found = found.map(|found| (found.raw().0.to_vec(), found.raw().1.to_vec()));
            assert_eq!(found, wanted, "seed {seed}, step {steps}");
            let Some((key, _)) = found else { break };
            last = Some(key);
        }
    }
}
