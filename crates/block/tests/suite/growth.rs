//! A file that grows while requests touch its unaligned end.
//!
//! The story: two appenders of 1 to 900 bytes and a reader, with direct I/O on, ended in a panic in
//! the memory list of a transfer. The plan read the file's size three times, and the file grew
//! across a block in between. On io_uring the panic ended the submitting thread; on threads the
//! pool lost a worker.
//!
//! Second: growing zeroes the rest of the last page in the page cache. A concurrent direct write to
//! that page made the kernel report EIO to the next sync, although no data was lost. Zeroing does
//! not have this effect.

use crate::common::{Rng, engines, path, pattern};
use forebay_base::buf::{AlignedBuf, DataRef};
use forebay_base::task::block_on;
use forebay_base::units::{round_down, round_up};
use forebay_block::{Aio, BioFlags, BioOp, BlockDevice, DirectIo, Engine, FileDevice, FileOptions};
use forebay_block::{bdev, io};
use std::sync::atomic::{AtomicBool, Ordering};

/// Grows in small steps while the others work; ends with the size it reached.
fn grower(device: &FileDevice, seed: u64, stop: &AtomicBool) -> u64 {
    let (mut rng, mut size) = (Rng(seed), device.size());
    while !stop.load(Ordering::Acquire) {
        size += 1 + rng.below(900);
        device.grow(size).unwrap();
    }
    size
}

/// One request at the end of the file, by each of the entry points. All must succeed: the range
/// ends in the last block of the file as it was, and a file that grows still holds it.
fn at_the_end(device: &FileDevice, rng: &mut Rng) {
    let block = u64::from(device.limits().logical_block);
    let size = device.size();
    let end = round_up(size, block);
    // Within one page: only the last page excludes writers in different blocks of a page.
    let page = round_down(size - 1, 4096);
    let start = round_down(size - 1, block).saturating_sub(rng.below(3) * block).max(page);
    let len = (end - start) as usize;
    let flags = if rng.below(4) == 0 { BioFlags::FUA } else { BioFlags::empty() };
    match rng.below(5) {
        0 => device.read_into(start, &mut AlignedBuf::new(len)).unwrap(),
        1 => device.write_from(start, &pattern(len, size), flags).unwrap(),
        2 => {
            let data = DataRef::Buf(AlignedBuf::new(len));
            let read = io(device, BioOp::Read, start, len as u64, data, flags);
            block_on(read).result.unwrap();
        }
        3 => {
            let data = DataRef::Buf(pattern(len, size));
            let write = io(device, BioOp::Write, start, len as u64, data, flags);
            block_on(write).result.unwrap();
        }
        _ => {
            let flags = flags | BioFlags::NO_UNMAP;
            let zero = io(device, BioOp::WriteZeroes, start, len as u64, DataRef::None, flags);
            block_on(zero).result.unwrap();
        }
    }
}

fn grows_under_load(aio: Aio, engine: &Engine, logical_block: u32) {
    let direct_io = DirectIo::Auto;
    let create_size = Some(10_001);
    let options = FileOptions { direct_io, create_size, logical_block, ..Default::default() };
    let name = path(&format!("grows-{aio}-{logical_block}"));
    let device = FileDevice::open(name, &options, engine).unwrap();
    if !crate::common::requires("a file that is eligible for direct I/O", device.direct_io().0) {
        return;
    }
    let stop = AtomicBool::new(false);
    let size = std::thread::scope(|s| {
        let workers: Vec<_> = (0..4u64)
            .map(|seed| {
                let device = &device;
                s.spawn(move || {
                    let mut rng = Rng(seed);
                    (0..1500).for_each(|_| at_the_end(device, &mut rng));
                })
            })
            .collect();
        let grower = s.spawn(|| grower(&device, 99, &stop));
        let done: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        stop.store(true, Ordering::Release);
        assert!(done.iter().all(Result::is_ok), "a request at the end panicked or failed");
        grower.join().unwrap()
    });
    block_on(bdev::flush_blocking(&*device)).result.unwrap();
    assert_eq!(device.size(), size);
    assert_eq!(std::fs::metadata(device.path()).unwrap().len(), size, "X3: no write grows a file");
}

/// xfer.X4: a request that read the size twice found two sizes, and failed or wrote outside its
/// part.
#[test]
fn file_growing_under_requests_completes_all() {
    for (aio, engine) in engines() {
        for logical_block in [512, 4096] {
            grows_under_load(aio, &engine, logical_block);
        }
    }
}

/// One request within page 3 of the file, in the worker's own block. Even workers zero theirs by
/// each method in turn, odd ones write.
fn within_a_page(device: &FileDevice, worker: u64, round: u64) {
    let at = 3 * 4096 + worker * 512;
    let done = match (worker % 2, round % 3) {
        (0, 0) => io(device, BioOp::Discard, at, 512, DataRef::None, BioFlags::SYNC),
        (0, way) => {
            let keep = if way == 1 { BioFlags::NO_UNMAP } else { BioFlags::empty() };
            io(device, BioOp::WriteZeroes, at, 512, DataRef::None, BioFlags::SYNC | keep)
        }
        _ => {
            let data = DataRef::Buf(pattern(512, worker));
            io(device, BioOp::Write, at, 512, data, BioFlags::SYNC)
        }
    };
    block_on(done).result.unwrap();
}

/// Zeroing less than a page dirties it in the system's page cache. A buffered write concurrent with
/// direct writes in the same page makes the kernel report EIO to the next sync. But `fallocate`
/// waits for direct I/O, which a write does not (file.F7): with a write in its place this test
/// fails.
#[test]
fn zeroing_part_of_page_under_direct_writes_keeps_sync_ok() {
    for (aio, engine) in engines() {
        let options = FileOptions { create_size: Some(1 << 16), ..FileOptions::default() };
        let device = FileDevice::open(path(&format!("in-page-{aio}")), &options, &engine).unwrap();
        let fits = device.direct_io().0 && device.limits().logical_block == 512;
        if !crate::common::requires("direct I/O in units of 512 bytes", fits) {
            return;
        }
        device.write_from(0, &pattern(1 << 16, 3), BioFlags::empty()).unwrap();
        std::thread::scope(|s| {
            for worker in 0..6 {
                let device = &device;
                s.spawn(move || (0..1500).for_each(|round| within_a_page(device, worker, round)));
            }
            for _ in 0..100 {
                block_on(bdev::flush_blocking(&*device)).result.unwrap();
            }
        });
        block_on(bdev::flush_blocking(&*device)).result.unwrap();
        let mut page = AlignedBuf::new(4096);
        device.read_into(3 * 4096, &mut page).unwrap();
        for worker in 0..6u64 {
            let zeros = worker % 2 == 0;
            let want = if zeros { AlignedBuf::new(512) } else { pattern(512, worker) };
            let at = worker as usize * 512;
            assert!(page[at..at + 512] == want[..], "block {worker}");
        }
    }
}
