//! The folios of a closed file that stay in the cache.
//!
//! No locks.

use crate::tests::setup::Setup;
use crate::{OpenOptions, Volume};
use forebay_base::buf::AlignedBuf;
use forebay_base::world::WorldRef;
use forebay_base::{ErrorKind, IoFlags};
use forebay_block::{BioOp, DeviceRef};
use forebay_cache::PageCache;
use forebay_sim::{Fault, FaultRule, SimDisk};
use forebay_vfs::{
    Fallocate, FileKind, FileSystem, Ino, Name, NewInode, OpenFileRef, OpenFlags, Privileges,
    RenameFlags, SetAttr,
};
use std::sync::Arc;

const BOTH: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);
const FILE: NewInode = NewInode::of(FileKind::File, 0o644);
const NONE: IoFlags = IoFlags::empty();

struct Lab {
    disk: SimDisk,
    options: OpenOptions,
    cache: forebay_base::sync::Arc<PageCache>,
    volume: Volume,
}

fn setup() -> Setup {
    Setup {
        block_bytes: 4096,
        volume_bytes: 4 << 20,
        content: true,
        inode_cache_bytes: 3000,
        inline_max: 0,
        fua: false,
    }
}

fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).unwrap()
}

impl Lab {
    async fn new(disk: &SimDisk) -> Self {
        let world: WorldRef = disk.world().clone();
        let options = setup().options(&world);
        Self::open(disk, &options).await
    }

    async fn open(disk: &SimDisk, options: &OpenOptions) -> Self {
        let (device, world): (DeviceRef, WorldRef) = (Arc::new(disk.clone()), disk.world().clone());
        let volume = Volume::open(&device, &world, options).await.unwrap();
        let cache = options.cache.clone().unwrap();
        Self { disk: disk.clone(), options: options.clone(), cache, volume }
    }

    async fn make(&self, text: &str, len: usize, byte: u8) -> Ino {
        let (attr, file) = self.volume.create(Ino::ROOT, name(text), &FILE, BOTH).await.unwrap();
        write(&file, 0, &vec![byte; len]).await;
        attr.ino
    }

    /// Reads a complete file. Returns its bytes, and the number of content bytes read from the
    /// device.
    async fn read(&self, ino: Ino) -> (Vec<u8>, u64) {
        let before = self.device_reads();
        let file = self.volume.open(ino, OpenFlags::READ).await.unwrap();
        let (buf, len) = file.read(0, AlignedBuf::new(100_000), NONE).await;
        (buf[..len.unwrap()].to_vec(), self.device_reads() - before)
    }

    /// Bytes of content that the device has read, without tree nodes.
    fn device_reads(&self) -> u64 {
        let log = self.disk.log();
        let reads = log.iter().filter(|entry| entry.op == BioOp::Read);
        let node = |at: u64| {
            let state = self.volume.0.state.lock();
            let place = self.volume.0.layout.place_at(at);
            place.is_some_and(|place| state.space().nodes().has_segment(place.segment))
        };
        reads.filter(|entry| !node(entry.offset)).map(|entry| entry.len).sum()
    }

    fn left(&self) -> usize {
        self.volume.0.state.lock().files().retained_count()
    }

    fn is_in_memory(&self, ino: Ino) -> bool {
        self.volume.0.state.lock().names().has_node(ino.0)
    }
}

async fn write(file: &OpenFileRef, offset: u64, bytes: &[u8]) {
    let done = file.write(offset, AlignedBuf::copy_of(bytes), NONE, Privileges::Keep).await.1;
    assert_eq!(done.unwrap().len, bytes.len());
}

/// The story: a file that was opened again after its last close was read from the device again.
/// Programs that open and close each file that they read, as tar, git and PostgreSQL do, had no
/// cache at all.
#[test]
fn y11_content_cached_before_last_close_stays_cached() {
    let disk = setup().blank();
    disk.world().run(async {
        let lab = Lab::new(&disk).await;
        let ino = lab.make("a", 50_000, 1).await;
        // Data is still to be written back, so the mapping is kept.
        assert_eq!(lab.read(ino).await, (vec![1; 50_000], 0));
        lab.volume.syncfs().await.unwrap();
        assert_eq!(lab.read(ino).await, (vec![1; 50_000], 0), "what was written");
        assert_eq!(lab.left(), 1);
        // The inode itself is evicted meanwhile.
        for n in 0..40 {
            lab.volume.mknod(Ino::ROOT, name(&format!("other {n}")), &FILE).await.unwrap();
        }
        assert!(!lab.is_in_memory(ino), "3000 bytes of names");
        assert_eq!(lab.read(ino).await, (vec![1; 50_000], 0), "without an inode in memory");
        lab.cache.drop_clean();
        assert_eq!(lab.read(ino).await.1, 53_248, "nothing was left");
        assert_eq!(lab.read(ino).await, (vec![1; 50_000], 0), "what was read");
        // Concurrent openers share one mapping.
        let one = lab.volume.open(ino, OpenFlags::READ).await.unwrap();
        assert_eq!(lab.read(ino).await, (vec![1; 50_000], 0));
        drop(one);
        assert_eq!(lab.read(ino).await, (vec![1; 50_000], 0));
    });
    disk.world().stop();
}

/// The next open sees every change that was made to a closed file by its number, or through an open
/// that read nothing.
#[test]
fn y11_retained_mapping_matches_file_after_every_change() {
    let disk = setup().blank();
    disk.world().run(async {
        let lab = Lab::new(&disk).await;
        let ino = lab.make("a", 50_000, 1).await;
        let settle = || async {
            lab.volume.syncfs().await.unwrap();
            assert_eq!(lab.left(), 1, "closed, and settled");
        };
        settle().await;
        let mut want = vec![1; 50_000];
        // Shorter, and longer again: what was cut off reads as zeros.
        lab.volume.setattr(ino, &SetAttr::size(30_001)).await.unwrap();
        settle().await;
        lab.volume.setattr(ino, &SetAttr::size(60_000)).await.unwrap();
        settle().await;
        want.truncate(30_001);
        want.resize(60_000, 0);
        assert_eq!(lab.read(ino).await.0, want);
        // A hole, and a write past the cache.
        let file = lab.volume.open(ino, BOTH).await.unwrap();
        file.fallocate(Fallocate::PunchHole, 4096, 8192, Privileges::Keep).await.unwrap();
        let direct = AlignedBuf::copy_of(&[3; 4096]);
        file.write(16_384, direct, IoFlags::DIRECT, Privileges::Keep).await.1.unwrap();
        drop(file);
        want[4096..12_288].fill(0);
        want[16_384..20_480].fill(3);
        settle().await;
        assert_eq!(lab.read(ino).await.0, want);
        settle().await;
        // The open truncates it.
        drop(lab.volume.open(ino, BOTH | OpenFlags::TRUNCATE).await.unwrap());
        lab.volume.setattr(ino, &SetAttr::size(5000)).await.unwrap();
        lab.volume.syncfs().await.unwrap();
        assert_eq!(lab.read(ino).await.0, [0; 5000]);
        // After a crash no cached content is used.
        let again = Lab::open(&disk.power_cut(3), &lab.options).await;
        assert_eq!(again.left(), 0);
        assert_eq!(again.read(ino).await.0, [0; 5000]);
    });
    disk.world().stop();
}

/// closed.Y12: what was removed is not in the cache any more, and a new file has nothing of an old
/// one.
#[test]
fn y12_removed_file_leaves_nothing_cached() {
    let disk = setup().blank();
    disk.world().run(async {
        let lab = Lab::new(&disk).await;
        let used = |cache: &PageCache| {
            let stats = cache.stats();
            stats.frames_total - stats.frames_free
        };
        let frames = || used(&lab.cache);
        let old = lab.make("a", 50_000, 0xee).await;
        let replaced = lab.make("b", 50_000, 0xee).await;
        lab.volume.syncfs().await.unwrap();
        assert_eq!((lab.left(), frames()), (2, 26), "thirteen blocks each");
        lab.volume.unlink(Ino::ROOT, name("a")).await.unwrap();
        assert_eq!((lab.left(), frames()), (1, 13), "Y12: of what was unlinked");
        let new = lab.volume.mknod(Ino::ROOT, name("a"), &FILE).await.unwrap().ino;
        assert_ne!(new, old, "S13");
        lab.volume
            .rename(Ino::ROOT, name("a"), Ino::ROOT, name("b"), RenameFlags::empty())
            .await
            .unwrap();
        assert_eq!((lab.left(), frames()), (0, 0), "Y12: of what was replaced");
        assert_eq!(lab.volume.getattr(replaced).await.unwrap_err().kind(), ErrorKind::Stale);
        lab.volume.setattr(new, &SetAttr::size(20_000)).await.unwrap();
        assert_eq!(lab.read(new).await.0, [0; 20_000], "no byte of another file");
        // A dropped volume leaves nothing in a cache that other volumes use.
        lab.make("c", 50_000, 1).await;
        lab.volume.close().await.unwrap();
        assert_eq!((lab.left(), frames()), (2, 18));
        let cache = lab.cache.clone();
        drop(lab);
        assert_eq!(used(&cache), 0, "Y12");
    });
    disk.world().stop();
}

/// A thousand files are closed that do not fit into the cache. The volume retains mappings only in
/// proportion to the files that have folios in the cache.
#[test]
fn y13_memory_of_closed_files_goes_with_their_folios() {
    let setup = Setup { volume_bytes: 32 << 20, ..setup() };
    let disk = setup.blank();
    disk.world().run(async {
        let lab = Lab::new(&disk).await;
        for n in 0..1000 {
            lab.make(&format!("f{n}"), 4096, n as u8).await;
            if n % 50 == 49 {
                lab.volume.syncfs().await.unwrap();
            }
        }
        lab.volume.syncfs().await.unwrap();
        let files = lab.cache.owners.files();
        assert!((20..256).contains(&files), "1 MiB of cache: {files}");
        assert!(lab.left() <= files + files / 2, "Y13: {} for {files}", lab.left());
        assert_eq!(lab.cache.file_bytes(), 0, "no mapping is open");
    });
    disk.world().stop();
}

/// The mapping of a file that could not be made durable is not retained as if it were clean. It is
/// kept with its dirty data, and the write-back is tried again.
#[test]
fn y11_failed_mapping_keeps_dirty_data_and_is_not_retained() {
    let disk = setup().blank();
    disk.world().run(async {
        let lab = Lab::new(&disk).await;
        let ino = lab.make("a", 20_000, 1).await;
        lab.volume.syncfs().await.unwrap();
        let file = lab.volume.open(ino, BOTH).await.unwrap();
        write(&file, 0, &[2; 20_000]).await;
        disk.inject(FaultRule::on(BioOp::Flush, Fault::Fail(ErrorKind::Io)));
        assert!(file.sync(true).await.is_err());
        drop(file);
        let mut want = vec![2; 20_000];
        assert_eq!(lab.read(ino).await, (want.clone(), 0), "D11");
        disk.heal();
        lab.volume.syncfs().await.ok();
        lab.volume.syncfs().await.unwrap();
        assert_eq!(lab.read(ino).await.0, want);
        let again = Lab::open(
            &disk.power_cut(9),
            &setup().options(&{
                let world: WorldRef = disk.world().clone();
                world
            }),
        )
        .await;
        want.truncate(20_000);
        assert_eq!(again.read(ino).await.0, want, "durable");
    });
    disk.world().stop();
}
