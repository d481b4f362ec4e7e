//! The thread that answers overdue requests; it exists only with `request_timeout=`. See
//! [`crate::deadlines`], and `serve/late.rs` for the operations that go on.
//!
//! No locks.

use super::shared::Shared;
use super::thread::spawn;
use crate::deadlines::{Message, Overdue};
use crate::device::Incoming;
use crate::proto::consts::opcode;
use forebay_base::{Result, io_flusher};
use std::sync::Arc;
use std::thread::JoinHandle;

/// The part of a message that says what the request changes; empty if it changes nothing.
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

impl Shared {
    /// Starts the thread. While it waits it holds a reference to the device, not to the session.
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
                core.begin_late(&message);
            }
            self.device.answer_overdue(unique);
        }
        if let Some(core) = &*core {
            ended.iter().for_each(|message| core.end_late(message));
        }
        self.payload.wake_if_stuck();
    }
}
