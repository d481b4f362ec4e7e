//! Tests of the checks of names, links, parents, orphans and loops.

use super::super::names::Loops;
use super::*;
use crate::format::item::{EntryItem, Item};
use crate::format::key::{Cookie, NameHash};
use std::collections::{BTreeMap, BTreeSet};

const DIR: u32 = 4;
const FILE: u32 = 8;

fn inode(kind: u32, nlink: u32, parent: u64) -> Inode {
    Inode { mode: kind << 12 | 0o644, nlink, parent, ..Inode::default() }
}

/// Names and inodes of a volume.
#[derive(Clone)]
struct Tree {
    inodes: BTreeMap<u64, Inode>,
    /// Directory, name, inode and type of each entry.
    entries: Vec<(u64, &'static str, u64, FileType)>,
    orphans: BTreeSet<u64>,
}

/// The root with a directory, a file in the directory, and an orphan.
fn healthy() -> Tree {
    let inodes = [
        (ROOT_INO, inode(DIR, 3, ROOT_INO)),
        (2, inode(DIR, 2, ROOT_INO)),
        (3, inode(FILE, 1, 0)),
        (4, inode(FILE, 0, 0)),
    ];
    Tree {
        inodes: inodes.into(),
        entries: vec![(ROOT_INO, "d", 2, FileType::Directory), (2, "f", 3, FileType::Regular)],
        orphans: [4].into(),
    }
}

impl Tree {
    /// Puts all items into the state of a volume.
    fn put(&self, state: &mut State) {
        for (ino, inode) in &self.inodes {
            state.put_item(Key::Inode(*ino), &Item::Inode(*inode));
        }
        for (dir, name, child, kind) in &self.entries {
            let name = name.as_bytes();
            let key = Key::Entry(*dir, Cookie::new(NameHash::new(&[9; 16], name), 0));
            let item = Item::Entry(EntryItem { child: *child, kind: *kind, name });
            state.put_item(key, &item);
        }
        self.orphans.iter().for_each(|ino| state.note_orphan(*ino));
    }

    /// Runs `f` on an empty volume, and makes a checkpoint after it.
    fn run<T>(f: impl AsyncFnOnce(&Volume) -> T) -> (SimDisk, T) {
        let setup = setup(0);
        let disk = setup.blank();
        let value = disk.world().run(async {
            let volume = open(&setup, &disk).await.unwrap();
            let value = f(&volume).await;
            volume.checkpoint().await.unwrap();
            value
        });
        disk.world().stop();
        (disk, value)
    }

    /// The findings on a volume with these names.
    fn findings(&self) -> Vec<Finding> {
        let (disk, ()) = Self::run(async |volume| self.put(&mut volume.0.state.lock()));
        findings(&disk)
    }
}

fn found(change: impl FnOnce(&mut Tree)) -> Vec<Finding> {
    let mut tree = healthy();
    change(&mut tree);
    tree.findings()
}

type Change = fn(&mut Tree);

/// Checks each way in which names, links, parents and orphans can contradict each other.
#[test]
fn names_that_do_not_go_together_are_found() {
    assert_eq!(found(|_| ()), []);
    let wrong: [(Change, u64, &str); 14] = [
        (|t| t.inodes.retain(|ino, _| *ino != 3), 2, "`f` names inode 3, which is not there"),
        (|t| t.inodes.retain(|ino, _| *ino != 2), 3, "`f` lies in inode 2, which is not there"),
        // The entry of a directory that is not there does not count as a link.
        (|t| t.inodes.retain(|ino, _| *ino != 2), 1, "3 links, there are 2"),
        (|t| t.entries[1].3 = FileType::Symlink, 3, "`f` says it is a Symlink"),
        (|t| t.inodes.get_mut(&2).unwrap().parent = 3, 2, "its parent is 3, and it lies in 1"),
        (|t| t.inodes.get_mut(&3).unwrap().nlink = 2, 3, "2 links, there are 1"),
        (|t| t.inodes.get_mut(&2).unwrap().nlink = 3, 2, "3 links, there are 2"),
        (|t| t.inodes.get_mut(&ROOT_INO).unwrap().nlink = 2, 1, "2 links, there are 3"),
        (|t| t.inodes.get_mut(&ROOT_INO).unwrap().nlink = 0, 1, "0 links, there are 3"),
        (|t| t.entries.truncate(1), 3, "no name, and no orphan"),
        (|t| t.orphans.clear(), 4, "no name, and no orphan"),
        (|t| t.orphans.extend([3]), 3, "an orphan with a name"),
        (|t| t.orphans.extend([ROOT_INO]), 1, "an orphan with a name"),
        (|t| t.inodes.retain(|ino, _| *ino != 4), 4, "an orphan that is not there"),
    ];
    for (change, ino, text) in wrong {
        let findings = found(change);
        let named = |f: &Finding| f.ino == Some(ino) && f.text == text;
        assert!(findings.iter().any(named), "{text}: {findings:?}");
        assert!(findings.iter().all(|f| f.kind == FindingKind::Name), "{findings:?}");
        assert!(!FsckReport { findings, ..FsckReport::default() }.is_complete());
    }
    let path = found(|t| t.inodes.get_mut(&3).unwrap().nlink = 2).remove(0).path;
    assert_eq!(path.as_deref(), Some(&b"/d/f"[..]));
}

/// paths.E24: a directory is found in the directory where it lies, also if it names another parent.
#[test]
fn paths_follow_entries_of_damaged_directories() {
    for parent in [3, 4, 99] {
        let findings = found(|t| {
            t.inodes.get_mut(&2).unwrap().parent = parent;
            t.inodes.get_mut(&3).unwrap().nlink = 2;
        });
        let paths: Vec<_> = findings.iter().filter_map(|f| f.path.as_deref()).collect();
        assert_eq!(paths, [&b"/d"[..], b"/d/f"], "{findings:?}");
    }
    // No path leads through a directory that is not there.
    let findings = found(|t| t.inodes.retain(|ino, _| *ino != 2));
    let of = |ino| findings.iter().filter(move |f| f.ino == Some(ino)).map(|f| f.path.as_deref());
    assert_eq!(of(3).collect::<Vec<_>>(), [None], "{findings:?}");
    assert!(of(1).all(|path| path == Some(&b"/"[..])), "{findings:?}");
}

/// Directories with these parents, from 2 on. Each has its name in its parent.
fn directories(parents: &[u64]) -> Tree {
    const NAMES: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];
    let all = (2..).zip(parents).map(|(ino, parent)| (ino, inode(DIR, 2, *parent)));
    let mut inodes: BTreeMap<u64, Inode> = all.collect();
    inodes.insert(ROOT_INO, inode(DIR, 2, ROOT_INO));
    parents.iter().for_each(|parent| inodes.get_mut(parent).unwrap().nlink += 1);
    let named = (2..).zip(parents).zip(NAMES);
    let entries = named.map(|((ino, dir), name)| (*dir, name, ino, FileType::Directory));
    Tree { inodes, entries: entries.collect(), orphans: BTreeSet::new() }
}

/// names.E22: of each loop of directories the lowest is reported once, whatever leads into the
/// loop. Directories that were moved into younger ones are no loop.
#[test]
fn loops_of_directories_are_found() {
    let trees: [(&[u64], &[u64]); 8] = [
        (&[3, 4, 5, 6, 1], &[]),
        (&[6, 2, 3, 4, 1], &[]),
        (&[2], &[2]),
        (&[3, 2], &[2]),
        // Two loops, one of them with a path that begins at a lower number.
        (&[4, 1, 5, 4, 7, 6], &[4, 6]),
        (&[3, 4, 5, 3, 2], &[3]),
        (&[8, 2, 3, 4, 5, 6, 7], &[2]),
        (&[1, 9, 3, 4, 9, 6, 5, 7], &[6]),
    ];
    for (parents, lowest) in trees {
        let findings = directories(parents).findings();
        let inos: Vec<u64> = findings.iter().filter_map(|f| f.ino).collect();
        assert_eq!(inos, lowest, "{parents:?}: {findings:?}");
        let is_named = |f: &Finding| f.kind == FindingKind::Name && f.text.contains("loop");
        assert!(findings.iter().all(is_named), "{findings:?}");
    }
}

/// The story: a user moved each directory into the next one. The whole path did not fit in the
/// table of a check, which cleared it at each directory, and walked most of the path again.
#[test]
fn path_longer_than_table_is_walked_about_once() {
    const COUNT: u64 = 2048;
    const MARKS: u64 = 64;
    let options = FsckOptions { table_bytes: MARKS as usize * 288, ..LEAST };
    for (top, loops_found) in [(ROOT_INO, 0), (2, 1)] {
        let above = |ino| if ino == COUNT + 1 { top } else { ino + 1 };
        let inodes: BTreeMap<u64, Inode> =
            (2..COUNT + 2).map(|ino| (ino, inode(DIR, 2, above(ino)))).collect();
        let tree = Tree { inodes, entries: Vec::new(), orphans: BTreeSet::new() };
        let (_, (found, lookups)) = Tree::run(async |volume| {
            tree.put(&mut volume.0.state.lock());
            let (mut loops, mut report) = (Loops::new(&options, 7), FsckReport::default());
            for (ino, inode) in &tree.inodes {
                loops.check(&volume.0, *ino, inode, &mut report).await.unwrap();
            }
            (report.findings.len(), loops.lookups)
        });
        assert_eq!(found, loops_found);
        // A table that is cleared takes about COUNT * COUNT / 2 of them.
        assert!(lookups < 4 * COUNT * COUNT / MARKS, "{lookups} lookups");
    }
}

/// Inodes of a damaged volume may have any number of stored bytes. Earlier, their sum overflowed.
#[test]
fn stored_bytes_of_damaged_inodes_sum_without_overflow() {
    let sum = |stored_bytes| {
        let mut tree = healthy();
        tree.inodes.values_mut().for_each(|inode| inode.stored_bytes = stored_bytes);
        let totals = Tree::run(async |volume| {
            tree.put(&mut volume.0.state.lock());
            let mut report = FsckReport::default();
            check_names(&volume.0, None, &LEAST, &mut report).await.unwrap()
        });
        totals.1.stored_bytes
    };
    assert_eq!(sum(0), 0);
    assert_eq!(sum(u64::MAX / 2), u64::MAX);
}

/// stored.E15: an inode that the log has changed since the checkpoint is compared with its extents,
/// too.
#[test]
fn changed_inode_disagreeing_with_its_extents_is_found() {
    let (_, findings) = Tree::run(async |volume| {
        healthy().put(&mut volume.0.state.lock());
        volume.checkpoint().await.unwrap();
        let root = volume.0.state.lock().tree().root();
        let mut report = FsckReport::default();
        let mut tree = healthy();
        tree.inodes.get_mut(&4).unwrap().stored_bytes = 1;
        tree.put(&mut volume.0.state.lock());
        check_names(&volume.0, Some(&root), &LEAST, &mut report).await.unwrap();
        report.findings.retain(|finding| finding.kind == FindingKind::Usage);
        report.findings
    });
    let [finding] = &findings[..] else { panic!("{findings:?}") };
    assert_eq!((finding.kind, finding.ino), (FindingKind::Usage, Some(4)));
    assert_eq!(finding.figures, Some((1, 0)));
}
