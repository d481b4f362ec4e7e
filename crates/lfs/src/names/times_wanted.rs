//! Syncs of a file that want its times recorded. The hold of the state lock that records content of
//! the file records its times, too, or else the commit of the file does.
//!
//! ```text
//!   want ──▶ wanted ──a record has the times──▶ recorded ──a commit of the file ended──▶ durable
//! ```
//! Invariants: S23 the times that a file had when a sync wanted them are in a queued record, or
//! newer ones are, once `recorded` has reached the number of that sync: it is stored after the
//! record is queued (queue.L14), in the same hold of the state lock. They are durable once
//! `durable` has reached it: a commit reads `recorded` before the ticket that it makes durable. A
//! sync that finds neither records its times itself.
//!
//! No locks: atomics. The caller of `note_recorded` holds the state lock.

use forebay_base::sync::atomic::{AtomicU64, Ordering};

/// The syncs of one file that want its times, by number.
#[derive(Debug, Default)]
pub(crate) struct TimesWanted {
    wanted: AtomicU64,
    recorded: AtomicU64,
    durable: AtomicU64,
}

impl TimesWanted {
    /// A sync wants the times that the file has now; returns its number.
    pub fn want(&self) -> u64 {
        self.wanted.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// The last sync that wants times, if no record has them.
    pub fn due(&self) -> Option<u64> {
        let wanted = self.wanted.load(Ordering::Acquire);
        (self.recorded() < wanted).then_some(wanted)
    }

    /// The times of the syncs up to this one are in a queued record.
    pub fn note_recorded(&self, number: u64) {
        self.recorded.fetch_max(number, Ordering::AcqRel);
    }

    /// The last sync whose times are in a queued record.
    pub fn recorded(&self) -> u64 {
        self.recorded.load(Ordering::Acquire)
    }

    /// The times of the syncs up to this one are durable.
    pub fn note_durable(&self, number: u64) {
        self.durable.fetch_max(number, Ordering::AcqRel);
    }

    /// Whether the times of this sync are durable.
    pub fn is_durable(&self, number: u64) -> bool {
        self.durable.load(Ordering::Acquire) >= number
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// S23: times that a sync wants while a record is being made are not taken for recorded.
    #[test]
    fn s23_sync_that_comes_during_a_record_needs_the_next_one() {
        let times = TimesWanted::default();
        assert_eq!(times.due(), None);
        assert_eq!((times.want(), times.want()), (1, 2));
        let number = times.due().expect("two syncs want them");
        let late = times.want();
        times.note_recorded(number);
        assert_eq!((times.recorded(), times.due()), (2, Some(3)), "S23: the third came later");
        assert!(!times.is_durable(2));
        times.note_durable(2);
        assert!(times.is_durable(1) && times.is_durable(2) && !times.is_durable(late));
        times.note_recorded(late);
        times.note_durable(1);
        assert!(times.is_durable(2) && !times.is_durable(3), "an earlier commit ended later");
    }
}
