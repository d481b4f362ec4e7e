//! Counters of a server, and the account of memory in use.
//!
//! Invariants:
//! 1. Only its loop's thread writes a [`LoopStats`], so an increment is a plain load and store.
//! 2. `Memory::used` is the sum of the memory charged for all connections, and for requests whose
//!    connections are closed.

use crate::config::{DropReason, ServerConfig};
use crate::proto::Command;
use forebay_base::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Number of command kinds that are counted separately.
pub const KINDS: usize = 7;

const _: () =
    assert!(DropReason::ALL[DropReason::ALL.len() - 1] as usize + 1 == DropReason::ALL.len());

/// Counters of one loop.
#[derive(Default)]
pub(crate) struct LoopStats {
    pub requests: [AtomicU64; KINDS],
    pub bytes_read: AtomicU64,
    pub bytes_written: AtomicU64,
    pub errors: AtomicU64,
    pub late: AtomicU64,
    pub turns: AtomicU64,
    pub sleeps: AtomicU64,
    pub poll_hits: AtomicU64,
    pub poll_misses: AtomicU64,
    pub poll_nanos: AtomicU64,
    pub pool_bytes: AtomicU64,
    pub receives: AtomicU64,
    pub sends: AtomicU64,
    pub accepted: AtomicU64,
    pub dropped: [AtomicU64; DropReason::ALL.len()],
}

/// Adds to a counter that only this thread writes (invariant 1).
#[inline]
pub(crate) fn bump(counter: &AtomicU64, by: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(by), Ordering::Relaxed);
}

/// A server's counters at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stats {
    /// Connections now, handshakes included.
    pub connections: usize,
    /// Connections accepted so far.
    pub accepted: u64,
    /// Requests by command code: read, write, disconnect, flush, trim, cache, write zeroes. Block
    /// status and unknown commands are counted with write zeroes.
    pub requests: [u64; KINDS],
    /// Bytes sent in replies to reads.
    pub bytes_read: u64,
    /// Bytes received in writes.
    pub bytes_written: u64,
    /// Requests answered with an error.
    pub errors: u64,
    /// Requests that could not be answered at once.
    pub late: u64,
    /// Turns of the event loops.
    pub turns: u64,
    /// Turns that began with a sleep.
    pub sleeps: u64,
    /// Polls before a sleep that found work.
    pub poll_hits: u64,
    /// Polls before a sleep that found no work.
    pub poll_misses: u64,
    /// CPU time of polling, nanoseconds.
    pub poll_nanos: u64,
    /// System calls that received.
    pub receives: u64,
    /// System calls that sent.
    pub sends: u64,
    /// Clients dropped, by reason; only reasons that occurred.
    pub dropped: Vec<(DropReason, u64)>,
    /// Memory in use for requests and replies, bytes.
    pub memory_used: usize,
    /// Maximum of `memory_used`, bytes.
    pub memory_peak: usize,
}

impl Stats {
    /// The number of clients that were dropped for `reason`.
    pub fn dropped_for(&self, reason: DropReason) -> u64 {
        self.dropped.iter().find(|(r, _)| *r == reason).map_or(0, |(_, n)| *n)
    }

    pub(crate) fn gather<'a>(loops: impl Iterator<Item = &'a LoopStats>) -> Self {
        let get = |c: &AtomicU64| c.load(Ordering::Relaxed);
        let (mut all, mut dropped) = (Self::default(), [0; DropReason::ALL.len()]);
        for one in loops {
            for (sum, c) in all.requests.iter_mut().zip(&one.requests) {
                *sum += get(c);
            }
            for (sum, c) in dropped.iter_mut().zip(&one.dropped) {
                *sum += get(c);
            }
            all.accepted += get(&one.accepted);
            all.bytes_read += get(&one.bytes_read);
            all.bytes_written += get(&one.bytes_written);
            all.errors += get(&one.errors);
            all.late += get(&one.late);
            all.turns += get(&one.turns);
            all.sleeps += get(&one.sleeps);
            all.poll_hits += get(&one.poll_hits);
            all.poll_misses += get(&one.poll_misses);
            all.poll_nanos += get(&one.poll_nanos);
            all.receives += get(&one.receives);
            all.sends += get(&one.sends);
        }
        all.dropped = DropReason::ALL.into_iter().zip(dropped).filter(|(_, n)| *n > 0).collect();
        all
    }
}

/// Index of a command among the counters.
pub(crate) fn kind(command: Command) -> usize {
    usize::from(command.code()).min(KINDS - 1)
}

/// Whether memory may be charged for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Yes,
    /// This client uses too much memory.
    ClientFull,
    /// All clients together use too much memory.
    ServerFull,
}

/// The account of memory of all connections, bytes.
pub(crate) struct Memory {
    used: AtomicUsize,
    peak: AtomicUsize,
    /// Memory of received bytes that wait to be parsed.
    pub buffered: AtomicUsize,
    /// Number of connections that wait for the server's memory.
    pub waiting: AtomicUsize,
    client_max: usize,
    total_max: AtomicUsize,
    clients: usize,
}

impl Memory {
    pub fn new(config: &ServerConfig) -> Self {
        Self {
            used: AtomicUsize::new(0),
            peak: AtomicUsize::new(0),
            buffered: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
            client_max: config.client_memory,
            total_max: AtomicUsize::new(config.total_memory),
            clients: config.clients_max,
        }
    }

    /// Sets the total over all clients, bytes. Requests in flight are not affected.
    pub fn set_total(&self, bytes: usize) {
        self.total_max.store(bytes, Ordering::SeqCst);
    }

    /// The total over all clients, bytes.
    pub fn total(&self) -> usize {
        self.total_max.load(Ordering::SeqCst)
    }

    /// Memory that each client may use regardless of the others, bytes.
    pub fn fair_share(&self) -> usize {
        self.total() / 2 / self.clients
    }

    /// Whether a client that uses `used` bytes may use `cost` more. `waited`: it already waits.
    #[inline]
    pub fn admits(&self, used: usize, cost: usize, waited: bool) -> Verdict {
        if used > 0 && used + cost > self.client_max {
            return Verdict::ClientFull;
        }
        let (others, total_max) = (self.used.load(Ordering::Relaxed), self.total());
        let (total, half) = (others + cost, total_max / 2);
        let fair = used + cost <= self.fair_share();
        // The lower half is for all clients, but if some wait for memory, they take precedence. The
        // upper half is for clients below their fair share.
        let others_wait = !waited && self.waiting.load(Ordering::Relaxed) > 0;
        if total <= half && (fair || !others_wait) {
            return Verdict::Yes;
        }
        // This happens only if the total was lowered after the server had announced its request
        // size to this client.
        if cost > half && others <= half {
            return Verdict::Yes;
        }
        if fair && total <= total_max { Verdict::Yes } else { Verdict::ServerFull }
    }

    pub fn charge(&self, bytes: usize) {
        let now = self.used.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if now > self.peak.load(Ordering::Relaxed) {
            self.peak.fetch_max(now, Ordering::Relaxed);
        }
    }

    pub fn release(&self, bytes: usize) {
        let before = self.used.fetch_sub(bytes, Ordering::Relaxed);
        debug_assert!(before >= bytes, "released more memory than was charged");
    }

    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    pub fn peak(&self) -> usize {
        self.peak.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hoarders_leave_room_for_others() {
        let config = ServerConfig {
            clients_max: 8,
            client_memory: 4 << 20,
            total_memory: 16 << 20,
            ..Default::default()
        };
        let memory = Memory::new(&config);
        assert_eq!(memory.admits(4 << 20, 1, false), Verdict::ClientFull);
        memory.charge(8 << 20);
        assert_eq!(memory.admits(3 << 20, 1, false), Verdict::ServerFull);
        assert_eq!(memory.admits(0, 1 << 20, false), Verdict::Yes);
        assert_eq!(memory.admits(0, 2 << 20, false), Verdict::ServerFull);
        memory.charge(1);
        assert_eq!(memory.admits(0, 32 << 20, true), Verdict::ServerFull);
        memory.release((4 << 20) + 1);
        memory.waiting.store(1, Ordering::Relaxed);
        assert_eq!(memory.admits(1 << 20, 1 << 20, false), Verdict::ServerFull);
        assert_eq!(memory.admits(1 << 20, 1 << 20, true), Verdict::Yes);
        assert_eq!(memory.peak(), (8 << 20) + 1);
    }

    /// The story: a client with an announced request size of 4 MiB waited for ever when the total
    /// became 4 MiB and other clients were active.
    #[test]
    fn request_larger_than_lowered_total_is_served_alone() {
        let config = ServerConfig { total_memory: 16 << 20, ..Default::default() };
        let memory = Memory::new(&config.normalized());
        memory.set_total(4 << 20);
        memory.charge(1 << 20);
        memory.waiting.store(2, Ordering::Relaxed);
        assert_eq!(memory.admits(0, 4 << 20, true), Verdict::Yes);
        memory.charge(4 << 20);
        assert_eq!(memory.admits(0, 4 << 20, true), Verdict::ServerFull);
        memory.release(4 << 20);
        memory.set_total(16 << 20);
        assert_eq!(memory.admits(0, 4 << 20, true), Verdict::Yes);
    }
}
