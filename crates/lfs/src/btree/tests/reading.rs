//! Lookups and cursors, held against the model.
//!
//! No locks.

use super::work::{SHAPES, Shape, batch, extent};
use super::{Bench, Model, geometry, seeds};
use crate::btree::Cursor;
use crate::format::item::Item;
use crate::format::key::{Key, KeyBytes};
use crate::fuzz::make::Make;
use forebay_base::task::block_on;
use std::ops::Bound;

fn filled(seed: u64, cache_bytes: usize) -> (Make, Bench) {
    let (mut make, mut bench) = (Make(seed), Bench::new(cache_bytes));
    for shape in SHAPES {
        let changes = batch(&mut make, shape, 250, &bench.model);
        bench.merge(&changes).unwrap();
    }
    (make, bench)
}

/// Keys that are there, and others around them.
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

/// B41: one key, and the last one up to a key; in as many reads as there are levels.
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

/// What a map asks: the extent that a block is in.
#[test]
fn the_extent_of_a_block_is_the_floor_of_its_key() {
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

/// B42: ranges with any ends.
#[test]
fn a_cursor_gives_its_range_and_ends() {
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

/// B16, B43: the tree changes under a cursor: it goes on behind its key in what there is then.
#[test]
fn a_cursor_keeps_its_key_over_new_roots() {
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
