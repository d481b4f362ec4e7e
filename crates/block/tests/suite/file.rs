//! Properties of devices over files only: modes, the file's end, locks, changes by other programs.

use crate::common::{PATIENCE, engines, path, pattern};
use forebay_base::ErrorKind;
use forebay_base::buf::{AlignedBuf, DataRef};
use forebay_base::task::block_on;
use forebay_block::{
    Aio, BioFlags, BioOp, BlockDevice, DirectIo, Engine, FileDevice, FileOptions, io,
};
use rustix::fs::{Mode, OFlags, RenameFlags, fcntl_getfl};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

fn engine() -> Engine {
    Engine::new(Aio::Auto).unwrap()
}

fn create(name: &str, size: u64, direct_io: DirectIo) -> Arc<FileDevice> {
    let options = FileOptions { direct_io, create_size: Some(size), ..Default::default() };
    FileDevice::open(path(name), &options, &engine()).unwrap()
}

/// file.F3: neither writes nor zeroing of the last block, which go past the end, move it.
#[test]
fn partial_last_block_is_clipped_and_zero_filled() {
    for direct_io in [DirectIo::Auto, DirectIo::Off] {
        let device = create(&format!("tail-{direct_io}"), 10_000, direct_io);
        let block = u64::from(device.limits().logical_block);
        let full = 10_000u64.next_multiple_of(block);
        let data = pattern(full as usize, 1);
        device.write_from(0, &data, BioFlags::empty()).unwrap();
        assert_eq!(std::fs::metadata(device.path()).unwrap().len(), 10_000);
        let mut back = pattern(full as usize, 9);
        device.read_into(0, &mut back).unwrap();
        assert!(back[..10_000] == data[..10_000]);
        assert!(back[10_000..].iter().all(|b| *b == 0));
        let bio = DataRef::Buf(pattern(full as usize, 3));
        let done = block_on(io(&*device, BioOp::Write, 0, full, bio, BioFlags::FUA));
        done.result.unwrap();
        let bio = DataRef::Buf(AlignedBuf::new(block as usize));
        let last = full - block;
        let done = block_on(io(&*device, BioOp::Read, last, block, bio, BioFlags::empty()));
        done.result.unwrap();
        let (want, got) = (pattern(full as usize, 3), done.data.into_buf().unwrap());
        let kept = (10_000 - last) as usize;
        assert!(got[..kept] == want[last as usize..10_000]);
        assert!(got[kept..].iter().all(|b| *b == 0));
        let none = DataRef::None;
        let zero = io(&*device, BioOp::WriteZeroes, last, block, none, BioFlags::NO_UNMAP);
        block_on(zero).result.unwrap();
        device.read_into(last, &mut back[..block as usize]).unwrap();
        assert!(back[..block as usize].iter().all(|b| *b == 0));
        assert_eq!(std::fs::metadata(device.path()).unwrap().len(), 10_000);
    }
}

#[test]
fn file_window_leaves_rest_unchanged() {
    let path = path("window");
    std::fs::write(&path, vec![0xaa; 64 << 10]).unwrap();
    let options = FileOptions { offset: 4096, size_limit: Some(9_000), ..Default::default() };
    let device = FileDevice::open(&path, &options, &engine()).unwrap();
    assert_eq!(device.size(), 9_000);
    let block = u64::from(device.limits().logical_block);
    let full = 9_000u64.next_multiple_of(block) as usize;
    device.write_from(0, &pattern(full, 0), BioFlags::empty()).unwrap();
    let mut back = pattern(full, 1);
    device.read_into(0, &mut back).unwrap();
    assert!(back[9_000..].iter().all(|b| *b == 0), "nothing of the rest of the file shows");
    drop(device);
    let file = std::fs::read(&path).unwrap();
    assert!(file[..4096].iter().chain(&file[4096 + 9_000..]).all(|b| *b == 0xaa));
    assert!(file[4096..4096 + 9_000] == pattern(full, 0)[..9_000]);
}

#[test]
fn lock_held_refuses_second_opener_with_path() {
    let device = create("lock", 1 << 20, DirectIo::Auto);
    let path = device.path().to_path_buf();
    let again = FileDevice::open(&path, &FileOptions::default(), &engine()).err().unwrap();
    assert_eq!(again.kind(), ErrorKind::Busy);
    assert!(again.to_string().contains("lock"), "{again}");
    assert_eq!(again.path(), Some(&*path));
    drop(device);
    let shared = FileOptions { read_only: true, ..Default::default() };
    let one = FileDevice::open(&path, &shared, &engine()).unwrap();
    let two = FileDevice::open(&path, &shared, &engine()).unwrap();
    let refused = FileDevice::open(&path, &FileOptions::default(), &engine()).err().unwrap();
    assert_eq!(refused.kind(), ErrorKind::Busy);
    let write = one.write_from(0, &pattern(4096, 0), BioFlags::empty()).unwrap_err();
    assert_eq!(write.kind(), ErrorKind::ReadOnly);
    drop((one, two));
    FileDevice::open(&path, &FileOptions::default(), &engine()).unwrap();
}

#[test]
fn l8_shrunk_file_is_detected_and_named() {
    for direct_io in [DirectIo::Auto, DirectIo::Off] {
        let device = create(&format!("shrink-{direct_io}"), 1 << 20, direct_io);
        device.check_unchanged().unwrap();
        let other = std::fs::OpenOptions::new().write(true).open(device.path()).unwrap();
        other.set_len(300_100).unwrap();
        let mut buf = AlignedBuf::new(64 << 10);
        device.read_into(0, &mut buf).unwrap();
        for offset in [512 << 10, 294_912] {
            let e = device.read_into(offset, &mut buf).unwrap_err();
            assert_eq!(e.kind(), ErrorKind::ChangedBelow, "{e}");
            assert_eq!(e.path(), Some(device.path()));
        }
        assert_eq!(device.check_unchanged().unwrap_err().kind(), ErrorKind::ChangedBelow);
        other.set_len(1 << 20).unwrap();
        std::fs::rename(device.path(), path("shrunk-away")).unwrap();
        assert_eq!(device.check_unchanged().unwrap_err().kind(), ErrorKind::ChangedBelow);
    }
}

#[test]
fn l1_modes_follow_the_rules_and_say_why() {
    let device = create("modes", 1 << 20, DirectIo::Auto);
    let (on, why) = device.direct_io();
    assert!(!why.is_empty());
    let limits = device.limits();
    device.set_direct_io(DirectIo::Off).unwrap();
    assert_eq!(device.direct_io(), (false, "switched off".to_string()));
    // A request on its way fits before and after a switch.
    let (a, b) = (device.limits(), limits);
    assert_eq!((a.memory_align, a.logical_block), (b.memory_align, b.logical_block));
    if !crate::common::requires(&format!("a file that is eligible for direct I/O: {why}"), on) {
        return;
    }
    device.set_direct_io(DirectIo::On).unwrap();
    assert!(device.direct_io().0);
    let mut odd = AlignedBuf::new(8192);
    let e = device.read_into(0, &mut odd[1..4097]).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Unaligned, "F4");
    let path = device.path().to_path_buf();
    drop(device);
    let shifted = FileOptions { offset: 100, ..Default::default() };
    let auto = FileDevice::open(&path, &shifted, &engine()).unwrap();
    assert!(!auto.direct_io().0);
    assert!(auto.direct_io().1.contains("offset 100"), "{}", auto.direct_io().1);
    drop(auto);
    let forced = FileOptions { direct_io: DirectIo::On, ..shifted };
    let e = FileDevice::open(&path, &forced, &engine()).err().unwrap();
    assert_eq!(e.kind(), ErrorKind::Unsupported);
    assert!(e.to_string().contains("offset 100"), "{e}");
}

#[test]
fn modes_and_engines_have_names() {
    for text in ["auto", "on", "off"] {
        assert_eq!(text.parse::<DirectIo>().unwrap().to_string(), text);
    }
    for text in ["auto", "io_uring", "threads"] {
        assert_eq!(text.parse::<Aio>().unwrap().to_string(), text);
    }
}

#[test]
fn holes_are_reported() {
    let device = create("holes", 4 << 20, DirectIo::Off);
    device.write_from(1 << 20, &pattern(65536, 0), BioFlags::empty()).unwrap();
    let flush = io(&*device, BioOp::Flush, 0, 0, DataRef::None, BioFlags::empty());
    block_on(flush).result.unwrap();
    let runs = block_on(device.extents(0, 4 << 20, 99)).unwrap();
    assert_eq!(
        runs,
        [
            (0, 1 << 20, false),
            (1 << 20, 65536, true),
            ((1 << 20) + 65536, (3 << 20) - 65536, false)
        ]
    );
    assert_eq!(block_on(device.extents(1 << 20, 4096, 99)).unwrap(), [(1 << 20, 4096, true)]);
    let punch = io(&*device, BioOp::Discard, 0, 4 << 20, DataRef::None, BioFlags::empty());
    block_on(punch).result.unwrap();
    assert_eq!(block_on(device.extents(0, 4 << 20, 99)).unwrap(), [(0, 4 << 20, false)]);
}

#[test]
fn l2_direct_io_is_switched_under_load() {
    for (aio, engine) in engines() {
        let options = FileOptions { create_size: Some(4 << 20), ..Default::default() };
        let device = FileDevice::open(path(&format!("switch-{aio}")), &options, &engine).unwrap();
        if !crate::common::requires("a file that is eligible for direct I/O", device.direct_io().0)
        {
            return;
        }
        let stop = AtomicBool::new(false);
        std::thread::scope(|s| {
            for thread in 0..4u64 {
                let (device, stop) = (&device, &stop);
                s.spawn(move || {
                    let mut round = 0u64;
                    while !stop.load(Ordering::Acquire) || round < 50 {
                        let offset = (thread * 256 + round % 256) * 4096;
                        let data = crate::common::pattern(4096, offset ^ round);
                        let bio = DataRef::Buf(AlignedBuf::copy_of(&data));
                        let flags = BioFlags::empty();
                        crate::common::submit(&**device, BioOp::Write, offset, 4096, bio, flags)
                            .unwrap();
                        let mut back = AlignedBuf::new(4096);
                        device.read_into(offset, &mut back).unwrap();
                        assert!(back[..] == data[..], "each mode reads what the other wrote");
                        round += 1;
                    }
                });
            }
            for round in 0..40 {
                let on = round % 2 == 1;
                device.set_direct_io(if on { DirectIo::On } else { DirectIo::Off }).unwrap();
                assert_eq!(device.direct_io().0, on);
            }
            stop.store(true, Ordering::Release);
        });
    }
}

#[test]
fn l7_l8_full_host_file_system_gives_no_space_error() {
    if !crate::common::requires("root, to mount a small tmpfs", crate::common::is_root()) {
        return;
    }
    let mounted = crate::common::Tmpfs::new("full", "256k");
    if !crate::common::requires("permission to mount tmpfs", mounted.is_some()) {
        return;
    }
    let dir = mounted.unwrap();
    for (_, engine) in engines() {
        let path = dir.0.join("sparse");
        let options = FileOptions { create_size: Some(1 << 20), ..Default::default() };
        let device = FileDevice::open(&path, &options, &engine).unwrap();
        assert!(device.direct_io().1.contains("tmpfs"), "{}", device.direct_io().1);
        let pieces = (0..256).map(|i| crate::common::pattern(4096, i)).collect();
        let data = DataRef::Mem(Box::new(crate::common::Pieces(pieces)));
        let flags = BioFlags::empty();
        let done = crate::common::submit(&*device, BioOp::Write, 0, 1 << 20, data, flags);
        let e = done.unwrap_err();
        assert_eq!((e.kind(), e.range()), (ErrorKind::NoSpace, Some((0, 1 << 20))), "{e}");
        assert_eq!(e.path(), Some(&*path));
        // tmpfs punches holes but has no call that keeps the blocks: both requests return zeros.
        crate::common::plain(&*device, BioOp::WriteZeroes, 0, 65536).unwrap();
        let none = DataRef::None;
        let keep = BioFlags::NO_UNMAP;
        crate::common::submit(&*device, BioOp::WriteZeroes, 0, 8192, none, keep).unwrap();
        let fast = keep | BioFlags::FAST_ONLY;
        let refused =
            crate::common::submit(&*device, BioOp::WriteZeroes, 0, 8192, DataRef::None, fast);
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::Unsupported);
        let mut back = crate::common::pattern(65536, 1);
        device.read_into(0, &mut back).unwrap();
        assert!(back.iter().all(|b| *b == 0));
        drop(device);
        std::fs::remove_file(path).unwrap();
    }
}

/// The descriptors of this process for a file: each number, and whether it is for direct I/O.
fn descriptors(path: &Path) -> Vec<(RawFd, bool)> {
    let wanted = rustix::fs::stat(path).unwrap();
    let all = std::fs::read_dir("/proc/self/fd").unwrap();
    let numbers = all.filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok());
    numbers
        .filter_map(|number: RawFd| {
            // SAFETY: the descriptor is only borrowed for a stat call. Another test may have closed
            // it, or opened another file with this number: then it is not the file of this test.
            let fd = unsafe { BorrowedFd::borrow_raw(number) };
            let stat = rustix::fs::fstat(fd).ok()?;
            let is_direct = fcntl_getfl(fd).ok()?.contains(OFlags::DIRECT);
            let same = (stat.st_dev, stat.st_ino) == (wanted.st_dev, wanted.st_ino);
            same.then_some((number, is_direct))
        })
        .collect()
}

/// A second reference to the open file description by which this process has the file open for
/// direct I/O, or for buffered I/O. A request in flight holds such a reference.
fn reference(path: &Path, direct: bool) -> OwnedFd {
    let found: Vec<_> = descriptors(path).into_iter().filter(|(_, is)| *is == direct).collect();
    assert_eq!(found.len(), 1, "{}: direct {direct}", path.display());
    // SAFETY: the device of the caller has the descriptor.
    unsafe { BorrowedFd::borrow_raw(found[0].0) }.try_clone_to_owned().unwrap()
}

/// What a kill -9 does to a device: its descriptors are closed, and no destructor runs. The
/// reference of a request in flight stays.
fn kill(device: Arc<FileDevice>, in_flight: &OwnedFd) {
    let path = device.path().to_path_buf();
    std::mem::forget(device);
    for (number, _) in descriptors(&path) {
        if number != in_flight.as_raw_fd() {
            // SAFETY: the device had the descriptor, and nothing uses the device any more.
            drop(unsafe { OwnedFd::from_raw_fd(number) });
        }
    }
}

/// Opens it. A child that another test has forked holds copies of the descriptors of a killed
/// device, and so its lock, up to its exec.
fn open_when_free(path: &Path, options: &FileOptions) -> Arc<FileDevice> {
    let start = Instant::now();
    loop {
        match FileDevice::open(path, options, &engine()) {
            Err(e) if e.kind() == ErrorKind::Busy && start.elapsed() < PATIENCE => {
                std::thread::sleep(Duration::from_millis(5));
            }
            opened => return opened.unwrap(),
        }
    }
}

/// lock.K9. The lock was on the descriptor for buffered I/O alone, and direct I/O uses another open
/// file description. So a process that opened the image right after a kill -9 could have the lock
/// while direct writes of the killed process were in flight, and these damaged what it wrote.
#[test]
fn lock_lasts_until_each_writing_descriptor_is_closed() {
    let none = FileOptions { lock_wait: Duration::ZERO, ..FileOptions::default() };
    for (mode, kept_direct) in [
        (DirectIo::Auto, true),
        (DirectIo::Auto, false),
        (DirectIo::Off, true),
        (DirectIo::Off, false),
    ] {
        let device = create(&format!("locked-{mode}-{kept_direct}"), 1 << 20, mode);
        if mode == DirectIo::Off {
            device.set_direct_io(DirectIo::On).unwrap();
        }
        let (on, why) = device.direct_io();
        if !crate::common::requires(&format!("a file that is eligible for direct I/O: {why}"), on) {
            return;
        }
        let path = device.path().to_path_buf();
        let in_flight = reference(&path, kept_direct);
        let open = |options: FileOptions| FileDevice::open(&path, &options, &engine());
        let reader = |direct_io| FileOptions { read_only: true, direct_io, ..none.clone() };
        let is_refused = |options| open(options).err().map(|e| e.kind()) == Some(ErrorKind::Busy);
        assert!(is_refused(none.clone()), "K9: opened {mode}: the device lives");
        kill(device, &in_flight);
        assert!(is_refused(none.clone()), "opened {mode}: a write lives, direct: {kept_direct}");
        assert!(is_refused(reader(mode)), "opened {mode}: a write lives, direct: {kept_direct}");
        drop(in_flight);
        drop(open_when_free(&path, &none));
        // Readers share the lock, with direct I/O or without.
        let readers = [DirectIo::Auto, DirectIo::Off, DirectIo::Auto];
        let readers = readers.map(|mode| open(reader(mode)).unwrap());
        assert!(is_refused(none.clone()), "there are readers");
        drop(readers);
        drop(open(none.clone()).unwrap());
    }
}

/// Exchanges the names of a file and a FIFO until it is told to stop, or an open waits. Whether one
/// did: its other end is opened then, so that it returns.
fn exchange_until(stop: &AtomicBool, opens: &AtomicU64, file: &Path, fifo: &Path) -> bool {
    let cwd = rustix::fs::CWD;
    let (mut seen, mut since) = (0, Instant::now());
    while !stop.load(Ordering::Acquire) {
        rustix::fs::renameat_with(cwd, file, cwd, fifo, RenameFlags::EXCHANGE).unwrap();
        let now = opens.load(Ordering::Acquire);
        if now != seen {
            (seen, since) = (now, Instant::now());
        } else if since.elapsed() > Duration::from_secs(20) {
            for path in [file, fifo] {
                let flags = OFlags::WRONLY | OFlags::NONBLOCK;
                let _other_end = rustix::fs::open(path, flags, Mode::empty());
            }
            return true;
        }
    }
    false
}

/// The story: the name of a file led to a FIFO when its kind had been checked and before it was
/// opened. Without a writer of the FIFO the open waited for ever.
#[test]
fn fifo_in_place_of_a_file_is_not_waited_for() {
    let (file, fifo) = (path("exchanged"), path("exchanged-fifo"));
    std::fs::write(&file, vec![0; 4096]).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, Mode::RUSR | Mode::WUSR).unwrap();
    let engine = Engine::new(Aio::Threads).unwrap();
    let direct_io = DirectIo::Off;
    let options = FileOptions { read_only: true, direct_io, ..FileOptions::default() };
    let (stop, opens) = (AtomicBool::new(false), AtomicU64::new(0));
    let has_waited = std::thread::scope(|s| {
        let exchange = s.spawn(|| exchange_until(&stop, &opens, &file, &fifo));
        let (mut refused, end) = (0, Instant::now() + PATIENCE);
        // However seldom the other thread runs: the two have to meet once.
        while (opens.fetch_add(1, Ordering::AcqRel) < 20_000 || refused == 0)
            && Instant::now() < end
            && !exchange.is_finished()
        {
            if let Err(error) = FileDevice::open(&file, &options, &engine) {
                assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
                refused += 1;
            }
        }
        stop.store(true, Ordering::Release);
        assert!(refused > 0);
        exchange.join().unwrap()
    });
    assert!(!has_waited, "an open waited for the other end of a FIFO");
    std::fs::remove_file(&file).unwrap();
    std::fs::remove_file(&fifo).unwrap();
}
