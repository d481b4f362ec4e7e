//! Changes become a record: encoded, applied and queued in one hold of the state lock.
//!
//! Invariant T11 what does not fit, or has no room in the log, has changed nothing.
//!
//! Lock: the state lock, held by the caller.

use crate::format::change::Change;
use crate::format::extent::{Extent, Source};
use crate::format::record::{RECORD_HEADER_BYTES, RecordKind};
use crate::log::{Payload, Pending, Run};
use crate::look::{Stop, Tried};
use crate::pending::Where;
use crate::space::Need;
use crate::state::State;
use forebay_base::codec::Writer;
use forebay_base::{Error, ErrorKind, Result};

/// Room that a change without anything of variable length needs at most, bytes.
const CHANGE_BYTES_MAX: usize = 320;

/// What goes into a record beside its changes.
#[derive(Default)]
pub(crate) struct Content {
    pub payload: Option<Payload>,
    pub runs: Vec<Run>,
    /// The reservation that its room was promised with.
    pub share: Option<u64>,
}

fn upper(change: &Change<'_>) -> usize {
    CHANGE_BYTES_MAX
        + match change {
            Change::CreateInode(_, _, target) => target.len(),
            Change::InsertEntry(entry) | Change::RemoveEntry(entry) => entry.name.len(),
            Change::Rename(rename) => rename.from.name.len() + rename.to.name.len(),
            Change::SetXattr(_, name, value) => name.len() + value.len(),
            Change::RemoveXattr(_, name) => name.len(),
            Change::Map(_, _, extent) => extent.sums.bytes.len(),
            _ => 0,
        }
}

impl State {
    /// Applies changes as one record and queues it: its ticket. `NoSpace`, `InvalidInput`: T11.
    pub fn append(&mut self, changes: &[Change<'_>], need: Need) -> Result<u64> {
        self.append_with(changes, Content::default(), need)
    }

    /// The same, for an operation that may be tried again.
    pub fn try_append(&mut self, changes: &[Change<'_>], need: Need) -> Tried<u64> {
        match self.missing(changes) {
            Some(want) => Err(Stop::Missing(want)),
            None => Ok(self.append(changes, need)?),
        }
    }

    /// [`State::append`] with content.
    pub fn append_with(
        &mut self,
        changes: &[Change<'_>],
        content: Content,
        need: Need,
    ) -> Result<u64> {
        self.check_writable()?;
        let body = self.encode(changes)?;
        let staged = content.payload.as_ref().map(|payload| payload.staged.clone());
        let payload_bytes = staged.as_ref().map_or(0, |staged| staged.end - staged.start);
        let cost = self.layout.cost(body.len() as u64, payload_bytes);
        self.take_promise(cost, content.share, need)?;
        let resolve = |extent: &Extent<'_>| match (extent.source, &staged) {
            (Source::Run(place), _) => Ok(Where::Run(place)),
            (Source::Inline(at), Some(staged)) => Ok(Where::Staged(staged.start + u64::from(at))),
            _ => Err(Error::new(ErrorKind::InvalidInput, "append", "inline without content")),
        };
        for change in changes {
            self.apply(change, &resolve)?;
        }
        self.space.need_nodes(self.checkpoint_nodes());
        let Content { payload, runs, .. } = content;
        let (kind, changes) = (RecordKind::Changes, changes.len() as u32);
        let is_cut = false;
        let record = Pending { ticket: 0, kind, body, changes, payload, runs, cost, is_cut };
        Ok(self.enqueue(record))
    }

    /// `ReadOnly`, `Shutdown` for a volume that nothing can be changed in.
    fn check_writable(&self) -> Result<()> {
        if self.is_read_only {
            return Err(Error::new(
                ErrorKind::ReadOnly,
                "append",
                "the volume is open for reading",
            ));
        }
        match self.is_closed {
            true => Err(Error::new(ErrorKind::Shutdown, "append", "the volume is closed")),
            false => Ok(()),
        }
    }

    /// Room in the log: of the reservation's share as far as that goes.
    fn take_promise(&mut self, cost: u64, share: Option<u64>, need: Need) -> Result<()> {
        let there = share.and_then(|key| self.shares.get(&key)).map_or(0, |promise| promise.cost);
        let taken = there.min(cost);
        self.promise(cost - taken, need)?;
        if let Some(promise) = share.and_then(|key| self.shares.get_mut(&key)) {
            promise.cost -= taken;
        }
        Ok(())
    }

    /// Queues a mark. Its room was promised with the records that it follows.
    pub fn append_mark(&mut self) -> u64 {
        self.enqueue_mark(0, false)
    }

    /// Queues the mark that a checkpoint ends with.
    pub fn append_cut(&mut self) -> Result<u64> {
        let cost = self.layout.cost(0, 0);
        self.space.promise(cost, Need::Urgent)?;
        Ok(self.enqueue_mark(cost, true))
    }

    fn enqueue_mark(&mut self, cost: u64, is_cut: bool) -> u64 {
        let kind = RecordKind::Mark;
        let (body, runs, payload) = (Vec::new(), Vec::new(), None);
        self.enqueue(Pending { ticket: 0, kind, body, changes: 0, payload, runs, cost, is_cut })
    }

    fn enqueue(&mut self, record: Pending) -> u64 {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.queue.push_back(Pending { ticket, ..record });
        ticket
    }

    /// The body of a record: `NoSpace` if no record can be so long.
    fn encode(&self, changes: &[Change<'_>]) -> Result<Vec<u8>> {
        let mut body = vec![0; changes.iter().map(upper).sum()];
        let mut writer = Writer::new("record", &mut body);
        for change in changes {
            change.encode_into(&mut writer, &self.layout.geometry)?;
        }
        let len = writer.position();
        body.truncate(len);
        let room = self.layout.max_record() - 2 * u64::from(self.layout.align);
        if (len + RECORD_HEADER_BYTES) as u64 > room {
            let text = format!("{len} bytes of changes are more than a record takes");
            return Err(Error::new(ErrorKind::NoSpace, "append", text));
        }
        Ok(body)
    }
}
