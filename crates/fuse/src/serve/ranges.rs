//! Orders overlapping writes of programs to one file.
//!
//! The kernel sends direct writes to one file in parallel, and the cache carries out a write folio
//! by folio. So two overlapping writes could leave a mix. Each `WRITE` takes its range here, and
//! waits for overlapping writes that took theirs earlier.
//!
//! Invariants: L1 of two overlapping ranges only the earlier one is granted. L2 a range waits only
//! for earlier ones, so that no write waits for ever. L3 dropping a write releases its range.
//!
//! Locks: one for each shard, leaves.

use forebay_base::sync::Mutex;
use forebay_base::task::WaitQueue;
use forebay_vfs::Ino;
use std::collections::HashMap;

const SHARDS: usize = 16;

/// One range of a file; the numbers give the order of arrival.
struct Taken {
    number: u64,
    start: u64,
    end: u64,
}

#[derive(Default)]
struct Shard {
    next: u64,
    files: HashMap<u64, Vec<Taken>>,
}

/// Ranges of writes in progress, by inode.
#[derive(Default)]
pub(crate) struct WriteRanges {
    shards: [Mutex<Shard>; SHARDS],
    wait: WaitQueue,
}

/// A queued or granted range; dropping this releases it (L3).
pub(crate) struct WriteRange<'a> {
    ranges: &'a WriteRanges,
    ino: u64,
    number: u64,
}

impl WriteRanges {
    fn shard(&self, ino: u64) -> &Mutex<Shard> {
        &self.shards[ino as usize % SHARDS]
    }

    /// Queues a range after the earlier ones of its file.
    fn take(&self, ino: Ino, start: u64, len: u64) -> WriteRange<'_> {
        let mut shard = self.shard(ino.0).lock();
        shard.next += 1;
        let number = shard.next;
        let taken = Taken { number, start, end: start.saturating_add(len) };
        shard.files.entry(ino.0).or_default().push(taken);
        WriteRange { ranges: self, ino: ino.0, number }
    }

    /// Takes a range if no earlier range overlaps it.
    pub fn try_lock(&self, ino: Ino, start: u64, len: u64) -> Option<WriteRange<'_>> {
        let range = self.take(ino, start, len);
        range.is_granted().then_some(range)
    }

    /// Takes a range, after waiting for earlier overlapping ones.
    pub async fn lock(&self, ino: Ino, start: u64, len: u64) -> WriteRange<'_> {
        let range = self.take(ino, start, len);
        self.wait.wait_until(|| range.is_granted().then_some(())).await;
        range
    }
}

#[cfg(test)]
impl WriteRanges {
    /// Number of ranges of a file after the first one.
    pub fn waiting(&self, ino: Ino) -> usize {
        let shard = self.shard(ino.0).lock();
        shard.files.get(&ino.0).map_or(0, |taken| taken.len().saturating_sub(1))
    }
}

impl WriteRange<'_> {
    /// Whether no earlier range overlaps this one (L1, L2).
    fn is_granted(&self) -> bool {
        let shard = self.ranges.shard(self.ino).lock();
        let taken = &shard.files[&self.ino];
        let at = taken.partition_point(|other| other.number < self.number);
        let own = &taken[at];
        taken[..at].iter().all(|other| other.end <= own.start || own.end <= other.start)
    }
}

impl Drop for WriteRange<'_> {
    fn drop(&mut self) {
        let mut shard = self.ranges.shard(self.ino).lock();
        let Some(taken) = shard.files.get_mut(&self.ino) else { return };
        taken.retain(|other| other.number != self.number);
        let is_last = taken.is_empty();
        if is_last {
            shard.files.remove(&self.ino);
        }
        drop(shard);
        // All waiters are woken: each checks whether its own range is granted now.
        self.ranges.wait.wake_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::{Context, Waker};

    /// L1, L2, L3: overlapping ranges are granted in order, others at once; dropping one lets the
    /// next be granted.
    #[test]
    fn overlapping_ranges_are_granted_in_order() {
        let (ranges, mut cx) = (WriteRanges::default(), Context::from_waker(Waker::noop()));
        let first = ranges.try_lock(Ino(7), 0, 4096).unwrap();
        assert!(ranges.try_lock(Ino(7), 4095, 1).is_none(), "L1");
        assert!(ranges.try_lock(Ino(7), 4096, 1).is_some(), "after its end");
        assert!(ranges.try_lock(Ino(23), 0, 4096).is_some(), "another file of the shard");
        let mut wide = Box::pin(ranges.lock(Ino(7), 0, 1 << 20));
        assert!(wide.as_mut().poll(&mut cx).is_pending());
        assert!(ranges.try_lock(Ino(7), 1 << 19, 1).is_none(), "L2: it would pass the wide one");
        let mut last = Box::pin(ranges.lock(Ino(7), 1 << 19, u64::MAX));
        assert!(last.as_mut().poll(&mut cx).is_pending());
        drop(first);
        assert!(last.as_mut().poll(&mut cx).is_pending() && wide.as_mut().poll(&mut cx).is_ready());
        drop(wide);
        assert!(last.as_mut().poll(&mut cx).is_ready(), "L3");
        drop(last);
        assert!(ranges.shards.iter().all(|shard| shard.lock().files.is_empty()));
    }
}
