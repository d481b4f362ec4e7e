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

const SHARDS: usize = 16;

/// One range of a file; the numbers give the order of arrival.
struct Taken {
    ino: u64,
    number: u64,
    start: u64,
    end: u64,
}

#[derive(Default)]
struct Shard {
    next: u64,
    /// In order of arrival. It is short, because each entry belongs to a request of the kernel.
    taken: Vec<Taken>,
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

impl Shard {
    /// Position of the range with this number.
    fn position(&self, number: u64) -> usize {
        self.taken.partition_point(|other| other.number < number)
    }

    /// Whether no earlier range of the file overlaps the one at this position (L1, L2).
    fn is_granted(&self, at: usize) -> bool {
        let own = &self.taken[at];
        let is_apart = |other: &Taken| {
            other.ino != own.ino || other.end <= own.start || own.end <= other.start
        };
        self.taken[..at].iter().all(is_apart)
    }
}

impl WriteRanges {
    fn shard(&self, ino: u64) -> &Mutex<Shard> {
        &self.shards[ino as usize % SHARDS]
    }

    /// Queues a range after the earlier ones of its file. True: it is granted at once.
    fn take(&self, ino: Ino, start: u64, len: u64) -> (WriteRange<'_>, bool) {
        let mut shard = self.shard(ino.0).lock();
        shard.next += 1;
        let number = shard.next;
        shard.taken.push(Taken { ino: ino.0, number, start, end: start.saturating_add(len) });
        let is_granted = shard.is_granted(shard.taken.len() - 1);
        (WriteRange { ranges: self, ino: ino.0, number }, is_granted)
    }

    /// Takes a range if no earlier range overlaps it.
    pub fn try_lock(&self, ino: Ino, start: u64, len: u64) -> Option<WriteRange<'_>> {
        let (range, is_granted) = self.take(ino, start, len);
        is_granted.then_some(range)
    }

    /// Takes a range, after waiting for earlier overlapping ones.
    pub async fn lock(&self, ino: Ino, start: u64, len: u64) -> WriteRange<'_> {
        let (range, is_granted) = self.take(ino, start, len);
        if !is_granted {
            self.wait.wait_until(|| range.is_granted().then_some(())).await;
        }
        range
    }
}

#[cfg(test)]
impl WriteRanges {
    /// Number of ranges of a file after the first one.
    pub fn waiting(&self, ino: Ino) -> usize {
        let shard = self.shard(ino.0).lock();
        shard.taken.iter().filter(|taken| taken.ino == ino.0).count().saturating_sub(1)
    }
}

impl WriteRange<'_> {
    fn is_granted(&self) -> bool {
        let shard = self.ranges.shard(self.ino).lock();
        shard.is_granted(shard.position(self.number))
    }
}

impl Drop for WriteRange<'_> {
    fn drop(&mut self) {
        let mut shard = self.ranges.shard(self.ino).lock();
        let at = shard.position(self.number);
        shard.taken.remove(at);
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
        assert!(ranges.shards.iter().all(|shard| shard.lock().taken.is_empty()));
    }
}
