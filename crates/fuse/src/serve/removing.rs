//! Decides whether a request of the kernel may remove or replace a name now, by the rules of
//! [`super::removals`].
//!
//! No locks of its own.

use super::removals::Removal;
use super::{Core, fail};
use crate::proto::request::Header;
use forebay_base::{ErrorKind, Result};
use forebay_vfs::types::S_ISVTX;
use forebay_vfs::{FileKind, Ino, Name};

impl Core {
    /// Begins a removal of `name`. `gets_parent`: its inode moves to another directory, so the
    /// kernel also checks permissions on the inode itself. ESTALE: the kernel must look up again
    /// (removals.R4).
    pub(super) async fn begin_removal(
        &self,
        header: &Header,
        (dir, name): (Ino, Name<'_>),
        gets_parent: bool,
    ) -> Result<Option<Removal<'_>>> {
        let removal = self.removals.begin(dir, name.as_bytes());
        // Checked in this order, because a change queues its notice before it ends.
        if removal.is_some() && !self.notifier.has_queued(dir.0, name.as_bytes()) {
            return Ok(removal);
        }
        let parent = self.fs.getattr(dir).await?;
        let may_any = parent.perm & S_ISVTX == 0 || parent.uid == header.uid;
        if may_any && !gets_parent {
            return Ok(removal);
        }
        if removal.is_some() {
            let may = match self.fs.lookup(dir, name).await {
                Err(e) if e.kind() == ErrorKind::NotFound => true,
                found => {
                    let attr = found?;
                    (may_any || attr.uid == header.uid)
                        && !(gets_parent && attr.kind == FileKind::Directory)
                }
            };
            if may {
                return Ok(removal);
            }
        }
        fail(ErrorKind::Stale, "remove", "another interface has changed the name")
    }
}
