//! The grants of the ledger, and their sums. The invariants are those of [`crate::space::ledger`].
//!
//! No locks: the volume's state lock covers it.

use crate::space::admission::{AcceptedContent, Growth};
use std::sync::Arc;

/// What a need asks for.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Ask {
    /// Bytes of content.
    pub content: u64,
    /// Bytes of accepted content that have a place from now on (admission.P21).
    pub placed: u64,
    /// Bytes at the places of a reservation, including those of content that was not accepted
    /// before.
    pub flying: u64,
    /// Bytes of the log.
    pub log: u64,
    /// The growth of the tree, without that by `content`.
    pub growth: Growth,
}

impl Ask {
    /// `bytes` bytes of the log, for changes that let the tree grow by `growth`.
    pub fn log(bytes: u64, growth: Growth) -> Self {
        Self { log: bytes, growth, ..Self::default() }
    }

    /// `bytes` bytes of content.
    pub fn content(bytes: u64) -> Self {
        Self { content: bytes, ..Self::default() }
    }
}

/// Space of one user. It ends with [`Ledger::end`].
#[must_use]
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Grant {
    /// Bytes of the log.
    log: u64,
    /// Accepted content that has its places now, bytes (admission.P21).
    placed: u64,
    /// Bytes at these places, including those of content that was not accepted before.
    flying: u64,
    /// The growth of the tree by the records.
    growth: Growth,
}

impl Grant {
    /// Bytes of the log.
    pub fn log(&self) -> u64 {
        self.log
    }

    /// Takes a part out of this grant, at most all of it: bytes of the log, and growth of the tree.
    pub fn split(&mut self, log: u64, growth: Growth) -> Self {
        let growth = Growth {
            entries: growth.entries.min(self.growth.entries),
            bytes: growth.bytes.min(self.growth.bytes),
        };
        let part = Self { log: log.min(self.log), growth, ..Self::default() };
        self.subtract(&part);
        part
    }

    /// Adds another grant to this one.
    pub fn merge(&mut self, other: Self) {
        self.log += other.log;
        self.placed += other.placed;
        self.flying += other.flying;
        self.growth = self.growth.plus(other.growth);
    }

    fn subtract(&mut self, part: &Self) {
        debug_assert!(self.log >= part.log, "M17: what ends was granted");
        self.log -= part.log;
        self.placed -= part.placed;
        self.flying -= part.flying;
        self.growth.entries -= part.growth.entries;
        self.growth.bytes -= part.growth.bytes;
    }

    /// The same amounts, for the sums.
    fn copy(&self) -> Self {
        let Self { log, placed, flying, growth } = *self;
        Self { log, placed, flying, growth }
    }
}

/// All grants of space.
#[derive(Default)]
pub(crate) struct Ledger {
    /// The sums of all grants (ledger.M17).
    granted: Grant,
    /// Accepted content that is not written out.
    accepted: Arc<AcceptedContent>,
    /// Segments that the cleaner will fill in addition to the one that it fills (space.P15).
    pub(in crate::space) clean: u64,
    /// The open log segment may contain content of files.
    pub(in crate::space) log_has_content: bool,
}

impl Ledger {
    /// Grants what is asked for, except content: that counts as accepted. The caller has asked
    /// whether there is space, or must not be refused.
    pub fn grant(&mut self, ask: &Ask) -> Grant {
        let Ask { content: _, placed, flying, log, growth } = *ask;
        let grant = Grant { log, placed, flying, growth };
        self.granted.merge(grant.copy());
        grant
    }

    /// Ends a grant, or the part of it that was used or is not needed.
    pub fn end(&mut self, grant: Grant) {
        self.granted.subtract(&grant);
    }

    /// Bytes of the log that are granted.
    pub fn log_bytes(&self) -> u64 {
        self.granted.log
    }

    /// Bytes at the places of all reservations.
    pub fn flying_bytes(&self) -> u64 {
        self.granted.flying
    }

    /// The growth of the tree by the records of all grants.
    pub fn growth(&self) -> Growth {
        self.granted.growth
    }

    /// Counts the content of files in another set of accepted content.
    pub fn set_accepted(&mut self, accepted: Arc<AcceptedContent>) {
        self.accepted = accepted;
    }

    /// Accepted content, to be counted without the state lock.
    pub fn accepted(&self) -> &Arc<AcceptedContent> {
        &self.accepted
    }

    /// Bytes of accepted content that has no places yet. Ends the advance (admission.P27).
    pub fn unplaced_bytes(&self) -> u64 {
        self.accepted.end_advance();
        self.accepted.bytes().saturating_sub(self.granted.placed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// ledger.M17, ledger.M18: the sums follow the grants and their parts, and a part is at most
    /// the whole.
    #[test]
    fn grant_parts_follow_their_sums() {
        let mut ledger = Ledger::default();
        let growth = Growth { entries: 2, bytes: 10 };
        let mut first = ledger.grant(&Ask { placed: 4096, flying: 8192, ..Ask::log(100, growth) });
        let second = ledger.grant(&Ask::log(50, Growth::default()));
        assert_eq!((ledger.log_bytes(), ledger.flying_bytes()), (150, 8192));
        let part = first.split(60, Growth::default());
        assert_eq!((part.log(), first.log(), ledger.log_bytes()), (60, 40, 150));
        ledger.end(part);
        let rest = first.split(60, Growth { entries: 9, bytes: 4 });
        assert_eq!((rest.log(), first.log()), (40, 0));
        ledger.end(rest);
        assert_eq!((ledger.log_bytes(), ledger.growth()), (50, Growth { entries: 0, bytes: 6 }));
        first.merge(second);
        ledger.end(first);
        assert_eq!(ledger.granted, Grant::default());
    }
}
