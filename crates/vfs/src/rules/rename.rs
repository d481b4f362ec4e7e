//! Rules of renaming.
//!
//! Invariants: as in [`super`]. rename.Y3 a directory is never moved below itself (fs.F1).
//!
//! No locks.

use super::names::{Fate, fate};
use super::{
    At, Child, Look, Patch, View, check_links, find, inode, is_dir, live_directory, refuse,
};
use crate::types::{Ino, RenameFlags, Timestamp};
use forebay_base::ErrorKind;

/// Result of a rename.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Moved {
    /// Both names denote the same inode: nothing changes.
    Nothing,
    /// The entry is moved.
    Replaced {
        /// The inode that it denotes.
        source: Child,
        /// The inode that was at the new name, and its state now.
        replaced: Option<(Child, Fate)>,
        /// Changes of the directories and of the moved inode.
        touched: Vec<(Ino, Patch)>,
    },
    /// The two entries are exchanged.
    Exchanged {
        /// The inode that was at the old name.
        source: Child,
        /// The inode that was at the new name.
        target: Child,
        /// Changes of the directories and of the moved inodes.
        touched: Vec<(Ino, Patch)>,
    },
}

/// Both names with their inodes.
#[derive(Clone, Copy)]
struct Sides<'a> {
    from: At<'a>,
    to: At<'a>,
    source: Child,
    target: Option<Child>,
    exchange: bool,
}

/// [`crate::FileSystem::rename`].
pub fn rename<V: View + ?Sized>(
    view: &V,
    from: At<'_>,
    to: At<'_>,
    flags: RenameFlags,
    now: Timestamp,
) -> Look<Moved, V> {
    flags.check()?;
    live_directory(view, "rename", to.0)?;
    let source = find(view, "rename", from)?;
    let target = view.entry(to)?;
    let exchange = flags.contains(RenameFlags::EXCHANGE);
    match target {
        Some(_) if flags.contains(RenameFlags::NOREPLACE) => {
            return refuse(ErrorKind::Exists, "rename", format!("{:?}", to.1));
        }
        None if exchange => {
            return refuse(ErrorKind::NotFound, "rename", format!("{:?}", to.1));
        }
        _ => {}
    }
    let sides = Sides { from, to, source, target, exchange };
    check(view, sides)?;
    match target {
        Some(target) if target.0 == source.0 => Ok(Moved::Nothing),
        Some(target) if exchange => exchanged(view, sides, target, now),
        _ => replaced(view, sides, now),
    }
}

/// Whether `ino` is `below` or an ancestor of it. Ends also on a loop, which a damaged tree may
/// have.
fn is_above<V: View + ?Sized>(view: &V, ino: Ino, below: Ino) -> Look<bool, V> {
    let (mut at, mut slow, mut steps) = (below, below, 0u64);
    loop {
        if at == ino {
            return Ok(true);
        }
        if at == Ino::ROOT {
            return Ok(false);
        }
        let Some(seen) = view.inode(at)? else { return Ok(false) };
        at = seen.parent;
        steps += 1;
        if steps.is_multiple_of(2) {
            slow = view.inode(slow)?.map_or(Ino::ROOT, |seen| seen.parent);
            if slow == at {
                return Ok(at == ino);
            }
        }
    }
}

fn check<V: View + ?Sized>(view: &V, sides: Sides<'_>) -> Look<(), V> {
    let Sides { from, to, source, target, exchange } = sides;
    let no = |kind| refuse(kind, "rename", format!("{:?} to {:?}", from.1, to.1));
    if is_dir(source) && is_above(view, source.0, to.0)? {
        return no(ErrorKind::InvalidInput);
    }
    if let Some(target) = target {
        if is_dir(target) && is_above(view, target.0, from.0)? {
            return no(if exchange { ErrorKind::InvalidInput } else { ErrorKind::NotEmpty });
        }
        if target.0 == source.0 {
            return Ok(());
        }
        if !exchange {
            match (is_dir(source), is_dir(target)) {
                (true, false) => return no(ErrorKind::NotDirectory),
                (false, true) => return no(ErrorKind::IsDirectory),
                (true, true) if view.has_entries(target.0)? => return no(ErrorKind::NotEmpty),
                _ => {}
            }
        }
    }
    if from.0 == to.0 {
        return Ok(());
    }
    // Whether a directory is moved into the target's parent, and whether one is moved out of it.
    let (comes, goes) = (is_dir(source), target.is_some_and(is_dir));
    if exchange && goes && !comes {
        check_links(view, "rename", from.0, inode(view, "rename", from.0)?.nlink)?;
    }
    match comes && !goes {
        true => check_links(view, "rename", to.0, inode(view, "rename", to.0)?.nlink),
        false => Ok(()),
    }
}

/// Changes of both directories, each with its change of the number of subdirectories.
fn directories<V: View + ?Sized>(
    view: &V,
    sides: Sides<'_>,
    (more_from, more_to): (i32, i32),
    now: Timestamp,
) -> Look<Vec<(Ino, Patch)>, V> {
    let (from, to) = (sides.from.0, sides.to.0);
    let patch = |dir, more| -> Look<(Ino, Patch), V> {
        Ok((dir, Patch::of_directory(inode(view, "rename", dir)?.nlink, more, now)))
    };
    match from == to {
        true => Ok(vec![patch(from, more_from + more_to)?]),
        false => Ok(vec![patch(from, more_from)?, patch(to, more_to)?]),
    }
}

fn replaced<V: View + ?Sized>(view: &V, sides: Sides<'_>, now: Timestamp) -> Look<Moved, V> {
    let Sides { source, target, .. } = sides;
    let moves = i32::from(is_dir(source));
    let goes = i32::from(target.is_some_and(is_dir));
    let mut touched = directories(view, sides, (-moves, moves - goes), now)?;
    touched.push((source.0, Patch::ctime(now)));
    let replaced = match target {
        Some(target) => Some((target, fate(inode(view, "rename", target.0)?, now))),
        None => None,
    };
    Ok(Moved::Replaced { source, replaced, touched })
}

fn exchanged<V: View + ?Sized>(
    view: &V,
    sides: Sides<'_>,
    target: Child,
    now: Timestamp,
) -> Look<Moved, V> {
    let source = sides.source;
    let more = i32::from(is_dir(target)) - i32::from(is_dir(source));
    let mut touched = directories(view, sides, (more, -more), now)?;
    touched.push((source.0, Patch::ctime(now)));
    touched.push((target.0, Patch::ctime(now)));
    Ok(Moved::Exchanged { source, target, touched })
}
