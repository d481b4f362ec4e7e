//! The transmission phase of one connection, without I/O: parses received bytes into requests.
//!
//! ```text
//!            +--------------------------------------------+
//!            v                                            |
//!         Header -- not a write, or all data there ---> (a request)
//!            |  |-- write, data incomplete --> Fill  -----+   buffer full
//!            |  |-- bad write -------------> Skip  -----> (a rejection)
//!            |  `-- not admitted: nothing consumed, asked again later
//!            |-- DISC ---> Closed
//!            `-- wrong magic, endless write ---> Violation
//! ```
//!
//! Invariants:
//! 1. A returned request has passed [`check`]: its flags are known, its range is inside the
//!    export, its length within limits, and the export is writable if the request writes.
//! 2. No byte of a request is consumed before the gate admits it.
//! 3. At most one payload buffer per connection is being filled.

use crate::config::DropReason;
use crate::handshake::{Session, block_min};
use crate::proto::{self, Command, CommandFlags, Request, errno};
use forebay_base::buf::AlignedBuf;

/// Decides whether there is memory for a request, and provides its buffer.
pub trait Gate {
    /// Whether `request` may start now. `whole`: its payload, if any, is completely in the input.
    fn admit(&mut self, request: &Request, whole: bool) -> bool;
    /// A buffer of `len` bytes for the payload of an admitted request.
    fn buffer(&mut self, len: usize) -> AlignedBuf;
}

/// Result of parsing.
#[derive(Debug)]
pub enum Incoming<'a> {
    /// A request without data.
    Request(Request),
    /// A write whose data is in the input.
    Write(Request, &'a [u8]),
    /// A write whose data arrived in several receives.
    WriteBuf(Request, AlignedBuf),
    /// A request to answer with this error number.
    Reject(Request, u32),
    /// The session ends after the requests in flight.
    Disconnect,
    /// The gate refused the request. Parse again when memory was freed.
    Blocked,
    /// More bytes are needed.
    More,
}

#[derive(Debug)]
enum Rx {
    Header,
    Fill { request: Request, buf: AlignedBuf, filled: usize },
    Skip { request: Request, error: u32, left: u32 },
    Closed,
}

/// The state of one connection's transmission phase.
#[derive(Debug)]
pub struct Transmission {
    /// The negotiated parameters.
    pub session: Session,
    rx: Rx,
}

impl Transmission {
    /// Begins the phase.
    pub fn new(session: Session) -> Self {
        Self { session, rx: Rx::Header }
    }

    /// The unfilled part of a payload buffer, into which the socket may receive; then call
    /// [`Self::filled`].
    pub fn payload_room(&mut self) -> Option<&mut [u8]> {
        match &mut self.rx {
            Rx::Fill { buf, filled, .. } => Some(&mut buf[*filled..]),
            _ => None,
        }
    }

    /// Whether a request has begun whose data is incomplete.
    pub fn is_mid_request(&self) -> bool {
        matches!(self.rx, Rx::Fill { .. } | Rx::Skip { .. })
    }

    /// Counts `n` bytes that were put into [`Self::payload_room`]; a surplus is ignored.
    pub fn filled(&mut self, n: usize) {
        if let Rx::Fill { buf, filled, .. } = &mut self.rx {
            *filled = (*filled + n).min(buf.len());
        }
    }

    /// Parses the next request in `input` and consumes its bytes.
    #[inline]
    pub fn next<'a>(
        &mut self,
        input: &mut &'a [u8],
        gate: &mut impl Gate,
    ) -> Result<Incoming<'a>, DropReason> {
        match &self.rx {
            Rx::Header => self.header(input, gate),
            Rx::Closed => Ok(Incoming::More),
            Rx::Fill { .. } => Ok(self.fill(input)),
            Rx::Skip { .. } => Ok(self.skip(input)),
        }
    }

    fn header<'a>(
        &mut self,
        input: &mut &'a [u8],
        gate: &mut impl Gate,
    ) -> Result<Incoming<'a>, DropReason> {
        let request = match proto::parse_request(input) {
            Ok(Some(request)) => request,
            Ok(None) => return Ok(Incoming::More),
            Err(proto::BadMagic) => return Err(DropReason::BadMagic),
        };
        let rest = &input[proto::REQUEST_LEN..];
        let error = check(&self.session, &request);
        if request.command == Command::Disconnect {
            *input = rest;
            self.rx = Rx::Closed;
            return Ok(Incoming::Disconnect);
        }
        let payload = if request.command == Command::Write { request.len } else { 0 };
        if payload > self.session.payload_max {
            return Err(DropReason::WriteTooLong);
        }
        if let Err(error) = error {
            // A rejection costs a reply, so it is admitted like a request without data.
            let refusal = Request { command: Command::Flush, ..request };
            if !gate.admit(&refusal, true) {
                return Ok(Incoming::Blocked);
            }
            *input = rest;
            if payload == 0 {
                return Ok(Incoming::Reject(request, error));
            }
            self.rx = Rx::Skip { request, error, left: payload };
            return Ok(self.skip(input));
        }
        let payload = payload as usize;
        let whole = rest.len() >= payload;
        if !gate.admit(&request, whole) {
            return Ok(Incoming::Blocked);
        }
        *input = rest;
        if request.command != Command::Write {
            return Ok(Incoming::Request(request));
        }
        if whole {
            let (data, rest) = rest.split_at(payload);
            *input = rest;
            return Ok(Incoming::Write(request, data));
        }
        self.rx = Rx::Fill { request, buf: gate.buffer(payload), filled: 0 };
        Ok(self.fill(input))
    }

    fn fill<'a>(&mut self, input: &mut &'a [u8]) -> Incoming<'a> {
        let Rx::Fill { buf, filled, .. } = &mut self.rx else { return Incoming::More };
        let take = (buf.len() - *filled).min(input.len());
        buf[*filled..*filled + take].copy_from_slice(&input[..take]);
        *filled += take;
        *input = &input[take..];
        if *filled < buf.len() {
            return Incoming::More;
        }
        match std::mem::replace(&mut self.rx, Rx::Header) {
            Rx::Fill { request, buf, .. } => Incoming::WriteBuf(request, buf),
            _ => Incoming::More,
        }
    }

    fn skip<'a>(&mut self, input: &mut &'a [u8]) -> Incoming<'a> {
        let Rx::Skip { request, error, left } = &mut self.rx else { return Incoming::More };
        let take = (*left as usize).min(input.len());
        *left -= take as u32;
        *input = &input[take..];
        if *left > 0 {
            return Incoming::More;
        }
        let (request, error) = (*request, *error);
        self.rx = Rx::Header;
        Incoming::Reject(request, error)
    }
}

/// Whether a request may be served; otherwise the error number for its reply.
pub fn check(session: &Session, request: &Request) -> Result<(), u32> {
    use CommandFlags as F;
    let info = &session.info;
    // FUA has no effect on commands that write nothing. It is permitted there if it was offered,
    // which it is not for a read-only export.
    let fua = if info.read_only { F::empty() } else { F::FUA };
    let (allowed, writes) = match request.command {
        Command::Read if session.structured => (F::DF | fua, false),
        Command::Read | Command::Cache => (fua, false),
        Command::Flush => {
            return if (fua).contains(request.flags) { Ok(()) } else { Err(errno::EINVAL) };
        }
        Command::Disconnect => return Ok(()),
        Command::Write | Command::Trim => (F::FUA, true),
        Command::WriteZeroes if info.fast_zero => (F::FUA | F::NO_HOLE | F::FAST_ZERO, true),
        Command::WriteZeroes => (F::FUA | F::NO_HOLE, true),
        Command::BlockStatus if session.block_status => (F::REQ_ONE | fua, false),
        Command::BlockStatus | Command::Unknown(_) => return Err(errno::EINVAL),
    };
    if writes && info.read_only {
        return Err(errno::EPERM);
    }
    if !allowed.contains(request.flags) {
        return Err(errno::EINVAL);
    }
    if request.command == Command::Trim && !info.can_trim {
        return Err(errno::EINVAL);
    }
    if request.command == Command::BlockStatus && request.len == 0 {
        return Err(errno::EINVAL);
    }
    let grows = matches!(request.command, Command::Write | Command::WriteZeroes);
    match request.offset.checked_add(u64::from(request.len)) {
        Some(end) if end <= info.size => {}
        _ if grows => return Err(errno::ENOSPC),
        _ => return Err(errno::EINVAL),
    }
    let carries_data = matches!(request.command, Command::Read | Command::Write);
    if carries_data && request.len > session.request_max {
        return Err(errno::EINVAL);
    }
    let mask = u64::from(block_min(info)) - 1;
    if (request.offset | u64::from(request.len)) & mask != 0 {
        return Err(errno::EINVAL);
    }
    Ok(())
}

#[cfg(test)]
mod tests;
