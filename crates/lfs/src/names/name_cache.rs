//! The name cache: names by which inodes were last looked up, for tools that show cached files. An
//! inode of a regular file does not know its name, and may have several. Nothing else uses this
//! cache: a name may be missing, or outdated.
//!
//! Invariants: Q51 its size is bounded: a name replaces that of another inode. Names of
//! directories, which are parts of paths, are replaced only by those of other directories. Q52 no
//! name is stored before the first query. Lock: its own, a leaf.

use crate::format::inode::ROOT_INO;
use forebay_base::sync::Mutex;
use forebay_base::sync::atomic::{AtomicBool, Ordering};

/// Slots for names of directories, and as many for others; about 128 KiB with names of usual
/// length.
const PLACES: usize = 1024;
/// Most directories in a path.
const DEPTH: usize = 32;

struct Known {
    ino: u64,
    dir: u64,
    name: Box<[u8]>,
}

fn place(ino: u64, is_dir: bool) -> usize {
    ino as usize % PLACES + if is_dir { 0 } else { PLACES }
}

/// The name cache.
#[derive(Default)]
pub(crate) struct Remembered {
    wanted: AtomicBool,
    places: Mutex<Vec<Option<Known>>>,
}

impl Remembered {
    /// Starts to store names.
    pub fn start(&self) {
        if self.wanted.load(Ordering::Acquire) {
            return;
        }
        self.places.lock().resize_with(2 * PLACES, || None);
        self.wanted.store(true, Ordering::Release);
    }

    /// Stores that `name` in `dir` is this inode.
    pub fn note(&self, (ino, is_dir): (u64, bool), dir: u64, name: &[u8]) {
        if !self.wanted.load(Ordering::Acquire) {
            return;
        }
        let place = &mut self.places.lock()[place(ino, is_dir)];
        let same = |k: &Known| k.ino == ino && k.dir == dir && *k.name == *name;
        if !place.as_ref().is_some_and(same) {
            *place = Some(Known { ino, dir, name: name.into() });
        }
    }

    /// Changes the stored name after a rename.
    pub fn renamed(&self, (dir, name): (u64, &[u8]), (new_dir, new_name): (u64, &[u8])) {
        if !self.wanted.load(Ordering::Acquire) {
            return;
        }
        let mut places = self.places.lock();
        let known = places.iter_mut().flatten().find(|k| k.dir == dir && *k.name == *name);
        if let Some(known) = known {
            (known.dir, known.name) = (new_dir, new_name.into());
        }
    }

    /// The path of an inode, as far as it is known; an unknown parent is shown as `...`.
    pub fn path(&self, ino: u64) -> Option<Vec<u8>> {
        let places = self.places.lock();
        let find = |ino: u64, is_dir: bool| {
            let known = places.get(place(ino, is_dir))?.as_ref();
            known.filter(|known| known.ino == ino)
        };
        let mut at = find(ino, false).or_else(|| find(ino, true))?;
        let mut parts = vec![&*at.name];
        while at.dir != ROOT_INO {
            match find(at.dir, true).filter(|_| parts.len() < DEPTH) {
                Some(above) => at = above,
                None => {
                    parts.push(b"...");
                    break;
                }
            }
            parts.push(&at.name);
        }
        Some(parts.iter().rev().flat_map(|part| [b"/", *part].concat()).collect())
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn q51_q52_paths_follow_lookups_and_renames() {
        let names = Remembered::default();
        names.note((7, true), ROOT_INO, b"early");
        assert_eq!(names.path(7), None, "Q52");
        names.start();
        names.note((7, true), ROOT_INO, b"base");
        names.note((8, false), 7, b"1");
        assert_eq!(names.path(8).unwrap(), b"/base/1");
        names.renamed((7, b"1"), (ROOT_INO, b"2"));
        assert_eq!(names.path(8).unwrap(), b"/2");
        names.note((9, false), 500, b"x");
        assert_eq!(names.path(9).unwrap(), b"/.../x");
        let same_place = |n: u64| n + PLACES as u64;
        names.note((same_place(7), false), 7, b"y");
        assert_eq!(
            names.path(same_place(7)).unwrap(),
            b"/base/y",
            "directories have their own places"
        );
        names.note((same_place(9), false), 7, b"y");
        assert_eq!(names.path(9), None, "Q51");
    }

    /// Names that were stored at different times may form a cycle of directories.
    #[test]
    fn path_through_directory_cycle_ends() {
        let names = Remembered::default();
        names.start();
        names.note((20, true), 21, b"a");
        names.note((21, true), 20, b"b");
        assert!(names.path(20).unwrap().starts_with(b"/.../"));
    }
}
