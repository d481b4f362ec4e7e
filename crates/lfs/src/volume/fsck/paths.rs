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
    for finding in findings {
        finding.path = finding.ino.and_then(|ino| path_of(&names, ino));
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

/// A path of an inode.
fn path_of(names: &Names, ino: u64) -> Option<Vec<u8>> {
    if ino == ROOT_INO {
        return Some(b"/".to_vec());
    }
    let (mut parts, mut at) = (Vec::new(), ino);
    while at != ROOT_INO {
        let (dir, name) = names.get(&at)?.as_ref()?;
        parts.push(name);
        // The directories of a damaged volume may form a loop.
        if parts.len() > names.len() {
            return None;
        }
        at = *dir;
    }
    let path = parts.into_iter().rev().flat_map(|part| b"/".iter().chain(part.iter()));
    Some(path.copied().collect())
}
