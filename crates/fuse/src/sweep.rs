//! Bounds the number of inodes that the kernel knows: above the bound, the kernel is asked to
//! forget some.
//!
//! Linux 6.18 accepts a list of inodes to forget if they are unused (`PRUNE`). Older kernels accept
//! only notices that a name is stale. Then the daemon lists known directories, and reports names of
//! files that are not open as stale; the kernel forgets their inodes. Names of directories are not
//! reported, because processes that work in them would lose their path.
//!
//! Invariants: Q1 one `PRUNE` is in progress at a time. Q2 `PRUNE` is sent only if the kernel's
//! protocol version has it and the kernel has not refused it.
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
/// Above the bound, one request to forget follows this many new inodes.
const EVERY: usize = 32;
/// First minor version with `PRUNE`.
const PRUNE_SINCE: u32 = 45;
/// Directories that are listed at a time.
const DIRECTORIES: usize = 8;

impl Core {
    /// Called when the kernel gets to know an inode. Above the bound, one of [`EVERY`] calls asks
    /// it to forget inodes of one shard, in rotation. The kernel keeps inodes in use, so asking
    /// more often would be in vain.
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

    /// Reports names of files that are known and not open as stale, at most [`BATCH`].
    async fn sweep(self: &Arc<Self>, shard: usize) {
        let (mut seen, mut left) = (0, BATCH);
        // One shard may contain no directory, so all are searched, beginning with another one each
        // time.
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
