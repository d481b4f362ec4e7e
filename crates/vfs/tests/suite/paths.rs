//! Paths: what they lead to, and what they must not.
//!
//! No locks.

use forebay_base::task::block_on;
use forebay_base::{ErrorKind, Result};
use forebay_testkit::mem_fs::MemFs;
use forebay_vfs::path::{Last, VolumePath, resolve, resolve_parent};
use forebay_vfs::{Attr, FileKind, FileSystem, Ino, Name, NewInode};

fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).unwrap()
}

fn find(fs: &MemFs, path: &str) -> Result<Attr> {
    block_on(resolve(fs, Ino::ROOT, path.as_bytes(), Last::Follow))
}

#[track_caller]
fn refused(fs: &MemFs, path: &str, kind: ErrorKind) {
    assert_eq!(find(fs, path).unwrap_err().kind(), kind, "{path}");
}

fn link(fs: &MemFs, dir: Ino, text: &str, target: &str) {
    let new = NewInode::of(FileKind::Symlink, 0o777);
    block_on(fs.symlink(dir, name(text), target.as_bytes(), &new)).unwrap();
}

/// `/d/e`, `/d/f`, and links.
fn volume() -> (MemFs, Ino, Ino, Ino) {
    let fs = MemFs::default();
    let new = NewInode::of(FileKind::Directory, 0o755);
    let d = block_on(fs.mkdir(Ino::ROOT, name("d"), &new)).unwrap().ino;
    let e = block_on(fs.mkdir(d, name("e"), &new)).unwrap().ino;
    let file = NewInode::of(FileKind::File, 0o644);
    let f = block_on(fs.mknod(d, name("f"), &file)).unwrap().ino;
    (fs, d, e, f)
}

/// path.P2: the root is the top, for `..` and for absolute targets.
#[test]
fn p2_paths_stay_in_the_volume() {
    let (fs, d, e, f) = volume();
    link(&fs, e, "abs", "/d/f");
    link(&fs, e, "rel", "../f");
    link(&fs, e, "out", "../../../../../../d");
    link(&fs, Ino::ROOT, "dir", "d/");
    let cases = [
        ("/", Ino::ROOT),
        ("//", Ino::ROOT),
        (".", Ino::ROOT),
        ("..", Ino::ROOT),
        ("/../../d", d),
        ("d/e/..", d),
        ("d//e/./", e),
        ("/d/f", f),
        ("d/e/abs", f),
        ("d/e/rel", f),
        ("d/e/out", d),
        ("d/e/out/f", f),
        ("dir", d),
        ("dir/", d),
        ("dir/f", f),
        ("dir/..", Ino::ROOT),
    ];
    for (path, ino) in cases {
        assert_eq!(find(&fs, path).unwrap().ino, ino, "{path}");
    }
    // From elsewhere than the root.
    let from_e = |path: &str| block_on(resolve(&fs, e, path.as_bytes(), Last::Follow));
    assert_eq!(from_e("../f").unwrap().ino, f);
    assert_eq!(from_e("/d").unwrap().ino, d);
    let unfollowed =
        |path: &str| block_on(resolve(&fs, Ino::ROOT, path.as_bytes(), Last::NoFollow));
    assert_eq!(unfollowed("dir").unwrap().kind, FileKind::Symlink);
    assert_eq!(unfollowed("dir/").unwrap().ino, d, "a slash follows it");
}

#[test]
fn path_errors_name_the_path() {
    let (fs, _, e, _) = volume();
    link(&fs, e, "dangling", "nowhere");
    link(&fs, e, "slash", "../f/");
    refused(&fs, "", ErrorKind::NotFound);
    refused(&fs, "none", ErrorKind::NotFound);
    refused(&fs, "none/..", ErrorKind::NotFound);
    refused(&fs, "d/f/", ErrorKind::NotDirectory);
    refused(&fs, "d/f/x", ErrorKind::NotDirectory);
    refused(&fs, "d/f/.", ErrorKind::NotDirectory);
    refused(&fs, "d/f/..", ErrorKind::NotDirectory);
    refused(&fs, "d/e/dangling", ErrorKind::NotFound);
    refused(&fs, "d/e/slash", ErrorKind::NotDirectory);
    refused(&fs, "d\0", ErrorKind::InvalidInput);
    refused(&fs, &"x".repeat(256), ErrorKind::NameTooLong);
    refused(&fs, &"d/../".repeat(1000), ErrorKind::NameTooLong);
}

/// path.P1: forty links are a path, one more is a loop; and what loops ends.
#[test]
fn p1_symbolic_links_are_limited() {
    let (fs, d, _, f) = volume();
    for n in 0..45 {
        let target = if n == 0 { "f".to_string() } else { format!("l{}", n - 1) };
        link(&fs, d, &format!("l{n}"), &target);
    }
    assert_eq!(find(&fs, "d/l39").unwrap().ino, f, "forty of them");
    refused(&fs, "d/l40", ErrorKind::SymlinkLoop);
    link(&fs, d, "self", "self");
    refused(&fs, "d/self", ErrorKind::SymlinkLoop);
    refused(&fs, "d/self/x", ErrorKind::SymlinkLoop);
    link(&fs, d, "bomb", "bomb/bomb/bomb/bomb/bomb/bomb");
    refused(&fs, "d/bomb", ErrorKind::SymlinkLoop);
}

#[test]
fn parents_of_what_is_to_be_made() {
    let (fs, d, e, _) = volume();
    let place = |path: &str| block_on(resolve_parent(&fs, Ino::ROOT, path.as_bytes()));
    let found = place("d/e/new").unwrap();
    assert_eq!((found.dir, found.name.as_deref(), found.directory), (e, Some(&b"new"[..]), false));
    let found = place("d/new/").unwrap();
    assert_eq!((found.dir, found.name.as_deref(), found.directory), (d, Some(&b"new"[..]), true));
    let found = place("d/e/..").unwrap();
    assert_eq!((found.dir, found.name), (d, None));
    assert_eq!(place("d/f/new").unwrap_err().kind(), ErrorKind::NotDirectory);
    assert_eq!(place("none/new").unwrap_err().kind(), ErrorKind::NotFound);
    let file = block_on(resolve_parent(&fs, find(&fs, "d/f").unwrap().ino, b"new"));
    assert_eq!(file.unwrap_err().kind(), ErrorKind::NotDirectory);
}

#[test]
fn volumes_and_paths_in_them() {
    let parse = |text: &'static str| {
        VolumePath::parse(text.as_bytes()).map(|found| (found.volume, found.path))
    };
    assert_eq!(parse("vol.fb:/a/b"), Some((&b"vol.fb"[..], &b"/a/b"[..])));
    assert_eq!(parse("./vol:/"), Some((&b"./vol"[..], &b"/"[..])));
    assert_eq!(parse("/img/v:/a:/b"), Some((&b"/img/v"[..], &b"/a:/b"[..])));
    for host in ["vol.fb", "a:b", ":/a", "/a/b", "", "vol:"] {
        assert_eq!(parse(host), None, "{host}");
    }
}
