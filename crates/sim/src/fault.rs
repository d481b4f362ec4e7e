//! Faults of a simulated disk, and the rules for when they happen.
//!
//! A [`FaultRule`] counts the calls it matches and fires at the Nth, once, for a number of times,
//! for ever, or by chance. The disk asks its rules in the order in which they were added; the first
//! that fires decides.
//!
//! Invariant: F1 [`FaultCounts`] counts every fault that fires, so that a test can show that it
//! happened.
//!
//! No locks: the disk's own lock covers it.

use forebay_base::ErrorKind;
use forebay_base::world::{Nanos, split_mix};
use forebay_block::bio::BioOp;
use std::ops::Range;

/// One kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The call fails with this kind. A failed write leaves each of its sectors old or new (with
    /// `NoSpace` all old). A failed flush leaves each write it covered durable, pending, or lost
    /// for good; a lost write may still read back for a while.
    Fail(ErrorKind),
    /// Read or write: a part is transferred, and the call fails.
    Short,
    /// Write: reports success, some of its sectors (or part of its only one) are old.
    Torn,
    /// Write: reports success, nothing is stored. Flush: reports success, makes nothing durable.
    Lost,
    /// Write: reports success, and writes the data somewhere else on the disk.
    Misdirect,
    /// Read: one bit is wrong in the transfer, the medium is right. Write: it is stored wrong.
    Flip,
    /// Takes this much longer.
    Slow(Nanos),
}

impl Fault {
    /// Whether the fault makes sense for the operation.
    fn applies_to(self, op: BioOp) -> bool {
        match self {
            Self::Fail(_) | Self::Slow(_) => true,
            Self::Short | Self::Flip => matches!(op, BioOp::Read | BioOp::Write),
            Self::Lost => op != BioOp::Read,
            Self::Torn | Self::Misdirect => {
                matches!(op, BioOp::Write | BioOp::WriteZeroes | BioOp::Discard)
            }
        }
    }
}

/// How often each class of fault happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FaultCounts {
    /// [`Fault::Fail`] of any kind but `NoSpace`.
    pub failed: u64,
    /// `NoSpace`, by rule or because the disk is full.
    pub no_space: u64,
    /// [`Fault::Short`].
    pub short: u64,
    /// [`Fault::Torn`].
    pub torn: u64,
    /// [`Fault::Lost`].
    pub lost: u64,
    /// [`Fault::Misdirect`].
    pub misdirected: u64,
    /// [`Fault::Flip`].
    pub flipped: u64,
    /// [`Fault::Slow`].
    pub slow: u64,
    /// Sectors changed by `SimDisk::rot`.
    pub rotten: u64,
}

impl FaultCounts {
    /// Counts one (fault.F1).
    pub(crate) fn count(&mut self, fault: Fault) {
        let counter = match fault {
            Fault::Fail(ErrorKind::NoSpace) => &mut self.no_space,
            Fault::Fail(_) => &mut self.failed,
            Fault::Short => &mut self.short,
            Fault::Torn => &mut self.torn,
            Fault::Lost => &mut self.lost,
            Fault::Misdirect => &mut self.misdirected,
            Fault::Flip => &mut self.flipped,
            Fault::Slow(_) => &mut self.slow,
        };
        *counter += 1;
    }
}

/// When a fault fires. A new rule fires once, at the first matching call.
#[derive(Debug, Clone)]
pub struct FaultRule {
    fault: Fault,
    op: Option<BioOp>,
    within: Option<Range<u64>>,
    nth: u64,
    times: u64,
    one_in: u64,
    every: u64,
    seen: u64,
}

impl FaultRule {
    /// For calls of one kind.
    pub fn on(op: BioOp, fault: Fault) -> Self {
        Self { op: Some(op), ..Self::any(fault) }
    }

    /// Whether it leaves writes and flushes alone.
    pub fn is_of_reads(&self) -> bool {
        self.op == Some(BioOp::Read)
    }

    /// For calls of every kind to which the fault applies.
    pub fn any(fault: Fault) -> Self {
        Self { fault, op: None, within: None, nth: 1, times: 1, one_in: 1, every: 1, seen: 0 }
    }

    /// Only calls that touch this byte range. Flushes touch no range.
    #[must_use]
    pub fn within(mut self, range: Range<u64>) -> Self {
        self.within = Some(range);
        self
    }

    /// From the `nth` matching call on, counted from 1.
    #[must_use]
    pub fn nth(mut self, nth: u64) -> Self {
        self.nth = nth;
        self
    }

    /// This many matching calls in a row.
    #[must_use]
    pub fn times(mut self, times: u64) -> Self {
        self.times = times;
        self
    }

    /// For ever.
    #[must_use]
    pub fn sticky(self) -> Self {
        self.times(u64::MAX)
    }

    /// Of the calls that would fire, one in `n` does, by the seed.
    #[must_use]
    pub fn one_in(mut self, n: u64) -> Self {
        self.one_in = n.max(1);
        self
    }

    /// Of the calls that would fire, each `n`th one does.
    #[must_use]
    pub fn every(mut self, n: u64) -> Self {
        self.every = n.max(1);
        self
    }

    /// Whether it fires for this call; counts the call.
    pub(crate) fn fires(&mut self, op: BioOp, at: &Range<u64>, rng: &mut u64) -> Option<Fault> {
        let touches = |r: &Range<u64>| op != BioOp::Flush && r.start < at.end && at.start < r.end;
        let matches = self.fault.applies_to(op)
            && self.op.is_none_or(|wanted| wanted == op)
            && self.within.as_ref().is_none_or(touches);
        if !matches {
            return None;
        }
        self.seen += 1;
        let on = self.seen >= self.nth && self.seen - self.nth < self.times;
        let on = on && (self.seen - self.nth + 1).is_multiple_of(self.every);
        let lucky = on && (self.one_in == 1 || split_mix(rng).is_multiple_of(self.one_in));
        lucky.then_some(self.fault)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fired(mut rule: FaultRule, op: BioOp, calls: u64) -> Vec<u64> {
        let mut rng = 1;
        (1..=calls).filter(|n| rule.fires(op, &(n * 10..n * 10 + 10), &mut rng).is_some()).collect()
    }

    #[test]
    fn rule_fires_at_its_call() {
        let rule = || FaultRule::on(BioOp::Write, Fault::Lost);
        assert_eq!(fired(rule(), BioOp::Write, 5), [1]);
        assert_eq!(fired(rule().nth(3), BioOp::Write, 5), [3]);
        assert_eq!(fired(rule().nth(3).sticky(), BioOp::Write, 5), [3, 4, 5]);
        assert_eq!(fired(rule().within(25..41).sticky(), BioOp::Write, 6), [2, 3, 4]);
        assert!(fired(rule(), BioOp::Read, 5).is_empty());
        assert!(fired(FaultRule::any(Fault::Torn).sticky(), BioOp::Read, 5).is_empty());
        assert_eq!(fired(rule().sticky().every(3), BioOp::Write, 8), [3, 6]);
        let some = fired(rule().sticky().one_in(4), BioOp::Write, 400).len();
        assert!((60..140).contains(&some), "{some}");
    }
}
