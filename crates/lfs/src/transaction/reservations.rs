//! What the reservations of files hold: log space for their records, and counters that stay until
//! they end.
//!
//! Invariants: M17 the sums are those of all reservations, plus what the cleaner and an attempt to
//! reserve count. M18 a record of a reservation takes log space from its grant first.
//!
//! No locks: the volume's state lock covers it.

use crate::space::admission::Growth;
use std::collections::BTreeMap;

/// What one reservation holds.
pub(crate) struct Grant {
    /// Log space, bytes.
    pub cost: u64,
    /// The number of failed flushes when the reservation was made.
    pub flush_failures: u64,
    /// The next sequence number at that time, for an injected fault.
    pub sequence: u64,
    /// The segments of its runs, one entry for each run.
    pub segments: Vec<u32>,
    /// Accepted content that has its space now, bytes (admission.P21).
    pub bytes: u64,
    /// Bytes at the places of the reservation.
    pub flying_bytes: u64,
    /// The growth of the tree by its records.
    pub growth: Growth,
}

/// The reservations that have not ended, and their sums.
#[derive(Default)]
pub(crate) struct Reservations {
    /// By their first device offset.
    grants: BTreeMap<u64, Grant>,
    accepted_bytes: u64,
    flying_bytes: u64,
    growth: Growth,
}

impl Reservations {
    pub fn insert(&mut self, key: u64, grant: Grant) {
        self.accepted_bytes += grant.bytes;
        self.flying_bytes += grant.flying_bytes;
        self.count_growth(grant.growth);
        let before = self.grants.insert(key, grant);
        debug_assert!(before.is_none(), "M17: an address belongs to one reservation");
    }

    /// Ends a reservation.
    pub fn remove(&mut self, key: u64) -> Option<Grant> {
        let grant = self.grants.remove(&key)?;
        self.accepted_bytes -= grant.bytes;
        self.flying_bytes -= grant.flying_bytes;
        self.uncount_growth(grant.growth);
        Some(grant)
    }

    pub fn get(&self, key: u64) -> Option<&Grant> {
        self.grants.get(&key)
    }

    pub fn contains(&self, key: u64) -> bool {
        self.grants.contains_key(&key)
    }

    pub fn is_empty(&self) -> bool {
        self.grants.is_empty()
    }

    pub fn keys(&self) -> impl Iterator<Item = u64> {
        self.grants.keys().copied()
    }

    /// The log space that a reservation still has for its records, bytes.
    pub fn log_bytes(&self, key: u64) -> u64 {
        self.grants.get(&key).map_or(0, |grant| grant.cost)
    }

    /// Takes log space of a reservation for a record (M18).
    pub fn spend(&mut self, key: u64, bytes: u64) {
        if let Some(grant) = self.grants.get_mut(&key) {
            debug_assert!(grant.cost >= bytes, "M18: the reservation has it");
            grant.cost -= bytes;
        }
    }

    /// Accepted content that has its space, bytes.
    pub fn accepted_bytes(&self) -> u64 {
        self.accepted_bytes
    }

    /// Bytes at the places of all reservations.
    pub fn flying_bytes(&self) -> u64 {
        self.flying_bytes
    }

    /// The growth of the tree by the records of all reservations.
    pub fn growth(&self) -> Growth {
        self.growth
    }

    /// Counts the growth of the tree by the records of the cleaner.
    pub fn count_growth(&mut self, growth: Growth) {
        self.growth.entries += growth.entries;
        self.growth.bytes += growth.bytes;
    }

    /// Undoes [`Self::count_growth`].
    pub fn uncount_growth(&mut self, growth: Growth) {
        self.growth.entries -= growth.entries;
        self.growth.bytes -= growth.bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grant(cost: u64, bytes: u64) -> Grant {
        let growth = Growth { entries: 2, bytes: 10 };
        let (flush_failures, sequence, segments) = (0, 1, Vec::new());
        Grant { cost, flush_failures, sequence, segments, bytes, flying_bytes: bytes, growth }
    }

    /// M17, M18: the sums follow the reservations, and a record takes no more than its grant has.
    #[test]
    fn reservations_sums_follow_their_grants() {
        let mut all = Reservations::default();
        all.insert(10, grant(100, 4096));
        all.insert(20, grant(50, 8192));
        assert_eq!((all.accepted_bytes(), all.flying_bytes()), (12288, 12288));
        assert_eq!(all.growth(), Growth { entries: 4, bytes: 20 });
        all.spend(10, 60);
        assert_eq!((all.log_bytes(10), all.log_bytes(20), all.log_bytes(30)), (40, 50, 0));
        assert_eq!(all.remove(10).map(|grant| grant.cost), Some(40));
        assert!(all.remove(10).is_none() && all.contains(20));
        all.remove(20);
        assert!(all.is_empty());
        assert_eq!((all.accepted_bytes(), all.growth()), (0, Growth::default()));
    }
}
