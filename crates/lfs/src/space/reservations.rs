//! The reservations of files, with their grants.
//!
//! No locks: the volume's state lock covers it.

use crate::space::Grant;
use crate::space::admission::Growth;
use std::collections::BTreeMap;

/// What one reservation holds until it ends.
pub(crate) struct Reserved {
    /// Log space for its records, the space of its content, and the growth of the tree.
    pub grant: Grant,
    /// The number of failed flushes when the reservation was made.
    pub flush_failures: u64,
    /// The next sequence number at that time, for an injected fault.
    pub sequence: u64,
    /// The segments of its runs, one entry for each run.
    pub segments: Vec<u32>,
}

/// The reservations that have not ended, by their first device offset.
#[derive(Default)]
pub(crate) struct Reservations(BTreeMap<u64, Reserved>);

impl Reservations {
    pub fn insert(&mut self, key: u64, reserved: Reserved) {
        let before = self.0.insert(key, reserved);
        debug_assert!(before.is_none(), "an address belongs to one reservation");
    }

    /// Ends a reservation.
    pub fn remove(&mut self, key: u64) -> Option<Reserved> {
        self.0.remove(&key)
    }

    pub fn get(&self, key: u64) -> Option<&Reserved> {
        self.0.get(&key)
    }

    pub fn contains(&self, key: u64) -> bool {
        self.0.contains_key(&key)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn keys(&self) -> impl Iterator<Item = u64> {
        self.0.keys().copied()
    }

    /// The log space that a reservation still has for its records, bytes.
    pub fn log_bytes(&self, key: u64) -> u64 {
        self.get(key).map_or(0, |reserved| reserved.grant.log())
    }

    /// Takes log space of a reservation for a record (ledger.M18).
    pub fn split(&mut self, key: u64, bytes: u64) -> Grant {
        let reserved = self.0.get_mut(&key);
        reserved.map(|it| it.grant.split(bytes, Growth::default())).unwrap_or_default()
    }
}
