//! The rules of names and attributes, shared by all implementations: which calls fail, the order of
//! error checks, and what a successful call changes. They are functions of a [`View`]; the caller
//! carries out the result.
//!
//! Each rule has its test case in `suite` of forebay-testkit. That suite is written from the
//! interface and also runs on the host's file systems, because an oracle that shares this code
//! would share its mistakes.
//!
//! Invariants: Y1 a rule only reads: a refused call has changed nothing (fs.F7). Y2 a rule depends
//! only on what it reads. If it stops because an object is not loaded ([`View::Stop`]), the caller
//! loads the object and calls the rule again.
//!
//! No locks: the caller holds locks that keep the view unchanged until the result is carried out.

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

/// An inode of a directory entry, with its kind.
pub type Child = (Ino, FileKind);

/// Result of reading from a view.
pub type Look<T, V> = std::result::Result<T, <V as View>::Stop>;

/// The state that the rules read.
pub trait View {
    /// Why reading stops: an error, or an object that is not loaded.
    type Stop: From<Error>;

    /// An inode; `None`: no inode has this number.
    fn inode(&self, ino: Ino) -> Look<Option<Seen>, Self>;

    /// The inode that a name in a directory denotes.
    fn entry(&self, at: At<'_>) -> Look<Option<Child>, Self>;

    /// Whether a directory has entries.
    fn has_entries(&self, dir: Ino) -> Look<bool, Self>;

    /// Most links of an inode.
    fn links_max(&self) -> u32 {
        LINK_MAX
    }
}

/// The part of an inode that the rules read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    /// The kind of the file.
    pub kind: FileKind,
    /// Permission, set-id and sticky bits.
    pub perm: u16,
    /// Number of its names.
    pub nlink: u32,
    /// Group.
    pub gid: u32,
    /// Parent of a directory.
    pub parent: Ino,
    /// It is open.
    pub is_open: bool,
    /// It never had a name, and may get one.
    pub is_linkable: bool,
}

/// Changes of an inode's attributes; `None`: unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Patch {
    /// Permission bits.
    pub perm: Option<u16>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Number of its names.
    pub nlink: Option<u32>,
    /// Time of access.
    pub atime: Option<Timestamp>,
    /// Time of modification.
    pub mtime: Option<Timestamp>,
    /// Time of change.
    pub ctime: Option<Timestamp>,
    /// [`crate::types::XATTR_CAPABILITY`] is removed, if the inode has it.
    pub drops_capability: bool,
}

impl Patch {
    /// The changes of a directory with `nlink` links whose entries changed; it has `more`
    /// subdirectories more than before.
    fn of_directory(nlink: u32, more: i32, now: Timestamp) -> Self {
        let nlink = (more != 0).then(|| nlink.saturating_add_signed(more));
        Self { nlink, mtime: Some(now), ctime: Some(now), ..Self::default() }
    }

    fn ctime(now: Timestamp) -> Self {
        Self { ctime: Some(now), ..Self::default() }
    }

    /// Applies the changes to attributes.
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

/// Reads an inode. Error: `Stale`.
pub fn inode<V: View + ?Sized>(view: &V, op: &'static str, ino: Ino) -> Look<Seen, V> {
    match view.inode(ino)? {
        Some(seen) => Ok(seen),
        None => refuse(ErrorKind::Stale, op, format!("{ino:?}")),
    }
}

/// Reads a directory. Errors: `Stale`, `NotDirectory`.
pub fn directory<V: View + ?Sized>(view: &V, op: &'static str, dir: Ino) -> Look<Seen, V> {
    let seen = inode(view, op, dir)?;
    match seen.kind {
        FileKind::Directory => Ok(seen),
        _ => refuse(ErrorKind::NotDirectory, op, format!("{dir:?}")),
    }
}

/// Reads a directory that was not removed. Errors: those of [`directory`], and `NotFound`.
pub fn live_directory<V: View + ?Sized>(view: &V, op: &'static str, dir: Ino) -> Look<Seen, V> {
    let seen = directory(view, op, dir)?;
    match seen.nlink {
        0 => refuse(ErrorKind::NotFound, op, format!("{dir:?} was removed")),
        _ => Ok(seen),
    }
}

/// Reads an inode with content. Errors: `Stale`, `IsDirectory`, `InvalidInput`.
pub fn regular<V: View + ?Sized>(view: &V, op: &'static str, ino: Ino) -> Look<Seen, V> {
    let seen = inode(view, op, ino)?;
    match seen.kind {
        FileKind::File => Ok(seen),
        FileKind::Directory => refuse(ErrorKind::IsDirectory, op, format!("{ino:?}")),
        kind => refuse(ErrorKind::InvalidInput, op, format!("{ino:?} is a {kind:?}")),
    }
}

/// Reads the entry of a name. Errors: those of [`live_directory`], and `NotFound`.
pub fn find<V: View + ?Sized>(view: &V, op: &'static str, at: At<'_>) -> Look<Child, V> {
    live_directory(view, op, at.0)?;
    match view.entry(at)? {
        Some(child) => Ok(child),
        None => refuse(ErrorKind::NotFound, op, format!("{:?} in {:?}", at.1, at.0)),
    }
}

/// Reads the directory of a name that must not exist. Errors: those of [`live_directory`], and
/// `Exists`.
pub fn check_free<V: View + ?Sized>(view: &V, op: &'static str, at: At<'_>) -> Look<Seen, V> {
    let dir = live_directory(view, op, at.0)?;
    match view.entry(at)? {
        None => Ok(dir),
        Some(_) => refuse(ErrorKind::Exists, op, format!("{:?} in {:?}", at.1, at.0)),
    }
}

/// Checks that an inode may have another link. Error: `TooManyLinks`.
fn check_links<V: View + ?Sized>(view: &V, op: &'static str, ino: Ino, nlink: u32) -> Look<(), V> {
    match nlink < view.links_max() {
        true => Ok(()),
        false => refuse(ErrorKind::TooManyLinks, op, format!("{ino:?}")),
    }
}

/// Checks the flags of an opening. Errors: `Unsupported` for unknown ones, `InvalidInput` for
/// `TRUNCATE` without `WRITE`.
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

/// Checks that an opening with `flags` permits a call that requires `needed`. Error: `BadHandle`.
pub fn check_handle(op: &'static str, ino: Ino, flags: OpenFlags, needed: OpenFlags) -> Result<()> {
    match flags.contains(needed) {
        true => Ok(()),
        false => refuse(ErrorKind::BadHandle, op, format!("{ino:?} is opened {flags:?}")),
    }
}
