//! Which tasks share a flush of the device: commits, checkpoints, the cleaner, and the flush of
//! data before its records.
//!
//! No locks.

use crate::Volume;
use crate::tests::reuse::{create, open, setup, write};
use crate::tests::setup::Setup;
use crate::tests::sums_off::blank;
use forebay_base::buf::AlignedBuf;
use forebay_base::task::{BoxFuture, join_all};
use forebay_base::world::World;
use forebay_base::{ErrorKind, IoFlags};
use forebay_block::{BioFlags, BioOp};
use forebay_sim::{Fault, FaultRule, SimDisk};
use forebay_vfs::{OpenFileRef, Privileges};
use std::time::Duration;

const BLOCK: usize = 4096;
/// How long a slow flush takes, nanoseconds.
const SLOW: u64 = 1_000_000_000;

/// Flushes of the device, and writes with FUA, since the log of the disk was cleared.
fn counts(disk: &SimDisk) -> (usize, usize) {
    let log = disk.log();
    let flushes = log.iter().filter(|entry| entry.op == BioOp::Flush).count();
    let is_fua = |op: BioOp, flags: BioFlags| op == BioOp::Write && flags.contains(BioFlags::FUA);
    (flushes, log.iter().filter(|entry| is_fua(entry.op, entry.flags)).count())
}

fn run<T>(setup: &Setup, sums: bool, test: impl AsyncFnOnce(&Volume, &SimDisk) -> T) -> T {
    let disk = blank(setup, sums);
    let done = disk.world().run(async {
        let volume = open(setup, &disk).await.unwrap();
        test(&volume, &disk).await
    });
    disk.world().stop();
    done
}

/// New files of one block, synced.
async fn opened(volume: &Volume, disk: &SimDisk, count: usize) -> Vec<OpenFileRef> {
    let mut files = Vec::new();
    for n in 0..count {
        let (_, file) = create(volume, &format!("f{n}")).await.unwrap();
        write(&file, 0, &[1; BLOCK]).await.unwrap();
        file.sync(false).await.unwrap();
        files.push(file);
    }
    // The mark of the idle log is written.
    World::sleep(&**disk.world(), Duration::from_secs(1)).await;
    disk.clear_log();
    files
}

fn flush_rule(fault: Fault) -> FaultRule {
    FaultRule::on(BioOp::Flush, fault)
}

/// log.L16. The story: each checkpoint and each pass of the cleaner that waited for a flush in
/// progress then made one of its own, and so did the sync that waited with them.
#[test]
fn l16_callers_that_wait_during_flush_share_next_one() {
    run(&setup(0), true, async |volume, disk| {
        let files = opened(volume, disk, 2).await;
        disk.inject(flush_rule(Fault::Slow(SLOW)).times(1));
        let resources = &volume.0;
        let mut tasks: Vec<BoxFuture<'_, ()>> = vec![Box::pin(async {
            resources.flush_all().await.unwrap();
        })];
        for n in 0..3u64 {
            let waited = Duration::from_nanos(SLOW / 10 * (1 + n));
            let file = &files[0];
            tasks.push(Box::pin(async move {
                World::sleep(&**disk.world(), waited).await;
                if n == 0 {
                    write(file, 0, &[2; BLOCK]).await.unwrap();
                    file.sync(true).await.unwrap();
                } else {
                    resources.flush_all().await.unwrap();
                }
            }));
        }
        join_all(tasks).await;
        assert_eq!(counts(disk).0, 2, "that one, and the next, which all others share");
    });
}

/// log.L16, log.L2: a flush for another purpose makes the groups durable that it covers.
#[test]
fn l16_flush_of_checkpoint_makes_written_groups_durable() {
    run(&setup(0), true, async |volume, disk| {
        let files = opened(volume, disk, 1).await;
        // A flush is in progress while the sync writes its group and the others queue up.
        disk.inject(flush_rule(Fault::Slow(SLOW)).times(2));
        let first = async { volume.0.flush_all().await.unwrap() };
        let sync = async {
            World::sleep(&**disk.world(), Duration::from_nanos(SLOW / 10)).await;
            write(&files[0], 0, &[2; BLOCK]).await.unwrap();
            files[0].sync(true).await.unwrap();
            disk.world().now()
        };
        let other = async {
            World::sleep(&**disk.world(), Duration::from_nanos(SLOW / 20)).await;
            volume.0.flush_all().await.unwrap();
            disk.world().now()
        };
        let ends: Vec<BoxFuture<'_, u64>> = vec![
            Box::pin(async {
                first.await;
                0
            }),
            Box::pin(sync),
            Box::pin(other),
        ];
        let ends = join_all(ends).await;
        assert_eq!(counts(disk).0, 2);
        assert!(ends[1].abs_diff(ends[2]) < SLOW / 2, "the sync needs no flush of its own");
    });
}

/// The error of a shared flush reaches each caller that shares it. The next flush works, and then
/// the data is durable.
#[test]
fn error_of_shared_flush_reaches_each_caller_once() {
    run(&setup(0), true, async |volume, disk| {
        let files = opened(volume, disk, 2).await;
        disk.inject(flush_rule(Fault::Slow(SLOW)).times(1));
        disk.inject(flush_rule(Fault::Fail(ErrorKind::Io)).nth(1));
        let later = || World::sleep(&**disk.world(), Duration::from_nanos(SLOW / 10));
        let flush = async || {
            later().await;
            volume.0.flush_all().await.is_err()
        };
        let sync = async |file: &OpenFileRef| {
            later().await;
            write(file, 0, &[2; BLOCK]).await.unwrap();
            file.sync(true).await.is_err()
        };
        let tasks: Vec<BoxFuture<'_, bool>> = vec![
            Box::pin(async { volume.0.flush_all().await.is_err() }),
            Box::pin(flush()),
            Box::pin(flush()),
            Box::pin(sync(&files[0])),
            Box::pin(sync(&files[1])),
        ];
        assert_eq!(join_all(tasks).await, [false, true, true, true, true]);
        assert_eq!(counts(disk).0, 2);
        volume.0.flush_all().await.unwrap();
        for file in &files {
            file.sync(true).await.unwrap();
            file.sync(true).await.unwrap();
        }
    });
}

/// commit.K13, log.L16. Many files of a volume without sums are synced all the time. The story: the
/// data of a group had a flush of its own also where the flush of the group before it had begun
/// after that data was written. So each group took two flushes.
#[test]
fn k13_flush_of_other_group_covers_data_written_before() {
    const FILES: usize = 8;
    const ROUNDS: u8 = 20;
    // Flushes before: 88 for 44 groups without sums and FUA.
    for (sums, fua) in [(false, false), (false, true), (true, false), (true, true)] {
        let setup = Setup { fua, volume_bytes: 4 << 20, ..setup(0) };
        run(&setup, sums, async |volume, disk| {
            let files = opened(volume, disk, FILES).await;
            let groups = || volume.0.log.ctl.lock().group_count;
            let before = groups();
            let task = |file: &OpenFileRef| -> BoxFuture<'_, ()> {
                let file = file.clone();
                Box::pin(async move {
                    for round in 0..ROUNDS {
                        write(&file, 0, &[round; BLOCK]).await.unwrap();
                        file.sync(true).await.unwrap();
                    }
                })
            };
            join_all(files.iter().map(task)).await;
            let (flushes, fua_writes) = counts(disk);
            let groups = (groups() - before) as usize;
            println!(
                "sums {sums}, fua {fua}: {flushes} flushes, {fua_writes} of {groups} with FUA"
            );
            match (sums, fua) {
                (false, false) => assert!(flushes * 3 < groups * 4, "not two for each group"),
                (false, true) => assert!(flushes <= groups && fua_writes <= groups),
                (true, _) => assert!(flushes + fua_writes <= groups, "one for each group"),
            }
        });
    }
}

/// commit.K11: a group whose data was flushed before is one FUA write. The story: any record that
/// named data needed a flush behind it. Without that flush no group is written with FUA before its
/// data is flushed: with sums the flush is behind the group, without sums it is in front of it.
#[test]
fn k11_group_whose_data_is_flushed_is_written_with_fua() {
    // Sums, whether the data is flushed before; flushes, writes with FUA.
    let cases =
        [(true, true, 0, 1), (false, true, 0, 1), (true, false, 1, 0), (false, false, 1, 1)];
    for (sums, is_flushed, flushes, fua_writes) in cases {
        let setup = Setup { fua: true, ..setup(0) };
        let cost = run(&setup, sums, async |volume, disk| {
            let files = opened(volume, disk, 1).await;
            let buf = AlignedBuf::copy_of(&[2; BLOCK]);
            files[0].write(0, buf, IoFlags::DIRECT, Privileges::Keep).await.1.unwrap();
            if is_flushed {
                volume.0.flush_all().await.unwrap();
            }
            disk.clear_log();
            files[0].sync(true).await.unwrap();
            counts(disk)
        });
        assert_eq!(cost, (flushes, fua_writes), "K11: sums {sums}, flushed before {is_flushed}");
    }
}

/// Checkpoints in turn, concurrently with syncs: their flushes are shared both ways.
#[test]
fn checkpoints_and_syncs_share_flushes() {
    const FILES: usize = 4;
    let setup = Setup { volume_bytes: 8 << 20, ..setup(0) };
    run(&setup, true, async |volume, disk| {
        let files = opened(volume, disk, FILES).await;
        let groups = || volume.0.log.ctl.lock().group_count;
        let before = groups();
        let mut tasks: Vec<BoxFuture<'_, ()>> = vec![Box::pin(async {
            for _ in 0..10 {
                volume.checkpoint().await.unwrap();
            }
        })];
        for file in &files {
            tasks.push(Box::pin(async move {
                for round in 0..20 {
                    write(file, 0, &[round; BLOCK]).await.unwrap();
                    file.sync(true).await.unwrap();
                }
            }));
        }
        join_all(tasks).await;
        let (flushes, groups) = (counts(disk).0, (groups() - before) as usize);
        println!("{flushes} flushes for {groups} groups and 10 checkpoints");
        assert!(flushes < groups + 15, "each checkpoint needs two or more, and syncs share them");
    });
}

/// Syncs of one file take turns above the log, and each turn covers the writes of all callers that
/// wait for it. So they need no more flushes than those of as many files.
#[test]
fn syncs_of_one_file_cost_no_more_flushes() {
    const TASKS: u64 = 8;
    let flushes_with = |count: usize| {
        let setup = Setup { volume_bytes: 4 << 20, ..setup(0) };
        run(&setup, true, async |volume, disk| {
            let files = opened(volume, disk, count).await;
            let task = |n: u64| -> BoxFuture<'_, ()> {
                let (file, own) = (files[n as usize % count].clone(), n / count as u64);
                Box::pin(async move {
                    for round in 0..20 {
                        write(&file, own * BLOCK as u64, &[round; BLOCK]).await.unwrap();
                        file.sync(true).await.unwrap();
                    }
                })
            };
            join_all((0..TASKS).map(task)).await;
            counts(disk).0
        })
    };
    let [one, many] = [1, TASKS as usize].map(flushes_with);
    println!("{one} flushes for one file, {many} for {TASKS} files");
    assert!(one <= many);
}
