//! The cleaner: frees segments with little live data by moving that data.
//!
//! ```text
//!   pick: sealed, counted, little live ──▶ gather: extents of the tree there, by address
//!      ▲                                     ▼
//!      │                                   copy: read, verified, written in order, flushed
//!      │                                     ▼ ▲ segment by segment
//!      └── checkpoint: they are dead ◀──── record: blocks that did not change have moved
//! ```
//! A move is recorded as any content is ([`Change::Map`](crate::format::change::Change::Map)), with
//! the birth and the sums that the data had. Of two extents with the same birth the later record
//! counts (overlay.V3). So moves need no kind of record of their own, and replay needs no decision:
//! the record is appended only for data that is still at the old place in the same hold of the
//! lock.
//!
//! Invariants: C41 moved data was at the old place in the hold of the lock that appends the record:
//! data that was overwritten, truncated or removed meanwhile stays so. C42 a move keeps birth and
//! sums: a younger write in flight still wins, and a damaged block gets no sum that matches it. C43
//! the data that a move's record points at was flushed before, without a failure since its write
//! began, so that no repair has to write it again. C44 a segment is pinned from the beginning of a
//! pass until it is cleaned, and dies like any other: by a checkpoint that finds no live data in
//! it. C45 a pass ends: it reads the tree once. C46 segments that the cleaner fills are not
//! available to data, so that the cleaner can work when everything else is full.
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
use std::collections::{BTreeMap, VecDeque};
use std::ops::Deref;
use std::sync::Arc;

/// Most passes for one request for space; a pass may free only a part of a segment.
const PASSES_MAX: u32 = 256;
/// Failed passes in a row before a request for space is refused.
const FAILURES_MAX: u32 = 6;

/// Counters of the cleaner since the volume was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CleanStats {
    /// Passes through the tree.
    pub passes: u64,
    /// Segments from which all live data that was found was moved.
    pub segments: u64,
    /// Bytes of content that were moved.
    pub moved_bytes: u64,
    /// Of these, the bytes that passes moved for a task that waited for space. Passes in the
    /// background moved the others.
    pub moved_for_waiters_bytes: u64,
    /// The bytes of the segments in `segments`, live and dead.
    pub victim_bytes: u64,
    /// Of these, the bytes that were live when the segments were picked.
    pub victim_live_bytes: u64,
    /// `victim_bytes` of the last [`CleanStats::RECENT_PASSES`] passes that emptied a segment.
    pub recent_victim_bytes: u64,
    /// `victim_live_bytes` of these passes.
    pub recent_victim_live_bytes: u64,
    /// Bytes that were copied, but overwritten or truncated before they were moved.
    pub overtaken_bytes: u64,
    /// Segments whose discard before reuse has ended, also with an error.
    pub discarded: u64,
    /// Blocks that were not moved, because they could not be read or did not match their sums.
    pub bad_blocks: u64,
}

impl CleanStats {
    /// The number of passes that the `recent` figures cover.
    pub const RECENT_PASSES: usize = 16;

    /// The live share of the segments that the last passes emptied, from 0 to 1, weighted by
    /// segment.
    pub fn recent_live_share(&self) -> Option<f64> {
        let Self { recent_victim_bytes: all, recent_victim_live_bytes: live, .. } = *self;
        (all > 0).then(|| live as f64 / all as f64)
    }
}

/// Reason for a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hurry {
    /// Little space is free.
    Background,
    /// A task waits for space.
    Now,
}

/// Cleans segments, one pass at a time ([`crate::transaction::cleaning`]).
pub(crate) struct Cleaner {
    checkpoints: Arc<Checkpoints>,
    record: Mutex<Record>,
}

/// State of the cleaner.
#[derive(Default)]
struct Record {
    /// The volume is being closed.
    is_over: bool,
    /// Segments with a block that cannot be moved, or with more live data than was counted; and
    /// `Segment::takes` of each, which identifies one use of the segment.
    bad: BTreeMap<u32, u64>,
    /// Segments that passes have processed: `Segment::takes`, and the checkpoint at that time.
    tried: BTreeMap<u32, (u64, u64)>,
    stats: CleanStats,
    /// The last passes that emptied a segment, the oldest first.
    recent: VecDeque<Emptied>,
}

/// Segments that a pass has emptied.
#[derive(Debug, Default, Clone, Copy)]
struct Emptied {
    segments: u64,
    /// Their bytes, live and dead.
    bytes: u64,
    /// The bytes that were live when the segments were picked.
    live_bytes: u64,
}

impl Record {
    /// Counts the segments that a pass has emptied, and the bytes that it moved.
    fn note_pass(&mut self, emptied: Emptied, hurry: Hurry, moved_bytes: u64) {
        if hurry == Hurry::Now {
            self.stats.moved_for_waiters_bytes += moved_bytes;
        }
        self.stats.segments += emptied.segments;
        self.stats.victim_bytes += emptied.bytes;
        self.stats.victim_live_bytes += emptied.live_bytes;
        if emptied.segments == 0 {
            return;
        }
        self.recent.push_back(emptied);
        if self.recent.len() > CleanStats::RECENT_PASSES {
            self.recent.pop_front();
        }
        self.stats.recent_victim_bytes = self.recent.iter().map(|pass| pass.bytes).sum();
        self.stats.recent_victim_live_bytes = self.recent.iter().map(|pass| pass.live_bytes).sum();
    }
}

impl Deref for Cleaner {
    type Target = Resources;

    fn deref(&self) -> &Resources {
        &self.checkpoints
    }
}

/// The cleaner is stopped while this exists. If the volume was not closed after all, it continues.
pub(crate) struct Stopped<'a>(&'a Cleaner);

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        self.0.record.lock().is_over = false;
    }
}

/// Result of a pass.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Pass {
    /// Segments that should be dead with the next checkpoint.
    pub emptied: u64,
    /// Some data was moved.
    moved: bool,
    /// Open segments were sealed: they can be picked when a checkpoint has counted them.
    sealed: bool,
    /// There is data to move, but no space for it at present; or an error ended the pass.
    stuck: bool,
}

/// When a pass ends, the space and the memory that it has reserved are released (choose.K22).
struct Planned<'a>(&'a Cleaner);

impl Drop for Planned<'_> {
    fn drop(&mut self) {
        let held = {
            let mut state = self.0.state.lock();
            state.end_pass();
            state.held()
        };
        self.0.note_memory(held);
    }
}

impl Cleaner {
    /// The cleaner of a volume that makes checkpoints with `checkpoints`.
    pub fn new(checkpoints: Arc<Checkpoints>) -> Self {
        Self { checkpoints, record: Mutex::default() }
    }

    /// Counters since the volume was opened.
    pub fn stats(&self) -> CleanStats {
        CleanStats { discarded: self.checkpoints.discarded(), ..self.record.lock().stats }
    }

    /// Stops the cleaner until the result is dropped, because the volume is closed. Waits for the
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

    /// A pass in the background, and the checkpoints after it. False: there is no more work for
    /// now.
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
            // Dead segments are free after that (choose.K24).
            self.checkpoints.make_and_free(How::Log).await?;
            self.cleaning.note_freed();
        }
        Ok(pass.emptied > 0 && !pass.stuck && self.is_low(&mut self.state.lock()))
    }

    /// Frees segments for a request for space: moves live data, and makes the checkpoints after
    /// which the segments are free. False: no more can be freed.
    pub async fn clean_for_space(&self) -> bool {
        let _hurry = self.cleaning.hurry();
        let (before, mut failures) = (self.state.lock().space_levels(), 0);
        // Many passes may be needed: a pass may free only a part of a segment, and checkpoints
        // sometimes need a segment for their nodes.
        for _ in 0..PASSES_MAX {
            let done = self.clean(Hurry::Now).await;
            log::debug!("cleaned for space: {done:?}, there was {before:?}");
            let Pass { moved, sealed, stuck, .. } =
                done.unwrap_or(Pass { stuck: true, ..Pass::default() });
            // Checkpoints free nodes and log space, and other operations continue meanwhile, so a
            // stuck pass is tried again.
            failures = if stuck { failures + 1 } else { 0 };
            let goes_on = moved || sealed || (1..FAILURES_MAX).contains(&failures);
            // Another pass may have emptied the remaining segments.
            if !goes_on && !self.state.lock().space().segments().has_dead() {
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

    /// One pass: picks segments and moves their live data.
    pub async fn clean(&self, hurry: Hurry) -> Result<Pass> {
        let _turn = self.cleaning.take_turn().await;
        self.check_open()?;
        let _planned = Planned(self);
        if hurry == Hurry::Now {
            // A checkpoint in progress may take nodes, and afterwards frees dead segments.
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
        let (pass, done) = self.move_all(&victims, hurry).await;
        let (emptied, moved_bytes) = {
            let mut record = self.record.lock();
            let moved_bytes = record.stats.moved_bytes - before;
            record.note_pass(pass, hurry, moved_bytes);
            (pass.segments, moved_bytes)
        };
        self.log_pass(hurry, pass, moved_bytes);
        let moved = emptied > 0 || moved_bytes > 0;
        match done {
            // Data that was moved before the error still becomes free with a checkpoint.
            Err(error) if moved && error.kind() != ErrorKind::Shutdown => {
                log::warn!("a pass of the cleaner ends early: {error}");
                Ok(Pass { emptied, moved, stuck: true, ..Pass::default() })
            }
            done => done.map(|()| Pass { emptied, moved, ..Pass::default() }),
        }
    }

    /// Logs the figures of a pass that moved `moved_bytes`, and those of the volume after it.
    fn log_pass(&self, hurry: Hurry, pass: Emptied, moved_bytes: u64) {
        if !log::log_enabled!(log::Level::Debug) {
            return;
        }
        let percent = |part: u64, all: u64| 100 * part / all.max(1);
        let space = self.state.lock().space_stats();
        log::debug!(
            "a pass ({hurry:?}) emptied {} segments that were {} % live and moved {moved_bytes} \
             bytes; {:.0} % of the volume is live, {} bytes are held back ({:?}), {} writable",
            pass.segments,
            percent(pass.live_bytes, pass.bytes),
            100.0 * space.live_share(),
            space.held_back.total_bytes(),
            space.held_back,
            space.writable_bytes,
        );
    }
}
