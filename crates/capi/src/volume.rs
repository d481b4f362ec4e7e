//! `fby_volume`: a file system of Forebay's own in one image.
//!
//! No locks.

use crate::border::{border, invalid};
use crate::cache::{OpenCache, fby_cache};
use crate::flags::only;
use crate::handle::{Kind, borrow, give, take};
use crate::sized::{Given, Plain, input, path, place};
use crate::volumes::Held;
use forebay::{
    CreateVolume, DirectIo, Error, ErrorKind, FileIdentity, Result, Volume, VolumeOptions,
};
use std::ffi::{c_char, c_int};
use std::sync::Arc;

/// An open volume. Any number of threads may use it at once.
pub struct fby_volume {
    _opaque: (),
}

/// The volume. Its open files and directories hold a reference, too. The fields are dropped in this
/// order: the image is free before another call may open it.
pub(crate) struct OpenVolume {
    pub volume: Volume,
    held: Held,
    cache: Arc<OpenCache>,
}

impl OpenVolume {
    pub fn cache(&self) -> Arc<OpenCache> {
        self.cache.clone()
    }
}

impl Kind for Arc<OpenVolume> {
    type Handle = fby_volume;
    const NUMBER: u64 = 0x6662_795f_766f_6c75;
    const NAME: &'static str = "an open volume";
}

/// A volume is made even where there is something already, which is lost.
pub const FBY_VOLUME_FORCE: u32 = 1;
/// Blocks of files have no checksums.
pub const FBY_VOLUME_NO_CHECKSUMS: u32 = 2;

/// How a volume is made. A field that is 0 has its default.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fby_volume_config {
    /// Bytes of the image. Default: what the file or the block device has.
    pub size: u64,
    /// Bytes of a block, a power of two from 512 to 4096. Default: 4096.
    pub block_size: u32,
    /// Bytes of a segment, a power of two from 65536 to 1073741824. Default: chosen by size.
    pub segment_size: u32,
    /// FBY_VOLUME_FORCE, FBY_VOLUME_NO_CHECKSUMS.
    pub flags: u32,
    /// 0.
    pub reserved: u32,
}

// SAFETY: numbers; one of 8 bytes and four of 4 leave no padding.
unsafe impl Plain for fby_volume_config {}

impl Given for fby_volume_config {
    const LEAST: usize = 24;
}

/// Nothing is written to the image.
pub const FBY_VOLUME_READ_ONLY: u32 = 1;
/// Reading leaves access times as they are.
pub const FBY_VOLUME_NOATIME: u32 = 2;
/// The device is told of space that is not used any more.
pub const FBY_VOLUME_DISCARD: u32 = 4;

/// Direct I/O below the cache wherever the image is eligible.
pub const FBY_DIRECT_IO_AUTO: u32 = 0;
/// Direct I/O below the cache, or an error that says why not.
pub const FBY_DIRECT_IO_ON: u32 = 1;
/// No direct I/O below the cache.
pub const FBY_DIRECT_IO_OFF: u32 = 2;

/// How a volume is opened. A field that is 0 has its default.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fby_volume_how {
    /// FBY_VOLUME_READ_ONLY, FBY_VOLUME_NOATIME, FBY_VOLUME_DISCARD.
    pub flags: u32,
    /// FBY_DIRECT_IO_AUTO, FBY_DIRECT_IO_ON or FBY_DIRECT_IO_OFF.
    pub direct_io: u32,
}

// SAFETY: numbers of one size.
unsafe impl Plain for fby_volume_how {}

impl Given for fby_volume_how {
    const LEAST: usize = 8;
}

pub(crate) fn direct_io(number: u32) -> Result<DirectIo> {
    match number {
        FBY_DIRECT_IO_AUTO => Ok(DirectIo::Auto),
        FBY_DIRECT_IO_ON => Ok(DirectIo::On),
        FBY_DIRECT_IO_OFF => Ok(DirectIo::Off),
        other => Err(invalid("open", format!("no direct I/O has number {other}"))),
    }
}

/// Makes an empty volume in a file, which is made if it is missing, or on a block device. -EEXIST
/// if something is there, unless FBY_VOLUME_FORCE says that it may be lost.
///
/// # Safety
/// `image` is a string, `config` has `config_size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fby_volume_create(
    image: *const c_char,
    config: *const fby_volume_config,
    config_size: usize,
) -> c_int {
    border("fby_volume_create", || {
        // SAFETY: the caller promises that `image` ends in a zero and does not change, and that
        // `config_size` bytes can be read at `config`.
        let (image, given) = unsafe { (path(image)?, input(config, config_size)?) };
        only("create a volume", given.flags, FBY_VOLUME_FORCE | FBY_VOLUME_NO_CHECKSUMS)?;
        if given.reserved != 0 {
            return Err(invalid("create a volume", "`reserved` is not 0"));
        }
        let mut how = CreateVolume::default();
        how = how.force(given.flags & FBY_VOLUME_FORCE != 0);
        how = how.checksums(given.flags & FBY_VOLUME_NO_CHECKSUMS == 0);
        if given.size != 0 {
            how = how.size(given.size);
        }
        if given.block_size != 0 {
            how = how.block_size(given.block_size);
        }
        if given.segment_size != 0 {
            how = how.segment_size(given.segment_size);
        }
        Volume::create(image, &how).map(|()| 0)
    })
}

fn open(cache: &Arc<OpenCache>, image: *const c_char, given: fby_volume_how) -> Result<OpenVolume> {
    let known = FBY_VOLUME_READ_ONLY | FBY_VOLUME_NOATIME | FBY_VOLUME_DISCARD;
    only("open a volume", given.flags, known)?;
    let how = VolumeOptions::default()
        .read_only(given.flags & FBY_VOLUME_READ_ONLY != 0)
        .noatime(given.flags & FBY_VOLUME_NOATIME != 0)
        .discard(given.flags & FBY_VOLUME_DISCARD != 0)
        .direct_io(direct_io(given.direct_io)?);
    // SAFETY: the caller of `fby_volume_open` promises a string.
    let image = unsafe { path(image)? };
    let key = FileIdentity::of_path(image)?;
    let held = Held::claim(&cache.volumes, key).map_err(|e| e.with_path(image))?;
    let volume = cache.cache.open_volume(image, &how)?;
    if !held.is_of(volume.identity()) {
        let text = "the path leads elsewhere by now";
        return Err(Error::new(ErrorKind::Busy, "open a volume", text).with_path(image));
    }
    held.mark_open();
    Ok(OpenVolume { volume, held, cache: cache.clone() })
}

/// Opens a volume on a cache, and recovers it first if it was not closed. -EBUSY if another process
/// or cache has it open, or this one has, or if another call opens or closes it for 30 s; -EUCLEAN
/// if it is damaged.
///
/// # Safety
/// `cache` is an open cache, `image` a string, `how` has `how_size` bytes, `volume` is a place for
/// a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fby_volume_open(
    cache: *mut fby_cache,
    image: *const c_char,
    how: *const fby_volume_how,
    how_size: usize,
    volume: *mut *mut fby_volume,
) -> c_int {
    border("fby_volume_open", || {
        let make = || {
            // SAFETY: the caller promises that `cache` stays open until the call returns, and that
            // `how_size` bytes can be read at `how`.
            let (cache, how) = unsafe { (borrow::<Arc<OpenCache>>(cache)?, input(how, how_size)?) };
            Ok(give(Arc::new(open(cache, image, how)?)))
        };
        // SAFETY: the caller promises that a pointer can be written at `volume`.
        unsafe { place(volume, make) }
    })
}

/// Everything that was done on the volume before is durable after it.
///
/// # Safety
/// `volume` is an open volume.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fby_volume_sync(volume: *mut fby_volume) -> c_int {
    border("fby_volume_sync", || {
        // SAFETY: the caller promises that `volume` stays open until the call returns.
        unsafe { borrow::<Arc<OpenVolume>>(volume)? }.volume.sync().map(|()| 0)
    })
}

/// Makes everything durable and closes the volume. -EBUSY while files or directories of it are
/// open; it stays open then. Another error: not everything is durable; the handle is closed.
///
/// # Safety
/// `volume` is an open volume that no other thread uses.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fby_volume_close(volume: *mut fby_volume) -> c_int {
    border("fby_volume_close", || {
        // SAFETY: the caller promises that `volume` stays open until the call returns.
        let users = Arc::strong_count(unsafe { borrow::<Arc<OpenVolume>>(volume)? }) - 1;
        if users > 0 {
            let text = format!("{users} files or directories of it are open");
            return Err(Error::new(ErrorKind::Busy, "close a volume", text));
        }
        // SAFETY: the caller promises that `volume` is open, and no other call uses it; the
        // reference above has ended.
        let open = unsafe { take::<Arc<OpenVolume>>(volume)? };
        open.held.mark_closing();
        open.volume.clone().close().map(|()| 0)
    })
}
