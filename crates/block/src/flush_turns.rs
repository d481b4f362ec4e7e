//! The turns of flushes: one flush at a time, shared by all callers that wait for it.
//!
//! Flushes have numbers, from 1 on. A caller whose writes have completed wants the next number that
//! has not begun ([`FlushTurns::next`]). A flush of that number, or of a later one, covers them
//! (lineage.L5).
//!
//! ```text
//!   idle ──begin──▶ running ──end──────▶ idle: result for callers that want this number or less
//!                      └─────cancel────▶ idle: no result, these callers begin another flush
//! ```
//! Invariants: T1 one flush is in progress at a time. T2 a caller gets no result of a flush that
//! began before its writes had completed. T3 the error of a flush reaches each caller that wants
//! its number or an earlier one, also if later flushes have succeeded by then. It does not reach a
//! caller whose writes an earlier flush has covered: nothing of them is in doubt.
//!
//! Lock: none; the owner's lock covers it, and the owner wakes the callers that wait.

use forebay_base::{Error, Result};
use std::collections::VecDeque;

/// Most failed flushes whose errors are retained.
const ERRORS_MAX: usize = 16;

/// What a caller that wants a flush has to do.
#[derive(Debug)]
pub enum Turn {
    /// Run the flush, and then call [`FlushTurns::end`] or [`FlushTurns::cancel`].
    Run,
    /// Nothing: this is the result of a flush that covers its writes.
    Done(Result<()>),
}

/// The flushes of one object: of a device, or the commits of a file.
#[derive(Debug, Default)]
pub struct FlushTurns {
    is_running: bool,
    /// Number of the flush that began last.
    begun: u64,
    /// Number of the last flush with a result.
    ended: u64,
    /// Number of the last flush that succeeded.
    succeeded: u64,
    /// The flushes that failed last.
    errors: VecDeque<Failed>,
    /// Number of the last failed flush that is not among `errors` any more.
    forgotten: u64,
}

/// A flush that failed.
#[derive(Debug)]
struct Failed {
    number: u64,
    /// Number of the last flush that had succeeded before.
    succeeded: u64,
    error: Error,
}

impl FlushTurns {
    /// The number of a flush that covers all writes that have completed by now (T2).
    pub fn next(&self) -> u64 {
        self.begun + 1
    }

    /// The number of the flush that began last.
    pub fn last(&self) -> u64 {
        self.begun
    }

    /// Whether a flush is in progress.
    pub fn is_running(&self) -> bool {
        self.is_running
    }

    /// Whether a flush with at least this number has succeeded, and none of these had failed
    /// before. 0: there is nothing to cover.
    pub fn has_covered(&self, wanted: u64) -> bool {
        wanted == 0 || self.succeeded >= wanted && self.error(wanted).is_none()
    }

    /// The error for a caller that wants this flush (T3). For one that wants a flush of so long ago
    /// that errors since are forgotten, each later error counts.
    fn error(&self, wanted: u64) -> Option<&Error> {
        let concerns = |failed: &&Failed| {
            failed.number >= wanted && (failed.succeeded < wanted || wanted <= self.forgotten)
        };
        self.errors.iter().find(concerns).map(|failed| &failed.error)
    }

    /// The result of a flush with at least the number `wanted` (T3). `None`: none has ended.
    pub fn result(&self, wanted: u64) -> Option<Result<()>> {
        let error = self.error(wanted);
        (self.ended >= wanted).then(|| error.map_or(Ok(()), |error| Err(error.clone())))
    }

    /// That result, or the turn to run such a flush. `None`: a flush is in progress, and the caller
    /// asks again at its end.
    pub fn turn(&mut self, wanted: u64) -> Option<Turn> {
        match self.result(wanted) {
            Some(result) => Some(Turn::Done(result)),
            None => self.begin().then_some(Turn::Run),
        }
    }

    /// Takes the turn. False: a flush is in progress (T1).
    pub fn begin(&mut self) -> bool {
        if self.is_running {
            return false;
        }
        self.is_running = true;
        self.begun += 1;
        true
    }

    /// The flush in progress has this result.
    pub fn end(&mut self, result: &Result<()>) {
        self.cancel();
        self.ended = self.begun;
        match result {
            Ok(()) => self.succeeded = self.begun,
            Err(error) => {
                if self.errors.len() == ERRORS_MAX {
                    self.forgotten = self.errors.pop_front().map_or(0, |failed| failed.number);
                }
                let (number, succeeded, error) = (self.begun, self.succeeded, error.clone());
                self.errors.push_back(Failed { number, succeeded, error });
            }
        }
    }

    /// The flush in progress has no result: it was not submitted, or its caller is gone.
    pub fn cancel(&mut self) {
        assert!(self.is_running, "T1: a flush ends once");
        self.is_running = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_base::ErrorKind;

    fn failed(text: &str) -> Result<()> {
        Err(Error::new(ErrorKind::Io, "flush", text))
    }

    fn is_done(turns: &mut FlushTurns, wanted: u64) -> Option<bool> {
        match turns.turn(wanted)? {
            Turn::Run => panic!("nothing is in progress"),
            Turn::Done(result) => Some(result.is_ok()),
        }
    }

    #[test]
    fn callers_share_flush_that_began_after_their_writes() {
        let mut turns = FlushTurns::default();
        let first = turns.next();
        assert!(matches!(turns.turn(first), Some(Turn::Run)));
        let (second, third) = (turns.next(), turns.next());
        assert!(turns.turn(second).is_none() && !turns.begin(), "T1");
        turns.end(&Ok(()));
        assert_eq!(is_done(&mut turns, first), Some(true));
        assert!(!turns.has_covered(second), "T2: it began before");
        assert!(matches!(turns.turn(second), Some(Turn::Run)), "T2");
        assert!(turns.turn(third).is_none(), "the callers want the same flush");
        turns.end(&Ok(()));
        assert_eq!(is_done(&mut turns, third), Some(true));
        assert!(turns.has_covered(third) && turns.has_covered(0));
    }

    #[test]
    fn error_of_shared_flush_reaches_each_caller() {
        let mut turns = FlushTurns::default();
        assert!(turns.begin());
        let wanted = turns.next();
        turns.end(&failed("first"));
        assert!(turns.begin());
        let later = turns.next();
        turns.end(&failed("second"));
        assert!(turns.begin());
        turns.end(&Ok(()));
        for _ in 0..2 {
            assert_eq!(is_done(&mut turns, wanted), Some(false), "T3: it failed before one worked");
            assert!(!turns.has_covered(wanted));
        }
        assert_eq!(is_done(&mut turns, later), Some(true));
        assert!(turns.has_covered(later));
        for _ in 0..2 * ERRORS_MAX {
            assert!(turns.begin());
            turns.end(&failed("again"));
        }
        assert_eq!(is_done(&mut turns, wanted), Some(false), "T3: also long after");
        assert_eq!(is_done(&mut turns, later), Some(false), "what failed since is forgotten");
        assert_eq!(turns.errors.len(), ERRORS_MAX);
    }

    /// T3. The story: a flush covered a direct write, and before the log looked, another task's
    /// flush failed. The log took the write, which was durable, for lost.
    #[test]
    fn error_after_covering_flush_is_none_of_its_callers() {
        let mut turns = FlushTurns::default();
        let wanted = turns.next();
        assert!(turns.begin());
        turns.end(&Ok(()));
        let later = turns.next();
        assert!(turns.begin());
        turns.end(&failed("later"));
        assert!(turns.has_covered(wanted) && !turns.has_covered(later));
        assert_eq!(is_done(&mut turns, wanted), Some(true));
        assert_eq!(is_done(&mut turns, later), Some(false));
    }

    #[test]
    fn callers_of_cancelled_flush_begin_another() {
        let mut turns = FlushTurns::default();
        let wanted = turns.next();
        assert!(matches!(turns.turn(wanted), Some(Turn::Run)));
        turns.cancel();
        assert!(!turns.is_running() && !turns.has_covered(wanted));
        assert!(matches!(turns.turn(wanted), Some(Turn::Run)), "it has no result");
        assert_eq!(turns.last(), wanted + 1);
        turns.end(&Ok(()));
        assert_eq!(is_done(&mut turns, wanted), Some(true));
    }
}
