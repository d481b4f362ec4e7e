//! The file system in memory: its limits, its snapshots, and that its books agree after anything.
//!
//! No locks.

use forebay_base::task::block_on;
use forebay_base::{ErrorKind, IoFlags, Result};
use forebay_testkit::fs_check::{Limits, OpGen, Runner, Times, Tree};
use forebay_testkit::mem_fs::{MemFs, MemOptions};
use forebay_vfs::{
    Attr, FileKind, FileSystem, Ino, Name, NewInode, OpenFlags, Privileges, RenameFlags, SetAttr,
};

fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).unwrap()
}

fn put(fs: &MemFs, dir: Ino, text: &str, kind: FileKind) -> Result<Attr> {
    let new = NewInode::of(kind, 0o755);
    match kind {
        FileKind::Directory => block_on(fs.mkdir(dir, name(text), &new)),
        _ => block_on(fs.mknod(dir, name(text), &new)),
    }
}

#[track_caller]
fn refused<T: std::fmt::Debug>(result: Result<T>, kind: ErrorKind) {
    assert_eq!(result.unwrap_err().kind(), kind);
}

/// state.M1, state.M2, dir.C2, data.D1, state.M3: after every operation the books agree, those of
/// open files without a name included.
#[test]
fn m1_m2_m3_books_agree_after_anything() {
    for seed in 1..6 {
        let options = MemOptions {
            capacity_bytes: 100 << 10,
            inodes_max: 14,
            links_max: 4,
            cookie_bits: 3,
            ..MemOptions::default()
        };
        let fs = MemFs::new(options);
        let mut runner = Runner::new(Times::Ignore, None);
        let mut generator = OpGen::new(seed, Limits::default());
        let mut met = std::collections::BTreeSet::new();
        for _ in 0..3000 {
            let op = generator.next_op();
            let outcome = block_on(runner.apply(&fs, &op));
            generator.learn(&op, &outcome);
            met.extend(outcome.answer.err());
            fs.check();
        }
        assert!(met.contains(&28) && met.contains(&31), "seed {seed}: ENOSPC, EMLINK: {met:?}");
        runner.close_all();
        fs.check();
        block_on(Tree::read(&fs, Times::Exact)).unwrap();
    }
}

#[test]
fn links_are_limited() {
    let fs = MemFs::new(MemOptions { links_max: 3, ..MemOptions::default() });
    let file = put(&fs, Ino::ROOT, "f", FileKind::File).unwrap().ino;
    for text in ["g", "h"] {
        block_on(fs.link(file, Ino::ROOT, name(text))).unwrap();
    }
    refused(block_on(fs.link(file, Ino::ROOT, name("i"))), ErrorKind::TooManyLinks);
    let dir = put(&fs, Ino::ROOT, "d", FileKind::Directory).unwrap().ino;
    refused(put(&fs, Ino::ROOT, "e", FileKind::Directory), ErrorKind::TooManyLinks);
    let inner = put(&fs, dir, "inner", FileKind::Directory).unwrap();
    let up = |to: &str, flags| block_on(fs.rename(dir, name("inner"), Ino::ROOT, name(to), flags));
    refused(up("e", RenameFlags::empty()), ErrorKind::TooManyLinks);
    refused(up("f", RenameFlags::EXCHANGE), ErrorKind::TooManyLinks);
    assert_eq!(block_on(fs.lookup(dir, name("inner"))).unwrap().ino, inner.ino);
    let down = block_on(fs.rename(Ino::ROOT, name("f"), dir, name("inner"), RenameFlags::EXCHANGE));
    refused(down, ErrorKind::TooManyLinks);
    // Nothing comes within a directory, nor where one goes.
    let within =
        block_on(fs.rename(Ino::ROOT, name("d"), Ino::ROOT, name("e"), RenameFlags::empty()));
    within.unwrap();
    refused(put(&fs, Ino::ROOT, "more", FileKind::Directory), ErrorKind::TooManyLinks);
    fs.check();
}

#[test]
fn room_is_limited_and_comes_back() {
    let fs =
        MemFs::new(MemOptions { capacity_bytes: 8 * 4096, inodes_max: 4, ..MemOptions::default() });
    let flags = OpenFlags::READ | OpenFlags::WRITE;
    let new = NewInode::of(FileKind::File, 0o644);
    let (attr, file) = block_on(fs.create(Ino::ROOT, name("f"), &new, flags)).unwrap();
    let write = |offset, len: usize| {
        file.write_slice(offset, &vec![1; len], IoFlags::empty(), Privileges::Drop)
    };
    write(0, 8 * 4096).unwrap();
    assert_eq!(block_on(fs.statfs()).unwrap().blocks_available, 0);
    refused(write(8 * 4096, 1), ErrorKind::NoSpace);
    write(100, 4096).unwrap();
    block_on(fs.setattr(attr.ino, &SetAttr::size(4096))).unwrap();
    assert_eq!(block_on(fs.statfs()).unwrap().blocks_available, 7);
    write(1 << 40, 4096).unwrap();
    for text in ["a", "b"] {
        put(&fs, Ino::ROOT, text, FileKind::Fifo).unwrap();
    }
    refused(put(&fs, Ino::ROOT, "c", FileKind::Fifo), ErrorKind::NoSpace);
    block_on(fs.unlink(Ino::ROOT, name("f"))).unwrap();
    assert_eq!(block_on(fs.statfs()).unwrap().blocks_available, 6, "open, so still there");
    drop(file);
    let after = block_on(fs.statfs()).unwrap();
    assert_eq!((after.blocks_available, after.files_free), (8, 1));
    fs.check();
}

/// A snapshot is the tree as it was, whatever happens to the other; without what had no name.
#[test]
fn snapshots_are_apart() {
    let fs = MemFs::default();
    let new = NewInode::of(FileKind::File, 0o644);
    let flags = OpenFlags::READ | OpenFlags::WRITE;
    let (_, file) = block_on(fs.create(Ino::ROOT, name("f"), &new, flags)).unwrap();
    let (_, gone) = block_on(fs.create(Ino::ROOT, name("gone"), &new, flags)).unwrap();
    block_on(fs.unlink(Ino::ROOT, name("gone"))).unwrap();
    let write = |bytes: &[u8]| file.write_slice(0, bytes, IoFlags::empty(), Privileges::Drop);
    write(b"before").unwrap();
    let tree = |fs: &MemFs| block_on(Tree::read(fs, Times::Ignore)).unwrap();
    let before = tree(&fs);
    let snapshot = fs.snapshot();
    assert_eq!((fs.inodes(), snapshot.inodes()), (3, 2));
    snapshot.check();
    write(b"after").unwrap();
    put(&fs, Ino::ROOT, "more", FileKind::Directory).unwrap();
    assert_eq!(before.difference(&tree(&snapshot)), None);
    assert_eq!(before.digest(), tree(&snapshot).digest());
    assert_ne!(before.digest(), tree(&fs).digest());
    let now = tree(&fs);
    block_on(snapshot.unlink(Ino::ROOT, name("f"))).unwrap();
    assert_eq!(now.difference(&tree(&fs)), None);
    drop(gone);
    fs.check();
}
