//! The thread that ends requests at their deadlines; there is none without `request_timeout=`. See
//! [`crate::deadlines`].
//!
//! The kernel took a late operation for failed, and keeps what it had cached before. So when such
//! an operation has ended, its inodes and names are reported stale, as after a change by another
//! interface.
//!
//! No locks.

use super::{Shared, spawn};
use crate::deadlines::{Message, Overdue};
use crate::device::Incoming;
use crate::inodes::Mark;
use crate::notify::Notice;
use crate::proto::consts::opcode;
use crate::proto::request::{Header, Op, Request};
use crate::serve::Core;
use forebay_base::sync::atomic::Ordering;
use forebay_base::{Result, io_flusher};
use forebay_vfs::Ino;
use std::sync::Arc;
use std::thread::JoinHandle;

/// As much of a message as says what it changes: nothing of one that changes nothing.
pub(super) fn changes(code: u32, incoming: &Incoming) -> Message {
    match code {
        opcode::WRITE | opcode::SETXATTR => incoming.head().to_vec(),
        opcode::READ | opcode::READDIR | opcode::READDIRPLUS | opcode::LOOKUP | opcode::GETATTR => {
            Vec::new()
        }
        opcode::FSYNC
        | opcode::FSYNCDIR
        | opcode::STATFS
        | opcode::RELEASE
        | opcode::RELEASEDIR => Vec::new(),
        _ => incoming.whole(),
    }
}

/// Inodes and names that a request may have changed.
fn stale(message: &[u8]) -> (Vec<u64>, Vec<(u64, &[u8])>) {
    let Ok(Header { node, .. }) = Header::parse(message) else { return Default::default() };
    let Ok(Request { op, .. }) = Request::parse(message) else {
        // The head of a longer one.
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

/// An operation will end late: appends must not trust the end that the kernel knows.
fn begins_late(core: &Core, message: &[u8]) {
    core.epoch.fetch_add(1, Ordering::SeqCst);
    stale(message).0.iter().for_each(|node| core.inodes.mark(Ino(*node), Mark::Shared));
}

/// A late operation has ended.
fn ended_late(core: &Core, message: &[u8]) {
    begins_late(core, message);
    let (nodes, names) = stale(message);
    for (dir, name) in names {
        core.notifier.give(Notice::Entry { dir, name: name.into() });
    }
    nodes.iter().for_each(|node| core.notifier.owe(*node, 0, u64::MAX));
}

impl Shared {
    /// Starts the thread. Between two looks it holds the device and not the session.
    pub(super) fn watch_deadlines(self: &Arc<Self>) -> Result<JoinHandle<()>> {
        let (device, shared) = (self.device.clone(), Arc::downgrade(self));
        spawn("forebay-late", move || {
            io_flusher::mark_thread();
            while let Some(overdue) = device.deadlines.wait() {
                let Some(shared) = shared.upgrade() else { return };
                shared.end_overdue(overdue);
            }
        })
    }

    fn end_overdue(&self, overdue: Overdue) {
        let Overdue { requests, ended } = overdue;
        if !requests.is_empty() {
            log::error!("{} requests took longer than `request_timeout`: EIO", requests.len());
        }
        let core = self.core.read();
        for (unique, message) in requests {
            if let Some(core) = &*core {
                begins_late(core, &message);
            }
            self.device.answer_overdue(unique);
        }
        if let Some(core) = &*core {
            ended.iter().for_each(|message| ended_late(core, message));
        }
        self.payload.wake_if_stuck();
    }
}
