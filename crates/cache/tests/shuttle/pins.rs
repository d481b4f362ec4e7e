//! Pins against all that changes, frees or moves frames.

use super::{ALL, BLOCK, FOLIO, Lab, Task, together};
use forebay_base::schedules::check;
use forebay_base::sync::atomic::{AtomicU64, Ordering};
use forebay_base::sync::{Arc, thread};
use forebay_base::task::block_on;
use forebay_cache::folio::Blocks;
use forebay_cache::{Config, Pinned, State};

impl Lab {
    /// Pins two blocks if they are cached and nothing stands in the way, as the layer above does.
    fn pin(&self, index: u64) -> Option<Pinned> {
        let folio = self.cache.lock_folio(&self.mapping, index)?;
        let (blocks, frame) = (Blocks { start: 0, end: 2 }, Blocks { start: 0, end: 8 });
        let start = self.mapping.folio_start(index);
        let held = self.mapping.is_exclusive(&(start..start + u64::from(FOLIO)));
        if held || folio.any(State::Reading, frame) || !folio.all(State::Uptodate, blocks) {
            return None;
        }
        let mut pinned = Pinned::new(&self.cache, self.mapping.id);
        folio.pin(0..2 * BLOCK, &mut pinned).then_some(pinned)
    }

    /// Caches two blocks of zeros.
    fn make_zero(&self, index: u64) {
        let mut pool = self.cache.take_frames(1).expect("frames are plenty");
        let folio = self.cache.lock_or_make(&self.mapping, index, false).expect("slots are plenty");
        for run in folio.begin_fill(Blocks { start: 0, end: 2 }, false, &mut pool) {
            folio.fill_zero(run);
        }
    }

    /// Holds a pin for a while: it shows the version that it was taken of (pin.P1).
    fn hold_pin(&self, index: u64) {
        let Some(pinned) = self.pin(index) else { return };
        let before = pinned.to_vec();
        let whole = |bytes: &[u8]| bytes.iter().all(|&byte| byte == bytes[0] && byte < 0x80);
        assert!(before.chunks(BLOCK).all(whole), "pin.P3: a pin of a free or torn frame");
        thread::yield_now();
        assert!(pinned.to_vec() == before, "pin.P1: pinned bytes have changed");
        // A thread that writes what it has pinned does not wait for itself.
        if index == 0 {
            self.write(0, 9, false);
            assert!(pinned.to_vec() == before, "pin.P1: pinned bytes have changed");
        }
        thread::yield_now();
        assert!(pinned.to_vec() == before, "pin.P1: pinned bytes have changed");
    }

    /// Takes a folio out of the cache, as a truncate does.
    fn cut(&self, index: u64) {
        let start = self.mapping.folio_start(index);
        let _held = block_on(self.mapping.bounds.exclusive(start..start + u64::from(FOLIO)));
        loop {
            let Some(folio) = self.cache.lock_folio(&self.mapping, index) else { return };
            let busy = [State::Reading, State::Writing];
            let Some(state) = busy.into_iter().find(|&s| folio.any(s, ALL)) else {
                return folio.discard(ALL);
            };
            drop(folio);
            block_on(self.cache.wait_while(&self.mapping, index, ALL, state));
        }
    }
}

/// Pins against writers, write-out, truncate, direct writes, fills, eviction and a cache that is
/// made smaller and larger. Frames are poisoned when they are given back.
fn pinning(ignore_pins: bool) {
    let config = Config {
        folio_size: FOLIO,
        huge_pages: false,
        poison_frames: true,
        budget_max: Some(3 << 19),
        ..Config::with_budget(1 << 20)
    };
    let lab = Lab::with(config, ignore_pins);
    lab.write(0, 1, false);
    lab.write(1, 1, false);
    lab.fill(1, true);
    let resize = |lab: &Lab| {
        for bytes in [3 << 19, 1 << 20] {
            // Pins may hold what would go.
            let _ = block_on(lab.cache.resize(bytes));
        }
    };
    together(
        &lab,
        vec![
            Box::new(|lab| (0..2).for_each(|_| lab.hold_pin(0))),
            Box::new(|lab| (0..2).for_each(|_| lab.hold_pin(1))),
            Box::new(|lab| (2..4).for_each(|v| lab.write(1, v, true))),
            Box::new(|lab| {
                lab.write_out(true, false);
                lab.cut(1);
                lab.fill(1, true);
            }),
            Box::new(|lab| {
                lab.cut(0);
                lab.write_directly(1, 5);
            }),
            Box::new(|lab| {
                lab.shrink();
                lab.cache.drop_clean();
            }),
            Box::new(resize),
        ],
    );
    lab.write_out(true, false);
    let stats = lab.cache.stats();
    assert_eq!((stats.pinned_frames, stats.pinned_orphans), (0, 0), "pin.P4");
    lab.cache.check_books();
    lab.end();
}

#[test]
fn pins_keep_bytes_under_write_evict_truncate_resize() {
    check(|| pinning(false));
}

#[test]
#[should_panic(expected = "pin.P1")]
fn injected_writer_ignoring_pins_is_detected() {
    check(|| pinning(true));
}

/// Two readers that pin, with room for one of them: pin.P5 in each order.
#[test]
fn pins_of_several_readers_stay_within_limit() {
    check(|| {
        let lab = Lab::new();
        let limit = lab.cache.pin_limit();
        (0..=limit).for_each(|index| lab.make_zero(index));
        // All but one frame of the limit.
        let pool: Vec<_> = (2..=limit).filter_map(|index| lab.pin(index)).collect();
        assert_eq!(pool.len() as u64, limit - 1);
        // Pins that the two hold now, and that they have taken. The cache's own count is no judge:
        // it has what a refused pin reserves for a moment.
        let (held, taken) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let take = |index: u64| -> Task {
            let (held, taken) = (held.clone(), taken.clone());
            Box::new(move |lab| {
                let Some(pinned) = lab.pin(index) else { return };
                taken.fetch_add(1, Ordering::SeqCst);
                let now = held.fetch_add(1, Ordering::SeqCst) + 1;
                assert!(now <= 1, "pin.P5: {now} pins where one frame was left");
                thread::yield_now();
                held.fetch_sub(1, Ordering::SeqCst);
                drop(pinned);
            })
        };
        together(&lab, vec![take(0), take(1)]);
        assert!(taken.load(Ordering::SeqCst) >= 1, "one of them has the frame that was left");
        drop(pool);
        assert_eq!(lab.cache.stats().pinned_frames, 0, "pin.P4");
        lab.end();
    });
}
