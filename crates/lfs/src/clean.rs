//! The cleaner: makes free segments of those of which little is live, by moving that.
//!
//! ```text
//!   pick: sealed, counted, little live ──▶ gather: extents of the tree there, by address
//!      ▲                                     ▼
//!      │                                   copy: read, verified, written in order, flushed
//!      │                                     ▼ ▲ segment by segment
//!      └── checkpoint: they are dead ◀──── record: blocks that did not change have moved
//! ```
//! A move is said as any content is ([`Change::Map`](crate::format::change::Change::Map)), with the
//! birth and the sums that it had. Of two with the same birth the later one counts (V3), so it
//! needs no kind of record of its own, and replay has nothing to decide: it is appended only for
//! what is there in that hold of the lock.
//!
//! Invariants: C41 what is moved was at the old place in the hold of the lock that says so: what
//! was overwritten, cut or removed meanwhile stays so. C42 a move keeps birth and sums: a younger
//! write in flight still wins, and a damaged block does not get a sum that matches it. C43 what a
//! move's record points at was flushed before, with no failure since its write began: no repair has
//! to have it again. C44 a segment is pinned from the beginning of a pass until it is cleaned, and
//! dies as any other: by a checkpoint that finds nothing in it. C45 a pass ends: it goes once
//! through the tree. C46 what the cleaner fills is kept from data, so that there is a way out when
//! all else is full.
//!
//! Locks: the state lock, the log's and the turn in turn; none across a wait.

mod choose;
mod copy;
mod gather;
mod live;
mod relocate;

use crate::checkpoint::{Checkpoints, How};
use crate::transaction::resources::Resources;
use forebay_base::sync::Mutex;
use forebay_base::{Error, ErrorKind, Result};
use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;

/// Passes for one request for space, each of which brought a part of a segment.
const PASSES_MAX: u32 = 256;
/// Passes that fail, one after the other, before a request for space is refused.
const FAILURES_MAX: u32 = 6;

/// What the cleaner has done since the volume was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CleanStats {
    /// Times that it went through the tree.
    pub passes: u64,
    /// Segments of which all was moved that was found.
    pub segments: u64,
    /// Bytes of content that were moved.
    pub moved_bytes: u64,
    /// Bytes that were copied and were overwritten, or cut off, before they were moved.
    pub overtaken_bytes: u64,
    /// Segments that were discarded before they were used again.
    pub discarded: u64,
    /// Blocks that stay where they are, for they could not be read or are not what their sums say.
    pub bad_blocks: u64,
}

/// Why a pass is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hurry {
    /// Little is free.
    Background,
    /// A task waits for space.
    Now,
}

/// Cleans segments, one pass at a time ([`crate::transaction::cleaning`]).
pub(crate) struct Cleaner {
    checkpoints: Arc<Checkpoints>,
    record: Mutex<Record>,
}

/// What the cleaner knows of its passes.
#[derive(Default)]
struct Record {
    /// The volume is being closed.
    is_over: bool,
    /// Segments with a block that cannot be moved, or with more than was counted, and their
    /// fillings.
    bad: BTreeMap<u32, u64>,
    /// Segments that passes went through, their fillings, and after which checkpoint.
    tried: BTreeMap<u32, (u64, u64)>,
    stats: CleanStats,
}

impl Deref for Cleaner {
    type Target = Resources;

    fn deref(&self) -> &Resources {
        &self.checkpoints
    }
}

/// Nothing is moved. If the volume was not closed after all, the cleaner continues.
pub(crate) struct Stopped<'a>(&'a Cleaner);

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        self.0.record.lock().is_over = false;
    }
}

/// What a pass has brought.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Pass {
    /// Segments that should be dead with the next checkpoint.
    pub emptied: u64,
    /// Something was moved.
    moved: bool,
    /// Open segments were sealed: they can be picked when a checkpoint has counted them.
    sealed: bool,
    /// There is something to be had, and nowhere to put it as things are; or an error ended the
    /// pass.
    stuck: bool,
}

/// The end of a pass releases what it has counted on (K22), and its memory.
struct Planned<'a>(&'a Cleaner);

impl Drop for Planned<'_> {
    fn drop(&mut self) {
        let held = {
            let mut state = self.0.state.lock();
            state.space.plan_clean(0);
            state.cleaning_bytes = 0;
            state.held()
        };
        self.0.note_memory(held);
    }
}

impl Cleaner {
    /// Of a volume that makes checkpoints with `checkpoints`.
    pub fn new(checkpoints: Arc<Checkpoints>) -> Self {
        Self { checkpoints, record: Mutex::default() }
    }

    /// What was done since the volume was opened.
    pub fn stats(&self) -> CleanStats {
        CleanStats { discarded: self.checkpoints.discarded(), ..self.record.lock().stats }
    }

    /// Nothing more is moved until this is dropped, because the volume is closed. Waits for the
    /// pass in progress.
    pub async fn stop(&self) -> Stopped<'_> {
        let stopped = Stopped(self);
        self.record.lock().is_over = true;
        drop(self.cleaning.take_turn().await);
        stopped
    }

    /// Whether the volume is being closed.
    pub fn is_over(&self) -> bool {
        self.record.lock().is_over
    }

    /// `Shutdown` while the volume is being closed.
    fn check_open(&self) -> Result<()> {
        match self.is_over() {
            true => Err(Error::new(ErrorKind::Shutdown, "clean", "the volume is being closed")),
            false => Ok(()),
        }
    }

    /// A pass in the background, and the checkpoints that it is for. False: that was all for now.
    pub async fn clean_background(&self) -> bool {
        let goes_on = self.clean_and_free().await;
        goes_on.unwrap_or_else(|error| {
            match error.kind() {
                ErrorKind::Shutdown => log::debug!("{error}"),
                _ => log::warn!("nothing is cleaned for now: {error}"),
            }
            false
        })
    }

    async fn clean_and_free(&self) -> Result<bool> {
        let pass = self.clean(Hurry::Background).await?;
        if pass.moved || self.is_coming() {
            // K24: what is dead is free then.
            self.checkpoints.make_and_free(How::Log).await?;
            self.cleaning.note_freed();
        }
        Ok(pass.emptied > 0 && !pass.stuck && self.is_low())
    }

    /// Segments for a request for space: moves what is live, and makes the checkpoints after which
    /// they are free. False: no more can be had.
    pub async fn clean_for_space(&self) -> bool {
        let _hurry = self.cleaning.hurry();
        let (before, mut failures) = (self.state.lock().space_levels(), 0);
        // Each pass that empties something leaves less that can be emptied. A pass may bring a part
        // of a segment only, and nodes of the checkpoints take one now and then.
        for _ in 0..PASSES_MAX {
            let done = self.clean(Hurry::Now).await;
            log::debug!("cleaned for space: {done:?}, there was {before:?}");
            let Pass { moved, sealed, stuck, .. } =
                done.unwrap_or(Pass { stuck: true, ..Pass::default() });
            // Checkpoints make nodes and the log free, and other operations continue meanwhile.
            failures = if stuck { failures + 1 } else { 0 };
            let goes_on = moved || sealed || (1..FAILURES_MAX).contains(&failures);
            // Another pass may have emptied what there was.
            if !goes_on && !self.state.lock().space.segments.has_dead() {
                return false;
            }
            match goes_on {
                true => self.checkpoints.make_one().await,
                false => self.checkpoints.make_two().await,
            };
            self.cleaning.note_freed();
            if self.state.lock().has_more_space(&before) {
                return true;
            }
            if !goes_on {
                return false;
            }
        }
        false
    }

    /// One pass: picks segments and moves what is live there.
    pub async fn clean(&self, hurry: Hurry) -> Result<Pass> {
        let _turn = self.cleaning.take_turn().await;
        self.check_open()?;
        let _planned = Planned(self);
        if hurry == Hurry::Now {
            // A checkpoint in progress may take nodes, and then makes free what is dead.
            self.checkpoints.made().await;
        }
        let (victims, any) = self.pick(hurry);
        if victims.is_empty() {
            let sealed = hurry == Hurry::Now && !any && self.seal_open();
            return Ok(Pass { sealed, stuck: any, ..Pass::default() });
        }
        let before = {
            let stats = &mut self.record.lock().stats;
            stats.passes += 1;
            stats.moved_bytes
        };
        let (emptied, done) = self.move_all(&victims, hurry).await;
        let moved = {
            let stats = &mut self.record.lock().stats;
            stats.segments += emptied;
            emptied > 0 || stats.moved_bytes > before
        };
        match done {
            // What was moved before becomes free with a checkpoint all the same.
            Err(error) if moved && error.kind() != ErrorKind::Shutdown => {
                log::warn!("a pass of the cleaner ends early: {error}");
                Ok(Pass { emptied, moved, stuck: true, ..Pass::default() })
            }
            done => done.map(|()| Pass { emptied, moved, ..Pass::default() }),
        }
    }
}
