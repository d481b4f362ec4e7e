//! The handshake of one connection, without I/O: bytes in, bytes out.
//!
//! ```text
//!  new() writes the greeting
//!    |
//!  Flags ---- bad flags ----------------------------> Close(BadClientFlags)
//!    | 4 bytes
//!  Options -- LIST, INFO, *_META_CONTEXT, ... ------> Options (an answer each)
//!    |  |---- STARTTLS, where it is offered ----------> StartTls, then Options once more
//!    |  |---- ABORT --------------------------------> Close(None)
//!    |  |---- too long, too many, wrong magic ------> Close(reason)
//!    | GO of a known export (or EXPORT_NAME)
//!  Enter(Session)
//! ```
//!
//! Invariants:
//! 1. An option is answered exactly once, unless it ends the session.
//! 2. Names from the network are only compared with names of exports; no path or object is made
//!    from them.
//! 3. Metadata contexts hold only for the export named with them, and only if structured
//!    replies were negotiated before.
//! 4. If TLS is required, a client without it gets no information. STARTTLS cancels everything that
//!    was negotiated before it.

use crate::config::DropReason;
use crate::proto::{self, HandshakeFlags, OptionError, TransmissionFlags, info, opt, rep};
use crate::tls::TlsMode;
use forebay_vfs::ExportInfo;

/// The exports that the handshake can offer.
pub trait Directory {
    /// The number of exports. Export 0 is the default, also under the empty name.
    fn count(&self) -> usize;
    /// The name of an export.
    fn name(&self, index: usize) -> &str;
    /// The description of one export.
    fn info(&self, index: usize) -> ExportInfo;
}

/// Limits of a handshake.
#[derive(Debug, Clone, Copy)]
pub struct HandshakeLimits {
    /// Most options.
    pub options_max: u32,
    /// Longest data of an option, bytes.
    pub option_len_max: usize,
    /// Longest read or write, bytes.
    pub request_max: u32,
    /// Whether clients may or must use TLS.
    pub tls: TlsMode,
}

/// The negotiated parameters of a session.
#[derive(Debug, Clone)]
pub struct Session {
    /// Index of the export.
    pub export: usize,
    /// The export's description when the session began.
    pub info: ExportInfo,
    /// Longest read or write, bytes.
    pub request_max: u32,
    /// Longest payload that is received and discarded when a write is refused, bytes.
    pub payload_max: u32,
    /// Replies to reads are structured chunks.
    pub structured: bool,
    /// The client may send BLOCK_STATUS.
    pub block_status: bool,
}

/// The next step after a call of [`Handshake::feed`].
#[derive(Debug)]
pub enum Step {
    /// More bytes are needed.
    More,
    /// Transmission begins.
    Enter(Session),
    /// Send the pending bytes; everything after them is TLS, in both directions.
    StartTls,
    /// Send the pending bytes, then close. `None`: the client asked for it.
    Close(Option<DropReason>),
}

/// The state of one handshake.
#[derive(Debug)]
pub struct Handshake {
    limits: HandshakeLimits,
    flags: Option<HandshakeFlags>,
    options: u32,
    structured: bool,
    /// The connection uses TLS.
    secure: bool,
    /// Export for which the context base:allocation was selected.
    context_for: Option<usize>,
}

impl Handshake {
    /// Starts a handshake: puts the greeting into `out`.
    pub fn new(limits: HandshakeLimits, out: &mut Vec<u8>) -> Self {
        proto::put_greeting(out, HandshakeFlags::all());
        let (flags, options, structured, secure) = (None, 0, false, false);
        Self { limits, flags, options, structured, secure, context_for: None }
    }

    /// Consumes at most one message of `input`; returns its length in bytes. Call again until it
    /// returns 0.
    pub fn feed(&mut self, input: &[u8], out: &mut Vec<u8>, dir: &dyn Directory) -> (usize, Step) {
        let Some(flags) = self.flags else { return self.client_flags(input) };
        let option = match proto::parse_option(input, self.limits.option_len_max) {
            Ok(None) => return (0, Step::More),
            Ok(Some(option)) => option,
            Err(OptionError::BadMagic) => return (0, Step::Close(Some(DropReason::BadMagic))),
            Err(OptionError::TooLong(_)) => {
                return (0, Step::Close(Some(DropReason::OptionTooLong)));
            }
        };
        self.options += 1;
        if self.options > self.limits.options_max {
            return (0, Step::Close(Some(DropReason::TooManyOptions)));
        }
        let step = self.option(option.code, option.data, flags, out, dir);
        (proto::OPTION_LEN + option.data.len(), step)
    }

    fn client_flags(&mut self, input: &[u8]) -> (usize, Step) {
        let Some(bits) = proto::Reader(input).u32() else { return (0, Step::More) };
        // A client without FIXED_NEWSTYLE may still use EXPORT_NAME, so only unknown bits end the
        // session.
        match HandshakeFlags::from_bits(bits) {
            Some(flags) => {
                self.flags = Some(flags);
                (4, Step::More)
            }
            None => (0, Step::Close(Some(DropReason::BadClientFlags))),
        }
    }

    fn option(
        &mut self,
        code: u32,
        data: &[u8],
        flags: HandshakeFlags,
        out: &mut Vec<u8>,
        dir: &dyn Directory,
    ) -> Step {
        let locked = self.limits.tls == TlsMode::Require && !self.secure;
        match code {
            // The protocol has no error reply for EXPORT_NAME.
            opt::EXPORT_NAME if locked => return Step::Close(Some(DropReason::Tls)),
            opt::STARTTLS => return self.start_tls(data, out),
            _ if locked && code != opt::ABORT => {
                refuse(out, code, rep::ERR_TLS_REQD, "TLS comes first on this server");
            }
            opt::EXPORT_NAME => return self.export_name(data, flags, out, dir),
            opt::ABORT => {
                proto::put_option_reply(out, code, rep::ACK, &[]);
                return Step::Close(None);
            }
            opt::LIST => list(data, out, dir),
            opt::INFO | opt::GO => return self.info(code, data, out, dir),
            opt::STRUCTURED_REPLY if data.is_empty() => {
                self.structured = true;
                proto::put_option_reply(out, code, rep::ACK, &[]);
            }
            opt::STRUCTURED_REPLY => refuse(out, code, rep::ERR_INVALID, "no data expected"),
            opt::LIST_META_CONTEXT | opt::SET_META_CONTEXT => self.meta(code, data, out, dir),
            _ => refuse(out, code, rep::ERR_UNSUP, "option not supported"),
        }
        Step::More
    }

    fn start_tls(&mut self, data: &[u8], out: &mut Vec<u8>) -> Step {
        let code = opt::STARTTLS;
        if self.limits.tls == TlsMode::Off {
            refuse(out, code, rep::ERR_POLICY, "no TLS on this server");
        } else if self.secure || !data.is_empty() {
            refuse(out, code, rep::ERR_INVALID, "once, and without data");
        } else {
            proto::put_option_reply(out, code, rep::ACK, &[]);
            // Forgets the options from before TLS, which an attacker could have injected.
            (self.secure, self.structured, self.context_for) = (true, false, None);
            return Step::StartTls;
        }
        Step::More
    }

    fn session(&self, export: usize, dir: &dyn Directory) -> Session {
        let info = dir.info(export);
        let min = block_min(&info);
        let most = info.max_request.min(self.limits.request_max).max(min);
        Session {
            export,
            request_max: most - most % min,
            payload_max: self.limits.request_max,
            info,
            structured: self.structured,
            block_status: self.structured && self.context_for == Some(export),
        }
    }

    fn export_name(
        &self,
        data: &[u8],
        flags: HandshakeFlags,
        out: &mut Vec<u8>,
        dir: &dyn Directory,
    ) -> Step {
        let Some(export) = find(dir, data) else {
            return Step::Close(Some(DropReason::UnknownExport));
        };
        let session = self.session(export, dir);
        out.extend_from_slice(&session.info.size.to_be_bytes());
        out.extend_from_slice(&transmission_flags(&session).bits().to_be_bytes());
        if !flags.contains(HandshakeFlags::NO_ZEROES) {
            out.extend_from_slice(&[0; 124]);
        }
        Step::Enter(session)
    }

    fn info(&self, code: u32, data: &[u8], out: &mut Vec<u8>, dir: &dyn Directory) -> Step {
        let Some(query) = proto::parse_info_query(data) else {
            refuse(out, code, rep::ERR_INVALID, "malformed request");
            return Step::More;
        };
        if query.name.len() > proto::STRING_MAX {
            refuse(out, code, rep::ERR_TOO_BIG, "name too long");
            return Step::More;
        }
        let Some(export) = find(dir, query.name) else {
            refuse(out, code, rep::ERR_UNKNOWN, "no such export");
            return Step::More;
        };
        let session = self.session(export, dir);
        let mut put = |kind: u16, parts: &[&[u8]]| {
            let kind = kind.to_be_bytes();
            let all: Vec<&[u8]> = std::iter::once(&kind[..]).chain(parts.iter().copied()).collect();
            proto::put_option_reply(out, code, rep::INFO, &all);
        };
        let flags = transmission_flags(&session).bits();
        put(info::EXPORT, &[&session.info.size.to_be_bytes(), &flags.to_be_bytes()]);
        if query.wanted.contains(&info::NAME) {
            put(info::NAME, &[dir.name(export).as_bytes()]);
        }
        if query.wanted.contains(&info::DESCRIPTION) && !session.info.description.is_empty() {
            put(info::DESCRIPTION, &[clip(&session.info.description)]);
        }
        // Sent even if not requested: that does no harm, and helps clients that use it.
        let (min, preferred) = (block_min(&session.info), block_preferred(&session.info));
        let (min, preferred) = (min.to_be_bytes(), preferred.to_be_bytes());
        put(info::BLOCK_SIZE, &[&min, &preferred, &session.request_max.to_be_bytes()]);
        proto::put_option_reply(out, code, rep::ACK, &[]);
        if code == opt::GO { Step::Enter(session) } else { Step::More }
    }

    fn meta(&mut self, code: u32, data: &[u8], out: &mut Vec<u8>, dir: &dyn Directory) {
        let set = code == opt::SET_META_CONTEXT;
        if set {
            // Each attempt replaces the earlier selection, also a failed one.
            self.context_for = None;
        }
        let Some(query) = proto::parse_meta_query(data) else {
            return refuse(out, code, rep::ERR_INVALID, "malformed request");
        };
        if !self.structured {
            return refuse(out, code, rep::ERR_INVALID, "structured replies come first");
        }
        let too_long = |s: &[u8]| s.len() > proto::STRING_MAX;
        if too_long(query.name) || query.queries.iter().any(|q| too_long(q)) {
            return refuse(out, code, rep::ERR_TOO_BIG, "name or query too long");
        }
        let Some(export) = find(dir, query.name) else {
            return refuse(out, code, rep::ERR_UNKNOWN, "no such export");
        };
        let exact = |q: &&[u8]| *q == proto::ALLOCATION_CONTEXT.as_bytes();
        let found = if set {
            query.queries.iter().any(exact)
        } else {
            // `LIST_META_CONTEXT` may query a namespace; without queries it asks for all contexts.
            let mut queries = query.queries.iter();
            query.queries.is_empty() || queries.any(|q| exact(q) || *q == b"base:")
        };
        if found {
            let id = if set { proto::ALLOCATION_CONTEXT_ID } else { 0 };
            let name = proto::ALLOCATION_CONTEXT.as_bytes();
            proto::put_option_reply(out, code, rep::META_CONTEXT, &[&id.to_be_bytes(), name]);
        }
        if set && found {
            self.context_for = Some(export);
        }
        proto::put_option_reply(out, code, rep::ACK, &[]);
    }
}

fn list(data: &[u8], out: &mut Vec<u8>, dir: &dyn Directory) {
    if !data.is_empty() {
        return refuse(out, opt::LIST, rep::ERR_INVALID, "no data expected");
    }
    for index in 0..dir.count() {
        let (name, details) = (dir.name(index).as_bytes(), dir.info(index).description);
        let len = (name.len() as u32).to_be_bytes();
        let parts: [&[u8]; 3] = [&len, name, clip(&details)];
        proto::put_option_reply(out, opt::LIST, rep::SERVER, &parts);
    }
    proto::put_option_reply(out, opt::LIST, rep::ACK, &[]);
}

fn refuse(out: &mut Vec<u8>, code: u32, reply: u32, why: &str) {
    proto::put_option_reply(out, code, reply, &[why.as_bytes()]);
}

fn find(dir: &dyn Directory, name: &[u8]) -> Option<usize> {
    (0..dir.count())
        .find(|&i| dir.name(i).as_bytes() == name)
        .or_else(|| (name.is_empty() && dir.count() > 0).then_some(0))
}

/// At most [`proto::STRING_MAX`] bytes of a text, truncated between characters.
fn clip(text: &str) -> &[u8] {
    let mut end = text.len().min(proto::STRING_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text.as_bytes()[..end]
}

/// Smallest request size in the form of the protocol: a power of two up to 64 KiB.
pub(crate) fn block_min(info: &ExportInfo) -> u32 {
    info.min_block.clamp(1, 1 << 16).next_power_of_two()
}

fn block_preferred(info: &ExportInfo) -> u32 {
    info.preferred_block.clamp(512, 32 << 20).next_power_of_two().max(block_min(info))
}

/// The transmission flags of a session; only features that the export supports.
pub fn transmission_flags(session: &Session) -> TransmissionFlags {
    use TransmissionFlags as F;
    let info = &session.info;
    let mut flags = F::HAS_FLAGS | F::SEND_FLUSH | F::CAN_MULTI_CONN | F::SEND_CACHE;
    flags.set(F::SEND_DF, session.structured);
    if info.read_only {
        return flags | F::READ_ONLY;
    }
    flags |= F::SEND_FUA | F::SEND_WRITE_ZEROES;
    flags.set(F::SEND_TRIM, info.can_trim);
    flags.set(F::SEND_FAST_ZERO, info.fast_zero);
    flags
}

#[cfg(test)]
mod tests;
