//! One write or flush fails, each in turn, while completions run on threads of their own. Two files
//! of one domain are in halves of one device or on a device each; one writer goes through the cache
//! and one past it, one task syncs both, on both maps. No sync lies, and every opener gets the
//! error, or the caller of the direct write that failed.

use super::{BLOCK, Racing, cache};
use forebay_base::IoFlags;
use forebay_base::buf::AlignedBuf;
use forebay_base::schedules::{random, runs};
use forebay_base::sync::thread;
use forebay_base::task::block_on;
use forebay_block::{Bio, BioOp, BlockDevice, Limits};
use forebay_iomap::file::Geometry;
use forebay_iomap::identity::Identity;
use forebay_iomap::{Handle, MapOps, MappedFile, Source};
use forebay_testkit::remap::Remap;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex};

/// Blocks of a file, and of its half of the device.
const BLOCKS: u64 = 4;
const HALF: u64 = 16 * BLOCK;
/// Block 0 is written through the cache, block 1 past it, with these values.
const VALUES: u8 = 2;
/// More writes and flushes than this are in few schedules.
const OPERATIONS: u32 = 14;

#[derive(Clone)]
struct Half {
    whole: Racing,
    base: u64,
    /// What failed, if anything did.
    failed: Arc<Mutex<Option<BioOp>>>,
}

impl BlockDevice for Half {
    fn name(&self) -> String {
        "half".into()
    }
    fn limits(&self) -> Limits {
        self.whole.limits()
    }
    fn size(&self) -> u64 {
        HALF
    }
    fn submit(&self, mut bio: Bio) {
        let half = self.clone();
        thread::spawn(move || {
            if bio.op != BioOp::Flush {
                bio.offset += half.base;
            }
            let result = half.whole.carry_out(&mut bio);
            if result.is_err() {
                *half.failed.lock().unwrap() = Some(bio.op);
            }
            // What was done is done; that it was is told later.
            thread::yield_now();
            bio.complete(result);
        });
    }
}

struct Subject {
    file: Arc<MappedFile>,
    half: Half,
    /// Tells the blocks of the two files apart.
    mark: u8,
    accepted: [AtomicU8; 2],
    refused: AtomicBool,
    /// One who syncs all the time, and one who asks in the end.
    openers: [(Handle, AtomicBool); 2],
}

impl Subject {
    fn write(&self, handle: &Handle, block: u64, value: u8, flags: IoFlags) {
        let mut data = AlignedBuf::copy_of(&[value; BLOCK as usize]);
        (data[0], data[1]) = (self.mark, block as u8 + 1);
        let source = Source::Owned(&mut data);
        match block_on(self.file.write(handle, block * BLOCK, source, flags)) {
            Ok(_) => self.accepted[block as usize].store(value, Ordering::SeqCst),
            Err(_) => self.refused.store(true, Ordering::SeqCst),
        }
    }

    /// What would be left of a block if the power went now.
    fn durable(&self, block: usize) -> u8 {
        let content = self.half.whole.content.lock().unwrap();
        let half = &content.durable[self.half.base as usize..][..HALF as usize];
        let at = |bytes: &[u8]| match bytes[..2] == [self.mark, block as u8 + 1] {
            true => bytes[2],
            false => 0,
        };
        match self.file.ops.info().fua_suffices {
            true => at(&half[block * BLOCK as usize..]),
            // Out of place: wherever the newest is.
            false => half.chunks(BLOCK as usize).map(at).max().unwrap(),
        }
    }

    fn sync(&self, opener: usize, nth: u32) {
        let (handle, told) = &self.openers[opener];
        let before = [0, 1].map(|block: usize| self.accepted[block].load(Ordering::SeqCst));
        if block_on(self.file.sync(handle)).is_err() {
            return told.store(true, Ordering::SeqCst);
        }
        for (block, before) in before.into_iter().enumerate() {
            let durable = self.durable(block);
            let mark = self.mark;
            assert!(durable >= before, "{mark} {block}: {durable} {before}, operation {nth} fails");
        }
    }

    /// Everybody is told of a failure; `told` by a direct write that failed is enough.
    fn check_told(&self, failed: Option<BioOp>, nth: u32) {
        let Some(op) = failed else { return };
        let caller = op == BioOp::Write && self.refused.load(Ordering::SeqCst);
        for (i, (_, told)) in self.openers.iter().enumerate() {
            let told = caller || told.load(Ordering::SeqCst);
            assert!(told, "{}: opener {i} was not told, {op:?} {nth} failed", self.mark);
        }
    }
}

fn subjects(nth: u32, remap: bool, together: bool) -> Arc<Vec<Subject>> {
    let cache = cache();
    let domain = cache.dirty.domain(None);
    // A flush of a device with both files may lose writes of both, and the other's opener would get
    // no error.
    let device = || Racing {
        nth,
        writes_only: together,
        ..Racing::new(vec![0; 2 * HALF as usize], u32::MAX)
    };
    let one = device();
    let make = |number: u64| {
        let whole = if together { one.clone() } else { Racing { nth: 0, ..device() } };
        // Apart, it is the first one's that fails.
        let whole = if !together && number == 0 { one.clone() } else { whole };
        let half = Half { whole, base: number * HALF, failed: Arc::default() };
        let device = Arc::new(half.clone());
        let ops: Arc<dyn MapOps> = match remap {
            true => Remap::new(device, BLOCK as u32),
            false => Arc::new(Identity::new(device)),
        };
        let (block_size, size) = (BLOCK as u32, BLOCKS * BLOCK);
        let geometry = Geometry { block_size, size, read_only: false };
        let file = MappedFile::open_in(&cache, domain.clone(), ops, geometry, None).unwrap();
        let openers = [0, 1].map(|_| (file.open_handle(), AtomicBool::new(false)));
        let (accepted, refused, mark) =
            (Default::default(), AtomicBool::new(false), number as u8 + 7);
        Subject { file, half, mark, accepted, refused, openers }
    };
    Arc::new((0..2).map(make).collect())
}

fn one_fails(nth: u32, remap: bool, together: bool) {
    let files = subjects(nth, remap, together);
    let mut threads = Vec::new();
    for (block, flags) in [(0, IoFlags::empty()), (1, IoFlags::DIRECT)] {
        let files = files.clone();
        threads.push(thread::spawn(move || {
            for value in 1..=VALUES {
                for subject in files.iter() {
                    let handle = subject.file.open_handle();
                    subject.write(&handle, block, value, flags);
                }
            }
        }));
    }
    let syncing = files.clone();
    threads.push(thread::spawn(move || {
        for subject in syncing.iter().chain(syncing.iter()) {
            subject.sync(0, nth);
        }
    }));
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    for subject in files.iter() {
        for opener in [0, 1, 0, 1] {
            subject.sync(opener, nth);
        }
        let failed = *subject.half.failed.lock().unwrap();
        for opener in [0, 1] {
            subject.sync(opener, nth);
        }
        subject.check_told(failed, nth);
    }
}

fn sweep(remap: bool, together: bool) {
    for nth in 1..=OPERATIONS {
        random(runs() / 40, move || one_fails(nth, remap, together));
    }
}

#[test]
fn sync_reports_each_failed_operation_in_place() {
    sweep(false, false);
}

#[test]
fn sync_reports_each_failed_operation_out_of_place() {
    sweep(true, false);
}

#[test]
fn sync_reports_each_failed_operation_on_one_device_in_place() {
    sweep(false, true);
}

#[test]
fn sync_reports_each_failed_operation_out_of_place_one_device() {
    sweep(true, true);
}
