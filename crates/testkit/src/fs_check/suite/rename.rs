//! Renames: every kind onto every kind, with each flag, within a directory and between two; loops;
//! links.
//!
//! No locks.

use super::subject::{Case, Subject, case, refused};
use forebay_base::{ErrorKind, Result};
use forebay_vfs::types::{FileKind, RenameFlags};

pub const CASES: &[Case] = &[
    case("f6_rename_matrix", matrix),
    case("f1_rename_makes_no_loop", loops),
    case("rename_between_links_of_one_inode", one_inode),
    case("rename_flags_are_known_or_refused", flags),
    case("f2_links_of_parents", parents),
];

/// What there may be at a name: a kind, and whether a directory has something in it.
type Thing = (FileKind, bool);

const THINGS: [Thing; 5] = [
    (FileKind::File, false),
    (FileKind::Directory, false),
    (FileKind::Directory, true),
    (FileKind::Symlink, false),
    (FileKind::Fifo, false),
];
const FLAGS: [RenameFlags; 3] =
    [RenameFlags::empty(), RenameFlags::NOREPLACE, RenameFlags::EXCHANGE];

/// The error that the rename must return; `None` if it must succeed.
fn expected((from, _): Thing, to: Option<Thing>, flags: RenameFlags) -> Option<ErrorKind> {
    let directory = |kind| kind == FileKind::Directory;
    let Some((to, filled)) = to else {
        return (flags == RenameFlags::EXCHANGE).then_some(ErrorKind::NotFound);
    };
    match flags {
        RenameFlags::NOREPLACE => Some(ErrorKind::Exists),
        RenameFlags::EXCHANGE => None,
        _ => match (directory(from), directory(to)) {
            (true, false) => Some(ErrorKind::NotDirectory),
            (false, true) => Some(ErrorKind::IsDirectory),
            (true, true) if filled => Some(ErrorKind::NotEmpty),
            _ => None,
        },
    }
}

fn matrix(s: &Subject) -> Result<()> {
    let mut number = 0;
    for from in THINGS {
        for to in THINGS.into_iter().map(Some).chain([None]) {
            for flags in FLAGS {
                for other_parent in [false, true] {
                    number += 1;
                    let place = format!("m{number}");
                    one(s, &place, (from, to), flags, other_parent)?;
                    s.remove_all(&place)?;
                }
            }
        }
    }
    Ok(())
}

/// One cell of the matrix, in a directory of its own.
fn one(
    s: &Subject,
    place: &str,
    (from, to): (Thing, Option<Thing>),
    flags: RenameFlags,
    other_parent: bool,
) -> Result<()> {
    let what = format!("{from:?} to {to:?} with {flags:?}, other parent: {other_parent}");
    s.mkdir(place)?;
    s.mkdir(&format!("{place}/p"))?;
    s.mkdir(&format!("{place}/q"))?;
    let old = format!("{place}/p/old");
    let new = format!("{place}/{}/new", if other_parent { "q" } else { "p" });
    let source = s.put(&old, from.0, from.1)?.ino;
    let target = match to {
        Some((kind, filled)) => Some(s.put(&new, kind, filled)?.ino),
        None => None,
    };
    s.tick();
    match expected(from, to, flags) {
        Some(kind) => s.refused_without_trace(kind, &what, || s.rename(&old, &new, flags)),
        None => {
            s.rename(&old, &new, flags)?;
            assert_eq!(s.ino(&new)?, source, "F6: {what}");
            match target {
                Some(target) if flags == RenameFlags::EXCHANGE => {
                    assert_eq!(s.ino(&old)?, target, "F6: {what}");
                }
                _ => refused(s.ino(&old), ErrorKind::NotFound, &what),
            }
            s.tree();
        }
    }
    Ok(())
}

fn loops(s: &Subject) -> Result<()> {
    for path in ["a", "a/b", "a/b/c", "x"] {
        s.mkdir(path)?;
    }
    s.file("a/b/file")?;
    let none = RenameFlags::empty();
    for (from, to) in
        [("a", "a/n"), ("a", "a/b/n"), ("a", "a/b/c"), ("a/b", "a/b/c/n"), ("a", "a/b/c/n")]
    {
        let what = format!("F1: {from} to {to}");
        s.refused_without_trace(ErrorKind::InvalidInput, &what, || s.rename(from, to, none));
    }
    for (from, to) in [("a/b", "a"), ("a/b/c", "a"), ("a/b/file", "a"), ("a/b/file", "a/b")] {
        let what = format!("F1: {from} onto {to}, above it");
        s.refused_without_trace(ErrorKind::NotEmpty, &what, || s.rename(from, to, none));
    }
    for (from, to) in [("a", "a/b"), ("a/b", "a"), ("a", "a/b/c"), ("a/b/file", "a")] {
        let what = format!("F1: {from} exchanged with {to}");
        let exchange = RenameFlags::EXCHANGE;
        s.refused_without_trace(ErrorKind::InvalidInput, &what, || s.rename(from, to, exchange));
    }
    let exists = || s.rename("a", "a/b", RenameFlags::NOREPLACE);
    s.refused_without_trace(ErrorKind::Exists, "into itself, where something is", exists);
    s.rename("a/b/c", "x/c", none)?;
    s.rename("a", "x/c/a", none)?;
    assert_eq!(s.attr("x/c/a/b/file")?.kind, FileKind::File);
    s.tree();
    Ok(())
}

fn one_inode(s: &Subject) -> Result<()> {
    s.mkdir("d")?;
    s.file("a")?;
    s.link("a", "b")?;
    s.link("a", "d/c")?;
    for (from, to) in [("a", "b"), ("a", "d/c"), ("a", "a"), ("d", "d")] {
        for flags in [RenameFlags::empty(), RenameFlags::EXCHANGE] {
            let before = s.tree();
            s.tick();
            s.rename(from, to, flags)?;
            assert_eq!(before.difference(&s.tree()), None, "{from} to {to} changes nothing");
        }
        let no = || s.rename(from, to, RenameFlags::NOREPLACE);
        s.refused_without_trace(ErrorKind::Exists, "another name of it is a name", no);
    }
    Ok(())
}

fn flags(s: &Subject) -> Result<()> {
    s.file("a")?;
    for bits in [3, 4, 8, 1 << 31] {
        let flags = RenameFlags::from_bits_retain(bits);
        let what = format!("rename flags {bits:#x}");
        s.refused_without_trace(ErrorKind::InvalidInput, &what, || s.rename("a", "b", flags));
    }
    Ok(())
}

fn parents(s: &Subject) -> Result<()> {
    for path in ["p", "q", "p/d", "q/e"] {
        s.mkdir(path)?;
    }
    s.file("p/f")?;
    let links = |p: u32, q: u32, what: &str| -> Result<()> {
        assert_eq!((s.attr("p")?.nlink, s.attr("q")?.nlink), (p, q), "F2: {what}");
        Ok(())
    };
    links(3, 3, "at first")?;
    s.rename("p/d", "q/d", RenameFlags::empty())?;
    links(2, 4, "a directory moved")?;
    s.rename("q/d", "q/e", RenameFlags::empty())?;
    links(2, 3, "a directory replaced")?;
    s.rename("p/f", "q/e", RenameFlags::EXCHANGE)?;
    links(3, 2, "a file and a directory changed places")?;
    s.rmdir("p/f")?;
    links(2, 2, "a directory removed")
}
