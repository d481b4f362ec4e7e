//! Roll-forward in bounded memory.
//!
//! ```text
//!   apply ──the changes exceed the bound──▶ scan to the end of the log, verify, apply nothing
//!     ▲                                        │ the end is found, nothing refuses it
//!     │                                        ▼
//!     └── open again, from there ◀── checkpoint of what was applied: its log begins behind
//! ```
//! Invariants: R27 nothing is written before the log was scanned to its end: a log that refuses an
//! opening for writing refuses it before any of these checkpoints. R28 such a checkpoint takes no
//! segment that a record behind it names, or that may hold evidence of the log's end. R29 each
//! checkpoint has at least one record more than the one before.
//!
//! No locks: recovery has the volume to itself.

use super::walk::{Held, Walk};
use crate::format::change::Change;
use crate::format::extent::{Extent, Source};
use crate::format::record::Record;
use crate::format::usage::Stream;
use crate::log::Head;
use forebay_base::Result;
use std::collections::BTreeSet;

impl Walk<'_> {
    /// Applies a record that counts, or notes what it names if memory has no space for more.
    pub(super) async fn take(&mut self, held: &Held) -> Result<()> {
        if self.bound.resume.is_some() {
            return self.scan(held);
        }
        self.apply(held).await?;
        let bytes = self.state.changes_bytes();
        self.bound.changes_peak = self.bound.changes_peak.max(bytes);
        let is_full = self.bound.changes_max.is_some_and(|most| bytes > most);
        // A slot names a segment for the log to begin in.
        if is_full && held.next.segment.is_some() {
            self.bound.resume = Some(held.next);
        }
        Ok(())
    }

    fn scan(&mut self, held: &Held) -> Result<()> {
        let geometry = self.layout.geometry;
        let record = Record::reopen(&held.bytes, held.at, &geometry)?;
        let segments = &mut self.state.space.segments;
        segments.found(held.at.segment, Stream::Log);
        self.bound.segments.insert(held.at.segment);
        for change in record.changes(&geometry) {
            if let Change::Map(_, _, Extent { source: Source::Run(place), .. }) = change? {
                segments.found(place.segment, Stream::Data);
                self.bound.segments.insert(place.segment);
            }
        }
        Ok(())
    }

    /// Keeps what the rest of the log names from a checkpoint of what was applied (R28). Where that
    /// checkpoint's log begins, if there is a rest.
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
        let segments = &mut self.state.space.segments;
        log.iter().for_each(|segment| segments.found(*segment, Stream::Log));
        // As if a run were on its way there: a segment with one does not die.
        log.union(&self.bound.segments).for_each(|segment| segments.fly(*segment, 1));
        Some(resume)
    }
}
