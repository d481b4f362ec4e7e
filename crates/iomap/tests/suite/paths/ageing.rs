//! Ageing seen from outside: what counts as a touch, which queue gives first, and that uncached
//! requests change neither.

use super::harness::{Lab, NONE};
use forebay_base::IoFlags;
use forebay_base::world::split_mix;
use forebay_cache::strategy::UncachedStrategy;
use forebay_cache::{Config, FRAME_SIZE, State};
use forebay_iomap::PinRequest;
use std::collections::BTreeSet;
use std::ops::Range;

const FOLIO: u64 = 65536;

/// Folios promoted when everything that is clean is dropped: those touched again since they came.
fn promoted_by_dropping(lab: &Lab) -> u64 {
    let before = lab.cache.stats().promoted;
    lab.cache.drop_clean();
    lab.cache.stats().promoted - before
}

/// A pass over a file in pieces that are smaller than a folio touches each of its folios once: a
/// block becomes active only when it is touched again. Were it made active by each piece, every
/// `dd` would promote what it passes.
#[test]
fn small_piece_pass_counts_one_touch_per_folio() {
    let folios = 8;
    let cases = [(4096u64, false), (512, false), (700, false), (4096, true), (700, true)];
    for (piece, writes) in cases {
        for passes in 1..3u64 {
            let lab = Lab::plain(4096);
            lab.run(async {
                for _ in 0..passes {
                    for at in (0..folios * FOLIO).step_by(piece as usize) {
                        let len = piece.min(folios * FOLIO - at) as usize;
                        match writes {
                            true => lab.write(at, &vec![1; len], NONE).await,
                            false => drop(lab.read(at, len, NONE).await),
                        }
                    }
                }
                lab.sync().await.unwrap();
                lab.sleep_ms(20).await;
                let promoted = promoted_by_dropping(&lab);
                let want = if passes == 1 { 0 } else { folios };
                assert_eq!(promoted, want, "{passes} passes by {piece}, writes {writes}");
            });
        }
    }
}

/// How a request takes bytes.
#[derive(Debug, Clone, Copy)]
enum Way {
    Read,
    /// Without waiting; after a refusal with it.
    Nowait,
    Pin,
}

/// The fast path, and the slow path if that does not serve the range.
async fn take_by(lab: &Lab, way: Way, (at, len): (u64, usize)) {
    let pin = PinRequest { offset: at, len, flags: NONE, may_copy: false, blocking: false };
    match way {
        Way::Read => drop(lab.read(at, len, NONE).await),
        Way::Nowait => {
            if lab.try_read(at, len, IoFlags::NOWAIT).await.is_err() {
                lab.read(at, len, NONE).await;
            }
        }
        Way::Pin => match lab.file.try_pin(&lab.handle, &pin) {
            Some(pinned) => drop(pinned.unwrap()),
            None => drop(lab.file.pin(&lab.handle, pin).await.unwrap().expect("a pin")),
        },
    }
}

/// The story: a read over the border of two folios touched the first one, found the second one
/// absent, and touched the first one again when it had waited. So each record over a border
/// promoted a folio that was read once. A long range did the same at a block of an uncached write.
#[test]
fn request_that_waits_for_second_folio_is_one_touch() {
    for way in [Way::Read, Way::Nowait, Way::Pin] {
        for (at, is_uncached) in [(FOLIO - 4096, false), (FOLIO - 4096, true), (0, true)] {
            let config = Config { readahead_max: 0, ..Config::with_budget(8 << 20) };
            let lab = Lab::new(config, 4096, Lab::sim(4 << 20));
            lab.run(async {
                lab.file.prefetch(0, FOLIO).await;
                lab.file.wait_fills().await;
                if is_uncached {
                    lab.write(FOLIO, &[1; 4096], IoFlags::UNCACHED).await;
                }
                let blocks = lab.blocks(State::Uptodate).len() as u64;
                assert_eq!(blocks, FOLIO / 4096 + u64::from(is_uncached), "the first folio");
                assert!(lab.blocks(State::Referenced).is_empty(), "not touched");
                take_by(&lab, way, (at, (FOLIO + 4096 - at) as usize)).await;
                assert!(lab.blocks(State::Referenced).contains(&(FOLIO / 4096 - 1)), "touched");
                lab.sync().await.unwrap();
                let promoted = promoted_by_dropping(&lab);
                assert_eq!(promoted, 0, "{way:?} from {at}, uncached {is_uncached}");
            });
        }
    }
}

/// Numbers in an order that no readahead follows.
fn shuffled(numbers: Range<u64>) -> Vec<u64> {
    let (mut all, mut rng): (Vec<u64>, u64) = (numbers.collect(), 5);
    for i in (1..all.len()).rev() {
        all.swap(i, split_mix(&mut rng) as usize % (i + 1));
    }
    all
}

async fn read_folios(lab: &Lab, folios: Range<u64>, times: usize) {
    for _ in 0..times {
        for i in shuffled(folios.clone()) {
            lab.read(i * FOLIO, FOLIO as usize, NONE).await;
        }
    }
}

fn folios_there(lab: &Lab, folios: Range<u64>) -> usize {
    let blocks = lab.blocks(State::Uptodate);
    folios.filter(|i| blocks.contains(&(i * FOLIO / 4096))).count()
}

/// The small queue keeps a tenth of the frames: up to that, what is new stays and what lies
/// untouched in the main queue goes; above it, what is new goes and the main queue is left alone.
#[test]
fn small_queue_evicts_above_a_tenth_else_main_queue() {
    // Readahead would add folios to the small queue that the test does not count.
    let config = Config { readahead_max: 0, ..Config::with_budget(16 << 20) };
    let lab = Lab::new(config, 4096, Lab::sim(64 << 20));
    lab.run(async {
        let frames = lab.cache.stats().frames_total;
        let percent = |n: u64| frames * n / 100 / (FOLIO / FRAME_SIZE as u64);
        // Touched twice, and looked at by reclaim: into the main queue, where it gets cold.
        let main = 0..percent(75);
        read_folios(&lab, main.clone(), 2).await;
        lab.cache.reclaim(1);
        let in_main = folios_there(&lab, main.clone());
        assert_eq!(lab.cache.stats().promoted, main.end, "all were promoted");
        assert!(in_main > percent(25) as usize, "{in_main}");
        let small = 200..200 + percent(8);
        read_folios(&lab, small.clone(), 1).await;
        lab.cache.reclaim(1);
        assert_eq!(folios_there(&lab, small.clone()), small.clone().count(), "below its tenth");
        let left = folios_there(&lab, main.clone());
        assert!(left < in_main, "nothing was reclaimed: nothing tested");
        let more = 300..300 + percent(30);
        read_folios(&lab, more.clone(), 1).await;
        lab.cache.reclaim(1);
        assert_eq!(folios_there(&lab, main), left, "the main queue while the small one is long");
        let new = folios_there(&lab, small.clone()) + folios_there(&lab, more.clone());
        assert!(new < small.count() + more.count(), "nothing was reclaimed: nothing tested");
    });
}

/// What happens to a cache under pressure after uncached requests have passed over what it holds,
/// or after none has.
async fn fate(lab: &Lab, passes: usize) -> (BTreeSet<u64>, [u64; 4]) {
    // Some of it touched once, some twice, some often.
    for (folios, times) in [(0..4, 1), (4..8, 2), (8..12, 4)] {
        read_folios(lab, folios, times).await;
    }
    for pass in 0..passes as u64 {
        for block in shuffled(0..12 * FOLIO / 8192) {
            let at = block * 8192 + pass * 100;
            lab.read(at, 4096, IoFlags::UNCACHED).await;
            lab.write(at, &vec![pass as u8; 3000], IoFlags::UNCACHED).await;
        }
    }
    lab.sync().await.unwrap();
    let before = lab.cache.stats();
    let mut stayed = BTreeSet::new();
    for round in 0..6 {
        read_folios(lab, 20 + round * 8..28 + round * 8, 1).await;
        let there = (0..12).filter(|&i| folios_there(lab, i..i + 1) == 1);
        stayed.extend(there.map(|i| round * 100 + i));
    }
    let after = lab.cache.stats();
    let changes = [
        after.promoted - before.promoted,
        after.evicted_folios - before.evicted_folios,
        after.ghost_hits - before.ghost_hits,
        after.ghosts - before.ghosts,
    ];
    (stayed, changes)
}

/// The age of a folio is more than its referenced bits: its active blocks, its young frames, and a
/// place in a queue. They cannot be seen; what becomes of the folios under pressure can, and it is
/// the same with and without uncached requests before it.
#[test]
fn u1_uncached_requests_do_not_change_later_eviction() {
    // Without readahead: which of its fills are in flight during reclaim depends on the time.
    let config = || Config { readahead_max: 0, ..Config::with_budget(2 << 20) };
    let lab = || Lab::new(config(), 4096, Lab::sim(20 << 20));
    for &strategy in UncachedStrategy::ALL {
        let [alone, with_passes] = [0, 5].map(|passes| {
            let lab = lab();
            lab.cache.strategies.set_uncached(strategy);
            lab.run(fate(&lab, passes))
        });
        assert_eq!(alone, with_passes, "{strategy}");
        let [promoted, evicted, ..] = alone.1;
        assert!(promoted > 0 && evicted > 8, "no pressure: the test tests nothing");
    }
}
