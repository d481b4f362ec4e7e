//! A volume on a disk that loses writes, damages sectors, and runs full.
//!
//! No locks.

use crate::format::place::Place;
use crate::log::Log;
use crate::map::overlay::Where;
use crate::tests::reuse::check;
use crate::tests::setup::Setup;
use crate::volume::Volume;
use crate::volume::fsck::FindingKind;
use forebay_base::buf::AlignedBuf;
use forebay_base::sim_world::SimWorld;
use forebay_base::world::{World, WorldRef};
use forebay_base::{Error, ErrorKind, IoFlags, Result};
use forebay_block::{BioOp, DeviceRef};
use forebay_sim::{Fault, FaultRule, SimDisk};
use forebay_vfs::{
    Attr, FileKind, FileSystem, Ino, Name, NewInode, OpenFileRef, OpenFlags, Privileges, SetXattr,
    XattrName,
};
use std::sync::Arc;
use std::time::Duration;

const BOTH: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);

fn setup() -> Setup {
    Setup {
        block_bytes: 4096,
        volume_bytes: 2 << 20,
        content: true,
        inode_cache_bytes: 3000,
        inline_max: 64 << 10,
        fua: true,
    }
}

async fn open(setup: &Setup, disk: &SimDisk) -> Result<Volume> {
    let device: DeviceRef = Arc::new(disk.clone());
    let world: WorldRef = disk.world().clone();
    Volume::open(&device, &world, &setup.options(&world)).await
}

async fn create(volume: &Volume, name: &str) -> Result<(Attr, OpenFileRef)> {
    let name = Name::new(name.as_bytes())?;
    let new = NewInode::of(FileKind::File, 0o644);
    volume.create(Ino::ROOT, name, &new, BOTH).await
}

async fn write(file: &OpenFileRef, offset: u64, bytes: &[u8]) -> Result<usize> {
    let (none, keep) = (IoFlags::empty(), Privileges::Keep);
    file.write(offset, AlignedBuf::copy_of(bytes), none, keep).await.1.map(|done| done.len)
}

async fn read(volume: &Volume, name: &str) -> Result<Vec<u8>> {
    let ino = volume.lookup(Ino::ROOT, Name::new(name.as_bytes())?).await?;
    let file = volume.open(ino.ino, OpenFlags::READ).await?;
    let (buf, len) = file.read(0, AlignedBuf::new(ino.size as usize), IoFlags::empty()).await;
    Ok(buf[..len?].to_vec())
}

/// Where the first block of a file is.
async fn place_of(volume: &Volume, ino: Ino) -> Option<Place> {
    let data_id = volume.0.state.lock().names().node(ino.0).unwrap().inode.data_id;
    match volume.0.piece_at(data_id, 0).await.ok()?.0.at {
        Where::Run(place) => Some(place),
        _ => None,
    }
}

/// A flush fails, and the device loses a written block: its file cannot be synced until the block
/// is written anew, all others can.
#[test]
fn lost_content_is_an_error_of_its_file_alone() {
    let setup = Setup { inline_max: 0, ..setup() };
    let disk = setup.blank();
    disk.world().run(async {
        let volume = open(&setup, &disk).await.unwrap();
        let (lost, first) = create(&volume, "lost").await.unwrap();
        let (_, second) = create(&volume, "kept").await.unwrap();
        write(&first, 0, &[1; 4096]).await.unwrap();
        volume.syncfs().await.unwrap();
        write(&first, 0, &[2; 4096]).await.unwrap();
        write(&second, 0, &[3; 4096]).await.unwrap();
        let content = volume.0.files.content("test", lost.ino).unwrap();
        content.file.write_out().await.unwrap();
        let at = volume.0.layout.device_offset(place_of(&volume, lost.ino).await.unwrap());
        disk.poke(at, &[9; 4096]);
        disk.inject(FaultRule::on(BioOp::Flush, Fault::Fail(ErrorKind::Io)));
        assert!(first.sync(true).await.is_err(), "the flush failed");
        second.sync(true).await.unwrap();
        // The cache still has the block and writes it elsewhere. Unreported failures come first.
        let mut again = first.sync(true).await;
        for _ in 0..2 {
            again = if again.is_err() { first.sync(true).await } else { again };
        }
        again.expect("all that was accepted is durable");
        let kept = open(&setup, &disk.power_cut(1)).await.unwrap();
        assert_eq!(read(&kept, "kept").await.unwrap(), [3; 4096]);
        assert_eq!(read(&kept, "lost").await.unwrap(), [2; 4096]);
    });
    disk.world().stop();
}

/// The story: the record of a truncate was durable, and the block of the new end was not. After the
/// power loss the file grew, and the truncated bytes were there again where zeros belong.
#[test]
fn truncated_bytes_stay_zero_when_file_grows_after_power_loss() {
    let setup = Setup { inline_max: 0, ..setup() };
    for seed in 1..4 {
        let disk = setup.blank();
        disk.world().run(async {
            let volume = open(&setup, &disk).await.unwrap();
            let (cut, file) = create(&volume, "cut").await.unwrap();
            let (_, other) = create(&volume, "other").await.unwrap();
            write(&file, 0, &[1; 3 * 4096]).await.unwrap();
            volume.syncfs().await.unwrap();
            volume.0.files.content("test", cut.ino).unwrap().file.set_len(100).await.unwrap();
            other.sync(true).await.unwrap();
            let disk = disk.power_cut(seed);
            let again = open(&setup, &disk).await.unwrap();
            assert_eq!(read(&again, "cut").await.unwrap(), [1; 100]);
            let mut want = vec![1; 100];
            want.resize(3 * 4096 - 5, 0);
            let content = again.0.files.content("test", cut.ino).unwrap();
            content.file.set_len(want.len() as u64).await.unwrap();
            assert!(read(&again, "cut").await.unwrap() == want);
            again.syncfs().await.unwrap();
            let last = open(&setup, &disk.power_cut(seed)).await.unwrap();
            assert!(read(&last, "cut").await.unwrap() == want, "after another power loss");
        });
        disk.world().stop();
    }
}

/// rollforward.R12: a record that a later one calls durable is not taken for the end of the log,
/// wherever it is damaged.
#[test]
fn r12_damage_below_the_durable_part_is_not_the_end() {
    let setup = Setup { content: false, ..setup() };
    let disk = setup.blank();
    let (from, to, layout) = disk.world().run(async {
        let volume = open(&setup, &disk).await.unwrap();
        create(&volume, "one").await.unwrap();
        volume.syncfs().await.unwrap();
        let from = head(&volume.0.log);
        create(&volume, "two").await.unwrap();
        volume.syncfs().await.unwrap();
        let to = head(&volume.0.log);
        // When the log is idle, its mark says that the last group is durable.
        disk.world().sleep(Duration::from_millis(50)).await;
        (from, to, volume.0.layout)
    });
    disk.world().stop();
    assert!(from.segment == to.segment && from.offset < to.offset, "{from:?}..{to:?}");
    for offset in (from.offset..to.offset).step_by(512) {
        let disk = disk.in_world(SimWorld::new(2));
        let at = layout.device_offset(Place::new(from.segment, offset));
        let mut sector = disk.peek(at, 512);
        sector[7] ^= 1;
        disk.poke(at, &sector);
        let error: Error = disk.world().run(open(&setup, &disk)).err().expect("damaged");
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        assert!(error.to_string().contains("log record"), "{error}");
        let named = error.range().expect("the place is named");
        assert!(named.0 <= at && at < layout.device_offset(to), "{named:?}, not {at}");
        let report = check(&disk.in_world(SimWorld::new(3)));
        let found = report.findings.iter().any(|finding| finding.kind == FindingKind::Log);
        assert!(found, "{report:?}");
    }
}

fn head(log: &Log) -> Place {
    let head = log.ctl.lock().head;
    Place::new(head.segment.expect("something was written"), head.offset)
}

/// Without a mark behind it, a damaged group may be the torn end that a power loss leaves.
#[test]
fn damage_behind_the_durable_part_is_the_end() {
    let setup = Setup { content: false, ..setup() };
    let disk = setup.blank();
    let end = disk.world().run(async {
        let volume = open(&setup, &disk).await.unwrap();
        create(&volume, "one").await.unwrap();
        volume.syncfs().await.unwrap();
        volume.0.layout.device_offset(head(&volume.0.log))
    });
    disk.world().stop();
    disk.poke(end - 512, &[0; 512]);
    let volume = disk.world().run(open(&setup, &disk)).unwrap();
    let one = disk.world().run(volume.lookup(Ino::ROOT, Name::new(b"one").unwrap()));
    assert_eq!(one.unwrap_err().kind(), ErrorKind::NotFound);
}

/// Names and content until nothing fits: the volume refuses more with `NoSpace`. All synced files
/// are there, before and after a power loss, and removals and syncs work.
#[test]
fn full_volumes_refuse_and_keep_what_was_synced() {
    for inline_max in [0, 64 << 10] {
        let setup = Setup { inline_max, volume_bytes: 1 << 20, ..setup() };
        let disk = setup.blank();
        disk.world().run(async {
            let volume = open(&setup, &disk).await.unwrap();
            let mut synced = Vec::new();
            let refused = fill(&volume, &mut synced).await;
            assert_eq!(refused.kind(), ErrorKind::NoSpace, "{refused}");
            assert!(synced.len() > 10, "{} files fitted", synced.len());
            volume.syncfs().await.expect("what was accepted has room");
            // While this test has the cleaner's turn, no pass holds a grant. A checkpoint in
            // progress, which holds one for its mark, ends before these two.
            let turn = volume.0.cleaning.take_turn().await;
            for _ in 0..2 {
                volume.checkpoint().await.unwrap();
            }
            {
                let state = volume.0.state.lock();
                assert_eq!(state.space().ledger().log_bytes(), 0, "K12: grants are settled");
                assert!(state.space().reservations().is_empty(), "M12: reservations have gone");
            }
            drop(turn);
            let first = format!("f{}", synced[0]);
            volume.unlink(Ino::ROOT, Name::new(first.as_bytes()).unwrap()).await.unwrap();
            volume.syncfs().await.unwrap();
            let again = open(&setup, &disk.power_cut(3)).await.unwrap();
            for volume in [&volume, &again] {
                for n in &synced[1..] {
                    let bytes = read(volume, &format!("f{n}")).await.unwrap();
                    assert_eq!(bytes, [*n as u8; 5000], "f{n}");
                }
                let gone = read(volume, &first).await.unwrap_err();
                assert_eq!(gone.kind(), ErrorKind::NotFound);
            }
        });
        disk.world().stop();
    }
}

/// Files of 5000 bytes, each synced, until something is refused.
async fn fill(volume: &Volume, synced: &mut Vec<u32>) -> Error {
    for n in 0.. {
        let (_, file) = match create(volume, &format!("f{n}")).await {
            Ok(made) => made,
            Err(error) => return error,
        };
        if let Err(error) = write(&file, 0, &[n as u8; 5000]).await {
            return error;
        }
        if let Err(error) = file.sync(n % 2 == 0).await {
            panic!("f{n}: accepted, and then {error}");
        }
        synced.push(n);
    }
    unreachable!("a disk of a MiB takes no end of files")
}

/// slots.U11 and slots.U12: any one slot may be lost, but not all of them.
#[test]
fn u11_u12_one_slot_may_be_lost() {
    let setup = Setup { content: false, ..setup() };
    let blank = setup.blank();
    let offsets = crate::format::superblock::slot_offsets(blank.config().size);
    for offset in offsets {
        let disk = blank.in_world(SimWorld::new(1));
        disk.poke(offset, &[0xff; 4096]);
        disk.world().run(open(&setup, &disk)).unwrap();
    }
    offsets.iter().for_each(|offset| blank.poke(*offset, &[0; 4096]));
    let error = blank.world().run(open(&setup, &blank)).err().expect("no slot is left");
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
}

/// append.T11: a change that is too long for a record has no effect.
#[test]
fn t11_too_long_for_a_record_changes_nothing() {
    let setup = Setup { content: false, ..setup() };
    let disk = setup.blank();
    disk.world().run(async {
        let volume = open(&setup, &disk).await.unwrap();
        let before = volume.digest().await.unwrap();
        let name = XattrName::new(b"user.long").unwrap();
        let set = volume.setxattr(Ino::ROOT, name, &[1; 60_000], SetXattr::Any).await;
        assert_eq!(set.unwrap_err().kind(), ErrorKind::NoSpace);
        assert_eq!(volume.digest().await.unwrap(), before);
        volume.setxattr(Ino::ROOT, name, &[1; 9000], SetXattr::Any).await.unwrap();
        assert_ne!(volume.digest().await.unwrap(), before);
    });
}
