//! The rules of names and attributes, once for every implementation: what is refused and in which order,
//! and what a call that is not refused changes. Functions of what they look at, which is a [`View`]; whoever
//! calls them carries out what they answer.
//!
//! Each of them has its case in `suite` of forebay-testkit, which is written against the contract and run on
//! the host's file systems, too: an oracle that shares a mistake does not find it.
//!
//! Invariants: Y1 a rule only looks: what is refused has changed nothing (F7). Y2 what a rule does not look
//! at it does not depend on: one that ends because something is not at hand ([`View::Stop`]) is asked again
//! when it is.
//!
//! No locks: the caller holds what keeps the view as it is until the answer is carried out.

pub mod attrs;
pub mod names;
pub mod rename;
#[cfg(test)]
mod tests;

use crate::name::Name;
use crate::types::{Attr, FileKind, Ino, LINK_MAX, OpenFlags, Timestamp};
use forebay_base::{Error, ErrorKind, Result};

/// A directory and a name in it.
pub type At<'a> = (Ino, Name<'a>);

/// What an entry says of its inode.
pub type Child = (Ino, FileKind);

/// How a look ends.
pub type Look<T, V> = std::result::Result<T, <V as View>::Stop>;

/// What the rules look at.
pub trait View {
    /// What ends a look: an error, or that something is not at hand.
    type Stop: From<Error>;

    /// An inode; none: there is none with this number.
    fn inode(&self, ino: Ino) -> Look<Option<Seen>, Self>;

    /// What a name in a directory denotes.
    fn entry(&self, at: At<'_>) -> Look<Option<Child>, Self>;

    /// Whether a directory has entries.
    fn has_entries(&self, dir: Ino) -> Look<bool, Self>;

    /// Links of an inode, at most.
    fn links_max(&self) -> u32 {
        LINK_MAX
    }
}

/// What the rules see of an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    /// What it is.
    pub kind: FileKind,
    /// Permission, set-id and sticky bits.
    pub perm: u16,
    /// Names it has.
    pub nlink: u32,
    /// Group.
    pub gid: u32,
    /// Of a directory: where its entry is.
    pub parent: Ino,
    /// Somebody has it open.
    pub is_open: bool,
    /// It never had a name, and may get one.
    pub is_linkable: bool,
}

/// What changes of an inode's attributes; `None` stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Patch {
    /// Permission bits.
    pub perm: Option<u16>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Names it has.
    pub nlink: Option<u32>,
    /// Last read.
    pub atime: Option<Timestamp>,
    /// Last change of the content.
    pub mtime: Option<Timestamp>,
    /// Last change.
    pub ctime: Option<Timestamp>,
    /// [`crate::types::XATTR_CAPABILITY`] goes, if it is there.
    pub drops_capability: bool,
}

impl Patch {
    /// The entries of a directory with `nlink` links have changed, by `more` directories.
    fn of_directory(nlink: u32, more: i32, now: Timestamp) -> Self {
        let nlink = (more != 0).then(|| nlink.saturating_add_signed(more));
        Self { nlink, mtime: Some(now), ctime: Some(now), ..Self::default() }
    }

    fn ctime(now: Timestamp) -> Self {
        Self { ctime: Some(now), ..Self::default() }
    }

    /// Brings attributes up to date.
    pub fn apply(&self, attr: &mut Attr) {
        let Self { perm, uid, gid, nlink, atime, mtime, ctime, drops_capability: _ } = *self;
        attr.perm = perm.unwrap_or(attr.perm);
        attr.uid = uid.unwrap_or(attr.uid);
        attr.gid = gid.unwrap_or(attr.gid);
        attr.nlink = nlink.unwrap_or(attr.nlink);
        attr.atime = atime.unwrap_or(attr.atime);
        attr.mtime = mtime.unwrap_or(attr.mtime);
        attr.ctime = ctime.unwrap_or(attr.ctime);
    }
}

/// An error of `kind` in `op` about `what`.
pub fn refuse<T, E: From<Error>>(
    kind: ErrorKind,
    op: &'static str,
    what: impl ToString,
) -> std::result::Result<T, E> {
    Err(Error::new(kind, op, what.to_string()).into())
}

pub(crate) fn is_dir(child: Child) -> bool {
    child.1 == FileKind::Directory
}

/// `Stale` for an inode that is gone.
pub fn inode<V: View + ?Sized>(view: &V, op: &'static str, ino: Ino) -> Look<Seen, V> {
    match view.inode(ino)? {
        Some(seen) => Ok(seen),
        None => refuse(ErrorKind::Stale, op, format!("{ino:?}")),
    }
}

/// A directory: `Stale`, `NotDirectory`.
pub fn directory<V: View + ?Sized>(view: &V, op: &'static str, dir: Ino) -> Look<Seen, V> {
    let seen = inode(view, op, dir)?;
    match seen.kind {
        FileKind::Directory => Ok(seen),
        _ => refuse(ErrorKind::NotDirectory, op, format!("{dir:?}")),
    }
}

/// A directory that is in the tree: also `NotFound`.
pub fn live_directory<V: View + ?Sized>(view: &V, op: &'static str, dir: Ino) -> Look<Seen, V> {
    let seen = directory(view, op, dir)?;
    match seen.nlink {
        0 => refuse(ErrorKind::NotFound, op, format!("{dir:?} was removed")),
        _ => Ok(seen),
    }
}

/// What has content: `Stale`, `IsDirectory`, `InvalidInput`.
pub fn regular<V: View + ?Sized>(view: &V, op: &'static str, ino: Ino) -> Look<Seen, V> {
    let seen = inode(view, op, ino)?;
    match seen.kind {
        FileKind::File => Ok(seen),
        FileKind::Directory => refuse(ErrorKind::IsDirectory, op, format!("{ino:?}")),
        kind => refuse(ErrorKind::InvalidInput, op, format!("{ino:?} is a {kind:?}")),
    }
}

/// The entry of a name: also `NotFound`.
pub fn find<V: View + ?Sized>(view: &V, op: &'static str, at: At<'_>) -> Look<Child, V> {
    live_directory(view, op, at.0)?;
    match view.entry(at)? {
        Some(child) => Ok(child),
        None => refuse(ErrorKind::NotFound, op, format!("{:?} in {:?}", at.1, at.0)),
    }
}

/// The directory of a name that is free: also `Exists`.
pub fn check_free<V: View + ?Sized>(view: &V, op: &'static str, at: At<'_>) -> Look<Seen, V> {
    let dir = live_directory(view, op, at.0)?;
    match view.entry(at)? {
        None => Ok(dir),
        Some(_) => refuse(ErrorKind::Exists, op, format!("{:?} in {:?}", at.1, at.0)),
    }
}

/// Whether an inode may have a link more: `TooManyLinks`.
fn check_links<V: View + ?Sized>(view: &V, op: &'static str, ino: Ino, nlink: u32) -> Look<(), V> {
    match nlink < view.links_max() {
        true => Ok(()),
        false => refuse(ErrorKind::TooManyLinks, op, format!("{ino:?}")),
    }
}

/// Flags of an opening: `Unsupported` for unknown ones, `InvalidInput`.
pub fn check_open_flags(flags: OpenFlags) -> Result<()> {
    let unknown = flags.bits() & !OpenFlags::all().bits();
    if unknown != 0 {
        return refuse(ErrorKind::Unsupported, "open", format!("unknown flag bits {unknown:#x}"));
    }
    match flags.contains(OpenFlags::TRUNCATE) && !flags.contains(OpenFlags::WRITE) {
        true => refuse(ErrorKind::InvalidInput, "open", "to truncate and not to write"),
        false => Ok(()),
    }
}

/// Whether an opening with `flags` serves for what needs `needed`: `BadHandle`.
pub fn check_handle(op: &'static str, ino: Ino, flags: OpenFlags, needed: OpenFlags) -> Result<()> {
    match flags.contains(needed) {
        true => Ok(()),
        false => refuse(ErrorKind::BadHandle, op, format!("{ino:?} is opened {flags:?}")),
    }
}
