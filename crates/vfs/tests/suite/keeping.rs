//! Tests of removals that keep an inode, on a file system that has no call for that.
//!
//! No locks.

use forebay_base::Result;
use forebay_base::task::{BoxFuture, block_on, yield_now};
use forebay_testkit::mem_fs::MemFs;
use forebay_vfs::*;
use std::task::{Context, Waker};

/// A file system that waits once before it removes a name.
#[derive(Default)]
struct Slow(MemFs);

impl FileSystem for Slow {
    forebay_vfs::delegate_file_system!(
        [0]
        statfs lookup parent getattr setattr create mknod mkdir symlink link rmdir rename readlink
        readdir getxattr setxattr listxattr removexattr open syncfs
    );

    fn unlink<'a>(&'a self, dir: Ino, name: Name<'a>) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            yield_now().await;
            self.0.unlink(dir, name).await
        })
    }
}

fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).unwrap()
}

/// The story: two programs removed the two names of a file at the same time. Each removal saw the
/// other name, so neither kept the inode, and a third program got ESTALE on its `O_PATH`
/// descriptor.
#[test]
fn inode_whose_names_go_at_the_same_time_is_kept() {
    let (fs, root) = (Slow::default(), Ino::ROOT);
    let new = NewInode::of(FileKind::File, 0o600);
    let ino = block_on(fs.mknod(root, name("a"), &new)).unwrap().ino;
    block_on(fs.link(ino, root, name("b"))).unwrap();
    let mut both = ["a", "b"].map(|text| fs.remove_keeping(root, name(text), false, &|_| true));
    for removal in &mut both {
        let mut cx = Context::from_waker(Waker::noop());
        assert!(removal.as_mut().poll(&mut cx).is_pending());
    }
    let kept = both.map(|removal| block_on(removal).unwrap());
    assert_eq!(block_on(fs.getattr(ino)).map(|attr| attr.nlink).ok(), Some(0));
    drop(kept);
    assert!(block_on(fs.getattr(ino)).is_err(), "it has neither name nor opener");
}

/// A replaced inode is returned open; an inode that the caller does not keep, or that an exchange
/// moves, is not.
#[test]
fn rename_returns_replaced_inode_open() {
    let (fs, root) = (Slow::default(), Ino::ROOT);
    let new = NewInode::of(FileKind::File, 0o600);
    let put = |text| block_on(fs.mknod(root, name(text), &new)).unwrap().ino;
    let (first, second, third) = (put("a"), put("b"), put("c"));
    let rename = |from, to, flags, keeps: KeepInode<'_>| {
        let (from, to) = ((root, name(from)), (root, name(to)));
        block_on(fs.rename_keeping(from, to, flags, keeps)).unwrap().map(|file| file.ino())
    };
    let none = RenameFlags::empty();
    assert_eq!(rename("a", "b", RenameFlags::EXCHANGE, &|_| true), None);
    assert_eq!(rename("a", "b", none, &|ino| ino == first), Some(first), "`b` was `a`");
    assert!(block_on(fs.getattr(first)).is_err(), "its opener was dropped");
    assert_eq!(rename("b", "c", none, &|ino| ino != third), None);
    assert_eq!(block_on(fs.lookup(root, name("c"))).unwrap().ino, second);
}
