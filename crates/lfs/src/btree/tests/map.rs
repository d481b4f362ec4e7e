//! Pieces of an overlay merged into extents, block by block as the model says.
//!
//! No locks.

use super::{Bench, geometry, seeds};
use crate::btree::map::{GivenUp, MapChanges, Piece, Stored};
use crate::btree::{Changes, Cursor, Ledger, Merged};
use crate::format::extent::{Source, UNWRITTEN};
use crate::format::item::Item;
use crate::format::key::Key;
use crate::format::place::Place;
use crate::fuzz::make::Make;
use forebay_base::task::block_on;
use forebay_base::{ErrorKind, Result};
use std::collections::{BTreeMap, BTreeSet};

/// Of a block: place, birth, sum, whether it is unwritten.
type Block = (Place, u64, u32, bool);
type Map = BTreeMap<(u64, u64), Block>;

const SHIFT: u8 = 12;

/// Pieces in order, over a few thousand blocks of some files.
fn pieces(make: &mut Make, next_place: &mut u32, round: u64) -> Vec<Piece> {
    let mut out = Vec::new();
    let longest = make.pick(&[1, 4, 60, 300]);
    for data_id in 1..=make.within(1, 4) {
        let mut block = make.below(200);
        for _ in 0..make.below(50) {
            let mut blocks = 1 + make.below(longest);
            if make.below(12) == 0 {
                blocks = 1 + make.below(900);
            }
            let kind = make.below(5);
            let stored = (kind > 0 && blocks <= 256).then(|| {
                // A run in a segment of its own.
                *next_place += 1;
                let sums: Vec<u8> =
                    (0..blocks as u32).flat_map(|n| (*next_place << 9 | n).to_le_bytes()).collect();
                let flags = if kind == 1 { UNWRITTEN } else { 0 };
                let sums = if kind == 1 { Vec::new() } else { sums };
                let place = Place::new(*next_place, 0);
                Stored { place, birth: round, flags, sums: sums.into() }
            });
            out.push(Piece { data_id, block, blocks, stored });
            block += blocks + make.below(3) * make.below(150);
        }
    }
    if make.below(8) == 0 {
        // A hole up to the highest block of file 9.
        out.push(Piece { data_id: 9, block: make.below(50), blocks: u64::MAX, stored: None });
    } else if make.flip() {
        let stored =
            Stored { place: Place::new(1 << 20, 0), birth: round, flags: 0, sums: [1; 4].into() };
        out.push(Piece { data_id: 9, block: make.below(90), blocks: 1, stored: Some(stored) });
    }
    out
}

fn apply(map: &mut Map, piece: &Piece) -> Vec<Block> {
    let from = (piece.data_id, piece.block);
    let upto = (piece.data_id, piece.block.saturating_add(piece.blocks));
    let gone: Vec<_> = map.range(from..upto).map(|(key, block)| (*key, *block)).collect();
    for (key, _) in &gone {
        map.remove(key);
    }
    if let Some(stored) = &piece.stored {
        for n in 0..piece.blocks {
            let place = stored.place.after((n as u32) << SHIFT).unwrap();
            let sum = stored.sums.chunks(4).nth(n as usize);
            let sum = sum.map_or(0, |sum| u32::from_le_bytes(sum.try_into().unwrap()));
            let unwritten = stored.flags != 0;
            map.insert((piece.data_id, piece.block + n), (place, stored.birth, sum, unwritten));
        }
    }
    gone.into_iter().map(|(_, block)| block).collect()
}

/// What the tree says of each block (map.B96).
fn read(bench: &Bench) -> Map {
    let (mut out, mut cursor) = (Map::new(), Cursor::all());
    while let Some(found) = block_on(cursor.next(&bench.tree, &bench.root)).unwrap() {
        let (Key::Extent(id, first), Item::Extent(extent)) = found.decode(&geometry()).unwrap()
        else {
            panic!("only extents")
        };
        let Source::Run(place) = extent.source else { panic!("a run") };
        let sums: Vec<u32> = extent.sums.iter_crc32c().collect();
        for n in 0..u32::from(extent.blocks) {
            let place = place.after(n << SHIFT).unwrap();
            let sum = sums.get(n as usize).copied().unwrap_or(0);
            let block = (place, extent.birth, sum, extent.flags & UNWRITTEN != 0);
            let before = out.insert((id, first + u64::from(n)), block);
            assert!(before.is_none(), "extents overlap at {id}, {first} (B96)");
        }
    }
    out
}

fn merge(bench: &mut Bench, pieces: &[Piece], gone: &mut Vec<GivenUp>) -> Result<Merged> {
    bench.birth += 1;
    let mut ledger = Ledger::default();
    let mut given_up = |given: GivenUp| gone.push(given);
    let (tree, pieces) = (bench.tree.clone(), pieces.iter().cloned());
    let mut changes = MapChanges::new(&tree, bench.root, pieces, &mut given_up);
    let merged = block_on(tree.merge(&bench.root, &mut changes, bench.birth, &mut ledger))?;
    bench.tree.cache().forget(&ledger.freed);
    bench.store.give_back(&ledger.freed);
    bench.root = merged.root;
    Ok(merged)
}

/// map.B95 to B97.
#[test]
fn pieces_take_the_place_of_what_was_there() {
    for seed in seeds(15) {
        let (mut make, mut bench) = (Make(seed), Bench::new(1 << 20));
        let (mut map, mut next_place) = (Map::new(), 0);
        for round in 1..8 {
            let pieces = pieces(&mut make, &mut next_place, round);
            let mut gone = Vec::new();
            merge(&mut bench, &pieces, &mut gone).unwrap();
            let what = format!("seed {seed}, round {round}");
            let wanted: Vec<_> = pieces.iter().flat_map(|piece| apply(&mut map, piece)).collect();
            assert_eq!(read(&bench), map, "{what} (B95)");
            assert!(bench.check().report.is_clean(), "{what}");
            let told = gone.iter().flat_map(|given| {
                let place = |n| given.place.after(n << SHIFT).unwrap();
                (0..given.bytes >> SHIFT).map(move |n| (place(n), given.birth))
            });
            let told: Vec<_> = told.collect();
            let once: BTreeSet<_> = told.iter().copied().collect();
            let wanted: BTreeSet<_> = wanted.iter().map(|block| (block.0, block.1)).collect();
            assert_eq!(once, wanted, "{what} (B97)");
            let shared = 1 << 20;
            let own = told.iter().filter(|(place, _)| place.segment != shared).count();
            let own_once = once.iter().filter(|(place, _)| place.segment != shared).count();
            assert_eq!(own, own_once, "{what}: told once (B97)");
        }
    }
}

/// Kept extents are split at pieces, and nowhere else.
#[test]
fn merge_splits_kept_extents_only_at_pieces() {
    let (mut make, mut bench) = (Make(2), Bench::new(0));
    let both = [1, 2].map(|id| super::work::extent(&mut make, id, 0, 128));
    bench.merge(&both).unwrap();
    let hole = |data_id, block| Piece { data_id, block, blocks: 1, stored: None };
    merge(&mut bench, &[hole(1, 10), hole(2, 50), hole(3, 60)], &mut Vec::new()).unwrap();
    let wanted = [(1, 0), (1, 11), (2, 0), (2, 51)].map(|(id, block)| Key::Extent(id, block));
    let wanted = wanted.map(|key| key.to_bytes().as_slice().to_vec());
    assert!(bench.scan().unwrap().into_keys().eq(wanted));
}

#[test]
fn pieces_that_overlap_are_refused() {
    let mut bench = Bench::new(0);
    let hole = |block, blocks| Piece { data_id: 1, block, blocks, stored: None };
    for pieces in [[hole(0, 5), hole(4, 1)], [hole(5, 1), hole(0, 1)], [hole(1, 0), hole(2, 1)]] {
        let e = merge(&mut bench, &pieces, &mut Vec::new()).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::InvalidInput, "{pieces:?}");
    }
}

/// A piece over two extents that overlap, which no merge makes, is refused: one of them would be
/// lost.
#[test]
fn extents_that_overlap_are_not_cut() {
    let (mut make, mut bench) = (Make(2), Bench::new(0));
    let both = [0, 64].map(|block| super::work::extent(&mut make, 1, block, 128));
    bench.merge(&both).unwrap();
    let hole = Piece { data_id: 1, block: 60, blocks: 10, stored: None };
    let e = merge(&mut bench, &[hole], &mut Vec::new()).unwrap_err();
    assert!(e.kind() == ErrorKind::Corrupt && e.to_string().contains("overlap at 64"), "{e}");
}

/// map.B98: a hole over a whole large file.
#[test]
fn hole_over_complete_file_leaves_nothing() {
    let (mut make, mut bench) = (Make(2), Bench::new(1 << 20));
    let changes: Vec<_> = (0..3000).map(|n| super::work::extent(&mut make, 4, n * 3, 2)).collect();
    bench.merge(&changes).unwrap();
    // The first 20 of 3000 changes take few reads.
    let hole = Piece { data_id: 4, block: 0, blocks: u64::MAX, stored: None };
    let (other, mut given_up) = (bench.fork(), |_| ());
    let mut changes = MapChanges::new(&other.tree, bench.root, [hole].into_iter(), &mut given_up);
    for n in 0..20 {
        let change = block_on(changes.next()).unwrap().expect("3000 of them");
        assert_eq!(change.key(), Key::Extent(4, 3 * n).to_bytes().as_slice());
        assert!(change.value().is_none());
    }
    let reads = other.store.state.lock().reads;
    assert!(reads <= 12, "{reads} reads (B98)");
    let mut gone = Vec::new();
    let hole = Piece { data_id: 4, block: 1, blocks: u64::MAX - 1, stored: None };
    merge(&mut bench, &[hole], &mut gone).unwrap();
    let left = read(&bench);
    assert_eq!(left.keys().collect::<Vec<_>>(), [&(4, 0)], "the block before it");
    assert_eq!(gone.iter().map(|given| u64::from(given.bytes >> SHIFT)).sum::<u64>(), 5999);
}
