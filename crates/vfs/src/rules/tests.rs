//! Tests of the rules on a view in which some objects are not loaded.
//!
//! No locks.

use super::*;
use crate::types::{NewInode, RenameFlags};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Debug, PartialEq)]
enum Stop {
    Refused(ErrorKind),
    Missing(String),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Refused(error.kind())
    }
}

/// A small tree: `/a/b/c` and the files `/f`, `/g`, of which some objects are not loaded.
struct Partial {
    inodes: BTreeMap<Ino, Seen>,
    entries: BTreeMap<(Ino, &'static str), Child>,
    at_hand: RefCell<Option<BTreeSet<String>>>,
}

impl Partial {
    fn new(all: bool) -> Self {
        let (dir, file) = (FileKind::Directory, FileKind::File);
        let (is_open, is_linkable) = (false, false);
        let seen = |kind, nlink, parent| {
            let parent = Ino(parent);
            Seen { kind, perm: 0o755, nlink, gid: 0, parent, is_open, is_linkable }
        };
        let inodes = [
            (Ino(1), seen(dir, 3, 1)),
            (Ino(2), seen(dir, 3, 1)),
            (Ino(3), seen(dir, 3, 2)),
            (Ino(4), seen(dir, 2, 3)),
            (Ino(5), seen(file, 1, 0)),
            (Ino(6), seen(file, 1, 0)),
        ];
        let entries = [
            ((Ino(1), "a"), (Ino(2), dir)),
            ((Ino(2), "b"), (Ino(3), dir)),
            ((Ino(3), "c"), (Ino(4), dir)),
            ((Ino(1), "f"), (Ino(5), file)),
            ((Ino(1), "g"), (Ino(6), file)),
        ];
        let at_hand = RefCell::new((!all).then(BTreeSet::new));
        Self { inodes: inodes.into(), entries: entries.into(), at_hand }
    }

    fn need(&self, what: String) -> std::result::Result<(), Stop> {
        match &*self.at_hand.borrow() {
            Some(there) if !there.contains(&what) => Err(Stop::Missing(what)),
            _ => Ok(()),
        }
    }
}

impl View for Partial {
    type Stop = Stop;

    fn inode(&self, ino: Ino) -> std::result::Result<Option<Seen>, Stop> {
        self.need(format!("{ino:?}"))?;
        Ok(self.inodes.get(&ino).copied())
    }

    fn entry(&self, (dir, name): At<'_>) -> std::result::Result<Option<Child>, Stop> {
        self.need(format!("{dir:?} {name:?}"))?;
        let text = str::from_utf8(name.as_bytes()).unwrap();
        Ok(self.entries.iter().find(|((d, n), _)| (*d, *n) == (dir, text)).map(|(_, c)| *c))
    }

    fn has_entries(&self, dir: Ino) -> std::result::Result<bool, Stop> {
        self.need(format!("{dir:?} entries"))?;
        Ok(self.entries.keys().any(|(d, _)| *d == dir))
    }
}

type Asked = fn(&Partial) -> std::result::Result<String, Stop>;

fn at(dir: u64, text: &'static str) -> At<'static> {
    (Ino(dir), Name::new(text.as_bytes()).unwrap())
}

const NOW: Timestamp = Timestamp::new(7, 0);
const NONE: RenameFlags = RenameFlags::empty();

const ASKED: [Asked; 10] = [
    |v| find(v, "find", at(1, "a")).map(|found| format!("{found:?}")),
    |v| {
        let new = NewInode::of(FileKind::Directory, 0o700);
        names::mkdir(v, at(3, "d"), &new, NOW).map(|made| format!("{made:?}"))
    },
    |v| names::link(v, Ino(5), at(2, "l"), NOW).map(|linked| format!("{linked:?}")),
    |v| names::unlink(v, at(1, "f"), NOW).map(|removed| format!("{removed:?}")),
    |v| names::rmdir(v, at(1, "a"), NOW).map(|removed| format!("{removed:?}")),
    |v| names::rmdir(v, at(3, "c"), NOW).map(|removed| format!("{removed:?}")),
    |v| rename::rename(v, at(1, "f"), at(1, "g"), NONE, NOW).map(|moved| format!("{moved:?}")),
    |v| rename::rename(v, at(3, "c"), at(1, "d"), NONE, NOW).map(|moved| format!("{moved:?}")),
    |v| rename::rename(v, at(1, "a"), at(4, "a"), NONE, NOW).map(|moved| format!("{moved:?}")),
    |v| {
        let exchange = RenameFlags::EXCHANGE;
        rename::rename(v, at(1, "f"), at(3, "c"), exchange, NOW).map(|moved| format!("{moved:?}"))
    },
];

/// rules.Y1, rules.Y2: if each object that was missing is loaded and the rule is called again, it
/// comes to the same result as with all objects loaded. It asks for few objects.
#[test]
fn y1_y2_partial_view_reaches_same_result() {
    for (n, asked) in ASKED.into_iter().enumerate() {
        let wanted = asked(&Partial::new(true));
        let some = Partial::new(false);
        let mut stops = 0;
        let answer = loop {
            match asked(&some) {
                Err(Stop::Missing(what)) => {
                    let new = some.at_hand.borrow_mut().as_mut().is_some_and(|s| s.insert(what));
                    assert!(new, "{n}: it was at hand");
                    stops += 1;
                }
                answer => break answer,
            }
        };
        assert_eq!(answer, wanted, "{n}");
        assert!((2..=8).contains(&stops), "{n}: stopped {stops} times");
    }
}

/// A damaged tree may have a loop; the search for ancestors still ends.
#[test]
fn y3_ancestor_search_in_loop_ends() {
    let mut view = Partial::new(true);
    view.inodes.get_mut(&Ino(2)).unwrap().parent = Ino(4);
    view.entries.insert((Ino(1), "h"), (Ino(7), FileKind::Directory));
    view.inodes.insert(Ino(7), view.inodes[&Ino(4)]);
    let moved = rename::rename(&view, at(1, "h"), at(4, "h"), NONE, NOW);
    assert!(matches!(moved, Ok(rename::Moved::Replaced { .. })), "{moved:?}");
}
