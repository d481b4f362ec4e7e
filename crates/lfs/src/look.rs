//! Looks at the state that may find that something is not in memory; and the state as the rules of names
//! see it ([`rules::View`]).
//!
//! An operation is tried under the state lock. If it ends with [`Stop::Missing`], it has changed nothing:
//! the lock is let go, what was missing is loaded, and it is tried again ([`crate::volume::Inner::tried`]).
//!
//! Invariants: Q11 what ends with `Missing` has changed nothing.
//!
//! Lock: the state lock, held by the caller.

use crate::format::key::Cookie;
use crate::inode::kind_of;
use crate::state::{Node, State};
use crate::volume::Inner;
use forebay_base::{Error, ErrorKind, Result};
use forebay_vfs::rules::{self, At, Child, Seen};
use forebay_vfs::{Ino, Timestamp};

/// What is not in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Want {
    /// An inode, with what hangs on it but for entries.
    Inode(u64),
    /// Entries of a directory: those about this cookie.
    Entries(u64, Cookie),
}

/// What ends a try.
#[derive(Debug)]
pub(crate) enum Stop {
    /// For good.
    Failed(Error),
    /// Until this is loaded.
    Missing(Want),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// A try, and how it went.
pub(crate) type Tried<T> = std::result::Result<T, Stop>;

impl Stop {
    /// For a look at an inode that somebody has open: it is in memory.
    pub fn open(self) -> Error {
        match self {
            Self::Failed(error) => error,
            Self::Missing(want) => {
                let text = format!("{want:?} of an open file is not in memory");
                Error::new(ErrorKind::Io, "look", text)
            }
        }
    }
}

impl Inner {
    /// Carries an operation out, and loads what it misses. It is given now.
    pub(crate) async fn tried<T>(
        &self,
        mut op: impl FnMut(&mut State, Timestamp) -> Tried<T>,
    ) -> Result<T> {
        let mut made_room = false;
        loop {
            let now = self.options.clock.now();
            let tried = op(&mut self.state.lock(), now);
            match tried {
                Ok(done) => return Ok(done),
                Err(Stop::Failed(error)) if error.kind() == ErrorKind::NoSpace && !made_room => {
                    made_room = true;
                    if !self.make_room().await {
                        return Err(error);
                    }
                }
                Err(Stop::Failed(error)) => return Err(error),
                Err(Stop::Missing(want)) => self.load(want).await?,
            }
        }
    }

    /// Brings something into memory.
    async fn load(&self, want: Want) -> Result<()> {
        Err(crate::format::corrupt("look", format!("{want:?} is in no tree")))
    }
}

impl rules::View for State {
    type Stop = Stop;

    fn inode(&self, ino: Ino) -> Tried<Option<Seen>> {
        let seen = |node: &Node| Seen {
            kind: node.kind(),
            perm: node.perm(),
            nlink: node.inode.nlink,
            gid: node.inode.gid,
            parent: Ino(node.inode.parent),
            is_open: node.opens > 0,
            is_linkable: node.linkable,
        };
        Ok(self.look(ino.0)?.map(seen))
    }

    fn entry(&self, at: At<'_>) -> Tried<Option<Child>> {
        let found = self.entry_of(at)?;
        Ok(found.map(|(_, (ino, kind))| (Ino(ino), kind_of(kind))))
    }

    fn has_entries(&self, dir: Ino) -> Tried<bool> {
        Ok(self.look(dir.0)?.is_some_and(|node| node.entries.len() > 0))
    }
}

impl State {
    /// An inode; none: there is none with this number.
    pub fn look(&self, ino: u64) -> Tried<Option<&Node>> {
        Ok(self.nodes.get(&ino))
    }

    /// Cookie and inode of a name; none: the name is free, or there is no such directory.
    pub fn entry_of(&self, (dir, name): At<'_>) -> Tried<Option<(Cookie, crate::dir::Child)>> {
        Ok(self.look(dir.0)?.and_then(|node| node.entries.get(name.as_bytes())))
    }

    /// The cookie for a name that is free.
    pub fn cookie_for(&self, (dir, name): At<'_>) -> Tried<Cookie> {
        let node = self.get("add entry", dir)?;
        Ok(node.entries.cookie_for(name.as_bytes(), &self.layout.nonce)?)
    }
}
