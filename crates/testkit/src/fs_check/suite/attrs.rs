//! Attributes: setting them, times, set-id bits, extended ones at their limits.
//!
//! No locks.

use super::subject::{BOTH, Case, Subject, case, name, new, refused};
use forebay_base::task::block_on;
use forebay_base::{ErrorKind, IoFlags, Result};
use forebay_vfs::fs::OpenFileRef;
use forebay_vfs::name::{XATTR_LIST_MAX, XATTR_SIZE_MAX, XattrName};
use forebay_vfs::types::{
    Attr, Cookie, Fallocate, FileKind, Ino, OpenFlags, Privileges, RenameFlags, SetAttr, SetTime,
    SetXattr, Timestamp, XATTR_CAPABILITY,
};

pub const CASES: &[Case] = &[
    case("attributes_are_set_alone_and_together", set),
    case("privileges_are_dropped", privileges),
    clocked("f5_times_of_content", times_of_content),
    clocked("f5_times_of_directories", times_of_directories),
    clocked("f5_times_of_reading", times_of_reading),
    case("xattr_flags", xattr_flags),
    case("xattr_limits", xattr_limits),
];

const fn clocked(name: &'static str, run: fn(&Subject) -> Result<()>) -> Case {
    Case { needs_clock: true, ..case(name, run) }
}

fn set(s: &Subject) -> Result<()> {
    let ino = s.file("f")?.ino;
    let before = s.attr_of(ino)?;
    s.tick();
    assert_eq!(s.set(ino, &SetAttr::default())?, before, "F5: nothing set, nothing changed");
    let (a, m) = (Timestamp::new(-1_000_000, 999_999_999), Timestamp::new(1 << 33, 1));
    let all = SetAttr {
        perm: Some(0o7123),
        uid: Some(3),
        gid: Some(u32::MAX - 1),
        size: Some(12_345),
        atime: Some(SetTime::To(a)),
        mtime: Some(SetTime::To(m)),
        privileges: Privileges::Drop,
    };
    let after = s.set(ino, &all)?;
    assert_eq!(after.perm, 0o7123, "permission bits that are asked for win");
    assert_eq!((after.uid, after.gid, after.size), (3, u32::MAX - 1, 12_345));
    assert_eq!((after.atime, after.mtime), (a, m), "times before 1970 and after 2106, to the ns");
    assert_eq!(after.btime, before.btime, "made when it was made");
    assert_eq!(s.attr_of(ino)?, after, "what is returned is what is there");
    let one = s.set(ino, &SetAttr { gid: Some(9), ..SetAttr::default() })?;
    assert_eq!((one.uid, one.gid, one.size), (3, 9, 12_345), "the others stay");
    let link = s.symlink("s", "f")?.ino;
    let owner = s.set(link, &SetAttr { uid: Some(4), ..SetAttr::default() })?;
    assert_eq!(owner.uid, 4, "a symbolic link has an owner");
    let mode = || s.set(link, &SetAttr::perm(0o600));
    s.refused_without_trace(ErrorKind::Unsupported, "and no mode of its own", mode);
    assert_eq!(s.set(ino, &SetAttr::perm(0o17_755))?.perm, 0o7755, "other bits are none of it");
    // All or none.
    let both = SetAttr { uid: Some(5), ..SetAttr::size(u64::MAX) };
    s.refused_without_trace(ErrorKind::FileTooLarge, "owner and no size", || s.set(ino, &both));
    Ok(())
}

/// Does something to the content of a file that may drop privileges.
type Change = (&'static str, fn(&Subject, &OpenFileRef, Privileges) -> Result<()>);

const CHANGES: [Change; 4] = [
    ("write", |_, file, p| file.write_slice(0, b"x", IoFlags::empty(), p).map(drop)),
    ("truncate", |s, file, privileges| {
        s.set(file.ino(), &SetAttr { privileges, ..SetAttr::size(0) }).map(drop)
    }),
    ("fallocate", |_, file, p| block_on(file.fallocate(Fallocate::PunchHole, 0, 5, p))),
    ("open to truncate", |s, file, privileges| {
        let keep = match privileges {
            Privileges::Keep => OpenFlags::KEEP_PRIVILEGES,
            Privileges::Drop => OpenFlags::empty(),
        };
        let flags = OpenFlags::WRITE | OpenFlags::TRUNCATE | keep;
        block_on(s.fs.open(file.ino(), flags)).map(drop)
    }),
];

fn privileges(s: &Subject) -> Result<()> {
    let file = s.create("f", BOTH)?;
    let ino = file.ino();
    let capability = XattrName::new(XATTR_CAPABILITY)?;
    let arm = |perm| -> Result<()> {
        s.set(ino, &SetAttr::perm(perm))?;
        block_on(s.fs.setxattr(ino, capability, b"\x01", SetXattr::Any))
    };
    for (what, change) in CHANGES {
        for (perm, left) in [(0o6755, 0o755), (0o6745, 0o2745), (0o1644, 0o1644)] {
            arm(perm)?;
            change(s, &file, Privileges::Keep)?;
            assert_eq!(s.attr_of(ino)?.perm, perm, "{what} by whom may keep them");
            let gone = block_on(s.fs.getxattr(ino, capability));
            refused(gone, ErrorKind::NoAttribute, what);
            arm(perm)?;
            change(s, &file, Privileges::Drop)?;
            assert_eq!(s.attr_of(ino)?.perm, left, "{what} by anybody else");
        }
    }
    arm(0o6755)?;
    file.write_slice(0, b"", IoFlags::empty(), Privileges::Drop)?;
    assert_eq!(s.attr_of(ino)?.perm, 0o6755, "a write of no bytes changes nothing");
    block_on(s.fs.getxattr(ino, capability))?;
    s.set(ino, &SetAttr { uid: Some(0), ..SetAttr::default() })?;
    assert_eq!(s.attr_of(ino)?.perm, 0o755, "a new owner, though the same");
    let gone = block_on(s.fs.getxattr(ino, capability));
    refused(gone, ErrorKind::NoAttribute, "a new owner");
    let dir = s.mkdir("d")?.ino;
    s.set(dir, &SetAttr::perm(0o7777))?;
    let chowned = s.set(dir, &SetAttr { uid: Some(1), gid: Some(1), ..SetAttr::default() })?;
    assert_eq!(chowned.perm, 0o7777, "of a directory they are no privileges");
    Ok(())
}

/// Which of `mtime` and `ctime` of an inode `op` moves.
#[track_caller]
fn moved(s: &Subject, ino: Ino, op: impl FnOnce() -> Result<()>) -> Result<(bool, bool)> {
    let old = s.attr_of(ino)?;
    s.tick();
    op()?;
    let new = s.attr_of(ino)?;
    let now = |old: Timestamp, new: Timestamp| {
        assert!(new >= old, "F5: a time goes on");
        new != old
    };
    assert_eq!(new.btime, old.btime, "F5: made when it was made");
    Ok((now(old.mtime, new.mtime), now(old.ctime, new.ctime)))
}

fn times_of_content(s: &Subject) -> Result<()> {
    let file = s.create("f", BOTH)?;
    let ino = file.ino();
    let (both, change, none) = ((true, true), (false, true), (false, false));
    let keep = Privileges::Keep;
    let falloc = |how| block_on(file.fallocate(how, 0, 10, keep));
    let attribute = XattrName::new(b"user.a")?;
    let flags = RenameFlags::empty();
    assert_eq!(moved(s, ino, || s.write(&file, 0, b"abc"))?, both, "F5: write");
    assert_eq!(moved(s, ino, || s.write(&file, 0, b""))?, none, "F5: a write of no bytes");
    assert_eq!(moved(s, ino, || s.read(&file, 0, 3).map(drop))?, none, "F5: read");
    assert_eq!(moved(s, ino, || s.set(ino, &SetAttr::size(9)).map(drop))?, both, "F5: size");
    assert_eq!(moved(s, ino, || s.set(ino, &SetAttr::size(9)).map(drop))?, both, "F5: same size");
    assert_eq!(moved(s, ino, || falloc(Fallocate::PunchHole))?, both, "F5: punch");
    let grow = Fallocate::Allocate { keep_size: false };
    assert_eq!(moved(s, ino, || falloc(grow))?, both, "F5: allocate");
    assert_eq!(moved(s, ino, || s.set(ino, &SetAttr::perm(0o600)).map(drop))?, change, "F5: mode");
    let owner = SetAttr { uid: Some(1), ..SetAttr::default() };
    assert_eq!(moved(s, ino, || s.set(ino, &owner).map(drop))?, change, "F5: owner");
    let atime = SetAttr { atime: Some(SetTime::Now), ..SetAttr::default() };
    assert_eq!(moved(s, ino, || s.set(ino, &atime).map(drop))?, change, "F5: atime");
    let mtime = SetAttr { mtime: Some(SetTime::Now), ..SetAttr::default() };
    assert_eq!(moved(s, ino, || s.set(ino, &mtime).map(drop))?, both, "F5: mtime");
    let set = || block_on(s.fs.setxattr(ino, attribute, b"v", SetXattr::Any));
    assert_eq!(moved(s, ino, set)?, change, "F5: set an attribute");
    assert_eq!(moved(s, ino, set)?, change, "F5: to the same");
    let remove = || block_on(s.fs.removexattr(ino, attribute));
    assert_eq!(moved(s, ino, remove)?, change, "F5: remove an attribute");
    assert_eq!(moved(s, ino, || s.link("f", "g").map(drop))?, change, "F5: a link more");
    assert_eq!(moved(s, ino, || s.rename("g", "h", flags))?, change, "F5: moved");
    assert_eq!(moved(s, ino, || s.rename("f", "h", flags))?, none, "F5: onto itself");
    assert_eq!(moved(s, ino, || s.unlink("h"))?, change, "F5: a link less");
    s.file("other")?;
    assert_eq!(moved(s, ino, || s.rename("other", "f", flags))?, change, "F5: replaced");
    let again = || block_on(s.fs.open(ino, BOTH | OpenFlags::TRUNCATE)).map(drop);
    assert_eq!(moved(s, ino, again)?, both, "F5: opened to truncate");
    Ok(())
}

fn times_of_directories(s: &Subject) -> Result<()> {
    let (p, q) = (s.mkdir("p")?.ino, s.mkdir("q")?.ino);
    let (both, change, none) = ((true, true), (false, true), (false, false));
    let flags = RenameFlags::empty();
    assert_eq!(moved(s, p, || s.file("p/f").map(drop))?, both, "F5: an entry comes");
    assert_eq!(moved(s, p, || s.mkdir("p/d").map(drop))?, both, "F5: a directory comes");
    assert_eq!(moved(s, p, || s.link("p/f", "p/g").map(drop))?, both, "F5: a link comes");
    assert_eq!(moved(s, p, || s.create("p/f", BOTH).map(drop))?, none, "F5: one is opened");
    assert_eq!(moved(s, p, || s.unlink("p/g"))?, both, "F5: an entry goes");
    assert_eq!(moved(s, p, || s.file("p/d/x").map(drop))?, none, "F5: further down");
    let d = s.ino("p/d")?;
    for (of, wanted, what) in [(p, both, "left"), (q, both, "entered"), (d, change, "moved")] {
        assert_eq!(moved(s, of, || s.rename("p/d", "q/d", flags))?, wanted, "F5: {what}");
        s.rename("q/d", "p/d", flags)?;
    }
    s.mkdir("q/e")?;
    let e = s.ino("q/e")?;
    let swap = || s.rename("p/d", "q/e", RenameFlags::EXCHANGE);
    for (of, wanted) in [(p, both), (q, both), (d, change), (d, change), (e, change), (e, change)] {
        // `d` and `e` twice each: they are exchanged from both names.
        assert_eq!(moved(s, of, swap)?, wanted, "F5: exchanged");
    }
    assert_eq!(moved(s, p, || s.rename("p/f", "p/f", flags))?, none, "F5: onto itself");
    let listed = || block_on(s.fs.readdir(p, Cookie::START, 9)).map(drop);
    assert_eq!(moved(s, p, listed)?, none, "F5: listed");
    Ok(())
}

fn times_of_reading(s: &Subject) -> Result<()> {
    let file = s.create("f", BOTH)?;
    s.write(&file, 0, b"abc")?;
    let link = s.symlink("s", "f")?.ino;
    let dir = s.mkdir("d")?.ino;
    block_on(s.fs.mknod(dir, name("x"), &new(FileKind::File)))?;
    let day = 24 * 60 * 60 * 1_000_000_000;
    let read: [(Ino, &dyn Fn() -> Result<()>); 3] = [
        (file.ino(), &|| s.read(&file, 0, 3).map(drop)),
        (link, &|| block_on(s.fs.readlink(link)).map(drop)),
        (dir, &|| block_on(s.fs.readdir(dir, Cookie::START, 9)).map(drop)),
    ];
    for (ino, read) in read {
        s.tick();
        let old = s.attr_of(ino)?;
        read()?;
        let first = s.attr_of(ino)?;
        if first == old {
            // Mounted `noatime`.
            continue;
        }
        assert_eq!(Attr { atime: old.atime, ..first }, old, "F5: a read moves atime alone");
        s.tick();
        read()?;
        assert_eq!(s.attr_of(ino)?, first, "F5: not again until there is a reason");
        if let Some(clock) = &s.clock {
            clock.advance(day);
        }
        read()?;
        assert!(s.attr_of(ino)?.atime > first.atime, "F5: a day is one");
        s.tick();
        s.set(ino, &SetAttr { uid: Some(8), ..SetAttr::default() })?;
        s.tick();
        let changed = s.attr_of(ino)?;
        read()?;
        assert!(s.attr_of(ino)?.atime > changed.ctime, "F5: a change is one");
    }
    Ok(())
}

fn xattr_flags(s: &Subject) -> Result<()> {
    for ino in [s.file("f")?.ino, s.mkdir("d")?.ino] {
        let a = XattrName::new(b"user.a")?;
        let set = |value: &[u8], how| block_on(s.fs.setxattr(ino, a, value, how));
        let absent = || set(b"x", SetXattr::Replace);
        s.refused_without_trace(ErrorKind::NoAttribute, "replace what is not there", absent);
        refused(block_on(s.fs.getxattr(ino, a)), ErrorKind::NoAttribute, "get");
        let gone = || block_on(s.fs.removexattr(ino, a));
        s.refused_without_trace(ErrorKind::NoAttribute, "remove", gone);
        set(b"", SetXattr::Create)?;
        assert_eq!(block_on(s.fs.getxattr(ino, a))?, b"", "an empty value is a value");
        let taken = || set(b"y", SetXattr::Create);
        s.refused_without_trace(ErrorKind::Exists, "create what is there", taken);
        set(b"\0bytes\xff", SetXattr::Replace)?;
        assert_eq!(block_on(s.fs.getxattr(ino, a))?, b"\0bytes\xff");
        assert_eq!(block_on(s.fs.listxattr(ino))?, [Box::from(&b"user.a"[..])]);
        block_on(s.fs.removexattr(ino, a))?;
        assert_eq!(block_on(s.fs.listxattr(ino))?.len(), 0);
    }
    Ok(())
}

fn xattr_limits(s: &Subject) -> Result<()> {
    let ino = s.file("f")?.ino;
    let name_of = |n: usize| {
        let mut name = format!("user.{n:04}").into_bytes();
        name.resize(255, b'n');
        name
    };
    let big = vec![b'v'; XATTR_SIZE_MAX + 1];
    let first = name_of(0);
    let first = XattrName::new(&first)?;
    block_on(s.fs.setxattr(ino, first, &big[..XATTR_SIZE_MAX], SetXattr::Any))?;
    assert_eq!(block_on(s.fs.getxattr(ino, first))?, &big[..XATTR_SIZE_MAX], "64 KiB");
    let more = || block_on(s.fs.setxattr(ino, first, &big, SetXattr::Any));
    s.refused_without_trace(ErrorKind::TooBig, "a byte more", more);
    // The names of an inode's attributes fill 64 KiB: 256 names of 255 bytes and a NUL.
    let fit = XATTR_LIST_MAX / 256;
    for n in 1..fit {
        block_on(s.fs.setxattr(ino, XattrName::new(&name_of(n))?, b"v", SetXattr::Create))?;
    }
    let listed = block_on(s.fs.listxattr(ino))?;
    let bytes: usize = listed.iter().map(|name| name.len() + 1).sum();
    assert_eq!((listed.len(), bytes), (fit, XATTR_LIST_MAX), "names up to the limit");
    let small = XattrName::new(b"user.x")?;
    let more = || block_on(s.fs.setxattr(ino, small, b"v", SetXattr::Create));
    s.refused_without_trace(ErrorKind::NoSpace, "a name more", more);
    block_on(s.fs.setxattr(ino, first, b"smaller", SetXattr::Replace))?;
    block_on(s.fs.removexattr(ino, first))?;
    block_on(s.fs.setxattr(ino, small, b"v", SetXattr::Create))?;
    // 249 bytes are left: a name and its NUL fill them, or are one too many.
    let (full, over) = (&name_of(0)[..248], &name_of(0)[..249]);
    let more = || block_on(s.fs.setxattr(ino, XattrName::new(over)?, b"v", SetXattr::Create));
    s.refused_without_trace(ErrorKind::NoSpace, "a byte more", more);
    block_on(s.fs.setxattr(ino, XattrName::new(full)?, b"v", SetXattr::Create))?;
    s.unlink("f")?;
    // The root keeps an attribute with the longest name and value.
    let longest = [b"trusted.".as_slice(), &[0xfe; 247]].concat();
    let longest = XattrName::new(&longest)?;
    block_on(s.fs.setxattr(Ino::ROOT, longest, &big[1..], SetXattr::Create))?;
    assert_eq!(block_on(s.fs.getxattr(Ino::ROOT, longest))?, &big[1..], "the longest name");
    Ok(())
}
