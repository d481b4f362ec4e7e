//! What is served under one name: an image, or a file of a volume.

use super::spec::ImageSpec;
use crate::args::ExportArgs;
use crate::failure::{Failure, Outcome};
use crate::volume::at;
use forebay::{
    AllocMode, Cache, DirectIo, File, LiveMode, OpenOptions, RawOptions, Residency, Result,
    StablePages, Volume, VolumeFile, VolumeOptions,
};
use forebay_vfs::Export;
use std::fs::Metadata;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// See the module.
pub struct Served {
    /// Export name.
    pub name: String,
    /// Absolute path of the image, with the path in the volume behind a colon.
    pub shown: String,
    /// Device and inode number of an image; a file of a volume has none on the host.
    pub identity: Option<(u64, u64)>,
    /// Writes are refused.
    pub read_only: bool,
    /// The open file.
    pub source: Source,
}

/// An open file.
pub enum Source {
    /// An image.
    Raw(File),
    /// A file of a volume.
    Inside(VolumeFile),
}

impl Source {
    /// Bytes.
    pub fn size(&self) -> u64 {
        match self {
            Self::Raw(file) => file.size(),
            // It was asked before; what is asked is in memory.
            Self::Inside(file) => file.size().unwrap_or(0),
        }
    }

    /// Whether direct I/O is on below the cache, and why.
    pub fn direct_io(&self) -> (bool, String) {
        match self {
            Self::Raw(file) => file.direct_io(),
            Self::Inside(file) => file.volume().direct_io(),
        }
    }

    /// Whether bytes in flight are kept from changing, and why.
    pub fn stable_pages_required(&self) -> (bool, &'static str) {
        match self {
            Self::Raw(file) => file.stable_pages_required(),
            Self::Inside(file) => file.stable_pages_required().unwrap_or((true, "not known")),
        }
    }

    /// What the device below asks for.
    pub fn device_stable_pages_required(&self) -> (bool, &'static str) {
        match self {
            Self::Raw(file) => file.device_stable_pages_required(),
            Self::Inside(file) => file.volume().device_stable_pages_required(),
        }
    }

    /// As it was set last.
    pub fn stable_pages(&self) -> StablePages {
        match self {
            Self::Raw(file) => file.stable_pages(),
            Self::Inside(file) => file.stable_pages().unwrap_or(StablePages::Auto),
        }
    }

    /// Sets it.
    pub fn set_stable_pages(&self, to: StablePages) -> Result<()> {
        match self {
            Self::Raw(file) => file.set_stable_pages(to),
            Self::Inside(file) => file.set_stable_pages(to),
        }
    }

    /// Switches direct I/O of an image; a volume keeps what it was opened with.
    pub fn set_direct_io(&self, mode: DirectIo) -> Result<()> {
        match self {
            Self::Raw(file) => file.set_direct_io(mode),
            Self::Inside(_) => Ok(()),
        }
    }

    /// What is in the cache.
    pub fn residency(&self) -> Result<Residency> {
        match self {
            Self::Raw(file) => Ok(file.residency(0, file.size())),
            Self::Inside(file) => file.residency(0, file.size()?),
        }
    }

    /// For the server.
    pub fn export(&self, mode: &LiveMode) -> Result<Arc<dyn Export>> {
        match self {
            Self::Raw(file) => Ok(file.export_live(mode)),
            Self::Inside(file) => file.export_live(mode),
        }
    }

    /// The volume, if it is in one.
    pub fn volume(&self) -> Option<&Volume> {
        match self {
            Self::Raw(_) => None,
            Self::Inside(file) => Some(file.volume()),
        }
    }
}

/// What can be said of an image before the cache is there.
pub fn look_at(spec: &ImageSpec) -> Outcome<Metadata> {
    let shown = spec.path.display().to_string();
    let meta = std::fs::metadata(&spec.path).map_err(|e| Failure::io(&shown, &e))?;
    if meta.is_dir() {
        return Err(Failure::new(format!("{shown}: a folder, not an image")));
    }
    Ok(meta)
}

/// Opens what is to be served.
pub fn open(cache: &Cache, spec: &ImageSpec, args: &ExportArgs) -> Outcome<Served> {
    let meta = look_at(spec)?;
    let image = absolute(&spec.path).display().to_string();
    let (source, shown, identity) = match &spec.inside {
        None => (raw(cache, spec, args)?, image, Some((meta.dev(), meta.ino()))),
        Some(path) => {
            let source = Source::Inside(inside(cache, spec, path, args)?);
            (source, format!("{image}:{}", path.display()), None)
        }
    };
    source.set_stable_pages(args.stable_pages.parse()?)?;
    let (direct, reason) = source.direct_io();
    log::info!("{shown}: direct-io {}: {reason}", if direct { "on" } else { "off" });
    Ok(Served { name: spec.name.clone(), shown, identity, read_only: args.cache.read_only, source })
}

fn raw(cache: &Cache, spec: &ImageSpec, args: &ExportArgs) -> Outcome<Source> {
    let options = RawOptions {
        read_only: args.cache.read_only,
        direct_io: args.cache.direct_io.parse()?,
        offset: args.offset,
        size_limit: args.size_limit,
        block_size: args.block_size.map(|b| u32::try_from(b).expect("checked to be 4 KiB at most")),
        create_size: None,
    };
    Ok(Source::Raw(cache.open_raw(&spec.path, &options)?))
}

fn inside(cache: &Cache, spec: &ImageSpec, path: &Path, args: &ExportArgs) -> Outcome<VolumeFile> {
    let options = VolumeOptions {
        read_only: args.cache.read_only,
        direct_io: args.cache.direct_io.parse()?,
        alloc: args.alloc.as_deref().map_or(Ok(AllocMode::default()), str::parse)?,
        ..VolumeOptions::default()
    };
    let volume = cache
        .open_volume(&spec.path, &options)
        .map_err(|e| at::in_use(&spec.path, path.as_os_str().as_bytes(), e))?;
    let named = |e: forebay::Error| {
        let failure = Failure::from(e);
        let text = format!("{}:{}: {}", spec.path.display(), path.display(), failure.message);
        Failure { message: text, ..failure }
    };
    let file = OpenOptions::new().read(true).write(!args.cache.read_only).open(&volume, path);
    let file = file.map_err(named)?;
    // What has no content is refused here, by name.
    file.stable_pages().map_err(named)?;
    Ok(file)
}

fn absolute(path: &Path) -> PathBuf {
    std::fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf())
}

/// A path in a volume from its bytes.
pub fn path_of(bytes: &[u8]) -> PathBuf {
    PathBuf::from(std::ffi::OsStr::from_bytes(bytes))
}
