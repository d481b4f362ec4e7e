//! Limits of a server, and the reasons for which it drops a client.

use crate::stream::CIPHER_LEN;
use crate::tls::{SESSION_BYTES, TlsIdentity, TlsMode};
use forebay_base::IoFlags;
use std::time::Duration;

/// Lowest limit of a receive, bytes: it applies when the memory for received bytes is used up.
pub(crate) const RECEIVE_MIN: usize = 4096;

/// Least total memory of requests and replies, bytes.
const TOTAL_MIN: usize = 2 << 20;

/// Most memory of the buffers that all threads keep for reuse, bytes; not included in the `total`
/// of requests.
pub(crate) fn pool_memory(total: usize) -> usize {
    total / 16
}

/// Most memory of received bytes that are not parsed yet, bytes, apart from [`RECEIVE_MIN`] per
/// client; not included in the `total` of requests.
pub(crate) fn receive_memory(total: usize) -> usize {
    total / 16
}

/// Limits of a server. Every one of them is enforced against every client.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// Event-loop threads, 1 or more. Connections are distributed over them.
    pub threads: usize,
    /// Most connections at a time. Beyond it the server drops the oldest one that has not finished
    /// its handshake; if there is none it refuses the new one.
    pub clients_max: usize,
    /// Time for a handshake, from accept to transmission.
    pub handshake_timeout: Duration,
    /// Most options in one handshake.
    pub options_max: u32,
    /// Longest data of an option, bytes.
    pub option_len_max: usize,
    /// Longest read or write, bytes. An export may have a lower limit.
    pub request_max: u32,
    /// Most requests of one client in flight.
    pub inflight_max: u32,
    /// Memory of one client in requests in flight and replies not yet sent, bytes. At the limit
    /// its socket is not read. A client with nothing in use may always start one request.
    pub client_memory: usize,
    /// Memory of requests and replies over all clients, bytes, at start;
    /// [`Server::set_total_memory`](crate::Server::set_total_memory) changes it live. The upper
    /// half is kept for clients below their fair share (half of it divided by `clients_max`), so
    /// that clients with many requests cannot starve others.
    pub total_memory: usize,
    /// A client has outstanding work if it does not take its replies, or does not send the rest of
    /// a write. Such a client is disconnected if other clients wait for memory and it moved less
    /// than `rate_min` over this time.
    pub stall_timeout: Duration,
    /// Least progress of a client with outstanding work, bytes per second.
    pub rate_min: u64,
    /// When the table of clients is full, the server drops the client that was silent for longest,
    /// if that is at least this long. A client with a request in progress is not idle.
    pub idle_timeout: Duration,
    /// A TCP peer that is silent for this long is probed, and dropped if it does not answer six
    /// probes ten seconds apart. Zero: never.
    pub keepalive: Duration,
    /// Time for requests in flight to finish when the server is stopped.
    pub drain_timeout: Duration,
    /// Certificate and key for TLS, and whether clients may or must use it.
    pub tls: Option<(TlsIdentity, TlsMode)>,
    /// Longest time that a thread polls for work before it sleeps; it polls only while polling
    /// finds work. Zero: never. [`Server::set_poll`](crate::Server::set_poll) changes it live.
    pub poll: Duration,
    /// Flags of every read and write, such as `UNCACHED`. Reads ignore those for writes only.
    /// `DSYNC` comes from the FUA of a request alone.
    pub io_flags: IoFlags,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            threads: 1,
            clients_max: 128,
            handshake_timeout: Duration::from_secs(10),
            options_max: 256,
            option_len_max: 64 << 10,
            request_max: 32 << 20,
            inflight_max: 1024,
            client_memory: 32 << 20,
            total_memory: 256 << 20,
            stall_timeout: Duration::from_secs(10),
            rate_min: 4096,
            idle_timeout: Duration::from_secs(60),
            keepalive: Duration::from_secs(60),
            drain_timeout: Duration::from_secs(5),
            tls: None,
            poll: Duration::from_micros(50),
            io_flags: IoFlags::empty(),
        }
    }
}

impl ServerConfig {
    /// Largest value of `poll`.
    pub const POLL_MAX: Duration = Duration::from_millis(1);

    /// The configuration with contradictory values corrected. There is at least one thread and one
    /// client. A request fits into a client's memory, and, next to a client at its limit, into half
    /// of the total memory.
    #[must_use]
    pub fn normalized(mut self) -> Self {
        self.threads = self.threads.max(1);
        self.clients_max = self.clients_max.max(1);
        self.inflight_max = self.inflight_max.max(1);
        self.option_len_max = self.option_len_max.min(128 << 10);
        self.total_memory = self.total_memory.max(TOTAL_MIN);
        self.client_memory = self.client_memory.max(64 << 10);
        if self.tls_mode() != TlsMode::Off {
            // TLS sessions may use a quarter of the total memory.
            let fit = (self.total_memory / 4 / SESSION_BYTES).max(1);
            self.clients_max = self.clients_max.min(fit);
        }
        let fits = self.client_memory.min(self.total_memory / 4).min(1 << 30);
        self.request_max = self.request_max.min(fits as u32).max(4096);
        self
    }

    /// Least value of `total_memory` while the server runs, bytes: the TLS sessions of all clients
    /// must leave most of it to requests.
    pub(crate) fn total_least(&self) -> usize {
        let sessions = if self.tls_mode() == TlsMode::Off { 0 } else { self.clients_max };
        (sessions * SESSION_BYTES * 4).max(TOTAL_MIN)
    }

    /// Most bytes that a thread receives at once.
    pub(crate) fn scratch_len(&self) -> usize {
        // Large enough for the longest partial option and a TLS record.
        (self.total_memory / 64).clamp(256 << 10, 512 << 10)
    }

    /// Receive buffers of all threads, bytes; fixed at start.
    pub(crate) fn scratch_memory(&self) -> usize {
        let cipher = if self.tls_mode() == TlsMode::Off { 0 } else { CIPHER_LEN };
        self.threads * (self.scratch_len() + cipher)
    }

    /// All memory that a server of this configuration may use for its clients, bytes.
    pub fn memory_bound(&self) -> usize {
        self.memory_bound_at(self.total_memory)
    }

    /// As [`ServerConfig::memory_bound`], with another total that was set while the server runs.
    pub(crate) fn memory_bound_at(&self, total: usize) -> usize {
        let receive_buffer = receive_memory(total) + self.clients_max * RECEIVE_MIN;
        total + pool_memory(total) + receive_buffer + self.scratch_memory()
    }

    /// Whether clients may or must use TLS.
    pub fn tls_mode(&self) -> TlsMode {
        self.tls.as_ref().map_or(TlsMode::Off, |(_, mode)| *mode)
    }
}

/// Why the server dropped a client. A client that disconnects by itself has none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DropReason {
    /// The bytes are not NBD.
    BadMagic,
    /// The client sent flags that the server did not offer.
    BadClientFlags,
    /// An option longer than the limit.
    OptionTooLong,
    /// More options than the limit.
    TooManyOptions,
    /// EXPORT_NAME with an unknown name: the protocol has no error reply for it.
    UnknownExport,
    /// The handshake took too long.
    HandshakeTimeout,
    /// TLS is required but not used, or the bytes after STARTTLS are not TLS.
    Tls,
    /// Dropped in favour of a newer client before its handshake ended.
    Evicted,
    /// Refused because the maximum of clients is reached.
    TooManyClients,
    /// A write longer than the limit: the server does not receive and discard that many bytes.
    WriteTooLong,
    /// The client did not take its replies, or did not send the rest of a write, while other
    /// clients waited for memory.
    Stalled,
    /// Idle for long, and dropped in favour of a newer client.
    Idle,
    /// The socket failed, or the client disconnected in the middle of a message.
    ConnectionLost,
    /// The server was stopped and this client's requests did not finish in time.
    ServerStopped,
}

impl DropReason {
    /// All reasons, in the order of the counters.
    pub const ALL: [DropReason; 14] = [
        Self::BadMagic,
        Self::BadClientFlags,
        Self::OptionTooLong,
        Self::TooManyOptions,
        Self::UnknownExport,
        Self::HandshakeTimeout,
        Self::Tls,
        Self::Evicted,
        Self::TooManyClients,
        Self::WriteTooLong,
        Self::Stalled,
        Self::Idle,
        Self::ConnectionLost,
        Self::ServerStopped,
    ];

    /// A short description for the log.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::BadMagic => "not the NBD protocol",
            Self::BadClientFlags => "unknown client flags",
            Self::OptionTooLong => "option too long",
            Self::TooManyOptions => "too many options",
            Self::UnknownExport => "unknown export",
            Self::HandshakeTimeout => "handshake timed out",
            Self::Tls => "no TLS, or TLS that is wrong",
            Self::Evicted => "made room for a newer client",
            Self::TooManyClients => "too many clients",
            Self::WriteTooLong => "write too long",
            Self::Stalled => "makes no progress while memory is short",
            Self::Idle => "idle, made room for a newer client",
            Self::ConnectionLost => "connection lost",
            Self::ServerStopped => "server stopped",
        }
    }
}
