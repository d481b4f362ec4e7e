//! An open file of a volume.
//!
//! No locks.

use crate::export::{ExportMode, LiveMode};
use crate::file::extents;
use crate::volume::Volume;
use crate::volume::export::VolumeExport;
use forebay_base::buf::AlignedBuf;
use forebay_base::task::block_on;
use forebay_base::{Error, ErrorKind, IoFlags, Result};
use forebay_cache::strategy::StablePages;
use forebay_iomap::MappedFile;
use forebay_vfs::path::{Last, Place, resolve, resolve_parent};
use forebay_vfs::{
    Attr, Export, Extent, Fallocate, FileKind, Ino, Name, NewInode, OpenFileRef, OpenFlags,
    Privileges, Seek, SetAttr,
};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

/// How a file of a volume is opened, in the manner of [`std::fs::OpenOptions`].
#[derive(Clone, Debug)]
pub struct OpenOptions {
    read: bool,
    write: bool,
    append: bool,
    truncate: bool,
    create: bool,
    create_new: bool,
    mode: u16,
    io_flags: IoFlags,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self::new()
    }
}

macro_rules! setters {
    ($($(#[$doc:meta])* $name:ident: $kind:ty;)*) => {$(
        $(#[$doc])*
        pub fn $name(&mut self, $name: $kind) -> &mut Self {
            self.$name = $name;
            self
        }
    )*};
}

impl OpenOptions {
    /// Nothing is allowed yet.
    pub fn new() -> Self {
        Self {
            read: false,
            write: false,
            append: false,
            truncate: false,
            create: false,
            create_new: false,
            mode: 0o644,
            io_flags: IoFlags::empty(),
        }
    }

    setters! {
        /// To read.
        read: bool;
        /// To write.
        write: bool;
        /// To write, always at the end.
        append: bool;
        /// It becomes empty.
        truncate: bool;
        /// It is made if it is not there.
        create: bool;
        /// It is made; `Exists` if it is there, also as a symbolic link.
        create_new: bool;
        /// Permission bits of a new file; there is no umask.
        mode: u16;
        /// Flags that go with every request on this file, such as `IoFlags::UNCACHED`.
        io_flags: IoFlags;
    }

    /// Opens the file at `path`, following symbolic links. Errors: `NotFound`, `Exists`, `IsDirectory` and
    /// what else the path may lead to; `ReadOnly`; `InvalidInput` for options that make no sense together.
    pub fn open(&self, volume: &Volume, path: impl AsRef<Path>) -> Result<VolumeFile> {
        let path = path.as_ref();
        self.open_at(volume, path).map_err(|e| e.with_path(path))
    }

    fn flags(&self) -> Result<OpenFlags> {
        let writes = self.write || self.append;
        let changes = self.truncate || self.create || self.create_new;
        let nonsense = if writes { self.append && self.truncate } else { changes || !self.read };
        if nonsense {
            let text = "such options make no sense together";
            return Err(Error::new(ErrorKind::InvalidInput, "open", text));
        }
        self.io_flags.check(writes)?;
        let mut flags = OpenFlags::empty();
        flags.set(OpenFlags::READ, self.read);
        flags.set(OpenFlags::WRITE, writes);
        flags.set(OpenFlags::TRUNCATE, self.truncate);
        flags.set(OpenFlags::EXCLUSIVE, self.create_new);
        Ok(flags)
    }

    fn open_at(&self, volume: &Volume, path: &Path) -> Result<VolumeFile> {
        let flags = self.flags()?;
        let fs = &*volume.open.fs;
        let bytes = path.as_os_str().as_bytes();
        let found = match self.create_new {
            true => Err(Error::new(ErrorKind::NotFound, "open", "to be made")),
            false => block_on(resolve(fs, Ino::ROOT, bytes, Last::Follow)),
        };
        let file = match found {
            Ok(attr) => block_on(fs.open(attr.ino, flags))?,
            Err(e) if e.kind() == ErrorKind::NotFound && (self.create || self.create_new) => {
                self.make(volume, bytes, flags)?
            }
            Err(e) => return Err(e),
        };
        let mut io_flags = self.io_flags;
        io_flags.set(IoFlags::APPEND, self.append);
        Ok(VolumeFile::new(file, volume, io_flags))
    }

    /// Makes the file; a symbolic link in its place, which leads to nothing, says where.
    fn make(&self, volume: &Volume, path: &[u8], flags: OpenFlags) -> Result<OpenFileRef> {
        let fs = &*volume.open.fs;
        let (uid, gid) = volume.open.owner;
        let new = NewInode { uid, gid, ..NewInode::of(FileKind::File, self.mode) };
        let (mut start, mut path) = (Ino::ROOT, path.to_vec());
        for _ in 0..=forebay_vfs::path::SYMLINKS_MAX {
            let Place { dir, name, directory } = block_on(resolve_parent(fs, start, &path))?;
            let name = match name {
                Some(name) if !directory => name,
                _ => return Err(Error::new(ErrorKind::IsDirectory, "open", "a directory's path")),
            };
            let made = block_on(fs.create(dir, Name::new(&name)?, &new, flags));
            match made {
                Err(e) if e.kind() == ErrorKind::SymlinkLoop => {
                    let link = block_on(fs.lookup(dir, Name::new(&name)?))?;
                    (start, path) = (dir, block_on(fs.readlink(link.ino))?);
                }
                made => return made.map(|(_, file)| file),
            }
        }
        Err(Error::new(ErrorKind::SymlinkLoop, "open", "too many links on the way"))
    }
}

/// An open file of a volume. Clones share the opener; [`VolumeFile::reopen`] makes a new one.
#[derive(Clone)]
pub struct VolumeFile {
    file: OpenFileRef,
    io_flags: IoFlags,
    /// Goes last: it is open for as long as its files are.
    volume: Volume,
}

impl VolumeFile {
    pub(crate) fn new(file: OpenFileRef, volume: &Volume, io_flags: IoFlags) -> Self {
        Self { file, io_flags, volume: volume.clone() }
    }

    fn writing(&self, flags: IoFlags) -> IoFlags {
        flags | self.io_flags
    }

    fn reading(&self, flags: IoFlags) -> IoFlags {
        flags | (self.io_flags - IoFlags::WRITE_ONLY)
    }

    /// Reads at `offset` through the cache; short only at the end of file.
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        self.read_at_with(buf, offset, IoFlags::empty())
    }

    /// Reads with flags. Errors: not open to read, unknown flags, unaligned `DIRECT`, `NOWAIT` that would
    /// wait, I/O; `Corrupt` for blocks that fail their checksum.
    pub fn read_at_with(&self, buf: &mut [u8], offset: u64, flags: IoFlags) -> Result<usize> {
        self.file.read_slice(offset, buf, self.reading(flags))
    }

    /// Writes at `offset` into the cache; written back later. Returns how much was written: less than asked
    /// only where room ran out.
    pub fn write_at(&self, buf: &[u8], offset: u64) -> Result<usize> {
        self.write_at_with(buf, offset, IoFlags::empty())
    }

    /// Writes with flags. With `NOWAIT` it may write less than all. Errors: not open to write, no room,
    /// unknown flags, unaligned `DIRECT`, `NOWAIT` that would wait, I/O.
    pub fn write_at_with(&self, buf: &[u8], offset: u64, flags: IoFlags) -> Result<usize> {
        let flags = self.writing(flags);
        self.file.write_slice(offset, buf, flags, Privileges::Drop).map(|wrote| wrote.len)
    }

    /// Writes at the end of file, in one step with whoever else appends; returns where the bytes went.
    pub fn append(&self, buf: &[u8], flags: IoFlags) -> Result<u64> {
        let flags = self.writing(flags | IoFlags::APPEND);
        let wrote = self.file.write_slice(0, buf, flags, Privileges::Drop)?;
        match wrote.len == buf.len() {
            true => Ok(wrote.offset),
            false => Err(Error::new(ErrorKind::NoSpace, "append", "room for a part of it")),
        }
    }

    /// [`VolumeFile::read_at_with`] without blocking: the buffer back, and how many bytes it holds.
    pub async fn read(
        &self,
        buf: AlignedBuf,
        offset: u64,
        flags: IoFlags,
    ) -> (AlignedBuf, Result<usize>) {
        self.file.read(offset, buf, self.reading(flags)).await
    }

    /// [`VolumeFile::write_at_with`] without blocking: the buffer back, and how much of it was written.
    pub async fn write(
        &self,
        buf: AlignedBuf,
        offset: u64,
        flags: IoFlags,
    ) -> (AlignedBuf, Result<usize>) {
        let flags = self.writing(flags);
        let (buf, wrote) = self.file.write(offset, buf, flags, Privileges::Drop).await;
        (buf, wrote.map(|wrote| wrote.len))
    }

    /// [`VolumeFile::sync_data`] without blocking.
    pub async fn flush(&self) -> Result<()> {
        self.file.sync(true).await
    }

    /// Makes everything written so far durable, with what is needed to find it.
    pub fn sync_data(&self) -> Result<()> {
        self.file.sync_here(true)
    }

    /// As [`VolumeFile::sync_data`], with times and all other attributes.
    pub fn sync_all(&self) -> Result<()> {
        self.file.sync_here(false)
    }

    /// Sets the size in bytes: what is cut off is gone, what is added reads as zeros.
    pub fn set_len(&self, size: u64) -> Result<()> {
        if !self.file.flags().contains(OpenFlags::WRITE) {
            return Err(Error::new(ErrorKind::BadHandle, "set size", "not opened to write"));
        }
        let set = SetAttr::size(size);
        block_on(self.volume.open.fs.setattr(self.file.ino(), &set)).map(drop)
    }

    /// Size in bytes.
    pub fn size(&self) -> Result<u64> {
        self.metadata().map(|attr| attr.size)
    }

    /// Attributes.
    pub fn metadata(&self) -> Result<Attr> {
        block_on(self.volume.open.fs.getattr(self.file.ino()))
    }

    /// The range reads as zeros afterwards, and its space is given back. The size stays.
    pub fn trim(&self, offset: u64, len: u64) -> Result<()> {
        self.fallocate(Fallocate::PunchHole, offset, len)
    }

    /// The range reads as zeros afterwards. The size stays.
    pub fn zero(&self, offset: u64, len: u64) -> Result<()> {
        self.fallocate(Fallocate::ZeroRange { keep_size: true }, offset, len)
    }

    /// Prepares or zeroes a range.
    pub fn fallocate(&self, how: Fallocate, offset: u64, len: u64) -> Result<()> {
        block_on(self.file.fallocate(how, offset, len, Privileges::Drop))
    }

    /// The first offset from `offset` on that may be data, or that is in a hole; `PastEnd` where none
    /// follows.
    pub fn seek(&self, what: Seek, offset: u64) -> Result<u64> {
        block_on(self.file.seek(what, offset))
    }

    /// Map of a range: which runs hold data, dirty data in the cache included.
    pub fn extents(&self, offset: u64, len: u64) -> Result<Vec<Extent>> {
        block_on(extents(&*self.mapped()?, offset, len, usize::MAX))
    }

    /// A new opener of the same file: with streams and a view of write errors of its own.
    pub fn reopen(&self) -> Result<Self> {
        let flags = self.file.flags() & (OpenFlags::READ | OpenFlags::WRITE);
        let file = block_on(self.volume.open.fs.open(self.file.ino(), flags))?;
        Ok(Self::new(file, &self.volume, self.io_flags))
    }

    /// Whether it can be written.
    pub fn writable(&self) -> bool {
        self.file.flags().contains(OpenFlags::WRITE)
    }

    /// The volume.
    pub fn volume(&self) -> &Volume {
        &self.volume
    }

    /// The open file as front ends see it.
    pub fn open_file(&self) -> &OpenFileRef {
        &self.file
    }

    /// Its mapping in the cache, if it has content.
    pub(crate) fn mapped(&self) -> Result<Arc<MappedFile>> {
        self.volume.open.volume.mapped_file(self.file.ino())
    }

    /// Whether bytes in flight are kept from changing on this file, and why.
    pub fn stable_pages_required(&self) -> Result<(bool, &'static str)> {
        let need = self.mapped()?.stable_need();
        Ok((need.required, need.reason))
    }

    /// Whether the need comes from the volume (`Auto`) or from here. `Off` is `Unsupported` where checksums
    /// are kept.
    pub fn set_stable_pages(&self, to: StablePages) -> Result<()> {
        self.mapped()?.set_stable_pages(to)
    }

    /// As it was set last.
    pub fn stable_pages(&self) -> Result<StablePages> {
        Ok(self.mapped()?.stable_pages())
    }

    /// What of a range is cached.
    pub fn residency(&self, offset: u64, len: u64) -> Result<crate::Residency> {
        Ok(crate::file::residency(&*self.mapped()?, offset, len))
    }

    /// This file as an export for front ends. `IsDirectory`, `InvalidInput` for what has no content.
    pub fn export(&self, mode: ExportMode) -> Result<Arc<dyn Export>> {
        self.export_live(&LiveMode::new(mode))
    }

    /// This file as an export whose mode can be changed while it is served.
    pub fn export_live(&self, mode: &LiveMode) -> Result<Arc<dyn Export>> {
        Ok(Arc::new(VolumeExport::new(self.reopen()?, mode.clone())?))
    }
}
