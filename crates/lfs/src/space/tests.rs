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

/// space.P11: each grant finds its space, even if data takes all the rest.
#[test]
fn p11_promises_are_kept() {
    let (mut space, room) = (space(12), OtherNeeds::default());
    let each = space.layout.log_bytes() / 3;
    let mut promised = 0;
    while space.promise(each, Need::New, &room).is_ok() {
        promised += 1;
        for _ in 0..8 {
            let _more = space.take_data(4096);
        }
    }
    while space.take_data(4096).is_ok() {}
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
    let (mut space, room) = (space(6), OtherNeeds::default());
    while space.take_data(4096).is_ok() {}
    assert_eq!((space.segments.free(), space.data_room()), (3, 0));
    assert_eq!(space.clean_segments(0, 0), 1);
    assert!(space.promise(1024, Need::New, &room).is_err());
    let mut urgent = 0;
    while space.promise(1024, Need::Urgent, &room).is_ok() {
        urgent += 1;
    }
    assert!((32..64).contains(&urgent), "most of a segment: {urgent}");
    for _ in 0..30 {
        space.promise(1024, Need::Outstanding, &room).unwrap();
    }
}

/// space.P24: new content leaves nodes to operations that make space, whatever space the open log
/// segment has. No operation takes the nodes of a checkpoint.
#[test]
fn p24_new_content_leaves_nodes_for_removals() {
    let most = |need| {
        let fits = |pairs: &u64| {
            let mut space = space(8);
            space.log_head(0);
            let room = OtherNeeds { pairs: *pairs, spare: 16, ..OtherNeeds::default() };
            space.promise(64, need, &room).is_ok()
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
    let room = OtherNeeds { accepted, ..OtherNeeds::default() };
    while space.promise(1024, Need::Urgent, &room).is_ok() {}
    assert!(space.data_room() >= accepted, "{}", space.data_room());
    while space.take_data(4096).is_ok() {}
    assert!(space.segments.free() >= 5);
}

/// space.P13: a checkpoint finds space for its nodes.
#[test]
fn p13_checkpoint_finds_space_for_its_nodes() {
    let mut space = space(8);
    space.need_nodes(30, 0);
    let room = OtherNeeds { pairs: 30, ..OtherNeeds::default() };
    while space.promise(1024, Need::Urgent, &room).is_ok() {
        while space.data_room() >= 4096 && space.take_data(4096).is_ok() {}
    }
    for _ in 0..30 {
        space.take_node().unwrap();
    }
}
