//! Tests of grants, and of the space that grants leave free.
//!
//! No locks.

use super::*;
use crate::format::place::{Geometry, Seal};

fn space(segments: u32) -> Space {
    let geometry = Geometry::with_segment_shift(16);
    let seal = Seal::new(&[1; 16]);
    Space::new(Layout { geometry, seal, nonce: [1; 16], data_start: 16384, segments, align: 512 })
}

/// Grants `cost` bytes of the log, as [`State`](crate::transaction::state::State) does.
fn grant(space: &mut Space, cost: u64, need: Need, others: &OtherNeeds) -> bool {
    let ask = Ask::log(cost, Default::default());
    let fits = space.balance(cost, *others).fits(need, &ask);
    if fits {
        let _stays = space.ledger.grant(&ask);
    }
    fits
}

/// Takes data until a need has no more; `others` are not changed by that.
fn fill(space: &mut Space, others: &OtherNeeds, need: Need) {
    let kept = space.balance(0, *others).kept();
    let kept = if need == Need::New { kept.new } else { kept.accepted };
    while space.take_data(4096, kept).is_ok() {}
}

fn data_room(space: &Space, others: &OtherNeeds) -> u64 {
    space.balance(0, *others).content_left(Need::New)
}

/// space.P11: each grant finds its space, even if data takes all the rest.
#[test]
fn p11_grants_of_log_find_their_segments() {
    let (mut space, others) = (space(12), OtherNeeds::default());
    let each = space.layout.log_bytes() / 3;
    let mut granted = 0;
    while grant(&mut space, each, Need::New, &others) {
        granted += 1;
        let kept = space.balance(0, others).kept().new;
        for _ in 0..8 {
            let _more = space.take_data(4096, kept);
        }
    }
    fill(&mut space, &others, Need::New);
    assert!(granted >= 3, "{granted}");
    let mut wanted = granted * each;
    while wanted > 0 {
        space.take_log().unwrap();
        wanted = wanted.saturating_sub(space.layout.log_bytes());
    }
}

/// space.P12: data leaves two segments. Urgent log records leave one of them. space.P15: one more
/// segment is kept for the cleaner.
#[test]
fn p12_last_segments_are_kept_for_removals() {
    let (mut space, others) = (space(6), OtherNeeds::default());
    fill(&mut space, &others, Need::New);
    assert_eq!((space.segments.free(), data_room(&space, &others)), (3, 0));
    assert_eq!(space.balance(0, others).clean_segments(), 1);
    assert!(!grant(&mut space, 1024, Need::New, &others));
    let mut urgent = 0;
    while grant(&mut space, 1024, Need::Urgent, &others) {
        urgent += 1;
    }
    assert!((32..64).contains(&urgent), "most of a segment: {urgent}");
    // The grants take the segment for removals; the others are for recovery and the cleaner.
    space.take_log().unwrap();
    assert_eq!(space.segments.free(), 2);
}

/// space.P24: new content leaves nodes to operations that make space, whatever space the open log
/// segment has. No operation takes the nodes of a checkpoint.
#[test]
fn p24_new_content_leaves_nodes_for_removals() {
    let most = |need| {
        let fits = |pairs: &u64| {
            let mut space = space(8);
            space.log_head(0);
            let others = OtherNeeds { pairs: *pairs, spare: 16, ..OtherNeeds::default() };
            grant(&mut space, 64, need, &others)
        };
        (0..100).take_while(fits).count() as u64
    };
    let (new, urgent) = (most(Need::New), most(Need::Urgent));
    assert!(new >= 16 && urgent >= new + 16 && urgent <= 8 * 16 / 2 + 1, "{new} {urgent}");
}

/// space.P14: neither the log nor new content takes the space of accepted content, which then takes
/// all of it.
#[test]
fn p14_log_leaves_space_for_accepted_content() {
    let (mut space, accepted) = (space(8), 3 << 16);
    let mut others = OtherNeeds { accepted, ..OtherNeeds::default() };
    while grant(&mut space, 1024, Need::Urgent, &others) {}
    let more = OtherNeeds { accepted: accepted + 4096, ..others };
    assert!(!space.balance(0, more).fits(Need::New, &Ask::content(4096)), "new content");
    assert!(!space.balance(0, more).fits(Need::Overwrite, &Ask::content(4096)), "an overwrite");
    assert_eq!(data_room(&space, &others), 0);
    while others.accepted > 0 {
        let kept = space.balance(0, others).kept().accepted;
        let (_, taken) = space.take_data(others.accepted, kept).expect("P14: accepted content");
        others.accepted -= taken;
    }
    // Three segments of the log, one for recovery, one for the cleaner.
    assert_eq!(space.segments.free(), 5);
}

/// space.P13: a checkpoint finds space for its nodes.
#[test]
fn p13_checkpoint_finds_space_for_its_nodes() {
    let mut space = space(8);
    let others = OtherNeeds { pairs: 30, ..OtherNeeds::default() };
    while grant(&mut space, 1024, Need::Urgent, &others) {
        fill(&mut space, &others, Need::New);
    }
    for _ in 0..30 {
        space.take_node().unwrap();
    }
}
