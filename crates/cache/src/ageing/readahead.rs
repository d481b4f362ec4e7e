//! Readahead: the streams of one reader, and how far ahead of each to read.
//!
//! A stream is (file, position). A read is sequential if it begins within the window of a stream,
//! or where its last read ended; so is a read at offset 0, unless it is uncached. The window starts
//! at 128 KiB or four requests, whichever is larger, and doubles up to `readahead_max`; it is
//! topped up when half of it or less is left.

use forebay_base::sync::Mutex;
use forebay_base::sync::atomic::{AtomicU64, Ordering};
use forebay_base::units::KIB;
use std::ops::Range;

const STREAMS: usize = 8;
const FIRST_WINDOW: u64 = 128 * KIB;

#[derive(Debug, Clone, Copy, Default)]
struct Stream {
    /// Where the next read of the stream begins.
    next: u64,
    /// Uncached: the reader has read all bytes up to here. Between here and `next` it may have
    /// skipped some.
    low: u64,
    /// End of the requested readahead.
    ahead: u64,
    window: u64,
    used: u64,
    uncached: bool,
}

#[derive(Default)]
struct Inner {
    /// At most [`STREAMS`]; no memory before the first read.
    streams: Vec<Stream>,
    clock: u64,
}

impl Inner {
    /// A place for another stream, and the stream that it replaces: none while there is free space,
    /// else the least recently used one.
    fn place(&mut self) -> (usize, Stream) {
        if self.streams.len() < STREAMS {
            self.streams.reserve_exact(1);
            self.streams.push(Stream::default());
        }
        let at =
            (0..self.streams.len()).min_by_key(|&i| self.streams[i].used).expect("one at least");
        (at, self.streams[at])
    }
}

/// What to do for a read.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Plan {
    /// Read this ahead (may be empty).
    pub ahead: Range<u64>,
    /// Drop this: it was read ahead, uncached, and its stream has skipped it or was replaced.
    pub abandoned: Range<u64>,
    /// If the read is of a sequential stream: its number among the reader's, and its window in
    /// bytes.
    pub stream: Option<(usize, u64)>,
}

/// The streams of one open file.
pub struct Streams {
    inner: Mutex<Inner>,
    /// Next offset of the latest stream; the hit path reads it without the lock.
    next: AtomicU64,
    /// A read of the latest stream that ends here or beyond calls for a plan.
    trigger: AtomicU64,
}

impl Default for Streams {
    fn default() -> Self {
        Self {
            inner: Mutex::default(),
            next: AtomicU64::new(u64::MAX),
            trigger: AtomicU64::new(u64::MAX),
        }
    }
}

impl Streams {
    /// A hit on `offset..end`. Returns whether the caller should call [`Streams::plan`], because
    /// the stream's window is to be topped up. Costs a load for a random reader.
    #[inline]
    pub fn hit(&self, offset: u64, end: u64) -> bool {
        if self.next.load(Ordering::Relaxed) != offset {
            return false;
        }
        self.next.store(end, Ordering::Relaxed);
        end >= self.trigger.load(Ordering::Relaxed)
    }

    /// Whether a read at `offset` continues the latest stream.
    #[inline]
    pub fn continues(&self, offset: u64) -> bool {
        self.next.load(Ordering::Relaxed) == offset
    }

    /// A read of `offset..end`: finds its stream, moves it on. `max` is the longest window in
    /// bytes, `eof` the end of file.
    pub fn plan(&self, offset: u64, end: u64, max: u64, eof: u64, uncached: bool) -> Plan {
        let mut inner = self.inner.lock();
        inner.clock += 1;
        let clock = inner.clock;
        // Reads inside the window belong to the stream too: hits do not update its entry.
        let mine = |s: &Stream| s.used != 0 && offset >= s.low && offset <= s.ahead.max(s.next);
        let mut plan = Plan::default();
        let at = match inner.streams.iter().position(mine) {
            Some(at) => at,
            None => {
                let (at, old) = inner.place();
                if old.uncached {
                    plan.abandoned = old.low..old.ahead.max(old.low);
                }
                inner.streams[at] = Stream { next: u64::MAX, uncached, ..Stream::default() };
                at
            }
        };
        let stream = &mut inner.streams[at];
        // A reader that starts at offset 0 counts as sequential at once, except for uncached
        // streams, which would have to drop unused readahead again.
        let sequential = stream.next != u64::MAX || (offset == 0 && !uncached);
        stream.used = clock;
        let reach = if stream.next == u64::MAX { end } else { end.max(stream.next) };
        stream.next = reach;
        if !stream.uncached || !sequential || offset <= stream.low {
            stream.low = end.max(if sequential { stream.low } else { 0 });
        } else if offset - stream.low > 2 * stream.window.max(FIRST_WINDOW) {
            // Too far ahead to be reads out of order: the bytes between are skipped for good.
            plan.abandoned = stream.low..offset;
            stream.low = end;
        }
        let end = reach;
        if sequential {
            if stream.window == 0 {
                stream.window = FIRST_WINDOW.max(4 * (end.saturating_sub(offset))).min(max);
                stream.ahead = end;
            }
            let left = stream.ahead.saturating_sub(end);
            if left <= stream.window / 2 {
                let from = stream.ahead.max(end);
                let to = (end + stream.window).min(eof);
                if from < to {
                    plan.ahead = from..to;
                    stream.ahead = to;
                }
                stream.window = (stream.window * 2).min(max);
            }
            plan.stream = Some((at, stream.window));
        }
        self.next.store(end, Ordering::Relaxed);
        let trigger = stream.ahead.saturating_sub(stream.window / 2);
        self.trigger.store(if sequential { trigger } else { end + 1 }, Ordering::Relaxed);
        plan
    }

    /// Whether an uncached stream still waits for this range; if not, the task that read it ahead
    /// drops it.
    pub fn wants(&self, ahead: &Range<u64>) -> bool {
        let inner = self.inner.lock();
        let covers = |s: &Stream| s.uncached && s.low <= ahead.start && ahead.end <= s.ahead;
        inner.streams.iter().any(covers)
    }

    /// The ranges that uncached streams have read ahead and not consumed, for the close of the
    /// file.
    pub fn abandon(&self) -> Vec<Range<u64>> {
        let mut inner = self.inner.lock();
        let streams = std::mem::take(&mut inner.streams);
        let unread = |s: &Stream| s.uncached.then_some(s.low..s.ahead);
        streams.iter().filter_map(unread).filter(|r| !r.is_empty()).collect()
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    const MAX: u64 = 2 << 20;
    const EOF: u64 = 1 << 30;

    #[test]
    fn random_reads_get_none() {
        let streams = Streams::default();
        for i in 1..100u64 {
            let at = i * 7919 * 4096 % EOF;
            assert!(!streams.hit(at, at + 4096), "a random reader asks for no plan");
            assert!(streams.plan(at, at + 4096, MAX, EOF, false).ahead.is_empty(), "{at}");
        }
    }

    #[test]
    fn stream_windows_grow_without_gaps() {
        let streams = Streams::default();
        let (mut covered, mut longest) = (0, 0);
        for i in 0..2000u64 {
            let (at, end) = (i * 16384, (i + 1) * 16384);
            let asked = if i == 0 || streams.hit(at, end) {
                streams.plan(at, end, MAX, EOF, false).ahead
            } else {
                0..0
            };
            if !asked.is_empty() {
                assert!(asked.start == covered.max(end), "gap at {asked:?} {covered}");
                longest = longest.max(asked.end - asked.start);
                covered = asked.end;
            }
            assert!(covered >= end);
        }
        assert!((MAX / 2..=MAX).contains(&longest), "{longest}");
    }

    #[test]
    fn interleaved_streams_both_get_windows() {
        let streams = Streams::default();
        let mut ahead = [0u64; 2];
        for i in 0..64u64 {
            for (s, base) in [1u64 << 20, 1 << 28].into_iter().enumerate() {
                let at = base + i * 65536;
                let plan = streams.plan(at, at + 65536, MAX, EOF, false);
                ahead[s] += plan.ahead.end - plan.ahead.start;
            }
        }
        assert!(ahead[0] > 64 * 65536 && ahead[1] > 64 * 65536, "{ahead:?}");
    }

    #[test]
    fn u2_skipped_read_ahead_is_reported_abandoned() {
        let streams = Streams::default();
        streams.plan(0, 65536, MAX, EOF, true);
        let first = streams.plan(65536, 131072, MAX, EOF, true).ahead;
        assert!(first.start == 131072 && streams.wants(&first));
        // 131072..196608 is skipped, then taken late: it is of the same stream.
        streams.plan(196608, 262144, MAX, EOF, true);
        assert!(streams.plan(131072, 196608, MAX, EOF, true).abandoned.is_empty());
        // The reader skips 262144..327680 for good.
        streams.plan(262144 + 65536, 262144 + 131072, MAX, EOF, true);
        let left = streams.abandon();
        assert!(left.iter().any(|r| r.start <= 262144 && r.end >= 262144 + 65536), "{left:?}");
        assert!(!streams.wants(&first));
    }

    #[test]
    fn u2_abandoned_uncached_window_is_reported() {
        let streams = Streams::default();
        assert!(streams.plan(0, 131072, MAX, EOF, true).ahead.is_empty());
        let first = streams.plan(131072, 262144, MAX, EOF, true).ahead;
        assert!(!first.is_empty());
        let mut named = Vec::new();
        for i in 1..=8u64 {
            let at = i * 100_000_000 / 4096 * 4096;
            named.push(streams.plan(at, at + 4096, MAX, EOF, true).abandoned);
        }
        assert!(named.contains(&(262144..first.end)), "{named:?}");
        assert!(streams.abandon().is_empty());
    }
}
