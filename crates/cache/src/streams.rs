//! The sequential readers that advanced lately, for monitoring.
//!
//! Lock: one, a leaf. A task that records a stream does not wait for the lock.

use forebay_base::sync::Mutex;
use forebay_base::world::Nanos;

/// A sequential reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stream {
    /// Number of the file's mapping.
    pub file: u32,
    /// The reader and its stream: a number that tells them apart.
    pub reader: u64,
    /// End of its latest read, bytes.
    pub position: u64,
    /// How far it reads ahead, bytes.
    pub window: u64,
    /// Its reads leave nothing in the cache.
    pub uncached: bool,
    /// Bytes that it has advanced since it was first recorded.
    pub bytes: u64,
    /// When it was last recorded.
    pub at: Nanos,
}

/// Most streams in the table; a new one replaces the one recorded longest ago.
const STREAMS: usize = 64;

/// The streams that advanced lately. A reader records its stream when it plans readahead, not on
/// each hit.
#[derive(Default)]
pub struct StreamBoard(Mutex<Vec<Stream>>);

impl StreamBoard {
    /// Records a stream's progress; the bytes of `stream` are ignored. Never waits: if another task
    /// is recording, this record is skipped.
    pub fn record(&self, stream: Stream) {
        let Some(mut all) = self.0.try_lock() else { return };
        let same = |s: &Stream| (s.file, s.reader) == (stream.file, stream.reader);
        if let Some(known) = all.iter_mut().find(|s| same(s)) {
            let bytes = known.bytes + stream.position.saturating_sub(known.position);
            *known = Stream { bytes, ..stream };
            return;
        }
        let new = Stream { bytes: 0, ..stream };
        if all.len() < STREAMS {
            all.push(new);
        } else if let Some(oldest) = all.iter_mut().min_by_key(|s| s.at) {
            *oldest = new;
        }
    }

    /// The streams recorded at or after `at`.
    pub fn since(&self, at: Nanos) -> Vec<Stream> {
        self.0.lock().iter().filter(|s| s.at >= at).copied().collect()
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    /// A stream that is new, the same one later, and more streams than the table holds.
    #[test]
    fn streams_are_told_apart_and_bounded() {
        let board = StreamBoard::default();
        let stream = |file, position, at| Stream {
            file,
            reader: 1,
            position,
            window: 1 << 20,
            uncached: true,
            bytes: 7,
            at,
        };
        board.record(stream(1, 4096, 1));
        board.record(stream(1, 8192, 2));
        let known = board.since(0);
        assert_eq!((known.len(), known[0].bytes, known[0].position), (1, 4096, 8192));
        (2..200).for_each(|n| board.record(stream(n, 0, u64::from(n))));
        assert_eq!(board.since(0).len(), STREAMS);
        assert!(board.since(0).iter().all(|s| s.at >= 136), "the oldest go first");
        assert_eq!(board.since(199).len(), 1);
    }
}
