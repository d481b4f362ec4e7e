//! Blocking calls: I/O is done on the caller's thread, and the results are those of asynchronous
//! calls.
//!
//! No locks.

use crate::{CreateOptions, OpenOptions, Volume};
use forebay_base::task::{LocalQueue, block_on};
use forebay_base::world::{RealWorld, WorldRef};
use forebay_base::{ErrorKind, IoFlags, Result};
use forebay_block::{Bio, BioFlags, BioOp, BlockDevice, DeviceRef, RamDevice};
use forebay_cache::{Config, PageCache};
use forebay_vfs::types::FILE_SIZE_MAX;
use forebay_vfs::{
    FileKind, FileSystem, Ino, Name, NewInode, OpenFileRef, OpenFlags, Privileges, Timestamp,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const NONE: IoFlags = IoFlags::empty();

/// A device that counts submitted requests other than reads, and those executed on the caller's
/// thread.
struct Watched {
    lower: RamDevice,
    submitted: AtomicU64,
    executed: AtomicU64,
}

impl BlockDevice for Watched {
    forebay_block::delegate_block_device!([lower] limits size read_into extents);

    fn name(&self) -> String {
        "watched".into()
    }

    fn submit(&self, bio: Bio) {
        self.submitted.fetch_add(u64::from(bio.op != BioOp::Read), Ordering::Relaxed);
        self.lower.submit(bio);
    }

    fn execute(&self, bio: Bio) {
        self.executed.fetch_add(1, Ordering::Relaxed);
        self.lower.submit(bio);
    }

    fn write_from(&self, offset: u64, src: &[u8], flags: BioFlags) -> Result<()> {
        self.executed.fetch_add(1, Ordering::Relaxed);
        self.lower.write_from(offset, src, flags)
    }

    fn attach_thread(&self) -> Option<Box<dyn LocalQueue>> {
        None
    }
}

fn volume() -> (Arc<Watched>, Volume) {
    volume_of(8 << 20)
}

fn volume_of(bytes: u64) -> (Arc<Watched>, Volume) {
    let device = Arc::new(Watched {
        lower: RamDevice::new(bytes),
        submitted: AtomicU64::new(0),
        executed: AtomicU64::new(0),
    });
    let (lower, world): (DeviceRef, WorldRef) = (device.clone(), RealWorld::with_seed(1));
    let options = CreateOptions {
        segment_bytes: 256 << 10,
        ..CreateOptions::new([1; 16], [2; 16], Timestamp::new(1, 0))
    };
    block_on(Volume::create(&lower, &world, &options)).unwrap();
    let config = Config { huge_pages: false, ..Config::with_budget(4 << 20) };
    let cache = Some(PageCache::new(config, world.clone()).unwrap());
    let options = OpenOptions { cache, noatime: true, ..OpenOptions::default() };
    (device, block_on(Volume::open(&lower, &world, &options)).unwrap())
}

fn create(volume: &Volume, name: &str, flags: OpenFlags) -> OpenFileRef {
    let name = Name::new(name.as_bytes()).unwrap();
    let new = NewInode::of(FileKind::File, 0o644);
    block_on(volume.create(Ino::ROOT, name, &new, flags)).unwrap().1
}

fn write(file: &OpenFileRef, offset: u64, bytes: &[u8]) -> Result<usize> {
    file.write_slice(offset, bytes, NONE, Privileges::Keep).map(|done| done.len)
}

/// The story: a synced write went to the thread of the ring for its record, and again for the
/// flush: eight thread switches for each write.
#[test]
fn synced_write_runs_on_waiting_thread() {
    let (device, volume) = volume();
    let file = create(&volume, "a", OpenFlags::READ | OpenFlags::WRITE);
    write(&file, 0, &[1; 8192]).unwrap();
    file.sync_here(true).unwrap();
    let (submitted, executed) = (&device.submitted, &device.executed);
    let before = (submitted.load(Ordering::Relaxed), executed.load(Ordering::Relaxed));
    for n in 0..10 {
        write(&file, 4096, &[n; 4096]).unwrap();
        file.sync_here(true).unwrap();
    }
    assert_eq!(executed.load(Ordering::Relaxed) - before.1, 10, "a write with FUA each");
    // The mark of an idle log is written by a task of the volume, two requests each.
    assert!(submitted.load(Ordering::Relaxed) - before.0 <= 20);
    let mut back = [0; 4096];
    assert_eq!(file.read_slice(4096, &mut back, NONE).unwrap(), 4096);
    assert_eq!(back, [9; 4096]);
}

/// The story: the length of a group was the sum of its records' grants, twenty times the bytes that
/// they took. The device was flushed after every two groups, for every 170 files that were made.
#[test]
fn many_records_are_few_groups() {
    // A record may be written alone, so its grant is 12 KiB. 400 grants exceed a volume of 8 MiB,
    // which would write queued records early to make space.
    let (_, volume) = volume_of(64 << 20);
    let groups = || volume.0.log.ctl.lock().group_count;
    let before = groups();
    for n in 0..400 {
        drop(create(&volume, &format!("file{n}"), OpenFlags::WRITE));
    }
    block_on(volume.syncfs()).unwrap();
    let written = groups() - before;
    // The mark of the open is due after 10 ms, that of the sync 10 ms after it.
    assert!((1..=3).contains(&written), "{written} groups: one, and one for each mark");
}

#[test]
fn short_ways_answer_as_the_long_ones_do() {
    let (_, volume) = volume();
    let both = OpenFlags::READ | OpenFlags::WRITE;
    let file = create(&volume, "a", both);
    let mut buf = [7; 100];
    assert_eq!(file.try_read(0, &mut buf, NONE).map(Result::unwrap), Some(0), "it is empty");
    assert_eq!(file.read_slice(0, &mut buf, NONE).unwrap(), 0);
    assert_eq!(write(&file, 10, &[5; 50]).unwrap(), 50);
    assert_eq!(file.read_slice(40, &mut buf, NONE).unwrap(), 20, "up to the end");
    assert_eq!((buf[0], buf[19], buf[20]), (5, 5, 7));
    assert_eq!(file.read_slice(60, &mut buf, NONE).unwrap(), 0);
    assert_eq!(file.read_slice(u64::MAX, &mut buf, NONE).unwrap(), 0);
    assert_eq!(write(&file, 0, &[]).unwrap(), 0);
    let last = write(&file, FILE_SIZE_MAX, &[1]).unwrap_err();
    assert_eq!(last.kind(), ErrorKind::FileTooLarge);
    let placed = file.write_slice(0, &[6; 3], IoFlags::APPEND, Privileges::Keep).unwrap();
    assert_eq!((placed.offset, placed.len), (60, 3));
    assert!(file.try_write(0, &[1; 4], NONE, Privileges::Keep).is_some_and(|done| done.is_ok()));
    assert!(matches!(file.try_read(0, &mut buf[..4], NONE), Some(Ok(4))));
    assert_eq!(buf[..4], [1; 4]);

    let ino = file.ino();
    for (flags, reads) in [(OpenFlags::READ, true), (OpenFlags::WRITE, false)] {
        let other = block_on(volume.open(ino, flags)).unwrap();
        // A sync loads the content of the file for this handle, and adds no access rights.
        other.sync_here(false).unwrap();
        let (read, written) = (other.read_slice(0, &mut buf, NONE), write(&other, 0, &[2; 4]));
        assert_eq!((read.is_ok(), written.is_ok()), (reads, !reads));
        let refused = read.err().or(written.err()).unwrap();
        assert_eq!(refused.kind(), ErrorKind::BadHandle);
    }
    let root = block_on(volume.open(Ino::ROOT, OpenFlags::READ)).unwrap();
    root.sync_here(false).unwrap();
    assert_eq!(root.read_slice(0, &mut buf, NONE).unwrap_err().kind(), ErrorKind::IsDirectory);
}
