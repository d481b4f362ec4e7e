//! The next free numbers of a volume.
//!
//! A number is never given out twice (`state.S13`). Each counter only grows, and passes every
//! number that a record names.
//!
//! No locks: the volume's state lock covers it.

use crate::format::change::Change;
use crate::format::superblock::Superblock;
use crate::format::{COUNT_MAX, MAX_DATA_ID, corrupt};
use forebay_base::Result;
use forebay_base::sync::Arc;
use forebay_base::sync::atomic::{AtomicU64, Ordering};

/// The volume-wide sequence of content. Clones share it, so that a writer draws from it without the
/// state lock.
#[derive(Debug, Clone)]
pub(crate) struct Sequence(Arc<AtomicU64>);

impl Sequence {
    fn new(next: u64) -> Self {
        Self(Arc::new(AtomicU64::new(next)))
    }

    fn next(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    fn skip(&self, count: u64) -> u64 {
        let add = |next: u64| Some(next.saturating_add(count));
        let before = self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, add);
        before.unwrap_or_else(|next| next)
    }

    /// Gives out a sequence.
    pub fn draw(&self) -> u64 {
        self.skip(1)
    }
}

/// Numbers that were not given out. A snapshot is what a checkpoint stores.
#[derive(Debug)]
pub(crate) struct Counters {
    next_ino: u64,
    next_data_id: u64,
    sequence: Sequence,
}

impl Counters {
    /// Of a new volume.
    pub fn first() -> Self {
        Self { next_ino: 1, next_data_id: 1, sequence: Sequence::new(1) }
    }

    /// The counters that a checkpoint stored.
    pub fn of(superblock: &Superblock) -> Self {
        let Superblock { next_ino, next_data_id, next_sequence, .. } = *superblock;
        Self { next_ino, next_data_id, sequence: Sequence::new(next_sequence) }
    }

    /// Writes the counters to a superblock.
    pub fn store(&self, superblock: &mut Superblock) {
        (superblock.next_ino, superblock.next_data_id) = (self.next_ino, self.next_data_id);
        superblock.next_sequence = self.next_sequence();
    }

    /// What a checkpoint stores: later draws do not change it.
    pub fn snapshot(&self) -> Self {
        let Self { next_ino, next_data_id, .. } = *self;
        Self { next_ino, next_data_id, sequence: Sequence::new(self.next_sequence()) }
    }

    /// The sequence, for a writer that draws without the state lock.
    pub fn sequence(&self) -> Sequence {
        self.sequence.clone()
    }

    pub fn next_ino(&self) -> u64 {
        self.next_ino
    }

    pub fn next_data_id(&self) -> u64 {
        self.next_data_id
    }

    pub fn next_sequence(&self) -> u64 {
        self.sequence.next()
    }

    /// The last sequence number that was given out.
    pub fn last_sequence(&self) -> u64 {
        self.next_sequence() - 1
    }

    /// Gives out a sequence number.
    pub fn draw_sequence(&mut self) -> u64 {
        self.sequence.draw()
    }

    /// Skips sequence numbers that may have been given out without a record before the volume was
    /// opened.
    pub fn skip_sequences(&mut self, count: u64) {
        self.sequence.skip(count);
    }

    /// Notes the numbers that a change names (state.S13).
    pub fn note(&mut self, change: &Change<'_>) {
        match change {
            Change::CreateInode(ino, inode, _) => {
                self.note_ino(*ino);
                self.note_data_id(inode.data_id);
            }
            Change::Map(_, _, extent) => self.note_sequence(extent.birth),
            Change::Punch(_, sequence) | Change::RemoveInode(_, _, sequence) => {
                self.note_sequence(*sequence);
            }
            Change::Grow(size) | Change::Truncate(size) => self.note_sequence(size.sequence),
            Change::ReplaceData(size, _) => {
                self.note_sequence(size.sequence);
                self.note_data_id(size.data_id);
            }
            _ => {}
        }
    }

    /// Refuses numbers that a slot cannot hold. A checkpoint would write a slot that every later
    /// opening refuses.
    pub fn check(&self) -> Result<()> {
        let count = self.next_ino.max(self.next_sequence());
        match count > COUNT_MAX || self.next_data_id > MAX_DATA_ID {
            true => Err(corrupt("log", "a record has a number that is out of range")),
            false => Ok(()),
        }
    }

    /// Notes an inode number that a record names (state.S13).
    fn note_ino(&mut self, ino: u64) {
        self.next_ino = self.next_ino.max(ino.saturating_add(1));
    }

    /// Notes a data id that a record names.
    fn note_data_id(&mut self, data_id: u64) {
        self.next_data_id = self.next_data_id.max(data_id.saturating_add(1));
    }

    /// Notes a sequence number that a record names.
    fn note_sequence(&mut self, sequence: u64) {
        self.sequence.0.fetch_max(sequence.saturating_add(1), Ordering::AcqRel);
    }

    /// An injected fault: restarts the inode numbers, so that numbers are given out twice.
    pub fn restart_inos(&mut self, next_ino: u64) {
        self.next_ino = next_ino;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// state.S13: a counter passes every number that a record names, and never goes back.
    #[test]
    fn counters_only_grow_past_named_numbers() {
        let mut counters = Counters::first();
        counters.note_ino(7);
        counters.note_ino(3);
        counters.note_data_id(9);
        counters.note_sequence(20);
        assert_eq!((counters.next_ino(), counters.next_data_id()), (8, 10));
        assert_eq!((counters.draw_sequence(), counters.last_sequence()), (21, 21));
        let stored = counters.snapshot();
        assert_eq!(counters.sequence().draw(), 22, "a writer draws from the same sequence");
        assert_eq!((stored.next_sequence(), counters.next_sequence()), (22, 23));
        counters.note_ino(u64::MAX);
        assert_eq!(counters.next_ino(), u64::MAX, "no overflow");
    }
}
