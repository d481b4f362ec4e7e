//! What bounds a server, and why a client may be cut off.

use forebay_base::IoFlags;
use std::time::Duration;

/// Limits of a server. Every one of them is enforced against every client.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// Event-loop threads, 1 or more. Connections are distributed over them.
    pub threads: usize,
    /// Most connections at a time. Beyond it the oldest one that has not finished its
    /// handshake makes room; if there is none the new one is refused.
    pub clients_max: usize,
    /// Time for a handshake, from accept to transmission.
    pub handshake_timeout: Duration,
    /// Most options in one handshake.
    pub options_max: u32,
    /// Longest data of an option, bytes.
    pub option_len_max: usize,
    /// Longest read or write, bytes. An export may ask for less.
    pub request_max: u32,
    /// Most requests of one client in flight.
    pub inflight_max: u32,
    /// Memory of one client in requests in flight and replies not yet sent, bytes. At the limit
    /// its socket is not read. A client with nothing in use may always start one request.
    pub client_memory: usize,
    /// The same over all clients, bytes. The upper half is kept for clients below their fair
    /// share (half of it divided by `clients_max`), so that hoarders cannot starve others.
    pub total_memory: usize,
    /// While others wait for memory, a client that takes none of its replies for this long is
    /// cut off.
    pub stall_timeout: Duration,
    /// Time for requests in flight to finish when the server is stopped.
    pub drain_timeout: Duration,
    /// Flags of every read and write, such as `UNCACHED`.
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
            drain_timeout: Duration::from_secs(5),
            io_flags: IoFlags::empty(),
        }
    }
}

impl ServerConfig {
    /// The same, with values that contradict each other brought into line: at least one thread
    /// and one client, and a request that fits a client's memory and, together with a
    /// hoarder's, the half of all memory that is for everybody.
    #[must_use]
    pub fn normalized(mut self) -> Self {
        self.threads = self.threads.max(1);
        self.clients_max = self.clients_max.max(1);
        self.inflight_max = self.inflight_max.max(1);
        self.option_len_max = self.option_len_max.min(128 << 10);
        self.total_memory = self.total_memory.max(2 << 20);
        self.client_memory = self.client_memory.max(64 << 10);
        let fits = self.client_memory.min(self.total_memory / 4).min(1 << 30);
        self.request_max = self.request_max.min(fits as u32).max(4096);
        self
    }
}

/// Why a client was cut off. A client that leaves by itself is not in here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DropReason {
    /// The bytes are not NBD.
    BadMagic,
    /// Client flags that we did not offer.
    BadClientFlags,
    /// An option longer than the limit.
    OptionTooLong,
    /// More options than the limit.
    TooManyOptions,
    /// EXPORT_NAME with a name that is not there: the protocol has no other answer.
    UnknownExport,
    /// The handshake took too long.
    HandshakeTimeout,
    /// Made room for a newer client before its handshake was done.
    Evicted,
    /// Refused because there are too many clients.
    TooManyClients,
    /// A write longer than the limit: its data cannot be skipped in good faith.
    WriteTooLong,
    /// Took no replies while others waited for memory.
    Stalled,
    /// The socket failed, or the client went away in the middle of something.
    ConnectionLost,
    /// The server was stopped and this client's requests did not finish in time.
    ServerStopped,
}

impl DropReason {
    /// All reasons, in the order of the counters.
    pub const ALL: [DropReason; 12] = [
        Self::BadMagic,
        Self::BadClientFlags,
        Self::OptionTooLong,
        Self::TooManyOptions,
        Self::UnknownExport,
        Self::HandshakeTimeout,
        Self::Evicted,
        Self::TooManyClients,
        Self::WriteTooLong,
        Self::Stalled,
        Self::ConnectionLost,
        Self::ServerStopped,
    ];

    /// A few words for the log.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::BadMagic => "not the NBD protocol",
            Self::BadClientFlags => "unknown client flags",
            Self::OptionTooLong => "option too long",
            Self::TooManyOptions => "too many options",
            Self::UnknownExport => "unknown export",
            Self::HandshakeTimeout => "handshake timed out",
            Self::Evicted => "made room for a newer client",
            Self::TooManyClients => "too many clients",
            Self::WriteTooLong => "write too long",
            Self::Stalled => "takes no replies while memory is short",
            Self::ConnectionLost => "connection lost",
            Self::ServerStopped => "server stopped",
        }
    }
}
