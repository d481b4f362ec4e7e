//! One suite for every device and engine: the contract of a block device.

use crate::common::{Loop, Pieces, Rng, engine, is_root, path, pattern, plain, requires, submit};
use forebay_base::buf::{AlignedBuf, DataRef};
use forebay_base::task::block_on;
use forebay_base::{ErrorKind, Result};
use forebay_block::{
    Aio, Bio, BioFlags, BioOp, DeviceRef, DirectIo, FileDevice, FileOptions, RamDevice, io,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc;

const SIZE: u64 = 8 << 20;

/// Random reads, writes and zeroings by every entry point, against a model in memory.
fn model(device: &DeviceRef, seed: u64) {
    let mut rng = Rng(seed);
    let block = u64::from(device.limits().logical_block);
    let mut model = vec![0u8; SIZE as usize];
    plain(&**device, BioOp::WriteZeroes, 0, SIZE).unwrap();
    for round in 0..300 {
        let blocks = SIZE / block;
        let start = rng.below(blocks);
        let most = if round % 50 == 0 { blocks } else { 64 };
        let count = 1 + rng.below(most.min(blocks - start));
        let (offset, len) = (start * block, count * block);
        let range = offset as usize..(offset + len) as usize;
        let flags = if rng.below(4) == 0 { BioFlags::FUA } else { BioFlags::BACKGROUND };
        match rng.below(6) {
            0 => {
                let data = pattern(len as usize, rng.0);
                device.write_from(offset, &data, flags).unwrap();
                model[range].copy_from_slice(&data);
            }
            1 => {
                let data = pattern(len as usize, rng.0);
                model[range].copy_from_slice(&data);
                submit(&**device, BioOp::Write, offset, len, DataRef::Buf(data), flags).unwrap();
            }
            2 => {
                let (tx, rx) = mpsc::channel();
                let data = pattern(len as usize, rng.0);
                model[range].copy_from_slice(&data);
                let end = Box::new(move |done: forebay_block::Completion| {
                    tx.send(done.result).unwrap();
                });
                device.execute(Bio::new(BioOp::Write, offset, len, DataRef::Buf(data), end));
                rx.recv().unwrap().unwrap();
            }
            3 => {
                let flags = if rng.below(2) == 0 { BioFlags::NO_UNMAP } else { flags };
                let none = DataRef::None;
                submit(&**device, BioOp::WriteZeroes, offset, len, none, flags).unwrap();
                model[range].fill(0);
            }
            4 => {
                let mut back = AlignedBuf::new(len as usize);
                device.read_into(offset, &mut back).unwrap();
                assert!(back[..] == model[range], "read_into {offset}+{len} round {round}");
            }
            _ => {
                let buf = DataRef::Buf(AlignedBuf::new(len as usize));
                let back = submit(&**device, BioOp::Read, offset, len, buf, flags).unwrap();
                let same = back.into_buf().unwrap()[..] == model[range];
                assert!(same, "read {offset}+{len} round {round}");
            }
        }
        if round % 60 == 59 {
            plain(&**device, BioOp::Flush, 0, 0).unwrap();
        }
    }
    plain(&**device, BioOp::Discard, 0, SIZE).unwrap();
    let mut back = AlignedBuf::new(SIZE as usize);
    device.read_into(0, &mut back).unwrap();
    // Memory, files and loop devices all punch holes.
    assert!(back.iter().all(|b| *b == 0), "discarded ranges read as zeros");
}

fn refusals(device: &DeviceRef) {
    let block = u64::from(device.limits().logical_block);
    let kind = |offset: u64, len: u64| {
        let data = DataRef::Buf(AlignedBuf::new(len as usize));
        let e = submit(&**device, BioOp::Read, offset, len, data, BioFlags::empty()).unwrap_err();
        assert_eq!(e.range(), Some((offset, len)));
        e.kind()
    };
    assert_eq!(kind(SIZE, block), ErrorKind::OutOfRange, "C2");
    assert_eq!(kind(SIZE - block, 2 * block), ErrorKind::OutOfRange);
    assert_eq!(kind(u64::MAX - block + 1, block), ErrorKind::OutOfRange);
    assert_eq!(kind(1, block), ErrorKind::Unaligned, "C1");
    assert_eq!(kind(0, block + 1), ErrorKind::Unaligned);
    let beyond = plain(&**device, BioOp::WriteZeroes, SIZE, block).unwrap_err();
    assert_eq!(beyond.kind(), ErrorKind::OutOfRange);
    let short = DataRef::Buf(AlignedBuf::new(block as usize));
    let e = submit(&**device, BioOp::Write, 0, 2 * block, short, BioFlags::empty()).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::InvalidInput, "B3: the data is as long as it says");
    let none = DataRef::Buf(AlignedBuf::new(0));
    submit(&**device, BioOp::Read, 0, 0, none, BioFlags::empty()).unwrap();
}

/// Bios for each 4 KiB block in random order; each completion counts.
fn writes(rng: &mut Rng, counts: &Arc<Vec<AtomicU32>>, failed: &Arc<AtomicU32>) -> Vec<Bio> {
    let mut order: Vec<u64> = (0..counts.len() as u64).collect();
    for i in (1..order.len()).rev() {
        order.swap(i, rng.below(i as u64 + 1) as usize);
    }
    let make = |block: u64| {
        let (counts, failed) = (counts.clone(), failed.clone());
        let end = Box::new(move |done: forebay_block::Completion| {
            failed.fetch_add(u32::from(done.result.is_err()), Ordering::Relaxed);
            counts[block as usize].fetch_add(1, Ordering::Release);
        });
        let data = DataRef::Buf(pattern(4096, block));
        let flags = if block.is_multiple_of(3) { BioFlags::BACKGROUND } else { BioFlags::empty() };
        Bio::new(BioOp::Write, block * 4096, 4096, data, end).with_flags(flags)
    };
    order.into_iter().map(make).collect()
}

fn wait_for(counts: &[AtomicU32]) {
    while counts.iter().any(|c| c.load(Ordering::Acquire) == 0) {
        std::thread::yield_now();
    }
    assert!(counts.iter().all(|c| c.load(Ordering::Acquire) == 1), "E1: each completes once");
}

fn many_in_flight(device: &DeviceRef, seed: u64) {
    let mut rng = Rng(seed);
    for batch in [false, true] {
        plain(&**device, BioOp::WriteZeroes, 0, SIZE).unwrap();
        let counts = Arc::new((0..SIZE / 4096).map(|_| AtomicU32::new(0)).collect::<Vec<_>>());
        let failed = Arc::new(AtomicU32::new(0));
        let mut bios = writes(&mut rng, &counts, &failed);
        if batch {
            device.submit_batch(&mut bios);
            assert!(bios.is_empty());
        } else {
            bios.into_iter().for_each(|bio| device.submit(bio));
        }
        wait_for(&counts);
        assert_eq!(failed.load(Ordering::Relaxed), 0);
        let mut back = AlignedBuf::new(SIZE as usize);
        device.read_into(0, &mut back).unwrap();
        for (block, bytes) in back.chunks(4096).enumerate() {
            assert!(bytes == &pattern(4096, block as u64)[..], "block {block}");
        }
    }
}

fn long_lists(device: &DeviceRef) {
    let block = device.limits().logical_block as usize;
    let count = 2500.min(SIZE as usize / block);
    let pieces = (0..count).map(|i| pattern(block, i as u64)).collect();
    let len = (count * block) as u64;
    let data = DataRef::Mem(Box::new(Pieces(pieces)));
    submit(&**device, BioOp::Write, 0, len, data, BioFlags::empty()).unwrap();
    let pieces = (0..count).map(|_| AlignedBuf::new(block)).collect();
    let data = DataRef::Mem(Box::new(Pieces(pieces)));
    let mut back = submit(&**device, BioOp::Read, 0, len, data, BioFlags::empty()).unwrap();
    let mut bytes = vec![0; len as usize];
    back.copy_out(0, &mut bytes);
    for (i, got) in bytes.chunks(block).enumerate() {
        assert!(got == &pattern(block, i as u64)[..], "piece {i}");
    }
}

/// A thread that waits for its own queue with epoll, as an event loop does. A second thread reads
/// the disk meanwhile: write-back is then held back, and the thread that admits it carries it out.
fn event_loop(device: &DeviceRef) {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|s| {
        s.spawn(|| {
            let mut back = AlignedBuf::new(4096);
            while !is_over.load(Ordering::Relaxed) {
                device.read_into(0, &mut back).unwrap();
            }
        });
        let looped = s.spawn(|| event_loop_during_reads(device)).join();
        is_over.store(true, Ordering::Relaxed);
        looped.unwrap();
    });
}

fn event_loop_during_reads(device: &DeviceRef) {
    use rustix::event::epoll;
    let Some(mut queue) = device.attach_thread() else { return };
    let poll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
    let data = epoll::EventData::new_u64(7);
    epoll::add(&poll, queue.as_fd(), data, epoll::EventFlags::IN).unwrap();
    let counts = Arc::new((0..SIZE / 4096).map(|_| AtomicU32::new(0)).collect::<Vec<_>>());
    let failed = Arc::new(AtomicU32::new(0));
    let here = std::thread::current().id();
    // Waited for, and write-back.
    let elsewhere = Arc::new([AtomicU32::new(0), AtomicU32::new(0)]);
    for mut bio in writes(&mut Rng(5), &counts, &failed) {
        let elsewhere = elsewhere.clone();
        let class = usize::from(bio.flags.contains(BioFlags::BACKGROUND));
        bio.replace_end(|end| {
            Box::new(move |done| {
                let there = std::thread::current().id() != here;
                elsewhere[class].fetch_add(u32::from(there), Ordering::Relaxed);
                end(done);
            })
        });
        device.submit(bio);
    }
    let done = || counts.iter().filter(|c| c.load(Ordering::Acquire) > 0).count();
    let (mut reaped, mut before, mut still) = (0, 0, 0);
    let limit = rustix::event::Timespec { tv_sec: 1, tv_nsec: 0 };
    while done() < counts.len() {
        queue.flush();
        let mut events = Vec::with_capacity(4);
        let buffer = rustix::buffer::spare_capacity(&mut events);
        match epoll::wait(&poll, buffer, Some(&limit)) {
            Err(rustix::io::Errno::INTR) => continue,
            other => drop(other.unwrap()),
        }
        let now = done();
        still = if events.is_empty() && std::mem::replace(&mut before, now) == now {
            still + 1
        } else {
            0
        };
        assert!(still < 60, "it goes on ({reaped} reaped, {now} done)");
        reaped += if events.is_empty() { 0 } else { queue.reap() };
    }
    wait_for(&counts);
    let [waited_for, held] = [0, 1].map(|class| elsewhere[class].load(Ordering::Relaxed));
    assert_eq!(waited_for, 0, "completions run in reap, but for held write-back");
    assert!(reaped >= counts.len() - held as usize, "{reaped} reaped, {held} elsewhere");
    assert_eq!(failed.load(Ordering::Relaxed), 0);
    // Dropping the queue waits for the requests in flight, except for held ones.
    let counts = Arc::new((0..100).map(|_| AtomicU32::new(0)).collect::<Vec<_>>());
    let mut bios = writes(&mut Rng(6), &counts, &failed);
    device.submit_batch(&mut bios);
    drop(queue);
    let is_held = |block: usize| block.is_multiple_of(3);
    let is_over = |c: &AtomicU32| c.load(Ordering::Acquire) == 1;
    assert!(counts.iter().enumerate().all(|(block, c)| is_held(block) || is_over(c)));
    wait_for(&counts);
    plain(&**device, BioOp::Flush, 0, 0).unwrap();
}

/// Device and engine go away with requests in flight: each completes once.
fn drop_in_flight(device: DeviceRef) {
    let counts = Arc::new((0..500).map(|_| AtomicU32::new(0)).collect::<Vec<_>>());
    let failed = Arc::new(AtomicU32::new(0));
    let mut bios = writes(&mut Rng(9), &counts, &failed);
    device.submit_batch(&mut bios);
    drop(device);
    wait_for(&counts);
    assert_eq!(failed.load(Ordering::Relaxed), 0);
}

fn suite(device: DeviceRef, seed: u64) {
    assert_eq!(device.size(), SIZE);
    model(&device, seed);
    refusals(&device);
    many_in_flight(&device, seed);
    long_lists(&device);
    event_loop(&device);
    drop_in_flight(device);
}

fn on_file(aio: Aio, direct_io: DirectIo, seed: u64) {
    let Some(engine) = engine(aio) else { return };
    let path = path(&format!("suite-{aio}-{direct_io}"));
    let options = FileOptions { direct_io, create_size: Some(SIZE), ..Default::default() };
    let device: Result<Arc<FileDevice>> = FileDevice::open(&path, &options, &engine);
    if !requires(&format!("direct I/O: {:?}", device.as_ref().err()), device.is_ok()) {
        return;
    }
    suite(device.unwrap(), seed);
    std::fs::remove_file(path).unwrap();
}

fn on_loop(aio: Aio, direct_io: DirectIo, seed: u64) {
    let Some(engine) = engine(aio) else { return };
    if !requires("root", is_root()) {
        return;
    }
    let backing = Loop::new(&format!("suite-loop-{aio}-{direct_io}"), SIZE);
    if !requires("a free loop device", backing.is_some()) {
        return;
    }
    let backing = backing.unwrap();
    let options = FileOptions { direct_io, ..Default::default() };
    let device = FileDevice::open(&backing.0, &options, &engine).unwrap();
    let again = FileDevice::open(&backing.0, &options, &engine).err().unwrap();
    assert_eq!(again.kind(), ErrorKind::Busy);
    suite(device, seed);
}

#[test]
fn ram() {
    suite(Arc::new(RamDevice::new(SIZE)), 1);
}

#[test]
fn file_threads_buffered() {
    on_file(Aio::Threads, DirectIo::Off, 2);
}

#[test]
fn file_threads_direct() {
    on_file(Aio::Threads, DirectIo::On, 3);
}

#[test]
fn file_uring_buffered() {
    on_file(Aio::IoUring, DirectIo::Off, 4);
}

#[test]
fn file_uring_direct() {
    on_file(Aio::IoUring, DirectIo::On, 5);
}

#[test]
fn loop_threads_buffered() {
    on_loop(Aio::Threads, DirectIo::Off, 6);
}

#[test]
fn loop_threads_direct() {
    on_loop(Aio::Threads, DirectIo::On, 7);
}

#[test]
fn loop_uring_buffered() {
    on_loop(Aio::IoUring, DirectIo::Off, 8);
}

#[test]
fn loop_uring_direct() {
    on_loop(Aio::IoUring, DirectIo::On, 9);
}

#[test]
fn engine_shared_by_threads_and_devices_completes_all() {
    let Some(engine) = engine(Aio::Auto) else { return };
    let devices: Vec<DeviceRef> = (0..2)
        .map(|i| {
            let options = FileOptions { create_size: Some(SIZE), ..Default::default() };
            FileDevice::open(path(&format!("many-{i}")), &options, &engine).unwrap() as DeviceRef
        })
        .collect();
    std::thread::scope(|s| {
        for thread in 0..6u64 {
            let device = &devices[thread as usize % 2];
            s.spawn(move || {
                for round in 0..100u64 {
                    let offset = (thread * 100 + round) * 4096;
                    let data = DataRef::Buf(pattern(4096, offset));
                    block_on(io(&**device, BioOp::Write, offset, 4096, data, BioFlags::SYNC))
                        .result
                        .unwrap();
                    let mut back = AlignedBuf::new(4096);
                    device.read_into(offset, &mut back).unwrap();
                    assert!(back[..] == pattern(4096, offset)[..]);
                }
            });
        }
    });
}
