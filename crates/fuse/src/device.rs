//! /dev/fuse: one message in, one out.
//!
//! `readv` puts the payload of a `WRITE` at the start of an aligned buffer and its header into a
//! separate array. A longer request of another kind is split between the two, and
//! [`Incoming::whole`] joins it again.
//!
//! Invariants: D1 the buffer has space for the longest message that the kernel may send. D2 the
//! payload begins at the start of the buffer.
//!
//! No locks: each read and each write of the device transfers one complete message, from any
//! thread.

use crate::deadlines::Deadlines;
use crate::proto::consts::{OUT_HEADER_BYTES, WRITE_HEADER_BYTES};
use crate::proto::reply;
use forebay_base::buf::AlignedBuf;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::io::{IoSlice, IoSliceMut};
use std::time::Duration;

/// Longest payload of a request, bytes.
pub const PAYLOAD_MAX: usize = 1 << 20;
/// Least buffer size that the kernel accepts, bytes.
const LEAST_BYTES: usize = 8192;
const _: () = assert!(PAYLOAD_MAX >= LEAST_BYTES);

/// The open device; the descriptor is the connection.
pub struct Device {
    fd: OwnedFd,
    pub(crate) deadlines: Deadlines,
}

/// One message as it was read.
pub struct Incoming {
    /// The first bytes of the message; of a `WRITE`, all but the payload.
    pub head: [u8; WRITE_HEADER_BYTES],
    /// The bytes after the head.
    pub payload: AlignedBuf,
    /// Length of the complete message, bytes.
    pub len: usize,
}

impl Default for Incoming {
    fn default() -> Self {
        Self::new()
    }
}

impl Incoming {
    /// A buffer for the longest message.
    pub fn new() -> Self {
        Self { head: [0; WRITE_HEADER_BYTES], payload: AlignedBuf::new(PAYLOAD_MAX), len: 0 }
    }

    /// The part of the head that was read.
    pub fn head(&self) -> &[u8] {
        &self.head[..self.len.min(WRITE_HEADER_BYTES)]
    }

    /// The bytes after the head.
    pub fn rest(&self) -> &[u8] {
        &self.payload[..self.len.saturating_sub(WRITE_HEADER_BYTES)]
    }

    /// The complete message if it fits into the head, as most do.
    pub fn short(&self) -> Option<&[u8]> {
        (self.len <= WRITE_HEADER_BYTES).then(|| self.head())
    }

    /// Head and rest in one piece.
    pub fn whole(&self) -> Vec<u8> {
        [self.head(), self.rest()].concat()
    }

    /// Hands over the payload if it fills its buffer, and replaces the buffer by `another` of
    /// [`PAYLOAD_MAX`] bytes. Otherwise the caller copies the bytes.
    pub fn take_full_payload(
        &mut self,
        another: impl FnOnce() -> AlignedBuf,
    ) -> Option<AlignedBuf> {
        let is_full = self.rest().len() == PAYLOAD_MAX;
        is_full.then(|| std::mem::replace(&mut self.payload, another()))
    }
}

/// Result of reading a message.
pub enum Read {
    /// A message was read.
    Message,
    /// No message was read; the caller reads again.
    Again,
    /// The connection has ended: unmounted or aborted.
    Ended,
}

impl Device {
    /// `fd` is the descriptor of a mount: [`crate::Mounted::into_device`].
    pub fn new(fd: OwnedFd) -> Self {
        Self { fd, deadlines: Deadlines::default() }
    }

    /// Like [`Device::new`], with a time limit: a request that exceeds it is answered EIO.
    pub(crate) fn with_limit(fd: OwnedFd, limit: Option<Duration>) -> Self {
        Self { fd, deadlines: Deadlines::new(limit) }
    }

    /// Waits for a message.
    pub fn read(&self, into: &mut Incoming) -> Result<Read, Errno> {
        let Incoming { head, payload, len } = into;
        let mut parts = [IoSliceMut::new(head), IoSliceMut::new(payload)];
        match rustix::io::readv(&self.fd, &mut parts) {
            // Only in tests: the device never returns 0 bytes, a closed socket does.
            Ok(0) => Ok(Read::Ended),
            Ok(n) => {
                *len = n;
                Ok(Read::Message)
            }
            // The read was interrupted, or the request was withdrawn before it was read, because
            // its caller was interrupted.
            Err(Errno::INTR | Errno::AGAIN | Errno::NOENT) => Ok(Read::Again),
            Err(Errno::NODEV | Errno::CONNABORTED) => Ok(Read::Ended),
            Err(e) => Err(e),
        }
    }

    /// Answers a request. False: the kernel did not accept the answer, or the request was already
    /// answered at its deadline.
    pub fn reply(&self, unique: u64, errno: i32, body: &[u8]) -> bool {
        self.deadlines.may_answer(unique) && self.send(unique, errno, body)
    }

    /// Answers EIO to a request whose deadline has passed.
    pub(crate) fn answer_overdue(&self, unique: u64) {
        self.send(unique, Errno::IO.raw_os_error(), &[]);
    }

    fn send(&self, unique: u64, errno: i32, body: &[u8]) -> bool {
        let header = reply::header(unique, errno, body.len());
        let parts = [IoSlice::new(&header), IoSlice::new(body)];
        let used = if body.is_empty() { &parts[..1] } else { &parts[..] };
        match rustix::io::writev(&self.fd, used) {
            Ok(n) => {
                debug_assert_eq!(n, OUT_HEADER_BYTES + body.len());
                true
            }
            Err(Errno::NOENT | Errno::NODEV) => false,
            Err(e) => {
                log::error!("the kernel refused the answer to request {unique}: {e}");
                // The program must not wait for ever, so it gets EIO instead.
                if !body.is_empty() {
                    self.send(unique, Errno::IO.raw_os_error(), &[]);
                }
                false
            }
        }
    }

    /// Sends a notification to the kernel.
    pub fn notify(&self, message: &[u8]) -> Result<(), Errno> {
        rustix::io::write(&self.fd, message).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    fn pair() -> (Device, OwnedFd) {
        let kind = SocketType::SEQPACKET;
        let (a, b) = socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
        (Device::new(a), b)
    }

    /// D1, D2: the bytes after the head begin at the start of the buffer, which is aligned.
    #[test]
    fn d1_d2_payload_starts_at_start_of_buffer() {
        let (device, kernel) = pair();
        let mut incoming = Incoming::new();
        assert!(incoming.payload.len() >= PAYLOAD_MAX && LEAST_BYTES <= PAYLOAD_MAX);
        for len in [40, 79, 80, 81, 5000] {
            let message: Vec<u8> = (0..len).map(|n| n as u8).collect();
            rustix::io::write(&kernel, &message).unwrap();
            assert!(matches!(device.read(&mut incoming), Ok(Read::Message)));
            assert_eq!(incoming.whole(), message);
            assert_eq!(incoming.rest(), message.get(WRITE_HEADER_BYTES..).unwrap_or_default());
            assert_eq!(incoming.rest().as_ptr() as usize % 4096, 0);
        }
        // A payload that does not fill the buffer is left in place.
        let at = incoming.payload.as_ptr();
        let another = || AlignedBuf::new(PAYLOAD_MAX);
        assert!(incoming.take_full_payload(another).is_none());
        assert_eq!(incoming.payload.as_ptr(), at);
        incoming.len = WRITE_HEADER_BYTES + PAYLOAD_MAX;
        let full = incoming.take_full_payload(another).map(|full| full.as_ptr());
        assert_eq!(full, Some(at), "a full one is handed on");
        drop(kernel);
        assert!(matches!(device.read(&mut incoming), Ok(Read::Ended)));
    }

    /// proto.P3: a reply is one message, of the length in its header.
    #[test]
    fn p3_reply_is_one_message() {
        let (device, kernel) = pair();
        assert!(device.reply(7, 0, b"body"));
        assert!(device.reply(8, 2, &[]));
        let mut bytes = [0; 64];
        let len = rustix::io::read(&kernel, &mut bytes).unwrap();
        assert_eq!((len, bytes[0], &bytes[16..20]), (20, 20, &b"body"[..]));
        let len = rustix::io::read(&kernel, &mut bytes).unwrap();
        assert_eq!((len, bytes[0], bytes[4], bytes[8]), (16, 16, 254, 8));
    }
}
