//! A task is dropped at each of its polls while the device has a write of it, which lands late.
//!
//! No locks.

use crate::fault::{Plant, Planted};
use crate::format::superblock::{SLOT_BYTES, slot_offsets};
use crate::tests::node_places::{refused, slot_of};
use crate::tests::reuse::{create, open, read, setup, write};
use crate::tests::setup::Setup;
use crate::{OpenOptions, Volume};
use forebay_base::sim_world::SimWorld;
use forebay_base::world::{World, WorldRef};
use forebay_block::{BioOp, DeviceRef};
use forebay_sim::{Fate, Fault, FaultRule, SimDisk};
use forebay_vfs::{FileSystem, Ino, Name, OpenFileRef};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

const BLOCK: usize = 4096;
/// How long a late write takes, nanoseconds.
const LATE: u64 = 1_000_000_000;

/// Polls a future at most `most` times, then drops it. True if it ended before.
pub async fn polled(most: u32, future: impl Future) -> bool {
    let (mut future, mut polls) = (pin!(future), 0);
    poll_fn(|cx| {
        polls += 1;
        match future.as_mut().poll(cx) {
            Poll::Ready(_) => Poll::Ready(true),
            Poll::Pending if polls == most => Poll::Ready(false),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// The work after the drop: changes and three checkpoints, each with nodes at new addresses.
async fn go_on(volume: &Volume, disk: &SimDisk, file: &OpenFileRef) {
    for round in 0..3u8 {
        for n in 0..8 {
            create(volume, &format!("g{round}-{n}")).await.unwrap();
        }
        write(file, 0, &[10 + round; BLOCK]).await.unwrap();
        for _ in 0..3 {
            if file.sync(true).await.is_ok() {
                disk.tag_cuts(u64::from(10 + round));
                break;
            }
        }
        volume.checkpoint().await.ok();
        World::sleep(&**disk.world(), Duration::from_nanos(2 * LATE)).await;
    }
}

/// What a sweep over the moments after the drops has found.
#[derive(Default)]
struct Swept {
    /// States after a sync that was acknowledged after the drop.
    synced_states: u32,
    /// The first state in which acknowledged bytes are missing.
    missing: Option<String>,
}

/// A power loss at any moment after the drop leaves a volume that opens, and a file with the bytes
/// of one of its writes: the last one that a sync acknowledged, or a later one. A moment is tagged
/// with the byte of that write.
fn check(setup: &Setup, disk: &SimDisk, what: &str, swept: &mut Swept) {
    for (n, cut) in disk.take_cuts().into_iter().enumerate() {
        let synced = cut.tag();
        for state in [cut.state(&vec![Fate::Whole; cut.pending()]), cut.state(&[])] {
            let disk = state.mount(SimWorld::new(9));
            disk.world().run(async {
                let volume = open(setup, &disk).await;
                let volume = volume.unwrap_or_else(|error| panic!("{what}, moment {n}: {error}"));
                let (_, file) = create(&volume, "f").await.unwrap();
                let bytes = read(&file, BLOCK).await;
                let is_one = bytes.len() == BLOCK && bytes.iter().all(|byte| *byte == bytes[0]);
                assert!(is_one && [1, 2, 10, 11, 12].contains(&bytes[0]), "{what}, moment {n}");
                swept.synced_states += u32::from(synced >= 10);
                if u64::from(bytes[0]) < synced {
                    let found = bytes[0];
                    swept.missing.get_or_insert_with(|| {
                        format!("{what}, moment {n}: {synced} was synced, {found} is there")
                    });
                }
            });
            disk.world().stop();
        }
    }
}

/// What is dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Task {
    Sync,
    Checkpoint,
    /// A checkpoint of whose state one slot takes no write, so that the next ones get it, too.
    OneSlot,
}

/// Runs a task with slow writes, and drops it after `polls` polls. True if it ended before.
fn dropped(polls: u32, task: Task, plant: Option<Planted>, swept: &mut Swept) -> bool {
    let setup = setup(0);
    let disk = setup.blank();
    let ended = disk.world().run(async {
        let (device, world): (DeviceRef, WorldRef) = (Arc::new(disk.clone()), disk.world().clone());
        let options = OpenOptions { plant: Plant(plant), ..setup.options(&world) };
        let volume = Volume::open(&device, &world, &options).await.unwrap();
        let (_, file) = create(&volume, "f").await.unwrap();
        for n in 0..20 {
            create(&volume, &format!("f{n}")).await.unwrap();
        }
        write(&file, 0, &[1; BLOCK]).await.unwrap();
        volume.syncfs().await.unwrap();
        let made = volume.checkpoint().await;
        assert!(made.is_ok() || plant.is_some(), "{made:?}");
        disk.tag_cuts(1);
        write(&file, 0, &[2; BLOCK]).await.unwrap();
        let slow = || FaultRule::on(BioOp::Write, Fault::Slow(LATE));
        if task != Task::Sync {
            volume.syncfs().await.unwrap();
            disk.tag_cuts(2);
            if task == Task::OneSlot {
                let slot = slot_of(&disk, volume.0.checkpoints.number() + 1, 0);
                disk.inject(refused().within(slot));
            }
            for at in slot_offsets(disk.config().size) {
                disk.inject(slow().within(at..at + SLOT_BYTES as u64));
            }
        } else {
            disk.inject(slow().times(4));
        }
        let ended = match task {
            Task::Checkpoint | Task::OneSlot => polled(polls, volume.checkpoint()).await,
            Task::Sync => polled(polls, file.sync(true)).await,
        };
        disk.heal();
        disk.record_cuts();
        if !ended {
            go_on(&volume, &disk, &file).await;
        }
        ended
    });
    disk.world().stop();
    let what = format!("{task:?} dropped after {polls} polls");
    check(&setup, &disk, &what, swept);
    ended
}

/// Drops a checkpoint or a sync at each of its polls: how many there are, and what was found.
fn sweep(task: Task, plant: Option<Planted>) -> (u32, Swept) {
    let mut swept = Swept::default();
    let ends = |polls: &u32| dropped(*polls, task, plant, &mut swept);
    let most = (1..200).find(ends).expect("it ends");
    (most, swept)
}

fn assert_synced_bytes_are_there(swept: &Swept) {
    assert!(swept.synced_states > 0, "no moment lies behind an acknowledged sync");
    assert_eq!(swept.missing, None);
}

/// checkpoint.H18. The story: a checkpoint was dropped while the device had the write of its slot.
/// The next checkpoints wrote the same slot, and used the nodes of the dropped one again. Then the
/// late slot landed and named those nodes.
#[test]
fn checkpoint_dropped_at_any_poll_leaves_no_late_slot() {
    let (most, swept) = sweep(Task::Checkpoint, None);
    assert!(most > 4, "{most} polls");
    assert_synced_bytes_are_there(&swept);
}

/// nodes.N16. The story: a dropped checkpoint had its state in a slot under two numbers. Then only
/// the slots of the lower one were replaced, and its nodes were overwritten.
#[test]
fn n16_checkpoint_dropped_while_it_writes_a_second_number() {
    let (most, swept) = sweep(Task::OneSlot, None);
    assert!(most > 6, "{most} polls");
    assert_synced_bytes_are_there(&swept);
}

/// A sync is dropped while the device has the write of its group or of its data. That its late
/// write replaces no later record (log.L9) is tested by
/// `write_turn_of_dropped_task_waits_for_its_writes`.
#[test]
fn sync_dropped_at_any_poll_leaves_no_late_record() {
    let (most, swept) = sweep(Task::Sync, None);
    assert!(most > 2, "{most} polls");
    assert_synced_bytes_are_there(&swept);
}

/// The sweep finds a sync that is acknowledged before its flush.
#[test]
fn sweep_after_drop_finds_sync_acknowledged_before_flush() {
    let (_, swept) = sweep(Task::Checkpoint, Some(Planted::AckBeforeFlush));
    assert!(swept.missing.is_some(), "{} states", swept.synced_states);
}

/// Two tasks sync a new name at once, and the first is dropped after `polls` polls. True if it
/// ended before. The second one's sync works, and the name survives a power loss.
fn second_sync_works(polls: u32, setup: &Setup) -> bool {
    let disk = setup.blank();
    let name = Name::new(b"f").unwrap();
    let ended = disk.world().run(async {
        let volume = open(setup, &disk).await.unwrap();
        create(&volume, "f").await.unwrap();
        disk.inject(FaultRule::on(BioOp::Write, Fault::Slow(LATE)).sticky());
        disk.inject(FaultRule::on(BioOp::Flush, Fault::Slow(LATE)).sticky());
        let mut second = volume.syncfs();
        let (mut first, mut left, mut ended) = (Some(volume.syncfs()), polls, false);
        let done = poll_fn(|cx| {
            if let Some(task) = &mut first {
                (left, ended) = (left - 1, task.as_mut().poll(cx).is_ready());
                if ended || left == 0 {
                    first = None;
                }
            }
            second.as_mut().poll(cx)
        });
        let done = done.await;
        done.unwrap_or_else(|error| panic!("the other was dropped after {polls} polls: {error}"));
        ended
    });
    disk.world().stop();
    let disk = disk.power_cut(1).in_world(SimWorld::new(2));
    disk.world().run(async {
        let volume = open(setup, &disk).await.unwrap();
        let found = volume.lookup(Ino::ROOT, name).await;
        assert!(found.is_ok(), "dropped after {polls} polls: {found:?}");
    });
    disk.world().stop();
    ended
}

/// log.L5: one of the other tasks takes the turn over. The story: a task that wrote or flushed a
/// group was dropped, and every other task that waited for that group got `Shutdown`.
#[test]
fn commit_whose_task_is_dropped_is_taken_over_by_another() {
    for (fua, polls) in [(false, 3), (true, 2)] {
        let setup = Setup { fua, ..setup(0) };
        let most = (1..200).find(|polls| second_sync_works(*polls, &setup)).expect("it ends");
        assert!(most >= polls, "{most} polls");
    }
}
