//! Roll-forward in bounded memory.
//!
//! ```text
//!   apply ──the changes exceed the bound──▶ scan to the end of the log, verify, apply nothing
//!     ▲                                        │ the end is found, nothing refuses it
//!     │                                        ▼
//!     └── open again, from there ◀── checkpoint of what was applied: its log begins behind
//! ```
//! Invariants: R27 nothing is written before the log was scanned to its end. A log that is damaged,
//! a record with numbers out of range, and a lost tree node that a record needs refuse an opening
//! for writing before any of these checkpoints. Two things may refuse it later: records that
//! contradict each other or the tree, which no writer makes, and a lost node further on in a range
//! that a record changes. R28 such a checkpoint takes no segment that a record behind it names, or
//! that may hold evidence of the log's end. R29 each checkpoint has at least one record more than
//! the one before.
//!
//! No locks: recovery has the volume to itself.

use super::walk::{Held, Walk};
use crate::format::change::Change;
use crate::format::extent::{Extent, Source};
use crate::format::key::Key;
use crate::format::record::Record;
use crate::format::usage::Stream;
use crate::log::Head;
use crate::transaction::state::not_made;
use forebay_base::Result;
use std::collections::BTreeSet;

impl Walk<'_> {
    /// Applies a record of the log; if memory has no space for more, notes the segments that it
    /// names.
    pub(super) async fn take(&mut self, held: &Held) -> Result<()> {
        if self.bound.resume.is_some() {
            return self.scan(held).await;
        }
        self.apply(held).await?;
        let bytes = self.state.changes_bytes();
        self.bound.changes_peak = self.bound.changes_peak.max(bytes);
        let is_full = self.bound.changes_max.is_some_and(|most| bytes > most);
        // The slot of a checkpoint names the segment of the next record, so that must be known.
        if is_full && held.next.segment.is_some() {
            self.bound.resume = Some(held.next);
        }
        Ok(())
    }

    /// Notes the segments that a record of the rest names, and checks what can be checked before it
    /// is applied (R27).
    async fn scan(&mut self, held: &Held) -> Result<()> {
        let geometry = self.layout.geometry;
        let record = Record::reopen(&held.bytes, held.at, &geometry)?;
        let changes = record.changes(&geometry).collect::<Result<Vec<_>>>()?;
        self.state.note_named(held.at.segment, Stream::Log);
        self.bound.segments.insert(held.at.segment);
        for change in &changes {
            if let Change::Map(_, _, Extent { source: Source::Run(place), .. }) = change {
                self.state.note_named(place.segment, Stream::Data);
                self.bound.segments.insert(place.segment);
            }
        }
        match self.bound.checks_rest {
            true => self.check(&record, &changes).await,
            false => Ok(()),
        }
    }

    /// Refuses a record that would be refused when it is applied: for what it says itself, or
    /// because a node of the tree that it changes cannot be read.
    async fn check(&mut self, record: &Record<'_>, changes: &[Change<'_>]) -> Result<()> {
        let root = self.state.tree().root();
        for change in changes {
            self.bound.counters.note(change);
            let keys = match change {
                Change::Map(data_id, block, extent) => {
                    record.resolve(extent)?;
                    [Some(Key::Extent(*data_id, *block)), None]
                }
                Change::Punch(at, _) => [Some(Key::Extent(at.data_id, at.block)), None],
                Change::InsertEntry(at) | Change::RemoveEntry(at) => {
                    [Some(Key::Entry(at.dir, at.cookie)), None]
                }
                Change::Rename(rename) => {
                    [rename.from, rename.to].map(|at| Some(Key::Entry(at.dir, at.cookie)))
                }
                Change::ReapDead { .. } | Change::Move { .. } | Change::SetSegment(..) => {
                    return Err(not_made());
                }
                _ => [None; 2],
            };
            for key in keys.into_iter().flatten() {
                self.tree.get(&root, key).await?;
            }
        }
        self.bound.counters.check()?;
        self.load_missing(changes).await?;
        self.state.evict();
        Ok(())
    }

    /// Protects the segments that the rest of the log names from a checkpoint of the applied part
    /// (R28). Returns where that checkpoint's log begins, if there is a rest.
    pub(super) fn protect_rest(&mut self) -> Option<Head> {
        let resume = self.bound.resume?;
        let later = self.headers.range(resume.sequence..).flat_map(|(_, headers)| headers);
        let later = later.filter(|header| header.generation >= resume.generation);
        let log: BTreeSet<u32> = later
            .map(|header| header.segment)
            .chain(self.hidden.iter().copied())
            .chain(self.named.filter(|named| *named < self.layout.segments))
            .chain(resume.segment)
            .collect();
        let state = &mut self.state;
        log.iter().for_each(|segment| state.note_named(*segment, Stream::Log));
        // Counted as a write in flight there: a segment with one does not become dead.
        log.union(&self.bound.segments).for_each(|segment| state.keep_alive(*segment));
        Some(resume)
    }
}
