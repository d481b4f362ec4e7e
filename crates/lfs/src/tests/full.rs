//! A full volume: accepted content is written and can be synced, removals and truncates work, their
//! space becomes free, and the volume can always be opened for writing.
//!
//! No locks.

use crate::checkpoint::How;
use crate::format::change::Change;
use crate::format::usage::Stream;
use crate::space::{Ask, Leave, Need};
use crate::tests::alloc::lab::run_concurrently;
use crate::tests::setup::Setup;
use crate::transaction::state::State;
use crate::volume::fsck::fsck;
use crate::{CreateOptions, OpenOptions, Volume};
use forebay_base::buf::AlignedBuf;
use forebay_base::sim_world::SimWorld;
use forebay_base::task::{BoxFuture, block_on};
use forebay_base::world::{RealWorld, WorldRef, split_mix};
use forebay_base::{ErrorKind, IoFlags, Result};
use forebay_block::{BioOp, DeviceRef, RamDevice};
use forebay_cache::{Config, PageCache};
use forebay_sim::{Fault, FaultRule, SimDisk};
use forebay_vfs::{
    FileKind, FileSystem, Ino, Name, NewInode, OpenFileRef, OpenFlags, Privileges, SetAttr,
    Timestamp,
};
use std::sync::Arc;

const BOTH: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);
const UNIT: u64 = 4096;

pub(super) fn setup(inline_max: u32) -> Setup {
    let (block_bytes, volume_bytes) = (4096, 4 << 20);
    Setup {
        block_bytes,
        volume_bytes,
        content: true,
        inline_max,
        inode_cache_bytes: 1 << 20,
        fua: false,
    }
}

pub(super) async fn open(setup: &Setup, disk: &SimDisk) -> Result<Volume> {
    let device: DeviceRef = Arc::new(disk.clone());
    let world: WorldRef = disk.world().clone();
    Volume::open(&device, &world, &setup.options(&world)).await
}

/// A file of this name, made if there is none.
pub(super) async fn file(volume: &Volume, name: &str) -> Result<OpenFileRef> {
    let name = Name::new(name.as_bytes())?;
    let new = NewInode::of(FileKind::File, 0o644);
    let (_, file) = volume.create(Ino::ROOT, name, &new, BOTH).await?;
    Ok(file)
}

/// Bytes that differ for each file and offset.
fn content(name: &str, offset: u64, len: u64) -> Vec<u8> {
    let seed =
        name.bytes().fold(7u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_01b3));
    let mut rng = seed ^ offset << 20;
    (0..len / 8).flat_map(|_| split_mix(&mut rng).to_le_bytes()).collect()
}

pub(super) async fn write(file: &OpenFileRef, name: &str, offset: u64, len: u64) -> Result<()> {
    let bytes: Vec<u8> =
        (0..len / UNIT).flat_map(|n| content(name, offset + n * UNIT, UNIT)).collect();
    let (none, keep) = (IoFlags::empty(), Privileges::Keep);
    let done = file.write(offset, AlignedBuf::copy_of(&bytes), none, keep).await.1;
    done.map(|wrote| assert_eq!(wrote.len as u64, len, "all or nothing"))
}

/// Verifies the size and the content of a file.
async fn verify(volume: &Volume, name: &str, size: u64) {
    let file = file(volume, name).await.unwrap();
    let found = volume.getattr(file.ino()).await.unwrap().size;
    assert_eq!(found, size, "{name}: what was refused has not made it longer");
    for at in (0..size).step_by(UNIT as usize) {
        let (buf, done) = file.read(at, AlignedBuf::new(UNIT as usize), IoFlags::empty()).await;
        assert_eq!(done.unwrap() as u64, UNIT, "{name} at {at}");
        assert!(buf[..] == content(name, at, UNIT)[..], "{name} at {at}");
    }
}

/// Writes files until one is refused; returns their names and sizes. What was accepted can always
/// be synced.
async fn fill(volume: Volume, writer: u64, mut rng: u64) -> Vec<(String, u64)> {
    let mut made = Vec::new();
    loop {
        let name = format!("w{writer}f{}", made.len());
        let Ok(file) = file(&volume, &name).await else { return made };
        let (mut size, mut full) = (0, false);
        while size < 40 * UNIT && !full {
            let len = (1 + split_mix(&mut rng) % 16) * UNIT;
            match write(&file, &name, size, len).await {
                Ok(()) => size += len,
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
                    full = true;
                }
            }
            if full || split_mix(&mut rng).is_multiple_of(4) {
                file.sync(split_mix(&mut rng).is_multiple_of(2)).await.expect("it was accepted");
            }
        }
        file.sync(false).await.expect("it was accepted");
        made.push((name, size));
        if full {
            return made;
        }
    }
}

/// Verifies and removes all these files; truncates some of them before.
async fn empty(volume: &Volume, made: &[(String, u64)]) {
    for (name, size) in made {
        verify(volume, name, *size).await;
    }
    for (n, (name, size)) in made.iter().enumerate() {
        if n % 8 == 0 {
            let file = file(volume, name).await.unwrap();
            // Within a block.
            let cut = volume.setattr(file.ino(), &SetAttr::size(size / 2 + 100)).await;
            cut.expect("cutting works on a full volume");
            file.sync(false).await.expect("and syncing");
        }
        volume.unlink(Ino::ROOT, Name::new(name.as_bytes()).unwrap()).await.expect("and removing");
    }
    volume.syncfs().await.expect("and syncing all");
}

pub(super) async fn available(volume: &Volume) -> u64 {
    volume.statfs().await.unwrap().blocks_available
}

/// The story: four writers filled a volume concurrently. The volume accepted from each one content
/// for the same free space, and the last writer got the error from its sync. admission.P21,
/// admission.P23, reserve.M14.
#[test]
fn four_writers_fill_a_volume_round_after_round() {
    for (seed, inline_max) in [(1, 0), (2, 64 << 10), (3, 64 << 10)] {
        let setup = setup(inline_max);
        let mut disk = setup.blank();
        let mut fitted = Vec::new();
        for life in 0..3u64 {
            disk.world().run(async {
                let volume = open(&setup, &disk).await.unwrap();
                let world: WorldRef = disk.world().clone();
                let before = available(&volume).await;
                for round in 0..4u64 {
                    let writer = |n: u64| -> BoxFuture<'static, _> {
                        Box::pin(fill(volume.clone(), n, seed << 32 | life << 16 | round << 8 | n))
                    };
                    let made =
                        run_concurrently(&world, (0..4).map(writer).collect()).await.concat();
                    let blocks = made.iter().map(|(_, size)| size / UNIT).sum::<u64>();
                    fitted.push(blocks);
                    assert!(blocks * 4 >= before * 3, "{fitted:?} of {before}");
                    empty(&volume, &made).await;
                    let after = available(&volume).await;
                    assert!(after + 24 >= before, "{after} of {before}, seed {seed}, {round}");
                }
                if life == 0 {
                    volume.close().await.unwrap();
                }
            });
            disk.world().stop();
            disk = disk.power_cut(seed).in_world(SimWorld::new(seed + life));
            let checked = disk.in_world(SimWorld::new(9));
            let world = checked.world().clone();
            let (device, asked): (DeviceRef, WorldRef) = (Arc::new(checked), world.clone());
            let report = world.run(fsck(&device, &asked, &mut |_| ()));
            world.stop();
            let report = report.unwrap();
            assert!(report.is_clean(), "{:?}", report.findings);
        }
    }
}

/// Four threads fill a volume in memory and empty it, for some rounds. admission.P21,
/// admission.P23, reserve.M14.
#[test]
fn four_threads_fill_a_volume_round_after_round() {
    let device: DeviceRef = Arc::new(RamDevice::new(16 << 20));
    let world: WorldRef = RealWorld::with_seed(1);
    let options = CreateOptions {
        segment_bytes: 256 << 10,
        ..CreateOptions::new([1; 16], [2; 16], Timestamp::new(1, 0))
    };
    block_on(Volume::create(&device, &world, &options)).unwrap();
    let config = Config { huge_pages: false, ..Config::with_budget(4 << 20) };
    let cache = Some(PageCache::new(config, world.clone()).unwrap());
    let options = OpenOptions { cache, noatime: true, ..OpenOptions::default() };
    let volume = block_on(Volume::open(&device, &world, &options)).unwrap();
    let before = block_on(available(&volume));
    for round in 0..6u64 {
        let made: Vec<(String, u64)> = std::thread::scope(|scope| {
            let writer = |n: u64| {
                let volume = volume.clone();
                scope.spawn(move || block_on(fill(volume, n, round << 8 | n)))
            };
            let threads: Vec<_> = (0..4).map(writer).collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        let blocks = made.iter().map(|(_, size)| size / UNIT).sum::<u64>();
        assert!(blocks * 4 >= before * 3, "{blocks} of {before}");
        block_on(empty(&volume, &made));
        let after = block_on(available(&volume));
        assert!(after * 100 >= before * 99, "{after} of {before}, round {round}");
    }
    block_on(volume.close()).unwrap();
    drop(volume);
    let volume = block_on(Volume::open(&device, &world, &options)).unwrap();
    let after = block_on(available(&volume));
    assert!(after + 64 >= before, "{after} of {before}, opened again");
    block_on(volume.close()).unwrap();
    let report = block_on(fsck(&device, &world, &mut |_| ())).unwrap();
    assert!(report.is_clean(), "{:?}", report.findings);
}

/// Fills a volume with content, and then with names until one is refused.
pub(super) async fn filled(volume: &Volume) -> Vec<(String, u64)> {
    let made = fill(volume.clone(), 0, 5).await;
    for n in 0.. {
        if file(volume, &long_name(n)).await.is_err() {
            break;
        }
    }
    made
}

fn long_name(n: u64) -> String {
    format!("an empty file with a long name, number {n}")
}

/// admission.P23. The story: a power loss, or a close, left a volume without a free segment. It
/// could not be opened for writing any more, and so not be emptied; nor if there was no space to
/// remove an orphan.
#[test]
fn full_volume_can_be_opened_and_emptied() {
    for (seed, close) in [(1, false), (2, true), (3, false)] {
        let setup = setup(0);
        let disk = setup.blank();
        let made = disk.world().run(async {
            let volume = open(&setup, &disk).await.unwrap();
            let open_one = file(&volume, "orphan").await.unwrap();
            write(&open_one, "orphan", 0, 8 * UNIT).await.unwrap();
            let mut made = filled(&volume).await;
            volume.unlink(Ino::ROOT, Name::new(b"orphan").unwrap()).await.unwrap();
            let open_one = (!close).then_some(open_one);
            volume.syncfs().await.unwrap();
            // All free segments but those for a checkpoint's nodes are taken, as needs that are
            // never refused may do. A checkpoint records that.
            {
                let mut state = volume.0.state.lock();
                let nodes = state.checkpoint_nodes(Default::default());
                while state.space().segments().free()
                    > state.space().nodes().room().segments_for(nodes)
                {
                    state.take_segment(Stream::Data).unwrap();
                }
            }
            volume.checkpoint().await.unwrap();
            if close {
                volume.close().await.unwrap();
            }
            std::mem::forget(open_one);
            made.retain(|(_, size)| *size > 0);
            made
        });
        disk.world().stop();
        let mut disk = disk.power_cut(seed).in_world(SimWorld::new(seed));
        for _ in 0..3 {
            // The volume is opened, and the power is lost before any work.
            disk.world().run(async { drop(open(&setup, &disk).await.expect("it opens")) });
            disk.world().stop();
            disk = disk.power_cut(seed).in_world(SimWorld::new(seed));
        }
        disk.world().run(async {
            let volume = open(&setup, &disk).await.expect("it opens");
            empty(&volume, &made).await;
            assert!(
                volume.0.state.lock().names().orphans().is_empty(),
                "it went when there was room"
            );
        });
        disk.world().stop();
    }
}

/// The story: names were accepted as long as the open log segment had space, though the next
/// checkpoint had no space for their nodes. Then no checkpoint was possible, and no removal.
/// space.P13, space.P24.
#[test]
fn p24_volume_full_of_names_has_nodes_to_remove_them() {
    let setup = setup(0);
    let disk = setup.blank();
    disk.world().run(async {
        let volume = open(&setup, &disk).await.unwrap();
        let before = available(&volume).await;
        let mut fitted = Vec::new();
        for round in 0..2 {
            let mut names = 0;
            while file(&volume, &long_name(names)).await.is_ok() {
                names += 1;
            }
            fitted.push(names);
            volume.checkpoint().await.expect("the nodes of a checkpoint have room");
            for n in 0..names {
                let name = long_name(n);
                let done = volume.unlink(Ino::ROOT, Name::new(name.as_bytes()).unwrap()).await;
                done.unwrap_or_else(|e| panic!("removing {n} of {names}: {e}"));
            }
            volume.syncfs().await.expect("and syncing all");
            for _ in 0..5 {
                volume.checkpoint().await.unwrap();
            }
            let after = available(&volume).await;
            assert!(after + 24 >= before, "{after} of {before}, round {round}, {fitted:?}");
        }
        println!("{fitted:?} names, {before} blocks");
        assert!(fitted[0] > 2000 && fitted.iter().all(|n| n * 10 >= fitted[0] * 9), "{fitted:?}");
    });
    disk.world().stop();
}

/// The story: a truncate within a block needs a block. On a full volume it was refused if the log
/// had taken a segment meanwhile, although the volume could have made space. admission.P23.
#[test]
fn p23_every_file_of_full_volume_truncates_within_block() {
    for inline_max in [0, 64 << 10] {
        let setup = setup(inline_max);
        let disk = setup.blank();
        disk.world().run(async {
            let volume = open(&setup, &disk).await.unwrap();
            let made = filled(&volume).await;
            for part in [3, 2] {
                for (name, size) in made.iter().filter(|(_, size)| *size > UNIT) {
                    let file = file(&volume, name).await.unwrap();
                    let cut = SetAttr::size(size / 4 * part - 100);
                    volume.setattr(file.ino(), &cut).await.expect("cutting works on a full volume");
                    file.sync(part == 3).await.expect("and syncing");
                }
            }
        });
        disk.world().stop();
    }
}

/// The story: a flush failed on a volume whose log space was granted completely. The records that
/// were not durable needed their grants once more and did not get them. Every sync failed from then
/// on, although the device worked again.
#[test]
fn failed_flush_on_full_volume_is_repaired() {
    let setup = setup(0);
    let disk = setup.blank();
    disk.world().run(async {
        let volume = open(&setup, &disk).await.unwrap();
        let made = filled(&volume).await;
        volume.unlink(Ino::ROOT, Name::new(made[0].0.as_bytes()).unwrap()).await.unwrap();
        {
            // All log space is granted.
            let mut state = volume.0.state.lock();
            while state.grant(&Ask::log(600, Default::default()), Need::Urgent).is_ok() {}
        }
        disk.inject(FaultRule::on(BioOp::Flush, Fault::Fail(ErrorKind::Io)));
        assert!(volume.syncfs().await.is_err(), "the flush failed");
        volume.syncfs().await.expect("and the next one does not");
    });
    disk.world().stop();
}

/// free.Z13. The story: the mark of a checkpoint found no log space beyond the grants, and without
/// a checkpoint no space became free.
#[test]
fn checkpoint_is_made_when_log_is_fully_granted() {
    let setup = setup(0);
    let disk = setup.blank();
    disk.world().run(async {
        let volume = open(&setup, &disk).await.unwrap();
        filled(&volume).await;
        {
            let mut state = volume.0.state.lock();
            while state.grant(&Ask::log(600, Default::default()), Need::Urgent).is_ok() {}
        }
        let before = volume.0.checkpoints.superblock().checkpoint;
        assert!(volume.0.requests.make_space().await);
        assert!(volume.0.checkpoints.superblock().checkpoint >= before + 2);
    });
    disk.world().stop();
}

/// space.P26. Failing checkpoints let the log move each time, until none could be made: it leaves
/// its segment only as long as the next checkpoint finds its nodes.
#[test]
fn p26_log_leaves_segments_for_nodes() {
    let setup = setup(0);
    let disk = setup.blank();
    disk.world().run(async {
        let volume = open(&setup, &disk).await.unwrap();
        filled(&volume).await;
        let mut leaves = 0;
        loop {
            let mut state = volume.0.state.lock();
            state.log_takes_content();
            if !state.log_leaves() {
                assert!(state.space().log_is_used(), "segments are free");
                assert!(!state.can_move_log(0, 0, Leave::Mark));
                assert!(state.can_move_log(1, 0, Leave::Mark));
                assert!(!state.can_move_log(1, 0, Leave::Failed), "one for a bad place");
                break;
            }
            let left = state.take_segment(Stream::Log).unwrap();
            state.seal_segment(left);
            leaves += 1;
        }
        assert!(leaves > 0);
        for _ in 0..2 {
            volume.0.checkpoints.make_and_free(How::Log).await.expect("it finds its nodes");
        }
        assert!(volume.0.state.lock().log_leaves(), "the segments that it left are free");
    });
    disk.world().stop();
}

/// The story: places that a dropped checkpoint had taken stayed taken until the volume was opened
/// again, and a close that was dropped half way left the volume closed.
#[test]
fn dropped_checkpoint_and_close_have_no_effect() {
    let setup = setup(0);
    let disk = setup.blank();
    disk.world().run(async {
        let volume = open(&setup, &disk).await.unwrap();
        let f = file(&volume, "f").await.unwrap();
        write(&f, "f", 0, 4 * UNIT).await.unwrap();
        volume.syncfs().await.unwrap();
        let slots = |volume: &Volume| volume.0.state.lock().space().nodes().used();
        volume.checkpoint().await.unwrap();
        volume.checkpoint().await.unwrap();
        let used = slots(&volume);
        for polls in 1..40 {
            let mut making = Box::pin(volume.close());
            let mut left = polls;
            std::future::poll_fn(|cx| {
                left -= 1;
                match making.as_mut().poll(cx) {
                    std::task::Poll::Pending if left > 0 => std::task::Poll::Pending,
                    _ => std::task::Poll::Ready(()),
                }
            })
            .await;
            drop(making);
            if volume.0.state.lock().life().is_closed() {
                break;
            }
            let name = format!("n{polls}");
            file(&volume, &name).await.expect("it is not closed");
            volume.unlink(Ino::ROOT, Name::new(name.as_bytes()).unwrap()).await.unwrap();
        }
        if volume.0.checkpoints.is_closing() {
            volume.close().await.expect("what is left of it works");
        }
        if !volume.0.state.lock().life().is_closed() {
            for _ in 0..3 {
                volume.checkpoint().await.unwrap();
            }
            assert!(slots(&volume) <= used + 4, "{} of {used}", slots(&volume));
        }
    });
    disk.world().stop();
}

/// The story: a volume whose blocks are smaller than those of the device cannot be written, but
/// recovery reported an I/O error.
#[test]
fn device_with_larger_blocks_is_refused() {
    let setup = Setup { block_bytes: 512, ..setup(0) };
    let disk = setup.blank();
    let bytes = disk.peek(0, setup.volume_bytes as usize);
    let world = SimWorld::new(1);
    let config = forebay_sim::SimConfig {
        size: setup.volume_bytes,
        sector: 4096,
        ..forebay_sim::SimConfig::default()
    };
    let larger = SimDisk::new(world.clone(), config);
    larger.poke(0, &bytes);
    let error = world.run(open(&setup, &larger)).err().expect("refused");
    world.stop();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("512"), "{error}");
}

/// The story: a client that wrote past the cache and never synced filled memory with the changes of
/// its records, up to the space of the complete volume. reserve.M15.
#[test]
fn direct_writes_wait_for_memory_of_their_changes() {
    let setup = setup(0);
    let disk = setup.blank();
    disk.world().run(async {
        let (device, world): (DeviceRef, WorldRef) = (Arc::new(disk.clone()), disk.world().clone());
        let options = OpenOptions { overlay_bytes: 16 << 10, ..setup.options(&world) };
        let volume = Volume::open(&device, &world, &options).await.unwrap();
        let file = file(&volume, "f").await.unwrap();
        write(&file, "f", 0, 128 * UNIT).await.unwrap();
        file.sync(true).await.unwrap();
        let mut most = 0;
        for n in 0..400u64 {
            // Each write becomes a separate piece of the overlay.
            let offset = n * 7 % 128 * UNIT;
            let bytes = AlignedBuf::copy_of(&content("f", offset, UNIT));
            file.write(offset, bytes, IoFlags::DIRECT, Privileges::Keep).await.1.unwrap();
            let state = volume.0.state.lock();
            most = most.max(state.map().tree_bytes() + state.names().items().bytes());
        }
        assert!((4 << 10..16 << 10).contains(&most), "{most} bytes");
        verify(&volume, "f", 128 * UNIT).await;
    });
    disk.world().stop();
}

/// The story: a change of an inode that does not exist was half applied, and its grant was never
/// returned (append.T11).
#[test]
fn t11_inapplicable_change_has_no_effect() {
    let setup = setup(0);
    let disk = setup.blank();
    disk.world().run(async {
        let volume = open(&setup, &disk).await.unwrap();
        let file = file(&volume, "f").await.unwrap();
        volume.syncfs().await.unwrap();
        let mut state = volume.0.state.lock();
        let counts = |state: &State| {
            let (space, names) = (state.space(), state.names());
            (space.ledger().log_bytes(), state.queue().len(), names.orphans().len())
        };
        let before = counts(&state);
        let changes = [Change::AddOrphan(file.ino().0), Change::AddOrphan(4711)];
        let error = state.append(&changes, Need::Urgent).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        assert_eq!(counts(&state), before);
    });
    disk.world().stop();
}

/// The story: content was accepted, and before it was written out a client that wrote past the
/// cache took its space (admission.P22), and the log space of its records (reserve.M12).
#[test]
fn p22_writes_past_the_cache_leave_space_of_accepted_content() {
    let setup = setup(0);
    let disk = setup.blank();
    disk.world().run(async {
        let volume = open(&setup, &disk).await.unwrap();
        let (dirty, direct) =
            (file(&volume, "d").await.unwrap(), file(&volume, "e").await.unwrap());
        volume.syncfs().await.unwrap();
        write(&dirty, "d", 0, 32 * UNIT).await.unwrap();
        let mut size = 0;
        let error = loop {
            let bytes = AlignedBuf::copy_of(&content("e", size, UNIT));
            match direct.write(size, bytes, IoFlags::DIRECT, Privileges::Keep).await.1 {
                Ok(_) => size += UNIT,
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
        dirty.sync(true).await.expect("it was accepted");
        assert!(volume.0.state.lock().space().reservations().is_empty());
        verify(&volume, "d", 32 * UNIT).await;
        verify(&volume, "e", size).await;
    });
    disk.world().stop();
}

/// Overwrites may use the space that is kept for truncates and removals. These still find space,
/// because overwritten space becomes free. admission.P23, space.P24, capacity.P25.
#[test]
fn p25_overwritten_full_volume_can_be_truncated_and_emptied() {
    for inline_max in [0, 64 << 10] {
        let setup = setup(inline_max);
        let disk = setup.blank();
        disk.world().run(async {
            let volume = open(&setup, &disk).await.unwrap();
            let mut made = filled(&volume).await;
            made.retain(|(_, size)| *size > 0);
            let mut rng = 7;
            for _ in 0..600 {
                let (name, size) = &made[split_mix(&mut rng) as usize % made.len()];
                let file = file(&volume, name).await.unwrap();
                let at = split_mix(&mut rng) % (size / UNIT) * UNIT;
                write(&file, name, at, UNIT).await.expect("it is overwritten");
                file.sync(true).await.expect("it was accepted");
            }
            empty(&volume, &made).await;
        });
        disk.world().stop();
    }
}
