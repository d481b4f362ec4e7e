//! Random interleavings of whole operations, with completions and flushes on threads of their own,
//! in a build of its own: `RUSTFLAGS="--cfg shuttle" cargo test --profile fsx --test shuttle`, with
//! a target directory of its own.
//!
//! In every schedule no sync succeeds while an accepted byte is not durable, whichever flush fails
//! (unflushed.W1, unflushed.W2). No foreign and no lost byte appears at an end of file that several
//! tasks move at once (bounds.E1..E6). Story: the device had completed a write before a flush
//! failed, but its bookkeeping ran after it, and the next flush certified it. The same happened to
//! a trim that was noted before it had run. Two appenders read the size twice each.
#![cfg(shuttle)]

#[path = "suite/eof/driver.rs"]
mod driver;
#[path = "suite/eof/history.rs"]
mod history;
#[path = "shuttle/nth.rs"]
mod nth;
#[path = "shuttle/published.rs"]
mod published;

use driver::{Driver, Subject, verify};
use forebay_base::buf::AlignedBuf;
use forebay_base::schedules::{random, runs};
use forebay_base::sync::thread;
use forebay_base::task::{BoxFuture, block_on};
use forebay_base::world::{Nanos, World, split_mix};
use forebay_base::{Error, ErrorKind, IoFlags, Result};
use forebay_block::{Bio, BioFlags, BioOp, BlockDevice, DeviceRef, Limits, StableWrites};
use forebay_cache::strategy::DirtyTracking;
use forebay_cache::{Config, PageCache};
use forebay_iomap::file::{Geometry, ZeroFlags};
use forebay_iomap::identity::Identity;
use forebay_iomap::{MappedFile, Source};
use history::History;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

const BLOCK: u64 = 512;

/// A world without background tasks: only a test's own calls flush.
struct Quiet(AtomicU64);

impl World for Quiet {
    fn now(&self) -> Nanos {
        self.0.fetch_add(1000, Ordering::Relaxed)
    }
    fn random(&self) -> u64 {
        let mut state = self.0.fetch_add(1, Ordering::Relaxed);
        split_mix(&mut state)
    }
    fn spawn(&self, _name: &str, _task: BoxFuture<'static, ()>) {}
    fn sleep_until(&self, _at: Nanos) -> BoxFuture<'static, ()> {
        Box::pin(async {})
    }
}

#[derive(Default)]
struct Content {
    bytes: Vec<u8>,
    durable: Vec<u8>,
    /// Written since the last flush, good or bad.
    pending: Vec<std::ops::Range<usize>>,
    flushes: u32,
    /// Writes and flushes.
    changes: u32,
}

/// A device that does each request on a thread of its own. The flush with the number `fails` fails,
/// or the write or flush with the number `nth`. Writes completed before a failed flush are never
/// made durable by a later one.
#[derive(Clone)]
struct Racing {
    content: Arc<Mutex<Content>>,
    fails: u32,
    nth: u32,
    /// `nth` is a number among writes alone.
    writes_only: bool,
}

impl Racing {
    fn new(bytes: Vec<u8>, fails: u32) -> Self {
        let durable = bytes.clone();
        let content = Content { bytes, durable, ..Content::default() };
        Self { content: Arc::new(Mutex::new(content)), fails, nth: 0, writes_only: false }
    }

    fn durable(&self, at: u64) -> u8 {
        self.content.lock().unwrap().durable[at as usize]
    }

    fn carry_out(&self, bio: &mut Bio) -> Result<()> {
        let mut content = self.content.lock().unwrap();
        let end = content.bytes.len();
        let range = (bio.offset as usize).min(end)..((bio.offset + bio.len) as usize).min(end);
        let counts = bio.op != BioOp::Read && !(self.writes_only && bio.op == BioOp::Flush);
        content.changes += u32::from(counts);
        let nth = counts && content.changes == self.nth;
        if nth && bio.op != BioOp::Flush {
            return Err(Error::new(ErrorKind::Io, "write", "this one fails"));
        }
        match bio.op {
            BioOp::Read => {
                let mut bytes = vec![0xee; bio.len as usize];
                bytes[..range.len()].copy_from_slice(&content.bytes[range]);
                bio.data.copy_in(0, &bytes);
            }
            BioOp::Write => {
                bio.data.copy_out(0, &mut content.bytes[range.clone()]);
                if bio.flags.contains(BioFlags::FUA) {
                    let new = content.bytes[range.clone()].to_vec();
                    content.durable.resize(end, 0);
                    content.durable[range].copy_from_slice(&new);
                } else {
                    content.pending.push(range);
                }
            }
            BioOp::WriteZeroes | BioOp::Discard => {
                content.bytes[range.clone()].fill(0);
                content.pending.push(range);
            }
            BioOp::Flush => {
                content.flushes += 1;
                let (failed, pending) =
                    (content.flushes == self.fails, std::mem::take(&mut content.pending));
                if failed || nth {
                    return Err(Error::new(ErrorKind::Io, "flush", "this one fails"));
                }
                content.durable.resize(end, 0);
                for range in pending {
                    let range = range.start.min(end)..range.end.min(end);
                    let new = content.bytes[range.clone()].to_vec();
                    content.durable[range].copy_from_slice(&new);
                }
            }
        }
        Ok(())
    }
}

impl BlockDevice for Racing {
    fn name(&self) -> String {
        "racing".into()
    }
    fn limits(&self) -> Limits {
        Limits {
            logical_block: BLOCK as u32,
            physical_block: BLOCK as u32,
            memory_align: 1,
            max_transfer: 1 << 20,
            max_segments: 256,
            stable_writes: StableWrites { required: false, reason: "none" },
            discard: true,
            write_zeroes: true,
            read_only: false,
        }
    }
    fn size(&self) -> u64 {
        self.content.lock().unwrap().bytes.len() as u64
    }
    fn can_grow(&self) -> bool {
        true
    }
    fn grow(&self, size: u64) -> Result<()> {
        self.content.lock().unwrap().bytes.resize(size as usize, 0);
        Ok(())
    }
    fn truncate(&self, size: u64) -> Result<()> {
        self.content.lock().unwrap().bytes.truncate(size as usize);
        Ok(())
    }
    fn submit(&self, mut bio: Bio) {
        let device = self.clone();
        thread::spawn(move || {
            let result = device.carry_out(&mut bio);
            // What was done is done; that it was is told later.
            thread::yield_now();
            bio.complete(result);
        });
    }
}

fn cache() -> forebay_base::sync::Arc<PageCache> {
    let config = Config {
        folio_size: 4096,
        huge_pages: false,
        poison_frames: true,
        ..Config::with_budget(1 << 20)
    };
    PageCache::new(config, Arc::new(Quiet(AtomicU64::new(1)))).unwrap()
}

/// Blocks 0: buffered, 1: direct, 2: trimmed. Accepted and durable values only grow; a trim counts
/// as 1.
fn lying_syncs(fails: u32) {
    let mut bytes = vec![0; 8 * BLOCK as usize];
    bytes[2 * BLOCK as usize..3 * BLOCK as usize].fill(9);
    let device = Racing::new(bytes, fails);
    let cache = cache();
    let ops = Arc::new(Identity::new(Arc::new(device.clone())));
    let file = MappedFile::new(&cache, ops, BLOCK as u32, 8 * BLOCK, false).unwrap();
    let accepted: Arc<[AtomicU64; 3]> = Arc::default();
    let sync = move |file: &MappedFile, device: &Racing, accepted: &[AtomicU64; 3]| {
        let handle = file.open_handle();
        let before: Vec<u64> = accepted.iter().map(|a| a.load(Ordering::SeqCst)).collect();
        if block_on(file.sync(&handle)).is_err() {
            return;
        }
        let durable = [device.durable(0), device.durable(BLOCK)].map(u64::from);
        assert!(durable[0] >= before[0], "block 0: {durable:?} {before:?}, flush {fails} fails");
        assert!(durable[1] >= before[1], "block 1: {durable:?} {before:?}, flush {fails} fails");
        let trimmed = device.durable(2 * BLOCK) == 0;
        assert!(before[2] == 0 || trimmed, "the trim is not durable, flush {fails} fails");
    };
    let write = |file: &MappedFile, block: u64, value: u8, flags: IoFlags| {
        let handle = file.open_handle();
        let mut data = AlignedBuf::copy_of(&[value; BLOCK as usize]);
        let source = Source::Owned(&mut data);
        block_on(file.write(&handle, block * BLOCK, source, flags)).is_ok()
    };
    let mut threads = Vec::new();
    for part in 0..3u64 {
        let (file, device, accepted) = (file.clone(), device.clone(), accepted.clone());
        threads.push(thread::spawn(move || {
            let times = if part == 2 { 1 } else { 2 };
            for value in 1..=times {
                let done = match part {
                    0 => write(&file, 0, value, IoFlags::empty()),
                    1 => write(&file, 1, value, IoFlags::DIRECT),
                    _ => {
                        let len = BLOCK;
                        block_on(file.zero(2 * BLOCK, len, ZeroFlags::default())).is_ok()
                    }
                };
                if done {
                    accepted[part as usize].fetch_max(u64::from(value), Ordering::SeqCst);
                }
                sync(&file, &device, &accepted);
            }
        }));
    }
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    sync(&file, &device, &accepted);
    sync(&file, &device, &accepted);
}

#[test]
fn no_sync_lies_whichever_flush_fails() {
    for fails in 1..=6 {
        random(runs() / 4, move || lying_syncs(fails));
    }
}

/// Two files of one domain on one device, each with a writer that syncs: a flush that fails for one
/// may have lost writes of the other, in whichever order their results arrive.
fn lying_neighbours(fails: u32) {
    let device = Racing::new(vec![0; 8 * BLOCK as usize], fails);
    let cache = cache();
    let (below, domain): (DeviceRef, _) = (Arc::new(device.clone()), cache.dirty.domain(None));
    let threads: Vec<_> = (0..2u64)
        .map(|block| {
            let ops = Arc::new(Identity::new(below.clone()));
            let geometry = Geometry { block_size: BLOCK as u32, size: 8 * BLOCK, read_only: false };
            let file = MappedFile::open_in(&cache, domain.clone(), ops, geometry, None).unwrap();
            let device = device.clone();
            thread::spawn(move || write_and_sync(&file, &device, block))
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

/// Writes a block twice, and syncs after each: what a good sync says is durable.
fn write_and_sync(file: &MappedFile, device: &Racing, block: u64) {
    let handle = file.open_handle();
    for value in 1..=2u8 {
        let mut data = AlignedBuf::copy_of(&[value; BLOCK as usize]);
        let source = Source::Owned(&mut data);
        let written = file.write(&handle, block * BLOCK, source, IoFlags::empty());
        block_on(written).unwrap();
        if block_on(file.sync(&handle)).is_ok() {
            assert!(device.durable(block * BLOCK) >= value, "block {block} is not durable");
        }
    }
}

#[test]
fn no_sync_lies_whichever_files_flush_fails() {
    for fails in 1..=3 {
        random(runs() / 4, move || lying_neighbours(fails));
    }
}

/// The story: where folios are written as a whole, a pass took blocks for which it had no space,
/// and gave them back. A sync in between found them neither dirty nor in write-out.
#[test]
fn sync_sees_blocks_taken_by_another_pass() {
    let run = || {
        let device = Racing::new(vec![0; 8 * BLOCK as usize], u32::MAX);
        let cache = cache();
        cache.strategies.set_dirty_tracking(DirtyTracking::Folio);
        let ops = Arc::new(Identity::new(Arc::new(device.clone())));
        let file = MappedFile::new(&cache, ops, BLOCK as u32, 8 * BLOCK, false).unwrap();
        let threads: Vec<_> = (0..3u64)
            .map(|block| {
                let (file, device) = (file.clone(), device.clone());
                thread::spawn(move || write_and_sync(&file, &device, block))
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    };
    random(runs() / 4, run);
}

/// Two who append and one who reads, trims and truncates, at an end within a block.
#[test]
fn end_of_file_moved_concurrently_keeps_bytes() {
    let seed = Arc::new(AtomicU64::new(1));
    let run = move || {
        let seed = seed.fetch_add(1, Ordering::Relaxed);
        let mut rng = seed;
        let cache = cache();
        let size = 1 + split_mix(&mut rng) % 1500;
        let device = Racing::new(vec![0; size as usize], u32::MAX);
        let ops = Arc::new(Identity::new(Arc::new(device)));
        let file = MappedFile::new(&cache, ops, 4096, size, false).unwrap();
        let history = History::new(0, size);
        let subject = Subject { file, history, truncates: seed % 2 == 0 };
        let files = Arc::new(vec![subject]);
        let threads: Vec<_> = (0..3)
            .map(|_| {
                let (cache, files, rng) = (cache.clone(), files.clone(), split_mix(&mut rng));
                thread::spawn(move || {
                    let mut driver = Driver::new(&cache, &files, (rng, BLOCK, false));
                    for _ in 0..4 {
                        block_on(driver.step()).unwrap();
                    }
                    driver.close();
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        block_on(verify(&files[0], &cache)).unwrap();
    };
    random(runs(), run);
}
