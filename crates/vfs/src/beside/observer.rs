//! What a change of the file system is, and the mount that is notified of changes.
//!
//! No locks.

use crate::fs::OpenFileRef;
use crate::types::Ino;
use forebay_base::task::BoxFuture;
use std::ops::Range;

/// A change of the file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Bytes of a file, and its attributes.
    Content {
        /// Which file.
        ino: Ino,
        /// First byte.
        offset: u64,
        /// How many; `u64::MAX` is all that follow.
        len: u64,
        /// The file ends within or before them: its size, and its last byte.
        end: Option<(u64, u8)>,
    },
    /// Attributes, extended ones among them.
    Attributes(Ino),
    /// What a name denotes.
    Entry {
        /// In which directory.
        dir: Ino,
        /// Which.
        name: Box<[u8]>,
        /// It denoted this inode, which has no name any more.
        gone: Option<Ino>,
    },
}

/// Identifies a notification; 0: none was needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Ticket(pub u64);

/// A mount, as others see it. None of these waits, but for those that say so.
pub trait Observer: Send + Sync {
    /// Whether the mount knows an inode: then its changes must be reported.
    fn knows(&self, ino: Ino) -> bool;

    /// Keeps an inode that has lost its last name for as long as it is known.
    fn keep(&self, file: OpenFileRef);

    /// Whether stores into maps of a file may be held back.
    fn holds_back(&self, ino: Ino) -> bool;

    /// Requests data that the mount holds back of a range, and has the mount's kernel drop it.
    fn hand_over(&self, ino: Ino, offset: u64, len: u64) -> Ticket;

    /// The parts of a range, from `offset` on, in which the mount holds other bytes than `bytes`,
    /// which were read here: stores may be held back of them. Drops nothing. Waits for the
    /// mount's kernel, and for no request of the mount. By default it is not known: all of it.
    fn differing<'a>(
        &'a self,
        ino: Ino,
        offset: u64,
        bytes: &'a [u8],
    ) -> BoxFuture<'a, Vec<Range<u64>>> {
        let (_, all) = (ino, offset..offset.saturating_add(bytes.len() as u64));
        Box::pin(std::future::ready(vec![all]))
    }

    /// How often stores into maps of a file, which the mount's kernel held back, have been written,
    /// or discarded by a truncation. May count those of other files as well.
    fn store_writes(&self, ino: Ino) -> u64;

    /// The content of a file will change, and so may its end, whatever the result. Waits for
    /// appends of programs at the end that the kernel knows.
    fn will_change(&self, ino: Ino) -> BoxFuture<'_, ()>;

    /// For each of these, once: it was made, or not, and [`Observer::changed`] has said so.
    fn change_over(&self, ino: Ino);

    /// A name of a directory is about to denote another inode, or none, whether or not the change
    /// succeeds. Waits until the removals and renames of it by programs have ended.
    fn will_change_name(&self, dir: Ino, name: &[u8]) -> BoxFuture<'_, ()>;

    /// For each of these, once, after [`Observer::changed`].
    fn name_change_over(&self, dir: Ino, name: &[u8]);

    /// Reports a change. Also for an inode that is not known yet: a lookup may be in progress.
    fn changed(&self, change: &Change) -> Ticket;

    /// Waits until there is capacity for more tickets.
    fn room(&self) -> BoxFuture<'_, ()>;

    /// Waits until the notification was delivered, or the mount is gone.
    fn told(&self, ticket: Ticket) -> BoxFuture<'_, ()>;
}

impl Change {
    /// Bytes of a file, of which more is not known yet.
    pub fn content(ino: Ino, offset: u64, len: u64) -> Self {
        Self::Content { ino, offset, len, end: None }
    }
}
