//! The layer between a socket and the protocol: plain, or TLS.
//!
//! Invariants:
//! 1. No call waits: the socket does not block.
//! 2. After a receive no decrypted bytes remain in a TLS session, so epoll on the socket alone
//!    reports further bytes.

use crate::tls::{RECORD_MAX, Session};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags};
use std::io::{IoSlice, IoSliceMut, Write};

/// Most encrypted bytes received at once.
pub(crate) const CIPHER_LEN: usize = 128 << 10;

/// A client's socket, plain or with TLS.
pub(crate) struct Stream {
    fd: OwnedFd,
    tls: Option<Box<Session>>,
}

/// The result of a receive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Received {
    /// Bytes in the first buffer, then in the second one.
    Bytes(usize, usize),
    /// The peer has closed its direction.
    End,
    /// No bytes are available now.
    Nothing,
    /// The socket failed.
    Lost,
    /// The bytes are not TLS, or the client is not accepted.
    BadTls,
}

/// Result of sending.
pub(crate) enum Sent {
    /// Bytes that were sent; the socket may take more.
    Some(usize),
    /// Bytes that were sent; the socket takes no more.
    Full(usize),
    /// The socket failed.
    Lost,
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Stream {
    /// A plain stream.
    pub fn plain(fd: OwnedFd) -> Self {
        Self { fd, tls: None }
    }

    pub fn is_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// Switches both directions to TLS; `early` are bytes of the session that were already
    /// received.
    pub fn begin_tls(&mut self, session: Session, early: &[u8], plain: &mut [u8]) -> Received {
        debug_assert!(self.tls.is_none());
        let session = self.tls.insert(Box::new(session));
        if early.is_empty() {
            return Received::Nothing;
        }
        decrypted(session, early, plain)
    }

    /// Receives at most `most` bytes in addition to `room`, which is filled first, then `rest`.
    /// With TLS it fills only `rest`, and uses `cipher` for encrypted bytes.
    pub fn receive(
        &mut self,
        room: Option<&mut [u8]>,
        rest: &mut [u8],
        most: usize,
        cipher: &mut Vec<u8>,
    ) -> Received {
        let Some(session) = &mut self.tls else {
            let most = most.min(rest.len());
            let rest = &mut rest[..most];
            let first = room.as_ref().map_or(0, |room| room.len());
            let got = match room {
                Some(room) => {
                    rustix::io::readv(&self.fd, &mut [IoSliceMut::new(room), IoSliceMut::new(rest)])
                }
                None => rustix::io::read(&self.fd, rest),
            };
            return received(got, |n| Received::Bytes(n.min(first), n.saturating_sub(first)));
        };
        cipher.resize(CIPHER_LEN, 0);
        let most = most.min(cipher.len()).min(rest.len().saturating_sub(RECORD_MAX));
        let got = rustix::io::read(&self.fd, &mut cipher[..most]);
        received(got, |n| decrypted(session, &cipher[..n], rest))
    }

    /// Whether the peer has ended its TLS stream.
    pub fn has_ended(&self) -> bool {
        self.tls.as_ref().is_some_and(|session| session.has_ended())
    }

    /// Whether TLS messages of the session are to be sent.
    pub fn wants_send(&self) -> bool {
        self.tls.as_ref().is_some_and(|session| session.wants_send())
    }

    /// Sends the slices, and pending TLS messages of the session.
    pub fn send(&mut self, slices: &[IoSlice<'_>]) -> Sent {
        let Some(session) = &mut self.tls else {
            let wanted: usize = slices.iter().map(|s| s.len()).sum();
            return match write(&self.fd, slices) {
                Ok(n) if n < wanted => Sent::Full(n),
                Ok(n) => Sent::Some(n),
                Err(Errno::INTR) => Sent::Some(0),
                Err(Errno::AGAIN) => Sent::Full(0),
                Err(_) => Sent::Lost,
            };
        };
        let mut wire = Wire(&self.fd);
        let taken = match session.send(&mut wire) {
            Ok(true) => session.encrypt(slices),
            Ok(false) => return Sent::Full(0),
            Err(_) => return Sent::Lost,
        };
        match session.send(&mut wire) {
            Ok(true) => Sent::Some(taken),
            Ok(false) => Sent::Full(taken),
            Err(_) => Sent::Lost,
        }
    }

    /// Ends the stream: notifies a TLS peer, if the socket takes the message.
    pub fn close(&mut self) {
        if let Some(session) = &mut self.tls {
            session.close();
            // A client that has disconnected does not need the message.
            let _ = session.send(&mut Wire(&self.fd));
        }
    }
}

fn received(got: rustix::io::Result<usize>, bytes: impl FnOnce(usize) -> Received) -> Received {
    match got {
        Ok(0) => Received::End,
        Ok(n) => bytes(n),
        Err(Errno::AGAIN | Errno::INTR) => Received::Nothing,
        Err(_) => Received::Lost,
    }
}

fn decrypted(session: &mut Session, cipher: &[u8], plain: &mut [u8]) -> Received {
    match session.decrypt(cipher, plain) {
        Ok(0) if session.has_ended() => Received::End,
        Ok(n) => Received::Bytes(0, n),
        Err(e) => {
            log::debug!("nbd: TLS: {e}");
            Received::BadTls
        }
    }
}

fn write(fd: &OwnedFd, slices: &[IoSlice<'_>]) -> rustix::io::Result<usize> {
    let mut control = SendAncillaryBuffer::default();
    rustix::net::sendmsg(fd, slices, &mut control, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)
}

/// The socket with the traits that rustls needs.
struct Wire<'a>(&'a OwnedFd);

impl Write for Wire<'_> {
    fn write(&mut self, buf: &[u8]) -> std::io::Result<usize> {
        Ok(write(self.0, &[IoSlice::new(buf)])?)
    }
    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> std::io::Result<usize> {
        Ok(write(self.0, slices)?)
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
