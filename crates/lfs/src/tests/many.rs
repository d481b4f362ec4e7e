//! Many files: what looking them up costs, and what they take in memory.
//!
//! No locks.

use crate::log::Pending;
use crate::{CreateOptions, OpenOptions, Volume};
use forebay_base::IoFlags;
use forebay_base::task::block_on;
use forebay_base::units::MIB;
use forebay_base::world::{RealWorld, WorldRef};
use forebay_block::{BioOp, DeviceRef, RamDevice};
use forebay_cache::{Config, PageCache};
use forebay_testkit::target::LogDevice;
use forebay_vfs::{
    Cookie, FileKind, FileSystem, Ino, Name, NewInode, OpenFlags, Privileges, Timestamp,
};
use std::sync::Arc;

const FILE: NewInode = NewInode::of(FileKind::File, 0o644);
const EACH: u64 = 2000;

struct Many {
    device: DeviceRef,
    world: WorldRef,
    volume: Volume,
    dirs: Vec<Ino>,
}

fn device(bytes: u64) -> (DeviceRef, WorldRef) {
    let device: DeviceRef = Arc::new(RamDevice::new(bytes));
    let world = RealWorld::with_seed(1);
    let options = CreateOptions {
        segment_bytes: 1 << 20,
        ..CreateOptions::new([1; 16], [3; 16], Timestamp::new(1, 0))
    };
    block_on(Volume::create(&device, &world, &options)).unwrap();
    (device, world)
}

impl Many {
    /// Makes `count` files without content, in directories of [`EACH`], and a checkpoint.
    fn make(count: u64, options: &OpenOptions) -> Self {
        let (device, world) = device(128 << 20);
        let volume = block_on(Volume::open(&device, &world, options)).unwrap();
        let new = NewInode::of(FileKind::Directory, 0o755);
        let dir = |n: u64| {
            let name = format!("d{n}");
            let name = Name::new(name.as_bytes()).unwrap();
            block_on(volume.mkdir(Ino::ROOT, name, &new)).unwrap().ino
        };
        let dirs: Vec<Ino> = (0..count.div_ceil(EACH)).map(dir).collect();
        let many = Self { device, world, volume, dirs };
        for n in 0..count {
            let (dir, text) = many.at(n);
            let name = Name::new(text.as_bytes()).unwrap();
            block_on(many.volume.mknod(dir, name, &FILE)).unwrap();
        }
        block_on(many.volume.checkpoint()).unwrap();
        many
    }

    fn at(&self, n: u64) -> (Ino, String) {
        (self.dirs[(n / EACH) as usize], format!("file{n}"))
    }

    fn look_up(&self, n: u64) {
        let (dir, text) = self.at(n);
        let name = Name::new(text.as_bytes()).unwrap();
        assert_eq!(block_on(self.volume.lookup(dir, name)).unwrap().size, 0);
    }

    /// How many nodes were looked up in the node cache.
    fn asked(&self) -> u64 {
        let counts = self.volume.0.tree.cache().counts();
        counts.hits + counts.misses
    }
}

/// The story: with more files than fit into memory each lookup searched the tree for its file
/// alone, twice. At a hundred thousand files that was fifteen times as slow as at ten thousand. Now
/// a lookup also loads the neighbours of the missing inode.
#[test]
fn neighbours_come_with_what_is_missing() {
    let bounds = |inode_cache_bytes| OpenOptions { inode_cache_bytes, ..OpenOptions::default() };
    let many = Many::make(20_000, &bounds(2 << 20));
    let before = many.asked();
    (0..20_000).for_each(|n| many.look_up(n));
    let each = (many.asked() - before) as f64 / 20_000.0;
    assert!(each < 1.0, "{each} nodes for each file in order");
    {
        let state = many.volume.0.state.lock();
        state.names().check_cache();
        assert!(
            state.names().cache().bytes() < 3 << 20,
            "{} of 2 MiB",
            state.names().cache().bytes()
        );
    }
    // Opened again with very small caches: lookups load inodes without neighbours, and are right.
    block_on(many.volume.close()).unwrap();
    let Many { device, world, dirs, volume } = many;
    drop(volume);
    for inode_cache_bytes in [0, 3000, 200_000] {
        let options = bounds(inode_cache_bytes);
        let volume = block_on(Volume::open(&device, &world, &options)).unwrap();
        let (device, world, dirs) = (device.clone(), world.clone(), dirs.clone());
        let many = Many { device, world, volume, dirs };
        (0..20_000).step_by(97).chain(5000..5100).for_each(|n| many.look_up(n));
        let state = many.volume.0.state.lock();
        state.names().check_cache();
        assert!(
            state.names().cache().bytes() <= inode_cache_bytes + (64 << 10),
            "{}",
            state.names().cache().bytes()
        );
        drop(state);
        block_on(many.volume.close()).unwrap();
    }
}

/// The story: `ls -l` lists by the hash of the names and requested the inodes one by one in that
/// order. Each request searched the tree for one inode. Now it also loads the others of its leaf.
#[test]
fn inodes_of_a_listing_come_with_their_leaf() {
    let options = OpenOptions { inode_cache_bytes: 8 << 20, ..OpenOptions::default() };
    let many = Many::make(EACH, &options);
    block_on(many.volume.close()).unwrap();
    let Many { device, world, dirs, volume } = many;
    drop(volume);
    let volume = block_on(Volume::open(&device, &world, &options)).unwrap();
    let many = Many { device, world, volume, dirs };
    let (mut after, mut listed, before) = (Cookie::START, 0, many.asked());
    loop {
        let entries = block_on(many.volume.readdir(many.dirs[0], after, 128)).unwrap();
        let Some(last) = entries.last() else { break };
        after = last.cookie;
        let inos: Vec<Ino> = entries.iter().map(|entry| entry.ino).collect();
        let attrs = block_on(many.volume.getattr_listed(&inos));
        for (attr, ino) in attrs.into_iter().zip(inos) {
            assert_eq!(attr.unwrap().ino, ino);
            listed += 1;
        }
    }
    assert_eq!(listed, EACH);
    let each = (many.asked() - before) as f64 / EACH as f64;
    assert!(each < 1.0, "{each} nodes for each file that is listed");
    // Adjacent leaves are read together. Earlier, each leaf was a separate read.
    let alone = many.volume.0.tree.cache().counts().misses;
    assert!(alone < EACH / 28 / 2, "{alone} nodes were read alone");
    let gone = [Ino(1 << 40), many.dirs[0]];
    let attrs = block_on(many.volume.getattr_listed(&gone));
    assert!(attrs[0].is_err() && attrs[1].is_ok());
    block_on(many.volume.close()).unwrap();
}

/// The story: memory of a volume's tree, names and changes was not part of the budget. Now each has
/// a row in the budget, and the cache has fewer frames for it.
#[test]
fn v11_memory_of_volume_counts_in_budget() {
    let config = Config { huge_pages: false, ..Config::with_budget(32 * MIB) };
    let cache = PageCache::new(config, RealWorld::with_seed(1)).unwrap();
    let options =
        OpenOptions { cache: Some(cache.clone()), of_budget: true, ..OpenOptions::default() };
    let whole = cache.stats().frames_total;
    let many = Many::make(40_000, &options);
    (0..40_000).for_each(|n| many.look_up(n));
    let row = |what: &str| {
        let rows = cache.budget();
        let of: Vec<u64> = rows.iter().filter(|r| r.0.starts_with(what)).map(|r| r.1).collect();
        (of.len() == 1).then(|| of[0])
    };
    let part = |what| row(what).unwrap_or_else(|| panic!("one row for {what}"));
    let (nodes, names) = (part("nodes of a volume"), part("names of a volume"));
    let changes = part("changes of a volume");
    assert!((2 * MIB..17 * MIB).contains(&nodes), "a half: {nodes}");
    assert!((2 * MIB..5 * MIB).contains(&names), "an eighth: {names}");
    assert!((MIB..6 * MIB).contains(&changes), "an eighth, and what is frozen: {changes}");
    let start = std::time::Instant::now();
    let frames = || cache.stats().frames_total * 4096;
    let fits = || frames() + nodes + names + changes <= 32 * MIB;
    while !fits() && start.elapsed() < std::time::Duration::from_secs(60) {
        std::thread::yield_now();
    }
    assert!(fits(), "V11: {} in frames", frames());
    // The bounds follow the budget.
    block_on(cache.resize(16 * MIB)).unwrap();
    (0..40_000).for_each(|n| many.look_up(n));
    assert!(part("names of a volume") < 3 * MIB && part("nodes of a volume") < 9 * MIB, "V11");
    drop(many);
    block_on(cache.resize(32 * MIB)).unwrap();
    // A task of the volume may hold it a little longer.
    let start = std::time::Instant::now();
    let is_back = || row("nodes of a volume").is_none() && cache.stats().frames_total == whole;
    while !is_back() && start.elapsed().as_secs() < 60 {
        std::thread::yield_now();
    }
    let left = (row("nodes of a volume"), cache.stats().frames_total);
    assert_eq!(left, (None, whole), "V11: and goes back");
}

/// Makes a file, and writes it with these flags.
pub(super) fn written(volume: &Volume, n: u64, len: usize, flags: IoFlags) {
    let text = format!("w{n}");
    let (name, how) = (Name::new(text.as_bytes()).unwrap(), OpenFlags::READ | OpenFlags::WRITE);
    let (_, file) = block_on(volume.create(Ino::ROOT, name, &FILE, how)).unwrap();
    file.write_slice(0, &vec![n as u8; len], flags, Privileges::Keep).unwrap();
}

/// A volume with a cache that has room for all that is written here.
pub(super) fn with_cache() -> (DeviceRef, WorldRef, OpenOptions) {
    let (device, world) = device(128 << 20);
    let config = Config { huge_pages: false, ..Config::with_budget(64 * MIB) };
    let cache = Some(PageCache::new(config, world.clone()).unwrap());
    (device, world, OpenOptions { cache, ..OpenOptions::default() })
}

/// The story: a sync of the volume wrote out one file after the other, each with a separate flush.
#[test]
fn small_files_become_durable_together() {
    let (device, world, options) = with_cache();
    let volume = block_on(Volume::open(&device, &world, &options)).unwrap();
    (0..200).for_each(|n| written(&volume, n, 1000, IoFlags::empty()));
    let groups = || volume.0.log.ctl.lock().group_count;
    let before = groups();
    block_on(volume.syncfs()).unwrap();
    assert!((1..=5).contains(&(groups() - before)), "{} groups", groups() - before);
    block_on(volume.close()).unwrap();
    drop(volume);
    let volume = block_on(Volume::open(&device, &world, &options)).unwrap();
    for n in 0..200u64 {
        let text = format!("w{n}");
        let found =
            block_on(volume.lookup(Ino::ROOT, Name::new(text.as_bytes()).unwrap())).unwrap();
        let file = block_on(volume.open(found.ino, OpenFlags::READ)).unwrap();
        let mut bytes = [0; 1001];
        assert_eq!(file.read_slice(0, &mut bytes, IoFlags::empty()).unwrap(), 1000);
        assert!(bytes[..1000].iter().all(|byte| *byte == n as u8), "file {n}");
    }
}

/// The story: write-back allocated a place in a segment for each small file, and sent the device
/// one write for each. reserve.M16, relief.Q13.
#[test]
fn m16_write_back_of_small_files_goes_into_records() {
    let (device, world, options) = with_cache();
    let volume = block_on(Volume::open(&device, &world, &options)).unwrap();
    let (write_back, state) = (IoFlags::START_WRITEBACK, &volume.0.state);
    for n in 0..2000 {
        written(&volume, n, 4096, write_back);
        assert!(state.lock().queue().payload_bytes() <= 4 * MIB + 4096, "Q13");
    }
    assert_eq!(state.lock().space().room().stats.written_back, 0, "M16");
    written(&volume, 2000, 64 << 10, write_back);
    assert_eq!(state.lock().space().room().stats.written_back, 1, "it is large");
    block_on(volume.syncfs()).unwrap();
    assert_eq!(state.lock().queue().payload_bytes(), 0);
    block_on(volume.close()).unwrap();
}

/// The story: each small file's content had its own record, which took two blocks of the log, one
/// of them for a few hundred bytes. The device wrote twice the bytes of the content. Changes of
/// names that come in between share the records, too.
#[test]
fn m16_small_files_share_records() {
    let (device, world, options) = with_cache();
    let volume = block_on(Volume::open(&device, &world, &options)).unwrap();
    (0..100).for_each(|n| written(&volume, n, 4096, IoFlags::START_WRITEBACK));
    {
        let (state, layout) = (volume.0.state.lock(), volume.0.layout);
        let bytes = |record: &Pending| {
            assert!(record.payload_bytes() <= layout.max_inline(), "as much as recovery takes");
            layout.record_bytes(record.body.len() as u64, record.payload_bytes())
        };
        let all: u64 = state.queue().iter().map(bytes).sum();
        assert!(all < 100 * (4096 + 1024), "{all} bytes in {} records", state.queue().len());
    }
    block_on(volume.syncfs()).unwrap();
    drop(volume);
    // Found in the log, and then in the tree.
    for _once_more in [false, true] {
        let volume = block_on(Volume::open(&device, &world, &options)).unwrap();
        for n in 0..100u64 {
            holds(&volume, n, n as u8);
        }
        block_on(volume.close()).unwrap();
    }
}

/// Asserts that all bytes of the small file with this number are `now`.
fn holds(volume: &Volume, n: u64, now: u8) {
    let text = format!("w{n}");
    let name = Name::new(text.as_bytes()).unwrap();
    let found = block_on(volume.lookup(Ino::ROOT, name)).unwrap();
    let file = block_on(volume.open(found.ino, OpenFlags::READ)).unwrap();
    let mut bytes = [0; 4096];
    assert_eq!(file.read_slice(0, &mut bytes, IoFlags::empty()).unwrap(), 4096);
    assert!(bytes.iter().all(|byte| *byte == now), "file {n}");
}

/// The story: a reader of small files one after the other waited for the device once for each file,
/// although they are contiguous. read_ahead.N21: bytes that were read ahead are not used after the
/// place has new content.
#[test]
fn n21_small_files_that_lie_side_by_side_are_read_together() {
    let (ram, world, options) = with_cache();
    let log = LogDevice::new(ram, 1 << 16);
    let device: DeviceRef = log.clone();
    let volume = block_on(Volume::open(&device, &world, &options)).unwrap();
    (0..400).for_each(|n| written(&volume, n, 4096, IoFlags::empty()));
    block_on(volume.syncfs()).unwrap();
    block_on(volume.close()).unwrap();
    drop(volume);
    let volume = block_on(Volume::open(&device, &world, &options)).unwrap();
    let read = |n: u64, now: u8| holds(&volume, n, now);
    (0..8).for_each(|n| read(n, n as u8));
    log.take();
    (8..200).for_each(|n| read(n, n as u8));
    let reads = log.take().iter().filter(|record| record.op == BioOp::Read).count();
    assert!(reads < 30, "{reads} reads of the device for 192 files");
    // Content in the range that was read ahead is overwritten, and a checkpoint is made.
    let root = volume.0.state.lock().tree().root();
    for n in 200..210 {
        let text = format!("w{n}");
        let name = Name::new(text.as_bytes()).unwrap();
        let found = block_on(volume.lookup(Ino::ROOT, name)).unwrap();
        let file = block_on(volume.open(found.ino, OpenFlags::WRITE)).unwrap();
        let flags = IoFlags::UNCACHED | IoFlags::SYNC;
        file.write_slice(0, &[77; 4096], flags, Privileges::Keep).unwrap();
    }
    block_on(volume.checkpoint()).unwrap();
    assert_ne!(root, volume.0.state.lock().tree().root());
    (200..210).for_each(|n| read(n, 77));
    (210..400).for_each(|n| read(n, n as u8));
    block_on(volume.close()).unwrap();
}
