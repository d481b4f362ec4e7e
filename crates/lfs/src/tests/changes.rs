//! Every kind of change, each of which a volume that turned read-only refuses (read_only.F11).
//!
//! No locks.

use crate::Volume;
use crate::tests::reuse::create;
use forebay_base::buf::AlignedBuf;
use forebay_base::{Error, ErrorKind, IoFlags, Result};
use forebay_vfs::{
    Fallocate, FileKind, FileSystem, Ino, Name, NewInode, OpenFileRef, OpenFlags, Privileges,
    RenameFlags, SetAttr, SetXattr, XattrName,
};

const BLOCK: usize = 4096;
const BOTH: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);

fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).unwrap()
}

fn attribute() -> XattrName<'static> {
    XattrName::new(b"user.old").unwrap()
}

/// Makes what [`changes`] removes, before the volume turns read-only.
pub async fn before_changes(volume: &Volume, ino: Ino) {
    volume.setxattr(ino, attribute(), b"1", SetXattr::Any).await.unwrap();
    let new = NewInode::of(FileKind::Directory, 0o755);
    volume.mkdir(Ino::ROOT, name("directory"), &new).await.unwrap();
}

/// The refusals of a volume, by the change.
#[derive(Default)]
struct Refused(Vec<(&'static str, Error)>);

impl Refused {
    fn note<T>(&mut self, what: &'static str, done: Result<T>) {
        self.0.push((what, done.err().unwrap_or_else(|| panic!("{what} was accepted"))));
    }
}

/// Attempts every kind of change, each of which must be refused; returns the errors. The file has
/// at least one block, and files `f3` and `f5` exist.
pub async fn changes(volume: &Volume, ino: Ino, file: &OpenFileRef) -> Vec<(&'static str, Error)> {
    let mut refused = Refused::default();
    content(&mut refused, volume, ino, file).await;
    names(&mut refused, volume, ino).await;
    attributes(&mut refused, volume, ino).await;
    refused.0
}

async fn content(refused: &mut Refused, volume: &Volume, ino: Ino, file: &OpenFileRef) {
    let (none, keep) = (IoFlags::empty(), Privileges::Keep);
    let block = || AlignedBuf::copy_of(&[7; BLOCK]);
    refused.note("write", file.write(0, block(), none, keep).await.1);
    refused.note("append", file.write(0, block(), IoFlags::APPEND, keep).await.1);
    refused.note("direct write", file.write(0, block(), IoFlags::DIRECT, keep).await.1);
    refused.note("uncached write", file.write(0, block(), IoFlags::UNCACHED, keep).await.1);
    refused.note("try_write", file.try_write(0, &[7; 512], none, keep).expect("at once"));
    let len = BLOCK as u64;
    for (what, how) in [
        ("punch", Fallocate::PunchHole),
        ("zero", Fallocate::ZeroRange { keep_size: true }),
        ("zero behind the end", Fallocate::ZeroRange { keep_size: false }),
        ("allocate", Fallocate::Allocate { keep_size: true }),
        ("allocate behind the end", Fallocate::Allocate { keep_size: false }),
    ] {
        let at = if what.ends_with("end") { 1 << 20 } else { 0 };
        refused.note(what, file.fallocate(how, at, len, keep).await);
    }
    refused.note("truncate", volume.setattr(ino, &SetAttr::size(100)).await);
    refused.note("extend", volume.setattr(ino, &SetAttr::size(1 << 20)).await);
    refused.note("open that truncates", volume.open(ino, BOTH | OpenFlags::TRUNCATE).await);
}

async fn names(refused: &mut Refused, volume: &Volume, ino: Ino) {
    let (root, new) = (Ino::ROOT, NewInode::of(FileKind::File, 0o600));
    refused.note("create", create(volume, "new").await);
    refused.note("tmpfile", volume.tmpfile(root, &new, BOTH).await);
    refused.note("mkdir", volume.mkdir(root, name("new"), &new).await);
    refused.note("symlink", volume.symlink(root, name("new"), b"f3", &new).await);
    let pipe = NewInode::of(FileKind::Fifo, 0o600);
    refused.note("mknod", volume.mknod(root, name("new"), &pipe).await);
    refused.note("link", volume.link(ino, root, name("other")).await);
    let [from, other] = ["f3", "f5"].map(name);
    for (what, to, flags) in [
        ("rename", name("new"), RenameFlags::empty()),
        ("rename to a new name", name("new"), RenameFlags::NOREPLACE),
        ("rename over a file", other, RenameFlags::empty()),
        ("exchange", other, RenameFlags::EXCHANGE),
    ] {
        refused.note(what, volume.rename(root, from, root, to, flags).await);
    }
    refused.note("unlink", volume.unlink(root, from).await);
    refused.note("rmdir", volume.rmdir(root, name("directory")).await);
}

async fn attributes(refused: &mut Refused, volume: &Volume, ino: Ino) {
    let chmod = SetAttr { perm: Some(0o601), ..SetAttr::default() };
    refused.note("chmod", volume.setattr(ino, &chmod).await);
    let chown = SetAttr { uid: Some(1000), ..SetAttr::default() };
    refused.note("chown", volume.setattr(ino, &chown).await);
    refused.note("setxattr", volume.setxattr(ino, attribute(), b"2", SetXattr::Any).await);
    refused.note("removexattr", volume.removexattr(ino, attribute()).await);
}

/// Checks that each was refused with EROFS, and that the messages contain all texts of `wanted`.
pub fn assert_read_only(refused: Vec<(&'static str, Error)>, wanted: &[&str]) {
    for (what, error) in refused {
        assert_eq!((error.kind(), error.errno()), (ErrorKind::ReadOnly, 30), "{what}: {error}");
        let text = error.to_string();
        assert!(wanted.iter().all(|part| text.contains(part)), "{what}: {text}");
    }
}
