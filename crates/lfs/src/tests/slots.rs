//! Superblock slots to which a write fails, and which cannot be read later.
//!
//! No locks.

use crate::device::slots::read_newest;
use crate::format::superblock::{SLOT_BYTES, SLOTS, slot_offsets};
use crate::tests::faults::{failing, found};
use crate::tests::reuse::{create, open, setup, write};
use crate::tests::setup::Setup;
use crate::{OpenOptions, Volume};
use forebay_base::ErrorKind;
use forebay_base::world::WorldRef;
use forebay_block::{BioOp, DeviceRef};
use forebay_sim::{Fault, FaultRule, SimDisk};
use std::sync::Arc;

const HALF: u64 = SLOTS as u64 / 2;
const BLOCK: usize = 4096;

/// The slots of checkpoint `number`: one at the start, one at the end of the volume.
fn slots_of(number: u64) -> [u64; 2] {
    [number % HALF, HALF + number % HALF]
}

fn fail(disk: &SimDisk, rule: FaultRule, slot: u64) {
    let at = slot_offsets(disk.config().size)[slot as usize];
    disk.inject(rule.within(at..at + SLOT_BYTES as u64).sticky());
}

/// A write that fails and changes nothing: the slot keeps its older state.
fn untouched() -> FaultRule {
    FaultRule::on(BioOp::Write, Fault::Fail(ErrorKind::NoSpace))
}

fn device(disk: &SimDisk) -> DeviceRef {
    Arc::new(disk.clone())
}

/// A closed volume after `checkpoints` checkpoints, and the number of its next one.
fn closed(setup: &Setup, checkpoints: u64) -> (SimDisk, u64) {
    let disk = setup.blank();
    let next = disk.world().run(async {
        let volume = open(setup, &disk).await.unwrap();
        create(&volume, "before").await.unwrap();
        for _ in 0..checkpoints {
            volume.checkpoint().await.unwrap();
        }
        volume.close().await.unwrap();
        read_newest(&device(&disk)).await.unwrap().0.checkpoint + 1
    });
    disk.world().stop();
    (disk.power_cut(1), next)
}

/// The story: the write of a checkpoint to one slot failed, and the other slot could not be read
/// later. The opening took the checkpoint before that for the newest one, and did not find what had
/// been synced since. `state`: 0 is the checkpoint of the opening, 1 the next one, 2 that of the
/// close. slots.U14. A slot that the failed write has torn is lost as well, so then only reading
/// may be allowed (device.slots.R1).
#[test]
fn state_in_single_slot_is_found_after_that_slot_fails() {
    let states = || (0..3).flat_map(|state| [(state, false), (state, true)]);
    for (checkpoints, (state, tears)) in (0..4).flat_map(|n| states().map(move |state| (n, state)))
    {
        let setup = setup(0);
        let (disk, next) = closed(&setup, checkpoints);
        let (slots, half) = (slots_of(next + state), (checkpoints % 2) as usize);
        fail(&disk, if tears { failing(BioOp::Write) } else { untouched() }, slots[half]);
        disk.world().run(async {
            let volume = open(&setup, &disk).await.expect("the other slot takes it");
            let (_, file) = create(&volume, "f").await.unwrap();
            write(&file, 0, &[1; BLOCK]).await.unwrap();
            file.sync(true).await.unwrap();
            if state > 0 {
                volume.checkpoint().await.unwrap();
            }
            drop(file);
            if state > 1 {
                volume.close().await.unwrap();
            }
        });
        disk.world().stop();
        let disk = disk.power_cut(1);
        fail(&disk, failing(BioOp::Read), slots[1 - half]);
        let opened = disk.world().run(async { open(&setup, &disk).await.map(drop) });
        disk.world().stop();
        let case = format!("{checkpoints} checkpoints, half {half}, state {state}, {tears}");
        assert!(tears || opened.is_ok(), "{case}: one slot may be lost: {opened:?}");
        disk.heal();
        assert_eq!(found(&setup, &disk.power_cut(1), "f"), [1; BLOCK], "{case}");
    }
}

/// As in the test above, with two successive checkpoints: each is in one slot, and neither slot can
/// be read. This looks like two bad sectors in old slots, so only reading is allowed
/// (device.slots.R1).
#[test]
fn states_perhaps_in_two_unreadable_slots_open_for_reading_only() {
    for (checkpoints, half) in (0..4).flat_map(|n| [(n, 0), (n, 1)]) {
        let setup = setup(0);
        let (disk, next) = closed(&setup, checkpoints);
        let turns = [slots_of(next), slots_of(next + 1)];
        turns.iter().for_each(|slots| fail(&disk, untouched(), slots[half]));
        disk.world().run(async {
            let volume = open(&setup, &disk).await.expect("two slots have it");
            let (_, file) = create(&volume, "f").await.unwrap();
            write(&file, 0, &[1; BLOCK]).await.unwrap();
            file.sync(true).await.unwrap();
        });
        disk.world().stop();
        let disk = disk.power_cut(1);
        turns.iter().for_each(|slots| fail(&disk, failing(BioOp::Read), slots[1 - half]));
        let (opened, damage) = disk.world().run(async {
            let world: WorldRef = disk.world().clone();
            let options = OpenOptions { read_only: true, ..setup.options(&world) };
            let volume = Volume::open(&device(&disk), &world, &options).await.expect("for reading");
            (open(&setup, &disk).await.map(drop), volume.damage())
        });
        disk.world().stop();
        let error = opened.expect_err("newer states may be hidden");
        assert_eq!(damage.map(|damage| damage.to_string()), Some(error.to_string()));
        assert!(error.to_string().contains("of the superblock cannot be read"), "{error}");
        disk.heal();
        assert_eq!(found(&setup, &disk.power_cut(1), "f"), [1; BLOCK], "{checkpoints}, {half}");
    }
}

/// The checkpoint of an opening is in two slots before anything else is written.
#[test]
fn life_whose_state_only_one_slot_takes_does_not_begin() {
    let setup = setup(0);
    let (disk, next) = closed(&setup, 0);
    let bad = [slots_of(next)[1], slots_of(next + 1)[0], slots_of(next + 1)[1]];
    bad.iter().for_each(|slot| fail(&disk, untouched(), *slot));
    let opened = disk.world().run(async { open(&setup, &disk).await.map(drop) });
    disk.world().stop();
    let error = opened.expect_err("one slot is not enough");
    assert!(error.to_string().contains("only one slot"), "{error}");
    disk.heal();
    assert!(found(&setup, &disk.power_cut(1), "before").is_empty());
}
