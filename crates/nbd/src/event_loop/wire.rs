//! Receives bytes from sockets: receive, buffer, parse, begin TLS.
//!
//! Invariants:
//! 1. A receive takes no more bytes than may be buffered if none can be consumed.
//! 2. Bytes before TLS are sent and consumed in plain text, bytes after it only through TLS.

use super::EventLoop;
use crate::config::DropReason;
use crate::conn::{Conn, Phase};
use crate::exec::Key;
use crate::serve::Core;
use crate::stats::bump;
use crate::stream::{CIPHER_LEN, Received};
use crate::tls::SESSION_BYTES;

impl EventLoop {
    /// Receives once, and carries out all requests that need no waiting.
    pub(super) fn receive(&mut self, key: Key) {
        let Self { core, slots, scratch, cipher, .. } = self;
        let Some(conn) = &mut slots[key.0 as usize].conn else { return };
        let was_handshaking = conn.is_handshaking();
        // The connection is not blocked, so the buffer holds less than one header or one option.
        let receive_buffer = std::mem::take(&mut conn.receive_buffer);
        let held = receive_buffer.bytes().len();
        scratch[..held].copy_from_slice(receive_buffer.bytes());
        let most = core.receive_max();
        bump(&core.stats.receives, 1);
        let payload = match &mut conn.phase {
            Phase::Live(live) => live.payload_room(),
            Phase::Handshake(_) => None,
        };
        let got = conn.stream.receive(payload, &mut scratch[held..], most, cipher);
        self.received(key, got, held, was_handshaking);
    }

    /// Parses bytes in the scratch buffer: first `held` bytes that were buffered, then the received
    /// bytes.
    fn received(&mut self, key: Key, got: Received, held: usize, was_handshaking: bool) {
        let Self { core, slots, scratch, .. } = self;
        let Some(conn) = &mut slots[key.0 as usize].conn else { return };
        match got {
            Received::Bytes(direct, behind) => {
                if let Phase::Live(live) = &mut conn.phase {
                    live.filled(direct);
                }
                conn.sending.count(direct + behind);
                conn.moved_at = self.now;
                Self::digest(core, conn, &scratch[..held + behind]);
                if conn.stream.has_ended() {
                    end_of_input(conn);
                }
                self.after_parse(key, was_handshaking);
            }
            Received::End => {
                conn.receive_buffer.push(&scratch[..held]);
                core.count_receive_buffer(conn);
                end_of_input(conn);
            }
            Received::Nothing => {
                conn.receive_buffer.push(&scratch[..held]);
                core.count_receive_buffer(conn);
            }
            Received::Lost => conn.doom = Some(Some(DropReason::ConnectionLost)),
            Received::BadTls => conn.doom = Some(Some(DropReason::Tls)),
        }
    }

    /// Begins TLS when all earlier replies have been sent; buffered bytes are the first of the
    /// session.
    pub(super) fn begin_tls(&mut self, key: Key) {
        let Self { core, slots, scratch, .. } = self;
        let Some(conn) = &mut slots[key.0 as usize].conn else { return };
        let config = &core.shared.config;
        let session = config.tls.as_ref().and_then(|(identity, _)| identity.session());
        // A client that has sent more than this without waiting for a reply is not doing a
        // handshake.
        let Some(session) = session.filter(|_| conn.receive_buffer.bytes().len() <= CIPHER_LEN)
        else {
            conn.doom = Some(Some(DropReason::Tls));
            return self.core.mark(&mut conn.book);
        };
        core.shared.memory.charge(SESSION_BYTES);
        conn.starting_tls = false;
        let early = std::mem::take(&mut conn.receive_buffer);
        core.count_receive_buffer(conn);
        let got = conn.stream.begin_tls(session, early.bytes(), scratch);
        self.received(key, got, 0, true);
        if let Some(conn) = &mut self.slots[key.0 as usize].conn {
            self.core.mark(&mut conn.book);
        }
    }

    /// Parses `input` and buffers the rest; returns the number of parsed bytes.
    fn digest(core: &mut Core, conn: &mut Conn, input: &[u8]) -> usize {
        let pause = core.shared.loops.len() > 1;
        let used = core.parse(conn, input, pause);
        if used < input.len() {
            conn.receive_buffer.push(&input[used..]);
        }
        core.count_receive_buffer(conn);
        used
    }

    /// Parses the buffered bytes of a connection. True: some were consumed.
    pub(super) fn resume(&mut self, key: Key) -> bool {
        let Self { core, slots, .. } = self;
        let Some(conn) = &mut slots[key.0 as usize].conn else { return false };
        let was_handshaking = conn.is_handshaking();
        let mut receive_buffer = std::mem::take(&mut conn.receive_buffer);
        let used = core.parse(conn, receive_buffer.bytes(), core.shared.loops.len() > 1);
        receive_buffer.consume(used);
        conn.receive_buffer = receive_buffer;
        core.count_receive_buffer(conn);
        if used > 0 || conn.doom.is_some() {
            core.mark(&mut conn.book);
        }
        self.after_parse(key, was_handshaking);
        used > 0
    }
}

/// Handles the end of the peer's stream.
fn end_of_input(conn: &mut Conn) {
    conn.reading = false;
    let partial = match &conn.phase {
        Phase::Handshake(_) => !conn.receive_buffer.is_empty(),
        Phase::Live(live) => live.is_mid_request() || !conn.receive_buffer.is_empty(),
    };
    if partial {
        conn.doom = Some(Some(DropReason::ConnectionLost));
    } else if conn.is_handshaking() {
        conn.doom = Some(None);
    }
}
