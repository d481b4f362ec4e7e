//! What reservations of files hold: space of the log for their records, and what is counted with
//! them until they end.
//!
//! Invariants: M17 the sums are those of the reservations, and of what the cleaner and a try to
//! reserve count in addition. M18 a record of a reservation takes log space from its grant first.
//!
//! No locks: the volume's state lock covers it.

use crate::space::admission::Growth;
use std::collections::BTreeMap;

/// What one reservation holds.
pub(crate) struct Grant {
    /// Of the log, bytes.
    pub cost: u64,
    /// Failed flushes known when it was made.
    pub flush_failures: u64,
    /// The next sequence then; for an injected fault.
    pub sequence: u64,
    /// Segments of its runs, one for each.
    pub segments: Vec<u32>,
    /// Accepted content that has its space now, bytes (P21).
    pub bytes: u64,
    /// Of its addresses.
    pub flying_bytes: u64,
    /// What its records add to the tree.
    pub growth: Growth,
}

/// The reservations that have not ended, and their sums.
#[derive(Default)]
pub(crate) struct Reservations {
    /// By their first offset on the device.
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

    /// The reservation ends.
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

    /// Log space that a reservation still has for its records, bytes.
    pub fn log_bytes(&self, key: u64) -> u64 {
        self.grants.get(&key).map_or(0, |grant| grant.cost)
    }

    /// A record takes so much of a reservation's log space (M18).
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

    /// Bytes at the addresses of all reservations.
    pub fn flying_bytes(&self) -> u64 {
        self.flying_bytes
    }

    /// What their records add to the tree.
    pub fn growth(&self) -> Growth {
        self.growth
    }

    /// Counts accepted content of a reservation that is about to be made.
    pub fn count_accepted(&mut self, bytes: u64) {
        self.accepted_bytes += bytes;
    }

    /// The inverse of [`Self::count_accepted`].
    pub fn uncount_accepted(&mut self, bytes: u64) {
        self.accepted_bytes -= bytes;
    }

    /// Counts what the cleaner's records will add to the tree.
    pub fn count_growth(&mut self, growth: Growth) {
        self.growth.entries += growth.entries;
        self.growth.bytes += growth.bytes;
    }

    /// The inverse of [`Self::count_growth`].
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

    /// M17, M18: the sums follow the reservations, and a record takes no more than there is.
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
