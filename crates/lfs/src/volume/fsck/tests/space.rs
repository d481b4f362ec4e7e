//! Tests of the usage of segments, and of places that are used twice.

use super::super::space::{Use, User, Uses, add_usage};
use super::*;
use crate::btree::Seen;
use crate::format::place::{Geometry, Place};
use crate::format::superblock::USAGE_TREE;
use crate::recover::open::usage_entries;

/// The usage table is compared with the trees segment by segment.
#[test]
fn usage_that_is_wrong_is_found() {
    let setup = setup(0);
    let (_, disk) = changed(|_, _| ());
    let disk = disk.in_world(SimWorld::new(1));
    disk.world().run(async {
        let device: DeviceRef = Arc::new(disk.clone());
        let (superblock, _) = crate::device::slots::read_newest(&device).await.unwrap();
        let volume = open(&setup, &disk).await.unwrap();
        let (tree, layout) = (&volume.0.tree, volume.0.layout);
        let entries = usage_entries(tree, &superblock).await.unwrap();
        // The findings if so many bytes more are live in a segment.
        let said = async |options: FsckOptions, more: Option<u32>| {
            let mut uses = Uses::new(layout.geometry, layout.segments, &options);
            let mut report = FsckReport::default();
            loop {
                for root in [FILES_TREE, USAGE_TREE] {
                    let root = root_of(&superblock, root).unwrap();
                    let mut seen = |seen: Seen<'_>| uses.see(root.tree, &seen);
                    assert!(tree.check(&root, &mut seen).await.unwrap().is_clean());
                }
                more.into_iter().for_each(|segment| uses.add_live(Place::new(segment, 0), 512));
                add_usage(&layout, uses.differing(&entries), &mut report);
                if !uses.next_window() {
                    return report.findings;
                }
            }
        };
        assert!(entries.iter().filter(|entry| entry.live_bytes > 0).count() > 2);
        for options in [LEAST, FsckOptions::default()] {
            assert_eq!(said(options, None).await, []);
            for segment in 0..entries.len() as u32 {
                let findings = said(options, Some(segment)).await;
                let [finding] = &findings[..] else { panic!("{findings:?}") };
                let at = layout.device_offset(Place::new(segment, 0));
                assert_eq!((finding.kind, finding.offset), (FindingKind::Usage, Some(at)));
                assert_eq!(finding.figures.map(|(said, found)| found - said), Some(512));
            }
        }
    });
    disk.world().stop();
}

/// What a check reports about these uses: user, segment, offset and bytes.
fn overlaps(options: FsckOptions, all: &[(User, u32, u32, u64)]) -> Vec<String> {
    overlaps_in(options, all, true)
}

fn overlaps_in(options: FsckOptions, all: &[(User, u32, u32, u64)], is_same: bool) -> Vec<String> {
    let geometry = Geometry { block_shift: 9, ..Geometry::with_segment_shift(16) };
    let all: Vec<Use> = (0..)
        .zip(all)
        .map(|(number, (user, segment, offset, bytes))| {
            let place = Place::new(*segment, *offset);
            Use { place, bytes: *bytes, user: *user, number }
        })
        .collect();
    let mut uses = Uses::new(geometry, 16, &options);
    loop {
        all.iter().for_each(|this| uses.add_use(*this));
        if !uses.next_window() {
            break;
        }
    }
    let mut second = uses.into_second();
    all.iter().for_each(|this| second.add_use(*this));
    let (setup, mut report) = (setup(0), FsckReport::default());
    let disk = setup.blank().in_world(SimWorld::new(1));
    let layout = disk.world().run(open(&setup, &disk)).unwrap().0.layout;
    disk.world().stop();
    second.report(&layout, is_same, &mut report);
    assert!(report.findings.iter().all(|finding| finding.kind == FindingKind::Tree));
    let mut all: Vec<String> = report.findings.into_iter().map(|finding| finding.text).collect();
    all.sort();
    all
}

/// space.E19, space.E20: no two data ids, no two nodes, and no node and data id share a block.
#[test]
fn places_that_are_used_twice_are_found() {
    let (data, node) = (User::Data, User::Node(1));
    let uses = [
        // Next to each other.
        (data(8), 1, 8192, 4096),
        (data(7), 1, 4096, 4096),
        (node, 1, 0, 4096),
        // In the last blocks of a segment, and at the same place in the next one.
        (data(5), 7, 65024, 512),
        (data(6), 8, 65024, 512),
    ];
    let at = |segment, offset| format!("{:?}", Place::new(segment, offset));
    for options in [LEAST, FsckOptions::default()] {
        assert_eq!(overlaps(options, &uses), [""; 0]);
        let with = |this| overlaps(options, &[&uses[..], &[this]].concat());
        let text = |one: &str, other: &str| vec![format!("{one} and {other} overlap")];
        assert_eq!(
            with((data(9), 1, 12288 - 512, 512)),
            text(&format!("data 8 at {}", at(1, 8192)), &format!("data 9 at {}", at(1, 11776)))
        );
        assert_eq!(
            with((node, 1, 0, 4096)),
            text(
                &format!("a node of tree 1 at {}", at(1, 0)),
                &format!("a node of tree 1 at {}", at(1, 0))
            )
        );
        assert_eq!(
            with((data(5), 1, 3584, 512)),
            text(
                &format!("a node of tree 1 at {}", at(1, 0)),
                &format!("data 5 at {}", at(1, 3584))
            )
        );
        assert_eq!(
            with((data(2), 8, 64512, 1024)),
            text(&format!("data 2 at {}", at(8, 64512)), &format!("data 6 at {}", at(8, 65024)))
        );
        // Each of these shares a block with the first one.
        let many: Vec<_> = (0..32).map(|n| (data(n), 3, n as u32 * 512, 512)).collect();
        let all = [&[(data(40), 3, 0, 16384)], &many[..]].concat();
        assert_eq!(overlaps(options, &all).len(), 32);
        let all = [&many[..], &[(data(40), 3, 0, 16384)]].concat();
        assert_eq!(overlaps(options, &all).len(), 1);
        // No more than the first thousand are named.
        let all: Vec<_> = (0..1202).map(|n| (data(n), 3 + n as u32 % 2, 0, 512)).collect();
        let found = overlaps(options, &all);
        assert_eq!(found.len(), 1001);
        assert!(found.iter().any(|text| text == "200 more nodes and extents overlap others"));
        // Of passes that differ, the numbers say nothing.
        let found = overlaps_in(options, &[uses[0], (data(9), 1, 8192, 512)], false);
        let at = at(1, 8192);
        assert_eq!(found, [format!("data 9 at {at} overlaps another use, which is not known")]);
    }
}

/// The story: each segment behind the last one took a bit map, and a few of these each a pass over
/// the trees. A hostile image has a million of them.
#[test]
fn places_behind_the_last_segment_take_no_pass() {
    let geometry = Geometry { block_shift: 9, ..Geometry::with_segment_shift(16) };
    let (mut uses, mut passes) = (Uses::new(geometry, 16, &LEAST), 0);
    loop {
        passes += 1;
        for segment in 15..1000 {
            let (place, user, number) = (Place::new(segment, 0), User::Data(1), u64::from(segment));
            uses.add_live(place, 512);
            uses.add_use(Use { place, bytes: 512, user, number });
        }
        if !uses.next_window() {
            break;
        }
    }
    assert_eq!(passes, 1);
    let mut report = FsckReport::default();
    uses.report_behind(&mut report);
    let texts: Vec<&str> = report.findings.iter().map(|finding| finding.text.as_str()).collect();
    assert_eq!(texts, ["984 nodes and extents lie behind the last segment"]);
}
