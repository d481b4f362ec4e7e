//! Turns changes into a record. It is encoded, applied and queued while the state lock is held
//! once.
//!
//! Invariant T11 changes that cannot be applied, do not fit into a record, or get no log space,
//! have no effect.
//!
//! Lock: the state lock, held by the caller.

use crate::format::change::Change;
use crate::format::corrupt;
use crate::format::extent::{Extent, Source};
use crate::format::record::{RECORD_HEADER_BYTES, RecordKind};
use crate::log::{Payload, Pending, Run};
use crate::map::overlay::Where;
use crate::names::lookup::{Stop, Tried, creates, needed};
use crate::space::admission::Growth;
use crate::space::{Ask, Grant, Need};
use crate::transaction::state::State;
use forebay_base::codec::Writer;
use forebay_base::{Error, ErrorKind, Result};

/// The approximate bytes that a change adds to the tree.
const CHANGE_BYTES: u64 = 600;

/// The most bytes that a change without variable parts takes in a record.
const CHANGE_BYTES_MAX: usize = 320;

/// Content that a record carries in addition to its changes.
#[derive(Default)]
pub(crate) struct Content {
    pub payload: Option<Payload>,
    /// If set, the record joins the last queued record, after this many bytes of content
    /// ([`State::joins`]).
    pub joins: Option<u64>,
    pub runs: Vec<Run>,
    /// The key of the reservation whose grant covers the log space of the record.
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

/// The approximate number of tree items that a change touches: those that it names, and both ends
/// of a truncated range.
fn entries_of(change: &Change<'_>) -> u64 {
    match change {
        Change::SetAttributes(..) | Change::AddOrphan(_) | Change::RemoveOrphan(_) => 1,
        Change::InsertEntry(_) | Change::RemoveEntry(_) => 2,
        Change::Map(..) | Change::Punch(..) => 2,
        Change::Grow(_) | Change::Truncate(_) | Change::ReplaceData(..) => 3,
        _ => 6,
    }
}

impl State {
    /// Applies changes as one record, queues it, and returns its ticket. After `NoSpace` or
    /// `InvalidInput` nothing has changed (T11).
    pub fn append(&mut self, changes: &[Change<'_>], need: Need) -> Result<u64> {
        self.append_with(changes, Content::default(), Some(need))
    }

    /// [`State::append`] for an operation that loads missing parts and tries again.
    pub fn try_append(&mut self, changes: &[Change<'_>], need: Need) -> Tried<u64> {
        match self.missing(changes) {
            Some(want) => Err(Stop::Missing(want)),
            None => Ok(self.append(changes, need)?),
        }
    }

    /// [`State::append`] with content. Without a need the changes were admitted before, and find
    /// their space.
    pub fn append_with(
        &mut self,
        changes: &[Change<'_>],
        content: Content,
        need: Option<Need>,
    ) -> Result<u64> {
        // A write that reserved its place before the volume turned read-only is still published.
        // Its caller learned that it succeeded (read_only.F11).
        if need.is_some() || !self.life.is_stopped() {
            self.life.check_writable("append")?;
        }
        // Changes that were admitted earlier are limited by the limit on dirty data instead.
        if let Some(error) = self.overfull().filter(|_| need.is_some()).cloned() {
            self.refusal.is_overfull = true;
            return Err(error);
        }
        let body = self.encode(changes)?;
        let staged = content.payload.as_ref().map(|payload| payload.staged.clone());
        let payload_bytes = staged.as_ref().map_or(0, |staged| staged.end - staged.start);
        let cost = self.layout.cost(body.len() as u64, payload_bytes);
        self.check_inodes(changes)?;
        let growth = Growth {
            entries: changes.iter().map(entries_of).sum(),
            bytes: body.len() as u64 + CHANGE_BYTES * changes.len() as u64,
        };
        let grant = self.take_grant(cost, content.share, need, growth)?;
        let before = content.joins.unwrap_or(0);
        let resolve = |extent: &Extent<'_>| match (extent.source, &staged) {
            (Source::Run(place), _) => Ok(Where::Run(place)),
            (Source::Inline(at), Some(staged)) if u64::from(at) >= before => {
                Ok(Where::Staged(staged.start + u64::from(at) - before))
            }
            _ => Err(Error::new(ErrorKind::InvalidInput, "append", "inline without content")),
        };
        self.queue.begin_change();
        for change in changes {
            if let Err(error) = self.apply(change, &resolve) {
                self.queue.end_change();
                self.space.end_grant(grant);
                return Err(error);
            }
        }
        // Moves of the cleaner are not counted, because they make space.
        if need.is_some() || content.share.is_some() {
            self.space.note_recorded();
        }
        let Content { payload, runs, mut joins, .. } = content;
        if payload.is_none() && runs.is_empty() && self.ends_in_content() {
            joins = self.joins(changes, 0);
        }
        let (kind, changes) = (RecordKind::Changes, changes.len() as u32);
        let payloads = payload.into_iter().collect();
        let cut = None;
        let record = Pending { ticket: 0, kind, body, changes, payloads, runs, grant, cut };
        Ok(if joins.is_some() { self.queue.join(record) } else { self.queue.push(record) })
    }

    /// Whether these changes and `payload_bytes` of content may join the last queued record.
    /// Returns the bytes of content that it has already.
    pub fn joins(&self, changes: &[Change<'_>], payload_bytes: u64) -> Option<u64> {
        let body_bytes = changes.iter().map(upper).sum::<usize>() as u64;
        self.queue.can_join(&self.layout, body_bytes, payload_bytes)
    }

    /// Whether the last queued record has content. Changes of names between the contents of two
    /// files join it, too. Otherwise these contents could not share a record.
    fn ends_in_content(&self) -> bool {
        self.queue.last().is_some_and(|last| !last.payloads.is_empty())
    }

    /// Refuses changes of which one needs an inode that is neither in memory nor made by an earlier
    /// one of them. It runs before anything is applied (T11).
    fn check_inodes(&self, changes: &[Change<'_>]) -> Result<()> {
        for (n, change) in changes.iter().enumerate() {
            let is_made = |ino| creates(&changes[..n], ino);
            let gone = |ino: &u64| *ino != 0 && !self.names.has_node(*ino) && !is_made(*ino);
            if let Some(ino) = needed(change).into_iter().find(gone) {
                return Err(corrupt("change", format!("names inode {ino}, which is not there")));
            }
        }
        Ok(())
    }

    /// Takes log space for a record: first from the grant of the reservation, then a new grant.
    fn take_grant(
        &mut self,
        cost: u64,
        share: Option<u64>,
        need: Option<Need>,
        growth: Growth,
    ) -> Result<Grant> {
        let own = share.map_or(0, |key| self.space.reservations().log_bytes(key)).min(cost);
        let ask = Ask::log(cost - own, growth);
        let mut grant = match need {
            Some(need) => self.grant(&ask, need)?,
            None => self.space.grant(&ask),
        };
        // The caller applies the changes in this hold of the lock: then they count themselves.
        self.space.end_grant(grant.split(0, growth));
        if let Some(key) = share {
            grant.merge(self.space.split_reserved(key, own));
        }
        Ok(grant)
    }

    /// Queues a mark, a record without changes. Its log space was granted with the records before
    /// it.
    pub fn append_mark(&mut self) -> u64 {
        self.enqueue_mark(Grant::default(), None)
    }

    /// Queues the mark that ends the records of a checkpoint. It is never refused: without
    /// checkpoints no space would become free. `moves`: the log continues in another segment.
    pub fn append_cut(&mut self, moves: bool) -> u64 {
        for grant in self.queue.remove_cuts() {
            self.space.end_grant(grant);
        }
        let grant = self.space.grant(&Ask::log(self.layout.cost(0, 0), Growth::default()));
        self.enqueue_mark(grant, Some(moves))
    }

    fn enqueue_mark(&mut self, grant: Grant, cut: Option<bool>) -> u64 {
        let kind = RecordKind::Mark;
        let (body, runs, payloads) = (Vec::new(), Vec::new(), Vec::new());
        self.queue.push(Pending { ticket: 0, kind, body, changes: 0, payloads, runs, grant, cut })
    }

    /// Encodes the body of a record. `NoSpace` if it is longer than a record can be.
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
