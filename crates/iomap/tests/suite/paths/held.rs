//! Blocks that the cache holds until a successful flush can be copied from it, even while they are
//! in use.

use super::gates::Gated;
use super::harness::{Lab, NONE, both};
use forebay_base::{ErrorKind, IoFlags};
use forebay_cache::{Config, State};
use forebay_testkit::remap::{Remap, RemapOptions};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

const BLOCK: usize = 4096;

/// The story: the repair of a volume's log took a cached block for lost, because another task had
/// its folio locked for another block. The lookup was that of a hit, which gives up on a locked
/// folio.
#[test]
fn held_blocks_are_copied_while_folio_is_locked() {
    let lab = Lab::plain(BLOCK as u32);
    lab.run(lab.write(0, &[7; 2 * BLOCK], NONE));
    let (is_there, stop) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::SeqCst) {
                let folio = lab.cache.lock_folio(&lab.file.mapping, 0);
                is_there.store(true, Ordering::SeqCst);
                std::thread::yield_now();
                drop(folio);
            }
        });
        while !is_there.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        let mut bytes = [0; BLOCK];
        let missed = (0..20_000).filter(|_| !lab.file.copy_held(0, &mut bytes, false)).count();
        stop.store(true, Ordering::SeqCst);
        assert_eq!(missed, 0, "it was there all the time");
        assert_eq!(bytes, [7; BLOCK]);
    });
    assert!(!lab.file.copy_held(1 << 20, &mut [0; BLOCK], false), "that was never there");
}

/// The story: a truncate, or a trim, dropped unflushed blocks before their places were free. A
/// repair of the volume's log between the two, for which the truncate itself may wait, found them
/// nowhere. It then left out the file's bytes below the new end, too. If the map refuses, all
/// blocks are still cached.
#[test]
fn truncated_blocks_are_held_until_map_truncates() {
    for (is_trim, fails) in [(false, None), (true, None), (false, Some(ErrorKind::NoSpace))] {
        let keep = OnceLock::new();
        let config = Config::with_budget(8 << 20);
        let lab = Lab::with_map(config, BLOCK as u32, Lab::sim(1 << 20), 1 << 19, |disk| {
            let options = RemapOptions { grows: true, ..RemapOptions::default() };
            keep.get_or_init(|| Gated::new(Remap::with_options(disk, 4096, options))).clone()
        });
        let map = keep.into_inner().expect("set above");
        lab.run(async {
            lab.sync().await.unwrap();
            lab.write(0, &[7; 4 * BLOCK], IoFlags::START_WRITEBACK).await;
            lab.sleep_ms(50).await;
            assert_eq!(lab.blocks(State::Unflushed).len(), 4, "written, and not flushed");
            let gate = if is_trim { &map.zero } else { &map.truncate };
            gate.close();
            gate.fail(fails);
            let cut = async {
                match is_trim {
                    true => lab.zero(BLOCK as u64, 3 * BLOCK as u64, false).await,
                    false => lab.file.set_len(BLOCK as u64).await,
                }
            };
            let look = async {
                gate.arrived(1).await;
                let mut bytes = [0; 4 * BLOCK];
                assert!(
                    lab.file.copy_held(0, &mut bytes, false),
                    "{is_trim}: the map has it still"
                );
                assert_eq!(bytes, [7; 4 * BLOCK]);
                gate.open();
            };
            let (done, ()) = both(cut, look).await;
            assert_eq!(done.is_err(), fails.is_some());
            gate.fail(None);
            let expected = match (is_trim, fails) {
                (_, Some(_)) => [[7; BLOCK]; 4].concat(),
                (true, _) => [[7; BLOCK], [0; BLOCK], [0; BLOCK], [0; BLOCK]].concat(),
                (false, _) => vec![7; BLOCK],
            };
            lab.sync().await.unwrap();
            lab.cache.drop_clean();
            let size = if is_trim || fails.is_some() { 4 * BLOCK } else { BLOCK };
            assert_eq!(lab.read(0, size, NONE).await, expected);
        });
    }
}
