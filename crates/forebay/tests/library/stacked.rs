//! A file whose device is a file of another cache, like a loop device on a loop device. Memory is
//! short on both levels and the lowest device is slow.

use crate::dir::{Dir, config, open};
use forebay::{Cache, File, IoFlags, OpenOptions};
use forebay_base::world::RealWorld;
use forebay_block::{Bio, BioFlags, BioOp, BlockDevice, DeviceRef, Limits, RamDevice};
use forebay_testkit::target::{DelayDevice, DelayOptions};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const SIZE: u64 = 16 << 20;

/// A device over a file: requests go through the cache of that file, on a thread of the device's
/// own.
struct OverFile {
    size: u64,
    queue: Mutex<Sender<Bio>>,
}

impl OverFile {
    fn new(file: File) -> Arc<Self> {
        let (queue, requests) = channel();
        let size = file.size().unwrap();
        std::thread::spawn(move || {
            for bio in requests {
                serve(&file, bio);
            }
        });
        Arc::new(Self { size, queue: Mutex::new(queue) })
    }
}

fn serve(file: &File, mut bio: Bio) {
    let mut bytes = vec![0; bio.len as usize];
    let result = match bio.op {
        BioOp::Read => file.read_at(&mut bytes, bio.offset).map(|_| {
            bio.data.copy_in(0, &bytes);
        }),
        BioOp::Write => {
            bio.data.copy_out(0, &mut bytes);
            let fua = bio.flags.contains(BioFlags::FUA);
            let flags = if fua { IoFlags::DSYNC } else { IoFlags::empty() };
            file.write_at_with(&bytes, bio.offset, flags).map(drop)
        }
        BioOp::Flush => file.sync_data(),
        BioOp::Discard => file.trim(bio.offset, bio.len),
        BioOp::WriteZeroes => file.zero(bio.offset, bio.len),
    };
    bio.complete(result);
}

impl BlockDevice for OverFile {
    fn name(&self) -> String {
        "over a file".into()
    }
    fn limits(&self) -> Limits {
        RamDevice::new(4096).limits()
    }
    fn size(&self) -> u64 {
        self.size
    }
    fn submit(&self, bio: Bio) {
        self.queue.lock().unwrap().send(bio).expect("the thread lives as long as the device");
    }
}

fn slow_ram() -> (Arc<RamDevice>, DeviceRef) {
    let ram = Arc::new(RamDevice::new(SIZE));
    let per_io = Duration::from_micros(300);
    let options = DelayOptions { per_io, ..DelayOptions::default() };
    let slow = DelayDevice::new(ram.clone(), &RealWorld::new(), options);
    (ram, slow)
}

/// Writers and readers on the upper file, more than both caches hold together, in parts of their
/// own.
fn load(upper: &File) {
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let file = upper.reopen().unwrap();
            scope.spawn(move || {
                let base = thread * (SIZE / 4);
                for round in 0..60u64 {
                    let at = base + round * 69_632 % (SIZE / 4 - 70_000);
                    let flags = [IoFlags::empty(), IoFlags::UNCACHED][round as usize % 2];
                    let data = vec![round as u8 + 1; 65_000];
                    file.write_at_with(&data, at, flags).unwrap();
                    let mut back = vec![0; data.len()];
                    file.read_at_with(&mut back, at, flags).unwrap();
                    assert!(back == data, "thread {thread}, round {round}");
                    if round % 20 == 19 {
                        file.sync_data().unwrap();
                    }
                }
            });
        }
    });
}

/// Both caches are full of dirty data, the lower one because of the upper one's write-out, which
/// its limits throttle. Each level has memory and limits of its own, so the lower one always makes
/// progress.
#[test]
fn l9_l10_stacked_caches_make_progress_under_pressure() {
    let (lower_cache, upper_cache) =
        (Cache::new(config(1 << 20)).unwrap(), Cache::new(config(1 << 20)).unwrap());
    let (ram, slow) = slow_ram();
    let lower = OpenOptions::read_write().open_device(&lower_cache, slow).unwrap();
    let upper = OpenOptions::read_write().open_device(&upper_cache, OverFile::new(lower)).unwrap();
    load(&upper);
    upper.sync_data().unwrap();
    for cache in [&upper_cache, &lower_cache] {
        let stats = cache.stats();
        assert!(stats.throttled_nanos > 0 && stats.evicted_blocks > 0, "no pressure: {stats:?}");
    }
    assert_eq!(upper_cache.unwritten_bytes(), 0);
    // What the upper one calls durable is on the lowest device.
    let (mut seen, mut stored) = (vec![0; SIZE as usize], vec![0; SIZE as usize]);
    upper.read_at(&mut seen, 0).unwrap();
    ram.read_into(0, &mut stored).unwrap();
    assert!(seen == stored);
}

/// Three levels in one cache, such as a file in an image of the same cache: they share its memory
/// and its dirty limit. Dirty data of the upper levels fills both, and is written out only when the
/// lower levels accept more. Each level is a flush domain with its own part of the limit, and the
/// limit of a level never throttles its own write-out. So the lowest level always makes progress,
/// and then the levels above it.
#[test]
fn l9_l10_files_on_files_of_the_same_cache_cannot_deadlock() {
    for (dirty, background) in [("256k", "128k"), ("64k", "64k"), ("8k", "0")] {
        let (done, over) = channel();
        std::thread::spawn(move || {
            let cache = Cache::new(config(2 << 20)).unwrap();
            cache.tune("dirty_background_bytes", background).unwrap();
            cache.tune("dirty_bytes", dirty).unwrap();
            let (ram, slow) = slow_ram();
            let open = |device| OpenOptions::read_write().open_device(&cache, device).unwrap();
            let lower = open(slow);
            let middle = open(OverFile::new(lower.reopen().unwrap()) as DeviceRef);
            let upper = open(OverFile::new(middle.reopen().unwrap()) as DeviceRef);
            load(&upper);
            upper.sync_data().unwrap();
            let stats = cache.stats();
            assert!(
                stats.throttled_nanos > 0 && stats.evicted_blocks > 0,
                "no pressure: {stats:?}"
            );
            let (mut seen, mut stored) = (vec![0; SIZE as usize], vec![0; SIZE as usize]);
            upper.read_at(&mut seen, 0).unwrap();
            ram.read_into(0, &mut stored).unwrap();
            assert!(seen == stored);
            done.send(()).expect("it is waited for");
        });
        let waited = over.recv_timeout(Duration::from_secs(120));
        waited.unwrap_or_else(|_| panic!("dirty limit {dirty}: a deadlock, or it failed above"));
    }
}

/// An image that lies on its own export could wait for itself. No such cycle can be made: one cache
/// shares the file among its openers, and a second cache is refused.
#[test]
fn l9_no_cycle_can_be_made() {
    let dir = Dir::new("cycle");
    let (one, two) = (Cache::new(config(1 << 20)).unwrap(), Cache::new(config(1 << 20)).unwrap());
    let file = open(&one, dir.path("image"), SIZE);
    let again = open(&one, dir.path("image"), SIZE);
    file.write_at(&[1; 4096], 0).unwrap();
    assert_eq!(
        again.residency(0, SIZE).unwrap().dirty_blocks,
        1,
        "the same blocks, not others on top"
    );
    let options = crate::dir::options(SIZE);
    let error = options.open(&two, dir.path("image")).err().unwrap();
    assert_eq!(error.kind(), forebay::ErrorKind::Busy);
    drop((file, again));
    open(&two, dir.path("image"), SIZE);
}
