//! The next free numbers of a volume, and the bytes of removed content.
//!
//! A number is never given out twice (`state.S13`). Each counter only grows, and passes every
//! number that a record names.
//!
//! No locks: the volume's state lock covers it.

use crate::format::superblock::Superblock;

/// The next numbers that were not given out. A checkpoint stores a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Counters {
    next_ino: u64,
    next_data_id: u64,
    /// The next sequence number of content, for the whole volume.
    next_sequence: u64,
}

impl Counters {
    /// The counters of a new volume.
    pub const FIRST: Self = Self { next_ino: 1, next_data_id: 1, next_sequence: 1 };

    /// The counters that a checkpoint stored.
    pub fn of(superblock: &Superblock) -> Self {
        let Superblock { next_ino, next_data_id, next_sequence, .. } = *superblock;
        Self { next_ino, next_data_id, next_sequence }
    }

    /// Writes the counters to a superblock.
    pub fn store(&self, superblock: &mut Superblock) {
        let Self { next_ino, next_data_id, next_sequence } = *self;
        (superblock.next_ino, superblock.next_data_id) = (next_ino, next_data_id);
        superblock.next_sequence = next_sequence;
    }

    pub fn next_ino(&self) -> u64 {
        self.next_ino
    }

    pub fn next_data_id(&self) -> u64 {
        self.next_data_id
    }

    pub fn next_sequence(&self) -> u64 {
        self.next_sequence
    }

    /// The last sequence number that was given out.
    pub fn last_sequence(&self) -> u64 {
        self.next_sequence - 1
    }

    /// Gives out a sequence number.
    pub fn draw_sequence(&mut self) -> u64 {
        self.next_sequence = self.next_sequence.saturating_add(1);
        self.next_sequence - 1
    }

    /// Skips sequence numbers that may have been given out without a record before the volume was
    /// opened.
    pub fn skip_sequences(&mut self, count: u64) {
        self.next_sequence = self.next_sequence.saturating_add(count);
    }

    /// Notes an inode number that a record names (S13).
    pub fn note_ino(&mut self, ino: u64) {
        self.next_ino = self.next_ino.max(ino.saturating_add(1));
    }

    /// Notes a data id that a record names.
    pub fn note_data_id(&mut self, data_id: u64) {
        self.next_data_id = self.next_data_id.max(data_id.saturating_add(1));
    }

    /// Notes a sequence number that a record names.
    pub fn note_sequence(&mut self, sequence: u64) {
        self.next_sequence = self.next_sequence.max(sequence.saturating_add(1));
    }

    /// An injected fault: restarts the inode numbers, so that numbers are given out twice.
    pub fn restart_inos(&mut self, next_ino: u64) {
        self.next_ino = next_ino;
    }
}

/// The approximate bytes of content that were removed since the volume was opened.
#[derive(Debug, Default)]
pub(crate) struct RemovedBytes {
    total: u64,
    /// Of these, the bytes that two checkpoints have made free.
    free: u64,
}

impl RemovedBytes {
    pub fn add(&mut self, bytes: u64) {
        self.total = self.total.saturating_add(bytes);
    }

    /// All bytes that were removed.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// The removed bytes that are not free yet, without the first `ignored` bytes.
    pub fn not_free_beyond(&self, ignored: u64) -> u64 {
        self.total.saturating_sub(self.free.max(ignored))
    }

    /// Notes that the first `total` removed bytes are free.
    pub fn note_free(&mut self, total: u64) {
        self.free = self.free.max(total);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// S13: a counter passes every number that a record names, and never goes back.
    #[test]
    fn counters_only_grow_past_named_numbers() {
        let mut counters = Counters::FIRST;
        counters.note_ino(7);
        counters.note_ino(3);
        counters.note_data_id(9);
        counters.note_sequence(20);
        assert_eq!((counters.next_ino(), counters.next_data_id()), (8, 10));
        assert_eq!((counters.draw_sequence(), counters.last_sequence()), (21, 21));
        counters.note_ino(u64::MAX);
        assert_eq!(counters.next_ino(), u64::MAX, "no overflow");
    }

    #[test]
    fn removed_bytes_are_free_from_the_first_on() {
        let mut removed = RemovedBytes::default();
        removed.add(100);
        removed.note_free(60);
        removed.note_free(40);
        removed.add(10);
        assert_eq!(removed.total(), 110);
        assert_eq!((removed.not_free_beyond(0), removed.not_free_beyond(90)), (50, 20));
    }
}
