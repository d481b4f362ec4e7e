//! The figures of the segments and of the cleaner agree with a scan of the trees and the segments.
//!
//! No locks.

use crate::btree::Seen;
use crate::checkpoint::root_of;
use crate::clean::CleanStats;
use crate::format::extent::Source;
use crate::format::item::Item;
use crate::format::superblock::{FILES_TREE, USAGE_TREE};
use crate::space::segment::Phase;
use crate::tests::reuse::{create, open, setup, write};
use crate::tests::setup::Setup;
use crate::{SpaceStats, Volume};
use forebay_base::world::{World, split_mix};
use forebay_sim::SimDisk;
use forebay_vfs::{FileSystem, OpenFileRef};
use std::time::Duration;

const BLOCK: u64 = 4096;

/// Live bytes of content and of nodes, from both trees of the newest checkpoint.
async fn scanned(volume: &Volume) -> (u64, u64) {
    let (inner, superblock) = (&volume.0, volume.0.checkpoints.superblock());
    let node = inner.layout.geometry.node_bytes() as u64;
    let (mut content, mut nodes) = (0, 0);
    for tree in [FILES_TREE, USAGE_TREE] {
        let root = root_of(&superblock, tree).unwrap();
        let mut seen = |seen: Seen<'_>| match seen {
            Seen::Node(copies, _) => nodes += node * copies.len() as u64,
            Seen::Item(_, Item::Extent(extent)) => {
                if let Source::Run(_) = extent.source {
                    content += u64::from(extent.stored_bytes);
                }
            }
            Seen::Item(..) | Seen::Pointer(_) => {}
        };
        let found = inner.tree.check(&root, &mut seen).await.unwrap();
        assert!(found.problems.is_empty(), "{:?}", found.problems);
    }
    (content, nodes)
}

/// Checks the equations between the figures, which hold without a checkpoint.
async fn check_equations(volume: &Volume) -> SpaceStats {
    let stats = volume.space_stats();
    let parts = [stats.dead_segments, stats.data_segments, stats.log_segments, stats.tree_segments];
    assert_eq!(stats.free_segments + parts.iter().sum::<u64>(), stats.segments, "{stats:?}");
    let is_free = |phase| u64::from(phase == Phase::Free);
    let free: u64 = {
        let state = volume.0.state.lock();
        state.space().segments().iter().map(|(_, this)| is_free(this.phase)).sum()
    };
    assert_eq!(stats.free_segments, free);
    let held = &stats.held_back;
    let kept = held.recovery_bytes + held.log_bytes + held.checkpoint_bytes + held.cleaner_bytes;
    let room = stats.open_bytes + (stats.free_segments * stats.segment_bytes).saturating_sub(kept);
    let room = room.saturating_sub(held.accepted_bytes + held.truncate_bytes);
    assert_eq!(room - held.overwrite_bytes, stats.writable_bytes, "{stats:?}");
    let available = volume.statfs().await.unwrap().blocks_available;
    assert_eq!(available, stats.writable_bytes / BLOCK, "as statfs says");
    stats
}

/// Overwrites random blocks, with a sync after every fifth.
async fn overwrite(volume: &Volume, file: &OpenFileRef, blocks: u64, rng: &mut u64) {
    for round in 0..150 {
        let at = split_mix(rng) % blocks * BLOCK;
        write(file, at, &[round as u8; BLOCK as usize]).await.unwrap();
        if round % 5 == 0 {
            file.sync(true).await.unwrap();
        }
        check_equations(volume).await;
    }
}

/// Runs a pass of the cleaner while nothing else changes the volume: the live bytes that it reports
/// of its victims are the bytes that it moved. False: there was nothing to move.
async fn clean_and_compare(volume: &Volume) -> bool {
    let before = volume.clean_stats();
    if !volume.clean().await.unwrap() {
        return false;
    }
    let after = volume.clean_stats();
    let since = |figure: fn(&CleanStats) -> u64| figure(&after) - figure(&before);
    let moved = since(|stats| stats.moved_bytes);
    assert_eq!(since(|stats| stats.overtaken_bytes), 0, "nothing is overwritten");
    assert_eq!(moved, since(|stats| stats.victim_live_bytes), "{before:?} {after:?}");
    assert_eq!(moved, since(|stats| stats.moved_for_waiters_bytes));
    let segment_bytes = volume.space_stats().segment_bytes;
    let victims = since(|stats| stats.segments) * segment_bytes;
    assert_eq!(victims, since(|stats| stats.victim_bytes));
    let share = after.recent_live_share().expect("a pass");
    assert!(share > 0.0 && share < 1.0, "{share}");
    true
}

/// Makes a checkpoint after a change of one block: its figures show a changed leaf and new nodes.
async fn checkpoint_and_compare(volume: &Volume, file: &OpenFileRef, rng: &mut u64) {
    volume.checkpoint().await.unwrap();
    let before = volume.checkpoint_stats();
    write(file, 0, &[split_mix(rng) as u8; BLOCK as usize]).await.unwrap();
    file.sync(true).await.unwrap();
    volume.checkpoint().await.unwrap();
    let after = volume.checkpoint_stats();
    // The cleaner may have made further checkpoints for what it moved meanwhile.
    assert!(after.checkpoints > before.checkpoints, "{before:?} {after:?}");
    assert!(after.changed_leaves > before.changed_leaves, "{before:?} {after:?}");
    assert!(after.written_nodes > before.written_nodes, "{before:?} {after:?}");
}

async fn fill_overwrite_and_clean(setup: &Setup, disk: &SimDisk, percent: u64, seed: u64) {
    let volume = open(setup, disk).await.unwrap();
    let room = volume.space_stats().writable_bytes * percent / 100;
    let (_, file) = create(&volume, "f").await.unwrap();
    let (blocks, mut rng) = (room / BLOCK, seed);
    for block in 0..blocks {
        write(&file, block * BLOCK, &[1; BLOCK as usize]).await.unwrap();
    }
    let mut compared = 0;
    for _ in 0..8 {
        overwrite(&volume, &file, blocks, &mut rng).await;
        volume.syncfs().await.unwrap();
        // The maintenance task ends what it has begun.
        World::sleep(&**disk.world(), Duration::from_secs(5)).await;
        // Blocks that were overwritten since the last checkpoint still count as live.
        volume.checkpoint().await.unwrap();
        compared += u32::from(clean_and_compare(&volume).await);
        checkpoint_and_compare(&volume, &file, &mut rng).await;
        volume.checkpoint().await.unwrap();
        World::sleep(&**disk.world(), Duration::from_secs(5)).await;
        let stats = check_equations(&volume).await;
        let (content, nodes) = scanned(&volume).await;
        assert_eq!((stats.live_content_bytes, stats.live_tree_bytes), (content, nodes));
        let share = (content + nodes) as f64 / (stats.segments * stats.segment_bytes) as f64;
        assert_eq!(stats.live_share(), share);
        assert_eq!(content, blocks * BLOCK, "each block of the file is live once");
    }
    let stats = volume.clean_stats();
    println!("{percent} %: {:?} {stats:?}", volume.space_stats());
    assert!(compared > 0 && stats.victim_live_bytes > 0, "{compared} compared: {stats:?}");
    assert!(stats.moved_for_waiters_bytes <= stats.moved_bytes, "{stats:?}");
}

/// Fills, overwrites and cleans volumes, and compares the figures with scans.
#[test]
fn space_and_clean_stats_agree_with_a_scan() {
    for (percent, inline_max) in [(50, 0), (80, 0), (80, 64 << 10)] {
        let setup = setup(inline_max);
        let disk = setup.blank();
        disk.world().run(fill_overwrite_and_clean(&setup, &disk, percent, percent));
        disk.world().stop();
    }
}
