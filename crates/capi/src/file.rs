//! `fby_file`: a host file or a file of a volume, opened, read, written, synced, closed.
//!
//! Invariant: an error names the path that the file was opened by.
//!
//! No locks.

use crate::border::{border, invalid, null, of_errno};
use crate::buffers::{bytes, only_buffer, vector};
use crate::cache::{OpenCache, fby_cache};
use crate::flags::{io_flags, open_options, unsupported};
use crate::handle::{Kind, borrow, give, take};
use crate::sized::{Given, Plain, input, output, path, place};
use crate::volume::{OpenVolume, direct_io, fby_volume};
use forebay::vfs::{Fallocate, Seek};
use forebay::{Error, File, OpenOptions, Result};
use libc::iovec;
use std::ffi::{c_char, c_int, c_void};
use std::io::IoSlice;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// An open file. It has no position. Any number of threads may use it at once.
pub struct fby_file {
    _opaque: (),
}

/// The file, and what it keeps open. The fields are dropped in this order.
pub(crate) struct OpenFile {
    pub file: File,
    path: PathBuf,
    _volume: Option<Arc<OpenVolume>>,
    cache: Arc<OpenCache>,
}

impl Kind for OpenFile {
    type Handle = fby_file;
    const NUMBER: u64 = 0x6662_795f_6669_6c65;
    const NAME: &'static str = "an open file";
}

impl OpenFile {
    pub fn cache(&self) -> Arc<OpenCache> {
        self.cache.clone()
    }

    /// Runs a call on the file; its error names the path.
    #[inline]
    pub fn call<T>(&self, call: impl FnOnce(&File) -> Result<T>) -> Result<T> {
        call(&self.file).map_err(|e| e.with_path(&self.path))
    }

    /// As `call`, for a call on a range.
    #[inline]
    pub fn call_at<T>(
        &self,
        offset: u64,
        len: u64,
        call: impl FnOnce(&File) -> Result<T>,
    ) -> Result<T> {
        call(&self.file).map_err(|error| self.failed_at(error, offset, len))
    }

    #[cold]
    fn failed_at(&self, error: Error, offset: u64, len: u64) -> Error {
        error.with_path(&self.path).with_range(offset, len)
    }
}

/// How a file is opened. A field that is 0 has its default. In a volume only `mode` and `rwf` may
/// be other than 0.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fby_open_how {
    /// Permission bits of a new file. Default: 0666 less the umask on the host, 0644 in a volume.
    pub mode: u32,
    /// FBY_RWF_ flags of each request on the file.
    pub rwf: u32,
    /// Host files: where in the file the part that is shown begins, bytes.
    pub offset: u64,
    /// Host files: the longest size to show, bytes. A file with a limit does not grow.
    pub size_limit: u64,
    /// Host files: size of a file that is made, or empty, bytes.
    pub create_size: u64,
    /// Host files: unit of state in the cache, a power of two from 512 to 4096.
    pub block_size: u32,
    /// Host files: FBY_DIRECT_IO_AUTO, FBY_DIRECT_IO_ON or FBY_DIRECT_IO_OFF, below the cache.
    pub direct_io: u32,
}

// SAFETY: numbers; pairs of 4 bytes and three of 8 leave no padding.
unsafe impl Plain for fby_open_how {}

impl Given for fby_open_how {
    const LEAST: usize = 40;
}

fn options(flags: c_int, how: &fby_open_how) -> Result<OpenOptions> {
    let mut options = open_options(flags, how.rwf)?;
    match u16::try_from(how.mode) {
        Ok(0) => {}
        Ok(mode) if mode <= 0o7777 => drop(options.mode(mode)),
        _ => return Err(invalid("open", format!("mode {:#o}", how.mode))),
    }
    if how.offset != 0 {
        options.offset(how.offset);
    }
    if how.size_limit != 0 {
        options.size_limit(how.size_limit);
    }
    if how.create_size != 0 {
        options.create_size(how.create_size);
    }
    if how.block_size != 0 {
        options.block_size(how.block_size);
    }
    if how.direct_io != 0 {
        options.direct_io(direct_io(how.direct_io)?);
    }
    Ok(options)
}

/// Opens a file or block device of the host on a cache. `flags` are those of open(2): O_RDONLY,
/// O_WRONLY, O_RDWR, O_CREAT, O_EXCL, O_TRUNC, O_APPEND, O_DIRECT, O_DSYNC, O_SYNC, O_NOFOLLOW,
/// O_CLOEXEC (which is always so). O_WRONLY needs the right to read the file, too: one that may
/// only be written is -EACCES. O_CREAT and O_TRUNC need writing: with O_RDONLY they are -EINVAL.
/// -EBUSY if another process or cache has it open: it is locked until it is closed.
///
/// # Safety
/// `cache` is an open cache, `path` a string, `how` has `how_size` bytes, `file` is a place for a
/// pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fby_open(
    cache: *mut fby_cache,
    path: *const c_char,
    flags: c_int,
    how: *const fby_open_how,
    how_size: usize,
    file: *mut *mut fby_file,
) -> c_int {
    border("fby_open", || {
        let make = || {
            // SAFETY: the caller promises that `cache` stays open until the call returns, and that
            // `path` ends in a zero and does not change.
            let (cache, path) = unsafe { (borrow::<Arc<OpenCache>>(cache)?, c_path(path)?) };
            // SAFETY: the caller promises that `how_size` bytes can be read at `how`.
            let options = options(flags, &unsafe { input(how, how_size)? });
            let file = options.and_then(|o| o.open(&cache.cache, path));
            let file = file.map_err(|e| e.with_path(path))?;
            let (path, cache) = (path.to_path_buf(), cache.clone());
            Ok(give(OpenFile { file, path, _volume: None, cache }))
        };
        // SAFETY: the caller promises that a pointer can be written at `file`.
        unsafe { place(file, make) }
    })
}

/// Opens a file of a volume, with the flags of fby_open. A directory opens with O_RDONLY, to sync
/// it.
///
/// # Safety
/// `volume` is an open volume, `path` a string, `how` has `how_size` bytes, `file` is a place for a
/// pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fby_open_in(
    volume: *mut fby_volume,
    path: *const c_char,
    flags: c_int,
    how: *const fby_open_how,
    how_size: usize,
    file: *mut *mut fby_file,
) -> c_int {
    border("fby_open_in", || {
        let make = || {
            // SAFETY: the caller promises that `volume` stays open until the call returns, and that
            // `path` ends in a zero and does not change.
            let (volume, path) = unsafe { (borrow::<Arc<OpenVolume>>(volume)?, c_path(path)?) };
            // SAFETY: the caller promises that `how_size` bytes can be read at `how`.
            let options = options(flags, &unsafe { input(how, how_size)? });
            let file = options.and_then(|o| o.open_in(&volume.volume, path));
            let file = file.map_err(|e| e.with_path(path))?;
            let (path, _volume) = (path.to_path_buf(), Some(volume.clone()));
            Ok(give(OpenFile { file, path, _volume, cache: volume.cache() }))
        };
        // SAFETY: the caller promises that a pointer can be written at `file`.
        unsafe { place(file, make) }
    })
}

/// # Safety
/// As for [`path`].
unsafe fn c_path<'a>(text: *const c_char) -> Result<&'a Path> {
    // SAFETY: the caller promises that `text` ends in a zero and does not change.
    unsafe { path(text) }
}

/// Closes a file. What was written is durable then, or the result is an error: an error of
/// write-back that no sync of this handle has reported, or one of now. The handle is closed either
/// way, except in a child process (-ESHUTDOWN) and for what is no open file (-EBADF).
///
/// # Safety
/// `file` is an open file that no other thread uses.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fby_close(file: *mut fby_file) -> c_int {
    border("fby_close", || {
        // SAFETY: the caller promises that `file` is open, and no other call uses it.
        let open = unsafe { take::<OpenFile>(file)? };
        open.call(|file| file.clone().close()).map(|()| 0)
    })
}

/// Offsets of C are signed.
#[inline]
pub(crate) fn offset_of(op: &'static str, offset: i64) -> Result<u64> {
    u64::try_from(offset).map_err(|_| invalid(op, format!("offset {offset}")))
}

/// Reads at `offset` into the buffers in turn. Returns the bytes read: fewer than asked only at the
/// end of the file, or if an error came after the first bytes. Each buffer is a read of its own:
/// several may see a part of another thread's write. `flags`: FBY_RWF_DONTCACHE,
/// FBY_RWF_DIRECT, FBY_RWF_FALLBACK, FBY_RWF_NOWAIT, FBY_RWF_HIPRI; others are -EOPNOTSUPP.
///
/// Cached reads of a sequential stream, and those at offset 0, read ahead: up to `readahead_max`
/// bytes behind the range become cached, partly after the call has returned.
///
/// # Safety
/// `file` is an open file, `iov` has `iovcnt` elements, whose memory no other thread uses
/// meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fby_preadv2(
    file: *mut fby_file,
    iov: *const iovec,
    iovcnt: c_int,
    offset: i64,
    flags: u32,
) -> i64 {
    border("fby_preadv2", || {
        // SAFETY: the caller promises that `file` stays open until the call returns.
        let file = unsafe { borrow::<OpenFile>(file)? };
        // SAFETY: the caller promises that `iov` has `iovcnt` elements, and no other thread uses
        // their memory.
        if let Some(into) = unsafe { only_buffer(iov, iovcnt) }
            && flags == 0
            && let Ok(at) = u64::try_from(offset)
        {
            let len = into.len() as u64;
            let read = file.call_at(at, len, |file| file.read_at(into, at))?;
            return Ok(read as i64);
        }
        // SAFETY: the caller promises that no other thread uses `iov`, its `iovcnt` elements and
        // their memory.
        unsafe { read_in_turn(file, iov, iovcnt, offset, flags) }
    })
}

/// Reads at `offset` into the buffers in turn. A function of its own, because [`fby_preadv2`] then
/// saves fewer registers for the read of one buffer.
///
/// # Safety
/// As for [`fby_preadv2`].
#[inline(never)]
unsafe fn read_in_turn(
    file: &OpenFile,
    iov: *const iovec,
    iovcnt: c_int,
    offset: i64,
    flags: u32,
) -> Result<i64> {
    // SAFETY: the caller promises that `iov` has `iovcnt` elements that do not change.
    let iov = unsafe { vector("read", iov, iovcnt)? };
    let (offset, flags) = (offset_of("read", offset)?, io_flags(flags)?);
    let mut done = 0;
    for buf in iov {
        if buf.iov_len == 0 && iov.len() > 1 {
            continue;
        }
        let into: &mut [u8] = match buf.iov_len {
            0 => &mut [],
            // SAFETY: the caller promises that no other thread uses the memory of the elements. One
            // slice lives at a time, so buffers may overlap.
            len => unsafe { std::slice::from_raw_parts_mut(buf.iov_base.cast(), len) },
        };
        let (at, len) = (offset + done, into.len() as u64);
        match file.call_at(at, len, |file| file.read_at_with(into, at, flags)) {
            Ok(read) => done += read as u64,
            Err(error) if done == 0 => return Err(error),
            Err(_) => break,
        }
        if done < len {
            break;
        }
    }
    Ok(done as i64)
}

/// Writes the buffers in turn at `offset`, into the cache. Returns the bytes written: fewer than
/// asked only if space ran out, with FBY_RWF_NOWAIT, or if an error came after the first bytes. One
/// request up to 1 MiB, and an append, is one step to other readers and writers. An append of
/// several buffers gathers them in memory outside the budget: -ENOMEM if they are longer than it.
/// `flags`: all of FBY_RWF_.
///
/// # Safety
/// `file` is an open file, `iov` has `iovcnt` elements, whose memory does not change meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fby_pwritev2(
    file: *mut fby_file,
    iov: *const iovec,
    iovcnt: c_int,
    offset: i64,
    flags: u32,
) -> i64 {
    border("fby_pwritev2", || {
        // SAFETY: the caller promises that `file` stays open until the call returns, and that `iov`
        // has `iovcnt` elements that do not change.
        let (file, iov) = unsafe { (borrow::<OpenFile>(file)?, vector("write", iov, iovcnt)?) };
        let (offset, flags) = (offset_of("write", offset)?, io_flags(flags)?);
        // SAFETY: the caller promises memory that does not change, and `vector` that it is not
        // NULL.
        let slice = |buf: &iovec| unsafe { bytes(buf.iov_base, buf.iov_len) };
        let len = iov.iter().map(|buf| buf.iov_len as u64).sum();
        let wrote = file.call_at(offset, len, |file| match iov {
            [one] => file.write_at_with(slice(one), offset, flags),
            _ => {
                let slices: Vec<_> = iov.iter().map(|buf| IoSlice::new(slice(buf))).collect();
                file.write_vectored_at(&slices, offset, flags)
            }
        });
        wrote.map(|wrote| wrote as i64)
    })
}

/// Writes `len` bytes at the end of the file, in one step with other appends. Returns the offset
/// where they are. -ENOSPC also if there is space for a part of them only. `flags`: as for
/// fby_pwritev2.
///
/// # Safety
/// `file` is an open file, `buf` has `len` bytes, which do not change meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fby_append(
    file: *mut fby_file,
    buf: *const c_void,
    len: usize,
    flags: u32,
) -> i64 {
    border("fby_append", || {
        // SAFETY: the caller promises that `file` stays open until the call returns.
        let file = unsafe { borrow::<OpenFile>(file)? };
        if buf.is_null() && len > 0 {
            return Err(null("append"));
        }
        if len > isize::MAX as usize {
            return Err(invalid("append", "longer than memory"));
        }
        let flags = io_flags(flags)?;
        // SAFETY: the caller promises that `len` bytes can be read at `buf` and do not change.
        let from = unsafe { bytes(buf, len) };
        file.call(|file| file.append(from, flags)).map(|offset| offset as i64)
    })
}

/// Makes all data and metadata of the file durable. After an error no later sync of this handle
/// succeeds while bytes that were accepted are not durable.
///
/// # Safety
/// `file` is an open file.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fby_fsync(file: *mut fby_file) -> c_int {
    border("fby_fsync", || {
        // SAFETY: the caller promises that `file` stays open until the call returns.
        unsafe { borrow::<OpenFile>(file)? }.call(File::sync_all).map(|()| 0)
    })
}

/// Makes all data of the file durable, and the metadata to find it.
///
/// # Safety
/// `file` is an open file.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fby_fdatasync(file: *mut fby_file) -> c_int {
    border("fby_fdatasync", || {
        // SAFETY: the caller promises that `file` stays open until the call returns.
        unsafe { borrow::<OpenFile>(file)? }.call(File::sync_data).map(|()| 0)
    })
}

/// Sets the size. Bytes that are added read as zeros.
///
/// # Safety
/// `file` is an open file.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fby_ftruncate(file: *mut fby_file, size: i64) -> c_int {
    border("fby_ftruncate", || {
        // SAFETY: the caller promises that `file` stays open until the call returns.
        let file = unsafe { borrow::<OpenFile>(file)? };
        let size = offset_of("set size", size)?;
        file.call_at(size, 0, |file| file.set_len(size)).map(|()| 0)
    })
}

/// Allocates, punches or zeroes a range, with the modes of fallocate(2): 0,
/// FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE with it, FALLOC_FL_ZERO_RANGE; others are
/// -EOPNOTSUPP. No mode sets space aside: a later write may still find none.
///
/// # Safety
/// `file` is an open file.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fby_fallocate(
    file: *mut fby_file,
    mode: c_int,
    offset: i64,
    len: i64,
) -> c_int {
    border("fby_fallocate", || {
        // SAFETY: the caller promises that `file` stays open until the call returns.
        let file = unsafe { borrow::<OpenFile>(file)? };
        let (offset, len) = (offset_of("fallocate", offset)?, offset_of("fallocate", len)?);
        file.call_at(offset, len, |file| {
            file.fallocate(Fallocate::from_linux(mode as u32)?, offset, len)
        })
        .map(|()| 0)
    })
}

/// Advice on a range; `len` 0 is up to the end. POSIX_FADV_WILLNEED reads what is missing into the
/// cache and returns once the last reads are issued; POSIX_FADV_DONTNEED evicts what is clean;
/// POSIX_FADV_NORMAL does nothing. Other advice is -EOPNOTSUPP: FBY_RWF_DONTCACHE says more.
///
/// # Safety
/// `file` is an open file.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fby_fadvise(
    file: *mut fby_file,
    offset: i64,
    len: i64,
    advice: c_int,
) -> c_int {
    border("fby_fadvise", || {
        // SAFETY: the caller promises that `file` stays open until the call returns.
        let file = unsafe { borrow::<OpenFile>(file)? };
        let offset = offset_of("fadvise", offset)?;
        let len = match offset_of("fadvise", len)? {
            0 => u64::MAX - offset,
            len => len,
        };
        let advise = |file: &File| match advice {
            libc::POSIX_FADV_NORMAL => Ok(()),
            libc::POSIX_FADV_WILLNEED => file.prefetch(offset, len),
            libc::POSIX_FADV_DONTNEED => file.drop_clean(offset, len),
            other => Err(unsupported("fadvise", format!("advice {other}"))),
        };
        file.call_at(offset, len, advise).map(|()| 0)
    })
}

/// The next data (SEEK_DATA) or hole (SEEK_HOLE) at or after `offset`, or `offset` from the end
/// (SEEK_END). Other values of `whence` are -EINVAL, because a file has no position. -ENXIO if
/// there is no data at or after `offset`, or it is past the end.
///
/// # Safety
/// `file` is an open file.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fby_lseek(file: *mut fby_file, offset: i64, whence: c_int) -> i64 {
    border("fby_lseek", || {
        // SAFETY: the caller promises that `file` stays open until the call returns.
        let file = unsafe { borrow::<OpenFile>(file)? };
        let seek = |what| {
            let offset = offset_of("seek", offset)?;
            file.call_at(offset, 0, |file| file.seek(what, offset)).map(|at| at as i64)
        };
        match whence {
            libc::SEEK_DATA => seek(Seek::Data),
            libc::SEEK_HOLE => seek(Seek::Hole),
            libc::SEEK_END => {
                let end = file.call(File::size)? as i64;
                let at = end.checked_add(offset).filter(|at| *at >= 0);
                at.ok_or_else(|| of_errno("seek", libc::EINVAL))
            }
            other => Err(invalid("seek", format!("whence {other}: a file has no position"))),
        }
    })
}

/// What of a range is in the cache, in blocks.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fby_residency_info {
    /// Bytes of a block.
    pub block_size: u64,
    /// Blocks of the range, as far as the file goes.
    pub total_blocks: u64,
    /// Blocks in the cache.
    pub resident_blocks: u64,
    /// Blocks newer than the device has them.
    pub dirty_blocks: u64,
    /// Blocks used since reclaim last passed them.
    pub referenced_blocks: u64,
}

// SAFETY: numbers of one size.
unsafe impl Plain for fby_residency_info {}

/// What of a range is in the cache at this moment; `len` 0 is up to the end. Read-ahead may still
/// be adding blocks. Fills the smaller of `info_size` and the size that the library knows, and
/// returns the latter.
///
/// # Safety
/// `file` is an open file, `info` has `info_size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fby_residency(
    file: *mut fby_file,
    offset: i64,
    len: i64,
    info: *mut fby_residency_info,
    info_size: usize,
) -> i64 {
    border("fby_residency", || {
        // SAFETY: the caller promises that `file` stays open until the call returns.
        let file = unsafe { borrow::<OpenFile>(file)? };
        let offset = offset_of("residency", offset)?;
        let len = match offset_of("residency", len)? {
            0 => u64::MAX - offset,
            len => len,
        };
        let found = file.call_at(offset, len, |file| file.residency(offset, len))?;
        let filled = fby_residency_info {
            block_size: found.block_size.into(),
            total_blocks: found.total_blocks,
            resident_blocks: found.resident_blocks,
            dirty_blocks: found.dirty_blocks,
            referenced_blocks: found.referenced_blocks,
        };
        // SAFETY: the caller promises that `info_size` bytes can be written at `info`.
        unsafe { output(info, info_size, &filled) }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::border::fby_last_error;
    use crate::cache::{fby_cache_close, fby_cache_create};
    use forebay_block::{BlockDevice, RamDevice};
    use std::ffi::CStr;
    use std::ptr::{null, null_mut};

    /// A device whose `grow` panics.
    struct FailsToGrow(RamDevice);

    impl BlockDevice for FailsToGrow {
        forebay_block::delegate_block_device!([0] limits size submit);

        fn name(&self) -> String {
            "broken".into()
        }
        fn can_grow(&self) -> bool {
            true
        }
        fn grow(&self, size: u64) -> Result<()> {
            panic!("no growth to {size}")
        }
    }

    /// A panic that crossed into C would end the program, or worse.
    #[test]
    fn panicking_call_gives_errno_and_text_handle_stays_usable() {
        let mut cache = null_mut();
        // SAFETY: handles that this test makes, closes once, and uses on this thread only.
        unsafe {
            assert_eq!(fby_cache_create(null(), 0, &mut cache), 0);
            let open = borrow::<Arc<OpenCache>>(cache).unwrap().clone();
            let device = Arc::new(FailsToGrow(RamDevice::new(1 << 20)));
            let inner = OpenOptions::read_write().open_device(&open.cache, device).unwrap();
            let path = PathBuf::from("broken");
            let file = give(OpenFile { file: inner, path, _volume: None, cache: open });
            assert_eq!(fby_ftruncate(file, 2 << 20), -libc::ENOTRECOVERABLE, "C1");
            let text = CStr::from_ptr(fby_last_error()).to_str().unwrap();
            assert!(text.starts_with("fby_ftruncate: a fault in the library"), "{text}");
            assert!(text.ends_with("no growth to 2097152"), "{text}");
            let mut byte = [0_u8; 10];
            let iov = iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: byte.len() };
            assert_eq!(fby_pwritev2(file, &iov, 1, 4096, 0), 10);
            assert_eq!(fby_preadv2(file, &iov, 1, 4096, 0), 10);
            assert_eq!(fby_close(file), 0);
            assert_eq!(fby_cache_close(cache), 0);
        }
    }
}
