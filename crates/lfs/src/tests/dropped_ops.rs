//! Every operation on a file of a volume, and the close of the volume, is dropped after each of its
//! polls.
//!
//! No locks.

use crate::names::lookup::Stop;
use crate::tests::reuse::{check, create, read, setup, write};
use crate::tests::setup::Setup;
use crate::{OpenOptions, Volume};
use forebay_base::world::WorldRef;
use forebay_block::DeviceRef;
use forebay_cache::strategy::UncachedStrategy;
use forebay_cache::{Config, PageCache};
use forebay_iomap::check::{Checked, Drops, Op, Outcome, Subject, ended_after};
use forebay_sim::SimDisk;
use forebay_vfs::{FileSystem, Ino, Name, OpenFlags};
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

fn drop_one(op: Op, polls: u32, strategy: UncachedStrategy) -> Checked<Outcome> {
    let setup = setup(0);
    let disk = setup.blank();
    let done = disk.world().run(async {
        let volume = open(&setup, &disk, strategy).await;
        let (ino, opened) = create(&volume, "f").await.unwrap();
        let content = volume.0.content("drop", ino).map_err(Stop::open).unwrap();
        let (file, world): (_, WorldRef) = (content.file.clone(), disk.world().clone());
        let handle = file.open_handle();
        let subject = Subject { file, handle, world };
        let done = subject.drop_one(op, polls).await;
        drop((subject, content, opened));
        volume.close().await.map_err(|error| format!("close: {error}"))?;
        done
    });
    disk.world().stop();
    let findings = check(&disk).findings;
    if !findings.is_empty() {
        return Err(format!("fsck finds {findings:?}"));
    }
    done
}

#[test]
fn operation_dropped_at_any_poll_on_a_volume_leaves_nothing_behind() {
    let mut all = Drops::default();
    all.add_all(true, drop_one);
    println!("{all:?}");
    assert_eq!(all.on_device_dropped, all.on_device, "what waits for the device is dropped");
    assert!(all.on_device >= 16 && all.drops > all.operations, "{all:?}");
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
