//! The queue of drops: what it merges, and that no answer waits for it.

use super::*;

const MIB: u64 = 1 << 20;

/// The 4 KiB pages of one inode that are queued.
fn pages(drops: &Drops, node: u64) -> Vec<u64> {
    let queued = drops.queued().into_iter().filter(|(other, _)| *other == node);
    queued.flat_map(|(_, range)| range.start / 4096..range.end / 4096).collect()
}

/// drop.D1, drop.D2: ranges of a sequential reader are dropped in steps, at the window's distance.
#[test]
fn d1_d2_sequential_ranges_are_dropped_in_steps_behind_the_reader() {
    let (mut behind, mut dropped, step) = (Behind::default(), Vec::new(), 128 << 10);
    let start = 3 * step;
    for at in (start..20 * MIB).step_by(step as usize) {
        behind.push(at..at + step);
        while let Some(range) = behind.pop_old(true) {
            assert!(range.end + WINDOW_BYTES <= at + step, "{range:?} at {at}");
            dropped.push(range);
        }
    }
    assert!(dropped.len() <= 16, "{}", dropped.len());
    while let Some(range) = behind.pop() {
        dropped.push(range);
    }
    assert_eq!(behind.bytes, 0);
    let mut next = start;
    for range in dropped {
        assert_eq!(range.start, next);
        next = range.end;
    }
    assert_eq!(next, 20 * MIB);
}

/// drop.D1, drop.D2: gaps between the ranges of a random reader are not dropped. A handle records a
/// bounded number of ranges.
#[test]
fn d1_d2_random_ranges_are_dropped_oldest_first() {
    let mut behind = Behind::default();
    let at = |n: u64| n * 7919 % 10_000 * 8192;
    let mut dropped = Vec::new();
    for n in 0..5000 {
        behind.push(at(n)..at(n) + 4096);
        while let Some(range) = behind.pop_old(true) {
            dropped.push(range);
        }
        assert!(behind.ranges.len() <= BEHIND_MAX);
    }
    assert!(dropped.len() > 3000 && behind.bytes <= WINDOW_BYTES + STEP_BYTES);
    let wanted = (0..dropped.len() as u64).map(|n| at(n)..at(n) + 4096);
    assert!(dropped.iter().cloned().eq(wanted));
}

/// drop.D1: ranges of one inode that touch or overlap are merged; other ranges are not.
#[test]
fn queued_ranges_that_touch_become_one() {
    let (drops, inodes) = (Drops::default(), Inodes::default());
    for (node, range) in
        [(7, 8..12), (7, 20..24), (7, 0..4), (8, 12..20), (7, 4..6), (7, 5..9), (7, 13..14)]
    {
        drops.push(&inodes, node, range);
    }
    assert_eq!(drops.queued(), [(7, 0..12), (7, 13..14), (7, 20..24), (8, 12..20)]);
    drops.push(&inodes, 7, ALL);
    assert_eq!(drops.queued(), [(7, ALL), (8, 12..20)]);
}

/// The thread visits ranges in cyclic order: a file with ever new ranges does not delay others.
#[test]
fn queue_is_emptied_in_turns() {
    let (drops, inodes) = (Drops::default(), Inodes::default());
    for (node, start) in [(7, 4), (8, 0), (7, 0)] {
        drops.push(&inodes, node, start..start + 1);
    }
    let mut taken = Vec::new();
    let pop = || drops.lock().pop();
    while let Some((node, range)) = pop() {
        taken.push((node, range.start));
        if taken.len() == 1 {
            drops.push(&inodes, 7, 0..1);
        }
    }
    assert_eq!(taken, [(7, 0), (7, 4), (8, 0), (7, 0)]);
}

/// drop.D3: a million random pages while the thread is stuck; every page that was read is dropped.
#[test]
fn d3_full_queue_merges_near_ranges_and_loses_none() {
    let (drops, inodes) = (Drops::default(), Inodes::default());
    let at = |n: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
    for n in 0..1_000_000 {
        let page = at(n) * 4096;
        drops.push(&inodes, 7, page..page + 4096);
        if n % 10_000 == 0 {
            assert!(drops.bytes() <= QUEUE_BYTES, "D3");
        }
        if n + 1 == QUEUE_MAX as u64 / 2 {
            assert_eq!(pages(&drops, 7).len(), QUEUE_MAX / 2, "D1: no more than was read");
        }
    }
    assert!(drops.bytes() <= QUEUE_BYTES && !inodes.marked(Ino(7), Mark::DropAll));
    let queued = drops.queued();
    for n in 0..1_000_000 {
        let page = at(n) * 4096;
        let after = queued.partition_point(|(_, range)| range.start <= page);
        assert!(queued[after - 1].1.end > page, "D3: page {page} is lost");
    }
}

/// drop.D3: many files while the thread is stuck; files without space in the queue are dropped
/// completely.
#[test]
fn d3_full_queue_drops_further_files_as_a_whole() {
    let (drops, inodes) = (Drops::default(), Inodes::default());
    let files = 3 * QUEUE_MAX as u64;
    for node in 1..=files {
        inodes.told(Ino(node + 1));
        drops.push(&inodes, node + 1, 4096..8192);
        assert!(drops.bytes() <= QUEUE_BYTES, "D3");
    }
    let seen = Mutex::new(std::collections::BTreeMap::new());
    let notify = |notice: &Notice| {
        let Notice::Inode { node, offset, len } = *notice else { panic!("{notice:?}") };
        let mut seen = seen.lock().unwrap();
        assert!(seen.insert(node, (offset, len)).is_none(), "{node} twice");
        if seen.len() as u64 == files {
            drops.close();
        }
    };
    drops.run(&inodes, notify);
    let seen = seen.into_inner().unwrap();
    assert!(seen.values().all(|range| [(4096, 4096), (0, 0)].contains(range)));
    let whole = seen.values().filter(|range| **range == (0, 0)).count();
    assert!((QUEUE_MAX..3 * QUEUE_MAX).contains(&whole), "{whole}");
}

/// drop.D3: a backup goes on reading, so that the queue is never empty. Earlier, marked files
/// waited until the queue was empty.
#[test]
fn d3_marked_files_are_dropped_while_the_queue_refills() {
    let (drops, inodes) = (Drops::default(), Inodes::default());
    let queued = QUEUE_MAX as u64;
    let marked = queued + 1..=queued + 100;
    for node in 1..=*marked.end() {
        inodes.told(Ino(node));
        drops.push(&inodes, node, 4096..8192);
    }
    assert!(marked.clone().all(|node| inodes.marked(Ino(node), Mark::DropAll)));
    let seen = Mutex::new((0, std::collections::BTreeSet::new()));
    let notify = |notice: &Notice| {
        let Notice::Inode { node, .. } = *notice else { panic!("{notice:?}") };
        let mut seen = seen.lock().unwrap();
        seen.0 += 1;
        match marked.contains(&node) {
            true => drop(seen.1.insert(node)),
            // Its pages have been read again.
            false => drops.push(&inodes, node, 4096..8192),
        }
        if seen.1.len() == 100 || seen.0 == 4 * QUEUE_MAX {
            drops.close();
        }
    };
    drops.run(&inodes, notify);
    let (notices, found) = seen.into_inner().unwrap();
    assert!(found.iter().copied().eq(marked), "{} of 100 in {notices} notices", found.len());
}

/// drop.D3, drop.D1: earlier, a queue that was never empty counted as overloaded for ever after one
/// overload. Its ranges were not merged any more: the next overload dropped all of a file.
#[test]
fn queue_that_was_overloaded_once_merges_again() {
    const FILE: u64 = 5;
    let (drops, inodes) = (Drops::default(), Inodes::default());
    let files = QUEUE_MAX as u64 + 100;
    for node in 1..=files {
        inodes.told(Ino(node));
        drops.push(&inodes, node, 4096..8192);
    }
    assert!(drops.lock().has_marked);
    let seen = Mutex::new(0);
    let notify = |notice: &Notice| {
        let Notice::Inode { node, .. } = *notice else { panic!("{notice:?}") };
        let mut seen = seen.lock().unwrap();
        *seen += 1;
        if *seen == (2 * SHARDS + 8) * POPPED_MAX {
            for page in 0..2 * QUEUE_MAX as u64 {
                let at = page * 8192;
                drops.push(&inodes, FILE, at..at + 4096);
            }
            drops.close();
        } else if node <= 1000 {
            // Its pages have been read again.
            drops.push(&inodes, node, 4096..8192);
        }
    };
    drops.run(&inodes, notify);
    assert!(!inodes.marked(Ino(FILE), Mark::DropAll), "its ranges are near enough to be merged");
}
