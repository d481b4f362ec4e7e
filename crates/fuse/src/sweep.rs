//! The bound on what the kernel knows: beyond it, it is asked to forget.
//!
//! Linux 6.18 is told which inodes to forget where nobody uses them (`PRUNE`). Older ones can only be told
//! that a name is stale: then names of known directories are gone through, and those of files that nobody has
//! open are called stale, whose inodes the kernel then forgets. A directory is not called stale, because who
//! works in it would lose its path.
//!
//! Invariants: Q1 one request to forget is under way at a time. Q2 the kernel is asked for `PRUNE` only if
//! its version knows it and it has not refused.
//!
//! No locks.

use crate::inodes::SHARDS;
use crate::notify::Notice;
use crate::serve::Core;
use forebay_base::sync::atomic::Ordering;
use forebay_vfs::{Cookie, FileKind, Ino};
use std::sync::Arc;

/// Inodes that the kernel is asked to forget at a time.
const BATCH: usize = 4096;
/// Beyond the bound it is asked with each so many that it is told of.
const EVERY: usize = 32;
/// First minor version with `PRUNE`.
const PRUNE_SINCE: u32 = 45;
/// Directories that are gone through at a time.
const DIRECTORIES: usize = 8;

impl Core {
    /// The kernel is told of an inode, perhaps of one too many. What is in use it keeps, so it is asked now
    /// and then, one shard after the other, and no more than it gets done.
    pub(crate) fn bound_inodes(&self) {
        if self.inodes.len() <= self.inodes_max {
            return;
        }
        let turn = self.pruned.fetch_add(1, Ordering::Relaxed);
        if !turn.is_multiple_of(EVERY) {
            return;
        }
        let shard = turn / EVERY;
        if self.minor.load(Ordering::Relaxed) >= PRUNE_SINCE && self.notifier.can_prune() {
            self.notifier.try_prune(|| self.inodes.some(shard, BATCH));
            return;
        }
        let Some(core) = self.me.upgrade() else { return };
        if !self.sweeping.swap(true, Ordering::AcqRel) {
            let sweep = async move {
                core.sweep(shard).await;
                core.sweeping.store(false, Ordering::Release);
            };
            self.world.spawn("fuse sweep", Box::pin(sweep));
        }
    }

    /// Calls names stale.
    async fn sweep(self: &Arc<Self>, shard: usize) {
        let (mut seen, mut left) = (0, BATCH);
        // A shard may have none: so all of them, from another one each time.
        for number in (0..SHARDS).flat_map(|n| self.inodes.some(shard + n, usize::MAX)) {
            if seen == DIRECTORIES {
                break;
            }
            let dir = Ino(number);
            let kind = self.fs.getattr(dir).await.map(|attr| attr.kind);
            if !matches!(kind, Ok(FileKind::Directory)) || left == 0 {
                continue;
            }
            seen += 1;
            let mut after = Cookie::START;
            while let Ok(entries) = self.fs.readdir(dir, after, 128).await {
                let Some(last) = entries.last() else { break };
                after = last.cookie;
                for entry in entries.iter().filter(|entry| entry.kind != FileKind::Directory) {
                    let idle = self.inodes.knows(entry.ino) && !self.handles.has_open(entry.ino);
                    let notice = Notice::Entry { dir: number, name: entry.name.clone() };
                    if !idle || left == 0 || !self.notifier.try_send(notice) {
                        continue;
                    }
                    left -= 1;
                }
            }
        }
    }
}
