//! Every operation on a file of a volume, and the close of the volume, is dropped after each of its
//! polls.
//!
//! No locks.

use crate::names::lookup::Stop;
use crate::tests::reuse::{check, create, read, setup, write};
use crate::tests::setup::Setup;
use crate::{OpenOptions, Volume};
use forebay_base::IoFlags;
use forebay_base::buf::AlignedBuf;
use forebay_base::world::WorldRef;
use forebay_block::DeviceRef;
use forebay_cache::strategy::UncachedStrategy;
use forebay_cache::{Config, PageCache};
use forebay_sim::SimDisk;
use forebay_testkit::dropped_ops::{Checked, Drops, Op, Outcome, SIZE, Subject, ended_after};
use forebay_vfs::{Fallocate, FileSystem, Ino, Name, OpenFileRef, OpenFlags, Privileges, SetAttr};
use std::sync::Arc;

/// A cache that is large enough for the file, and can be made smaller.
async fn open(setup: &Setup, disk: &SimDisk, strategy: UncachedStrategy) -> Volume {
    let device: DeviceRef = Arc::new(disk.clone());
    let world: WorldRef = disk.world().clone();
    let config = Config {
        huge_pages: false,
        folio_size: 65536,
        budget_max: Some(8 << 20),
        ..Config::with_budget(1 << 20)
    };
    let cache = PageCache::new(config, world.clone()).unwrap();
    cache.resize(4 << 20).await.unwrap();
    cache.strategies.set_uncached(strategy);
    let options = OpenOptions { cache: Some(cache), ..setup.options(&world) };
    Volume::open(&device, &world, &options).await.unwrap()
}

/// Carries the operation out on an open file, by the calls of the volume. What it answers does not
/// matter. `Shrink` is the cache's, and `Close` is a sync with all metadata.
async fn run_on(volume: &Volume, file: &OpenFileRef, subject: &Subject, op: Op) {
    let keep = Privileges::Keep;
    let bytes = |len| AlignedBuf::copy_of(&vec![2; len]);
    let change = async |how, at: usize, len: usize| {
        drop(file.fallocate(how, at as u64, len as u64, keep).await);
    };
    match op {
        Op::Read(flags) => drop(file.read(0, AlignedBuf::new(SIZE), flags).await),
        Op::Write(flags, at, len) => drop(file.write(at as u64, bytes(len), flags, keep).await),
        Op::Append(flags) => drop(file.write(0, bytes(8192), flags | IoFlags::APPEND, keep).await),
        Op::Trim(at, len) => change(Fallocate::PunchHole, at, len).await,
        Op::Zero(at, len) => change(Fallocate::ZeroRange { keep_size: true }, at, len).await,
        Op::Truncate(to) => {
            drop(volume.setattr(file.ino(), &SetAttr::size(to as u64)).await);
        }
        Op::Grow(to) => change(Fallocate::Allocate { keep_size: false }, 0, to).await,
        Op::Sync => drop(file.sync(true).await),
        Op::Close => drop(file.sync(false).await),
        Op::Shrink => subject.run(op).await,
    }
}

/// Which layer carries an operation out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Layer {
    /// The mapping layer, below the volume's calls.
    Mapped,
    /// The volume, as a front end calls it.
    Volume,
}

fn drop_one(
    layer: Layer,
    seed: u64,
    (op, polls, strategy): (Op, u32, UncachedStrategy),
) -> Checked<Outcome> {
    let setup = setup(0);
    let disk = setup.blank_of(seed);
    let done = disk.world().run(async {
        let volume = open(&setup, &disk, strategy).await;
        let (ino, opened) = create(&volume, "f").await.unwrap();
        let content = volume.0.files.content("drop", ino).map_err(Stop::open).unwrap();
        let (file, world): (_, WorldRef) = (content.file.clone(), disk.world().clone());
        let handle = file.open_handle();
        let subject = Subject { file, handle, world };
        let done = match layer {
            Layer::Mapped => subject.drop_one(op, polls).await,
            Layer::Volume => {
                let running = run_on(&volume, &opened, &subject, op);
                subject.drop_running(op, polls, running).await
            }
        };
        drop((subject, content, opened));
        volume.close().await.map_err(|error| format!("close: {error}"))?;
        done
    });
    disk.world().stop();
    let findings = check(&disk).findings;
    if !findings.is_empty() {
        return Err(format!("fsck finds {findings:?}"));
    }
    done.map_err(|what| format!("{layer:?}, seed {seed}: {what}"))
}

fn drop_all(layer: Layer) {
    let mut all = Drops::default();
    for seed in 1..5 {
        all.add_all(true, |op, polls, strategy| drop_one(layer, seed, (op, polls, strategy)));
    }
    println!("{layer:?}: {all:?}");
    assert_eq!(all.on_device_dropped, all.on_device, "what waits for the device is dropped");
    assert!(all.drops > all.operations, "{all:?}");
}

#[test]
fn operation_of_a_mapped_file_dropped_at_any_poll_leaves_nothing_behind() {
    drop_all(Layer::Mapped);
}

#[test]
fn operation_of_a_volume_dropped_at_any_poll_leaves_nothing_behind() {
    drop_all(Layer::Volume);
}

/// Drops the close of a volume with dirty data; true if it ended before. A second close works.
fn close_dropped(polls: u32) -> bool {
    let setup = setup(0);
    let disk = setup.blank();
    let bytes = vec![7; 100_000];
    let ended = disk.world().run(async {
        let volume = open(&setup, &disk, UncachedStrategy::Ours).await;
        let (_, file) = create(&volume, "f").await.unwrap();
        write(&file, 0, &bytes).await.unwrap();
        drop(file);
        let ended = ended_after(polls, volume.close()).await;
        // A commit that the dropped one carried goes on without it.
        let again = volume.close().await;
        again.unwrap_or_else(|error| panic!("dropped after {polls} polls: {error}"));
        ended
    });
    disk.world().stop();
    assert!(check(&disk).is_clean(), "dropped after {polls} polls");
    disk.world().run(async {
        let volume = open(&setup, &disk, UncachedStrategy::Ours).await;
        let name = Name::new(b"f").unwrap();
        let ino = volume.lookup(Ino::ROOT, name).await.unwrap().ino;
        let file = volume.open(ino, OpenFlags::READ).await.unwrap();
        assert!(read(&file, 1 << 17).await == bytes, "dropped after {polls} polls");
    });
    disk.world().stop();
    ended
}

#[test]
fn close_of_a_volume_dropped_at_any_poll_can_be_repeated() {
    let drops = (1..1000).take_while(|&polls| !close_dropped(polls)).count();
    assert!(drops > 4, "it waits: {drops} drops");
}
