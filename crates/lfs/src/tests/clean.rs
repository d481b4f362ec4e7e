//! The cleaner: nearly full volumes continue to work, moved content is unchanged, and damaged
//! content stays recognisable as damaged.
//!
//! No locks.

use crate::fault::{Plant, Planted};
use crate::map::overlay::Where;
use crate::space::Need;
use crate::space::segment::Phase;
use crate::tests::reuse::{check, create, open, read, setup, write};
use crate::tests::setup::Setup;
use crate::{OpenOptions, Volume};
use forebay_base::sim_world::SimWorld;
use forebay_base::world::{World, WorldRef, split_mix};
use forebay_base::{Error, ErrorKind};
use forebay_block::{BioOp, DeviceRef};
use forebay_sim::{Fault, FaultRule, SimDisk};
use forebay_vfs::{FileSystem, Ino, Name, OpenFileRef, OpenFlags};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

const BLOCK: u64 = 4096;

/// A file of `bytes` bytes, each block filled with one byte value; written and synced 16 blocks at
/// a time.
async fn filled(volume: &Volume, bytes: u64) -> (OpenFileRef, Vec<u8>) {
    let (_, file) = create(volume, "f").await.unwrap();
    let mut model = vec![0u8; bytes as usize];
    for (n, block) in model.chunks_mut(BLOCK as usize).enumerate() {
        block.fill(1 + (n % 250) as u8);
    }
    for (n, part) in model.chunks(16 * BLOCK as usize).enumerate() {
        write(&file, n as u64 * 16 * BLOCK, part).await.unwrap();
        file.sync(true).await.unwrap();
    }
    (file, model)
}

pub async fn found(volume: &Volume, len: usize) -> Result<Vec<u8>, Error> {
    let ino = volume.lookup(Ino::ROOT, Name::new(b"f").unwrap()).await?.ino;
    let file = volume.open(ino, OpenFlags::READ).await?;
    Ok(read(&file, len).await)
}

/// The state of all segments, for the message of a failed test.
pub fn shown(volume: &Volume) -> String {
    let state = volume.0.state.lock();
    let one = |(n, s): (u32, &crate::space::segment::Segment)| {
        let (live, held, settled) = (s.live_bytes, s.held_bytes, s.is_settled());
        format!("{n}: {:?} {:?} live {live} held {held} settled {settled}", s.phase, s.stream)
    };
    let all: Vec<String> = state.space().segments().iter().map(one).collect();
    let (free, room) = (state.space().segments().free(), state.data_room(Need::New));
    let stats = volume.clean_stats();
    format!(
        "free {free}, room {room}, for the cleaner {}, {stats:?}\n{}",
        state.clean_segments(),
        all.join("\n")
    )
}

/// Overwrites `rounds` random blocks, and syncs after every fifth.
async fn overwrite(volume: &Volume, file: &OpenFileRef, model: &mut [u8], rounds: u64, seed: u64) {
    let (blocks, mut rng) = (model.len() as u64 / BLOCK, seed);
    for round in 0..rounds {
        let at = split_mix(&mut rng) % blocks * BLOCK;
        let fill = split_mix(&mut rng) as u8;
        let done = write(file, at, &[fill; BLOCK as usize]).await;
        done.unwrap_or_else(|e| panic!("round {round}, seed {seed}: {e}\n{}", shown(volume)));
        model[at as usize..(at + BLOCK) as usize].fill(fill);
        if round % 5 == 0 {
            let done = file.sync(true).await;
            done.unwrap_or_else(|e| panic!("sync of round {round}, seed {seed}: {e}"));
        }
    }
}

/// The story: a volume of which a third was dead had no space for good, because each segment had a
/// live block. Content in runs, and content in records: clean.C45, clean.C46.
#[test]
fn nearly_full_volume_is_overwritten_without_end() {
    for (inline_max, percent) in [(0, 60), (64 << 10, 60)] {
        let setup = setup(inline_max);
        let disk = setup.blank();
        let mut model = Vec::new();
        disk.world().run(async {
            let volume = open(&setup, &disk).await.unwrap();
            let room = volume.statfs().await.unwrap().blocks_available * BLOCK;
            let (file, all) = filled(&volume, room * percent / 100 / BLOCK * BLOCK).await;
            model = all;
            overwrite(&volume, &file, &mut model, 1500, u64::from(inline_max)).await;
            volume.syncfs().await.unwrap();
            let stats = volume.clean_stats();
            println!("{inline_max}, {percent} %: of {room} {} {stats:?}", model.len());
            assert!(
                stats.segments > 10 && stats.moved_bytes > 0 && stats.bad_blocks == 0,
                "{stats:?}"
            );
        });
        disk.world().stop();
        let disk = disk.power_cut(1).in_world(SimWorld::new(2));
        let report = check(&disk.in_world(SimWorld::new(3)));
        assert!(report.is_clean(), "{:?}", report.findings);
        let bytes = disk.world().run(async {
            let volume = open(&setup, &disk).await.unwrap();
            found(&volume, model.len()).await.unwrap()
        });
        assert!(bytes == model, "what was synced is there");
        disk.world().stop();
    }
}

/// The story: content that the cleaner had moved kept its birth, so a segment that it had just
/// filled passed for an old one. It was emptied again when it was 80 % live, although others were
/// half dead.
#[test]
fn segment_that_cleaner_has_filled_is_not_old() {
    let setup = setup(0);
    let disk = setup.blank();
    disk.world().run(async {
        let (volume, ..) = sparse(&setup, &disk, None).await;
        let youngest = || {
            let state = volume.0.state.lock();
            let now = state.counters().next_sequence();
            let used = state.space().segments().iter().filter(|(_, s)| s.phase != Phase::Free);
            used.map(|(_, segment)| segment.age(now)).min().unwrap()
        };
        assert!(youngest() > 0, "all content was written before");
        assert!(volume.clean().await.unwrap());
        assert_eq!(youngest(), 0, "what it has moved is there since now");
    });
    disk.world().stop();
}

/// The story: a checkpoint during a copy made the cleaner copy the same content again. With
/// frequent checkpoints the cleaner used up its space that way.
#[test]
fn m31_copied_content_is_not_copied_again() {
    let mut met = 0;
    for delay in 0..40u64 {
        let setup = setup(0);
        let disk = setup.blank();
        disk.world().run(async {
            let (volume, _file, model) = sparse(&setup, &disk, None).await;
            let (_, other) = create(&volume, "g").await.unwrap();
            let handle = volume.clone();
            let task = async move {
                for n in 0..3u8 {
                    write(&other, 0, &[n; BLOCK as usize]).await.unwrap();
                    other.sync(true).await.unwrap();
                    handle.checkpoint().await.unwrap();
                }
            };
            disk.world().spawn("checkpoints", Box::pin(task));
            World::sleep(&**disk.world(), Duration::from_micros(delay * 50)).await;
            let number = || volume.0.checkpoints.number();
            let before = number();
            assert!(volume.clean().await.unwrap());
            met += number() - before;
            let stats = volume.clean_stats();
            assert!(stats.moved_bytes > 0 && stats.overtaken_bytes == 0, "{delay}: {stats:?}");
            World::sleep(&**disk.world(), Duration::from_secs(1)).await;
            volume.checkpoint().await.unwrap();
            assert_eq!(found(&volume, model.len()).await.unwrap(), model);
        });
        disk.world().stop();
    }
    println!("{met} checkpoints in between");
    assert!(met > 4, "{met} checkpoints in between");
}

/// choose.K22: the space that a pass counts on is kept for it until the pass ends. choose.K24: no
/// pass is made for space that becomes free by checkpoints alone.
#[test]
fn k22_k24_pass_keeps_its_space_and_dead_segments_count_as_free() {
    let setup = setup(0);
    let disk = setup.blank();
    disk.world().run(async {
        let (volume, _file, _) = sparse(&setup, &disk, None).await;
        let inner = &volume.0;
        let victims = inner.cleaner.pick_now();
        let (planned, room) = {
            let state = inner.state.lock();
            (state.space().clean_planned(), state.data_room(Need::New))
        };
        assert!(!victims.is_empty() && planned > 0, "{victims:?}");
        let left = |segment: &u32| inner.state.lock().space().room().left_of(*segment);
        assert!(victims.iter().all(|segment| left(segment) == 0), "K23");
        inner.state.lock().plan_clean(planned + 3);
        let less = inner.state.lock().data_room(Need::New);
        assert_eq!(room - less, 3 * inner.layout.segment_bytes(), "data leaves it alone");
        assert!(volume.clean().await.unwrap());
        assert_eq!(inner.state.lock().space().clean_planned(), 0);
        let dead = || {
            let state = inner.state.lock();
            state.space().segments().iter().filter(|(_, s)| s.phase == Phase::Dead).count()
        };
        volume.checkpoint().await.unwrap();
        let waiting = dead();
        assert!(waiting > 1, "{waiting} dead segments become free");
        assert!(inner.cleaner.coming_bytes() >= waiting as u64 * inner.layout.segment_bytes());
    });
    disk.world().stop();
}

/// A volume whose data segments each have a block or two that are live, checkpointed.
async fn sparse(
    setup: &Setup,
    disk: &SimDisk,
    plant: Option<Planted>,
) -> (Volume, OpenFileRef, Vec<u8>) {
    sparse_of(setup, disk, plant, 48).await
}

/// As [`sparse`], with a file of `blocks` blocks.
pub async fn sparse_of(
    setup: &Setup,
    disk: &SimDisk,
    plant: Option<Planted>,
    blocks: u64,
) -> (Volume, OpenFileRef, Vec<u8>) {
    live_in(setup, disk, plant, (blocks, 8)).await
}

/// A volume with a file of `blocks` blocks, all overwritten but one in `each`; checkpointed.
async fn live_in(
    setup: &Setup,
    disk: &SimDisk,
    plant: Option<Planted>,
    (blocks, each): (u64, u64),
) -> (Volume, OpenFileRef, Vec<u8>) {
    let device: DeviceRef = Arc::new(disk.clone());
    let world: WorldRef = disk.world().clone();
    let options = OpenOptions { clean_percent: 0, plant: Plant(plant), ..setup.options(&world) };
    let volume = Volume::open(&device, &world, &options).await.unwrap();
    let (file, mut model) = filled(&volume, blocks * BLOCK).await;
    for n in (0..blocks).filter(|n| n % each != 0) {
        let fill = 100 + n as u8;
        write(&file, n * BLOCK, &[fill; BLOCK as usize]).await.unwrap();
        model[(n * BLOCK) as usize..((n + 1) * BLOCK) as usize].fill(fill);
    }
    volume.syncfs().await.unwrap();
    for _ in 0..2 {
        volume.checkpoint().await.unwrap();
    }
    (volume, file, model)
}

fn sealed(volume: &Volume) -> usize {
    let state = volume.0.state.lock();
    state.space().segments().iter().filter(|(_, s)| s.phase == Phase::Sealed).count()
}

/// clean.C41, clean.C42, clean.C44: moved content is unchanged, with its birth and sums. The
/// segments that it was in are free after two checkpoints, but not while a reader has a pin in
/// them.
#[test]
fn c41_c42_c44_moved_content_is_unchanged() {
    let setup = setup(0);
    let disk = setup.blank();
    disk.world().run(async {
        let (volume, _file, model) = sparse(&setup, &disk, None).await;
        let ino = volume.lookup(Ino::ROOT, Name::new(b"f").unwrap()).await.unwrap().ino;
        let data_id = volume.0.state.lock().names().node(ino.0).unwrap().inode.data_id;
        let (before, pin) = volume.0.piece_at(data_id, 0).await.unwrap();
        let (sealed_before, free) = (sealed(&volume), volume.free_space().bytes);
        assert!(volume.clean().await.unwrap());
        let (after, _pin) = volume.0.piece_at(data_id, 0).await.unwrap();
        assert_ne!(before.at, after.at, "it was moved");
        assert_eq!((before.birth, before.own_sums()[0]), (after.birth, after.own_sums()[0]), "C42");
        for _ in 0..2 {
            volume.checkpoint().await.unwrap();
        }
        let Where::Run(place) = before.at else { panic!("{before:?}") };
        let phase = |volume: &Volume| {
            volume.0.state.lock().space().segments().get(place.segment).unwrap().phase
        };
        assert_eq!(phase(&volume), Phase::Dead, "C44: it is read");
        drop(pin);
        volume.checkpoint().await.unwrap();
        assert_eq!(phase(&volume), Phase::Free);
        assert!(sealed(&volume) < sealed_before && volume.free_space().bytes > free);
        assert_eq!(found(&volume, model.len()).await.unwrap(), model);
        volume.close().await.unwrap();
    });
    disk.world().stop();
    let report = check(&disk.in_world(SimWorld::new(3)));
    assert!(report.is_clean(), "{:?}", report.findings);
}

/// clean.C42: a block that does not match its sum stays where it is, in its segment, with its sum.
/// The cleaner moves the blocks next to it.
#[test]
fn c42_damaged_block_stays_damaged() {
    let setup = setup(0);
    let disk = setup.blank();
    disk.world().run(async {
        let (volume, file, model) = sparse(&setup, &disk, None).await;
        let ino = volume.lookup(Ino::ROOT, Name::new(b"f").unwrap()).await.unwrap().ino;
        let data_id = volume.0.state.lock().names().node(ino.0).unwrap().inode.data_id;
        let (bad, _) = volume.0.piece_at(data_id, 8).await.unwrap();
        let Where::Run(place) = bad.at else { panic!("{bad:?}") };
        let offset = volume.0.layout.device_offset(place);
        let mut sector = disk.peek(offset, 512);
        sector[9] ^= 4;
        disk.poke(offset, &sector);
        volume.clean().await.unwrap();
        for _ in 0..3 {
            volume.checkpoint().await.unwrap();
        }
        let stats = volume.clean_stats();
        assert!(stats.bad_blocks == 1 && stats.moved_bytes > 0, "{stats:?}");
        assert_eq!(volume.0.piece_at(data_id, 8).await.unwrap().0.at, bad.at, "it stays");
        assert_eq!(
            volume.0.state.lock().space().segments().get(place.segment).unwrap().phase,
            Phase::Sealed
        );
        drop(file);
        let volume = volume.clone();
        volume.close().await.unwrap();
        let again = open(&setup, &disk).await.unwrap();
        let ino = again.lookup(Ino::ROOT, Name::new(b"f").unwrap()).await.unwrap().ino;
        let file = again.open(ino, OpenFlags::READ).await.unwrap();
        let buf = forebay_base::buf::AlignedBuf::new(model.len());
        let (_, done) = file.read(0, buf, forebay_base::IoFlags::empty()).await;
        assert_eq!(done.unwrap_err().kind(), ErrorKind::Corrupt);
        drop(file);
    });
    disk.world().stop();
}

/// The story: a device failed reads for a moment while segments were cleaned. None of them was
/// cleaned again until the volume was opened anew.
#[test]
fn unreadable_segment_is_cleaned_next_time() {
    let setup = setup(0);
    let disk = setup.blank();
    disk.world().run(async {
        let (volume, _file, model) = sparse(&setup, &disk, None).await;
        disk.inject(FaultRule::on(BioOp::Read, Fault::Fail(ErrorKind::Io)).sticky());
        assert!(!volume.clean().await.is_ok_and(|cleaned| cleaned), "nothing can be read");
        disk.heal();
        let bad = volume.clean_stats().bad_blocks;
        for _ in 0..2 {
            volume.checkpoint().await.unwrap();
        }
        assert!(volume.clean().await.unwrap());
        let stats = volume.clean_stats();
        assert!(stats.segments > 0 && stats.bad_blocks == bad, "{stats:?}");
        assert_eq!(found(&volume, model.len()).await.unwrap(), model);
    });
    disk.world().stop();
}

/// memory.V11. The story: the buffers of a pass were not counted in the budget. Now they are
/// counted while the pass lasts.
#[test]
fn v11_buffers_of_pass_count_until_it_ends() {
    let setup = setup(0);
    let disk = setup.blank();
    disk.world().run(async {
        let (volume, _file, _) = sparse(&setup, &disk, None).await;
        let handle = volume.clone();
        let task = async move { assert!(handle.clean().await.unwrap()) };
        let taken = || volume.0.state.lock().space().cleaning_bytes();
        assert_eq!(taken(), 0);
        disk.world().spawn("clean", Box::pin(task));
        let mut most = 0;
        for _ in 0..2000 {
            World::sleep(&**disk.world(), Duration::from_micros(5)).await;
            most = most.max(taken());
        }
        // Buffers for two blocks at least: one part read, one read ahead, one being written.
        assert!(most > 6 * BLOCK, "{most}");
        assert_eq!(taken(), 0, "it is over");
    });
    disk.world().stop();
}

/// The story: an error within a pass hid the segments that the pass had emptied before. They were
/// not counted, and the volume did not make the checkpoint that frees them.
#[test]
fn segments_emptied_by_failed_pass_count_as_emptied() {
    let mut met = 0;
    for nth in 1..6 {
        let setup = setup(0);
        let disk = setup.blank();
        disk.world().run(async {
            let (volume, _file, model) = live_in(&setup, &disk, None, (144, 2)).await;
            disk.inject(FaultRule::on(BioOp::Flush, Fault::Fail(ErrorKind::Io)).nth(nth));
            let done = volume.clean().await;
            let failed = disk.fault_counts().failed > 0;
            disk.heal();
            let stats = volume.clean_stats();
            if failed && stats.moved_bytes > 0 {
                let emptied = done.unwrap_or_else(|e| panic!("flush {nth}: {e}, {stats:?}"));
                assert_eq!(emptied, stats.segments > 0, "flush {nth}: {stats:?}");
                met += u64::from(emptied);
            }
            volume.checkpoint().await.unwrap();
            assert_eq!(found(&volume, model.len()).await.unwrap(), model);
        });
        disk.world().stop();
    }
    assert!(met > 0, "no pass had emptied something before it failed");
}

/// clean.C41: a write to content that the cleaner is moving wins, whenever it comes. An injected
/// fault shows that this test would notice a violation.
#[test]
fn c41_overwrite_of_moving_content_wins() {
    let mut seen = Vec::new();
    for plant in [None, Some(Planted::CleanerMovesLive)] {
        let mut wrong = 0;
        for delay in 0..60u64 {
            let setup = setup(0);
            let disk = setup.blank();
            disk.world().run(async {
                let (volume, file, mut model) = sparse(&setup, &disk, plant).await;
                let world = disk.world().clone();
                let (handle, done) =
                    (volume.clone(), Arc::new(forebay_base::task::WaitQueue::new()));
                let over = Arc::new(std::sync::atomic::AtomicBool::new(false));
                let (told, flag) = (done.clone(), over.clone());
                let task = async move {
                    handle.clean().await.unwrap();
                    flag.store(true, std::sync::atomic::Ordering::Release);
                    told.wake_all();
                };
                forebay_base::world::World::spawn(&*world, "clean", Box::pin(task));
                for n in [0u64, 8, 16, 24] {
                    let pause = std::time::Duration::from_micros(delay * 7);
                    forebay_base::world::World::sleep(&*world, pause).await;
                    write(&file, n * BLOCK, &[200 + n as u8; BLOCK as usize]).await.unwrap();
                    file.sync(true).await.unwrap();
                    model[(n * BLOCK) as usize..((n + 1) * BLOCK) as usize].fill(200 + n as u8);
                }
                let is_over = || over.load(std::sync::atomic::Ordering::Acquire).then_some(());
                done.wait_until(is_over).await;
                volume.syncfs().await.unwrap();
                drop((file, volume));
                let disk = disk.power_cut(delay).in_world(world.clone());
                let volume = open(&setup, &disk).await.unwrap();
                wrong += u64::from(found(&volume, model.len()).await.unwrap() != model);
            });
            disk.world().stop();
        }
        seen.push(wrong);
    }
    println!("{seen:?}");
    assert!(seen[0] == 0 && seen[1] > 0, "{seen:?}");
}

/// The story: a close of the volume was dropped while it waited for the cleaner, and the cleaner
/// never moved anything again.
#[test]
fn dropped_close_lets_cleaner_continue() {
    for polls in 1..12 {
        let setup = setup(0);
        let disk = setup.blank();
        disk.world().run(async {
            let (volume, _file, _) = sparse(&setup, &disk, None).await;
            let handle = volume.clone();
            let task = async move { drop(handle.clean().await) };
            disk.world().spawn("clean", Box::pin(task));
            World::sleep(&**disk.world(), Duration::from_micros(50)).await;
            {
                let mut closing = pin!(volume.close());
                for _ in 0..polls {
                    poll_fn(|cx| Poll::Ready(closing.as_mut().poll(cx).is_pending())).await;
                    World::sleep(&**disk.world(), Duration::from_micros(40)).await;
                }
            }
            World::sleep(&**disk.world(), Duration::from_secs(1)).await;
            volume.clean().await.unwrap_or_else(|e| panic!("{polls}: {e}"));
        });
        disk.world().stop();
    }
}

/// The story: a `statfs` after a removal waited until the removed space was free. A concurrent
/// `statfs` was answered at once with the old numbers, and so was each one after a dropped one.
#[test]
fn statfs_waits_until_removed_space_is_free() {
    let setup = setup(0);
    let disk = setup.blank();
    disk.world().run(async {
        let volume = open(&setup, &disk).await.unwrap();
        let before = volume.statfs().await.unwrap().blocks_available;
        drop(filled(&volume, 512 << 10).await);
        volume.syncfs().await.unwrap();
        volume.unlink(Ino::ROOT, Name::new(b"f").unwrap()).await.unwrap();
        volume.syncfs().await.unwrap();
        let turn = volume.0.cleaning.take_turn().await;
        let (mut first, mut second) = (Box::pin(volume.statfs()), Box::pin(volume.statfs()));
        poll_fn(|cx| {
            assert!(first.as_mut().poll(cx).is_pending(), "the cleaner is at work");
            assert!(second.as_mut().poll(cx).is_pending(), "nor is it free for this one");
            Poll::Ready(())
        })
        .await;
        drop(first);
        drop(turn);
        let (second, third) = (second.await.unwrap(), volume.statfs().await.unwrap());
        let told = [second.blocks_available, third.blocks_available];
        assert!(told.iter().all(|blocks| blocks + 16 >= before), "{told:?} of {before}");
    });
    disk.world().stop();
}
