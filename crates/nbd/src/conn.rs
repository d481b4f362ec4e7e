//! One connection: its socket, its protocol state, and its account of memory.
//!
//! Invariants:
//! 1. `Book::charged` is the part of the server's memory that this connection uses: chunks of
//!    replies, data to be sent, payloads being received, and `in_tasks` for requests in progress.
//! 2. `receive_buffer` holds received bytes that were not consumed: a partial message, or complete
//!    requests while the connection is blocked. Then the socket is not read. This memory is counted
//!    separately (`Memory::buffered`), so that it never takes memory from requests.
//! 3. A connection with nothing charged is never blocked because of its own memory.

use crate::config::DropReason;
use crate::exec::Key;
use crate::handshake::Handshake;
use crate::out::OutQueue;
use crate::receive_buffer::ReceiveBuffer;
use crate::request_class::RequestClasses;
use crate::stats::Verdict;
use crate::stream::Stream;
use crate::transmission::Transmission;
use forebay_base::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use forebay_vfs::Export;
use rustix::event::epoll::EventFlags;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Phase of a connection.
pub(crate) enum Phase {
    Handshake(Handshake),
    Live(Box<Transmission>),
}

/// The memory that a connection uses, and its outstanding requests.
pub(crate) struct Book {
    pub key: Key,
    pub out: OutQueue,
    /// Bytes charged to this connection (invariant 1).
    pub charged: usize,
    /// The part of `charged` that belongs to requests in progress.
    pub in_tasks: usize,
    /// Number of requests in progress.
    pub inflight: u32,
    /// Requests with few bytes and much work, by class.
    pub classes: RequestClasses,
    /// Why the next received request must not start.
    pub blocked: Option<Verdict>,
    /// The connection is in the loop's list of connections to settle.
    pub dirty: bool,
    /// The export, set when the handshake has ended.
    pub export: Option<Arc<dyn Export>>,
}

impl Book {
    pub fn new() -> Self {
        Self {
            key: (0, 0),
            out: OutQueue::default(),
            charged: 0,
            in_tasks: 0,
            inflight: 0,
            classes: RequestClasses::default(),
            blocked: None,
            dirty: false,
            export: None,
        }
    }

    /// The export of a connection whose handshake has ended.
    pub fn export(&self) -> Arc<dyn Export> {
        self.export.clone().expect("set where transmission begins")
    }
}

/// State of a connection that all loops can access.
pub(crate) struct Life {
    /// The loop that has the connection, or to which it moves.
    pub at: AtomicUsize,
    /// Time at which bytes moved last, in milliseconds from the server's start; [`Life::BUSY`]
    /// while the connection is not idle.
    pub idle_since: AtomicU64,
    /// The connection is not counted any more: it is closed, or about to be.
    pub gone: AtomicBool,
}

impl Life {
    /// A request is in progress, or the handshake has not ended.
    pub const BUSY: u64 = u64::MAX;

    /// A connection on loop `at`.
    pub fn new(at: usize) -> Arc<Self> {
        let (at, idle_since) = (AtomicUsize::new(at), AtomicU64::new(Self::BUSY));
        Arc::new(Self { at, idle_since, gone: AtomicBool::new(false) })
    }

    /// Removes the connection from the count. False: it was removed before.
    pub fn leave(&self) -> bool {
        !self.gone.swap(true, Ordering::SeqCst)
    }
}

/// Measures the rate at which a peer does its part, such as taking replies.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    since: Option<Instant>,
    moved: u64,
    /// The peer was too slow in the last complete period.
    pub slow: bool,
}

impl Pace {
    /// Counts bytes that were sent or received.
    pub fn count(&mut self, bytes: usize) {
        self.moved += bytes as u64;
    }

    /// Checks the progress of a period. `is_outstanding`: there is work that only the peer can end.
    pub fn look(&mut self, is_outstanding: bool, now: Instant, period: Duration, rate_min: u64) {
        if !is_outstanding {
            *self = Self::default();
            return;
        }
        let Some(since) = self.since else {
            (self.since, self.moved) = (Some(now), 0);
            return;
        };
        let passed = now.saturating_duration_since(since);
        if passed >= period {
            self.slow = u128::from(self.moved) * 1000 < u128::from(rate_min) * passed.as_millis();
            (self.since, self.moved) = (Some(now), 0);
        }
    }
}

/// One client: its socket, its received bytes, its requests and replies.
pub(crate) struct Conn {
    pub stream: Stream,
    /// TLS begins when everything before it has been sent; buffered bytes belong to it.
    pub starting_tls: bool,
    /// For the log.
    pub label: String,
    pub phase: Phase,
    pub receive_buffer: ReceiveBuffer,
    /// Bytes of the receive buffer that are counted in the server's memory.
    pub buffered_counted: usize,
    pub book: Book,
    /// Time of accept.
    pub since: Instant,
    /// Further requests are accepted. False after DISC, end of file, or stop.
    pub reading: bool,
    /// If set, the connection is closed when it is settled; the inner value is the reason.
    pub doom: Option<Option<DropReason>>,
    /// Set while the socket takes no more bytes, to the time since when it takes none.
    pub send_full: Option<Instant>,
    pub life: Arc<Life>,
    /// Time at which bytes moved last.
    pub moved_at: Instant,
    /// Rate at which the peer sends the rest of a write, and at which it takes replies.
    pub sending: Pace,
    pub taking: Pace,
    /// The events registered with epoll.
    pub interest: EventFlags,
}

impl Conn {
    pub fn is_handshaking(&self) -> bool {
        matches!(self.phase, Phase::Handshake(_))
    }

    /// Whether its socket should be read now.
    pub fn wants_input(&self) -> bool {
        self.reading && self.book.blocked.is_none() && self.doom.is_none() && !self.starting_tls
    }

    /// Measures the peer's rates, and updates the time of its last bytes.
    pub fn look(&mut self, start: Instant, now: Instant, period: Duration, rate_min: u64) {
        let half = matches!(&self.phase, Phase::Live(live) if live.is_mid_request());
        self.sending.look(half && self.wants_input(), now, period, rate_min);
        self.taking.look(self.send_full.is_some(), now, period, rate_min);
        let idle = self.book.inflight == 0 && !self.is_handshaking();
        let at = self.moved_at.saturating_duration_since(start).as_millis() as u64;
        self.life.idle_since.store(if idle { at } else { Life::BUSY }, Ordering::Relaxed);
    }

    /// Whether nothing more will arrive and all replies are sent.
    pub fn is_finished(&self) -> bool {
        !self.reading
            && self.book.inflight == 0
            && self.book.out.is_empty()
            && !self.stream.wants_send()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pace_is_judged_over_whole_periods() {
        let (start, period) = (Instant::now(), Duration::from_secs(10));
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut pace = Pace::default();
        pace.look(true, at(0), period, 100);
        pace.count(999);
        pace.look(true, at(9), period, 100);
        assert!(!pace.slow, "the period is not over");
        pace.look(true, at(10), period, 100);
        assert!(pace.slow);
        pace.count(1000);
        pace.look(true, at(20), period, 100);
        assert!(!pace.slow);
        pace.look(true, at(3600), period, 100);
        assert!(pace.slow, "not checked for long");
        pace.look(false, at(3601), period, 100);
        assert!(!pace.slow, "it has no outstanding work");
    }
}
