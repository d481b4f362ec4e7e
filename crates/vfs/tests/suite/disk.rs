//! Tests of the file system that shows an export as its only file.
//!
//! No locks.

use forebay_base::ErrorKind;
use forebay_base::task::block_on;
use forebay_testkit::mem_export::MemExport;
use forebay_vfs::disk::{Disk, NAME};
use forebay_vfs::*;
use std::sync::Arc;

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
