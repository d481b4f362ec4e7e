//! How the types of the file-system contract are written into frames, and read from them. No I/O.
//!
//! L1 A decoded value is within the bounds of its type, or refused: no input makes this panic, or
//! allocate more than a small multiple of its own length.

use forebay_base::codec::Reader;
use forebay_base::{Error, ErrorKind, IoFlags, Result};
use forebay_vfs::{
    Attr, Cookie, DirEntry, Fallocate, FileKind, Ino, NewInode, OpenFlags, Privileges, RenameFlags,
    Seek, SetAttr, SetTime, SetXattr, StatFs, Timestamp,
};

/// Something in a frame.
pub trait Field: Sized {
    /// Appends it.
    fn put(&self, out: &mut Vec<u8>);
    /// Reads it.
    fn get(r: &mut Reader<'_>) -> Result<Self>;
}

macro_rules! numbers {
    ($($kind:ident)*) => {$(
        impl Field for $kind {
            fn put(&self, out: &mut Vec<u8>) {
                out.extend(self.to_le_bytes());
            }
            fn get(r: &mut Reader<'_>) -> Result<Self> {
                r.array(stringify!($kind)).map($kind::from_le_bytes)
            }
        }
    )*};
}

numbers! { u8 u16 u32 u64 i64 }

/// Structures, field by field.
macro_rules! structures {
    ($($kind:ident { $($field:ident),* })*) => {$(
        impl Field for $kind {
            fn put(&self, out: &mut Vec<u8>) {
                $(self.$field.put(out);)*
            }
            fn get(r: &mut Reader<'_>) -> Result<Self> {
                Ok(Self { $($field: Field::get(r)?),* })
            }
        }
    )*};
}

structures! {
    Attr { ino, generation, kind, perm, nlink, uid, gid, rdev, size, allocated_bytes, atime, mtime,
           ctime, btime }
    NewInode { kind, perm, uid, gid, rdev }
    SetAttr { perm, uid, gid, size, atime, mtime, privileges }
    StatFs { block_size, blocks, blocks_free, blocks_available, files, files_free, name_max }
    DirEntry { cookie, ino, kind, name }
}

/// Types with few values, each encoded as a number.
macro_rules! choices {
    ($($kind:ident { $($number:literal $value:expr),* $(,)? })*) => {$(
        impl Field for $kind {
            fn put(&self, out: &mut Vec<u8>) {
                $(if *self == $value { return out.push($number); })*
                unreachable!("every value has a number");
            }
            fn get(r: &mut Reader<'_>) -> Result<Self> {
                match u8::get(r)? {
                    $($number => Ok($value),)*
                    _ => Err(r.bad(stringify!($kind), "no such value")),
                }
            }
        }
    )*};
}

choices! {
    bool { 0 false, 1 true }
    FileKind {
        1 FileKind::File, 2 FileKind::Directory, 3 FileKind::Symlink, 4 FileKind::Fifo,
        5 FileKind::Socket, 6 FileKind::CharDevice, 7 FileKind::BlockDevice,
    }
    Privileges { 0 Privileges::Drop, 1 Privileges::Keep }
    Fallocate {
        0 Fallocate::Allocate { keep_size: false }, 1 Fallocate::Allocate { keep_size: true },
        2 Fallocate::PunchHole,
        3 Fallocate::ZeroRange { keep_size: false }, 4 Fallocate::ZeroRange { keep_size: true },
    }
    Seek { 0 Seek::Data, 1 Seek::Hole }
    SetXattr { 0 SetXattr::Any, 1 SetXattr::Create, 2 SetXattr::Replace }
}

/// Sets of flags. Unknown bits are kept; the call that receives them refuses them by name.
macro_rules! flags {
    ($($kind:ident)*) => {$(
        impl Field for $kind {
            fn put(&self, out: &mut Vec<u8>) {
                self.bits().put(out);
            }
            fn get(r: &mut Reader<'_>) -> Result<Self> {
                u32::get(r).map(Self::from_bits_retain)
            }
        }
    )*};
}

flags! { OpenFlags RenameFlags IoFlags }

impl Field for Ino {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
    }
    fn get(r: &mut Reader<'_>) -> Result<Self> {
        u64::get(r).map(Self)
    }
}

impl Field for Cookie {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
    }
    fn get(r: &mut Reader<'_>) -> Result<Self> {
        u64::get(r).map(Self)
    }
}

impl Field for Timestamp {
    fn put(&self, out: &mut Vec<u8>) {
        self.sec.put(out);
        self.nsec.put(out);
    }
    fn get(r: &mut Reader<'_>) -> Result<Self> {
        let (sec, nsec) = (i64::get(r)?, u32::get(r)?);
        match nsec < 1_000_000_000 {
            true => Ok(Self::new(sec, nsec)),
            false => Err(r.bad("nanoseconds", "a second or more")),
        }
    }
}

impl<T: Field> Field for Option<T> {
    fn put(&self, out: &mut Vec<u8>) {
        self.is_some().put(out);
        if let Some(value) = self {
            value.put(out);
        }
    }
    fn get(r: &mut Reader<'_>) -> Result<Self> {
        bool::get(r)?.then(|| T::get(r)).transpose()
    }
}

impl Field for SetTime {
    fn put(&self, out: &mut Vec<u8>) {
        let time = match self {
            Self::Now => None,
            Self::To(time) => Some(*time),
        };
        time.put(out);
    }
    fn get(r: &mut Reader<'_>) -> Result<Self> {
        Ok(Option::get(r)?.map_or(Self::Now, Self::To))
    }
}

impl Field for Box<[u8]> {
    fn put(&self, out: &mut Vec<u8>) {
        (self.len() as u32).put(out);
        out.extend_from_slice(self);
    }
    fn get(r: &mut Reader<'_>) -> Result<Self> {
        let len = u32::get(r)?;
        // `bytes` refuses a length beyond the end of the frame.
        r.bytes("bytes", len as usize).map(Into::into)
    }
}

impl<T: Field> Field for Vec<T> {
    fn put(&self, out: &mut Vec<u8>) {
        (self.len() as u32).put(out);
        self.iter().for_each(|item| item.put(out));
    }
    fn get(r: &mut Reader<'_>) -> Result<Self> {
        // No memory is reserved for the claimed number of items: the frame may end earlier.
        let mut items = Self::new();
        for _ in 0..u32::get(r)? {
            items.push(T::get(r)?);
        }
        Ok(items)
    }
}

/// Kinds of errors, by their number in a frame.
const KINDS: [ErrorKind; 31] = [
    ErrorKind::InvalidInput,
    ErrorKind::Unaligned,
    ErrorKind::OutOfRange,
    ErrorKind::WouldBlock,
    ErrorKind::Unsupported,
    ErrorKind::ReadOnly,
    ErrorKind::NoSpace,
    ErrorKind::NotFound,
    ErrorKind::Permission,
    ErrorKind::Busy,
    ErrorKind::ChangedBelow,
    ErrorKind::Io,
    ErrorKind::Corrupt,
    ErrorKind::NoMemory,
    ErrorKind::Shutdown,
    ErrorKind::Protocol,
    ErrorKind::Exists,
    ErrorKind::NotDirectory,
    ErrorKind::IsDirectory,
    ErrorKind::NotEmpty,
    ErrorKind::TooManyLinks,
    ErrorKind::NameTooLong,
    ErrorKind::FileTooLarge,
    ErrorKind::Stale,
    ErrorKind::NoAttribute,
    ErrorKind::SymlinkLoop,
    ErrorKind::TooBig,
    ErrorKind::DoesNotFit,
    ErrorKind::BadHandle,
    ErrorKind::PastEnd,
    ErrorKind::NotPermitted,
];

/// An error is encoded as its kind and its text.
impl Field for Error {
    fn put(&self, out: &mut Vec<u8>) {
        // A kind that is not in the list is sent as an I/O error with its own text.
        let io = KINDS.iter().position(|kind| *kind == ErrorKind::Io);
        let number = KINDS.iter().position(|kind| *kind == self.kind()).or(io).unwrap_or(0);
        (number as u8).put(out);
        let text = self.to_string();
        text.as_bytes()[..text.len().min(4096)].to_vec().into_boxed_slice().put(out);
    }
    fn get(r: &mut Reader<'_>) -> Result<Self> {
        let number = u8::get(r)?;
        let kind = KINDS.get(usize::from(number)).copied();
        let kind = kind.ok_or_else(|| r.bad("kind", "no such error"))?;
        let text = Box::<[u8]>::get(r)?;
        Ok(Error::new(kind, "ask the process", String::from_utf8_lossy(&text)))
    }
}
