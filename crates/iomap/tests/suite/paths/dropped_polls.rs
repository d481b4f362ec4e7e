//! Every operation is dropped after each of its polls, on a map in place and on one that moves what is
//! written: nothing stays locked or counted, nothing is lost, and nothing of it happens later.

use super::lab::{Lab, NONE, both};
use forebay_base::IoFlags;
use forebay_base::buf::AlignedBuf;
use forebay_base::sim_world::SimWorld;
use forebay_base::world::WorldRef;
use forebay_cache::strategy::UncachedStrategy;
use forebay_cache::{Config, State};
use forebay_iomap::identity::Identity;
use forebay_iomap::remap::{Remap, RemapOptions};
use forebay_iomap::{MapOps, Source, Target};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

const BLOCK: usize = 4096;
const SIZE: usize = 16 * BLOCK;
/// What is written after the drop.
const LATER: std::ops::Range<usize> = 5 * BLOCK + 100..9 * BLOCK;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Op {
    Read(IoFlags),
    Write(IoFlags, usize, usize),
    Append(IoFlags),
    Zero(usize, usize),
    Truncate(usize),
    Sync,
}

impl Op {
    fn all(grows: bool) -> Vec<Self> {
        let direct = IoFlags::DIRECT | IoFlags::FALLBACK;
        let mut ops = vec![
            Self::Sync,
            Self::Zero(2 * BLOCK, 8 * BLOCK),
            Self::Zero(2 * BLOCK + 7, 6 * BLOCK),
        ];
        for flags in [NONE, IoFlags::UNCACHED, direct, IoFlags::DSYNC, direct | IoFlags::DSYNC] {
            ops.push(Self::Write(flags, 3 * BLOCK, 4 * BLOCK));
            ops.push(Self::Write(flags, 3 * BLOCK + 50, 4 * BLOCK));
        }
        ops.extend([NONE, IoFlags::UNCACHED, direct].map(Self::Read));
        if grows {
            ops.extend([NONE, IoFlags::UNCACHED, direct, IoFlags::DSYNC].map(Self::Append));
            ops.extend([3 * BLOCK, 3 * BLOCK + 9, 6 * BLOCK + 9, SIZE + 5000].map(Self::Truncate));
        }
        ops
    }

    async fn run(self, lab: &Lab) {
        let file = &lab.file;
        let bytes = |len| AlignedBuf::copy_of(&vec![2; len]);
        match self {
            Self::Read(flags) => {
                let mut buf = bytes(SIZE);
                drop(file.read(&lab.handle, 0, Target::Owned(&mut buf), flags).await);
            }
            Self::Write(flags, at, len) => {
                let mut buf = bytes(len);
                drop(file.write(&lab.handle, at as u64, Source::Owned(&mut buf), flags).await);
            }
            Self::Append(flags) => {
                let mut buf = bytes(2 * BLOCK);
                let flags = flags | IoFlags::APPEND;
                drop(file.write(&lab.handle, 0, Source::Owned(&mut buf), flags).await);
            }
            Self::Zero(at, len) => drop(lab.zero(at as u64, len as u64, false).await),
            Self::Truncate(to) => drop(file.set_len(to as u64).await),
            Self::Sync => drop(lab.sync().await),
        }
    }

    /// What it may have made of a byte that was `old`; the bytes of the file at least.
    fn may_have_made(self, at: usize) -> Option<u8> {
        match self {
            Self::Write(_, from, len) if (from..from + len).contains(&at) => Some(2),
            Self::Append(_) if at >= SIZE => Some(2),
            Self::Zero(from, len) if (from..from + len).contains(&at) => Some(0),
            Self::Truncate(to) if at >= to.min(SIZE) => Some(0),
            _ => None,
        }
    }

    fn may_be_size(self, size: usize) -> bool {
        let grown = match self {
            Self::Append(_) => SIZE + 2 * BLOCK,
            Self::Truncate(to) => to.max(LATER.end),
            _ => SIZE,
        };
        size == SIZE || size == grown
    }
}

fn lab_of(seed: u64, grows: bool, strategy: UncachedStrategy) -> Lab {
    let config = Config { folio_size: 65536, ..Config::with_budget(4 << 20) };
    let world = SimWorld::new(seed);
    let lab = Lab::in_world(
        world,
        config,
        BLOCK as u32,
        Lab::sim(1 << 20),
        SIZE as u64,
        |disk, world| {
            let map: Arc<dyn MapOps> = match grows {
                false => Arc::new(Identity::new(disk)),
                true => {
                    let waits = Some(world.clone() as WorldRef);
                    Remap::with_options(
                        disk,
                        BLOCK as u32,
                        RemapOptions { grows, sums: true, waits },
                    )
                }
            };
            map
        },
    );
    lab.cache.strategies.set_uncached(strategy);
    lab
}

/// Drops an operation after so many polls; false: it had ended before.
async fn drop_after(polls: u32, op: impl Future<Output = ()>) -> bool {
    let (mut op, mut left) = (pin!(op), polls);
    std::future::poll_fn(|cx| {
        if op.as_mut().poll(cx).is_ready() {
            return Poll::Ready(false);
        }
        left -= 1;
        if left == 0 { Poll::Ready(true) } else { Poll::Pending }
    })
    .await
}

fn check_bytes(op: Op, bytes: &[u8], old: &[u8], what: &str) {
    assert!(op.may_be_size(bytes.len()), "{} bytes, {what}", bytes.len());
    for (at, &byte) in bytes.iter().enumerate() {
        let was = old.get(at).copied().unwrap_or(0);
        let is_right = match LATER.contains(&at) {
            true => byte == 9,
            false => byte == was || Some(byte) == op.may_have_made(at),
        };
        assert!(is_right, "{byte} at {at}, which was {was}, {what}");
    }
}

/// One operation, dropped after so many polls; false: it ends before that.
fn drop_one(op: Op, polls: u32, seed: u64, grows: bool, strategy: UncachedStrategy) -> bool {
    let what = format!(
        "{op:?} dropped after {polls} polls, map that moves: {grows}, {strategy:?}, seed {seed}"
    );
    let lab = lab_of(seed, grows, strategy);
    lab.run(async {
        // Some of it stored and not cached, some cached, some dirty.
        let old: Vec<u8> = (0..SIZE).map(|at| 16 + (at / 512 % 64) as u8).collect();
        lab.write(0, &old, NONE).await;
        lab.sync().await.unwrap();
        lab.cache.drop_clean();
        lab.read(4 * BLOCK as u64, 3 * BLOCK, NONE).await;
        lab.write(2 * BLOCK as u64, &old[2 * BLOCK..4 * BLOCK], NONE).await;
        lab.write(12 * BLOCK as u64, &old[12 * BLOCK..13 * BLOCK], NONE).await;
        let dropped = drop_after(polls, op.run(&lab)).await;
        // Another task goes on at once.
        let later = async {
            lab.write(LATER.start as u64, &vec![9; LATER.len()], NONE).await;
            let synced = lab.sync().await;
            assert!(synced.is_ok(), "{synced:?}, {what}");
        };
        let other = async { drop(lab.try_read(0, SIZE, NONE).await) };
        both(later, other).await;
        lab.sleep_ms(200).await;
        lab.sync().await.unwrap();
        let mapping = &lab.file.mapping;
        assert_eq!(mapping.write_outs(), 0, "no ticket is left, {what}");
        assert!(!mapping.bounds.is_exclusive(&(0..1 << 30)), "no range is held, {what}");
        assert!(mapping.bounds.try_resize().is_some(), "the size may move, {what}");
        assert_eq!(lab.file.size(), lab.file.end(), "nothing is behind the end, {what}");
        for state in [State::Dirty, State::Writing, State::Reading, State::Unflushed] {
            assert!(lab.blocks_of(1 << 20, state).is_empty(), "{state:?} blocks, {what}");
        }
        let cached = lab.read(0, 2 * SIZE, NONE).await;
        check_bytes(op, &cached, &old, &what);
        lab.cache.drop_clean();
        let stats = lab.cache.stats();
        assert_eq!(stats.private_bytes, 0, "private memory, {what}");
        assert_eq!(stats.frames_free, stats.frames_total, "frames, {what}");
        assert!(
            lab.read(0, 2 * SIZE, NONE).await == cached,
            "the device has it as the cache, {what}"
        );
        assert!(mapping.is_settled(), "it may be closed, {what}");
        dropped
    })
}

fn drop_all(grows: bool) {
    let (mut operations, mut drops) = (0, 0);
    let all = (0..4).flat_map(|seed| UncachedStrategy::ALL.iter().map(move |&s| (seed, s)));
    for (seed, strategy) in all {
        for op in Op::all(grows) {
            let uses = matches!(op, Op::Read(f) | Op::Write(f, ..) | Op::Append(f) if f.contains(IoFlags::UNCACHED));
            if strategy != UncachedStrategy::Ours && !uses {
                continue;
            }
            operations += 1;
            let mut polls = 1;
            while drop_one(op, polls, seed, grows, strategy) {
                polls += 1;
                assert!(polls < 200, "{op:?} ends");
            }
            drops += polls - 1;
        }
    }
    println!("{drops} drops of {operations} operations");
    assert!(drops > operations, "they wait: {drops} of {operations}");
}

#[test]
fn operation_dropped_at_any_poll_in_place_leaves_nothing_behind() {
    drop_all(false);
}

#[test]
fn operation_dropped_at_any_poll_on_a_moving_map_leaves_nothing_behind() {
    drop_all(true);
}
