//! Device reads of small files that lie next to each other.
//!
//! No locks.

use crate::tests::many::{with_cache, written};
use crate::{OpenOptions, Volume};
use forebay_base::IoFlags;
use forebay_base::task::block_on;
use forebay_base::units::MIB;
use forebay_base::world::WorldRef;
use forebay_block::{BioFlags, BioOp, DeviceRef};
use forebay_cache::{Config, PageCache};
use forebay_testkit::target::{DelayDevice, DelayOptions, ErrorDevice, Fault, LogDevice, Record};
use forebay_vfs::{
    Cookie, DirEntry, FileKind, FileSystem, Ino, Name, NewInode, OpenFileRef, OpenFlags,
    Privileges, Seek, SetAttr,
};
use std::sync::Arc;
use std::time::Duration;

const FILES: u64 = 400;

/// A volume with [`FILES`] files of a block each, none of them cached, and a count of reads.
struct Fixture {
    volume: Volume,
    log: Arc<LogDevice>,
    /// Below the log.
    faults: Arc<ErrorDevice>,
    ram: DeviceRef,
    /// In the order of a listing, which is that of a hash of the name.
    listed: Vec<DirEntry>,
    /// Bytes of a file.
    len: usize,
}

impl Fixture {
    fn new() -> Self {
        Self::with(with_cache())
    }

    fn with(setup: (DeviceRef, WorldRef, OpenOptions)) -> Self {
        Self::of_size(setup, 4096)
    }

    fn of_size((ram, world, options): (DeviceRef, WorldRef, OpenOptions), len: usize) -> Self {
        let faults = ErrorDevice::new(ram.clone());
        let log = LogDevice::new(faults.clone(), 1 << 16);
        let device: DeviceRef = log.clone();
        let volume = block_on(Volume::open(&device, &world, &options)).unwrap();
        (0..FILES).for_each(|n| written(&volume, n, len, IoFlags::empty()));
        block_on(volume.syncfs()).unwrap();
        block_on(volume.close()).unwrap();
        drop(volume);
        let volume = block_on(Volume::open(&device, &world, &options)).unwrap();
        let listed = block_on(volume.readdir(Ino::ROOT, Cookie::START, 1000)).unwrap();
        assert_eq!(listed.len() as u64, FILES);
        log.take();
        Self { volume, log, faults, ram, listed, len }
    }

    /// Reads a file, and checks its content.
    fn read(&self, entry: &DirEntry, flags: IoFlags) {
        let n: u64 = std::str::from_utf8(&entry.name[1..]).unwrap().parse().unwrap();
        let file = block_on(self.volume.open(entry.ino, OpenFlags::READ)).unwrap();
        let mut bytes = vec![0; self.len];
        assert_eq!(file.read_slice(0, &mut bytes, flags).unwrap(), self.len);
        assert!(bytes.iter().all(|byte| *byte == n as u8), "file {n}");
    }

    /// Writes a file of some MiB through the cache, so that no frame remains free.
    fn fill_frames(&self, mib: u64) -> OpenFileRef {
        let name = Name::new(b"hot").unwrap();
        let new = NewInode::of(FileKind::File, 0o600);
        let both = OpenFlags::READ | OpenFlags::WRITE;
        let (_, hot) = block_on(self.volume.create(Ino::ROOT, name, &new, both)).unwrap();
        for n in 0..mib {
            hot.write_slice(n * MIB, &[9; 1 << 20], IoFlags::empty(), Privileges::Keep).unwrap();
        }
        block_on(hot.sync(false)).unwrap();
        hot
    }

    /// What the counters of bytes from the device add up to.
    fn counted_bytes(&self) -> u64 {
        let stats = self.volume.0.options.cache.as_ref().unwrap().stats();
        stats.miss_bytes + stats.readahead_bytes + stats.uncached_read_bytes
    }

    /// Device reads since the last call.
    fn reads(&self) -> usize {
        self.log.take().iter().filter(|record| record.op == BioOp::Read).count()
    }
}

/// The story: `grep -r` and `tar` read files in the order of the listing, which is that of a hash.
/// Each file took a read of the device of its own, although they all lay next to each other.
#[test]
fn n24_small_files_read_in_any_order_take_few_device_reads() {
    let mut found = Vec::new();
    for order in ["created", "reversed", "listed"] {
        for flags in [IoFlags::empty(), IoFlags::HELD_ABOVE, IoFlags::UNCACHED] {
            let fixture = Fixture::new();
            let mut entries = fixture.listed.clone();
            match order {
                "created" => entries.sort_by_key(|entry| entry.ino),
                "reversed" => entries.sort_by_key(|entry| std::cmp::Reverse(entry.ino)),
                _ => {}
            }
            entries.iter().for_each(|entry| fixture.read(entry, flags));
            found.push((order, flags, fixture.reads()));
        }
    }
    assert!(found.iter().all(|(_, _, reads)| *reads as u64 <= FILES / 8), "N24: {found:?}");
}

/// read_ahead.N21, read_around.N24: a file in a window is written again, and read before and after
/// the checkpoint that changes the tree; another one is removed, and a new file gets its name. The
/// windows take no more than their part of the budget, and count as read-ahead.
#[test]
fn n21_n24_window_does_not_answer_for_content_written_later() {
    let fixture = Fixture::new();
    let (volume, none) = (&fixture.volume, IoFlags::empty());
    let (half, rest) = fixture.listed.split_at(FILES as usize / 2);
    half.iter().for_each(|entry| fixture.read(entry, none));
    let staged = volume.0.staging.held_bytes();
    assert!(staged > 1 << 20, "windows with the other half: {staged} bytes");
    assert!(staged <= (4 << 20) + (1 << 20), "N24: a part of the cache, and the streams");
    let stats = volume.0.options.cache.as_ref().unwrap().stats();
    assert!(stats.readahead_bytes > FILES * 4096 / 2, "{} bytes", stats.readahead_bytes);
    let read = |entry: &DirEntry, wanted: u8| {
        let file = block_on(volume.open(entry.ino, OpenFlags::READ)).unwrap();
        let mut bytes = [0; 4096];
        file.read_slice(0, &mut bytes, IoFlags::UNCACHED).unwrap();
        assert!(bytes.iter().all(|byte| *byte == wanted), "{entry:?}: {} {wanted}", bytes[0]);
    };
    let write = |ino: Ino, byte: u8, flags: IoFlags| {
        let file = block_on(volume.open(ino, OpenFlags::WRITE)).unwrap();
        file.write_slice(0, &[byte; 4096], flags, Privileges::Keep).unwrap();
    };
    let synced = IoFlags::UNCACHED | IoFlags::SYNC;
    let (written, rest) = rest.split_at(20);
    let (removed, rest) = rest.split_at(20);
    written.iter().for_each(|entry| write(entry.ino, 201, synced));
    written.iter().for_each(|entry| read(entry, 201));
    // Dirty in the cache, with an open writer.
    written[..5].iter().for_each(|entry| write(entry.ino, 202, none));
    written[..5].iter().for_each(|entry| read(entry, 202));
    let mut made = Vec::new();
    for entry in removed {
        let name = Name::new(&entry.name).unwrap();
        block_on(volume.unlink(Ino::ROOT, name)).unwrap();
        let new = NewInode::of(FileKind::File, 0o600);
        let ino = block_on(volume.mknod(Ino::ROOT, name, &new)).unwrap().ino;
        write(ino, 203, synced);
        made.push(DirEntry { ino, ..entry.clone() });
    }
    let root = volume.0.state.lock().tree().root();
    block_on(volume.checkpoint()).unwrap();
    assert_ne!(root, volume.0.state.lock().tree().root());
    written[..5].iter().for_each(|entry| read(entry, 202));
    written[5..].iter().for_each(|entry| read(entry, 201));
    made.iter().for_each(|entry| read(entry, 203));
    rest.iter().for_each(|entry| fixture.read(entry, none));
    block_on(volume.close()).unwrap();
    assert_eq!(volume.0.staging.held_bytes(), 0);
}

/// read_around.N24. Memory of windows is taken from the frames. Cached content fills them here, and
/// an uncached reader of small files displaces none of it.
#[test]
fn n24_windows_take_no_memory_of_cached_content() {
    let (ram, world, options) = with_cache();
    let config = Config { huge_pages: false, ..Config::with_budget(16 * MIB) };
    let cache = PageCache::new(config, world.clone()).unwrap();
    let options = OpenOptions { cache: Some(cache.clone()), of_budget: true, ..options };
    let fixture = Fixture::with((ram, world, options));
    let _hot = fixture.fill_frames(24);
    assert!(cache.free_bytes() < MIB, "{} bytes are free", cache.free_bytes());
    let evicted = cache.stats().evicted_blocks;
    fixture.reads();
    fixture.listed.iter().for_each(|entry| fixture.read(entry, IoFlags::UNCACHED));
    assert_eq!(cache.stats().evicted_blocks, evicted, "cached content was displaced");
    assert!(fixture.reads() as u64 >= FILES, "no windows");
}

/// The story: `cp` and `tar --sparse` look for holes before they read. The lookup of a file of 1000
/// bytes compared 1000 bytes with the sum of its block, and the window was dropped each time.
#[test]
fn n23_search_for_holes_drops_no_window() {
    for len in [1000, 4096] {
        let fixture = Fixture::of_size(with_cache(), len);
        for entry in &fixture.listed {
            let file = block_on(fixture.volume.open(entry.ino, OpenFlags::READ)).unwrap();
            assert_eq!(block_on(file.seek(Seek::Hole, 0)).unwrap(), len as u64);
            assert_eq!(block_on(file.seek(Seek::Data, 0)).unwrap(), 0);
            fixture.read(entry, IoFlags::empty());
        }
        let reads = fixture.reads();
        assert!(reads as u64 <= FILES / 8, "N23: {reads} reads for files of {len} bytes");
    }
}

/// The story: a window counted as read-ahead, and each file that it answered counted once more. So
/// `from-disk` of `stat` was about twice what the device read.
#[test]
fn n24_bytes_of_windows_count_once() {
    for flags in [IoFlags::empty(), IoFlags::HELD_ABOVE, IoFlags::UNCACHED] {
        let fixture = Fixture::new();
        let before = fixture.counted_bytes();
        fixture.listed.iter().for_each(|entry| fixture.read(entry, flags));
        let counted = fixture.counted_bytes() - before;
        let records = fixture.log.take();
        let reads = records.iter().filter(|record| record.op == BioOp::Read);
        let read: u64 = reads.map(|record| record.len).sum();
        assert!(counted <= read, "N24: {counted} bytes counted, {read} read, {flags:?}");
        assert!(counted >= FILES * 4096, "{counted} bytes counted, {flags:?}");
    }
}

/// The story: a window was dropped only when another one was kept. After a checkpoint no window
/// answers, but all of them kept their memory, also while no frame was free.
#[test]
fn n24_windows_that_cannot_answer_keep_no_memory() {
    for is_full in [false, true] {
        let (ram, world, options) = with_cache();
        let fixture = Fixture::with((ram, world, OpenOptions { of_budget: true, ..options }));
        let (volume, cache) = (&fixture.volume, fixture.volume.0.options.cache.as_ref().unwrap());
        let held = || volume.0.staging.held_bytes();
        let claimed = || {
            let rows = cache.budget();
            rows.iter().find(|row| row.0.starts_with("small files read ahead")).unwrap().1
        };
        let (half, rest) = fixture.listed.split_at(FILES as usize / 2);
        half.iter().for_each(|entry| fixture.read(entry, IoFlags::UNCACHED));
        assert!(held() > MIB && claimed() > MIB, "{} held, {} claimed", held(), claimed());
        let _hot = is_full.then(|| fixture.fill_frames(80));
        assert!(!is_full || cache.free_bytes() < 4 * MIB, "{} bytes are free", cache.free_bytes());
        block_on(volume.setattr(half[0].ino, &SetAttr { perm: Some(0o600), ..SetAttr::default() }))
            .unwrap();
        block_on(volume.checkpoint()).unwrap();
        fixture.read(&rest[0], IoFlags::UNCACHED);
        assert!(held() <= 512 << 10, "N24: {} bytes are held, full: {is_full}", held());
        assert!(claimed() <= 512 << 10, "N24: {} bytes are claimed, full: {is_full}", claimed());
    }
}

/// The story: the window around a bad block was read again for each file in it, and failed each
/// time. One whose bytes did not match one sum was dropped, and read again for the next file.
#[test]
fn n26_bad_block_delays_no_neighbours() {
    for (is_flipped, order) in [(false, "reversed"), (false, "created"), (true, "reversed")] {
        let fixture = Fixture::new();
        let mut entries = fixture.listed.clone();
        entries.sort_by_key(|entry| entry.ino);
        if order == "reversed" {
            entries.reverse();
        }
        let bad = entries[FILES as usize / 2].ino;
        fixture.read(&entries[FILES as usize / 2], IoFlags::UNCACHED);
        let at = fixture.log.take().last().unwrap().offset;
        match is_flipped {
            true => fixture.ram.write_from(at, &[99; 4096], BioFlags::empty()).unwrap(),
            false => {
                let (ops, range) = (vec![BioOp::Read], Some((at, 4096)));
                fixture.faults.arm(Fault { ops, range, ..Fault::default() });
            }
        }
        for entry in &entries {
            if entry.ino != bad {
                fixture.read(entry, IoFlags::UNCACHED);
                continue;
            }
            let file = block_on(fixture.volume.open(bad, OpenFlags::READ)).unwrap();
            let done = file.read_slice(0, &mut [0; 4096], IoFlags::UNCACHED);
            assert!(done.is_err(), "a bad block");
        }
        let records = fixture.log.take();
        let reads = records.iter().filter(|record| record.op == BioOp::Read);
        let covers = |r: &&Record| r.offset <= at && at < r.offset + r.len;
        let (reads, bad) = (reads.clone().count(), reads.filter(covers).count());
        // The reader of bytes that do not match reads them once more.
        let most = if is_flipped { 3 } else { 2 };
        let what = format!("N26: {order}, {bad} of {reads} reads cover the bad block");
        assert!(bad <= most && reads as u64 <= FILES / 8 + 64, "{what}, flipped: {is_flipped}");
    }
}

/// The story: readers in parallel that missed the same window read it once each.
#[test]
fn n27_parallel_readers_read_a_window_once() {
    let (ram, world, options) = with_cache();
    let delay = DelayDevice::new(ram, &world, DelayOptions::default());
    let fixture = Fixture::with((delay.clone(), world, options));
    let mut entries = fixture.listed.clone();
    entries.sort_by_key(|entry| entry.ino);
    // All attributes and the whole tree are in memory, and a piece near the others was missed.
    for entry in &entries {
        block_on(fixture.volume.getattr(entry.ino)).unwrap();
    }
    fixture.read(&entries[200], IoFlags::UNCACHED);
    fixture.reads();
    delay.set(DelayOptions { per_io: Duration::from_millis(50), ..DelayOptions::default() });
    // Too far from each other for a reader in the order of the device.
    std::thread::scope(|scope| {
        for n in 1..6 {
            let (fixture, entry) = (&fixture, &entries[200 - 10 * n]);
            scope.spawn(move || fixture.read(entry, IoFlags::UNCACHED));
        }
    });
    let records = fixture.log.take();
    let is_window = |record: &&Record| record.op == BioOp::Read && record.len > 64 << 10;
    let windows: Vec<&Record> = records.iter().filter(is_window).collect();
    for (n, one) in windows.iter().enumerate() {
        let overlaps = |other: &&Record| {
            other.offset < one.offset + one.len && one.offset < other.offset + other.len
        };
        assert!(!windows[n + 1..].iter().any(overlaps), "N27: {windows:?}");
    }
    assert!(!windows.is_empty(), "none was read: {records:?}");
}
