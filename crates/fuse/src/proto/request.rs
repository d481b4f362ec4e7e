//! Requests of the kernel. See [`crate::proto`] for the invariants.
//!
//! No locks.

use super::consts::{
    FSYNC_FDATASYNC, GETATTR_FH, IN_HEADER_BYTES, InitFlags, Valid, WRITE_HEADER_BYTES, opcode,
};
use forebay_base::codec::Reader;
use forebay_base::{Error, ErrorKind, Result};

/// The header of every request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Length of the complete message, bytes.
    pub len: u32,
    /// Code of the request; see [`opcode`].
    pub opcode: u32,
    /// Number of the request, which its reply repeats.
    pub unique: u64,
    /// The inode on which it acts.
    pub node: u64,
    /// User of the calling process.
    pub uid: u32,
    /// Group of the calling process.
    pub gid: u32,
    /// The calling process in the daemon's pid namespace; 0 if it is not visible there.
    pub pid: u32,
    /// Length of the extensions at the end of the message, in units of eight bytes.
    pub ext_words: u16,
}

/// A parsed request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request<'a> {
    /// The header.
    pub header: Header,
    /// Operation and arguments.
    pub op: Op<'a>,
}

/// Operation of a request, with its arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "the kernel's names; units as in the contract of vfs")]
pub enum Op<'a> {
    Lookup {
        name: &'a [u8],
    },
    Forget {
        count: u64,
    },
    BatchForget(Forgets<'a>),
    GetAttr {
        fh: Option<u64>,
    },
    SetAttr(SetAttrIn),
    ReadLink,
    SymLink {
        name: &'a [u8],
        target: &'a [u8],
    },
    MkNod {
        mode: u32,
        rdev: u32,
        name: &'a [u8],
    },
    MkDir {
        mode: u32,
        name: &'a [u8],
    },
    Unlink {
        name: &'a [u8],
    },
    RmDir {
        name: &'a [u8],
    },
    Rename {
        new_dir: u64,
        flags: u32,
        name: &'a [u8],
        new_name: &'a [u8],
    },
    Link {
        old: u64,
        name: &'a [u8],
    },
    Open {
        flags: u32,
        kill: u32,
    },
    Read(ReadIn),
    Write {
        io: WriteIn,
        data: &'a [u8],
    },
    StatFs,
    Release {
        fh: u64,
    },
    Fsync {
        fh: u64,
        data_only: bool,
    },
    SetXattr {
        name: &'a [u8],
        value: &'a [u8],
        flags: u32,
    },
    GetXattr {
        name: &'a [u8],
        size: u32,
    },
    ListXattr {
        size: u32,
    },
    RemoveXattr {
        name: &'a [u8],
    },
    Flush,
    Init(InitIn),
    OpenDir {
        flags: u32,
    },
    ReadDir {
        io: ReadIn,
        plus: bool,
    },
    ReleaseDir {
        fh: u64,
    },
    FsyncDir {
        fh: u64,
        data_only: bool,
    },
    Create {
        flags: u32,
        mode: u32,
        kill: u32,
        name: &'a [u8],
    },
    TmpFile {
        flags: u32,
        mode: u32,
        kill: u32,
    },
    Interrupt {
        unique: u64,
    },
    Destroy,
    Ioctl(IoctlIn<'a>),
    Fallocate {
        fh: u64,
        offset: u64,
        len: u64,
        mode: u32,
    },
    Lseek {
        fh: u64,
        offset: u64,
        whence: u32,
    },
    CopyFileRange(CopyIn),
    SyncFs,
    Statx {
        fh: Option<u64>,
        mask: u32,
    },
    /// An unknown operation; the answer is ENOSYS, so the kernel does not send it again.
    Unknown,
}

/// Arguments of `SETATTR`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the kernel's names")]
pub struct SetAttrIn {
    pub valid: Valid,
    pub size: u64,
    pub atime: (u64, u32),
    pub mtime: (u64, u32),
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
}

/// Arguments of `READ`, `READDIR` and `READDIRPLUS`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the kernel's names")]
pub struct ReadIn {
    pub fh: u64,
    pub offset: u64,
    pub size: u32,
    pub read_flags: u32,
    /// Current flags of the open file.
    pub flags: u32,
}

/// Arguments of `WRITE`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the kernel's names")]
pub struct WriteIn {
    pub fh: u64,
    pub offset: u64,
    pub size: u32,
    pub write_flags: u32,
    /// Current flags of the open file.
    pub flags: u32,
}

/// Arguments of `INIT`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the kernel's names")]
pub struct InitIn {
    pub major: u32,
    pub minor: u32,
    pub max_readahead: u32,
    pub flags: InitFlags,
}

/// Arguments of `IOCTL`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the kernel's names")]
pub struct IoctlIn<'a> {
    pub fh: u64,
    pub flags: u32,
    pub cmd: u32,
    pub input: &'a [u8],
    pub out_size: u32,
}

/// Arguments of `COPY_FILE_RANGE` and `COPY_FILE_RANGE_64`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the kernel's names")]
pub struct CopyIn {
    pub fh_in: u64,
    pub offset_in: u64,
    pub node_out: u64,
    pub fh_out: u64,
    pub offset_out: u64,
    pub len: u64,
    pub flags: u64,
    /// `COPY_FILE_RANGE_64`: the reply has a 64-bit length.
    pub wide: bool,
}

/// The inodes of a `BATCH_FORGET`, each with the number to subtract from its count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Forgets<'a>(&'a [u8]);

impl Forgets<'_> {
    /// Pairs of inode and number.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
        self.0.chunks_exact(16).map(move |one| (number(&one[..8]), number(&one[8..])))
    }
}

impl Header {
    /// Parses the first bytes of a message.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let mut r = Reader::new("FUSE header", bytes);
        let header = Self {
            len: r.u32("len")?,
            opcode: r.u32("opcode")?,
            unique: r.u64("unique")?,
            node: r.u64("nodeid")?,
            uid: r.u32("uid")?,
            gid: r.u32("gid")?,
            pid: r.u32("pid")?,
            ext_words: r.u16("total_extlen")?,
        };
        r.u16("padding")?;
        Ok(header)
    }

    fn bad(&self, why: &str) -> Error {
        let text = format!("request {} of {} bytes: {why}", self.opcode, self.len);
        Error::new(ErrorKind::Protocol, "parse", text)
    }
}

/// A NUL-terminated string.
fn name<'a>(r: &mut Reader<'a>) -> Result<&'a [u8]> {
    let mut ahead = r.clone();
    let rest = ahead.bytes("name", ahead.remaining())?;
    let Some(len) = rest.iter().position(|b| *b == 0) else {
        return Err(r.bad("name", "without its NUL"));
    };
    let name = r.bytes("name", len)?;
    r.u8("NUL")?;
    Ok(name)
}

impl<'a> Request<'a> {
    /// Parses a complete message. The payload of a `WRITE` may be in another buffer:
    /// [`Request::parse_write`].
    pub fn parse(message: &'a [u8]) -> Result<Self> {
        let header = Header::parse(message)?;
        if header.len as usize != message.len() {
            return Err(header.bad("another length than was read"));
        }
        if header.opcode == opcode::WRITE && message.len() >= WRITE_HEADER_BYTES {
            let (head, data) = message.split_at(WRITE_HEADER_BYTES);
            return Self::parse_write(head, data);
        }
        let args = &message[IN_HEADER_BYTES..];
        let Some(len) = args.len().checked_sub(usize::from(header.ext_words) * 8) else {
            return Err(header.bad("extensions are longer than it"));
        };
        let mut r = Reader::new("FUSE request", &args[..len]);
        let op = parse_op(&header, &mut r)?;
        if !matches!(op, Op::Unknown) {
            r.finish()?;
        }
        Ok(Self { header, op })
    }

    /// Parses a `WRITE` whose payload is in another buffer than its head.
    pub fn parse_write(head: &[u8], data: &'a [u8]) -> Result<Self> {
        let header = Header::parse(head)?;
        if header.len as usize != head.len() + data.len() || head.len() != WRITE_HEADER_BYTES {
            return Err(header.bad("another length than was read"));
        }
        let mut r = Reader::new("FUSE write", &head[IN_HEADER_BYTES..]);
        let io = WriteIn {
            fh: r.u64("fh")?,
            offset: r.u64("offset")?,
            size: r.u32("size")?,
            write_flags: r.u32("write_flags")?,
            flags: {
                r.u64("lock_owner")?;
                r.u32("flags")?
            },
        };
        match io.size as usize == data.len() {
            true => Ok(Self { header, op: Op::Write { io, data } }),
            false => Err(header.bad("its size is not that of its payload")),
        }
    }
}

fn parse_op<'a>(header: &Header, r: &mut Reader<'a>) -> Result<Op<'a>> {
    let op = match header.opcode {
        opcode::LOOKUP => Op::Lookup { name: name(r)? },
        opcode::SYMLINK => Op::SymLink { name: name(r)?, target: name(r)? },
        opcode::UNLINK => Op::Unlink { name: name(r)? },
        opcode::RMDIR => Op::RmDir { name: name(r)? },
        opcode::MKNOD => {
            let (mode, rdev) = (r.u32("mode")?, r.u32("rdev")?);
            r.u64("umask")?;
            Op::MkNod { mode, rdev, name: name(r)? }
        }
        opcode::MKDIR => {
            let mode = r.u32("mode")?;
            r.u32("umask")?;
            Op::MkDir { mode, name: name(r)? }
        }
        opcode::RENAME => {
            let new_dir = r.u64("newdir")?;
            Op::Rename { new_dir, flags: 0, name: name(r)?, new_name: name(r)? }
        }
        opcode::RENAME2 => {
            let (new_dir, flags) = (r.u64("newdir")?, r.u32("flags")?);
            r.u32("padding")?;
            Op::Rename { new_dir, flags, name: name(r)?, new_name: name(r)? }
        }
        opcode::LINK => Op::Link { old: r.u64("oldnodeid")?, name: name(r)? },
        opcode::REMOVEXATTR => Op::RemoveXattr { name: name(r)? },
        opcode::CREATE | opcode::TMPFILE => create(header.opcode, r)?,
        opcode::SETXATTR => {
            let (size, flags) = (r.u32("size")?, r.u32("flags")?);
            Op::SetXattr { name: name(r)?, value: r.bytes("value", size as usize)?, flags }
        }
        opcode::GETXATTR => {
            let size = r.u32("size")?;
            r.u32("padding")?;
            Op::GetXattr { name: name(r)?, size }
        }
        opcode::FORGET => Op::Forget { count: r.u64("nlookup")? },
        opcode::BATCH_FORGET => {
            let count = r.u32("count")? as usize;
            r.u32("dummy")?;
            Op::BatchForget(Forgets(r.bytes("forgets", count.saturating_mul(16))?))
        }
        opcode::INTERRUPT => Op::Interrupt { unique: r.u64("unique")? },
        opcode::READLINK => Op::ReadLink,
        opcode::STATFS => Op::StatFs,
        opcode::DESTROY => Op::Destroy,
        opcode::SYNCFS => {
            r.u64("padding")?;
            Op::SyncFs
        }
        opcode::INIT => init(r)?,
        opcode::GETATTR | opcode::SETATTR | opcode::STATX => attributes(header.opcode, r)?,
        _ => return content(header, r),
    };
    Ok(op)
}

/// Parses requests about open files and their content.
fn content<'a>(header: &Header, r: &mut Reader<'a>) -> Result<Op<'a>> {
    let op = match header.opcode {
        opcode::OPEN => Op::Open { flags: r.u32("flags")?, kill: r.u32("open_flags")? },
        opcode::OPENDIR => {
            let flags = r.u32("flags")?;
            r.u32("open_flags")?;
            Op::OpenDir { flags }
        }
        opcode::READ => Op::Read(read(r)?),
        opcode::READDIR => Op::ReadDir { io: read(r)?, plus: false },
        opcode::READDIRPLUS => Op::ReadDir { io: read(r)?, plus: true },
        opcode::WRITE => return Err(header.bad("too short")),
        opcode::RELEASE | opcode::RELEASEDIR => {
            let fh = r.u64("fh")?;
            r.bytes("flags", 16)?;
            match header.opcode {
                opcode::RELEASE => Op::Release { fh },
                _ => Op::ReleaseDir { fh },
            }
        }
        opcode::FSYNC | opcode::FSYNCDIR => {
            let (fh, flags) = (r.u64("fh")?, r.u32("fsync_flags")?);
            r.u32("padding")?;
            let data_only = flags & FSYNC_FDATASYNC != 0;
            match header.opcode {
                opcode::FSYNC => Op::Fsync { fh, data_only },
                _ => Op::FsyncDir { fh, data_only },
            }
        }
        opcode::FLUSH => {
            r.bytes("fh, lock_owner", 24)?;
            Op::Flush
        }
        opcode::LISTXATTR => {
            let size = r.u32("size")?;
            r.u32("padding")?;
            Op::ListXattr { size }
        }
        opcode::IOCTL => ioctl(r)?,
        opcode::FALLOCATE => {
            let (fh, offset, len) = (r.u64("fh")?, r.u64("offset")?, r.u64("length")?);
            let mode = r.u32("mode")?;
            r.u32("padding")?;
            Op::Fallocate { fh, offset, len, mode }
        }
        opcode::LSEEK => {
            let (fh, offset, whence) = (r.u64("fh")?, r.u64("offset")?, r.u32("whence")?);
            r.u32("padding")?;
            Op::Lseek { fh, offset, whence }
        }
        opcode::COPY_FILE_RANGE | opcode::COPY_FILE_RANGE_64 => Op::CopyFileRange(CopyIn {
            fh_in: r.u64("fh_in")?,
            offset_in: r.u64("off_in")?,
            node_out: r.u64("nodeid_out")?,
            fh_out: r.u64("fh_out")?,
            offset_out: r.u64("off_out")?,
            len: r.u64("len")?,
            flags: r.u64("flags")?,
            wide: header.opcode == opcode::COPY_FILE_RANGE_64,
        }),
        _ => Op::Unknown,
    };
    Ok(op)
}

fn create<'a>(opcode: u32, r: &mut Reader<'a>) -> Result<Op<'a>> {
    let (flags, mode) = (r.u32("flags")?, r.u32("mode")?);
    r.u32("umask")?;
    let (kill, name) = (r.u32("open_flags")?, name(r)?);
    Ok(match opcode {
        opcode::CREATE => Op::Create { flags, mode, kill, name },
        // `TMPFILE` has a name, which is always `/`.
        _ => Op::TmpFile { flags, mode, kill },
    })
}

fn init<'a>(r: &mut Reader<'a>) -> Result<Op<'a>> {
    let (major, minor) = (r.u32("major")?, r.u32("minor")?);
    let (max_readahead, low) = (r.u32("max_readahead")?, r.u32("flags")?);
    // Before version 7.36 there is no second word of flags.
    let high = if r.remaining() > 0 { r.u32("flags2")? } else { 0 };
    r.bytes("unused", r.remaining())?;
    let flags = InitFlags::from_bits_truncate(u64::from(high) << 32 | u64::from(low));
    Ok(Op::Init(InitIn { major, minor, max_readahead, flags }))
}

fn attributes<'a>(opcode: u32, r: &mut Reader<'a>) -> Result<Op<'a>> {
    if opcode != opcode::SETATTR {
        let flags = r.u32("getattr_flags")?;
        r.u32("reserved")?;
        let fh = r.u64("fh")?;
        let fh = (flags & GETATTR_FH != 0).then_some(fh);
        if opcode == opcode::GETATTR {
            return Ok(Op::GetAttr { fh });
        }
        r.u32("sx_flags")?;
        return Ok(Op::Statx { fh, mask: r.u32("sx_mask")? });
    }
    let valid = Valid::from_bits_truncate(r.u32("valid")?);
    r.bytes("padding, fh", 12)?;
    let size = r.u64("size")?;
    r.u64("lock_owner")?;
    let (atime, mtime) = (r.u64("atime")?, r.u64("mtime")?);
    r.u64("ctime")?;
    let (atime_nsec, mtime_nsec) = (r.u32("atimensec")?, r.u32("mtimensec")?);
    r.u32("ctimensec")?;
    let mode = r.u32("mode")?;
    r.u32("unused4")?;
    let (uid, gid) = (r.u32("uid")?, r.u32("gid")?);
    r.u32("unused5")?;
    let (atime, mtime) = ((atime, atime_nsec), (mtime, mtime_nsec));
    Ok(Op::SetAttr(SetAttrIn { valid, size, atime, mtime, mode, uid, gid }))
}

fn read(r: &mut Reader<'_>) -> Result<ReadIn> {
    let (fh, offset) = (r.u64("fh")?, r.u64("offset")?);
    let (size, read_flags) = (r.u32("size")?, r.u32("read_flags")?);
    r.u64("lock_owner")?;
    let flags = r.u32("flags")?;
    r.u32("padding")?;
    Ok(ReadIn { fh, offset, size, read_flags, flags })
}

fn ioctl<'a>(r: &mut Reader<'a>) -> Result<Op<'a>> {
    let (fh, flags, cmd) = (r.u64("fh")?, r.u32("flags")?, r.u32("cmd")?);
    r.u64("arg")?;
    let (in_size, out_size) = (r.u32("in_size")?, r.u32("out_size")?);
    let input = r.bytes("input", in_size as usize)?;
    Ok(Op::Ioctl(IoctlIn { fh, flags, cmd, input, out_size }))
}
