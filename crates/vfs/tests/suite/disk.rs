//! Tests of the file system that shows an export as its only file.
//!
//! No locks.

use forebay_base::buf::AlignedBuf;
use forebay_base::task::block_on;
use forebay_base::{ErrorKind, IoFlags, Result};
use forebay_testkit::behind::{Before, Behind};
use forebay_testkit::mem_export::MemExport;
use forebay_vfs::disk::{Disk, NAME};
use forebay_vfs::*;
use std::sync::{Arc, Mutex};

/// Front ends use lower cookies for `.` and `..`. The file had one of those, and a listing of the
/// mount would have returned it again and again.
#[test]
fn listing_returns_the_file_once() {
    let fs = Disk::new(Arc::new(MemExport::new(1 << 20)), Timestamp::new(1, 0));
    let listed = block_on(fs.readdir(Ino::ROOT, Cookie::START, 10)).unwrap();
    assert_eq!(listed.len(), 1);
    assert_eq!(&*listed[0].name, NAME.as_bytes());
    assert!(listed[0].cookie >= Cookie::FIRST, "{:?}", listed[0].cookie);
    assert!(block_on(fs.readdir(Ino::ROOT, listed[0].cookie, 10)).unwrap().is_empty());
}

#[test]
fn changes_of_names_are_refused() {
    let fs = Disk::new(Arc::new(MemExport::new(1 << 20)), Timestamp::new(1, 0));
    let (name, new) = (Name::new(b"a").unwrap(), NewInode::of(FileKind::File, 0o644));
    let kind = |done: forebay_base::Result<()>| done.unwrap_err().kind();
    let created = block_on(fs.create(Ino::ROOT, name, &new, OpenFlags::READ)).map(drop);
    assert_eq!(kind(created), ErrorKind::Unsupported);
    let disk = Name::new(NAME.as_bytes()).unwrap();
    assert_eq!(kind(block_on(fs.unlink(Ino::ROOT, disk))), ErrorKind::Unsupported);
    let size = block_on(fs.lookup(Ino::ROOT, disk)).unwrap().size;
    assert_eq!(size, 1 << 20);
}

/// Notes the flags of reads and writes.
struct Noted(Arc<Mutex<Vec<IoFlags>>>);

impl Before for Noted {
    fn flags(&self, flags: IoFlags) {
        self.0.lock().unwrap().push(flags);
    }
}

const SIZE: u64 = 1 << 20;

/// The open file of an export, the flags that the export gets, and the size that the file has.
fn opened() -> (OpenFileRef, Arc<Mutex<Vec<IoFlags>>>, impl Fn() -> u64) {
    let flags = Arc::default();
    let export = Behind::new(Arc::new(MemExport::new(SIZE)), Noted(Arc::clone(&flags)));
    let fs = Disk::new(export, Timestamp::new(1, 0));
    let name = Name::new(NAME.as_bytes()).unwrap();
    let ino = block_on(fs.lookup(Ino::ROOT, name)).unwrap().ino;
    let file = block_on(fs.open(ino, OpenFlags::READ | OpenFlags::WRITE)).unwrap();
    (file, flags, move || block_on(fs.getattr(ino)).unwrap().size)
}

/// disk.O1: each request that would make the file longer or shorter is refused, and reads end at
/// its end.
#[test]
fn o1_file_keeps_size_of_export() {
    let (file, flags, size) = opened();
    let (none, keep) = (IoFlags::empty(), Privileges::Keep);
    let full = |done: Result<()>| assert_eq!(done.unwrap_err().kind(), ErrorKind::NoSpace, "O1");
    for offset in [SIZE - 100, SIZE, u64::MAX - 10] {
        full(block_on(file.write(offset, AlignedBuf::new(512), none, keep)).1.map(drop));
        full(
            file.try_write(offset, &[1; 512], none, keep).expect("it is refused at once").map(drop),
        );
        for how in [
            Fallocate::Allocate { keep_size: false },
            Fallocate::ZeroRange { keep_size: false },
            Fallocate::PunchHole,
        ] {
            full(block_on(file.fallocate(how, offset, 512, keep)));
        }
    }
    assert!(flags.lock().unwrap().is_empty(), "no request reaches the export");
    let read = |offset| block_on(file.read(offset, AlignedBuf::new(512), none)).1.unwrap();
    assert_eq!((read(SIZE - 100), read(SIZE), read(0)), (100, 0, 512), "O1");
    assert_eq!(size(), SIZE);
}

/// disk.O2: `DIRECT` of an opening is not passed to the export, other flags are.
#[test]
fn o2_direct_of_opening_is_not_passed_to_export() {
    let (file, flags, _) = opened();
    let (given, keep) = (IoFlags::DIRECT | IoFlags::FALLBACK | IoFlags::DSYNC, Privileges::Keep);
    let mut bytes = [0; 512];
    file.try_read(0, &mut bytes, given).expect("memory needs no wait").unwrap();
    file.try_write(0, &bytes, given, keep).expect("memory needs no wait").unwrap();
    block_on(file.read(0, AlignedBuf::new(512), given)).1.unwrap();
    block_on(file.read(SIZE - 100, AlignedBuf::new(512), given)).1.unwrap();
    block_on(file.write(0, AlignedBuf::new(512), given, keep)).1.unwrap();
    assert_eq!(*flags.lock().unwrap(), [IoFlags::DSYNC; 5], "O2");
}
