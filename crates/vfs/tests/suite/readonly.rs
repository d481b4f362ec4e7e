//! Tests of the read-only file system.
//!
//! No locks.

use forebay_base::task::block_on;
use forebay_base::{ErrorKind, IoFlags, Result};
use forebay_testkit::mem_fs::MemFs;
use forebay_vfs::*;
use std::sync::Arc;

/// readonly.R1: reading works, everything else is refused by its kind, and what is below stays as
/// it was.
#[test]
fn r1_every_change_is_refused() {
    let below: Arc<dyn FileSystem> = Arc::new(MemFs::default());
    let (root, new) = (Ino::ROOT, NewInode::of(FileKind::File, 0o644));
    let name = Name::new(b"a").unwrap();
    let both = OpenFlags::READ | OpenFlags::WRITE;
    let (attr, file) = block_on(below.create(root, name, &new, both)).unwrap();
    file.write_slice(0, b"content", IoFlags::empty(), Privileges::Drop).unwrap();
    let before = block_on(below.getattr(attr.ino)).unwrap();
    let fs = ReadOnly::new(below.clone());
    let other = Name::new(b"b").unwrap();
    let refused = |done: Result<()>| done.unwrap_err().kind() == ErrorKind::ReadOnly;
    assert!(refused(block_on(fs.unlink(root, name))));
    assert!(refused(block_on(fs.rename(root, name, root, other, RenameFlags::empty()))));
    assert!(refused(block_on(fs.mkdir(root, other, &new)).map(drop)));
    assert!(refused(block_on(fs.setattr(attr.ino, &SetAttr::size(0))).map(drop)));
    assert!(refused(block_on(fs.open(attr.ino, both)).map(drop)));
    assert!(refused(block_on(fs.create(root, other, &new, OpenFlags::READ)).map(drop)));
    let (_, file) = block_on(fs.create(root, name, &new, OpenFlags::READ)).unwrap();
    let mut back = [0; 7];
    assert_eq!(file.read_slice(0, &mut back, IoFlags::empty()).unwrap(), 7);
    assert_eq!(&back, b"content");
    let written = file.write_slice(0, b"x", IoFlags::empty(), Privileges::Drop);
    assert!(refused(written.map(drop)));
    block_on(fs.syncfs()).unwrap();
    let after = block_on(below.getattr(attr.ino)).unwrap();
    assert_eq!((after.size, after.mtime, after.ctime), (7, before.mtime, before.ctime));
}
