//! The names of a volume, and attributes.
//!
//! No locks.

use crate::border::{border, invalid};
use crate::file::{OpenFile, fby_file};
use crate::flags::only;
use crate::handle::{Kind, borrow, borrow_mut, give, take};
use crate::sized::{Plain, output, path, place};
use crate::volume::{OpenVolume, fby_volume};
use forebay::vfs::{Attr, DirEntry, RenameFlags, Timestamp};
use forebay::{Error, ErrorKind, ReadDir, Result, Volume};
use std::ffi::{c_char, c_int};
use std::sync::Arc;

/// Times of an inode.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fby_time {
    /// Seconds since the beginning of 1970; may be negative.
    pub sec: i64,
    /// Nanoseconds after that.
    pub nsec: u32,
    /// 0.
    pub reserved: u32,
}

/// Attributes of a file.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fby_attr {
    /// What of the following is known, in the bits of statx(2): STATX_SIZE, ... Of a host file only
    /// size and inode are: its other attributes are the host's, see stat(2).
    pub mask: u32,
    /// Kind and permissions, as in stat(2).
    pub mode: u32,
    /// Number of the inode; 0 for a block device of the host.
    pub ino: u64,
    /// Bytes.
    pub size: u64,
    /// Bytes of storage that it takes, approximately.
    pub allocated_bytes: u64,
    /// Unit of state in the cache, bytes. Always known.
    pub block_size: u32,
    /// Names that it has.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Last read.
    pub atime: fby_time,
    /// Last change of the content.
    pub mtime: fby_time,
    /// Last change of anything but `atime`.
    pub ctime: fby_time,
    /// When it was made.
    pub btime: fby_time,
    /// Host files: number of the device that has the file, as in stat(2), or of the block device
    /// that was opened. 0 in a volume.
    pub dev: u64,
}

// SAFETY: numbers; each of 8 bytes stands behind an even number of those of 4, so that there is no
// padding.
unsafe impl Plain for fby_attr {}

fn time_of(time: Timestamp) -> fby_time {
    fby_time { sec: time.sec, nsec: time.nsec, reserved: 0 }
}

fn attr_of(attr: &Attr, block_size: u32) -> fby_attr {
    fby_attr {
        mask: libc::STATX_BASIC_STATS | libc::STATX_BTIME,
        mode: attr.mode(),
        ino: attr.ino.0,
        size: attr.size,
        allocated_bytes: attr.allocated_bytes,
        block_size,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        atime: time_of(attr.atime),
        mtime: time_of(attr.mtime),
        ctime: time_of(attr.ctime),
        btime: time_of(attr.btime),
        dev: 0,
    }
}

/// Attributes of an open file. Fills the smaller of `attr_size` and the size that the library
/// knows, and returns the latter.
///
/// # Safety
/// `file` is an open file, `attr` has `attr_size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fby_statx(
    file: *mut fby_file,
    attr: *mut fby_attr,
    attr_size: usize,
) -> i64 {
    border("fby_statx", || {
        // SAFETY: the caller promises that `file` stays open until the call returns.
        let open = unsafe { borrow::<OpenFile>(file)? };
        let filled = open.call(|file| match file.ino() {
            Some(_) => {
                let attr = file.metadata()?;
                // An inode without content, such as a directory, has no blocks either.
                Ok(attr_of(&attr, file.block_size().unwrap_or(0)))
            }
            None => {
                let none = fby_time { sec: 0, nsec: 0, reserved: 0 };
                let (size, block_size) = (file.size()?, file.block_size()?);
                let (dev, ino) = file.host_inode().unwrap_or_default();
                let (mask, mode) = (libc::STATX_SIZE | libc::STATX_INO, 0);
                let allocated_bytes = 0;
                let (nlink, uid, gid) = (0, 0, 0);
                let (atime, mtime, ctime, btime) = (none, none, none, none);
                Ok(fby_attr {
                    mask,
                    mode,
                    ino,
                    size,
                    allocated_bytes,
                    block_size,
                    nlink,
                    uid,
                    gid,
                    atime,
                    mtime,
                    ctime,
                    btime,
                    dev,
                })
            }
        })?;
        // SAFETY: the caller promises that `attr_size` bytes can be written at `attr`.
        unsafe { output(attr, attr_size, &filled) }
    })
}

/// Attributes of a name in a volume. `flags`: 0, or AT_SYMLINK_NOFOLLOW. As fby_statx otherwise.
///
/// # Safety
/// `volume` is an open volume, `name` a string, `attr` has `attr_size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fby_stat(
    volume: *mut fby_volume,
    name: *const c_char,
    flags: c_int,
    attr: *mut fby_attr,
    attr_size: usize,
) -> i64 {
    border("fby_stat", || {
        // SAFETY: the caller promises that `volume` stays open until the call returns, and that
        // `name` ends in a zero and does not change.
        let (open, name) = unsafe { (borrow::<Arc<OpenVolume>>(volume)?, path(name)?) };
        only("stat", flags as u32, libc::AT_SYMLINK_NOFOLLOW as u32)?;
        let found = match flags {
            0 => open.volume.metadata(name)?,
            _ => open.volume.symlink_metadata(name)?,
        };
        let block_size = open.volume.statfs()?.block_size;
        // SAFETY: the caller promises that `attr_size` bytes can be written at `attr`.
        unsafe { output(attr, attr_size, &attr_of(&found, block_size)) }
    })
}

/// # Safety
/// `volume` is NULL or a handle, `name` is NULL or a string.
unsafe fn on_name(
    volume: *mut fby_volume,
    name: *const c_char,
    call: impl FnOnce(&Volume, &std::path::Path) -> Result<()>,
) -> Result<c_int> {
    // SAFETY: the caller promises that `volume` stays open until the call returns, and that `name`
    // ends in a zero and does not change.
    let (open, name) = unsafe { (borrow::<Arc<OpenVolume>>(volume)?, path(name)?) };
    call(&open.volume, name).map(|()| 0)
}

/// Makes a directory with these permission bits; no umask applies.
///
/// # Safety
/// `volume` is an open volume, `name` a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fby_mkdir(
    volume: *mut fby_volume,
    name: *const c_char,
    mode: u32,
) -> c_int {
    border("fby_mkdir", || {
        let bits = u16::try_from(mode).ok().filter(|mode| *mode <= 0o7777);
        let bits = bits.ok_or_else(|| invalid("mkdir", format!("mode {mode:#o}")))?;
        // SAFETY: the caller promises that `volume` stays open, and `name` ends in a zero and does
        // not change.
        unsafe { on_name(volume, name, |volume, name| volume.create_dir_with(name, bits)) }
    })
}

/// Removes a name of anything but a directory. An open file stays until it is closed.
///
/// # Safety
/// `volume` is an open volume, `name` a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fby_unlink(volume: *mut fby_volume, name: *const c_char) -> c_int {
    border("fby_unlink", || {
        // SAFETY: the caller promises that `volume` stays open, and `name` ends in a zero and does
        // not change.
        unsafe { on_name(volume, name, |volume, name| volume.remove_file(name)) }
    })
}

/// Removes an empty directory.
///
/// # Safety
/// `volume` is an open volume, `name` a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fby_rmdir(volume: *mut fby_volume, name: *const c_char) -> c_int {
    border("fby_rmdir", || {
        // SAFETY: the caller promises that `volume` stays open, and `name` ends in a zero and does
        // not change.
        unsafe { on_name(volume, name, |volume, name| volume.remove_dir(name)) }
    })
}

/// Renames, in one step; what was at the new name is replaced. `flags`: 0, RENAME_NOREPLACE or
/// RENAME_EXCHANGE, as in renameat2(2).
///
/// # Safety
/// `volume` is an open volume, `from` and `to` are strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fby_rename(
    volume: *mut fby_volume,
    from: *const c_char,
    to: *const c_char,
    flags: u32,
) -> c_int {
    border("fby_rename", || {
        // SAFETY: the caller promises that `to` ends in a zero and does not change.
        let to = unsafe { path(to)? };
        only("rename", flags, RenameFlags::all().bits())?;
        let how = RenameFlags::from_bits_truncate(flags);
        how.check()?;
        // SAFETY: the caller promises that `volume` stays open, and `from` ends in a zero and does
        // not change.
        unsafe { on_name(volume, from, |volume, from| volume.rename_with(from, to, how)) }
    })
}

/// A listing of a directory. One thread may use it at a time.
pub struct fby_dir {
    _opaque: (),
}

struct OpenDir {
    list: ReadDir,
    _volume: Arc<OpenVolume>,
}

impl Kind for OpenDir {
    type Handle = fby_dir;
    const NUMBER: u64 = 0x6662_795f_5f64_6972;
    const NAME: &'static str = "an open directory";
}

/// An entry of a directory.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fby_dirent {
    /// Number of its inode.
    pub ino: u64,
    /// What it is: DT_REG, DT_DIR, ... as in readdir(3).
    pub kind: u32,
    /// Bytes of its name.
    pub name_length: u32,
    /// The name, which ends in a zero.
    pub name: [c_char; 256],
}

// SAFETY: numbers; one of 8 bytes, two of 4 and 256 of 1 leave no padding.
unsafe impl Plain for fby_dirent {}

fn dirent_of(entry: &DirEntry) -> Result<fby_dirent> {
    let kind = entry.kind.mode_bits() >> 12;
    let mut name = [0; 256];
    if entry.name.len() >= name.len() {
        return Err(Error::new(ErrorKind::NameTooLong, "readdir", "longer than 255 bytes"));
    }
    for (to, from) in name.iter_mut().zip(&entry.name) {
        *to = *from as c_char;
    }
    Ok(fby_dirent { ino: entry.ino.0, kind, name_length: entry.name.len() as u32, name })
}

/// Opens a listing of a directory.
///
/// # Safety
/// `volume` is an open volume, `name` a string, `dir` a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fby_opendir(
    volume: *mut fby_volume,
    name: *const c_char,
    dir: *mut *mut fby_dir,
) -> c_int {
    border("fby_opendir", || {
        let make = || {
            // SAFETY: the caller promises that `volume` stays open until the call returns, and that
            // `name` ends in a zero and does not change.
            let (open, name) = unsafe { (borrow::<Arc<OpenVolume>>(volume)?, path(name)?) };
            let list = open.volume.read_dir(name)?;
            Ok(give(OpenDir { list, _volume: open.clone() }))
        };
        // SAFETY: the caller promises that a pointer can be written at `dir`.
        unsafe { place(dir, make) }
    })
}

/// The next entry, without "." and "..". Returns 0 at the end, else the size of an entry that the
/// library knows; fills the smaller of that and `entry_size`.
///
/// # Safety
/// `dir` is an open directory that no other thread uses, `entry` has `entry_size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fby_readdir(
    dir: *mut fby_dir,
    entry: *mut fby_dirent,
    entry_size: usize,
) -> i64 {
    border("fby_readdir", || {
        if entry.is_null() {
            return Err(crate::border::null("readdir"));
        }
        // SAFETY: the caller promises that `dir` stays open, and no other thread uses it.
        let open = unsafe { borrow_mut::<OpenDir>(dir)? };
        match open.list.next() {
            // SAFETY: the caller promises that `entry_size` bytes can be written at `entry`.
            Some(next) => unsafe { output(entry, entry_size, &dirent_of(&next?)?) },
            None => Ok(0),
        }
    })
}

/// Closes a listing.
///
/// # Safety
/// `dir` is an open directory that no other thread uses.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fby_closedir(dir: *mut fby_dir) -> c_int {
    border("fby_closedir", || {
        // SAFETY: the caller promises that `dir` is open, and no other call uses it.
        unsafe { take::<OpenDir>(dir) }.map(|_| 0)
    })
}
