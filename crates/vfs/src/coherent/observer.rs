//! Describes changes of the file system, and the mount that is notified of them.
//!
//! No locks.

use crate::fs::OpenFileRef;
use crate::types::Ino;
use forebay_base::task::BoxFuture;
use std::ops::Range;

/// A change of a file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Content of a file, and its attributes.
    Content {
        /// The file.
        ino: Ino,
        /// First byte.
        offset: u64,
        /// Number of bytes; `u64::MAX`: up to the end.
        len: u64,
        /// Size and last byte of the file, if it ends within or before the range.
        end: Option<(u64, u8)>,
    },
    /// Attributes or extended attributes of an inode.
    Attributes(Ino),
    /// The inode that a name denotes.
    Entry {
        /// The directory.
        dir: Ino,
        /// The name.
        name: Box<[u8]>,
        /// The inode that it denoted, if that has no name any more.
        gone: Option<Ino>,
    },
}

/// Identifies a notification; 0: none was needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Ticket(pub u64);

/// A mount, as seen by the wrapper. Calls do not wait unless they say so.
pub trait Observer: Send + Sync {
    /// Whether the mount's kernel knows an inode, so that changes of it must be reported.
    fn knows(&self, ino: Ino) -> bool;

    /// Keeps an inode that has lost its last name for as long as the mount's kernel knows it.
    fn keep(&self, file: OpenFileRef);

    /// Whether the mount's kernel may hold back stores into mappings of a file.
    fn holds_back(&self, ino: Ino) -> bool;

    /// Makes the mount's kernel write and drop its cached pages of a range.
    fn hand_over(&self, ino: Ino, offset: u64, len: u64) -> Ticket;

    /// The parts of a range, from `offset` on, in which the mount's kernel has cached other bytes
    /// than `bytes`, which were read here: it may hold back stores into them. Drops nothing. Waits
    /// for the mount's kernel, and for no request of the mount. The default implementation returns
    /// the whole range.
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
    /// or discarded by a request of the mount. May count those of other files as well.
    fn store_writes(&self, ino: Ino) -> u64;

    /// Announces a change of a file's content, and perhaps its end, whatever the result. Waits for
    /// appends of programs to the end that the kernel knows.
    fn will_change(&self, ino: Ino) -> BoxFuture<'_, ()>;

    /// Called once for each `will_change`, after the change was reported by [`Observer::changed`],
    /// or failed.
    fn change_over(&self, ino: Ino);

    /// Announces that a name of a directory will denote another inode, or none, whether or not the
    /// change succeeds. Waits until removals and renames of it by programs have ended.
    fn will_change_name(&self, dir: Ino, name: &[u8]) -> BoxFuture<'_, ()>;

    /// Called once for each `will_change_name`, after [`Observer::changed`].
    fn name_change_over(&self, dir: Ino, name: &[u8]);

    /// Reports a change, also of an inode that is not known yet: a lookup may be in progress.
    fn changed(&self, change: &Change) -> Ticket;

    /// Waits until there is space for further notifications.
    fn room(&self) -> BoxFuture<'_, ()>;

    /// Waits until the notification was delivered, or the mount has ended.
    fn told(&self, ticket: Ticket) -> BoxFuture<'_, ()>;
}

impl Change {
    /// A change of content whose end of file is still to be determined.
    pub fn content(ino: Ino, offset: u64, len: u64) -> Self {
        Self::Content { ino, offset, len, end: None }
    }
}
