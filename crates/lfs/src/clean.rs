//! The cleaner: makes free segments of those of which little is live, by moving that.
//!
//! ```text
//!   pick: sealed, counted, little live ──▶ gather: extents of the tree that lie there, by their places
//!      ▲                                     ▼
//!      │                       copy: read, held against the sums, written behind one another, flushed
//!      │                                     ▼ ▲ segment by segment
//!      └── checkpoint: they are dead ◀── record: what is still where it was is there now, content as old as
//! it was
//! ```
//! A move is said as any content is ([`Change::Map`](crate::format::change::Change::Map)), with the birth and
//! the sums that it had. Of two with the same birth the later one counts (V3), so it needs no kind of record
//! of its own, and replay has nothing to decide: it is appended only for what is there in that hold of the
//! lock.
//!
//! Invariants: C41 what is moved was at the old place in the hold of the lock that says so: what was
//! overwritten, cut or removed meanwhile stays so. C42 it keeps birth and sums: whoever was on the way with
//! something younger still wins, and what is damaged is not made good by a sum of its own. C43 what a move's
//! record points at was flushed before, with no failure since its write began: no repair has to have it
//! again. C44 a segment is pinned from the beginning of a pass until it is cleaned, and dies as any other:
//! by a checkpoint that finds nothing in it. C45 a pass ends: it goes once through the tree. C46 what the
//! cleaner fills is kept from data, so that there is a way out when all else is full.
//!
//! Locks: the state lock, the log's and the turn in turn; none across a wait.

mod choose;
mod copy;
mod discard;
mod gather;
mod live;
mod relocate;

use crate::checkpoint::How;
use crate::space::Need;
use crate::volume::Inner;
use forebay_base::sync::Mutex;
use forebay_base::task::WaitQueue;
use forebay_base::{Error, ErrorKind, Result};
use std::collections::BTreeMap;

/// Passes for one who waits for room, each of which brought a part of a segment, before he looks again.
const PASSES_MAX: u32 = 256;
/// Passes that fail, one after the other, before he is told that there is no room.
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
    /// Somebody waits for room.
    Now,
}

/// Whose turn it is, and what it has done.
pub(crate) struct Cleaner {
    turn: Mutex<Turn>,
    wait: WaitQueue,
}

#[derive(Default)]
struct Turn {
    is_busy: bool,
    /// A task is going to clean.
    is_armed: bool,
    /// The volume is being closed.
    is_over: bool,
    /// So many wait for room.
    hurried: u32,
    /// How often something that was cleaned has come free.
    progress: u64,
    /// Nothing was to be had after this checkpoint.
    idle_at: Option<u64>,
    /// Segments with a block that cannot be moved, or with more than was counted, and their fillings.
    bad: BTreeMap<u32, u64>,
    /// Segments that passes went through, their fillings, and after which checkpoint.
    tried: BTreeMap<u32, (u64, u64)>,
    /// Segments that are free and not discarded; for a planted mistake.
    late: Vec<u32>,
    stats: CleanStats,
}

/// The turn to clean.
pub(crate) struct TurnGuard<'a>(&'a Cleaner);

impl Drop for TurnGuard<'_> {
    fn drop(&mut self) {
        self.0.turn.lock().is_busy = false;
        self.0.wait.wake_all();
    }
}

/// Somebody waits for room: nobody sleeps.
struct Hurried<'a>(&'a Cleaner);

impl Drop for Hurried<'_> {
    fn drop(&mut self) {
        self.0.turn.lock().hurried -= 1;
    }
}

/// Nothing is moved. Where the volume was not closed after all, the cleaner goes on.
pub(crate) struct Stopped<'a>(&'a Cleaner);

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        self.0.turn.lock().is_over = false;
    }
}

impl Cleaner {
    pub fn new() -> Self {
        Self { turn: Mutex::default(), wait: WaitQueue::new() }
    }

    /// What was done since the volume was opened.
    pub fn stats(&self) -> CleanStats {
        self.turn.lock().stats
    }

    pub async fn take(&self) -> TurnGuard<'_> {
        let free = || {
            let mut turn = self.turn.lock();
            (!std::mem::replace(&mut turn.is_busy, true)).then_some(())
        };
        self.wait.wait_until(free).await;
        TurnGuard(self)
    }

    fn hurry(&self) -> Hurried<'_> {
        self.turn.lock().hurried += 1;
        Hurried(self)
    }

    /// Nothing more is moved until this is dropped: the volume is closed. Waits for what is on its way.
    pub async fn stop(&self) -> Stopped<'_> {
        let stopped = Stopped(self);
        self.turn.lock().is_over = true;
        drop(self.take().await);
        stopped
    }

    /// Somebody waits for room.
    fn is_hurried(&self) -> bool {
        self.turn.lock().hurried > 0
    }

    /// Something is free of what was emptied.
    fn made_progress(&self) {
        self.turn.lock().progress += 1;
        self.wait.wake_all();
    }

    /// Waits until something has come free of what is being cleaned, or that is over. False: nothing is.
    async fn part_over(&self) -> bool {
        let (goes_on, seen) = {
            let turn = self.turn.lock();
            (turn.is_busy || turn.is_armed, turn.progress)
        };
        if goes_on {
            let _hurry = self.hurry();
            let over = || {
                let turn = self.turn.lock();
                let goes_on = turn.is_busy || turn.is_armed;
                (!goes_on || turn.progress != seen).then_some(())
            };
            self.wait.wait_until(over).await;
        }
        goes_on
    }

    /// What is dead comes free without anybody's doing: the task in the background makes checkpoints.
    pub fn is_at_work(&self) -> bool {
        self.turn.lock().is_armed
    }

    /// Waits until the pass that is being made is over, and nothing is pinned or counted on by it.
    pub async fn pass_over(&self) {
        let _hurry = self.hurry();
        drop(self.take().await);
    }

    /// `Shutdown` while the volume is being closed.
    fn check_open(&self) -> Result<()> {
        match self.turn.lock().is_over {
            true => Err(Error::new(ErrorKind::Shutdown, "clean", "the volume is being closed")),
            false => Ok(()),
        }
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
    /// There is something to be had, and nowhere to put it as things are; or an error ended the pass.
    stuck: bool,
}

/// What a pass has counted on is anybody's when it is over (K22), and so is its memory.
struct Planned<'a>(&'a Inner);

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

impl Inner {
    /// Begins to clean on a task of its own, if little is free and something may be had.
    pub(crate) fn trigger_cleaner(&self) {
        if !self.is_low() || self.check_running("clean").is_err() {
            return;
        }
        let number = self.checkpoints.number();
        {
            let mut turn = self.cleaner.turn.lock();
            if turn.is_over || turn.is_armed || turn.idle_at == Some(number) {
                return;
            }
            turn.is_armed = true;
        }
        let me = self.me.clone();
        let task = async move {
            let mut goes_on = true;
            while goes_on {
                let Some(inner) = me.upgrade() else { return };
                goes_on = inner.clean_on().await;
            }
        };
        self.world.spawn("forebay-lfs clean", Box::pin(task));
    }

    /// A pass in the background, and the checkpoints that it is for. False: that was all for now.
    async fn clean_on(&self) -> bool {
        let number = self.checkpoints.number();
        let goes_on = self.clean_and_check().await.unwrap_or_else(|error| {
            match error.kind() {
                ErrorKind::Shutdown => log::debug!("{error}"),
                _ => log::warn!("nothing is cleaned for now: {error}"),
            }
            false
        });
        if !goes_on {
            let mut turn = self.cleaner.turn.lock();
            (turn.is_armed, turn.idle_at) = (false, Some(number));
            drop(turn);
            self.cleaner.wait.wake_all();
        }
        goes_on
    }

    async fn clean_and_check(&self) -> Result<bool> {
        let pass = self.clean(Hurry::Background).await?;
        if pass.moved || self.is_coming() {
            // K24: what is dead is free then.
            self.checkpoint_and_free(How::Log).await?;
            self.cleaner.made_progress();
        }
        Ok(pass.emptied > 0 && !pass.stuck && self.is_low())
    }

    /// What a pass that somebody else makes has brought, for who waits for room. False: it is not more than
    /// before.
    pub(crate) async fn wait_for_cleaner(&self) -> bool {
        let before = self.wealth();
        self.cleaner.part_over().await && self.is_richer(&before)
    }

    /// Free segments, and bytes that there are for what is new and for what overwrites.
    fn wealth(&self) -> [u64; 3] {
        let state = self.state.lock();
        [state.space.segments.free(), state.data_room(Need::New), state.over_room(0)]
    }

    fn is_richer(&self, before: &[u64; 3]) -> bool {
        self.wealth().iter().zip(before).any(|(now, before)| now > before)
    }

    /// Segments for somebody who waits for room: moves what is live, and makes the checkpoints after which
    /// they are free. False: no more can be had.
    pub(crate) async fn clean_now(&self) -> bool {
        let _hurry = self.cleaner.hurry();
        let (before, mut failures) = (self.wealth(), 0);
        // Each pass that empties something leaves less that can be emptied; one may bring a part of a segment
        // only, and nodes of the checkpoints take one now and then.
        for _ in 0..PASSES_MAX {
            let done = self.clean(Hurry::Now).await;
            log::debug!("cleaned for room: {done:?}, there was {before:?}");
            let Pass { moved, sealed, stuck, .. } =
                done.unwrap_or(Pass { stuck: true, ..Pass::default() });
            // Checkpoints make nodes and the log free, and others go on meanwhile.
            failures = if stuck { failures + 1 } else { 0 };
            let goes_on = moved || sealed || (1..FAILURES_MAX).contains(&failures);
            // Somebody else may have emptied what there was.
            if !goes_on && !self.state.lock().space.segments.has_dead() {
                return false;
            }
            match goes_on {
                true => self.one_checkpoint().await,
                false => self.two_checkpoints().await,
            };
            if self.is_richer(&before) {
                return true;
            }
            if !goes_on {
                return false;
            }
        }
        false
    }

    /// One pass: picks segments and moves what is live there.
    pub(crate) async fn clean(&self, hurry: Hurry) -> Result<Pass> {
        let _turn = self.cleaner.take().await;
        self.cleaner.check_open()?;
        let _planned = Planned(self);
        if hurry == Hurry::Now {
            // One that is being made may want nodes, and then makes free what is dead.
            self.checkpoints.made().await;
        }
        let (victims, any) = self.pick(hurry);
        if victims.is_empty() {
            let sealed = hurry == Hurry::Now && !any && self.seal_open();
            return Ok(Pass { sealed, stuck: any, ..Pass::default() });
        }
        self.cleaner.turn.lock().stats.passes += 1;
        let before = self.cleaner.turn.lock().stats.moved_bytes;
        let (emptied, done) = self.move_all(&victims, hurry).await;
        let mut turn = self.cleaner.turn.lock();
        turn.stats.segments += emptied;
        let moved = emptied > 0 || turn.stats.moved_bytes > before;
        drop(turn);
        match done {
            // What was moved before comes free with a checkpoint all the same.
            Err(error) if moved && error.kind() != ErrorKind::Shutdown => {
                log::warn!("a pass of the cleaner ends early: {error}");
                Ok(Pass { emptied, moved, stuck: true, ..Pass::default() })
            }
            done => done.map(|()| Pass { emptied, moved, ..Pass::default() }),
        }
    }
}
