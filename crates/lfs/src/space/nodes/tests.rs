//! Tests of the places for nodes.

use super::*;

/// nodes.N11 to nodes.N13: a slot is free again after two checkpoints.
#[test]
fn n11_n12_n13_slots_come_back_after_two_checkpoints() {
    let mut slots = NodeSlots::new(Geometry::with_segment_shift(16));
    assert!(slots.take().is_none() && slots.wants_segment());
    [4, 9].into_iter().for_each(|segment| slots.add(segment));
    let pairs: Vec<[Place; 2]> = std::iter::from_fn(|| slots.take()).collect();
    assert_eq!((pairs.len(), slots.left, slots.wants_segment()), (16, 0, true));
    for [first, second] in &pairs {
        assert_ne!(first.segment, second.segment, "N12");
    }
    assert!(slots.settle(pairs[..3].concat()).is_empty());
    assert!(slots.take().is_none(), "N11: the checkpoint before has them");
    assert!(slots.settle(pairs[3..].concat()).is_empty());
    assert_eq!(slots.left, 6);
    slots.add(11);
    let pair = slots.take().unwrap();
    assert_ne!(pair[0].segment, pair[1].segment);
    assert!(!slots.found(pair[0]), "it is taken");
    slots.free(pair);
    assert_eq!(slots.settle(Vec::new()), [4, 9, 11], "N13");
    assert!(!slots.found(pair[0]) && slots.left == 0);
}

/// The story: a few nodes that were spread over many segments kept these segments in use for
/// good, on a volume that was emptied. Each new pair went to the emptiest segments.
#[test]
fn n13_few_nodes_come_together() {
    let mut slots = NodeSlots::new(Geometry::with_segment_shift(16));
    (0..6).for_each(|segment| slots.add(segment));
    let pairs: Vec<[Place; 2]> = std::iter::from_fn(|| slots.take()).collect();
    // One pair in the last segments stays, the other pairs are given up.
    let (stays, gone) = pairs.split_last().unwrap();
    slots.settle(gone.concat());
    slots.settle(Vec::new());
    let mut last: Option<[Place; 2]> = None;
    for _ in 0..4 {
        let taken = slots.take().unwrap();
        slots.settle(last.replace(taken).map_or(Vec::new(), |old| old.to_vec()));
    }
    let stays: Vec<u32> = stays.iter().map(|place| place.segment).collect();
    let found: Vec<u32> = slots.segments.keys().copied().collect();
    assert_eq!(found.len(), 2, "{found:?}, one is in {stays:?}");
}

/// The story: the ledger counted free slots for a checkpoint that all lay in one segment. Both
/// copies of a node cannot lie there, so the checkpoint needed a segment that had not been kept
/// for it.
#[test]
fn p13_segments_that_pairs_will_take() {
    for seed in 0..300u64 {
        let mut rng = seed;
        let mut pick = |n: u64| forebay_base::world::split_mix(&mut rng) % n;
        let mut slots = NodeSlots::new(Geometry::with_segment_shift(16));
        (0..pick(6) as u32).for_each(|n| slots.add(n));
        let mut taken = Vec::new();
        for _ in 0..pick(60) {
            taken.extend(slots.take().into_iter().flatten());
            if pick(2) == 0 && !taken.is_empty() {
                let place = taken.swap_remove(pick(taken.len() as u64) as usize);
                slots.free([place]);
                slots.recount();
            }
        }
        for _ in 0..pick(3) {
            slots.fail(pick(6) as u32);
        }
        let (counted, is_sound) = (slots.room, slots.segments.values().all(|s| !s.has_failed));
        slots.recount();
        assert!(counted == slots.room || !is_sound, "seed {seed}: the counters are kept");
        let (pairs, mut added) = (1 + pick(40), 0);
        let told = slots.room.segments_for(pairs);
        for _ in 0..pairs {
            while slots.wants_segment() {
                slots.add(100 + added);
                added += 1;
            }
            slots.take().unwrap();
        }
        assert_eq!(told, u64::from(added), "seed {seed}: {pairs} pairs");
    }
}
