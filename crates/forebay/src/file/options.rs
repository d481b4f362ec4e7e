//! How a file is opened: a raw image on a cache, or a file of a volume.

use super::inside::VolumeOpener;
use super::open::RawOptions;
use super::raw::Access;
use super::{File, Kind};
use crate::cache::Cache;
use crate::volume::Volume;
use forebay_base::task::block_on;
use forebay_base::{Error, ErrorKind, IoFlags, Result};
use forebay_block::{DeviceRef, DirectIo, FileDevice, FileIdentity, FileOptions};
use forebay_vfs::path::{Last, Place, SYMLINKS_MAX, resolve, resolve_parent};
use forebay_vfs::{Attr, FileKind, Ino, Name, NewInode, OpenFileRef, OpenFlags};
use std::fs::Permissions;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::time::Duration;

/// How a file is opened, in the manner of [`std::fs::OpenOptions`]: [`OpenOptions::open`] opens a
/// raw image, [`OpenOptions::open_in`] a file of a volume.
///
/// ```
/// use forebay::{Cache, CacheConfig, OpenOptions};
/// # fn main() -> forebay::Result<()> {
/// # let path = std::env::temp_dir().join(format!("forebay-doc-open-{}", std::process::id()));
/// let cache = Cache::new(CacheConfig::with_budget(16 << 20))?;
/// let mut options = OpenOptions::new();
/// let file = options.read(true).write(true).create(true).open(&cache, &path)?;
/// file.write_all_at(b"hello", 0)?;
/// file.close()?;
/// # std::fs::remove_file(&path).unwrap();
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct OpenOptions {
    read: bool,
    write: bool,
    append: bool,
    truncate: bool,
    create: bool,
    create_new: bool,
    mode: Option<u16>,
    io_flags: IoFlags,
    direct_io: Option<DirectIo>,
    offset: Option<u64>,
    size_limit: Option<u64>,
    block_size: Option<u32>,
    create_size: Option<u64>,
    no_follow: bool,
}

macro_rules! options {
    ($($(#[$doc:meta])* $name:ident: $kind:ty $(=> $wrap:ident)?;)*) => {$(
        $(#[$doc])*
        pub fn $name(&mut self, $name: $kind) -> &mut Self {
            self.$name = $($wrap)?($name);
            self
        }
    )*};
}

fn nonsense<T>(text: &str) -> Result<T> {
    Err(Error::new(ErrorKind::InvalidInput, "open", text))
}

/// Resolving a path finds a symbolic link only if the last name is not followed.
fn not_a_link(attr: Attr) -> Result<Attr> {
    match attr.kind {
        FileKind::Symlink => {
            Err(Error::new(ErrorKind::SymlinkLoop, "open", "the last name is a symbolic link"))
        }
        _ => Ok(attr),
    }
}

/// Opens a file while its owner may read and write it. As with open(2), the permissions of a file
/// count for those who open it later, not for the one who makes it.
fn with_rights(made: &std::fs::File, open: impl FnOnce() -> Result<File>) -> Result<File> {
    let fail = |e| Error::from_io("open", e);
    let wanted = made.metadata().map_err(fail)?.permissions();
    let widened = Permissions::from_mode(wanted.mode() | 0o600);
    made.set_permissions(widened).map_err(fail)?;
    let opened = open();
    made.set_permissions(wanted).map_err(fail)?;
    opened
}

impl OpenOptions {
    /// Nothing is allowed yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Reading and writing are allowed.
    #[must_use]
    pub fn read_write() -> Self {
        Self { read: true, write: true, ..Self::default() }
    }

    options! {
        /// Allows reading.
        read: bool;
        /// Allows writing. A raw image that is not opened for writing is locked shared.
        write: bool;
        /// Allows writing, and each write goes to the end of the file.
        append: bool;
        /// Empties the file.
        truncate: bool;
        /// Makes the file if it is missing.
        create: bool;
        /// Makes the file; `Exists` if the name is taken, also by a symbolic link.
        create_new: bool;
        /// Permission bits of a new file. Default: 0o644 in a volume, where no umask applies, and
        /// 0o666 less the umask on the host.
        mode: u16 => Some;
        /// Refuses a path whose last name is a symbolic link: `SymlinkLoop`, and the target is
        /// neither opened nor made. Links to directories on the way are followed.
        no_follow: bool;
        /// Flags of every request on this file, such as [`IoFlags::UNCACHED`].
        io_flags: IoFlags;
        /// Raw images: whether to bypass the system's page cache below this one.
        direct_io: DirectIo => Some;
        /// Raw images: where in the image the file starts, bytes.
        offset: u64 => Some;
        /// Raw images: the longest size to show, bytes. A file with a limit does not grow.
        size_limit: u64 => Some;
        /// Raw images: unit of state in the cache, a power of two, 512 to 4096 bytes; default
        /// 4096.
        block_size: u32 => Some;
        /// Raw images: bytes of an image that `create` makes, or that is empty.
        create_size: u64 => Some;
    }

    fn writes(&self) -> bool {
        self.write || self.append
    }

    /// Refuses options that contradict each other.
    fn check(&self) -> Result<()> {
        let changes = self.truncate || self.create || self.create_new;
        if self.append && self.truncate {
            return nonsense("`append` and `truncate` exclude each other");
        }
        if changes && !self.writes() {
            return nonsense("`create` and `truncate` need `write`");
        }
        if !self.read && !self.writes() {
            return nonsense("neither `read` nor `write`");
        }
        self.io_flags.check(self.writes())
    }

    fn access(&self) -> Access {
        let mut io_flags = self.io_flags;
        io_flags.set(IoFlags::APPEND, self.append);
        Access { readable: self.read, writable: self.writes(), io_flags }
    }

    /// Opens a file or block special file of the host on `cache`. It is locked against other
    /// processes and caches until its last opener is closed. A file that this cache has open
    /// already is shared. A file that was closed finds its cached blocks again, unless another
    /// program changed it meanwhile.
    ///
    /// Errors: `Busy` if another process or cache has it open, or this cache has it open for
    /// another range, with other blocks or for reading only; `NotFound`, `Exists`; `InvalidInput`
    /// for options that contradict each other.
    pub fn open(&self, cache: &Cache, path: impl AsRef<Path>) -> Result<File> {
        let path = path.as_ref();
        self.open_raw(cache, path).map_err(|e| e.with_path(path))
    }

    fn raw(&self) -> RawOptions {
        RawOptions {
            read_only: !self.writes(),
            direct_io: self.direct_io.unwrap_or_default(),
            offset: self.offset.unwrap_or(0),
            size_limit: self.size_limit,
            block_size: self.block_size,
            create_size: self.create_size.filter(|_| self.create || self.create_new),
            no_follow: self.no_follow,
        }
    }

    fn open_raw(&self, cache: &Cache, path: &Path) -> Result<File> {
        self.check()?;
        let made = if self.create || self.create_new { self.make_raw(path)? } else { None };
        let file = match made {
            Some(made) => self.open_made(cache, path, &made)?,
            None => cache.open_raw(path, &self.raw(), self.access())?,
        };
        if self.truncate {
            file.set_len(0)?;
            self.create_size.map_or(Ok(()), |size| file.set_len(size))?;
        }
        Ok(file)
    }

    /// The file, if this call has made it, and not the target of a symbolic link.
    fn make_raw(&self, path: &Path) -> Result<Option<std::fs::File>> {
        let mut options = std::fs::OpenOptions::new();
        options.write(true).create(true).create_new(true).truncate(false);
        if let Some(mode) = self.mode {
            options.mode(mode.into());
        }
        // An existing file is not opened here, because another program may hold its lock.
        if !self.create_new && path.exists() {
            return Ok(None);
        }
        let exists = |e: &std::io::Error| e.kind() == std::io::ErrorKind::AlreadyExists;
        let made = match options.open(path) {
            // With O_EXCL the host follows no symbolic link at the last name.
            Err(e) if exists(&e) && !self.create_new && !self.no_follow => {
                options.create_new(false).open(path).map(|_| None)
            }
            Err(e) if exists(&e) && !self.create_new => Ok(None),
            made => made.map(Some),
        };
        made.map_err(|e| Error::from_io("open", e))
    }

    /// Opens the file that this call has made, whatever its permissions are, and removes it if it
    /// is refused.
    fn open_made(&self, cache: &Cache, path: &Path, made: &std::fs::File) -> Result<File> {
        let open = || cache.open_raw(path, &self.raw(), self.access());
        let opened = match open() {
            Err(e) if e.kind() == ErrorKind::Permission => with_rights(made, open),
            opened => opened,
        };
        opened.inspect_err(|_| self.remove_made(cache, path, made))
    }

    /// An opener that came meanwhile and writes holds the lock: then the file stays.
    fn remove_made(&self, cache: &Cache, path: &Path, made: &std::fs::File) {
        let options = FileOptions {
            read_only: true,
            direct_io: DirectIo::Off,
            no_follow: true,
            lock_wait: Duration::ZERO,
            ..FileOptions::default()
        };
        let device = FileDevice::open(path, &options, &cache.shared.engine);
        let (Ok(device), Ok(made)) = (device, made.metadata()) else { return };
        let is_new = made.len() == 0 || Some(made.len()) == self.create_size;
        let is_made = FileIdentity::Inode(made.dev(), made.ino());
        if is_new && device.identity().is_ok_and(|found| found == is_made) {
            let _gone = std::fs::remove_file(path);
        }
    }

    /// Opens a block device object on `cache`: RAM, or one of the caller's own. Files on the same
    /// object share a flush domain.
    pub fn open_device(&self, cache: &Cache, device: DeviceRef) -> Result<File> {
        self.check()?;
        if self.truncate || self.create || self.create_new {
            return nonsense("a device object is neither made nor truncated");
        }
        cache.open_device(device, &self.raw(), self.access())
    }

    /// Opens the file at `path` in `volume`; symbolic links are followed. A directory opens for
    /// reading, to sync it. Errors: `NotFound`, `Exists`, `IsDirectory` and what else the path may
    /// lead to; `ReadOnly`; `InvalidInput` for options that contradict each other, or that only a
    /// raw image has.
    pub fn open_in(&self, volume: &Volume, path: impl AsRef<Path>) -> Result<File> {
        let path = path.as_ref();
        self.open_inside(volume, path).map_err(|e| e.with_path(path))
    }

    fn check_inside(&self) -> Result<OpenFlags> {
        self.check()?;
        let of_raw = [
            ("direct_io", self.direct_io.is_some()),
            ("offset", self.offset.is_some()),
            ("size_limit", self.size_limit.is_some()),
            ("block_size", self.block_size.is_some()),
            ("create_size", self.create_size.is_some()),
        ];
        if let Some((name, _)) = of_raw.iter().find(|(_, is_set)| *is_set) {
            return nonsense(&format!("`{name}` is an option of raw images"));
        }
        let mut flags = OpenFlags::empty();
        flags.set(OpenFlags::READ, self.read);
        flags.set(OpenFlags::WRITE, self.writes());
        flags.set(OpenFlags::TRUNCATE, self.truncate);
        flags.set(OpenFlags::EXCLUSIVE, self.create_new);
        Ok(flags)
    }

    fn last(&self) -> Last {
        if self.no_follow { Last::NoFollow } else { Last::Follow }
    }

    fn open_inside(&self, volume: &Volume, path: &Path) -> Result<File> {
        let flags = self.check_inside()?;
        let fs = &*volume.open.fs;
        let bytes = path.as_os_str().as_bytes();
        let found = match self.create_new {
            true => Err(Error::new(ErrorKind::NotFound, "open", "to be made")),
            false => block_on(resolve(fs, Ino::ROOT, bytes, self.last())).and_then(not_a_link),
        };
        let file = match found {
            Ok(attr) => block_on(fs.open(attr.ino, flags))?,
            Err(e) if e.kind() == ErrorKind::NotFound && (self.create || self.create_new) => {
                self.make_inside(volume, bytes, flags)?
            }
            Err(e) => return Err(e),
        };
        let opener = VolumeOpener::new(file, path.into(), volume.clone());
        Ok(File::of(Kind::Volume(opener), self.access().io_flags))
    }

    /// Makes the file. If the name is a symbolic link to a missing target, makes the target.
    fn make_inside(&self, volume: &Volume, path: &[u8], flags: OpenFlags) -> Result<OpenFileRef> {
        let fs = &*volume.open.fs;
        let (uid, gid) = volume.open.owner;
        let mode = self.mode.unwrap_or(0o644);
        let new = NewInode { uid, gid, ..NewInode::of(FileKind::File, mode) };
        let (mut start, mut path) = (Ino::ROOT, path.to_vec());
        for _ in 0..=SYMLINKS_MAX {
            let Place { dir, name, directory } = block_on(resolve_parent(fs, start, &path))?;
            let name = match name {
                Some(name) if !directory => name,
                _ => return Err(Error::new(ErrorKind::IsDirectory, "open", "a directory's path")),
            };
            let made = block_on(fs.create(dir, Name::new(&name)?, &new, flags));
            match made {
                Err(e) if e.kind() == ErrorKind::SymlinkLoop && !self.no_follow => {
                    let link = block_on(fs.lookup(dir, Name::new(&name)?))?;
                    (start, path) = (dir, block_on(fs.readlink(link.ino))?);
                }
                made => return made.map(|(_, file)| file),
            }
        }
        Err(Error::new(ErrorKind::SymlinkLoop, "open", "too many links on the way"))
    }
}

impl File {
    /// Whether each write goes to the end of the file: see [`OpenOptions::append`].
    #[must_use]
    pub fn appends(&self) -> bool {
        self.opener.write_flags.contains(IoFlags::APPEND)
    }
}
