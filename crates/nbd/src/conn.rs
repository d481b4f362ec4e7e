//! One connection: its socket, its protocol state, and its books.
//!
//! Invariants:
//! 1. `Book::charged` is what this connection adds to the server's memory: chunks of replies,
//!    data waiting to be sent, payloads being received, and `in_tasks` for requests under way.
//! 2. `stash` holds received bytes that were not consumed: a partial message, or whole requests
//!    while the connection is blocked. While it is blocked the socket is not read.
//! 3. A connection with nothing charged is never blocked on its own account.

use crate::config::DropReason;
use crate::exec::Key;
use crate::handshake::Handshake;
use crate::out::OutQueue;
use crate::stats::Verdict;
use crate::transmission::Transmission;
use forebay_vfs::Export;
use rustix::event::epoll::EventFlags;
use rustix::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

/// Where a connection stands.
pub(crate) enum Phase {
    Handshake(Handshake),
    Live(Box<Transmission>),
}

/// What a connection uses and owes.
pub(crate) struct Book {
    pub key: Key,
    pub out: OutQueue,
    /// Bytes charged to this connection (invariant 1).
    pub charged: usize,
    /// The part of it that belongs to requests under way.
    pub in_tasks: usize,
    /// Requests under way.
    pub inflight: u32,
    /// Why the next request in the stash may not start.
    pub blocked: Option<Verdict>,
    /// In the loop's list of connections to be settled.
    pub dirty: bool,
    /// What it is served, from the end of its handshake on.
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
            blocked: None,
            dirty: false,
            export: None,
        }
    }

    /// The export of a connection whose handshake is over.
    pub fn export(&self) -> Arc<dyn Export> {
        self.export.clone().expect("set where transmission begins")
    }
}

/// See the module.
pub(crate) struct Conn {
    pub fd: OwnedFd,
    /// For the log.
    pub label: String,
    pub phase: Phase,
    pub stash: Vec<u8>,
    pub book: Book,
    /// When it was accepted.
    pub since: Instant,
    /// More requests are welcome. False after DISC, end of file, or stop.
    pub reading: bool,
    /// Why it is to be cut off as soon as it is settled.
    pub doom: Option<Option<DropReason>>,
    /// The socket takes no more; since when it takes nothing.
    pub send_full: Option<Instant>,
    /// What epoll was told.
    pub interest: EventFlags,
}

impl Conn {
    pub fn is_handshaking(&self) -> bool {
        matches!(self.phase, Phase::Handshake(_))
    }

    /// Whether its socket should be read now.
    pub fn wants_input(&self) -> bool {
        self.reading && self.book.blocked.is_none() && self.doom.is_none()
    }

    /// Nothing more will come and nothing more is to be sent.
    pub fn is_finished(&self) -> bool {
        !self.reading && self.book.inflight == 0 && self.book.out.is_empty()
    }
}
