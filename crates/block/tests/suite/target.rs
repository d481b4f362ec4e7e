//! The decorators: the property that each changes, and that they pass the rest on.

use crate::common::{Pieces, path, pattern, plain, submit};
use forebay_base::buf::{AlignedBuf, DataRef, IoMem, Segment};
use forebay_base::sim_world::SimWorld;
use forebay_base::sync::Mutex;
use forebay_base::world::{RealWorld, World, WorldRef};
use forebay_base::{Error, ErrorKind};
use forebay_block::{
    Aio, Bio, BioFlags, BioOp, BlockDevice, DeviceRef, Engine, FileDevice, FileOptions, RamDevice,
};
use forebay_testkit::target::{
    ChecksumDevice, DelayDevice, DelayOptions, ErrorDevice, Fault, LimitsDevice, LimitsOverride,
    LogDevice, ThrottleDevice, ThrottleOptions, When,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

const SIZE: u64 = 1 << 20;

fn ram() -> DeviceRef {
    Arc::new(RamDevice::new(SIZE))
}

fn world() -> WorldRef {
    RealWorld::with_seed(1)
}

fn write(device: &dyn BlockDevice, offset: u64, data: AlignedBuf) -> forebay_base::Result<()> {
    let len = data.len() as u64;
    submit(device, BioOp::Write, offset, len, DataRef::Buf(data), BioFlags::empty()).map(drop)
}

fn read(device: &dyn BlockDevice, offset: u64, len: usize) -> forebay_base::Result<AlignedBuf> {
    let data = DataRef::Buf(AlignedBuf::new(len));
    let back = submit(device, BioOp::Read, offset, len as u64, data, BioFlags::empty())?;
    Ok(back.into_buf().unwrap())
}

/// Holds bios of one operation back until the test releases them.
struct Hold {
    op: BioOp,
    lower: DeviceRef,
    held: Mutex<Vec<Bio>>,
}

impl Hold {
    fn release(&self) {
        let held = std::mem::take(&mut *self.held.lock());
        held.into_iter().for_each(|bio| self.lower.submit(bio));
    }
}

impl BlockDevice for Hold {
    fn name(&self) -> String {
        "hold".into()
    }
    fn limits(&self) -> forebay_block::Limits {
        self.lower.limits()
    }
    fn size(&self) -> u64 {
        self.lower.size()
    }
    fn submit(&self, bio: Bio) {
        if bio.op == self.op {
            self.held.lock().push(bio);
        } else {
            self.lower.submit(bio);
        }
    }
}

/// Memory that another thread also writes to, as the cache's frames are without stable writes.
struct Shared(Arc<Mutex<AlignedBuf>>);

// SAFETY: the Arc owns the buffer, which does not move. Other threads write to it only under the
// lock and between the calls of this test, which accepts torn results.
unsafe impl IoMem for Shared {
    fn segments(&mut self, out: &mut Vec<Segment>) {
        self.0.lock().segments(out);
    }
}

#[test]
fn checksum_change_in_flight_is_detected() {
    let hold = Arc::new(Hold { op: BioOp::Write, lower: ram(), held: Mutex::default() });
    let device = ChecksumDevice::new(hold.clone());
    let memory = Arc::new(Mutex::new(pattern(8192, 1)));
    let (tx, rx) = mpsc::channel();
    for round in 0..2u64 {
        let tx = tx.clone();
        let data = DataRef::Mem(Box::new(Shared(memory.clone())));
        let end = Box::new(move |done: forebay_block::Completion| {
            tx.send(done.result.is_ok()).unwrap();
        });
        device.submit(Bio::new(BioOp::Write, 0, 8192, data, end));
        if round == 1 {
            memory.lock()[4096] ^= 1;
        }
        hold.release();
        assert!(rx.recv().unwrap());
        assert_eq!(device.stats().checked_writes, (round + 1) * 16);
        assert_eq!(device.stats().mismatches, round);
    }
    read(&*device, 0, 8192).unwrap();
    assert_eq!(device.stats().checked_reads, 15, "K1: what changed in flight is not known");
    assert_eq!(device.stats().corrupt_reads, 0);
}

/// checksum.K2: a block that is written while a read of it is in flight may be read old or new, and
/// is not verified. The other blocks of the read are.
#[test]
fn checksum_block_written_during_read_is_not_verified() {
    let hold = Arc::new(Hold { op: BioOp::Read, lower: ram(), held: Mutex::default() });
    let device = ChecksumDevice::new(hold.clone());
    write(&*device, 0, pattern(8192, 1)).unwrap();
    let (tx, rx) = mpsc::channel();
    let data = DataRef::Buf(AlignedBuf::new(8192));
    let end = Box::new(move |done: forebay_block::Completion| {
        tx.send(done.result.is_ok()).unwrap();
    });
    device.submit(Bio::new(BioOp::Read, 0, 8192, data, end));
    write(&*device, 4096, pattern(512, 2)).unwrap();
    hold.release();
    assert!(rx.recv().unwrap(), "K2: the write replaced the block before it was read");
    let stats = device.stats();
    assert_eq!((stats.checked_reads, stats.corrupt_reads), (15, 0), "K2");
}

#[test]
fn checksum_finds_what_changed_at_rest() {
    let lower = ram();
    let device = ChecksumDevice::new(lower.clone());
    write(&*device, 0, pattern(65536, 1)).unwrap();
    device.write_from(65536, &pattern(65536, 2), BioFlags::FUA).unwrap();
    plain(&*device, BioOp::WriteZeroes, 4096, 4096).unwrap();
    read(&*device, 0, 131_072).unwrap();
    assert_eq!(device.stats().checked_reads, 256);
    lower.write_from(4608, &[1; 512], BioFlags::empty()).unwrap();
    let e = read(&*device, 0, 65536).unwrap_err();
    assert_eq!((e.kind(), e.range()), (ErrorKind::Corrupt, Some((4608, 512))));
    let mut buf = AlignedBuf::new(8192);
    assert_eq!(device.read_into(0, &mut buf).unwrap_err().kind(), ErrorKind::Corrupt);
    plain(&*device, BioOp::Discard, 4096, 4096).unwrap();
    read(&*device, 0, 65536).unwrap();
    assert_eq!(device.stats().corrupt_reads, 2);
}

/// target.D2: the need is read anew each time, through the whole stack.
#[test]
fn s5_x1_stable_need_reaches_top_at_once() {
    let checksum = ChecksumDevice::new(ram());
    let forced = LimitsDevice::new(checksum.clone(), LimitsOverride::default());
    let top = LogDevice::new(ErrorDevice::new(forced.clone()), 10);
    let top = DelayDevice::new(top, &world(), DelayOptions::default());
    let top = ThrottleDevice::new(top, &world(), ThrottleOptions::default());
    let need = || (top.limits().stable_writes.required, top.limits().stable_writes.reason);
    assert_eq!(need(), (true, "checksum target"));
    checksum.set_required(false);
    assert!(!need().0);
    checksum.set_required(true);
    forced.set(LimitsOverride { stable_writes: Some(false), ..Default::default() });
    assert_eq!(need(), (false, "forced by the limits target"));
    assert_eq!(top.name(), "throttle(delay(log(error(limits(checksum(ram))))))");
}

#[test]
fn error_device_fails_configured_requests_only() {
    let lower = ram();
    let device = ErrorDevice::new(lower.clone());
    let fault = Fault { ops: vec![BioOp::Write], when: When::Nth(2), ..Default::default() };
    let id = device.arm(fault.clone());
    let outcome = |n: u64| -> Vec<bool> {
        (0..n).map(|_| write(&*device, 0, pattern(512, 1)).is_ok()).collect()
    };
    assert_eq!(outcome(4), [true, false, true, true]);
    device.disarm(id);
    device.arm(Fault { sticky: true, ..fault.clone() });
    assert_eq!(outcome(4), [true, false, false, false]);
    device.clear();
    device.arm(Fault { when: When::Every(2), errno: libc::ENOSPC, ..fault });
    assert_eq!(outcome(4), [true, false, true, false]);
    read(&*device, 0, 512).unwrap();
    device.clear();
    device.arm(Fault { range: Some((4096, 512)), errno: libc::ENOSPC, ..Default::default() });
    let e = write(&*device, 0, pattern(8192, 3)).unwrap_err();
    assert_eq!((e.kind(), e.range()), (ErrorKind::NoSpace, Some((0, 8192))));
    assert!(read(&*lower, 0, 512).unwrap()[..] == pattern(512, 1)[..], "it went no further");
    write(&*device, 4608, pattern(512, 3)).unwrap();
    plain(&*device, BioOp::Flush, 0, 0).unwrap();
    let mut buf = AlignedBuf::new(4096);
    assert!(device.read_into(1024, &mut buf).is_err());
    assert_eq!(device.injected(), 1 + 3 + 2 + 2);
    // It works for a batch and for execute, through other decorators.
    let top = LogDevice::new(device, 10);
    let (tx, rx) = mpsc::channel();
    let mut bios: Vec<Bio> = (0..3u64)
        .map(|i| {
            let tx = tx.clone();
            let data = DataRef::Buf(pattern(512, i));
            let end = Box::new(move |done: forebay_block::Completion| {
                tx.send((i, done.result.is_ok())).unwrap();
            });
            Bio::new(BioOp::Write, 3584 + i * 512, 512, data, end)
        })
        .collect();
    top.execute(bios.remove(1));
    top.submit_batch(&mut bios);
    let mut got: Vec<_> = rx.iter().take(3).collect();
    got.sort_unstable();
    assert_eq!(got, [(0, true), (1, false), (2, true)]);
    let outcomes: Vec<_> = top.take().iter().map(|r| (r.offset, r.outcome)).collect();
    let failed = Some(Err(ErrorKind::NoSpace));
    assert_eq!(outcomes, [(4096, failed), (3584, Some(Ok(()))), (4608, Some(Ok(())))]);
}

#[test]
fn limits_hold_callers_to_them() {
    let over = LimitsOverride {
        logical_block: Some(4096),
        memory_align: Some(4096),
        max_transfer: Some(8192),
        max_segments: Some(2),
        no_discard: true,
        no_write_zeroes: true,
        ..Default::default()
    };
    let device = LimitsDevice::new(ram(), over);
    let kind = |e: forebay_base::Result<()>| e.unwrap_err().kind();
    assert_eq!(kind(write(&*device, 512, pattern(4096, 0))), ErrorKind::Unaligned);
    assert_eq!(kind(write(&*device, 0, pattern(12288, 0))), ErrorKind::InvalidInput);
    let mut odd = AlignedBuf::new(8192);
    assert_eq!(kind(device.read_into(0, &mut odd[512..4608])), ErrorKind::Unaligned);
    let pieces = DataRef::Mem(Box::new(Pieces((0..4).map(|i| pattern(2048, i)).collect())));
    let long = submit(&*device, BioOp::Write, 0, 8192, pieces, BioFlags::empty());
    assert_eq!(kind(long.map(drop)), ErrorKind::InvalidInput);
    write(&*device, 0, pattern(8192, 5)).unwrap();
    plain(&*device, BioOp::Discard, 0, 8192).unwrap();
    assert!(read(&*device, 0, 8192).unwrap()[..] == pattern(8192, 5)[..]);
    let none = DataRef::None;
    let fast = submit(&*device, BioOp::WriteZeroes, 0, 4096, none, BioFlags::FAST_ONLY);
    assert_eq!(kind(fast.map(drop)), ErrorKind::Unsupported);
    plain(&*device, BioOp::WriteZeroes, 0, 4096).unwrap();
    device.set(LimitsOverride { read_only: true, ..Default::default() });
    assert_eq!(kind(write(&*device, 0, pattern(512, 0))), ErrorKind::ReadOnly);
}

/// Submits writes of 4 KiB at the given offsets at once, in a simulated world; returns the virtual
/// time in milliseconds at which each is over.
fn virtual_times(device: &dyn BlockDevice, world: &Arc<SimWorld>, offsets: &[u64]) -> Vec<u64> {
    let begin = world.now();
    let times = Arc::new(Mutex::new(Vec::new()));
    for (i, offset) in offsets.iter().enumerate() {
        let (times, world) = (times.clone(), world.clone());
        let end = Box::new(move |done: forebay_block::Completion| {
            done.result.unwrap();
            times.lock().push((world.now() - begin) / 1_000_000);
        });
        let data = DataRef::Buf(pattern(4096, i as u64));
        device.submit(Bio::new(BioOp::Write, *offset, 4096, data, end));
    }
    let clock = world.clone();
    world.run(async move { clock.sleep(Duration::from_secs(1)).await });
    times.lock().clone()
}

#[test]
fn delay_serves_one_after_the_other() {
    let world = SimWorld::new(1);
    let options = DelayOptions {
        per_io: Duration::from_millis(10),
        bandwidth: Some(409_600),
        seek: Duration::from_millis(30),
        flush: Duration::from_millis(1),
    };
    let below = ram();
    let device = DelayDevice::new(below.clone(), &(world.clone() as WorldRef), options);
    // Two adjacent requests, a seek, and its successor; 10 ms per request, 10 ms per 4 KiB.
    let times = virtual_times(&*device, &world, &[0, 4096, 65536, 69632]);
    assert_eq!(times, [20, 40, 90, 110]);
    device.set(DelayOptions::default());
    assert_eq!(virtual_times(&*device, &world, &[0, 65536]), [0, 0]);
    assert!(read(&*below, 65536, 4096).unwrap()[..] == pattern(4096, 1)[..]);
}

#[test]
fn throttle_keeps_rate_with_burst_credit() {
    let world = SimWorld::new(1);
    let none = ThrottleOptions::default();
    let device = ThrottleDevice::new(ram(), &(world.clone() as WorldRef), none);
    let offsets = [0, 4096, 8192, 65536];
    assert_eq!(virtual_times(&*device, &world, &offsets), [0, 0, 0, 0]);
    device.set(ThrottleOptions { iops: Some(100), ..none });
    assert_eq!(virtual_times(&*device, &world, &offsets), [0, 10, 20, 30]);
    device.set(ThrottleOptions { bandwidth: Some(204_800), ..none });
    assert_eq!(virtual_times(&*device, &world, &offsets), [0, 20, 40, 60]);
    // The idle second gives credit for 20 ms, which is two requests.
    device.set(ThrottleOptions { iops: Some(100), burst: Duration::from_millis(20), ..none });
    assert_eq!(virtual_times(&*device, &world, &offsets), [0, 0, 0, 10]);
}

/// A device that carries a write with FUA out as a write and a flush, which fails and loses earlier
/// writes. As the contract has it, the next flush fails, too.
struct LosesByFua {
    lower: DeviceRef,
    is_lossy: AtomicBool,
}

impl BlockDevice for LosesByFua {
    fn name(&self) -> String {
        "loses by FUA".into()
    }
    fn limits(&self) -> forebay_block::Limits {
        self.lower.limits()
    }
    fn size(&self) -> u64 {
        self.lower.size()
    }
    fn submit(&self, bio: Bio) {
        let error = || Err(Error::new(ErrorKind::Io, "flush", "as the test wants it"));
        if bio.flags.contains(BioFlags::FUA) {
            self.is_lossy.store(true, Ordering::SeqCst);
            return bio.complete(error());
        }
        match bio.op == BioOp::Flush && self.is_lossy.swap(false, Ordering::SeqCst) {
            true => bio.complete(error()),
            false => self.lower.submit(bio),
        }
    }
}

/// Callers count failed flushes, not failed writes: each decorator passes the flush on that reports
/// what a write with FUA has lost.
#[test]
fn failed_fua_write_fails_next_flush_through_decorators() {
    let lossy =
        || -> DeviceRef { Arc::new(LosesByFua { lower: ram(), is_lossy: AtomicBool::new(false) }) };
    let no_delay = DelayOptions::default();
    let devices: [DeviceRef; 6] = [
        ChecksumDevice::new(lossy()),
        DelayDevice::new(lossy(), &world(), no_delay),
        ErrorDevice::new(lossy()),
        LimitsDevice::new(lossy(), LimitsOverride::default()),
        LogDevice::new(lossy(), 10),
        ThrottleDevice::new(lossy(), &world(), ThrottleOptions::default()),
    ];
    for device in devices {
        let flush = || plain(&*device, BioOp::Flush, 0, 0);
        flush().unwrap();
        let data = DataRef::Buf(pattern(4096, 1));
        submit(&*device, BioOp::Write, 0, 4096, data, BioFlags::FUA).unwrap_err();
        flush().expect_err(&device.name());
        flush().unwrap();
        device.write_from(0, &pattern(4096, 1), BioFlags::FUA).unwrap_err();
        flush().expect_err(&device.name());
        flush().unwrap();
    }
}

#[test]
fn delay_device_dropped_completes_held_bios() {
    let slow = DelayOptions { per_io: Duration::from_millis(2), ..Default::default() };
    let device = DelayDevice::new(ram(), &world(), slow);
    let (tx, rx) = mpsc::channel();
    for i in 0..10u64 {
        let tx = tx.clone();
        let end = Box::new(move |done: forebay_block::Completion| {
            tx.send(done.result.is_ok()).unwrap();
        });
        let data = DataRef::Buf(pattern(512, i));
        device.submit(Bio::new(BioOp::Write, i * 512, 512, data, end));
    }
    drop((device, tx));
    assert_eq!(rx.iter().filter(|ok| *ok).count(), 10);
}

#[test]
fn decorators_on_file_serve_event_loop() {
    let engine = Engine::new(Aio::Auto).unwrap();
    let options = FileOptions { create_size: Some(SIZE), ..Default::default() };
    let file = FileDevice::open(path("stack"), &options, &engine).unwrap();
    let stack = ChecksumDevice::new(LogDevice::new(ErrorDevice::new(file), 1000));
    std::thread::scope(|s| {
        s.spawn(|| {
            let queue = stack.attach_thread();
            // Blocking calls do not wait for the queue of this thread.
            let block = stack.limits().logical_block as usize;
            stack.write_from(0, &pattern(block, 1), BioFlags::empty()).unwrap();
            let mut back = AlignedBuf::new(block);
            stack.read_into(0, &mut back).unwrap();
            assert!(back[..] == pattern(block, 1)[..]);
            if let Some(mut queue) = queue {
                let (tx, rx) = mpsc::channel();
                let end = Box::new(move |done: forebay_block::Completion| {
                    tx.send((std::thread::current().id(), done.result.is_ok())).unwrap();
                });
                let data = DataRef::Buf(AlignedBuf::new(block));
                stack.submit(Bio::new(BioOp::Read, 0, block as u64, data, end));
                queue.flush();
                while queue.reap() == 0 {
                    std::thread::yield_now();
                }
                assert_eq!(rx.recv().unwrap(), (std::thread::current().id(), true));
            }
        });
    });
    assert!(stack.stats().checked_reads > 0);
}
