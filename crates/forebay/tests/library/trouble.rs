//! Failures below a file: a full file system, a file truncated from outside, a failing device.

use crate::dir::{Dir, cache, config, open, until};
use forebay::{
    Cache, CreateVolume, DirectIo, Error, ErrorKind, ExportMode, IoFlags, OpenOptions, Volume,
    VolumeOptions,
};
use forebay_base::buf::AlignedBuf;
use forebay_base::task::block_on;
use forebay_block::{BioOp, RamDevice};
use forebay_testkit::target::{ErrorDevice, Fault};
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

/// A small tmpfs, unmounted when the value is dropped.
struct Small(std::path::PathBuf);

impl Small {
    fn mount(dir: &Dir) -> Self {
        let path = dir.path("small");
        std::fs::create_dir_all(&path).unwrap();
        let arguments = ["-t", "tmpfs", "-o", "size=2m", "forebay-test"];
        let done = Command::new("mount").args(arguments).arg(&path).status();
        let done = done.expect("mount is installed");
        assert!(done.success(), "mounting a tmpfs needs root");
        Self(path)
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _gone = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// A cache whose dirty limit is far more than twice the bytes that fail in these tests. So no write
/// is refused, however early the background write-out begins to fail.
fn large_cache() -> Cache {
    Cache::new(config(16 << 20).dirty_bytes(8 << 20)).unwrap()
}

#[test]
fn l8_full_host_file_system_is_reported_without_loss() {
    let dir = Dir::new("full");
    let small = Small::mount(&dir);
    std::fs::write(small.0.join("ballast"), vec![1; 1 << 20]).unwrap();
    let cache = large_cache();
    let file = open(&cache, small.0.join("sparse"), 8 << 20);
    // More than there is space for, less than the cache takes.
    let data: Vec<u8> = (0..(3usize << 19)).map(|i| (i % 251) as u8).collect();
    file.write_at(&data, 4096).unwrap();
    let error = file.sync_data().unwrap_err();
    assert_eq!((error.kind(), error.errno()), (ErrorKind::NoSpace, 28), "{error}");
    assert!(file.sync_data().is_err(), "still not durable");
    let mut back = vec![0; data.len()];
    file.read_at(&mut back, 4096).unwrap();
    assert!(back == data);
    // Space is freed: the same data is written, and then it is durable.
    std::fs::remove_file(small.0.join("ballast")).unwrap();
    let _reported = file.sync_data();
    file.sync_data().unwrap();
    drop(file);
    let stored = std::fs::read(small.0.join("sparse")).unwrap();
    assert!(stored[4096..4096 + data.len()] == data[..]);
}

/// A closed file with unwritten data keeps the size that its openers gave it.
#[test]
fn closed_file_with_unwritten_data_keeps_size() {
    let dir = Dir::new("kept-size");
    let small = Small::mount(&dir);
    std::fs::write(small.0.join("ballast"), vec![1; 1 << 20]).unwrap();
    let (cache, path) = (large_cache(), small.0.join("sparse"));
    std::fs::write(&path, []).unwrap();
    let options = OpenOptions::read_write().direct_io(DirectIo::Off).clone();
    let open = || options.open(&cache, &path).unwrap();
    let mut want = vec![3; 3 << 19];
    let file = open();
    file.write_at(&want, 0).unwrap();
    file.sync_data().unwrap_err();
    drop(file);
    assert!(cache.unwritten_bytes() > 0, "all data is written: nothing tested");
    // Each opener finds what the one before it left, and leaves another size.
    for len in [(3usize << 19) - 5000, 5_000_000, 4_000_001] {
        let file = open();
        assert_eq!(file.size().unwrap(), want.len() as u64);
        file.set_len(len as u64).unwrap();
        want.resize(len, 0);
    }
    let file = open();
    assert!(cache.unwritten_bytes() > 0, "all data is written: nothing tested");
    let mut back = vec![1; want.len() + 1];
    assert_eq!(file.read_at(&mut back, 0).unwrap(), want.len());
    assert!(back[..want.len()] == want);
    drop(file);
    std::fs::remove_file(small.0.join("ballast")).unwrap();
    until("all of it is written", || cache.unwritten_bytes() == 0);
    assert!(std::fs::read(&path).unwrap() == want);
    assert_eq!(open().size().unwrap(), want.len() as u64);
}

/// The story: once failed write-outs filled half of the dirty limit, further writes were refused
/// with EIO whatever had failed. A guest on a full host file system saw a broken disk instead of a
/// full one.
#[test]
fn l8_writes_refused_for_want_of_space_say_so() {
    let dir = Dir::new("enospc");
    let small = Small::mount(&dir);
    let cache = cache(16 << 20);
    let file = open(&cache, small.0.join("sparse"), 64 << 20);
    let data = vec![7; 64 << 10];
    let mut refused = None;
    for at in 0..1024 {
        if let Err(error) = file.write_at(&data, at << 16) {
            refused = Some(error);
            break;
        }
        // Failed blocks stay dirty. Without this wait the writer could get ahead of the failures.
        let _fails_when_full = file.sync_data();
    }
    let error = refused.expect("2 MiB do not hold 64");
    assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
    // The same as a front end sees it.
    let write = file.export(ExportMode::Cached).unwrap().write(
        32 << 20,
        AlignedBuf::new(4096),
        IoFlags::empty(),
    );
    assert_eq!(block_on(write).1.unwrap_err().kind(), ErrorKind::NoSpace);
}

#[test]
fn l8_file_truncated_by_another_process_is_named() {
    let dir = Dir::new("cut");
    let cache = cache(8 << 20);
    let file = open(&cache, dir.path("image"), 4 << 20);
    file.write_at(&vec![1; 4 << 20], 0).unwrap();
    file.sync_all().unwrap();
    cache.drop_clean();
    let outside = std::fs::OpenOptions::new().write(true).open(dir.path("image")).unwrap();
    outside.set_len(1 << 20).unwrap();
    let mut buf = [0; 4096];
    for flags in [IoFlags::empty(), IoFlags::UNCACHED] {
        let error = file.read_at_with(&mut buf, 3 << 20, flags).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ChangedBelow, "{error}");
        assert!(error.to_string().contains("image"), "{error}");
    }
    // The rest of the file is still served.
    assert_eq!(file.read_at(&mut buf, 0).unwrap(), 4096);
    assert_eq!(buf, [1; 4096]);
}

fn broken() -> (Arc<ErrorDevice>, u64) {
    let device = ErrorDevice::new(Arc::new(RamDevice::new(4 << 20)));
    let fault = device.arm(Fault { ops: vec![BioOp::Write], ..Fault::default() });
    (device, fault)
}

const LOST: u64 = 300_000_u64.next_multiple_of(4096);

/// The story: closing a file dropped the data that one sync could not write, with a line in the
/// log. Now the cache keeps the data and tries again. When the device works again it writes the
/// data, releases the file, and counts none of it any more.
#[test]
fn failed_writes_of_closed_file_are_kept_and_retried() {
    let cache = cache(8 << 20);
    let (device, fault) = broken();
    let file = OpenOptions::read_write().open_device(&cache, device.clone()).unwrap();
    file.write_at(&vec![7; 300_000], 0).unwrap();
    assert!(file.sync_data().is_err());
    assert_eq!(file.failed_bytes().unwrap(), LOST);
    drop(file);
    assert_eq!(cache.unwritten_bytes(), LOST, "accepted bytes were dropped");
    assert!(cache.shutdown().is_err(), "and the shutdown reports it");
    device.disarm(fault);
    until("it was tried again", || {
        let stats = cache.stats();
        stats.dirty_bytes + stats.writeback_bytes + stats.unflushed_bytes == 0
    });
    let mut stored = vec![0; LOST as usize];
    forebay_block::BlockDevice::read_into(&*device, 0, &mut stored).unwrap();
    assert!(stored[..300_000].iter().all(|b| *b == 7));
    cache.shutdown().unwrap();
    until("the file is released", || Arc::strong_count(&device) == 1);
    cache.drop_clean();
    let stats = cache.stats();
    assert_eq!((stats.frames_free, stats.folios), (stats.frames_total, 0));
}

/// Unwritten data is only dropped on request: of an open file, of a closed one by its name, or with
/// the cache.
#[test]
fn failed_writes_are_dropped_only_on_request() {
    let cache = cache(8 << 20);
    for close_first in [false, true] {
        let (device, _) = broken();
        let file = OpenOptions::read_write().open_device(&cache, device.clone()).unwrap();
        file.write_at(&vec![1; 300_000], 0).unwrap();
        assert!(file.sync_data().is_err());
        if close_first {
            drop(file);
            assert_eq!(cache.drop_failed("error(ram)").unwrap(), LOST);
        } else {
            assert_eq!(file.discard_failed().unwrap(), LOST);
            assert_eq!((file.failed_bytes().unwrap(), file.discard_failed().unwrap()), (0, 0));
            let mut back = [9; 4096];
            file.read_at(&mut back, 0).unwrap();
            assert_eq!(back, [0; 4096], "the device's bytes are the file's again");
            let _reported = file.sync_data();
            file.sync_data().unwrap();
            drop(file);
        }
        assert_eq!(cache.unwritten_bytes(), 0);
        until("the file is released", || Arc::strong_count(&device) == 1);
        cache.drop_clean();
        let stats = cache.stats();
        assert_eq!((stats.frames_free, stats.folios), (stats.frames_total, 0));
        assert_eq!(cache.drop_failed("error(ram)").unwrap_err().kind(), ErrorKind::NotFound);
    }
    // And with the cache: nothing is left that holds the device.
    let (device, _) = broken();
    let file = OpenOptions::read_write().open_device(&cache, device.clone()).unwrap();
    file.write_at(&vec![1; 300_000], 0).unwrap();
    drop(file);
    drop(cache);
    until("the device is released", || Arc::strong_count(&device) == 1);
}

/// The story: the last opener closed the file while a retry was in flight. A retry that failed
/// dirtied folios of a file without openers, and one that succeeded left them unflushed, both for
/// ever.
#[test]
fn close_during_retry_leaves_nothing_dirty() {
    let cache = cache(8 << 20);
    cache.tune("dirty_background_bytes", "0").unwrap();
    for round in 0..60u32 {
        let (device, fault) = broken();
        let file = OpenOptions::read_write().open_device(&cache, device.clone()).unwrap();
        file.write_at(&vec![1; 300_000], 0).unwrap();
        if round % 2 == 0 {
            assert!(file.sync_data().is_err());
        }
        (0..round % 7).for_each(|_| std::thread::yield_now());
        drop(file);
        if round % 3 == 0 {
            cache.drop_failed("error(ram)").unwrap();
        }
        device.disarm(fault);
        until("nothing counts against the limits", || {
            let stats = cache.stats();
            stats.dirty_bytes + stats.writeback_bytes + stats.unflushed_bytes == 0
        });
        until("the file is released", || Arc::strong_count(&device) == 1);
    }
    cache.drop_clean();
    let stats = cache.stats();
    assert_eq!((stats.frames_free, stats.folios), (stats.frames_total, 0));
}

/// A raw file that could not be written is found again when it is opened, with its data and its
/// error.
#[test]
fn closed_file_without_space_is_reopened_with_its_data() {
    let dir = Dir::new("full-again");
    let small = Small::mount(&dir);
    std::fs::write(small.0.join("ballast"), vec![1; 1 << 20]).unwrap();
    let cache = large_cache();
    let path = small.0.join("sparse");
    let file = open(&cache, &path, 8 << 20);
    let data: Vec<u8> = (0..(3usize << 19)).map(|i| (i % 251) as u8).collect();
    file.write_at(&data, 4096).unwrap();
    drop(file);
    assert!(cache.unwritten_bytes() > 0);
    let file = open(&cache, &path, 8 << 20);
    let mut back = vec![0; data.len()];
    file.read_at(&mut back, 4096).unwrap();
    assert!(back == data, "accepted bytes were dropped");
    assert!(file.sync_data().is_err(), "not durable yet");
    std::fs::remove_file(small.0.join("ballast")).unwrap();
    let _reported = file.sync_data();
    file.sync_data().unwrap();
    drop(file);
    let stored = std::fs::read(&path).unwrap();
    assert!(stored[4096..4096 + data.len()] == data[..]);
}

/// Opens a device that was closed with an unreported error. Returns how many syncs of the new
/// opener report it.
fn reports_after(cache: &forebay::Cache, open: impl Fn() -> forebay::File) -> usize {
    until("all data is written", || {
        let stats = cache.stats();
        stats.dirty_bytes + stats.writeback_bytes + stats.unflushed_bytes == 0
    });
    // An opener that does not sync sees no error, and takes none away from others.
    open().read_at(&mut [0; 4096], 0).unwrap();
    let file = open();
    let reports = (0..5).filter(|_| file.sync_data().is_err()).count();
    drop(file);
    open().sync_data().expect("an earlier sync reported it");
    reports
}

/// The story: the sync at close counted as a report, and a released file took its unreported error
/// with it. So one opener wrote data that was not durable, and the next opener's sync succeeded.
#[test]
fn error_at_close_is_reported_to_next_opener() {
    let cache = cache(8 << 20);
    let (device, fault) = broken();
    let open = || OpenOptions::read_write().open_device(&cache, device.clone()).unwrap();
    let file = open();
    file.write_at(&[7; 300_000], 0).unwrap();
    drop(file);
    device.disarm(fault);
    assert_eq!(
        reports_after(&cache, open),
        1,
        "durable by now; the earlier failure is reported once"
    );
    // Each sync reports bytes that may be lost for good, until all openers have closed the file.
    let file = open();
    file.write_at_with(&[8; 8192], 0, IoFlags::DIRECT | IoFlags::FALLBACK).unwrap();
    let fault = device.arm(Fault { ops: vec![BioOp::Flush], ..Fault::default() });
    drop(file);
    device.disarm(fault);
    assert_eq!(reports_after(&cache, open), 5, "sticky");
    // Another object is another file, also where the first one was.
    drop(device);
    let (device, fault) = broken();
    device.disarm(fault);
    OpenOptions::read_write().open_device(&cache, device).unwrap().sync_data().unwrap();
}

/// An unreported error outlives a raw file, which the background releases when its file system has
/// space again.
#[test]
fn error_of_closed_raw_file_is_reported_to_next_opener() {
    let dir = Dir::new("unreported");
    let small = Small::mount(&dir);
    let ballast = small.0.join("ballast");
    std::fs::write(&ballast, vec![1; 1 << 20]).unwrap();
    let cache = large_cache();
    let path = small.0.join("sparse");
    let file = open(&cache, &path, 8 << 20);
    file.write_at(&vec![3; 3 << 19], 0).unwrap();
    drop(file);
    assert!(cache.unwritten_bytes() > 0, "all data is written: nothing tested");
    let rows = || cache.budget().iter().find(|row| row.0 == "open files").unwrap().1;
    std::fs::remove_file(ballast).unwrap();
    until("the file is released, and its error is counted (T1)", || rows() == 1024);
    // An opener for reading only does not sync, so it gets no report.
    let reader = crate::dir::options(8 << 20).write(false).create(false).clone();
    reader.open(&cache, &path).unwrap().sync_data().unwrap();
    assert_eq!(reports_after(&cache, || open(&cache, &path, 8 << 20)), 1);
    // The flusher may hold the file for a moment after its last opener has closed it.
    until("the file is released, and no error is kept of it", || rows() == 0);
}

fn volume_at(image: &Path, cache: &Cache, size: u64) -> Volume {
    Volume::create(image, &CreateVolume::default().size(size)).unwrap();
    // Through the system's page cache, so that a full file system shows at the first write.
    let options = VolumeOptions::default().direct_io(DirectIo::Off);
    cache.open_volume(image, &options).unwrap()
}

/// The error names the file as the caller did, and no inode number in its place.
#[track_caller]
fn names_path(error: &Error, kind: ErrorKind, start: &str) {
    assert_eq!(error.kind(), kind, "{error}");
    assert_eq!(error.path(), Some(Path::new("/folder/notes")), "{error}");
    assert!(error.to_string().starts_with(start), "{error}");
}

/// The story: a damaged block of a file was reported as "read #3 at 4096+4096", which a caller that
/// opened the file by path cannot make use of.
#[test]
fn read_error_in_volume_names_path_of_file() {
    let dir = Dir::new("names-read");
    let (cache, image) = (cache(16 << 20), dir.path("volume"));
    let volume = volume_at(&image, &cache, 32 << 20);
    volume.create_dir("/folder").unwrap();
    let content: Vec<u8> = (0..64 << 10).map(|i: u32| (i.wrapping_mul(i) >> 7) as u8).collect();
    volume.write("/folder/notes", &content).unwrap();
    volume.close().unwrap();
    cache.drop_clean();
    let stored = std::fs::read(&image).unwrap();
    let block = &content[8192..12288];
    let at = stored.windows(4096).step_by(4096).position(|w| w == block).unwrap() as u64 * 4096;
    let outside = std::fs::OpenOptions::new().write(true).open(&image).unwrap();
    outside.write_all_at(&[!block[0]], at).unwrap();

    let volume = cache.open_volume(&image, &VolumeOptions::default()).unwrap();
    let file = volume.open_file("/folder/notes").unwrap();
    let mut buf = vec![0; 4096];
    let damaged = |error: &Error| {
        names_path(error, ErrorKind::Corrupt, "read /folder/notes at 8192+4096: corrupt");
        assert!(error.to_string().contains("checksum"), "{error}");
    };
    for flags in [IoFlags::empty(), IoFlags::UNCACHED, IoFlags::DIRECT | IoFlags::FALLBACK] {
        damaged(&file.read_at_with(&mut buf, 8192, flags).unwrap_err());
    }
    damaged(&file.read_exact_at(&mut buf, 8192).unwrap_err());
    damaged(&file.reopen().unwrap().read_at(&mut buf, 8192).unwrap_err());
    damaged(&file.pin(8192, 4096, IoFlags::empty()).unwrap_err());
    let (buf, read) = block_on(file.read_at_async(AlignedBuf::new(4096), 8192, IoFlags::UNCACHED));
    assert_eq!(buf.len(), 4096);
    damaged(&read.unwrap_err());
    let mut all = vec![];
    let streamed = file.stream().read_to_end(&mut all).unwrap_err();
    names_path(Error::within(&streamed).unwrap(), ErrorKind::Corrupt, "read /folder/notes");
    names_path(&volume.read("/folder/notes").unwrap_err(), ErrorKind::Corrupt, "read /folder/");
}

/// Errors of writes, syncs and changes of a file name its path, and behind it the image that
/// failed (inside.Z4).
#[test]
fn write_and_sync_errors_in_volume_name_path_of_file() {
    let dir = Dir::new("names-sync");
    let small = Small::mount(&dir);
    let (cache, image) = (large_cache(), small.0.join("volume"));
    let volume = volume_at(&image, &cache, 32 << 20);
    volume.create_dir("/folder").unwrap();
    volume.write("/folder/notes", b"words").unwrap();
    volume.sync().unwrap();
    let file = OpenOptions::read_write().open_in(&volume, "/folder/notes").unwrap();
    let reader = volume.open_file("/folder/notes").unwrap();
    let start = |op: &str| format!("{op} /folder/notes");
    for (refused, op) in [
        (reader.write_at(b"x", 0).map(drop), "write"),
        (reader.append(b"x", IoFlags::empty()).map(drop), "write"),
        (reader.set_len(0), "set size"),
        (reader.trim(0, 4096), "fallocate"),
        (
            block_on(reader.write_at_async(AlignedBuf::new(8), 0, IoFlags::empty())).1.map(drop),
            "write",
        ),
    ] {
        names_path(&refused.unwrap_err(), ErrorKind::BadHandle, &start(op));
    }
    // More than the file system of the image has space for.
    file.write_at(&vec![1; 3 << 20], 0).unwrap();
    for sync in [forebay::File::sync_data, forebay::File::sync_all, |file: &forebay::File| {
        file.clone().close()
    }] {
        let error = sync(&file).unwrap_err();
        names_path(&error, ErrorKind::NoSpace, "write /folder/notes: ");
        assert!(error.to_string().contains(&*image.to_string_lossy()), "{error}");
    }
}
