//! A message as a request of its kind: answered at once if it needs no waiting, else by this thread if it may
//! wait, else handed on.
//!
//! Each request ends in one answer, or in a task, sync or parking that owes it. A reader thread waits for a
//! device only with leave (X1, X2 of [`super::readers`]).
//!
//! No locks.

use super::Shared;
use super::waiting::{By, Owed};
use crate::device::{Incoming, PAYLOAD_MAX};
use crate::handles::Handle;
use crate::proto::consts::opcode;
use crate::proto::request::{Header, Op, Request};
use crate::serve::{Core, Outcome, Work, errno_of};
use forebay_base::buf::AlignedBuf;
use forebay_base::task::FutureSlot;
use forebay_base::{Error, ErrorKind, Result};
use std::sync::Arc;

/// What a reader thread keeps from one message to the next.
pub(super) struct Own {
    /// Where a read goes that it carries out itself.
    out: AlignedBuf,
    /// Room for a request: most are answered at their first poll, so it is used again.
    request: FutureSlot<Outcome>,
}

impl Own {
    pub fn new() -> Self {
        Self { out: AlignedBuf::new(PAYLOAD_MAX), request: FutureSlot::default() }
    }
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
            Ok(Some(work)) => self.start(core, header.unique, work, &mut own.request),
            Err(e) => self.refuse(&header, &e),
        }
    }

    /// None: it is answered.
    fn read(
        &self,
        core: &Core,
        header: &Header,
        incoming: &Incoming,
        out: &mut AlignedBuf,
    ) -> Result<Option<Work>> {
        // A read is as long as the head.
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
                    let payload = incoming.take_payload(|len| core.spares.take(len));
                    return Ok(Some(Work::Write(io, payload)));
                }
            },
        };
        self.finish(core, header.unique, outcome);
        Ok(None)
    }

    /// Has a file made durable, by this thread if it may wait, else by another one that may.
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
        if !self.syncs.ready(self) {
            return Ok(Some(Work::Other(incoming.whole())));
        }
        let sync = self.synced(core, header.unique, handle, data_only);
        match self.readers.may_wait() {
            Some(_waits) => self.go_on(Box::pin(sync), By::Syncs),
            None => self.syncs.push(self, Box::pin(sync)),
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
        let owed = Owed::new(self, core, unique);
        async move {
            let done = handle.file.sync_waiting(data_only).await;
            // The file is the file system's, which may be given back when this is over (S2).
            drop(handle);
            owed.answer(done.map_or_else(|e| Outcome::error(&e), |()| Outcome::errno(0)));
        }
    }

    fn refuse(&self, header: &Header, e: &Error) {
        if e.kind() == ErrorKind::Protocol {
            log::error!("{e}");
        }
        self.device.reply(header.unique, errno_of(e), &[]);
    }

    /// Polls once; what has to wait goes on as a background task.
    fn start(
        self: &Arc<Self>,
        core: &Arc<Core>,
        unique: u64,
        work: Work,
        slot: &mut FutureSlot<Outcome>,
    ) {
        let bytes = work.bytes();
        slot.put(core.clone().serve(work));
        self.run(core, unique, bytes, slot);
    }
}
