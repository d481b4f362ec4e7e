//! The stored form of an inode, and of a change of some of its attributes.
//!
//! Invariants: N1 the file type is one of seven. N2 nanoseconds are below a second. N3 a size is at
//! most [`MAX_FILE_BYTES`].
//!
//! No locks, no state.

use super::{MAX_DATA_ID, MAX_FILE_BYTES};
use forebay_base::Result;
use forebay_base::codec::{Reader, Writer};

/// Bytes of a stored inode.
pub const INODE_BYTES: usize = 128;
/// Inode of the root directory.
pub const ROOT_INO: u64 = 1;

/// A time: seconds since 1970, which may be negative, and nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Time {
    /// Seconds.
    pub seconds: i64,
    /// Nanoseconds, below 1,000,000,000.
    pub nanos: u32,
}

impl Time {
    fn encode_into(self, field: &str, w: &mut Writer<'_>) -> Result<()> {
        w.i64(field, self.seconds)?;
        w.u32(field, self.nanos)
    }

    fn decode(field: &str, r: &mut Reader<'_>) -> Result<Self> {
        let time = Self { seconds: r.i64(field)?, nanos: r.u32(field)? };
        match time.nanos {
            0..1_000_000_000 => Ok(time),
            _ => Err(r.bad(field, "nanoseconds of a second or more")),
        }
    }
}

/// Type of a file, as in the upper four bits of `st_mode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileType {
    /// A named pipe.
    Fifo = 1,
    /// A character device.
    CharDevice = 2,
    /// A directory.
    Directory = 4,
    /// A block device.
    BlockDevice = 6,
    /// A regular file.
    Regular = 8,
    /// A symbolic link.
    Symlink = 10,
    /// A socket.
    Socket = 12,
}

impl FileType {
    /// The type of a number as in `d_type` and `st_mode >> 12`.
    pub const fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            1 => Self::Fifo,
            2 => Self::CharDevice,
            4 => Self::Directory,
            6 => Self::BlockDevice,
            8 => Self::Regular,
            10 => Self::Symlink,
            12 => Self::Socket,
            _ => return None,
        })
    }

    pub(crate) fn decode(field: &str, r: &mut Reader<'_>) -> Result<Self> {
        let code = r.u8(field)?;
        Self::from_code(code).ok_or_else(|| r.bad(field, &format!("{code} is no type of file")))
    }
}

/// A stored inode; its number is in the key or in the change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Inode {
    /// Type and permissions, as in `st_mode`; no bits above 16.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Number of links.
    pub nlink: u32,
    /// Policy bits: stored here, and interpreted by the layers above.
    pub flags: u32,
    /// Id of its content; 0: it has none.
    pub data_id: u64,
    /// Size, bytes.
    pub size: u64,
    /// Bytes of storage of its content.
    pub stored_bytes: u64,
    /// Device number of a device.
    pub rdev: u64,
    /// Parent of a directory, 0 for anything else.
    pub parent: u64,
    /// Number of changes.
    pub version: u64,
    /// Time of access.
    pub atime: Time,
    /// Time of modification of the content.
    pub mtime: Time,
    /// Time of change.
    pub ctime: Time,
    /// Time of creation.
    pub btime: Time,
}

impl Inode {
    /// The type of the file; `None` for a mode that decoders refuse.
    pub fn file_type(&self) -> Option<FileType> {
        u8::try_from(self.mode >> 12).ok().and_then(FileType::from_code)
    }

    /// Writes the inode: 128 bytes.
    pub fn encode_into(&self, w: &mut Writer<'_>) -> Result<()> {
        w.u32("mode", self.mode)?;
        w.u32("uid", self.uid)?;
        w.u32("gid", self.gid)?;
        w.u32("nlink", self.nlink)?;
        w.u32("flags", self.flags)?;
        w.zeros("reserved", 4)?;
        w.u64("data id", self.data_id)?;
        w.u64("size", self.size)?;
        w.u64("stored bytes", self.stored_bytes)?;
        w.u64("rdev", self.rdev)?;
        w.u64("parent", self.parent)?;
        w.u64("version", self.version)?;
        self.atime.encode_into("atime", w)?;
        self.mtime.encode_into("mtime", w)?;
        self.ctime.encode_into("ctime", w)?;
        self.btime.encode_into("btime", w)?;
        w.zeros("reserved", 8)
    }

    /// Reads an inode.
    pub fn decode(r: &mut Reader<'_>) -> Result<Self> {
        let mode = decode_mode(r)?;
        let (uid, gid, nlink) = (r.u32("uid")?, r.u32("gid")?, r.u32("nlink")?);
        let flags = r.u32("flags")?;
        r.zeros("reserved", 4)?;
        let this = Self {
            mode,
            uid,
            gid,
            nlink,
            flags,
            data_id: decode_data_id_or_none("data id", r)?,
            size: decode_size(r)?,
            stored_bytes: r.u64("stored bytes")?,
            rdev: r.u64("rdev")?,
            parent: r.u64("parent")?,
            version: r.u64("version")?,
            atime: Time::decode("atime", r)?,
            mtime: Time::decode("mtime", r)?,
            ctime: Time::decode("ctime", r)?,
            btime: Time::decode("btime", r)?,
        };
        r.zeros("reserved", 8)?;
        Ok(this)
    }
}

/// Attributes to set; `None`: unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SetAttributes {
    /// Type and permissions; the type must not change.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Number of links.
    pub nlink: Option<u32>,
    /// Policy bits.
    pub flags: Option<u32>,
    /// Parent of a directory.
    pub parent: Option<u64>,
    /// Number of changes.
    pub version: Option<u64>,
    /// Time of access.
    pub atime: Option<Time>,
    /// Time of modification of the content.
    pub mtime: Option<Time>,
    /// Time of change.
    pub ctime: Option<Time>,
    /// Time of creation.
    pub btime: Option<Time>,
}

impl SetAttributes {
    const KNOWN: u32 = (1 << 11) - 1;

    fn mask(&self) -> u32 {
        let present = [
            self.mode.is_some(),
            self.uid.is_some(),
            self.gid.is_some(),
            self.nlink.is_some(),
            self.flags.is_some(),
            self.parent.is_some(),
            self.version.is_some(),
            self.atime.is_some(),
            self.mtime.is_some(),
            self.ctime.is_some(),
            self.btime.is_some(),
        ];
        present.iter().rev().fold(0, |mask, set| mask << 1 | u32::from(*set))
    }

    /// Writes a mask and the attributes to set, in the order of the fields.
    pub fn encode_into(&self, w: &mut Writer<'_>) -> Result<()> {
        w.u32("mask", self.mask())?;
        let words = [("mode", self.mode), ("uid", self.uid), ("gid", self.gid)];
        let more = [("nlink", self.nlink), ("flags", self.flags)];
        for (field, value) in words.into_iter().chain(more) {
            value.map_or(Ok(()), |value| w.u32(field, value))?;
        }
        for (field, value) in [("parent", self.parent), ("version", self.version)] {
            value.map_or(Ok(()), |value| w.u64(field, value))?;
        }
        let times = [("atime", self.atime), ("mtime", self.mtime), ("ctime", self.ctime)];
        for (field, value) in times.into_iter().chain([("btime", self.btime)]) {
            value.map_or(Ok(()), |value| value.encode_into(field, w))?;
        }
        Ok(())
    }

    /// Reads the attributes to set.
    pub fn decode(r: &mut Reader<'_>) -> Result<Self> {
        let mask = r.u32("mask")?;
        if mask & !Self::KNOWN != 0 {
            return Err(r.bad("mask", "unknown bits"));
        }
        let set = |bit: u32| mask & 1 << bit != 0;
        let mode = set(0).then(|| decode_mode(r)).transpose()?;
        let mut word = |bit, field| set(bit).then(|| r.u32(field)).transpose();
        let (uid, gid) = (word(1, "uid")?, word(2, "gid")?);
        let (nlink, flags) = (word(3, "nlink")?, word(4, "flags")?);
        let mut long = |bit, field| set(bit).then(|| r.u64(field)).transpose();
        let (parent, version) = (long(5, "parent")?, long(6, "version")?);
        let mut time = |bit, field| set(bit).then(|| Time::decode(field, r)).transpose();
        let (atime, mtime) = (time(7, "atime")?, time(8, "mtime")?);
        let (ctime, btime) = (time(9, "ctime")?, time(10, "btime")?);
        Ok(Self { mode, uid, gid, nlink, flags, parent, version, atime, mtime, ctime, btime })
    }
}

fn decode_mode(r: &mut Reader<'_>) -> Result<u32> {
    let mode = r.u32("mode")?;
    let code = u8::try_from(mode >> 12).ok();
    match code.and_then(FileType::from_code) {
        Some(_) => Ok(mode),
        None => Err(r.bad("mode", &format!("{mode:#o} is of no type of file"))),
    }
}

/// Reads a size within the limit.
pub(crate) fn decode_size(r: &mut Reader<'_>) -> Result<u64> {
    match r.u64("size")? {
        size @ 0..=MAX_FILE_BYTES => Ok(size),
        size => Err(r.bad("size", &format!("{size} bytes are more than a file can have"))),
    }
}

/// Reads a data id.
pub(crate) fn decode_data_id(field: &str, r: &mut Reader<'_>) -> Result<u64> {
    match r.u64(field)? {
        id @ 1..=MAX_DATA_ID => Ok(id),
        id => Err(r.bad(field, &format!("{id} is no id of data"))),
    }
}

/// Reads a data id, or 0.
pub(crate) fn decode_data_id_or_none(field: &str, r: &mut Reader<'_>) -> Result<u64> {
    match r.u64(field)? {
        id @ 0..=MAX_DATA_ID => Ok(id),
        id => Err(r.bad(field, &format!("{id} is no id of data"))),
    }
}
