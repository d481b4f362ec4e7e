//! Making, opening, linking and removing.
//!
//! No locks.

use super::subject::{BOTH, Case, Subject, case, name, new, refused};
use forebay_base::task::block_on;
use forebay_base::{ErrorKind, Result};
use forebay_vfs::fs::OpenFileRef;
use forebay_vfs::name::Name;
use forebay_vfs::types::{
    Attr, Cookie, FILE_SIZE_MAX, FileKind, Ino, NewInode, OpenFlags, S_ISGID, SYMLINK_MAX, SetAttr,
    SetXattr,
};
use forebay_vfs::{RenameFlags, XattrName};

pub const CASES: &[Case] = &[
    case("f1_names_are_bytes", bytes),
    case("f2_links", links),
    case("f3_unlinked_while_open", unlinked_while_open),
    case("f3_directory_removed_while_open", removed_while_open),
    case("f3_unknown_numbers_are_stale", stale),
    case("create_opens_or_makes", create),
    case("flags_of_opening_are_known_or_refused", open_flags),
    case("a_file_without_a_name_gets_one", tmpfile),
    case("a_file_without_a_name_needs_a_directory", tmpfile_where),
    case("kinds_and_targets", kinds),
    case("set_group_id_of_directories", set_gid),
    case("parents_that_are_none", no_parent),
    case("order_of_refusals", order),
];

fn bytes(s: &Subject) -> Result<()> {
    let long = [b'x'; 255];
    let names: [&[u8]; 6] = [&long, b"\xff\xfe\xfd", b"...", b" ", b"\n", "\u{b5}".as_bytes()];
    for bytes in names {
        let name = Name::new(bytes)?;
        let made = block_on(s.fs.mknod(Ino::ROOT, name, &new(FileKind::File)))?;
        assert_eq!(block_on(s.fs.lookup(Ino::ROOT, name))?.ino, made.ino, "F1: {name:?}");
    }
    let listed = block_on(s.fs.readdir(Ino::ROOT, Cookie::START, 100))?;
    assert_eq!(listed.len(), names.len(), "F1: each is an entry");
    // A name that differs only in the last of 255 bytes is another name.
    let mut other = long;
    other[254] = b'y';
    let other = block_on(s.fs.lookup(Ino::ROOT, Name::new(&other)?));
    refused(other, ErrorKind::NotFound, "F1: the last byte counts");
    Ok(())
}

fn links(s: &Subject) -> Result<()> {
    s.mkdir("d")?;
    s.file("a")?;
    assert_eq!(s.link("a", "d/b")?.nlink, 2, "F2: a second name");
    assert_eq!(s.ino("a")?, s.ino("d/b")?);
    s.refused_without_trace(ErrorKind::Exists, "a name that is taken", || s.link("a", "d/b"));
    s.refused_without_trace(ErrorKind::NotPermitted, "F1: of a directory", || s.link("d", "e"));
    s.symlink("s", "nowhere")?;
    assert_eq!(s.link("s", "t")?.kind, FileKind::Symlink, "a symbolic link has links, too");
    s.unlink("a")?;
    assert_eq!(s.attr("d/b")?.nlink, 1, "F2: a name less");
    s.refused_without_trace(ErrorKind::IsDirectory, "unlink a directory", || s.unlink("d"));
    s.refused_without_trace(ErrorKind::NotEmpty, "remove a full one", || s.rmdir("d"));
    s.refused_without_trace(ErrorKind::NotDirectory, "remove a file", || s.rmdir("s"));
    s.refused_without_trace(ErrorKind::NotFound, "remove nothing", || s.unlink("none"));
    s.unlink("d/b")?;
    s.rmdir("d")?;
    assert_eq!(s.attr("/")?.nlink, 2, "F2: no directory left");
    s.tree();
    Ok(())
}

fn unlinked_while_open(s: &Subject) -> Result<()> {
    let first = s.create("f", BOTH)?;
    let second = s.open("f", OpenFlags::READ)?;
    let keeper = s.open("f", OpenFlags::empty())?;
    let ino = first.ino();
    s.write(&first, 0, b"before")?;
    s.unlink("f")?;
    assert_eq!(s.attr_of(ino)?.nlink, 0, "F3: no name");
    s.write(&first, 6, b" and after")?;
    assert_eq!(s.read(&second, 0, 100)?, b"before and after", "F3: content lives");
    s.set(ino, &SetAttr { perm: Some(0o600), size: Some(6), ..SetAttr::default() })?;
    let attribute = XattrName::new(b"user.a")?;
    block_on(s.fs.setxattr(ino, attribute, b"value", SetXattr::Any))?;
    assert_eq!(block_on(s.fs.getxattr(ino, attribute))?, b"value", "F3: attributes live");
    let back = block_on(s.fs.link(ino, Ino::ROOT, name("back")));
    refused(back, ErrorKind::NotFound, "F3: a lost name is not found again");
    drop(first);
    let third = block_on(s.fs.open(ino, OpenFlags::READ))?;
    drop(second);
    assert_eq!(s.read(&third, 0, 100)?, b"before", "F3: opened by number");
    drop(third);
    assert_eq!(s.attr_of(ino)?.size, 6, "F3: kept by one that can neither read nor write");
    drop(keeper);
    refused(s.attr_of(ino), ErrorKind::Stale, "F3: gone with the last");
    // What a rename replaces is unlinked the same way.
    let replaced = s.create("old", BOTH)?;
    s.write(&replaced, 0, b"old")?;
    s.file("new")?;
    s.rename("new", "old", RenameFlags::empty())?;
    assert_eq!(s.read(&replaced, 0, 10)?, b"old", "F3: replaced, and open");
    let ino = replaced.ino();
    drop(replaced);
    refused(s.attr_of(ino), ErrorKind::Stale, "F3: gone with the last");
    Ok(())
}

fn removed_while_open(s: &Subject) -> Result<()> {
    let ino = s.mkdir("d")?.ino;
    let open = s.open("d", OpenFlags::READ)?;
    s.rmdir("d")?;
    assert_eq!(s.attr_of(ino)?.nlink, 0, "F2: a removed directory");
    refused(
        block_on(s.fs.mknod(ino, name("x"), &new(FileKind::File))),
        ErrorKind::NotFound,
        "F3: nothing is made in a removed directory",
    );
    refused(block_on(s.fs.readdir(ino, Cookie::START, 1)), ErrorKind::NotFound, "F3: nor listed");
    refused(block_on(s.fs.lookup(ino, name("x"))), ErrorKind::NotFound, "F3: nor found");
    refused(block_on(s.fs.parent(ino)), ErrorKind::NotFound, "F3: nor is it anywhere");
    let file = s.file("f")?.ino;
    refused(block_on(s.fs.parent(file)), ErrorKind::NotDirectory, "the parent of a file");
    let into =
        s.at("f", |dir, old| block_on(s.fs.rename(dir, old, ino, name("x"), RenameFlags::empty())));
    refused(into, ErrorKind::NotFound, "F3: nor moved there");
    drop(open);
    refused(s.attr_of(ino), ErrorKind::Stale, "F3: gone with the last");
    Ok(())
}

fn stale(s: &Subject) -> Result<()> {
    let ino = s.file("f")?.ino;
    s.unlink("f")?;
    for ino in [ino, Ino(u64::MAX - 1)] {
        refused(s.attr_of(ino), ErrorKind::Stale, "F3: getattr");
        refused(s.set(ino, &SetAttr::size(0)), ErrorKind::Stale, "F3: setattr");
        refused(block_on(s.fs.open(ino, BOTH)).map(drop), ErrorKind::Stale, "F3: open");
        refused(block_on(s.fs.lookup(ino, name("x"))), ErrorKind::Stale, "F3: lookup");
        refused(block_on(s.fs.readlink(ino)), ErrorKind::Stale, "F3: readlink");
        refused(block_on(s.fs.listxattr(ino)), ErrorKind::Stale, "F3: listxattr");
        let linked = block_on(s.fs.link(ino, Ino::ROOT, name("l")));
        refused(linked, ErrorKind::Stale, "F3: link");
    }
    Ok(())
}

fn create(s: &Subject) -> Result<()> {
    let file = s.create("f", BOTH)?;
    s.write(&file, 0, b"content")?;
    let again = s.create("f", OpenFlags::READ)?;
    assert_eq!(again.ino(), file.ino(), "what is there is opened");
    assert_eq!(s.read(&again, 0, 100)?, b"content");
    let exclusive = BOTH | OpenFlags::EXCLUSIVE;
    let taken = || s.create("f", exclusive).map(drop);
    s.refused_without_trace(ErrorKind::Exists, "exclusive", taken);
    s.create("g", exclusive)?;
    s.mkdir("d")?;
    s.symlink("s", "f")?;
    let directory = || s.create("d", BOTH).map(drop);
    s.refused_without_trace(ErrorKind::IsDirectory, "a directory", directory);
    let reading = || s.create("d", OpenFlags::READ).map(drop);
    s.refused_without_trace(ErrorKind::IsDirectory, "a directory, to read", reading);
    let link = || s.create("s", BOTH).map(drop);
    s.refused_without_trace(ErrorKind::SymlinkLoop, "a symbolic link", link);
    let read_only = || s.open("f", OpenFlags::READ | OpenFlags::TRUNCATE).map(drop);
    s.refused_without_trace(ErrorKind::InvalidInput, "truncate unwritten", read_only);
    s.create("f", BOTH | OpenFlags::TRUNCATE)?;
    assert_eq!(s.attr("f")?.size, 0, "truncated");
    let writing = || s.open("d", BOTH).map(drop);
    s.refused_without_trace(ErrorKind::IsDirectory, "write a directory", writing);
    Ok(())
}

fn open_flags(s: &Subject) -> Result<()> {
    let file = s.create("f", BOTH)?;
    let flags = OpenFlags::from_bits_retain(1 << 30) | BOTH;
    let opened = || block_on(s.fs.open(file.ino(), flags)).map(drop);
    s.refused_without_trace(ErrorKind::Unsupported, "an unknown flag", opened);
    for path in ["f", "made"] {
        let created = || s.create(path, flags).map(drop);
        s.refused_without_trace(ErrorKind::Unsupported, "created with it", created);
        let read_only = || s.create(path, OpenFlags::READ | OpenFlags::TRUNCATE).map(drop);
        s.refused_without_trace(ErrorKind::InvalidInput, "to truncate unwritten", read_only);
    }
    Ok(())
}

/// If several errors apply, the order of the checks decides which one is returned.
fn order(s: &Subject) -> Result<()> {
    let dir = s.mkdir("d")?.ino;
    s.file("f")?;
    s.symlink("s", "f")?;
    let _open = s.open("d", OpenFlags::READ)?;
    s.rmdir("d")?;
    let (gone, none) = (Ino(u64::MAX - 1), RenameFlags::empty());
    let link = |ino, at: (Ino, &str)| block_on(s.fs.link(ino, at.0, name(at.1)));
    let (root, file) = (Ino::ROOT, s.ino("f")?);
    refused(link(gone, (root, "f")), ErrorKind::Stale, "an unknown inode onto a name");
    refused(link(root, (root, "f")), ErrorKind::Exists, "a directory onto a name");
    refused(link(root, (file, "x")), ErrorKind::NotDirectory, "a directory into a file");
    refused(link(root, (dir, "x")), ErrorKind::NotFound, "a directory into a removed one");
    let long = "t".repeat(SYMLINK_MAX + 1);
    refused(s.symlink("f", &long), ErrorKind::NameTooLong, "a long target at a name");
    refused(s.symlink("f", ""), ErrorKind::NotFound, "no target at a name");
    let rename = |from: (Ino, &str), to: (Ino, &str), flags| {
        block_on(s.fs.rename(from.0, name(from.1), to.0, name(to.1), flags))
    };
    let both = RenameFlags::NOREPLACE | RenameFlags::EXCHANGE;
    refused(rename((root, "x"), (root, "f"), both), ErrorKind::InvalidInput, "flags first");
    let onto = RenameFlags::NOREPLACE;
    refused(rename((root, "x"), (root, "f"), onto), ErrorKind::NotFound, "no old name");
    refused(rename((root, "x"), (file, "f"), none), ErrorKind::NotDirectory, "into a file");
    refused(rename((root, "x"), (gone, "f"), none), ErrorKind::Stale, "into nothing");
    refused(rename((file, "x"), (root, "f"), none), ErrorKind::NotDirectory, "out of a file");
    let exclusive = OpenFlags::READ | OpenFlags::TRUNCATE | OpenFlags::EXCLUSIVE;
    refused(s.create("s", exclusive).map(drop), ErrorKind::Exists, "exclusive, whatever is there");
    Ok(())
}

/// A file without a name; `None` if the file system cannot make one.
fn unnamed(s: &Subject, flags: OpenFlags) -> Result<Option<(Attr, OpenFileRef)>> {
    match block_on(s.fs.tmpfile(Ino::ROOT, &new(FileKind::File), flags)) {
        Err(e) if e.kind() == ErrorKind::Unsupported => Ok(None),
        made => made.map(Some),
    }
}

fn tmpfile_where(s: &Subject) -> Result<()> {
    let before = s.attr("/")?;
    s.tick();
    if unnamed(s, BOTH)?.is_none() {
        return Ok(());
    }
    assert_eq!(s.attr("/")?, before, "no entry, so its directory has not changed");
    let dir = s.mkdir("d")?.ino;
    let (file, open) = (s.file("f")?.ino, s.open("d", OpenFlags::READ)?);
    s.rmdir("d")?;
    let made = |dir, flags| block_on(s.fs.tmpfile(dir, &new(FileKind::File), flags)).map(drop);
    refused(made(file, BOTH), ErrorKind::NotDirectory, "in a file");
    refused(made(dir, BOTH), ErrorKind::NotFound, "in a removed directory");
    let cut = OpenFlags::READ | OpenFlags::TRUNCATE;
    refused(made(Ino::ROOT, cut), ErrorKind::InvalidInput, "to truncate unwritten");
    let unknown = BOTH | OpenFlags::from_bits_retain(1 << 30);
    refused(made(Ino::ROOT, unknown), ErrorKind::Unsupported, "an unknown flag");
    drop(open);
    Ok(())
}

fn tmpfile(s: &Subject) -> Result<()> {
    let Some((attr, file)) = unnamed(s, BOTH)? else { return Ok(()) };
    assert_eq!((attr.nlink, attr.ino), (0, file.ino()), "F2: no name");
    s.write(&file, 0, b"hidden")?;
    assert_eq!(block_on(s.fs.readdir(Ino::ROOT, Cookie::START, 10))?.len(), 0, "no entry");
    let linked = block_on(s.fs.link(attr.ino, Ino::ROOT, name("f")))?;
    assert_eq!(linked.nlink, 1, "F2: a first name");
    s.unlink("f")?;
    let again = block_on(s.fs.link(attr.ino, Ino::ROOT, name("f")));
    refused(again, ErrorKind::NotFound, "F3: a lost name is not found again");
    drop(file);
    refused(s.attr_of(attr.ino), ErrorKind::Stale, "F3: gone with the last");
    // A file that got several names stays when it is closed.
    let Some((attr, file)) = unnamed(s, BOTH)? else { return Ok(()) };
    s.write(&file, 0, b"named")?;
    for text in ["f", "g"] {
        block_on(s.fs.link(attr.ino, Ino::ROOT, name(text)))?;
    }
    drop(file);
    let file = s.open("g", OpenFlags::READ)?;
    assert_eq!((s.read(&file, 0, 10)?, s.attr("f")?.nlink), (b"named".to_vec(), 2));
    let Some((attr, _file)) = unnamed(s, BOTH | OpenFlags::EXCLUSIVE)? else { return Ok(()) };
    let linked = block_on(s.fs.link(attr.ino, Ino::ROOT, name("h")));
    refused(linked, ErrorKind::NotFound, "exclusive: never a name");
    Ok(())
}

fn kinds(s: &Subject) -> Result<()> {
    for kind in FileKind::ALL {
        match kind {
            FileKind::Directory | FileKind::Symlink => {
                let made = || s.mknod("x", kind);
                s.refused_without_trace(ErrorKind::InvalidInput, "mknod of other kinds", made);
            }
            kind => {
                let path = format!("{kind:?}");
                let new = NewInode { rdev: 0x103, ..new(kind) };
                let made = block_on(s.fs.mknod(Ino::ROOT, name(&path), &new))?;
                let device = matches!(kind, FileKind::CharDevice | FileKind::BlockDevice);
                let rdev = if device { 0x103 } else { 0 };
                assert_eq!((made.kind, made.rdev, made.nlink), (kind, rdev, 1));
            }
        }
    }
    let target = "t".repeat(SYMLINK_MAX);
    let link = s.symlink("long", &target)?;
    assert_eq!((link.size, link.perm), (SYMLINK_MAX as u64, 0o777), "a link's size");
    assert_eq!(block_on(s.fs.readlink(link.ino))?, target.as_bytes());
    let longer = || s.symlink("longer", &format!("{target}t"));
    s.refused_without_trace(ErrorKind::NameTooLong, "a longer target", longer);
    s.refused_without_trace(ErrorKind::NotFound, "no target", || s.symlink("none", ""));
    s.refused_without_trace(ErrorKind::InvalidInput, "NUL", || s.symlink("nul", "a\0b"));
    let file = s.ino("File")?;
    refused(block_on(s.fs.readlink(file)), ErrorKind::InvalidInput, "readlink of a file");
    let size = || s.set(link.ino, &SetAttr::size(1));
    s.refused_without_trace(ErrorKind::InvalidInput, "size of a link", size);
    let size = || s.set(Ino::ROOT, &SetAttr::size(1));
    s.refused_without_trace(ErrorKind::IsDirectory, "size of a directory", size);
    let size = || s.set(file, &SetAttr::size(FILE_SIZE_MAX + 1));
    s.refused_without_trace(ErrorKind::FileTooLarge, "F8: beyond the largest", size);
    Ok(())
}

fn set_gid(s: &Subject) -> Result<()> {
    let dir = s.mkdir("d")?.ino;
    s.set(dir, &SetAttr { gid: Some(7), ..SetAttr::default() })?;
    s.set(dir, &SetAttr::perm(0o2775))?;
    let mine = NewInode { uid: 5, gid: 5, ..NewInode::of(FileKind::File, 0o644) };
    let file = block_on(s.fs.mknod(dir, name("f"), &mine))?;
    assert_eq!((file.uid, file.gid, file.perm), (5, 7, 0o644), "a file takes the group");
    let inner = block_on(s.fs.mkdir(dir, name("d"), &mine))?;
    assert_eq!((inner.gid, inner.perm), (7, 0o644 | S_ISGID), "a directory the bit as well");
    let outer = block_on(s.fs.mknod(Ino::ROOT, name("f"), &mine))?;
    assert_eq!(outer.gid, 5, "no bit, no group");
    Ok(())
}

fn no_parent(s: &Subject) -> Result<()> {
    let file = s.file("f")?.ino;
    let made = || block_on(s.fs.mknod(file, name("x"), &new(FileKind::File)));
    s.refused_without_trace(ErrorKind::NotDirectory, "made in a file", made);
    let found = || block_on(s.fs.lookup(file, name("x")));
    s.refused_without_trace(ErrorKind::NotDirectory, "found in a file", found);
    let listed = || block_on(s.fs.readdir(file, Cookie::START, 1));
    s.refused_without_trace(ErrorKind::NotDirectory, "listed", listed);
    assert_eq!(block_on(s.fs.parent(Ino::ROOT))?, Ino::ROOT, "the root's parent is the root");
    let dir = s.mkdir("d")?.ino;
    assert_eq!(block_on(s.fs.parent(dir))?, Ino::ROOT);
    let exists = || s.mkdir("f");
    s.refused_without_trace(ErrorKind::Exists, "a directory where a file is", exists);
    Ok(())
}
