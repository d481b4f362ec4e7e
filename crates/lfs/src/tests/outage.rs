//! A nearly full volume on a device that fails many writes for a minute: it works at once when the
//! device does.
//!
//! No locks.

use super::full::{available, file, filled, open, setup, write};
use crate::Volume;
use crate::tests::reuse::check;
use crate::tests::setup::Setup;
use crate::volume::fsck::FindingKind;
use forebay_base::sim_world::SimWorld;
use forebay_base::world::{World, split_mix};
use forebay_base::{ErrorKind, Result};
use forebay_block::BioOp;
use forebay_sim::{Fault, FaultRule, SimDisk};
use forebay_vfs::{Cookie, FileSystem, Ino, Name, SetAttr};
use std::time::Duration;

const UNIT: u64 = 4096;
const MINUTE: Duration = Duration::from_secs(60);

/// Files by name, with their sizes.
type Made = Vec<(String, u64)>;

pub(super) async fn unlink(volume: &Volume, name: &str) -> Result<()> {
    volume.unlink(Ino::ROOT, Name::new(name.as_bytes())?).await
}

/// Overwrites, grows, makes, removes and syncs at random, and accepts each refusal. Returns the
/// number of refused steps.
async fn disturb(volume: &Volume, made: &[(String, u64)], mut rng: u64) -> u32 {
    let mut pick = |n: u64| split_mix(&mut rng) % n;
    let mut refused = 0;
    for n in 0..64 {
        let (name, size) = &made[pick(made.len() as u64) as usize];
        let done = match pick(8) {
            0..4 => match file(volume, name).await {
                Ok(file) => write(&file, name, pick(size / UNIT) * UNIT, UNIT).await,
                Err(error) => Err(error),
            },
            4 => file(volume, &format!("new{n}")).await.map(drop),
            5 => unlink(volume, &format!("new{}", pick(64))).await,
            6 => match file(volume, name).await {
                Ok(file) => file.sync(false).await,
                Err(error) => Err(error),
            },
            _ => volume.syncfs().await,
        };
        refused += u32::from(done.is_err());
    }
    refused
}

/// Removals, truncates and syncs work.
pub(super) async fn works(volume: &Volume, made: &[(String, u64)]) {
    assert!(volume.stopped().is_none(), "{:?}", volume.stopped());
    unlink(volume, &made[0].0).await.expect("a removal");
    let last = Name::new(made.last().unwrap().0.as_bytes()).unwrap();
    let last = volume.lookup(Ino::ROOT, last).await.unwrap();
    volume.setattr(last.ino, &SetAttr::size(100)).await.expect("a truncate");
    // One may report what was lost before.
    let _report = volume.syncfs().await;
    volume.syncfs().await.expect("a sync");
}

/// Removals, truncates and syncs work, the space comes back, and the volume closes. `empty`: the
/// blocks that were available when the volume was new.
pub(super) async fn heals(volume: &Volume, made: &[(String, u64)], empty: u64) {
    works(volume, made).await;
    let left = emptied(volume).await;
    assert!(left * 1000 >= empty * 999, "{left} of {empty} blocks came back");
    volume.close().await.unwrap();
}

/// Removes everything; returns the blocks that are available then.
pub(super) async fn emptied(volume: &Volume) -> u64 {
    loop {
        let entries = volume.readdir(Ino::ROOT, Cookie::START, 1000).await.unwrap();
        if entries.is_empty() {
            break;
        }
        for entry in entries {
            volume.unlink(Ino::ROOT, Name::new(&entry.name).unwrap()).await.unwrap();
        }
    }
    for _ in 0..2 {
        volume.checkpoint().await.unwrap();
    }
    available(volume).await
}

/// Fsck finds nothing but slots of a checkpoint that was not completed.
fn check_after_power_loss(disk: &SimDisk) {
    let report = check(&disk.in_world(SimWorld::new(6)));
    let worst = report.findings.iter().find(|finding| finding.kind != FindingKind::Slot);
    assert!(worst.is_none(), "{worst:?}");
}

/// The volume after a power loss: an opening for writing works, and finds all space.
pub(super) fn after_power_loss(setup: &Setup, disk: &SimDisk, made: &[(String, u64)], empty: u64) {
    let disk = disk.in_world(SimWorld::new(5));
    check_after_power_loss(&disk);
    disk.world().run(async {
        let volume = open(setup, &disk).await.expect("it opens for writing");
        heals(&volume, made, empty).await;
    });
    disk.world().stop();
    assert!(check(&disk).is_clean());
}

/// A volume that is nearly full after the outage of its device, and how it ended.
pub(super) async fn disturbed(disk: &SimDisk, volume: &Volume, rule: FaultRule, seed: u64) -> Made {
    let mut made = filled(volume).await;
    unlink(volume, &made[0].0).await.unwrap();
    volume.syncfs().await.unwrap();
    made.remove(0);
    let world = disk.world();
    disk.inject(rule);
    let (start, mut refused) = (world.now(), 0);
    while world.now() - start < MINUTE.as_nanos() as u64 {
        refused += disturb(volume, &made, seed ^ world.now()).await;
        world.sleep(Duration::from_secs(1)).await;
    }
    assert!(refused > 100, "{refused} steps failed: nothing is tested");
    made
}

/// The device works again: removals, truncates and syncs work at once, and the space comes back;
/// the same after a power loss in the outage.
pub(super) fn outage(setup: &Setup, seed: u64, rule: FaultRule) {
    let disk = setup.blank();
    let (cut, made, empty, left) = disk.world().run(async {
        let volume = open(setup, &disk).await.unwrap();
        let empty = available(&volume).await;
        let made = disturbed(&disk, &volume, rule, seed).await;
        let cut = disk.power_cut(seed);
        disk.heal();
        works(&volume, &made).await;
        let left = emptied(&volume).await;
        volume.close().await.unwrap();
        (cut, made, empty, left)
    });
    disk.world().stop();
    assert!(check(&disk.in_world(SimWorld::new(2))).is_clean());
    assert!(left * 1000 >= empty * 999, "{left} of {empty} blocks came back");
    let disk = disk.in_world(SimWorld::new(3));
    let again = disk.world().run(async {
        let volume = open(setup, &disk).await.unwrap();
        let again = available(&volume).await;
        file(&volume, "last").await.unwrap().sync(false).await.unwrap();
        volume.close().await.unwrap();
        again
    });
    disk.world().stop();
    assert!(again * 1000 >= empty * 999, "{again} of {empty} blocks after an opening");
    after_power_loss(setup, &cut, &made, empty);
}

pub(super) fn failing_writes() -> FaultRule {
    FaultRule::on(BioOp::Write, Fault::Fail(ErrorKind::Io)).sticky()
}

pub(super) fn failing_flushes() -> FaultRule {
    FaultRule::on(BioOp::Flush, Fault::Fail(ErrorKind::Io)).sticky()
}

/// The story: the log moved to another segment after each failed write, until no segment was free
/// for a checkpoint. Removals, syncs, and an opening for writing were refused for good.
#[test]
fn nearly_full_volume_works_at_once_after_failing_writes() {
    for seed in 0..4 {
        let setup = Setup { fua: seed % 2 == 1, ..setup(0) };
        outage(&setup, seed, failing_writes().every(5));
    }
}

/// As above, if each second write fails, or some at random.
#[test]
fn nearly_full_volume_works_at_once_after_many_failing_writes() {
    for (seed, rule) in
        [failing_writes().every(2), failing_writes().one_in(3)].into_iter().enumerate()
    {
        let setup = Setup { fua: seed % 2 == 1, ..setup(0) };
        outage(&setup, seed as u64, rule);
    }
}

/// As above, if all writes fail.
#[test]
fn nearly_full_volume_works_at_once_after_minute_without_writes() {
    for seed in 0..2 {
        let setup = Setup { fua: seed % 2 == 1, ..setup(0) };
        outage(&setup, seed, failing_writes());
    }
}
