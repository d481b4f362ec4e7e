//! Opens a raw image or a device object on a cache: shares a file that is open, revives one that is
//! closed and has pending write-back, and finds the cached blocks of one that was open before.
//!
//! Locks: those of [`crate::registry`].

use super::raw::{Access, RawOpener};
use super::{File, Kind};
use crate::cache::Cache;
use crate::registry::{Claim, Closing, Found, Locked, Raw, Resident, View};
use crate::unreported::Key;
use forebay_base::{Error, ErrorKind, Result};
use forebay_block::{BlockDevice, DeviceRef, DirectIo, FileDevice, FileIdentity, FileOptions};
use forebay_cache::writeback::{Domain, DomainKey};
use forebay_iomap::MappedFile;
use forebay_iomap::file::Geometry;
use forebay_iomap::identity::Identity;
use std::path::Path;
use std::sync::Arc;

/// The part of [`crate::OpenOptions`] that concerns a raw image.
pub(super) struct RawOptions {
    pub read_only: bool,
    pub direct_io: DirectIo,
    pub offset: u64,
    pub size_limit: Option<u64>,
    pub block_size: Option<u32>,
    /// Size to give an empty image.
    pub create_size: Option<u64>,
    /// Refuse a symbolic link.
    pub no_follow: bool,
}

impl Cache {
    pub(super) fn open_raw(
        &self,
        path: &Path,
        options: &RawOptions,
        access: Access,
    ) -> Result<File> {
        // Almost always one pass. Retries if the path leads to another file by now.
        for _ in 0..8 {
            if let Some(file) = self.open_once(path, options, access)? {
                return Ok(file);
            }
        }
        Err(Error::new(ErrorKind::Busy, "open", "the path leads elsewhere each time")
            .with_path(path))
    }

    fn open_once(&self, path: &Path, options: &RawOptions, access: Access) -> Result<Option<File>> {
        let key = match options.no_follow {
            true => FileIdentity::of_path_no_follow(path)?,
            false => FileIdentity::of_path(path)?,
        };
        let (offset, size_limit) = (options.offset, options.size_limit);
        let view = View { offset, size_limit, block_size: options.block_size.unwrap_or(4096) };
        let mut claim = match self.shared.registry.claim(key) {
            Found::Open(closing) => {
                check_suitable(&closing, view, options).map_err(|e| e.with_path(path))?;
                return Ok(Some(self.opener(closing, access)));
            }
            Found::Free(claim) => claim,
        };
        if let Some(closing) = self.revived(key, &claim, view, options) {
            let suits = check_suitable(&closing, view, options).map_err(|e| e.with_path(path));
            let file = suits.map(|()| self.opener(closing.clone(), access));
            claim.opened(&closing);
            return file.map(Some);
        }
        claim.wait_gone();
        let file_options = FileOptions {
            read_only: options.read_only,
            direct_io: options.direct_io,
            offset: options.offset,
            size_limit: options.size_limit,
            create_size: options.create_size,
            // Direct I/O needs units no larger than the cache's blocks (L1 in docs/lineage.md).
            logical_block: options.block_size.unwrap_or(0),
            no_follow: options.no_follow,
            ..FileOptions::default()
        };
        let device = FileDevice::open(path, &file_options, &self.shared.engine)?;
        if device.identity()? != key {
            return Ok(None);
        }
        let lock = self.shared.registry.new_lock();
        let locked = Locked::by(&lock);
        device.until_closed(lock);
        let pages = &self.shared.pages;
        let domain = pages.dirty.domain(Some(match key {
            FileIdentity::Inode(dev, _) => DomainKey::HostFs(dev),
            FileIdentity::Block(dev) => DomainKey::Block(dev),
        }));
        let same = |r: &Resident| r.view == view && device.stamp() == Some(r.stamp);
        let resident = match claim.resident.filter(same) {
            Some(resident) => Some(resident.id),
            None => {
                self.drop_resident(path, claim.forget(), &domain);
                None
            }
        };
        let geometry = Geometry {
            block_size: view.block_size,
            size: device.size(),
            read_only: options.read_only,
        };
        let ops = Arc::new(Identity::new(device.clone()));
        let file = MappedFile::open_in(pages, domain, ops, geometry, resident)?;
        self.report_unreported(Key::File(key), &file);
        let raw = Raw { device, key, view, locked };
        let closing = Closing::new(&self.shared.registry, &self.shared.files, file, Some(raw));
        claim.opened(&closing);
        self.shared.registry.sweep(|id| pages.owners.knows(id));
        Ok(Some(self.opener(closing, access)))
    }

    /// Gives a closed file a new opener, if write-back or work in the background still holds it.
    /// Returns `None` if neither does. Also if it has nothing to write back and was opened with
    /// other options than the caller wants: then it is released. `key`: the file's identity.
    fn revived(
        &self,
        key: FileIdentity,
        claim: &Claim<'_>,
        view: View,
        options: &RawOptions,
    ) -> Option<Arc<Closing>> {
        let closed = claim.closed.as_ref()?;
        let (file, device) = (closed.file.upgrade()?, closed.raw.upgrade()?);
        let (view_is, locked) = (closed.view, closed.locked.clone());
        if file.mapping.is_settled() && unsuitable(&file, &device, view_is, view, options).is_some()
        {
            file.mapping.domain.let_go(file.mapping.id);
            return None;
        }
        // Nothing may fail from here on: only this call holds the file and its unwritten data.
        file.mapping.domain.let_go(file.mapping.id);
        let raw = Raw { device, key, view: view_is, locked };
        Some(Closing::new(&self.shared.registry, &self.shared.files, file, Some(raw)))
    }

    /// Gives the file the errors of its earlier openers that no sync has reported, and has it store
    /// such errors again when it is dropped.
    fn report_unreported(&self, key: Key, file: &Arc<MappedFile>) {
        if file.read_only() {
            return;
        }
        if let Some(unreported) = self.shared.unreported.take(&key) {
            file.mapping.restore_unreported(unreported);
        }
        let (errors, pages) = (self.shared.unreported.clone(), self.shared.pages.clone());
        file.set_error_sink(Box::new(move |unreported| errors.keep(&pages, key, unreported)));
    }

    /// A new opener of an open file.
    fn opener(&self, closing: Arc<Closing>, access: Access) -> File {
        let opener = RawOpener::new(self.clone(), closing, access);
        File::of(Kind::Raw(opener), access.io_flags)
    }

    /// Drops the cached blocks of a closed file that has changed since, or was opened another way.
    fn drop_resident(
        &self,
        path: &Path,
        resident: Option<Resident>,
        domain: &forebay_base::sync::Arc<Domain>,
    ) {
        let Some(Resident { id, view, .. }) = resident else { return };
        if self.shared.pages.drop_left(id, domain.clone(), view.block_size) {
            let path = path.display();
            log::info!(
                "{path}: changed since it was closed, or opened another way: its cached blocks are dropped"
            );
        }
    }

    pub(super) fn open_device(
        &self,
        device: DeviceRef,
        options: &RawOptions,
        access: Access,
    ) -> Result<File> {
        let address = Arc::as_ptr(&device).cast::<()>() as usize;
        let key = DomainKey::Object(address);
        let pages = &self.shared.pages;
        let geometry = Geometry {
            block_size: options.block_size.unwrap_or(4096),
            size: device.size(),
            read_only: options.read_only,
        };
        let ops = Arc::new(Identity::new(device.clone()));
        let file = MappedFile::open_in(pages, pages.dirty.domain(Some(key)), ops, geometry, None)?;
        self.report_unreported(Key::object(&device), &file);
        let closing = Closing::new(&self.shared.registry, &self.shared.files, file, None);
        Ok(self.opener(closing, access))
    }
}

/// `Busy` if an opener with these options cannot share the file as it is open.
fn check_suitable(closing: &Closing, view: View, options: &RawOptions) -> Result<()> {
    let why =
        closing.raw().and_then(|(raw, open)| unsuitable(closing.file(), raw, open, view, options));
    why.map_or(Ok(()), |why| Err(Error::new(ErrorKind::Busy, "open", why)))
}

/// Why an opener cannot share a file that is open as `view_is`; `None` if it can.
fn unsuitable(
    file: &MappedFile,
    device: &FileDevice,
    view_is: View,
    view: View,
    options: &RawOptions,
) -> Option<&'static str> {
    if view_is != view {
        return Some("it is open already, for another range or with other blocks");
    }
    if file.read_only() && !options.read_only {
        return Some("it is open already, for reading only");
    }
    let (direct, wanted) = (device.direct_io().0, options.direct_io);
    if (wanted == DirectIo::On && !direct) || (wanted == DirectIo::Off && direct) {
        return Some("it is open already, with direct I/O the other way");
    }
    None
}
