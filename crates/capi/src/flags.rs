//! Flags of the interface: Linux's values where Linux has the flag, bits from 1 << 16 on for
//! Forebay's own. A flag that is not known here is refused, and the error shows its bits.
//!
//! No locks.

use forebay::{Error, ErrorKind, IoFlags, OpenOptions, Result};
use std::ffi::c_int;

/// A hint that the caller polls for completion.
pub const FBY_RWF_HIPRI: u32 = 0x1;
/// A write returns when its data, and the metadata to find it, are durable.
pub const FBY_RWF_DSYNC: u32 = 0x2;
/// A write returns when its data and all metadata are durable.
pub const FBY_RWF_SYNC: u32 = 0x4;
/// -EAGAIN rather than waiting.
pub const FBY_RWF_NOWAIT: u32 = 0x8;
/// A write goes to the end of the file, whatever its offset.
pub const FBY_RWF_APPEND: u32 = 0x10;
/// Uncached: cached blocks are served and stay, the others leave nothing behind.
pub const FBY_RWF_DONTCACHE: u32 = 0x80;
/// Past the cache, and coherent with it. Offset, length and memory have to be aligned.
pub const FBY_RWF_DIRECT: u32 = 0x10000;
/// A cached write whose write-out starts now.
pub const FBY_RWF_START_WRITEBACK: u32 = 0x20000;
/// With FBY_RWF_DIRECT: a request that is not aligned is an uncached one.
pub const FBY_RWF_FALLBACK: u32 = 0x40000;

const IO_FLAGS: [(u32, IoFlags); 9] = [
    (FBY_RWF_HIPRI, IoFlags::HIPRI),
    (FBY_RWF_DSYNC, IoFlags::DSYNC),
    (FBY_RWF_SYNC, IoFlags::SYNC),
    (FBY_RWF_NOWAIT, IoFlags::NOWAIT),
    (FBY_RWF_APPEND, IoFlags::APPEND),
    (FBY_RWF_DONTCACHE, IoFlags::UNCACHED),
    (FBY_RWF_DIRECT, IoFlags::DIRECT),
    (FBY_RWF_START_WRITEBACK, IoFlags::START_WRITEBACK),
    (FBY_RWF_FALLBACK, IoFlags::FALLBACK),
];

const _: () = {
    assert!(FBY_RWF_HIPRI == libc::RWF_HIPRI as u32 && FBY_RWF_DSYNC == libc::RWF_DSYNC as u32);
    assert!(FBY_RWF_SYNC == libc::RWF_SYNC as u32 && FBY_RWF_NOWAIT == libc::RWF_NOWAIT as u32);
    assert!(FBY_RWF_APPEND == libc::RWF_APPEND as u32);
    assert!(FBY_RWF_DONTCACHE == libc::RWF_DONTCACHE as u32);
};

/// The error for a flag or value that is unknown, or not allowed in this call.
#[cold]
pub(crate) fn unsupported(op: &'static str, text: String) -> Error {
    Error::new(ErrorKind::Unsupported, op, text)
}

/// Refuses bits that are not `known`.
pub(crate) fn only(op: &'static str, flags: u32, known: u32) -> Result<()> {
    match flags & !known {
        0 => Ok(()),
        unknown => Err(unsupported(op, format!("unknown flags {unknown:#x}"))),
    }
}

/// `FBY_RWF_` flags of a request.
#[inline]
pub(crate) fn io_flags(flags: u32) -> Result<IoFlags> {
    match flags {
        0 => Ok(IoFlags::empty()),
        FBY_RWF_DONTCACHE => Ok(IoFlags::UNCACHED),
        _ => some_io_flags(flags),
    }
}

fn some_io_flags(flags: u32) -> Result<IoFlags> {
    only("check flags", flags, IO_FLAGS.iter().fold(0, |all, (bit, _)| all | bit))?;
    let given = IO_FLAGS.iter().filter(|(bit, _)| flags & bit != 0);
    Ok(given.fold(IoFlags::empty(), |all, (_, flag)| all | *flag))
}

/// open(2)'s flags, and flags of each request on the file.
pub(crate) fn open_options(flags: c_int, rwf: u32) -> Result<OpenOptions> {
    let known = libc::O_ACCMODE
        | libc::O_CREAT
        | libc::O_EXCL
        | libc::O_TRUNC
        | libc::O_APPEND
        | libc::O_CLOEXEC
        | libc::O_DIRECT
        | libc::O_NOFOLLOW
        | libc::O_SYNC;
    only("open", flags as u32, known as u32)?;
    let (reads, writes) = match flags & libc::O_ACCMODE {
        libc::O_RDONLY => (true, false),
        libc::O_WRONLY => (false, true),
        libc::O_RDWR => (true, true),
        mode => return Err(unsupported("open", format!("access mode {mode}"))),
    };
    let given = |flag| flags & flag == flag;
    if given(libc::O_EXCL) && !given(libc::O_CREAT) {
        return Err(unsupported("open", "O_EXCL without O_CREAT".into()));
    }
    if given(libc::O_APPEND) && !writes {
        return Err(Error::new(ErrorKind::InvalidInput, "open", "O_APPEND needs writing"));
    }
    let mut io_flags = io_flags(rwf)?;
    io_flags.set(IoFlags::DIRECT, given(libc::O_DIRECT) || io_flags.contains(IoFlags::DIRECT));
    if given(libc::O_SYNC) {
        io_flags |= IoFlags::SYNC;
    } else if given(libc::O_DSYNC) {
        io_flags |= IoFlags::DSYNC;
    }
    if !writes {
        // open(2) accepts O_SYNC and O_DSYNC for a file that is only read, where they have no
        // effect.
        io_flags -= IoFlags::SYNC | IoFlags::DSYNC;
    }
    let mut options = OpenOptions::new();
    options.read(reads).write(writes).truncate(given(libc::O_TRUNC)).io_flags(io_flags);
    options.create(given(libc::O_CREAT)).create_new(given(libc::O_CREAT | libc::O_EXCL));
    options.no_follow(given(libc::O_NOFOLLOW));
    if given(libc::O_APPEND) {
        options.append(true);
    }
    Ok(options)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn io_flags_each_bit_is_known_or_refused() {
        for bit in (0..32).map(|shift| 1_u32 << shift) {
            match IO_FLAGS.iter().find(|(known, _)| *known == bit) {
                Some((_, flag)) => assert_eq!(io_flags(bit).unwrap(), *flag),
                None => {
                    assert_eq!(io_flags(bit).unwrap_err().errno(), libc::EOPNOTSUPP, "{bit:#x}")
                }
            }
        }
        let all = IO_FLAGS.iter().fold(0, |all, (bit, _)| all | bit);
        let all_of_c = IoFlags::all() - IoFlags::HELD_ABOVE;
        assert_eq!(io_flags(all).unwrap(), all_of_c, "every other flag of Rust has a bit");
    }

    /// The numbers are the interface: a program has them compiled in.
    #[test]
    fn io_flags_mean_what_their_numbers_say() {
        let pairs = [
            (0, IoFlags::empty()),
            (0x1, IoFlags::HIPRI),
            (0x2, IoFlags::DSYNC),
            (0x4, IoFlags::SYNC),
            (0x8, IoFlags::NOWAIT),
            (0x10, IoFlags::APPEND),
            (0x80, IoFlags::UNCACHED),
            (0x10000, IoFlags::DIRECT),
            (0x20000, IoFlags::START_WRITEBACK),
            (0x40000, IoFlags::FALLBACK),
            (0x50002, IoFlags::DIRECT | IoFlags::FALLBACK | IoFlags::DSYNC),
        ];
        for (number, flags) in pairs {
            assert_eq!(io_flags(number).unwrap(), flags, "{number:#x}");
        }
        assert_eq!(pairs.len(), IO_FLAGS.len() + 2, "a new flag needs its pair");
    }

    #[test]
    fn open_flags_unknown_ones_are_refused() {
        for flag in [libc::O_NOATIME, libc::O_PATH, libc::O_TMPFILE, libc::O_DIRECTORY] {
            let error = open_options(libc::O_RDWR | flag, 0).unwrap_err();
            assert_eq!(error.errno(), libc::EOPNOTSUPP, "{flag:#o}: {error}");
        }
        assert_eq!(open_options(3, 0).unwrap_err().errno(), libc::EOPNOTSUPP);
        assert_eq!(open_options(libc::O_EXCL, 0).unwrap_err().errno(), libc::EOPNOTSUPP);
        assert!(open_options(libc::O_RDWR | libc::O_CREAT | libc::O_CLOEXEC, 0).is_ok());
    }
}
