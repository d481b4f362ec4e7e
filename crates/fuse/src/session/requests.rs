//! Answers a request at once if it needs no waiting, on the reader thread if that may wait, and
//! otherwise hands it to a task or thread.
//!
//! Each request ends in one answer, or in a task, a sync or a [`Parking`] that answers it. A reader
//! thread waits for a device only with permission (readers.X1, readers.X2).
//!
//! No locks.

use super::shared::Shared;
use super::waiting::{Parking, go_on};
use crate::device::{Incoming, PAYLOAD_MAX};
use crate::handles::Handle;
use crate::proto::consts::opcode;
use crate::proto::request::{Header, Op, Request};
use crate::serve::{Core, Outcome, Work, errno_of};
use forebay_base::buf::AlignedBuf;
use forebay_base::task::{FutureSlot, block_on};
use forebay_base::{Error, ErrorKind, Result};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

const EIO: i32 = 5;

/// A request that is counted until it is answered. If it is dropped unanswered, the answer is EIO
/// (waiting.A2, fuse.U1).
struct OutstandingRequest {
    shared: Arc<Shared>,
    core: Option<Arc<Core>>,
    unique: u64,
    answered: bool,
}

impl OutstandingRequest {
    /// Counts a request.
    fn new(shared: &Arc<Shared>, core: &Arc<Core>, unique: u64) -> Self {
        shared.task_begins();
        Self { shared: shared.clone(), core: Some(core.clone()), unique, answered: false }
    }

    /// Sends the answer.
    fn answer(mut self, outcome: Outcome) {
        self.answered = true;
        if let Some(core) = &self.core {
            self.shared.finish(core, self.unique, outcome);
        }
    }
}

impl Drop for OutstandingRequest {
    fn drop(&mut self) {
        if !self.answered {
            self.shared.device.reply(self.unique, EIO, &[]);
        }
        // The reference goes first: the file system is released when the last request is no longer
        // counted (session.S2).
        self.core = None;
        self.shared.task_ended();
    }
}

/// Memory that a reader thread reuses from one message to the next.
pub(super) struct Own {
    /// Buffer of a read that the thread carries out itself.
    out: AlignedBuf,
    request: RequestSlot,
}

/// Memory of a request. Most requests are answered at their first poll, so it is reused. That also
/// leaves alone the reference counts that all reader threads share.
#[derive(Default)]
pub(super) struct RequestSlot {
    pub future: FutureSlot<Outcome>,
    /// That of the last request, if it was answered at its first poll.
    parking: Option<Arc<Parking>>,
}

impl Own {
    pub fn new() -> Self {
        Self { out: AlignedBuf::new(PAYLOAD_MAX), request: RequestSlot::default() }
    }
}

/// Whether a request waits for the device at most: it looks up or changes names and inodes. Others,
/// such as a lock, may wait for a program.
fn waits_for_device_only(code: u32) -> bool {
    use opcode::*;
    matches!(
        code,
        LOOKUP
            | GETATTR
            | SETATTR
            | READLINK
            | SYMLINK
            | MKNOD
            | MKDIR
            | UNLINK
            | RMDIR
            | RENAME
            | RENAME2
            | LINK
            | OPEN
            | CREATE
            | TMPFILE
            | OPENDIR
            | READDIR
            | READDIRPLUS
            | GETXATTR
            | LISTXATTR
            | SETXATTR
            | REMOVEXATTR
            | STATX
    )
}

impl Shared {
    pub(super) fn serve(
        self: &Arc<Self>,
        core: &Arc<Core>,
        header: Header,
        code: u32,
        incoming: &mut Incoming,
        own: &mut Own,
    ) {
        let work = match code {
            opcode::READ => self.read(core, &header, incoming, &mut own.out),
            opcode::WRITE => self.write(core, &header, incoming),
            opcode::FSYNC | opcode::FSYNCDIR => self.sync(core, &header, incoming),
            _ => Ok(Some(Work::Other(incoming.whole()))),
        };
        match work {
            Ok(None) => {}
            Ok(Some(work)) => {
                let waits = waits_for_device_only(code);
                self.start(core, header.unique, work, &mut own.request, waits);
            }
            Err(e) => self.refuse(&header, &e),
        }
    }

    /// Carries out a read. `None`: it is answered; else the work that remains.
    fn read(
        &self,
        core: &Core,
        header: &Header,
        incoming: &Incoming,
        out: &mut AlignedBuf,
    ) -> Result<Option<Work>> {
        // A `READ` message fits into the head.
        let request = Request::parse(incoming.short().unwrap_or_default())?;
        let Op::Read(io) = request.op else { return Ok(Some(Work::Other(incoming.whole()))) };
        let len = match core.read_now(&io, out) {
            Some(done) => done?,
            None => match self.readers.may_wait() {
                Some(_waits) => core.read_here(&io, out)?,
                None => return Ok(Some(Work::Read(io))),
            },
        };
        self.device.reply(header.unique, 0, &out[..len]);
        Ok(None)
    }

    fn write(&self, core: &Core, header: &Header, incoming: &mut Incoming) -> Result<Option<Work>> {
        let request = Request::parse_write(incoming.head(), incoming.rest())?;
        let Op::Write { io, data } = request.op else {
            return Ok(Some(Work::Other(incoming.whole())));
        };
        let outcome = match core.write_now(&io, data) {
            Some(done) => done?,
            None => match self.readers.may_wait() {
                Some(_waits) => core.write_here(&io, data)?,
                None => {
                    let full = incoming.take_full_payload(|| core.spares.take(PAYLOAD_MAX));
                    let payload = full.unwrap_or_else(|| core.spares.copy_of(incoming.rest()));
                    return Ok(Some(Work::Write(io, payload)));
                }
            },
        };
        self.finish(core, header.unique, outcome);
        Ok(None)
    }

    /// Carries out a sync on this thread if it may wait, else on a sync thread.
    fn sync(
        self: &Arc<Self>,
        core: &Arc<Core>,
        header: &Header,
        incoming: &Incoming,
    ) -> Result<Option<Work>> {
        let request = Request::parse(incoming.short().unwrap_or_default())?;
        let (Op::Fsync { fh, data_only } | Op::FsyncDir { fh, data_only }) = request.op else {
            return Ok(Some(Work::Other(incoming.whole())));
        };
        let handle = core.handle(fh)?;
        if !self.syncs.ready() {
            return Ok(Some(Work::Other(incoming.whole())));
        }
        let sync = self.synced(core, header.unique, handle, data_only);
        match self.readers.may_wait() {
            Some(_waits) => go_on(Box::pin(sync), self.syncs.clone()),
            None => self.syncs.push(Box::pin(sync)),
        }
        Ok(None)
    }

    fn synced(
        self: &Arc<Self>,
        core: &Arc<Core>,
        unique: u64,
        handle: Arc<Handle>,
        data_only: bool,
    ) -> impl Future<Output = ()> + use<> {
        let outstanding = OutstandingRequest::new(self, core, unique);
        async move {
            let done = handle.file.sync_waiting(data_only).await;
            // The open file refers to the file system, which may be released after the answer
            // (session.S2).
            drop(handle);
            outstanding.answer(done.map_or_else(|e| Outcome::error(&e), |()| Outcome::errno(0)));
        }
    }

    fn refuse(&self, header: &Header, e: &Error) {
        if e.kind() == ErrorKind::Protocol {
            log::error!("{e}");
        }
        self.device.reply(header.unique, errno_of(e), &[]);
    }

    /// Polls a request once. If it has to wait, this thread does that if it may and `waits`;
    /// otherwise a background task takes the request over.
    fn start(
        self: &Arc<Self>,
        core: &Arc<Core>,
        unique: u64,
        work: Work,
        slot: &mut RequestSlot,
        waits: bool,
    ) {
        let bytes = work.bytes();
        slot.future.put(core.clone().serve(work));
        self.run(core, unique, bytes, slot, waits);
    }

    /// Polls the request in `slot` once, as [`Shared::start`] says. For a background task it moves
    /// out of the slot. `bytes`: memory that the request holds until it is answered.
    pub(super) fn run(
        self: &Arc<Self>,
        core: &Arc<Core>,
        unique: u64,
        bytes: u64,
        slot: &mut RequestSlot,
        waits: bool,
    ) {
        let parking = Parking::renewed(slot.parking.take(), &self.tasks);
        let waker = Waker::from(parking.clone());
        let poll = Pin::new(&mut slot.future).poll(&mut Context::from_waker(&waker));
        if let Poll::Ready(outcome) = poll {
            drop(waker);
            slot.parking = Some(parking);
            return self.finish(core, unique, outcome);
        }
        // Until now it was the one request that this thread has in addition (payload.M1).
        let held = self.payload.hold(bytes);
        if let Some(_waits) = waits.then(|| self.readers.may_wait()).flatten() {
            let outcome = block_on(Pin::new(&mut slot.future));
            return self.finish(core, unique, outcome);
        }
        let request = std::mem::take(&mut slot.future);
        let outstanding = OutstandingRequest::new(self, core, unique);
        parking.park(Box::pin(async move {
            let outcome = request.await;
            outstanding.answer(outcome);
            drop(held);
        }));
    }
}
