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
fn promise(space: &mut Space, cost: u64, need: Need, others: &OtherNeeds) -> bool {
    let ask = Ask::log(cost, Default::default());
    let fits = space.balance(cost, *others).fits(need, &ask);
    if fits {
        let _stays = space.ledger.grant(cost);
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
fn p11_promises_are_kept() {
    let (mut space, others) = (space(12), OtherNeeds::default());
    let each = space.layout.log_bytes() / 3;
    let mut promised = 0;
    while promise(&mut space, each, Need::New, &others) {
        promised += 1;
        let kept = space.balance(0, others).kept().new;
        for _ in 0..8 {
            let _more = space.take_data(4096, kept);
        }
    }
    fill(&mut space, &others, Need::New);
    assert!(promised >= 3, "{promised}");
    let mut wanted = promised * each;
    while wanted > 0 {
        space.take_log().unwrap();
        wanted = wanted.saturating_sub(space.layout.log_bytes());
    }
}

/// space.P12: data leaves two segments. Urgent log records leave one of them, which outstanding
/// ones may use. space.P15: one more segment is kept for the cleaner.
#[test]
fn p12_last_segments_are_kept_for_removals() {
    let (mut space, others) = (space(6), OtherNeeds::default());
    fill(&mut space, &others, Need::New);
    assert_eq!((space.segments.free(), data_room(&space, &others)), (3, 0));
    assert_eq!(space.balance(0, others).clean_segments(), 1);
    assert!(!promise(&mut space, 1024, Need::New, &others));
    let mut urgent = 0;
    while promise(&mut space, 1024, Need::Urgent, &others) {
        urgent += 1;
    }
    assert!((32..64).contains(&urgent), "most of a segment: {urgent}");
    assert!(space.balance(30 << 10, others).has_log(Need::Outstanding, 0));
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
            promise(&mut space, 64, need, &others)
        };
        (0..100).take_while(fits).count() as u64
    };
    let (new, urgent) = (most(Need::New), most(Need::Urgent));
    assert!(new >= 16 && urgent >= new + 16 && urgent <= 8 * 16 / 2 + 1, "{new} {urgent}");
}

/// space.P14: neither the log nor new content takes the space of accepted content.
#[test]
fn p14_log_leaves_space_for_accepted_content() {
    let (mut space, accepted) = (space(8), 3 << 16);
    let others = OtherNeeds { accepted, ..OtherNeeds::default() };
    while promise(&mut space, 1024, Need::Urgent, &others) {}
    assert!(data_room(&space, &OtherNeeds::default()) >= accepted);
    fill(&mut space, &others, Need::New);
    assert!(space.segments.free() >= 5);
}

/// space.P13: a checkpoint finds space for its nodes.
#[test]
fn p13_checkpoint_finds_space_for_its_nodes() {
    let mut space = space(8);
    let others = OtherNeeds { pairs: 30, ..OtherNeeds::default() };
    while promise(&mut space, 1024, Need::Urgent, &others) {
        fill(&mut space, &others, Need::New);
    }
    for _ in 0..30 {
        space.take_node().unwrap();
    }
}
