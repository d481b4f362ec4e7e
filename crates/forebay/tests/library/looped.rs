//! The loop behaviour seen from the library: switching direct I/O under load, zeroing, a choice for
//! each request, streams. Ids are those of the checklist.

use crate::dir::{Dir, cache, cache_on, config, open, options};
use forebay::{Aio, DirectIo, ErrorKind, ExportMode, IoFlags, LiveMode, OpenOptions};
use forebay_base::buf::AlignedBuf;
use forebay_base::task::block_on;
use forebay_base::world::RealWorld;
use forebay_block::RamDevice;
use forebay_testkit::target::{DelayDevice, DelayOptions};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const SIZE: u64 = 16 << 20;

fn raw(direct_io: DirectIo) -> OpenOptions {
    options(SIZE).direct_io(direct_io).clone()
}

/// Readers and writers of all kinds, in memory and at offsets that suit no direct I/O, while it is
/// switched to and fro: no request fails, every thread reads what it wrote, and at the end the
/// file holds it.
#[test]
fn l2_direct_io_is_switched_under_load_of_every_kind() {
    let dir = Dir::new("l2");
    for aio in [Aio::Threads, Aio::IoUring] {
        let Some(cache) = cache_on(config(8 << 20).aio(aio)) else { continue };
        let path = dir.path(&format!("image-{aio}"));
        let file = raw(DirectIo::Auto).open(&cache, &path).unwrap();
        let stop = AtomicBool::new(false);
        let kinds = [
            IoFlags::empty(),
            IoFlags::UNCACHED,
            IoFlags::DIRECT | IoFlags::FALLBACK,
            IoFlags::DSYNC,
        ];
        std::thread::scope(|scope| {
            for (thread, kind) in kinds.into_iter().enumerate() {
                let (file, stop) = (file.reopen().unwrap(), &stop);
                scope.spawn(move || {
                    let base = thread as u64 * (SIZE / 4);
                    let mut round = 0u64;
                    while !stop.load(Ordering::Acquire) || round < 60 {
                        let at = base + round * 7919 % (SIZE / 4 - 9000);
                        let data = vec![round as u8; 1 + (round * 613 % 9000) as usize];
                        assert_eq!(file.write_at_with(&data, at, kind).unwrap(), data.len());
                        let mut back = vec![0; data.len()];
                        let reading = kind & !IoFlags::DSYNC;
                        file.read_at_with(&mut back, at, reading).unwrap();
                        assert!(back == data, "round {round} of thread {thread}");
                        round += 1;
                    }
                });
            }
            for round in 0..24 {
                let mode = if round % 2 == 0 { DirectIo::Off } else { DirectIo::Auto };
                file.set_direct_io(mode).unwrap();
                assert!(mode != DirectIo::Off || !file.direct_io().0);
            }
            stop.store(true, Ordering::Release);
        });
        let mut seen = vec![0; SIZE as usize];
        file.read_at(&mut seen, 0).unwrap();
        file.sync_data().unwrap();
        drop(file);
        assert!(std::fs::read(&path).unwrap() == seen);
    }
}

/// Zeroing with edges that suit no block reads back as zeros between untouched neighbours, in the
/// cache and in the file; a write that was made before is not undone by it, nor one made after; the
/// size stays.
#[test]
fn l7_zeroed_ranges_read_as_zeros_and_keep_their_neighbours() {
    let dir = Dir::new("l7");
    for direct_io in [DirectIo::Off, DirectIo::Auto] {
        let path = dir.path(&format!("image-{direct_io}"));
        let cache = cache(8 << 20);
        let file = raw(direct_io).open(&cache, &path).unwrap();
        file.write_at(&vec![5; SIZE as usize], 0).unwrap();
        let mut model = vec![5u8; SIZE as usize];
        let ranges =
            [(0, 1), (100, 9000), (65536, 65536), (1 << 20, (1 << 20) + 77), (SIZE - 5, 5)];
        for (i, (at, len)) in ranges.into_iter().enumerate() {
            // In flight before it, and at once after it.
            let near = at.saturating_sub(100).min(SIZE - 300);
            file.write_at_with(&[9; 300], near, IoFlags::START_WRITEBACK).unwrap();
            model[near as usize..][..300].fill(9);
            if i % 2 == 0 {
                file.trim(at, len).unwrap()
            } else {
                file.zero(at, len).unwrap()
            }
            model[at as usize..][..len as usize].fill(0);
            file.write_at(&[3; 1], at).unwrap();
            model[at as usize] = 3;
        }
        let mut back = vec![1; SIZE as usize];
        file.read_at(&mut back, 0).unwrap();
        assert!(back == model);
        file.sync_data().unwrap();
        assert_eq!(file.size().unwrap(), SIZE);
        drop(file);
        assert!(std::fs::read(&path).unwrap() == model);
    }
}

/// A cache full of dirty data makes progress on a slow device, with writers that need more memory
/// than there is, and all requests through one pool. And an opener of a file that another cache
/// holds is refused at once, so that no export can end up below itself.
#[test]
fn l9_cache_full_of_dirty_data_progresses_cycle_is_refused() {
    let dir = Dir::new("l9");
    let small = cache(4 << 20);
    let lower = open(&small, dir.path("image"), SIZE);
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let file = lower.reopen().unwrap();
            scope.spawn(move || {
                for round in 0..64u64 {
                    let at = (thread * 64 + round) * 65536 % (SIZE - 70000);
                    file.write_at(&vec![thread as u8 + 1; 65536], at + 17).unwrap();
                    let mut buf = vec![0; 4096];
                    file.read_at(&mut buf, (at * 3) % (SIZE - 4096)).unwrap();
                }
                file.sync_data().unwrap();
            });
        }
    });
    assert_eq!(small.unwritten_bytes(), 0);
    let again = raw(DirectIo::Auto).open(&cache(4 << 20), dir.path("image")).err().unwrap();
    assert_eq!(again.kind(), ErrorKind::Busy);
}

/// Only the writer pauses at the dirty limit. The write-out below it never does, however far the
/// dirty data is above the limit. Otherwise no writer would make progress with a tiny limit.
#[test]
fn l10_write_out_is_not_throttled_again() {
    let world = RealWorld::new();
    let ram = Arc::new(RamDevice::new(SIZE));
    let slow =
        DelayOptions { per_io: std::time::Duration::from_micros(200), ..DelayOptions::default() };
    let device = DelayDevice::new(ram, &world, slow);
    let cache = cache(8 << 20);
    let file = OpenOptions::read_write().open_device(&cache, device).unwrap();
    cache.tune("dirty_background_bytes", "4k").unwrap();
    cache.tune("dirty_bytes", "8k").unwrap();
    for at in (0..SIZE / 4).step_by(64 << 10) {
        file.write_at(&[1; 64 << 10], at).unwrap();
    }
    file.sync_data().unwrap();
    let stats = cache.stats();
    assert!(stats.throttled_nanos > 0, "the writer was throttled");
    assert_eq!((stats.dirty_bytes, stats.writeback_bytes), (0, 0));
    assert!(stats.written_bytes >= SIZE / 4);
}

/// A direct request that is not aligned is served as an uncached one: right, counted, and leaving
/// nothing in the cache; the next one, aligned, is direct again.
#[test]
fn x4_misaligned_direct_requests_fall_back_to_uncached() {
    let dir = Dir::new("x4");
    let cache = cache(8 << 20);
    let file = raw(DirectIo::Auto).open(&cache, dir.path("image")).unwrap();
    file.write_at(&vec![1; SIZE as usize], 0).unwrap();
    file.sync_data().unwrap();
    cache.drop_clean();
    let mode = LiveMode::new(ExportMode::Direct);
    let export = file.export_live(&mode).unwrap();
    let read = |offset, len| {
        let (buf, done) =
            block_on(export.clone().read(offset, AlignedBuf::new(len), IoFlags::empty()));
        done.unwrap();
        buf
    };
    let before = cache.stats();
    assert!(read(777, 3000).iter().all(|b| *b == 1));
    let after = cache.stats();
    assert_eq!(after.direct_fallbacks, before.direct_fallbacks + 1);
    assert!(after.uncached_read_bytes > before.uncached_read_bytes);
    assert_eq!(file.residency(0, SIZE).unwrap().resident_blocks, 0);
    read(8192, 8192);
    let last = cache.stats();
    assert_eq!(last.direct_fallbacks, after.direct_fallbacks);
    assert_eq!(last.direct_read_bytes, after.direct_read_bytes + 8192);
    // A write of odd bytes keeps its neighbours.
    let mut odd = AlignedBuf::new(5);
    odd.fill(2);
    block_on(export.clone().write(4094, odd, IoFlags::empty())).1.unwrap();
    assert_eq!(&read(4092, 9)[..], [1, 1, 2, 2, 2, 2, 2, 1, 1]);
    block_on(export.clone().flush()).unwrap();
    // The mode is changed while it is served.
    mode.set(ExportMode::Cached);
    read(0, 4096);
    assert!(file.residency(0, 4096).unwrap().resident_blocks > 0);
    assert!(export.info().description.contains("cached"));
}

/// Of one device each request says for itself whether it is cached, uncached or direct; all see the
/// same bytes.
#[test]
fn x4_each_request_chooses_for_itself() {
    let dir = Dir::new("x4-choice");
    let cache = cache(8 << 20);
    let file = raw(DirectIo::Auto).open(&cache, dir.path("image")).unwrap();
    let kinds = [IoFlags::empty(), IoFlags::UNCACHED, IoFlags::DIRECT | IoFlags::FALLBACK];
    for round in 0..90u64 {
        let (writer, reader) = (kinds[round as usize % 3], kinds[(round as usize / 3) % 3]);
        let at = round * 12_345 % (SIZE - 8192);
        file.write_at_with(&[round as u8; 6000], at, writer).unwrap();
        let mut back = [0; 6000];
        file.read_at_with(&mut back, at, reader).unwrap();
        assert_eq!(back, [round as u8; 6000], "{writer:?} {reader:?}");
    }
}

/// Twelve clients read one image, each from its own offset: more than one opener's table of
/// streams holds. Each client has a stream of its own, and so gets read-ahead.
#[test]
fn x7_each_client_is_a_stream_of_its_own() {
    const CLIENTS: u64 = 12;
    let dir = Dir::new("x7");
    let cache = cache(32 << 20);
    let file = open(&cache, dir.path("image"), 48 << 20);
    let base = file.export(ExportMode::Cached).unwrap();
    let clients: Vec<_> = (0..CLIENTS).map(|_| base.for_client().unwrap()).collect();
    let each = (48u64 << 20) / CLIENTS;
    for round in 0..128 {
        for (i, client) in clients.iter().enumerate() {
            let at = i as u64 * each + round * 4096;
            let mut buf = AlignedBuf::new(4096);
            if client.try_read(at, &mut buf, IoFlags::empty()).is_none() {
                block_on(client.clone().read(at, buf, IoFlags::empty())).1.unwrap();
            }
        }
    }
    let ahead = cache.stats().readahead_bytes;
    assert!(ahead >= CLIENTS * (256 << 10), "only {ahead} bytes were read ahead");
}

/// A file that grew through the cache is as long with direct I/O as without it, before and after a
/// switch.
#[test]
fn l12_growth_is_seen_whatever_the_mode() {
    let dir = Dir::new("l12");
    let cache = cache(8 << 20);
    let options = OpenOptions::read_write().create(true).create_size(1 << 20).clone();
    let file = options.open(&cache, dir.path("image")).unwrap();
    let mut size = 1u64 << 20;
    for (round, mode) in [DirectIo::Off, DirectIo::Auto].into_iter().cycle().take(6).enumerate() {
        file.set_direct_io(mode).unwrap();
        file.write_at(&[round as u8 + 1; 5000], size).unwrap();
        size += 5000;
        assert_eq!(
            (file.size().unwrap(), file.export(ExportMode::Cached).unwrap().info().size),
            (size, size)
        );
    }
    file.sync_all().unwrap();
    drop(file);
    let stored = std::fs::read(dir.path("image")).unwrap();
    assert_eq!(stored.len() as u64, size);
    for round in 0..6 {
        assert!(stored[(1 << 20) + round * 5000..][..5000].iter().all(|b| *b == round as u8 + 1));
    }
}
