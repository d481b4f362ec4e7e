//! Random interleavings of the folio state machine, in a build of its own: `RUSTFLAGS="--cfg
//! shuttle" cargo test --profile fsx --test shuttle`, with a target directory of its own.
//!
//! In every schedule: table.F1..F3 hold (see `forebay_cache::folio`), readers see no torn and no
//! stale bytes, no dirty block is lost, nothing is counted twice, and every frame is free at the
//! end (frames.A1). Two variants with an injected fault show that the harness would detect one.
#![cfg(shuttle)]

#[path = "shuttle/pins.rs"]
mod pins;

use forebay_base::schedules::check;
use forebay_base::sync::atomic::{AtomicU8, Ordering};
use forebay_base::sync::{Arc, Mutex, thread};
use forebay_base::task::block_on;
use forebay_base::world::RealWorld;
use forebay_cache::folio::{Blocks, Layout, Table};
use forebay_cache::strategy::DirtyTracking;
use forebay_cache::writeback::{WritePiece, end_fill, end_write};
use forebay_cache::{Config, FolioWrite, FramePool, Mapping, PageCache, Retention, State};

const BLOCK: usize = 512;
const FOLIO: u32 = 8192;
/// Blocks of a folio.
const ALL: Blocks = Blocks { start: 0, end: FOLIO / BLOCK as u32 };

/// A tiny cache, one file, and a device of which each block holds one byte, many times.
struct Lab {
    cache: Arc<PageCache>,
    mapping: Mapping,
    device: Mutex<[u8; 64]>,
    /// A planted bug: writers do not look for pins.
    ignore_pins: bool,
}

fn one(block: u32) -> Blocks {
    Blocks { start: block, end: block + 1 }
}

impl Lab {
    fn new() -> Arc<Self> {
        let config =
            Config { folio_size: FOLIO, huge_pages: false, ..Config::with_budget(1 << 20) };
        Self::with(config, false)
    }

    fn with(config: Config, ignore_pins: bool) -> Arc<Self> {
        let cache = PageCache::new(config, RealWorld::with_seed(1)).unwrap();
        let mapping = cache.new_mapping(BLOCK as u32, 1 << 20);
        Arc::new(Self { cache, mapping, device: Mutex::new([0; 64]), ignore_pins })
    }

    /// table.F1..F3 of one folio.
    fn check(&self, folio: &FolioWrite<'_>) {
        for block in ALL.start..ALL.end {
            let has = |state| folio.any(state, one(block));
            let [up, dirty] = [has(State::Uptodate), has(State::Dirty)];
            let [writing, reading] = [has(State::Writing), has(State::Reading)];
            assert!(!(reading && (up || dirty || writing)), "F1 in block {block}");
            assert!(up || !(dirty || writing), "F2 in block {block}");
            let framed = folio.frames_missing(one(block)) == 0;
            assert!(framed || !(reading || up || writing), "F3 in block {block}");
        }
    }

    /// Writes one block, as the layer above does. With `cow`, a frame in write-out is replaced.
    fn write(&self, block: u32, value: u8, cow: bool) {
        let mut pool = FramePool::empty(&self.cache);
        loop {
            let folio = self.cache.lock_or_make(&self.mapping, 0, false).expect("slots are plenty");
            let copy = cow && folio.hit(one(block)).frames > 0;
            let need = folio.frames_missing(one(block)) + if copy { 2 } else { 0 };
            let need = need + folio.frames_pinned(one(block));
            if need <= pool.len() {
                let pinned = folio.frames_pinned(one(block)) > 0 && !self.ignore_pins;
                if copy || pinned {
                    let at = block as usize * BLOCK;
                    folio.detach(one(block), &(at..at + BLOCK), copy, &mut pool);
                }
                folio.install_frames(one(block), &mut pool);
                folio.copy_in(block as usize * BLOCK, &[value; BLOCK]);
                folio.mark_dirty(one(block), Retention::Keep);
                self.check(&folio);
                return;
            }
            drop(folio);
            pool = self.cache.take_frames(need).expect("frames are plenty");
        }
    }

    /// The value of a block if it is cached; its bytes must all be the same.
    fn read(&self, index: u64, block: u32) -> Option<u8> {
        let folio = self.cache.lookup(&self.mapping, index, block as usize * BLOCK)?;
        if !folio.uptodate(one(block)) {
            return None;
        }
        let mut bytes = [0; BLOCK];
        if !folio.copy_out(&mut bytes) {
            return None;
        }
        folio.touch(one(block), false);
        assert!(bytes.iter().all(|b| *b == bytes[0]), "torn");
        Some(bytes[0])
    }

    fn bytes_of(&self, piece: &WritePiece, block: u32) -> u8 {
        let (frame, at) = piece.place(block, &self.mapping);
        let mut bytes = [0; BLOCK];
        self.cache.arena().copy_out(frame, at, &mut bytes);
        assert!(bytes.iter().all(|b| *b == bytes[0]), "torn on its way to the device");
        bytes[0]
    }

    /// One pass of write-out. With `stable`, bytes in flight must not change.
    fn write_out(&self, ok: bool, stable: bool) {
        let Some(folio) = self.cache.lock_folio(&self.mapping, 0) else { return };
        let mut pieces = Vec::new();
        folio.begin_write(ALL, DirtyTracking::Block, &mut pieces);
        self.check(&folio);
        drop(folio);
        let blocks =
            || pieces.iter().flat_map(|p| (p.blocks.start..p.blocks.end).map(move |b| (p, b)));
        let before: Vec<u8> = blocks().map(|(p, b)| self.bytes_of(p, b)).collect();
        thread::yield_now();
        for ((piece, block), before) in blocks().zip(before) {
            let now = self.bytes_of(piece, block);
            assert!(!stable || now == before, "bytes changed in flight");
            if ok {
                self.device.lock()[block as usize] = now;
            }
        }
        end_write(&self.cache, &self.mapping, &pieces, ok);
        if ok {
            self.flush();
        }
    }

    /// A flush that succeeds: blocks written before it need not be kept any longer, except those
    /// written again meanwhile.
    fn flush(&self) {
        let unflushed = &self.mapping.unflushed;
        let covered = unflushed.begin_flush();
        if let Some(folio) = self.cache.lock_folio(&self.mapping, 0) {
            let mine = covered.pinned.iter().flatten();
            for block in mine.filter(|&b| unflushed.pinned_within(b..b + 1).is_empty()) {
                folio.flushed(one(block as u32));
            }
        }
        unflushed.end_flush();
    }

    /// Reads a folio's missing blocks from the device; gives up if the range is held.
    fn fill(&self, index: u64, polite: bool) {
        let mut pool = self.cache.take_frames(2).expect("frames are plenty");
        let folio = self.cache.lock_or_make(&self.mapping, index, false).expect("slots are plenty");
        let start = self.mapping.folio_start(index);
        if polite && self.mapping.is_exclusive(&(start..start + u64::from(FOLIO))) {
            return;
        }
        let runs = folio.begin_fill(ALL, false, &mut pool);
        let places: Vec<_> = runs
            .iter()
            .flat_map(|run| run.start..run.end)
            .map(|b| (index as usize * 16 + b as usize, folio.place(b)))
            .collect();
        self.check(&folio);
        drop(folio);
        let values: Vec<u8> = places.iter().map(|(n, _)| self.device.lock()[*n]).collect();
        thread::yield_now();
        for ((_, (frame, at)), value) in places.into_iter().zip(values) {
            self.cache.arena().copy_in(frame, at, &[value; BLOCK]);
        }
        for run in runs {
            end_fill(&self.cache, &self.mapping, index, run, u64::MAX, true);
        }
    }

    /// A direct write of a whole folio.
    fn write_directly(&self, index: u64, value: u8) {
        let start = self.mapping.folio_start(index);
        let _held = block_on(self.mapping.bounds.exclusive(start..start + u64::from(FOLIO)));
        while let Some(folio) = self.cache.lock_folio(&self.mapping, index) {
            if !folio.any(State::Reading, ALL) {
                folio.discard(ALL);
                break;
            }
            drop(folio);
            block_on(self.cache.wait_while(&self.mapping, index, ALL, State::Reading));
        }
        thread::yield_now();
        let first = index as usize * 16;
        self.device.lock()[first..first + 16].fill(value);
    }

    /// One batch of reclaim.
    fn shrink(&self) {
        self.cache.reclaim(1);
    }

    /// Nothing is dirty, in flight or lost; every frame comes back.
    fn end(&self) {
        let stats = self.cache.stats();
        assert_eq!((stats.dirty_bytes, stats.writeback_bytes), (0, 0));
        self.cache.drop_clean();
        let stats = self.cache.stats();
        assert_eq!(stats.frames_free, stats.frames_total, "A1: every frame is free");
        assert_eq!(stats.folios, 0, "every descriptor is free");
    }
}

type Task = Box<dyn FnOnce(&Lab) + Send>;

/// Runs the closures on threads of their own and waits for all.
fn together(lab: &Arc<Lab>, tasks: Vec<Task>) {
    let run = |task: Task| {
        let lab = lab.clone();
        thread::spawn(move || task(&lab))
    };
    let threads: Vec<_> = tasks.into_iter().map(run).collect();
    threads.into_iter().for_each(|t| t.join().unwrap());
}

fn reads_never_go_back(lab: &Lab, blocks: [u32; 2]) {
    let mut last = [0; 2];
    for _ in 0..4 {
        for (i, block) in blocks.into_iter().enumerate() {
            if let Some(value) = lab.read(0, block) {
                assert!(value >= last[i], "block {block} went back from {} to {value}", last[i]);
                last[i] = value;
            }
        }
    }
}

#[test]
fn two_writers_write_out_reclaim_and_a_reader() {
    check(|| {
        let lab = Lab::new();
        let write_outs = |lab: &Lab| {
            for ok in [true, false, true] {
                lab.write_out(ok, false);
            }
        };
        together(
            &lab,
            vec![
                Box::new(|lab| (1..4).for_each(|v| lab.write(0, v, false))),
                Box::new(|lab| (1..4).for_each(|v| lab.write(1, v, false))),
                Box::new(write_outs),
                Box::new(|lab| (0..2).for_each(|_| lab.shrink())),
                Box::new(|lab| reads_never_go_back(lab, [0, 1])),
            ],
        );
        lab.write_out(true, true);
        assert_eq!(lab.device.lock()[..2], [3, 3], "a dirty block was lost");
        lab.end();
    });
}

/// The story: a size may be made recoverable up to the lowest unwritten byte. A block in write-out
/// when the dirty set was read, and dirty again when the write-outs were read, was seen in neither.
#[test]
fn block_returned_by_write_out_counts_as_unwritten() {
    check(|| {
        let lab = Lab::new();
        lab.write(3, 1, false);
        let fail = |lab: &Lab| {
            let ticket = lab.mapping.issue_ticket(0..u64::from(FOLIO));
            lab.write_out(false, false);
            lab.mapping.end_ticket(ticket);
        };
        let look = |lab: &Lab| {
            for _ in 0..3 {
                // The block, or where the write-out that has it begins.
                let lowest = lab.cache.lowest_unwritten(&lab.mapping, 0);
                assert!(lowest <= 3 * BLOCK as u64, "never written, and {lowest} is said");
            }
        };
        together(&lab, vec![Box::new(fail), Box::new(look)]);
        lab.write_out(true, true);
        lab.end();
    });
}

/// Writers hit blocks in write-out and detach their frames, while the write-out ends.
fn detaching(cow: bool) {
    let lab = Lab::new();
    lab.write(0, 1, false);
    lab.write(1, 1, false);
    together(
        &lab,
        vec![
            Box::new(move |lab| (2..4).for_each(|v| lab.write(0, v, cow))),
            Box::new(move |lab| (2..4).for_each(|v| lab.write(1, v, cow))),
            Box::new(|lab| (0..2).for_each(|_| lab.write_out(true, true))),
            Box::new(|lab| lab.write_out(false, true)),
            Box::new(Lab::shrink),
        ],
    );
    lab.write_out(true, true);
    assert_eq!(lab.device.lock()[..2], [3, 3], "a dirty block was lost");
    lab.end();
}

#[test]
fn writer_detaching_at_write_out_end_keeps_bytes() {
    check(|| detaching(true));
}

#[test]
#[should_panic(expected = "bytes changed in flight")]
fn injected_missing_detach_is_detected() {
    check(|| detaching(false));
}

/// Fills against direct writes of the same folio: no reader sees what was there before one that is
/// over.
fn filling(polite: bool) {
    let lab = Lab::new();
    let done = Arc::new(AtomicU8::new(0));
    let (writer, reader) = (done.clone(), done);
    let direct = move |lab: &Lab| {
        for value in 1..3 {
            lab.write_directly(0, value);
            writer.store(value, Ordering::SeqCst);
        }
    };
    let look = move |lab: &Lab| {
        for _ in 0..4 {
            let least = reader.load(Ordering::SeqCst);
            let seen = lab.read(0, 5).unwrap_or(u8::MAX);
            assert!(seen >= least, "stale: {seen} after {least}");
        }
    };
    together(
        &lab,
        vec![
            Box::new(move |lab| (0..2).for_each(|_| lab.fill(0, polite))),
            Box::new(move |lab| lab.fill(0, polite)),
            Box::new(direct),
            Box::new(look),
            Box::new(Lab::shrink),
        ],
    );
    assert_eq!(lab.read(0, 5).unwrap_or(2), 2, "stale at the end");
    lab.end();
}

#[test]
fn fills_give_way_to_exclusive_ranges() {
    check(|| filling(true));
}

#[test]
#[should_panic(expected = "stale")]
fn injected_fill_ignoring_ranges_is_detected() {
    check(|| filling(false));
}

#[test]
fn lookup_in_reused_slot_finds_no_other_folio() {
    check(|| {
        let lab = Lab::new();
        for index in 0..4usize {
            lab.device.lock()[index * 16..index * 16 + 16].fill(10 + index as u8);
        }
        lab.fill(0, true);
        let look = |lab: &Lab| {
            for index in [0, 1, 0, 2, 1, 0] {
                let seen = lab.read(index, 3);
                assert!(
                    seen.is_none_or(|v| v == 10 + index as u8),
                    "E4: {seen:?} in folio {index}"
                );
            }
        };
        together(
            &lab,
            vec![
                Box::new(|lab| {
                    lab.cache.drop_clean();
                    lab.fill(1, true);
                }),
                Box::new(|lab| {
                    lab.shrink();
                    lab.fill(2, true);
                }),
                Box::new(|lab| [1, 0].into_iter().for_each(|i| lab.fill(i, true))),
                Box::new(look),
                Box::new(look),
            ],
        );
        lab.end();
    });
}

#[test]
fn waiters_for_fill_and_write_out_are_woken() {
    check(|| {
        let lab = Lab::new();
        lab.write(4, 7, false);
        let wait =
            |state| move |lab: &Lab| block_on(lab.cache.wait_while(&lab.mapping, 0, ALL, state));
        together(
            &lab,
            vec![
                Box::new(|lab| lab.write_out(true, true)),
                Box::new(|lab| lab.fill(0, true)),
                Box::new(wait(State::Writing)),
                Box::new(wait(State::Reading)),
                Box::new(|lab| block_on(lab.mapping.bounds.wait_not_exclusive(0..8192))),
                Box::new(|lab| lab.write_directly(1, 3)),
            ],
        );
        lab.end();
    });
}

/// Two halves of a range and the range as a whole, which one thread waits for and gives up: each is
/// held alone, every waiter is woken, and what arrives behind the waiting whole is granted after
/// it.
#[test]
fn exclusive_ranges_behind_dropped_wait_are_granted_by_arrival() {
    const HALF: u64 = 4096;
    check(|| {
        let lab = Lab::new();
        let users: Arc<[AtomicU8; 2]> = Arc::default();
        // 1: the whole is in the queue. 2: it was granted, or given up.
        let whole = Arc::new(AtomicU8::new(0));
        let half = |index: u64, users: Arc<[AtomicU8; 2]>, whole: Arc<AtomicU8>| -> Task {
            Box::new(move |lab| {
                for _ in 0..2 {
                    let behind = whole.load(Ordering::SeqCst) == 1;
                    let wanted = index * HALF..(index + 1) * HALF;
                    let _held = block_on(lab.mapping.bounds.exclusive(wanted));
                    assert!(!behind || whole.load(Ordering::SeqCst) == 2, "it came later");
                    let user = &users[index as usize];
                    assert_eq!(user.fetch_add(1, Ordering::SeqCst), 0, "held twice");
                    thread::yield_now();
                    user.fetch_sub(1, Ordering::SeqCst);
                }
            })
        };
        let take_whole =
            |give_up: bool, users: Arc<[AtomicU8; 2]>, flag: Option<Arc<AtomicU8>>| -> Task {
                Box::new(move |lab| {
                    let say = |value| {
                        if let Some(flag) = &flag {
                            flag.store(value, Ordering::SeqCst);
                        }
                    };
                    let mut taking = Box::pin(lab.mapping.bounds.exclusive(0..2 * HALF));
                    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
                    let polled = taking.as_mut().poll(&mut cx);
                    if polled.is_pending() {
                        say(1);
                        thread::yield_now();
                        if give_up {
                            say(2);
                            return;
                        }
                    }
                    let _held = match polled {
                        std::task::Poll::Ready(held) => held,
                        std::task::Poll::Pending => block_on(taking),
                    };
                    say(2);
                    users.iter().for_each(|user| {
                        assert_eq!(user.fetch_add(1, Ordering::SeqCst), 0, "held twice");
                    });
                    thread::yield_now();
                    users.iter().for_each(|user| user.store(0, Ordering::SeqCst));
                })
            };
        together(
            &lab,
            vec![
                half(0, users.clone(), whole.clone()),
                half(1, users.clone(), whole.clone()),
                take_whole(false, users.clone(), Some(whole)),
                take_whole(true, users, None),
            ],
        );
        lab.end();
    });
}

/// Two tasks that lock a free slot by a stale hint, while its memory is given back, and one that
/// uses the slot after that. The story: the lock word became zero under a holder, whose unlocking
/// then locked the slot for ever.
#[test]
fn lock_of_released_slot_under_late_locker_is_exclusive() {
    check(|| {
        let table = Arc::new(Table::new(Layout::new(FOLIO), 3).unwrap());
        let holders = Arc::new(AtomicU8::new(0));
        let visit = |table: &Table, holders: &AtomicU8| {
            table.lock(3);
            assert_eq!(holders.fetch_add(1, Ordering::SeqCst), 0, "two hold the lock");
            thread::yield_now();
            holders.fetch_sub(1, Ordering::SeqCst);
            table.unlock(3);
        };
        // It was used before.
        visit(&table, &holders);
        let late: Vec<_> = (0..2)
            .map(|_| {
                let (table, holders) = (table.clone(), holders.clone());
                thread::spawn(move || visit(&table, &holders))
            })
            .collect();
        table.forget_above(2, 4);
        visit(&table, &holders);
        late.into_iter().for_each(|thread| thread.join().unwrap());
        assert!(table.try_lock(3), "the lock is held for ever");
    });
}
