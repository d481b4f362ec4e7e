//! Operations that go on after their request was answered EIO, because of `request_timeout=`.
//!
//! The kernel takes such an operation for failed, and keeps its caches. So from the EIO answer on,
//! the names of the operation count as being changed by another front end (removals.R4): the
//! kernel no longer holds the lock of the directory. When the operation ends, its inodes and names
//! are reported stale, as after a change by another front end.
//!
//! No locks.

use super::Core;
use crate::inodes::Mark;
use crate::notify::Notice;
use crate::proto::request::{Header, Op, Request};
use forebay_base::sync::atomic::Ordering;
use forebay_vfs::Ino;

/// Inodes and names that a request may have changed.
fn stale(message: &[u8]) -> (Vec<u64>, Vec<(u64, &[u8])>) {
    let Ok(Header { node, .. }) = Header::parse(message) else { return Default::default() };
    let Ok(Request { op, .. }) = Request::parse(message) else {
        // Only the head of a longer message was kept.
        return (vec![node], Vec::new());
    };
    match op {
        Op::SymLink { name, .. }
        | Op::MkNod { name, .. }
        | Op::MkDir { name, .. }
        | Op::Create { name, .. }
        | Op::Unlink { name }
        | Op::RmDir { name } => (vec![node], vec![(node, name)]),
        Op::Link { old, name } => (vec![node, old], vec![(node, name)]),
        Op::Rename { new_dir, name, new_name, .. } => {
            (vec![node, new_dir], vec![(node, name), (new_dir, new_name)])
        }
        Op::CopyFileRange(copy) => (vec![node, copy.node_out], Vec::new()),
        _ => (vec![node], Vec::new()),
    }
}

impl Core {
    /// Called before a request is answered while its operation goes on.
    pub(crate) fn begin_late(&self, message: &[u8]) {
        let (nodes, names) = stale(message);
        self.end_trust(&nodes);
        for (dir, name) in names {
            self.removals.begin_change(Ino(dir), name);
        }
    }

    /// Called once when such an operation has ended.
    pub(crate) fn end_late(&self, message: &[u8]) {
        let (nodes, names) = stale(message);
        self.end_trust(&nodes);
        for (dir, name) in names {
            // In this order: a removal that sees no change in progress must see the queued notice
            // (removals.R4).
            self.notifier.give(Notice::Entry { dir, name: name.into() });
            self.removals.end_change(Ino(dir), name);
        }
        nodes.iter().for_each(|node| self.notifier.queue_stale(*node, 0, u64::MAX));
    }

    /// From now on appends to these files find the end of file themselves.
    fn end_trust(&self, nodes: &[u64]) {
        self.epoch.fetch_add(1, Ordering::SeqCst);
        nodes.iter().for_each(|node| self.inodes.mark(Ino(*node), Mark::Shared));
    }
}
