//! What a checkpoint contains, when its slots are written, and what ends it.
//!
//! No locks.

use crate::btree::Cursor;
use crate::checkpoint::How;
use crate::fault::{Plant, Planted};
use crate::format::item::Item;
use crate::format::key::{Cookie, Key};
use crate::format::place::Place;
use crate::format::superblock::{SLOT_BYTES, slot_offsets};
use crate::format::usage::Stream;
use crate::tests::reuse::{check, create, open, read, setup, write};
use crate::tests::setup::Setup;
use crate::{OpenOptions, Volume};
use forebay_base::ErrorKind;
use forebay_base::sim_world::SimWorld;
use forebay_base::task::{BoxFuture, join_all};
use forebay_base::world::{World, WorldRef};
use forebay_block::{BioOp, DeviceRef};
use forebay_sim::{Fault, FaultRule, LogEntry, PowerCut, SimDisk};
use forebay_vfs::{FileKind, FileSystem, Ino, Name, NewInode, OpenFlags, RenameFlags};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const BLOCK: usize = 4096;
/// How long a slow write takes, nanoseconds.
const SLOW: u64 = 1_000_000;
const ROOT: u64 = Ino::ROOT.0;

type Names = BTreeSet<String>;

fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).unwrap()
}

fn slow_writes() -> FaultRule {
    FaultRule::on(BioOp::Write, Fault::Slow(SLOW)).sticky()
}

async fn sleep(disk: &SimDisk, time: Duration) {
    World::sleep(&**disk.world(), time).await;
}

/// The names of the root directory in the newest tree, without the changes since.
async fn names_in_tree(volume: &Volume) -> Names {
    let (tree, root) = (&volume.0.tree, volume.0.state.lock().tree().root());
    let entries = (Key::Entry(ROOT, Cookie::FIRST), Key::Inode(ROOT + 1));
    let (mut cursor, mut names) = (Cursor::new(entries.0, Some(entries.1)), Names::new());
    while let Some(found) = cursor.next(tree, &root).await.unwrap() {
        let (_, item) = found.decode(tree.geometry()).unwrap();
        let Item::Entry(entry) = item else { panic!("{item:?}") };
        names.insert(String::from_utf8(entry.name.to_vec()).unwrap());
    }
    names
}

/// The names of the root directory that a recovery after a power loss finds.
fn names_after_power_loss(setup: &Setup, cut: &PowerCut) -> Names {
    let disk = cut.state(&[]).mount(SimWorld::new(5));
    let names = disk.world().run(async {
        let volume = open(setup, &disk).await.unwrap();
        // The opening has merged what it recovered.
        names_in_tree(&volume).await
    });
    disk.world().stop();
    names
}

/// Files that are in the tree before one of them is renamed.
const FILES: usize = 300;

/// Makes and renames files until it is told to stop. Returns the names after each record, with the
/// ticket of that record.
async fn rename_files(volume: &Volume, disk: &SimDisk, stop: &AtomicBool) -> Vec<(u64, Names)> {
    let mut names: Names = (0..FILES).map(|n| format!("n{n}")).collect();
    let mut all = Vec::new();
    let new = NewInode::of(FileKind::File, 0o644);
    let mut note = |names: &Names| {
        all.push((volume.0.state.lock().queue().last_ticket(), names.clone()));
    };
    note(&names);
    for n in 0..FILES {
        if stop.load(Ordering::Acquire) {
            break;
        }
        let [first, last, made] = ["n", "r", "m"].map(|letter| format!("{letter}{n}"));
        volume.mknod(Ino::ROOT, name(&made), &new).await.unwrap();
        names.insert(made);
        note(&names);
        sleep(disk, Duration::from_nanos(SLOW / 20)).await;
        let to = (Ino::ROOT, name(&last));
        volume.rename(Ino::ROOT, name(&first), to.0, to.1, RenameFlags::empty()).await.unwrap();
        names.remove(&first);
        names.insert(last);
        note(&names);
        sleep(disk, Duration::from_nanos(SLOW / 20)).await;
    }
    all
}

/// A checkpoint with slow writes while files are made and renamed. Returns whether the tree has the
/// names up to its mark.
fn tree_ends_at_mark(plant: Option<Planted>) -> bool {
    let setup = Setup { inode_cache_bytes: 8 << 20, ..setup(0) };
    let disk = setup.blank();
    let (all, upto, in_tree, cuts) = disk.world().run(async {
        let (device, world): (DeviceRef, WorldRef) = (Arc::new(disk.clone()), disk.world().clone());
        let options = OpenOptions { plant: Plant(plant), ..setup.options(&world) };
        let volume = Volume::open(&device, &world, &options).await.unwrap();
        let new = NewInode::of(FileKind::File, 0o644);
        for n in 0..FILES {
            volume.mknod(Ino::ROOT, name(&format!("n{n}")), &new).await.unwrap();
        }
        volume.checkpoint().await.unwrap();
        disk.inject(slow_writes());
        let (stop, mut all) = (AtomicBool::new(false), Vec::new());
        let mut tasks: Vec<BoxFuture<'_, Vec<(u64, Names)>>> = Vec::new();
        tasks.push(Box::pin(rename_files(&volume, &disk, &stop)));
        tasks.push(Box::pin(async {
            sleep(&disk, Duration::from_nanos(SLOW)).await;
            volume.0.checkpoints.make(How::Log).await.unwrap();
            stop.store(true, Ordering::Release);
            Vec::new()
        }));
        join_all(tasks).await.into_iter().for_each(|part| all.extend(part));
        let mark = volume.0.log.ctl.lock().cut.expect("its mark is durable").0;
        let upto = all.partition_point(|(ticket, _)| *ticket < mark);
        let (in_tree, first) = (names_in_tree(&volume).await, disk.cut_now());
        volume.0.commit_queue().await.unwrap();
        (all, upto, in_tree, [first, disk.cut_now()])
    });
    disk.world().stop();
    assert!(upto > 10 && all.len() > upto + 10, "records on both sides: {upto}, {}", all.len());
    if plant.is_none() {
        // The log of the checkpoint begins behind its mark.
        let found = names_after_power_loss(&setup, &cuts[0]);
        assert!(all[upto - 1..].iter().any(|(_, names)| *names == found), "H11: {found:?}");
        let found = names_after_power_loss(&setup, &cuts[1]);
        assert_eq!(found, all[all.len() - 1].1, "H11: no record is missing between the two");
    }
    in_tree == all[upto - 1].1
}

/// checkpoint.H11: a checkpoint has exactly the records up to its mark, although records are made
/// in each of its steps. The log behind the mark has the others. An injected fault, half of a
/// rename, shows that the test would notice a violation.
#[test]
fn h11_checkpoint_has_exactly_the_records_up_to_its_mark() {
    assert!(tree_ends_at_mark(None), "H11");
    assert!(!tree_ends_at_mark(Some(Planted::HalfRename)));
}

/// The write of both slots of a state: the disk if the power fails before it, and nothing is stored
/// that was not flushed; and the bytes of the slots.
struct SlotWrite {
    before: SimDisk,
    slots: Vec<(u64, Vec<u8>)>,
    /// What the file has if these slots count.
    fill: u8,
}

/// Runs `work` and records its slots.
async fn slots_of(disk: &SimDisk, fill: u8, work: impl Future) -> Vec<SlotWrite> {
    let is_write = |entry: &LogEntry| entry.op != BioOp::Read;
    let before = disk.log().iter().filter(|entry| is_write(entry)).count();
    disk.record_cuts();
    work.await;
    let log: Vec<LogEntry> = disk.log().into_iter().filter(is_write).skip(before).collect();
    let cuts = disk.take_cuts();
    assert_eq!(cuts.len(), log.len(), "a moment for each request");
    let offsets = slot_offsets(disk.config().size);
    let slots: Vec<usize> = (0..log.len()).filter(|n| offsets.contains(&log[*n].offset)).collect();
    let slots = slots.into_iter().filter(|n| log[*n].op == BioOp::Write).collect::<Vec<_>>();
    let pair = |pair: &[usize]| SlotWrite {
        before: cuts[pair[0]].state(&[]).mount(SimWorld::new(3)),
        // No later state of the same work takes these slots.
        slots: pair
            .iter()
            .map(|n| log[*n].offset)
            .map(|at| (at, disk.peek(at, SLOT_BYTES)))
            .collect(),
        fill,
    };
    slots.chunks(2).map(pair).collect()
}

/// checkpoint.H12: if the power fails, each slot leads to nothing that is missing, although the
/// device loses everything that was not flushed before the slot was written. So it is for a
/// checkpoint during which other content is synced, and for the last one of a volume.
#[test]
fn h12_slot_is_written_when_what_it_names_is_flushed() {
    let setup = setup(0);
    let disk = setup.blank();
    let all = disk.world().run(async {
        let volume = open(&setup, &disk).await.unwrap();
        let (_, file) = create(&volume, "f").await.unwrap();
        let (_, other) = create(&volume, "other").await.unwrap();
        let mut all = Vec::new();
        for fill in 1..5 {
            write(&file, 0, &[fill; 16 * BLOCK]).await.unwrap();
            for n in 0..40 {
                create(&volume, &format!("f{fill}-{n}")).await.unwrap();
            }
            file.sync(true).await.unwrap();
            disk.inject(slow_writes());
            let mut tasks: Vec<BoxFuture<'_, ()>> = Vec::new();
            tasks.push(Box::pin(async { volume.0.checkpoints.make(How::Log).await.unwrap() }));
            tasks.push(Box::pin(async {
                for n in 0..8 {
                    write(&other, n * BLOCK as u64, &[fill; BLOCK]).await.unwrap();
                    other.sync(true).await.unwrap();
                }
            }));
            all.extend(slots_of(&disk, fill, join_all(tasks)).await);
            disk.heal();
        }
        write(&file, 0, &[9; 16 * BLOCK]).await.unwrap();
        drop((file, other));
        all.extend(slots_of(&disk, 9, async { volume.close().await.unwrap() }).await);
        all
    });
    disk.world().stop();
    assert!(all.len() >= 5, "{} states", all.len());
    for SlotWrite { before, slots, fill } in all {
        slots.iter().for_each(|(at, bytes)| before.poke(*at, bytes));
        let report = check(&before.in_world(SimWorld::new(4)));
        assert!(report.is_clean(), "H12: {fill}: {:?}", report.findings);
        before.world().run(async {
            let volume = open(&setup, &before).await.unwrap();
            let ino = volume.lookup(Ino::ROOT, name("f")).await.unwrap().ino;
            let file = volume.open(ino, OpenFlags::READ).await.unwrap();
            assert!(read(&file, 16 * BLOCK).await == [fill; 16 * BLOCK], "H12: {fill}");
        });
        before.world().stop();
    }
}

/// The bytes of the open log segment on the device.
fn log_segment(volume: &Volume) -> Range<u64> {
    let segment = volume.0.log.ctl.lock().head.segment.expect("it is open");
    let start = volume.0.layout.device_offset(Place::new(segment, 0));
    start..start + volume.0.layout.segment_bytes()
}

/// A checkpoint, and a sync of which the device fails a request of this kind, `after` the begin of
/// the checkpoint. Returns whether the request failed between the first node and the last slot, and
/// whether the checkpoint succeeded.
fn fail_during_checkpoint(op: BioOp, after: Duration) -> (bool, bool) {
    let setup = setup(0);
    let disk = setup.blank();
    let found = disk.world().run(async {
        let volume = open(&setup, &disk).await.unwrap();
        let (_, file) = create(&volume, "f").await.unwrap();
        for n in 0..40 {
            create(&volume, &format!("f{n}")).await.unwrap();
        }
        write(&file, 0, &[1; BLOCK]).await.unwrap();
        file.sync(true).await.unwrap();
        sleep(&disk, Duration::from_secs(1)).await;
        disk.clear_log();
        disk.inject(slow_writes());
        let (world, end) = (disk.world(), std::sync::Mutex::new((0, false)));
        let mut tasks: Vec<BoxFuture<'_, ()>> = Vec::new();
        tasks.push(Box::pin(async {
            let is_made = volume.0.checkpoints.make(How::Log).await.is_ok();
            *end.lock().unwrap() = (world.now(), is_made);
        }));
        tasks.push(Box::pin(async {
            sleep(&disk, after).await;
            write(&file, 0, &[2; BLOCK]).await.unwrap();
            disk.heal();
            let rule = FaultRule::on(op, Fault::Fail(ErrorKind::Io));
            disk.inject(if op == BioOp::Write { rule.within(log_segment(&volume)) } else { rule });
            disk.inject(slow_writes());
            drop(file.sync(true).await);
        }));
        join_all(tasks).await;
        let log = disk.log();
        disk.heal();
        let is_node = |entry: &&LogEntry| {
            let at = volume.0.layout.place_at(entry.offset).filter(|_| entry.op == BioOp::Write);
            let state = volume.0.state.lock();
            let segment = at.and_then(|at| state.space().segments().get(at.segment));
            segment.is_some_and(|segment| segment.stream == Stream::Tree)
        };
        let ((end, is_made), node) = (*end.lock().unwrap(), log.iter().find(is_node));
        let failed = log.iter().find(|entry| matches!(entry.fault, Some(Fault::Fail(_))));
        let failed = failed.and_then(|entry| entry.done).map(|(at, _)| at);
        let is_between = node.zip(failed).is_some_and(|(node, at)| node.at <= at && at < end);
        volume.checkpoint().await.unwrap();
        (is_between, is_made)
    });
    disk.world().stop();
    let report = check(&disk.power_cut(1).in_world(SimWorld::new(3)));
    assert!(report.is_clean(), "{op:?} {after:?}: {:?}", report.findings);
    found
}

/// checkpoint.H13: a checkpoint fails if a write of the log or a flush failed between its first
/// node and its last slot, whichever task made the request, although its own requests all worked.
#[test]
fn h13_failure_during_checkpoint_ends_it() {
    for op in [BioOp::Write, BioOp::Flush] {
        let (mut failed, mut made) = (0, 0);
        for n in 0..40 {
            let after = Duration::from_nanos(n * SLOW / 5);
            let (is_between, is_made) = fail_during_checkpoint(op, after);
            assert!(!is_between || !is_made, "H13: a {op:?} failed, {after:?} after its begin");
            failed += u32::from(is_between);
            made += u32::from(is_made);
        }
        assert!(failed > 5 && made > 0, "{op:?}: {failed} failed, {made} were made");
    }
}
