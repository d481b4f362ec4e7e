//! The NBD protocol: constants, parsing and encoding of messages. No I/O, no state.
//!
//! Everything is big-endian. Invariants:
//! 1. No function panics on any input; lengths are checked before use.
//! 2. Parsing allocates at most four times the length of the input (a list of queries), encoding no
//!    more than the message.
//! 3. For a prefix of a valid request or option a parser asks for more bytes; it returns neither an
//!    error nor a value.

use forebay_base::{Error, ErrorKind};

/// First eight bytes of a server's greeting ("NBDMAGIC").
pub const NBD_MAGIC: u64 = 0x4e42_444d_4147_4943;
/// Second eight bytes of the greeting, and the first of each option ("IHAVEOPT").
pub const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// First eight bytes of a reply to an option.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// First four bytes of a request.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// First four bytes of a simple reply.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// First four bytes of a structured reply chunk.
pub const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;

/// Length of a request header, bytes.
pub const REQUEST_LEN: usize = 28;
/// Length of an option header, bytes.
pub const OPTION_LEN: usize = 16;
/// Length of a simple reply header, bytes.
pub const SIMPLE_REPLY_LEN: usize = 16;
/// Length of a structured reply chunk header, bytes.
pub const CHUNK_LEN: usize = 20;
/// Longest reply header that precedes read data: chunk header and offset, bytes.
pub const READ_HEADER_MAX: usize = CHUNK_LEN + 8;
/// Longest string of the protocol (names, queries, descriptions), bytes.
pub const STRING_MAX: usize = 4096;
/// The id of the only metadata context that the server offers.
pub const ALLOCATION_CONTEXT_ID: u32 = 1;
/// The name of that context.
pub const ALLOCATION_CONTEXT: &str = "base:allocation";

bitflags::bitflags! {
    /// Handshake flags; server (greeting) and client (answer) use the same bits.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct HandshakeFlags: u32 {
        /// Options are negotiated in the fixed newstyle.
        const FIXED_NEWSTYLE = 1;
        /// The 124 zero bytes after the answer to EXPORT_NAME are omitted.
        const NO_ZEROES = 2;
    }

    /// Features of an export.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct TransmissionFlags: u16 {
        /// Always set: the flags field is valid.
        const HAS_FLAGS = 1;
        /// Writes are refused.
        const READ_ONLY = 1 << 1;
        /// FLUSH is supported.
        const SEND_FLUSH = 1 << 2;
        /// The FUA flag is honoured.
        const SEND_FUA = 1 << 3;
        /// TRIM is supported.
        const SEND_TRIM = 1 << 5;
        /// WRITE_ZEROES is supported.
        const SEND_WRITE_ZEROES = 1 << 6;
        /// The DF flag is honoured (structured replies only).
        const SEND_DF = 1 << 7;
        /// A flush on one connection covers completed writes of all connections.
        const CAN_MULTI_CONN = 1 << 8;
        /// CACHE is supported.
        const SEND_CACHE = 1 << 10;
        /// The FAST_ZERO flag is honoured.
        const SEND_FAST_ZERO = 1 << 11;
    }

    /// Flags of one request.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct CommandFlags: u16 {
        /// The reply is sent after the data is durable.
        const FUA = 1;
        /// WRITE_ZEROES: keep the space allocated.
        const NO_HOLE = 1 << 1;
        /// READ: reply with one chunk.
        const DF = 1 << 2;
        /// BLOCK_STATUS: one extent only.
        const REQ_ONE = 1 << 3;
        /// WRITE_ZEROES: fail instead of writing zeros slowly.
        const FAST_ZERO = 1 << 4;
        /// Unknown bits, kept so that they can be refused.
        const _ = !0;
    }
}

/// Option codes.
pub mod opt {
    /// Begin transmission, without an error reply (obsolete form of GO).
    pub const EXPORT_NAME: u32 = 1;
    /// End the session.
    pub const ABORT: u32 = 2;
    /// List the exports.
    pub const LIST: u32 = 3;
    /// Encrypt the session.
    pub const STARTTLS: u32 = 5;
    /// Query an export.
    pub const INFO: u32 = 6;
    /// Query an export and begin transmission.
    pub const GO: u32 = 7;
    /// Use structured replies.
    pub const STRUCTURED_REPLY: u32 = 8;
    /// List metadata contexts.
    pub const LIST_META_CONTEXT: u32 = 9;
    /// Choose metadata contexts.
    pub const SET_META_CONTEXT: u32 = 10;
    /// Use 64-bit headers.
    pub const EXTENDED_HEADERS: u32 = 11;
}

/// Option reply codes.
pub mod rep {
    /// Success.
    pub const ACK: u32 = 1;
    /// One export in a list.
    pub const SERVER: u32 = 2;
    /// One piece of information.
    pub const INFO: u32 = 3;
    /// One metadata context.
    pub const META_CONTEXT: u32 = 4;
    /// The option is not known or not supported.
    pub const ERR_UNSUP: u32 = (1 << 31) + 1;
    /// Forbidden by the server's policy.
    pub const ERR_POLICY: u32 = (1 << 31) + 2;
    /// TLS is required first.
    pub const ERR_TLS_REQD: u32 = (1 << 31) + 5;
    /// The option's data is invalid.
    pub const ERR_INVALID: u32 = (1 << 31) + 3;
    /// Unknown export.
    pub const ERR_UNKNOWN: u32 = (1 << 31) + 6;
    /// The option's data is too long.
    pub const ERR_TOO_BIG: u32 = (1 << 31) + 9;
}

/// Types of information in INFO and GO.
pub mod info {
    /// Size and flags.
    pub const EXPORT: u16 = 0;
    /// Canonical name.
    pub const NAME: u16 = 1;
    /// Description for users.
    pub const DESCRIPTION: u16 = 2;
    /// Block sizes.
    pub const BLOCK_SIZE: u16 = 3;
}

/// Structured reply chunk types.
pub mod chunk {
    /// Flag of the last chunk of a reply.
    pub const DONE: u16 = 1;
    /// No payload.
    pub const NONE: u16 = 0;
    /// Offset and data.
    pub const OFFSET_DATA: u16 = 1;
    /// Extents of one metadata context.
    pub const BLOCK_STATUS: u16 = 5;
    /// Error number and message.
    pub const ERROR: u16 = (1 << 15) + 1;
}

/// Error numbers of the protocol.
pub mod errno {
    /// Operation not permitted.
    pub const EPERM: u32 = 1;
    /// Input/output error.
    pub const EIO: u32 = 5;
    /// Cannot allocate memory.
    pub const ENOMEM: u32 = 12;
    /// Invalid argument.
    pub const EINVAL: u32 = 22;
    /// No space left on device.
    pub const ENOSPC: u32 = 28;
    /// Value too large.
    pub const EOVERFLOW: u32 = 75;
    /// Operation not supported.
    pub const ENOTSUP: u32 = 95;
    /// Server is shutting down.
    pub const ESHUTDOWN: u32 = 108;
}

/// Bits of a base:allocation extent.
pub mod state {
    /// The extent is not allocated.
    pub const HOLE: u32 = 1;
    /// The extent reads as zeros.
    pub const ZERO: u32 = 2;
}

/// The command of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Command {
    /// Read data.
    Read,
    /// Write data.
    Write,
    /// End the session.
    Disconnect,
    /// Make completed writes durable.
    Flush,
    /// Deallocate a range.
    Trim,
    /// Load a range into the cache.
    Cache,
    /// Zero a range.
    WriteZeroes,
    /// Query the allocation of a range.
    BlockStatus,
    /// Any other command, with its code.
    Unknown(u16),
}

impl Command {
    fn from_code(code: u16) -> Self {
        match code {
            0 => Self::Read,
            1 => Self::Write,
            2 => Self::Disconnect,
            3 => Self::Flush,
            4 => Self::Trim,
            5 => Self::Cache,
            6 => Self::WriteZeroes,
            7 => Self::BlockStatus,
            other => Self::Unknown(other),
        }
    }

    /// The code on the wire.
    pub fn code(self) -> u16 {
        match self {
            Self::Read => 0,
            Self::Write => 1,
            Self::Disconnect => 2,
            Self::Flush => 3,
            Self::Trim => 4,
            Self::Cache => 5,
            Self::WriteZeroes => 6,
            Self::BlockStatus => 7,
            Self::Unknown(code) => code,
        }
    }
}

/// A request header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// Flags, with unknown bits.
    pub flags: CommandFlags,
    /// The command.
    pub command: Command,
    /// The client's id of this request, which its reply repeats.
    pub cookie: u64,
    /// First byte.
    pub offset: u64,
    /// Length in bytes.
    pub len: u32,
}

/// The bytes are no message of this protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BadMagic;

/// An option header and its data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientOption<'a> {
    /// Option code.
    pub code: u32,
    /// The data of the option.
    pub data: &'a [u8],
}

/// Why an option cannot be parsed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OptionError {
    /// Wrong magic.
    BadMagic,
    /// Longer than the limit; the length in bytes.
    TooLong(u32),
}

/// A cursor over bytes that never goes past their end.
#[derive(Debug, Clone, Copy)]
pub struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    /// The next `n` bytes.
    pub fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (head, tail) = self.0.split_at_checked(n)?;
        self.0 = tail;
        Some(head)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, tail) = self.0.split_first_chunk::<N>()?;
        self.0 = tail;
        Some(*head)
    }

    /// The next two bytes.
    pub fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    /// The next four bytes.
    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    /// The next eight bytes.
    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }

    /// A string that follows its length.
    pub fn string(&mut self) -> Option<&'a [u8]> {
        let len = self.u32()?;
        self.take(usize::try_from(len).ok()?)
    }
}

/// Parses a request header. `Ok(None)`: the input is a prefix of one, shorter than [`REQUEST_LEN`].
#[inline]
pub fn parse_request(input: &[u8]) -> Result<Option<Request>, BadMagic> {
    let Some(head) = input.first_chunk::<REQUEST_LEN>() else {
        let magic = REQUEST_MAGIC.to_be_bytes();
        let seen = input.len().min(magic.len());
        return if input[..seen] == magic[..seen] { Ok(None) } else { Err(BadMagic) };
    };
    let mut r = Reader(head);
    let (Some(magic), Some(flags), Some(code), Some(cookie), Some(offset), Some(len)) =
        (r.u32(), r.u16(), r.u16(), r.u64(), r.u64(), r.u32())
    else {
        return Ok(None);
    };
    if magic != REQUEST_MAGIC {
        return Err(BadMagic);
    }
    let flags = CommandFlags::from_bits_retain(flags);
    Ok(Some(Request { flags, command: Command::from_code(code), cookie, offset, len }))
}

/// Builds a request header (for tests and clients).
pub fn put_request(out: &mut Vec<u8>, request: &Request) {
    out.extend_from_slice(&REQUEST_MAGIC.to_be_bytes());
    out.extend_from_slice(&request.flags.bits().to_be_bytes());
    out.extend_from_slice(&request.command.code().to_be_bytes());
    out.extend_from_slice(&request.cookie.to_be_bytes());
    out.extend_from_slice(&request.offset.to_be_bytes());
    out.extend_from_slice(&request.len.to_be_bytes());
}

/// Parses an option with its data. `Ok(None)`: more bytes are needed.
pub fn parse_option(input: &[u8], len_max: usize) -> Result<Option<ClientOption<'_>>, OptionError> {
    let magic = OPTION_MAGIC.to_be_bytes();
    let seen = input.len().min(magic.len());
    if input[..seen] != magic[..seen] {
        return Err(OptionError::BadMagic);
    }
    let mut r = Reader(input);
    let (Some(_), Some(code), Some(len)) = (r.u64(), r.u32(), r.u32()) else { return Ok(None) };
    if len as usize > len_max {
        return Err(OptionError::TooLong(len));
    }
    Ok(r.take(len as usize).map(|data| ClientOption { code, data }))
}

/// Builds an option (for tests and clients).
pub fn put_option(out: &mut Vec<u8>, code: u32, data: &[u8]) {
    out.extend_from_slice(&OPTION_MAGIC.to_be_bytes());
    out.extend_from_slice(&code.to_be_bytes());
    out.extend_from_slice(&(data.len() as u32).to_be_bytes());
    out.extend_from_slice(data);
}

/// Data of INFO and GO: name of the export, and the requested types of information.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InfoQuery<'a> {
    /// Export name.
    pub name: &'a [u8],
    /// Requested types, see [`info`].
    pub wanted: Vec<u16>,
}

/// Parses the data of INFO and GO. `None`: malformed.
pub fn parse_info_query(data: &[u8]) -> Option<InfoQuery<'_>> {
    let mut r = Reader(data);
    let name = r.string()?;
    let count = r.u16()?;
    if r.0.len() != usize::from(count) * 2 {
        return None;
    }
    let wanted = (0..count).map_while(|_| r.u16()).collect();
    Some(InfoQuery { name, wanted })
}

/// Data of LIST_META_CONTEXT and SET_META_CONTEXT.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetaQuery<'a> {
    /// Export name.
    pub name: &'a [u8],
    /// Requested contexts.
    pub queries: Vec<&'a [u8]>,
}

/// Parses the data of the two metadata options. `None`: malformed.
pub fn parse_meta_query(data: &[u8]) -> Option<MetaQuery<'_>> {
    let mut r = Reader(data);
    let name = r.string()?;
    let count = r.u32()? as usize;
    // Each query takes at least its length field, so a larger count is invalid.
    if count > r.0.len() / 4 {
        return None;
    }
    let mut queries = Vec::with_capacity(count);
    for _ in 0..count {
        queries.push(r.string()?);
    }
    r.0.is_empty().then_some(MetaQuery { name, queries })
}

/// Encodes the server's greeting.
pub fn put_greeting(out: &mut Vec<u8>, flags: HandshakeFlags) {
    out.extend_from_slice(&NBD_MAGIC.to_be_bytes());
    out.extend_from_slice(&OPTION_MAGIC.to_be_bytes());
    out.extend_from_slice(&(flags.bits() as u16).to_be_bytes());
}

/// Encodes a reply to an option.
pub fn put_option_reply(out: &mut Vec<u8>, option: u32, reply: u32, parts: &[&[u8]]) {
    let len: usize = parts.iter().map(|p| p.len()).sum();
    out.extend_from_slice(&OPTION_REPLY_MAGIC.to_be_bytes());
    out.extend_from_slice(&option.to_be_bytes());
    out.extend_from_slice(&reply.to_be_bytes());
    out.extend_from_slice(&(len as u32).to_be_bytes());
    parts.iter().for_each(|p| out.extend_from_slice(p));
}

/// Header of a simple reply. If `error` is 0, the data of a read follow it.
#[inline]
pub fn simple_reply(cookie: u64, error: u32) -> [u8; SIMPLE_REPLY_LEN] {
    let mut out = [0; SIMPLE_REPLY_LEN];
    out[..4].copy_from_slice(&SIMPLE_REPLY_MAGIC.to_be_bytes());
    out[4..8].copy_from_slice(&error.to_be_bytes());
    out[8..].copy_from_slice(&cookie.to_be_bytes());
    out
}

/// Header of a structured reply chunk whose payload has `len` bytes.
#[inline]
pub fn chunk_header(cookie: u64, flags: u16, kind: u16, len: u32) -> [u8; CHUNK_LEN] {
    let mut out = [0; CHUNK_LEN];
    out[..4].copy_from_slice(&STRUCTURED_REPLY_MAGIC.to_be_bytes());
    out[4..6].copy_from_slice(&flags.to_be_bytes());
    out[6..8].copy_from_slice(&kind.to_be_bytes());
    out[8..16].copy_from_slice(&cookie.to_be_bytes());
    out[16..].copy_from_slice(&len.to_be_bytes());
    out
}

/// The header of a successful reply to a read, and its length in bytes.
#[inline]
pub fn read_header(request: &Request, structured: bool) -> ([u8; READ_HEADER_MAX], usize) {
    let mut out = [0; READ_HEADER_MAX];
    if !structured {
        out[..SIMPLE_REPLY_LEN].copy_from_slice(&simple_reply(request.cookie, 0));
        return (out, SIMPLE_REPLY_LEN);
    }
    // The length field includes the offset, so a request within 8 bytes of 4 GiB must be refused
    // before; the limit of a request's length ensures that.
    let len = request.len.saturating_add(8);
    let header = chunk_header(request.cookie, chunk::DONE, chunk::OFFSET_DATA, len);
    out[..CHUNK_LEN].copy_from_slice(&header);
    out[CHUNK_LEN..].copy_from_slice(&request.offset.to_be_bytes());
    (out, READ_HEADER_MAX)
}

/// Encodes a complete reply without data: `error` 0 is success. Only replies to reads and block
/// status have to be structured; the others are simple replies.
pub fn put_status(out: &mut Vec<u8>, request: &Request, structured: bool, error: u32) {
    let needs_chunk = matches!(request.command, Command::Read | Command::BlockStatus);
    if !(structured && needs_chunk) {
        out.extend_from_slice(&simple_reply(request.cookie, error));
    } else if error == 0 {
        out.extend_from_slice(&chunk_header(request.cookie, chunk::DONE, chunk::NONE, 0));
    } else {
        let text = error_text(error).as_bytes();
        let len = 6 + text.len() as u32;
        out.extend_from_slice(&chunk_header(request.cookie, chunk::DONE, chunk::ERROR, len));
        out.extend_from_slice(&error.to_be_bytes());
        out.extend_from_slice(&(text.len() as u16).to_be_bytes());
        out.extend_from_slice(text);
    }
}

/// Encodes a complete reply to BLOCK_STATUS: `(length, state bits)` for each extent.
pub fn put_block_status(out: &mut Vec<u8>, cookie: u64, extents: &[(u32, u32)]) {
    let len = 4 + 8 * extents.len() as u32;
    out.extend_from_slice(&chunk_header(cookie, chunk::DONE, chunk::BLOCK_STATUS, len));
    out.extend_from_slice(&ALLOCATION_CONTEXT_ID.to_be_bytes());
    for (len, bits) in extents {
        out.extend_from_slice(&len.to_be_bytes());
        out.extend_from_slice(&bits.to_be_bytes());
    }
}

/// A short message for an error chunk.
pub fn error_text(error: u32) -> &'static str {
    match error {
        errno::EPERM => "not permitted",
        errno::ENOMEM => "out of memory",
        errno::EINVAL => "invalid request",
        errno::ENOSPC => "no space left, or past the end",
        errno::EOVERFLOW => "reply too large",
        errno::ENOTSUP => "not supported",
        errno::ESHUTDOWN => "shutting down",
        _ => "input/output error",
    }
}

/// The error number of the protocol for an error.
pub fn error_number(error: &Error) -> u32 {
    match (error.kind(), error.errno()) {
        (ErrorKind::ReadOnly | ErrorKind::Permission, _) | (_, 1 | 13 | 30) => errno::EPERM,
        (ErrorKind::NoSpace, _) | (_, 27 | 28 | 122) => errno::ENOSPC,
        (ErrorKind::NoMemory, _) | (_, 12) => errno::ENOMEM,
        (ErrorKind::Shutdown, _) => errno::ESHUTDOWN,
        (ErrorKind::Unsupported, _) | (_, 95) => errno::ENOTSUP,
        (ErrorKind::InvalidInput | ErrorKind::Unaligned | ErrorKind::OutOfRange, _) => {
            errno::EINVAL
        }
        _ => errno::EIO,
    }
}

#[cfg(test)]
mod tests;
