//! Paths of the inodes of findings.
//!
//! Invariant: E24 a path follows entries from the root, and none leads through a directory that is
//! missing. Names are looked up only if there are findings. In memory are the names of all their
//! inodes and of the directories above.
//!
//! Locks: the state lock, taken briefly. No lock is held across a wait.

use super::report::Finding;
use super::scan::{Name, Scan, inode_of};
use crate::format::inode::{FileType, ROOT_INO};
use crate::volume::Inner;
use forebay_base::Result;
use std::collections::{BTreeMap, BTreeSet};

/// A longer path is cut at its beginning.
const PATH_BYTES: usize = 4096;

/// The directory and the name of each inode. `None`: it has none.
type Names = BTreeMap<u64, Option<(u64, Box<[u8]>)>>;

/// Adds a path to each finding about an inode.
pub(super) async fn add_paths(volume: &Inner, findings: &mut [Finding]) -> Result<()> {
    let mut names = Names::new();
    let mut wanted: BTreeSet<u64> = findings.iter().filter_map(|finding| finding.ino).collect();
    wanted.remove(&ROOT_INO);
    while !wanted.is_empty() {
        let missing: BTreeSet<u64> = find_in_parents(volume, &wanted, &mut names).await?;
        if !missing.is_empty() {
            find_anywhere(volume, &missing, &mut names).await?;
        }
        for ino in &missing {
            names.entry(*ino).or_insert(None);
        }
        let above = wanted.iter().filter_map(|ino| names.get(ino)?.as_ref()).map(|(dir, _)| *dir);
        wanted = above.filter(|dir| *dir != ROOT_INO && !names.contains_key(dir)).collect();
    }
    let mut known = BTreeMap::new();
    for finding in findings {
        finding.path = finding.ino.and_then(|ino| path_of(&names, ino, &mut known));
    }
    Ok(())
}

/// Looks up directories in their parents. Returns the inodes that have to be found otherwise.
async fn find_in_parents(
    volume: &Inner,
    wanted: &BTreeSet<u64>,
    names: &mut Names,
) -> Result<BTreeSet<u64>> {
    let (mut missing, mut parents) = (wanted.clone(), BTreeSet::new());
    for ino in wanted {
        match inode_of(volume, *ino).await? {
            Some(inode) if inode.file_type() == Some(FileType::Directory) => {
                parents.insert(inode.parent);
            }
            Some(_) => {}
            // No path leads through an inode that is not there.
            None => {
                missing.remove(ino);
                names.insert(*ino, None);
            }
        }
    }
    for parent in parents {
        let mut scan = Scan::directory(volume, parent);
        while let Some(item) = scan.next().await? {
            note(item, &mut missing, names);
        }
    }
    Ok(missing)
}

/// Looks up inodes in all directories.
async fn find_anywhere(volume: &Inner, wanted: &BTreeSet<u64>, names: &mut Names) -> Result<()> {
    let (mut missing, mut scan) = (wanted.clone(), Scan::all(volume));
    while !missing.is_empty()
        && let Some(item) = scan.next().await?
    {
        note(item, &mut missing, names);
    }
    Ok(())
}

/// Notes the name of a missing inode.
fn note(item: Name, missing: &mut BTreeSet<u64>, names: &mut Names) {
    if let Name::Entry { dir, name, child, .. } = item
        && missing.remove(&child)
    {
        names.insert(child, Some((dir, name)));
    }
}

/// Whether the directories above an inode lead to the root. `known`: of earlier inodes.
fn leads_to_root(names: &Names, ino: u64, known: &mut BTreeMap<u64, bool>) -> bool {
    let (mut at, mut walked) = (ino, Vec::new());
    let leads = loop {
        if at == ROOT_INO {
            break true;
        }
        if let Some(leads) = known.get(&at) {
            break *leads;
        }
        // A loop comes back to it.
        known.insert(at, false);
        walked.push(at);
        let Some(Some((dir, _))) = names.get(&at) else { break false };
        at = *dir;
    };
    if leads {
        known.extend(walked.into_iter().map(|ino| (ino, true)));
    }
    leads
}

/// A path of an inode, or the end of it.
fn path_of(names: &Names, ino: u64, known: &mut BTreeMap<u64, bool>) -> Option<Vec<u8>> {
    if ino == ROOT_INO {
        return Some(b"/".to_vec());
    }
    if !leads_to_root(names, ino, known) {
        return None;
    }
    let (mut parts, mut at, mut bytes, mut start) = (Vec::new(), ino, 0, &b""[..]);
    while at != ROOT_INO {
        let (dir, name) = names.get(&at)?.as_ref()?;
        bytes += 1 + name.len();
        if bytes > PATH_BYTES {
            start = b"...";
            break;
        }
        parts.push(name);
        at = *dir;
    }
    let path = parts.into_iter().rev().flat_map(|part| b"/".iter().chain(part.iter()));
    Some(start.iter().chain(path).copied().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The story: a report had a copy of the whole path for each finding. Nothing limits how deep
    /// directories are nested, so 100,000 findings in the lowest one took a terabyte.
    #[test]
    fn long_path_is_cut_at_its_beginning() {
        let deep = |ino: u64| (ino, Some((ino - 1, [b'x'; 255].into())));
        let mut names: Names = (2..50_000).map(deep).collect();
        names.insert(60_000, Some((60_001, b"a".as_slice().into())));
        names.insert(60_001, Some((60_000, b"b".as_slice().into())));
        names.insert(60_002, Some((60_001, b"c".as_slice().into())));
        names.insert(60_003, None);
        names.insert(60_004, Some((60_003, b"d".as_slice().into())));
        let mut known = BTreeMap::new();
        let mut path = |ino| path_of(&names, ino, &mut known);
        assert_eq!(path(17).unwrap().len(), 16 * 256);
        assert_eq!(path(17).unwrap()[..2], *b"/x");
        for ino in [18, 49_999] {
            let path = path(ino).unwrap();
            assert_eq!((path.len(), &path[..5]), (3 + 16 * 256, &b".../x"[..]));
        }
        assert!((60_000..60_006).all(|ino| path(ino).is_none()), "a loop, or a name is missing");
        assert_eq!(path(ROOT_INO).as_deref(), Some(&b"/"[..]));
    }
}
