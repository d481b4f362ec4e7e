//! The frames of a session: calls and answers. No I/O.
//!
//! M1 What is decoded encodes to the same bytes; what is not understood is refused as a whole
//! (remote.R2).

use super::fields::Field;
use forebay_base::codec::Reader;
use forebay_base::{Error, IoFlags, Result};
use forebay_vfs::{
    Attr, Cookie, DirEntry, Fallocate, Ino, NewInode, OpenFlags, Privileges, RenameFlags, Seek,
    SetAttr, SetXattr, StatFs,
};

/// Longest read or write in one call, bytes.
pub const DATA_MAX: usize = 1 << 20;
/// Most entries of a listing in one answer.
pub const ENTRIES_MAX: u32 = 1024;
/// Longest frame, bytes: the longest data, listing or extended attributes, and the fields around
/// them.
pub const FRAME_MAX: usize = DATA_MAX + (64 << 10);

/// Bytes in a frame.
pub type Bytes = Box<[u8]>;

macro_rules! messages {
    ($(#[$doc:meta])* $name:ident: $($tag:literal $variant:ident($($field:ident: $kind:ty),*);)*) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq)]
        pub enum $name {
            $(
                /// The fields, in the order in which the frame has them.
                $variant($($kind),*),
            )*
        }

        impl $name {
            /// The frame, without its length.
            pub fn encode(&self) -> Vec<u8> {
                let mut out = Vec::new();
                match self {
                    $(Self::$variant($($field),*) => {
                        out.push($tag);
                        $($field.put(&mut out);)*
                    })*
                }
                out
            }

            /// Reads a frame; `Corrupt` for one that makes no sense.
            pub fn decode(frame: &[u8]) -> Result<Self> {
                let mut r = Reader::new(stringify!($name), frame);
                let message = match u8::get(&mut r)? {
                    $($tag => {
                        $(let $field = <$kind>::get(&mut r)?;)*
                        Self::$variant($($field),*)
                    })*
                    _ => return Err(r.bad("tag", "no such message")),
                };
                r.finish()?;
                Ok(message)
            }
        }
    };
}

messages! {
    /// What a client may ask: the calls of `FileSystem`, and of `OpenFile` with the number of the
    /// open file.
    Call:
    1 StatFs();
    2 Lookup(dir: Ino, name: Bytes);
    3 Parent(dir: Ino);
    4 Getattr(ino: Ino);
    5 Setattr(ino: Ino, set: SetAttr);
    6 Mknod(dir: Ino, name: Bytes, new: NewInode);
    7 Mkdir(dir: Ino, name: Bytes, new: NewInode);
    8 Symlink(dir: Ino, name: Bytes, target: Bytes, new: NewInode);
    9 Create(dir: Ino, name: Bytes, new: NewInode, flags: OpenFlags);
    10 Link(ino: Ino, dir: Ino, name: Bytes);
    11 Unlink(dir: Ino, name: Bytes);
    12 Rmdir(dir: Ino, name: Bytes);
    13 Rename(dir: Ino, name: Bytes, new_dir: Ino, new_name: Bytes, flags: RenameFlags);
    14 Readlink(ino: Ino);
    15 Readdir(dir: Ino, after: Cookie, max: u32);
    16 Getxattr(ino: Ino, name: Bytes);
    17 Setxattr(ino: Ino, name: Bytes, value: Bytes, how: SetXattr);
    18 Listxattr(ino: Ino);
    19 Removexattr(ino: Ino, name: Bytes);
    20 Open(ino: Ino, flags: OpenFlags);
    21 SyncFs();
    22 Tmpfile(dir: Ino, new: NewInode, flags: OpenFlags);
    32 Read(file: u32, offset: u64, len: u32, flags: IoFlags);
    33 Write(file: u32, offset: u64, flags: IoFlags, privileges: Privileges, bytes: Bytes);
    34 Fallocate(file: u32, how: Fallocate, offset: u64, len: u64, privileges: Privileges);
    35 Seek(file: u32, what: Seek, offset: u64);
    36 Sync(file: u32, data_only: bool);
    37 Release(file: u32);
}

messages! {
    /// What comes back.
    Answer:
    1 Done();
    2 Attr(attr: Attr);
    3 StatFs(figures: StatFs);
    4 Inode(ino: Ino);
    5 Entries(entries: Vec<DirEntry>);
    6 Bytes(bytes: Bytes);
    7 Names(names: Vec<Bytes>);
    8 Opened(file: u32, attr: Option<Attr>);
    9 Offset(offset: u64);
    10 Wrote(offset: u64, len: u32);
    11 Failed(error: Told);
}

/// An error as it travels.
#[derive(Debug, Clone)]
pub struct Told(pub Error);

impl PartialEq for Told {
    fn eq(&self, other: &Self) -> bool {
        self.0.kind() == other.0.kind() && self.0.to_string() == other.0.to_string()
    }
}

impl Field for Told {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
    }
    fn get(r: &mut Reader<'_>) -> Result<Self> {
        Error::get(r).map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_base::ErrorKind;
    use forebay_base::world::split_mix;
    use forebay_vfs::{FileKind, SetTime, Timestamp};

    fn calls() -> Vec<Call> {
        let name = || Box::<[u8]>::from(&b"a\xffb"[..]);
        let new = NewInode { uid: 1, gid: 2, rdev: 3, ..NewInode::of(FileKind::Fifo, 0o640) };
        let set = SetAttr {
            perm: Some(0o644),
            size: Some(u64::MAX),
            mtime: Some(SetTime::To(Timestamp::new(-5, 7))),
            atime: Some(SetTime::Now),
            ..SetAttr::default()
        };
        let how = Fallocate::ZeroRange { keep_size: true };
        vec![
            Call::StatFs(),
            Call::Lookup(Ino(5), name()),
            Call::Setattr(Ino(6), set),
            Call::Create(Ino(1), name(), new, OpenFlags::READ | OpenFlags::EXCLUSIVE),
            Call::Symlink(Ino(1), name(), name(), new),
            Call::Rename(Ino(1), name(), Ino(2), name(), RenameFlags::EXCHANGE),
            Call::Readdir(Ino(1), Cookie(77), 9),
            Call::Setxattr(Ino(1), name(), name(), SetXattr::Replace),
            Call::Read(1, 2, 3, IoFlags::UNCACHED),
            Call::Write(1, u64::MAX, IoFlags::DSYNC, Privileges::Keep, name()),
            Call::Fallocate(1, how, 2, 3, Privileges::Drop),
            Call::Seek(9, Seek::Hole, 4),
            Call::Sync(1, true),
        ]
    }

    /// M1: an encoded call or answer decodes to the same value.
    #[test]
    fn m1_frames_come_back_as_they_were() {
        for call in calls() {
            assert_eq!(Call::decode(&call.encode()).unwrap(), call);
        }
        let error = Error::new(ErrorKind::NotEmpty, "rmdir", "it has entries");
        let told = Answer::Failed(Told(error));
        let Answer::Failed(back) = Answer::decode(&told.encode()).unwrap() else { panic!("told") };
        assert_eq!(back.0.kind(), ErrorKind::NotEmpty);
        assert!(back.0.to_string().contains("it has entries"), "{}", back.0);
        let entry = DirEntry {
            cookie: Cookie(16),
            ino: Ino(3),
            kind: FileKind::File,
            name: b"x"[..].into(),
        };
        let list = Answer::Entries(vec![entry.clone(), entry]);
        assert_eq!(Answer::decode(&list.encode()).unwrap(), list);
    }

    /// fields.L1, M1: a truncated, changed or random frame gives an error, or a message that
    /// encodes to the same bytes. It causes no panic, and no allocation of a claimed length.
    #[test]
    fn l1_hostile_frames_are_refused() {
        let mut rng = 1;
        let (mut refused, mut understood) = (0, 0);
        let mut judge = |frame: &[u8]| match Call::decode(frame) {
            Ok(call) => {
                understood += 1;
                assert_eq!(call.encode(), frame);
            }
            Err(error) => {
                refused += 1;
                assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
            }
        };
        for call in calls() {
            let frame = call.encode();
            (0..frame.len()).for_each(|cut| judge(&frame[..cut]));
            judge(&[&frame[..], b"x"].concat());
            for _ in 0..2000 {
                let mut other = frame.clone();
                let at = split_mix(&mut rng) as usize % other.len();
                other[at] = split_mix(&mut rng) as u8;
                judge(&other);
            }
        }
        for _ in 0..20_000 {
            let len = split_mix(&mut rng) as usize % 80;
            let frame: Vec<u8> = (0..len).map(|_| split_mix(&mut rng) as u8 % 40).collect();
            judge(&frame);
            let _answer = Answer::decode(&frame);
        }
        // A name of 4 GiB, and a list of 2^32 - 1 entries.
        judge(&[2, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255]);
        assert!(Answer::decode(&[5, 255, 255, 255, 255]).is_err());
        assert!(refused > 10_000 && understood > 100, "{refused}, {understood}");
    }
}
