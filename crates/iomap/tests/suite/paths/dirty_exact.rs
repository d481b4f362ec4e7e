//! Dirty tracking against the device's own log, block by block: what each mode of
//! [`DirtyTracking`] writes for a write of any offset and length, at every block and folio size.

use super::harness::{Lab, NONE};
use forebay_base::IoFlags;
use forebay_base::world::split_mix;
use forebay_block::BioOp;
use forebay_cache::strategy::DirtyTracking;
use forebay_cache::{Config, State};
use std::collections::BTreeSet;
use std::ops::Range;

const FOLIOS: [u64; 5] = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 2 << 20];
const BLOCKS: [u64; 4] = [512, 1024, 2048, 4096];

/// A file of two folios and a half, so that its end lies within one.
struct Case {
    lab: Lab,
    folio: u64,
    block: u64,
    size: u64,
    seed: u64,
}

impl Case {
    fn new(folio: u64, block: u64, tracking: DirtyTracking) -> Self {
        let config = Config {
            folio_size: folio as u32,
            dirty_tracking: tracking,
            // Nothing is written before it is looked at.
            dirty_bytes: Some(8 << 20),
            dirty_background_bytes: Some(8 << 20),
            ..Config::with_budget(16 << 20)
        };
        let size = 2 * folio + (folio / 2).max(block);
        let lab = Lab::new(config, block as u32, Lab::sim(size));
        Self { lab, folio, block, size, seed: folio ^ block }
    }

    fn draw(&mut self, below: u64) -> u64 {
        split_mix(&mut self.seed) % below
    }

    /// Offsets around every block boundary up to `end`: rounding depends on nothing else.
    fn edges(&self, end: u64) -> Vec<u64> {
        let near = |at: u64| [at.saturating_sub(1), at, at + 1, at + self.block / 2];
        let all: BTreeSet<u64> =
            (0..=end / self.block).flat_map(|b| near(b * self.block)).collect();
        all.into_iter().filter(|&at| at <= end).collect()
    }

    fn touched(&self, range: &Range<u64>) -> BTreeSet<u64> {
        match range.is_empty() {
            true => BTreeSet::new(),
            false => (range.start / self.block..range.end.div_ceil(self.block)).collect(),
        }
    }

    /// What Linux v5.8 wrote: of every page with a dirty block the blocks that are up to date.
    fn of_dirty_folios(&self, dirty: &BTreeSet<u64>) -> BTreeSet<u64> {
        let folio_of = |b: &u64| b * self.block / self.folio;
        let folios: BTreeSet<u64> = dirty.iter().map(folio_of).collect();
        let uptodate = self.lab.blocks(State::Uptodate);
        uptodate.into_iter().filter(|b| folios.contains(&folio_of(b))).collect()
    }

    /// The blocks of the device's log, each as often as it was written.
    fn logged(&self) -> Vec<u64> {
        let log = self.lab.disk.log();
        let writes = log.iter().filter(|e| e.op == BioOp::Write);
        let mut blocks: Vec<u64> = writes
            .flat_map(|e| {
                assert_eq!((e.offset % self.block, e.len % self.block), (0, 0));
                e.offset / self.block..(e.offset + e.len) / self.block
            })
            .collect();
        blocks.sort_unstable();
        blocks
    }

    /// Writes a range, makes it durable, and compares with what the mode has to write.
    async fn check(&self, range: Range<u64>, tracking: DirtyTracking) {
        let lab = &self.lab;
        lab.disk.clear_log();
        let bytes = vec![range.start as u8; (range.end - range.start) as usize];
        lab.write(range.start, &bytes, NONE).await;
        let dirty = self.touched(&range);
        assert_eq!(lab.blocks(State::Dirty), dirty, "{range:?}");
        assert_eq!(lab.cache.stats().dirty_bytes, dirty.len() as u64 * self.block);
        let want = match tracking {
            DirtyTracking::Block => dirty,
            DirtyTracking::Folio => self.of_dirty_folios(&dirty),
        };
        lab.sync().await.unwrap();
        let want: Vec<u64> = want.into_iter().collect();
        assert_eq!(self.logged(), want, "{range:?}, block {}, folio {}", self.block, self.folio);
        assert!(lab.blocks(State::Dirty).is_empty());
    }

    /// Every pair of edges where these are few, else each edge with a drawn one and with those of
    /// the same and the next block.
    async fn check_all(&mut self, tracking: DirtyTracking) {
        let edges = self.edges(self.size);
        if edges.len() <= 64 {
            for (i, &start) in edges.iter().enumerate() {
                for &end in &edges[i..] {
                    self.check(start..end, tracking).await;
                }
            }
            return;
        }
        let tries = if tracking == DirtyTracking::Block { 160 } else { 40 };
        let step = (edges.len() / tries).max(1);
        for (i, &start) in edges.iter().enumerate().step_by(step) {
            let far = i + self.draw((edges.len() - i) as u64) as usize;
            for j in [i, i + 1, i + 3, i + 5, far] {
                let end = edges[j.min(edges.len() - 1)];
                self.check(start..end, tracking).await;
            }
        }
    }
}

#[test]
fn d1_any_write_to_a_cached_file_writes_exactly_its_blocks() {
    for folio in FOLIOS {
        for block in BLOCKS {
            let mut case = Case::new(folio, block, DirtyTracking::Block);
            let world = case.lab.world.clone();
            world.run(async {
                case.lab.read(0, case.size as usize, NONE).await;
                case.lab.sleep_ms(50).await;
                case.check_all(DirtyTracking::Block).await;
                let stats = case.lab.cache.stats();
                assert!(stats.written_bytes > 0);
                assert_eq!(stats.written_bytes, stats.dirtied_bytes);
                assert_eq!(stats.write_amplification(), 1.0);
            });
        }
    }
}

/// The baseline is as bad as the original, and no worse: nothing that is not up to date, nothing
/// behind the end of file, no clean folio.
#[test]
fn d1_folio_mode_matches_linux_5_8() {
    for folio in FOLIOS {
        for block in BLOCKS {
            for part in 0..3u64 {
                let mut case = Case::new(folio, block, DirtyTracking::Folio);
                let world = case.lab.world.clone();
                world.run(async {
                    // Cached: nothing, some blocks here and there, everything.
                    for at in (0..case.size).step_by(block as usize) {
                        if part == 2 || part == 1 && case.draw(3) == 0 {
                            let flags = if part == 2 { NONE } else { IoFlags::UNCACHED };
                            case.lab.read(at, block as usize, flags).await;
                        }
                    }
                    case.lab.sleep_ms(50).await;
                    if part == 2 {
                        return case.check_all(DirtyTracking::Folio).await;
                    }
                    for _ in 0..40 {
                        let start = case.draw(case.size);
                        let len = case.draw(3 * block).min(case.size - start);
                        case.check(start..start + len, DirtyTracking::Folio).await;
                    }
                });
            }
        }
    }
}

/// The line of the patch, `dd bs=4k count=16 oflag=sync`, on folios of 64 KiB: 4 KiB in each round
/// instead of 4, 8, .. 64 KiB; and random writes to a file that is wholly cached: 4 KiB, not 64.
#[test]
fn d1_patch_examples_cost_8_and_16_times_by_folio() {
    for (tracking, dd, fio) in [(DirtyTracking::Block, 1.0, 1.0), (DirtyTracking::Folio, 8.5, 16.0)]
    {
        let config = Config { dirty_tracking: tracking, ..Config::with_budget(16 << 20) };
        let lab = Lab::new(config, 4096, Lab::sim(4 << 20));
        lab.run(async {
            for i in 0..16 {
                lab.write(i * 4096, &[1; 4096], IoFlags::SYNC).await;
            }
            assert_eq!(lab.writes(), ((dd * 65536.0) as u64, 16));
            assert_eq!(lab.cache.stats().write_amplification(), dd);
            lab.read(0, 4 << 20, NONE).await;
            lab.sleep_ms(50).await;
            lab.disk.clear_log();
            for i in 0..50u64 {
                lab.write(i * 37 % 1024 * 4096, &[2; 4096], NONE).await;
                lab.sync().await.unwrap();
            }
            assert_eq!(lab.writes(), ((fio * 50.0 * 4096.0) as u64, 50));
        });
    }
}

/// A sync of a part of a file: exactly the dirty blocks of the part, or the folios that it touches.
#[test]
fn d1_sync_write_writes_out_its_own_blocks_only() {
    for (tracking, bytes, left) in
        [(DirtyTracking::Block, 512, vec![0, 127, 128]), (DirtyTracking::Folio, 1536, vec![128])]
    {
        let config = Config { dirty_tracking: tracking, ..Config::with_budget(16 << 20) };
        let lab = Lab::new(config, 512, Lab::sim(1 << 20));
        lab.run(async {
            for block in [0, 127, 128] {
                lab.write(block * 512, &[1; 512], NONE).await;
            }
            lab.write(64 * 512, &[2; 512], IoFlags::DSYNC).await;
            assert_eq!(lab.writes().0, bytes, "{tracking}");
            assert_eq!(lab.blocks(State::Dirty), left.into_iter().collect());
            assert_eq!(lab.disk.peek_durable(64 * 512, 512), [2; 512]);
        });
    }
}

/// The option changes while folios are dirty and in write-out: from the next write-out on, it is
/// the other mode, and nothing is lost or written twice at once.
#[test]
fn d1_tracking_changes_while_folios_are_dirty_and_in_flight() {
    let lab = Lab::plain(4096);
    lab.run(async {
        lab.read(0, 65536, NONE).await;
        lab.sleep_ms(20).await;
        let modes = [DirtyTracking::Folio, DirtyTracking::Block];
        for (round, tracking) in (1..60u8).zip(modes.into_iter().cycle()) {
            let other = modes[usize::from(tracking == modes[0])];
            lab.write(0, &[round; 4096], IoFlags::START_WRITEBACK).await;
            lab.cache.strategies.set_dirty_tracking(other);
            lab.write(8192, &[round; 100], NONE).await;
            lab.cache.strategies.set_dirty_tracking(tracking);
            let before = lab.writes().0;
            lab.sync().await.unwrap();
            let want = if tracking == DirtyTracking::Folio { 16 } else { 1 };
            assert_eq!(lab.writes().0 - before, want * 4096, "{tracking}");
            assert_eq!(lab.disk.peek_durable(0, 4096), [round; 4096]);
            assert_eq!(lab.disk.peek_durable(8192, 100), [round; 100]);
            lab.cache.strategies.set_dirty_tracking(other);
        }
        let stats = lab.cache.stats();
        assert_eq!((stats.dirty_bytes, stats.writeback_bytes), (0, 0));
    });
    assert_eq!(lab.disk.overlapping_writes(), 0);
}

/// What failed is written again: it counts as dirtied once, as often as it is tried.
#[test]
fn d1_failed_write_out_counts_once_and_not_as_written() {
    use forebay_base::ErrorKind;
    use forebay_sim::{Fault, FaultRule};
    for tracking in [DirtyTracking::Block, DirtyTracking::Folio] {
        let config = Config { dirty_tracking: tracking, ..Config::with_budget(16 << 20) };
        let lab = Lab::new(config, 4096, Lab::sim(1 << 20));
        lab.run(async {
            lab.write(0, &[1; 3 * 4096], NONE).await;
            lab.disk.inject(FaultRule::on(BioOp::Write, Fault::Fail(ErrorKind::Io)).times(3));
            while lab.sync().await.is_err() {}
            let stats = lab.cache.stats();
            assert_eq!((stats.dirtied_bytes, stats.written_bytes), (3 * 4096, 3 * 4096));
            assert_eq!(stats.write_amplification(), 1.0);
        });
    }
}
