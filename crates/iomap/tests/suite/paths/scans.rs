//! Ageing under loads with a hot set, counted: what a scan costs it, and how fast the cache follows
//! a hot set that changes. No time is measured.

use super::harness::{Lab, NONE};
use forebay_base::buf::AlignedBuf;
use forebay_base::world::split_mix;
use forebay_cache::{Config, State};
use forebay_iomap::{Handle, Target};
use std::ops::Range;

const BLOCK: u64 = 4096;
/// Blocks of one read of a scan.
const PIECE: u64 = 64;
const BUDGET: u64 = 16 << 20;
/// Blocks over which the hot set is scattered: four times the budget.
const DATABASE: u64 = 4 * BUDGET / BLOCK;
/// Blocks behind them, which only scans read: they share no folio with a hot one.
const OTHERS: Range<u64> = DATABASE..2 * DATABASE;
/// Blocks of the hot set: 65 % of the budget, which is 76 % of the frames.
const HOT: usize = (BUDGET / BLOCK * 65 / 100) as usize;

/// A file, a reader that looks up hot blocks at random, and one that scans.
struct Load {
    lab: Lab,
    scanner: Handle,
    buf: AlignedBuf,
    rng: u64,
    hot: Vec<u64>,
}

impl Load {
    fn new() -> Self {
        let lab = Lab::new(Config::with_budget(BUDGET), 4096, Lab::sim(OTHERS.end * BLOCK));
        let scanner = lab.file.open_handle();
        let buf = AlignedBuf::new((PIECE * BLOCK) as usize);
        let mut load = Self { lab, scanner, buf, rng: 3, hot: Vec::new() };
        load.hot = load.draw();
        load
    }

    fn below(&mut self, end: u64) -> u64 {
        split_mix(&mut self.rng) % end
    }

    /// Blocks of a hot set, in the order in which they were drawn.
    fn draw(&mut self) -> Vec<u64> {
        let mut all: Vec<u64> = (0..DATABASE).collect();
        for at in 0..HOT {
            let other = at + self.below(DATABASE - at as u64) as usize;
            all.swap(at, other);
        }
        all.truncate(HOT);
        all
    }

    /// Reads a block; true if it was cached.
    async fn look_up(&mut self, block: u64) -> bool {
        let into = &mut self.buf[..BLOCK as usize];
        if self.lab.file.try_read(&self.lab.handle, block * BLOCK, into, NONE).is_some() {
            return true;
        }
        let mut own = AlignedBuf::new(BLOCK as usize);
        let into = Target::Owned(&mut own);
        self.lab.file.read(&self.lab.handle, block * BLOCK, into, NONE).await.unwrap();
        false
    }

    /// Looks up hot blocks at random; returns how many were not cached. One lookup in 200 is of any
    /// block, and does not count.
    async fn look_up_hot(&mut self, count: u64) -> u64 {
        let mut missed = 0;
        for _ in 0..count {
            if self.below(200) == 0 {
                let any = self.below(DATABASE);
                self.look_up(any).await;
            }
            let at = self.below(self.hot.len() as u64) as usize;
            missed += u64::from(!self.look_up(self.hot[at]).await);
        }
        missed
    }

    /// Reads the hot set three times, and looks it up for a while.
    async fn warm(&mut self) {
        for _ in 0..3 {
            for at in 0..self.hot.len() {
                self.look_up(self.hot[at]).await;
            }
        }
        self.look_up_hot(10_000).await;
        assert_eq!(self.hot_absent(), 0, "the hot set is cached");
    }

    /// Reads blocks from the first to the last; after each piece, looks hot ones up: `each` for 4
    /// blocks of the scan. Returns the lookups, and those that missed.
    async fn scan(&mut self, blocks: Range<u64>, each: u64) -> (u64, u64) {
        let (mut lookups, mut missed) = (0, 0);
        for at in blocks.step_by(PIECE as usize) {
            let file = &self.lab.file;
            let into = Target::Owned(&mut self.buf);
            file.read(&self.scanner, at * BLOCK, into, NONE).await.unwrap();
            missed += self.look_up_hot(each * PIECE / 4).await;
            lookups += each * PIECE / 4;
        }
        (lookups, missed)
    }

    /// Hot blocks that are not cached.
    fn hot_absent(&self) -> usize {
        let there = self.lab.blocks(State::Uptodate);
        self.hot.iter().filter(|block| !there.contains(block)).count()
    }
}

/// Numbers below `count`, the first ones most often (Zipf).
struct Zipf(Vec<f64>);

impl Zipf {
    fn new(count: u64, exponent: f64) -> Self {
        let mut sum = 0.0;
        let weights = (1..=count).map(|n| (n as f64).powf(-exponent));
        let mut sums: Vec<f64> = weights
            .map(|w| {
                sum += w;
                sum
            })
            .collect();
        sums.iter_mut().for_each(|s| *s /= sum);
        Self(sums)
    }

    fn number(&self, random: u64) -> u64 {
        let at = (random >> 11) as f64 / (1u64 << 53) as f64;
        self.0.partition_point(|&sum| sum < at) as u64
    }
}

/// Lookups of a hot set during a scan of `blocks`, `each` for 4 blocks; those that missed, and hot
/// blocks that are absent afterwards.
fn cost_of_scan(blocks: Range<u64>, each: u64) -> (u64, u64, usize) {
    let mut load = Load::new();
    let world = load.lab.world.clone();
    world.run(async {
        load.warm().await;
        let (lookups, missed) = load.scan(blocks, each).await;
        load.lab.cache.check_books();
        (lookups, missed, load.hot_absent())
    })
}

/// The story: a scan of a file filled the cold blocks between hot ones. To find them, reclaim
/// visited all folios of the file, and each visit aged the hot blocks, too. So these aged at the
/// pace of the scan: at a lookup for each block of the scan 43 % missed, and half of the hot set
/// was absent at the end.
#[test]
fn scan_of_file_with_hot_set_spares_it() {
    // Six lookups for each block of the scan, one, and a quarter of one.
    for each in [24, 4, 1] {
        let (lookups, missed, absent) = cost_of_scan(0..DATABASE, each);
        println!("itself, {each}: {missed} of {lookups} missed, {absent} of {HOT} absent");
        assert!(missed * 500 <= lookups, "{each}: {missed} of {lookups} lookups missed");
        assert!(absent * 100 <= HOT, "{each}: {absent} of {HOT} hot blocks are absent");
    }
}

/// A scan of other folios passes through the small queue.
#[test]
fn scan_of_other_files_spares_hot_set() {
    for each in [24, 4, 1] {
        let (lookups, missed, absent) = cost_of_scan(OTHERS, each);
        println!("others, {each}: {missed} of {lookups} missed, {absent} of {HOT} absent");
        assert!(missed * 500 <= lookups, "{each}: {missed} of {lookups} lookups missed");
        assert!(absent * 100 <= HOT, "{each}: {absent} of {HOT} hot blocks are absent");
    }
}

/// Lookups that miss in each eight thousand after the hot set has changed, alone or during a scan
/// of the same file (`each` lookups for 4 blocks), and the new hot blocks that are absent then.
fn course_of_change(each: u64) -> Vec<(u64, usize)> {
    const LOOKUPS: u64 = 8192;
    let mut load = Load::new();
    let world = load.lab.world.clone();
    world.run(async {
        load.warm().await;
        load.scan(OTHERS.start..OTHERS.start + 4096, 24).await;
        load.hot = load.draw();
        let mut course = Vec::new();
        for part in 0..8 {
            let missed = match (LOOKUPS * 4).checked_div(each) {
                None => load.look_up_hot(LOOKUPS).await,
                Some(blocks) => {
                    let at = part * blocks % DATABASE;
                    load.scan(at..at + blocks, each).await.1
                }
            };
            course.push((missed, load.hot_absent()));
        }
        load.lab.cache.check_books();
        course
    })
}

/// The old hot set makes space for the new one, although a scan that the cache resists looks like
/// the new one at first: each of its blocks is read once.
#[test]
fn hot_set_that_changes_is_cached_after_few_misses() {
    // Misses in all, and hot blocks absent at the end, of 2,662.
    for (each, misses, absent) in [(0, 6_500, 3), (24, 11_000, 150), (4, 26_000, 900)] {
        let course = course_of_change(each);
        let missed: u64 = course.iter().map(|(missed, _)| missed).sum();
        println!("{each}: {missed} missed, {course:?}");
        assert!(missed <= misses, "{each}: {missed} misses, {course:?}");
        let last = course.last().expect("eight parts").1;
        assert!(last <= absent, "{each}: {last} hot blocks are absent, {course:?}");
    }
}

/// Misses of the last three quarters of the lookups that `next` draws.
fn misses_of(count: u64, mut next: impl FnMut(u64) -> u64) -> u64 {
    let mut load = Load::new();
    let world = load.lab.world.clone();
    world.run(async {
        let mut missed = 0;
        for n in 0..count {
            let random = split_mix(&mut load.rng);
            let hit = load.look_up(next(random)).await;
            missed += u64::from(!hit && n >= count / 4);
        }
        load.lab.cache.check_books();
        missed
    })
}

/// Random lookups without a scan: the misses of 120,000, after 40,000 others. The bars are what the
/// cache missed when it aged whole folios.
#[test]
fn random_lookups_miss_no_more_than_bars() {
    let scattered = |n: u64| n.wrapping_mul(7919) % DATABASE;
    let zipf = [0.7, 0.9, 1.1].map(|exponent| Zipf::new(DATABASE, exponent));
    for (zipf, apart, close) in [(0, 62_547, 59_983), (1, 37_823, 36_026), (2, 16_611, 15_649)]
        .map(|(at, apart, close)| (&zipf[at], apart, close))
    {
        let missed = [
            misses_of(160_000, |r| scattered(zipf.number(r))),
            misses_of(160_000, |r| zipf.number(r)),
        ];
        println!("zipf, scattered and in order: {missed:?}, bars {:?}", [apart, close]);
        assert!(missed[0] <= apart && missed[1] <= close, "{missed:?}, bars {apart}, {close}");
    }
    for (blocks, bar) in [(4000, 24_080), (5000, 43_920), (8000, 72_643)] {
        let missed = misses_of(160_000, |r| scattered((r >> 20) % blocks));
        println!("any of {blocks} blocks: {missed}, bar {bar}");
        assert!(missed <= bar, "{blocks}: {missed}, bar {bar}");
    }
}

/// Blocks filled by six passes over a file of `percent` of the frames.
fn filled_by_passes(percent: u64) -> (u64, Vec<u64>) {
    let mut load = Load::new();
    let world = load.lab.world.clone();
    world.run(async {
        let frames = load.lab.cache.stats().frames_total;
        let end = (frames * percent / 100).next_multiple_of(PIECE);
        let filled_so_far = |load: &Load| {
            let stats = load.lab.cache.stats();
            stats.evicted_blocks + stats.frames_total - stats.frames_free
        };
        let mut filled = Vec::new();
        for _ in 0..6 {
            let before = filled_so_far(&load);
            for at in (0..end).step_by(PIECE as usize) {
                let into = Target::Owned(&mut load.buf);
                load.lab.file.read(&load.scanner, at * BLOCK, into, NONE).await.unwrap();
            }
            load.lab.file.wait_fills().await;
            filled.push(filled_so_far(&load) - before);
        }
        (end, filled)
    })
}

/// A file that is read again and again, larger than the cache: part of it hits, and the passes fill
/// no more than when the cache aged whole folios.
#[test]
fn file_read_again_and_again_fills_no_more_than_bars() {
    for (percent, bar) in [(90, 3_312), (110, 16_896), (150, 27_808), (300, 64_416)] {
        let (blocks, filled) = filled_by_passes(percent);
        println!("{percent} % of the frames, {blocks} blocks: {filled:?}");
        let sum: u64 = filled.iter().sum();
        assert!(sum <= bar, "{percent} %: {sum} blocks filled, {filled:?}");
    }
}
