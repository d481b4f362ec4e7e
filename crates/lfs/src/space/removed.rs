//! The bytes of removed content.
//!
//! No locks: the volume's state lock covers it.

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
