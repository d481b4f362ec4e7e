//! What the world below does to a file: it is full, it is cut off.

use crate::dir::{Dir, cache, open};
use forebay::{ErrorKind, ExportMode, IoFlags, RawOptions};
use forebay_base::buf::AlignedBuf;
use forebay_base::task::block_on;
use forebay_block::target::{ErrorDevice, Fault};
use forebay_block::{BioOp, RamDevice};
use std::process::Command;
use std::sync::Arc;

/// A small file system in memory, gone with the value.
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

#[test]
fn l8_a_full_file_system_is_reported_and_nothing_is_lost() {
    let dir = Dir::new("full");
    let small = Small::mount(&dir);
    std::fs::write(small.0.join("ballast"), vec![1; 1 << 20]).unwrap();
    let cache = cache(16 << 20);
    let file = open(&cache, small.0.join("sparse"), 8 << 20);
    // More than there is room for, less than the cache takes.
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
    let _told = file.sync_data();
    file.sync_data().unwrap();
    drop(file);
    let stored = std::fs::read(small.0.join("sparse")).unwrap();
    assert!(stored[4096..4096 + data.len()] == data[..]);
}

/// Once failed write-outs filled half of the dirty limit, further writes were refused with EIO whatever
/// had failed: a guest on a full host file system saw a broken disk instead of a full one.
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
        // What fails stays dirty; without this the writer could get ahead of the failures.
        let _fails_when_full = file.sync_data();
    }
    let error = refused.expect("2 MiB do not hold 64");
    assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
    // The same as a front end sees it.
    let write =
        file.export(ExportMode::Cached).write(32 << 20, AlignedBuf::new(4096), IoFlags::empty());
    assert_eq!(block_on(write).1.unwrap_err().kind(), ErrorKind::NoSpace);
}

#[test]
fn l8_a_file_that_was_cut_off_from_outside_is_named() {
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
    // What is still there is served.
    assert_eq!(file.read_at(&mut buf, 0).unwrap(), 4096);
    assert_eq!(buf, [1; 4096]);
}

/// Dirty data of a file that was closed with a broken device stayed in the cache for ever, counted
/// as dirty, and slowed the other files down.
#[test]
fn a_broken_file_leaves_nothing_in_the_cache_when_it_is_closed() {
    let cache = cache(8 << 20);
    let broken = ErrorDevice::new(Arc::new(RamDevice::new(4 << 20)));
    broken.arm(Fault { ops: vec![BioOp::Write], ..Fault::default() });
    let file = cache.open_device(broken, &RawOptions::default()).unwrap();
    file.write_at(&vec![1; 300_000], 0).unwrap();
    assert!(file.sync_data().is_err());
    assert_eq!(cache.unwritten_bytes(), 300_000_u64.next_multiple_of(4096));
    drop(file);
    // The flusher may hold the file for a moment longer.
    while cache.unwritten_bytes() > 0 {
        std::thread::yield_now();
    }
    cache.drop_clean();
    let stats = cache.stats();
    assert_eq!((stats.frames_free, stats.folios), (stats.frames_total, 0));
}
