//! What is served under one name: an image, or a file of a volume.

use super::spec::ImageSpec;
use crate::args::ExportArgs;
use crate::failure::{Failure, Outcome};
use crate::volume::at;
use forebay::{
    AllocMode, Cache, DirectIo, File, OpenOptions, Residency, Result, StablePages, VolumeOptions,
};
use std::fs::Metadata;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

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
    pub file: File,
}

impl Served {
    /// Bytes.
    pub fn size(&self) -> u64 {
        // Opening the file loaded its attributes: this reads memory.
        self.file.size().unwrap_or(0)
    }

    /// Whether bytes in flight are kept from changing, and why.
    pub fn stable_pages_required(&self) -> (bool, &'static str) {
        self.file.stable_pages_required().unwrap_or((true, "not known"))
    }

    /// Whether the need for stable pages comes from the device or was set.
    pub fn stable_pages(&self) -> StablePages {
        self.file.stable_pages().unwrap_or(StablePages::Auto)
    }

    /// Switches direct I/O of an image; a volume keeps what it was opened with.
    pub fn set_direct_io(&self, mode: DirectIo) -> Result<()> {
        match self.file.volume() {
            Some(_) => Ok(()),
            None => self.file.set_direct_io(mode),
        }
    }

    /// What is in the cache.
    pub fn residency(&self) -> Result<Residency> {
        self.file.residency(0, self.file.size()?)
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
    let (file, shown, identity) = match &spec.inside {
        None => (raw(cache, spec, args)?, image, Some((meta.dev(), meta.ino()))),
        Some(path) => {
            let file = inside(cache, spec, path, args)?;
            (file, format!("{image}:{}", path.display()), None)
        }
    };
    file.set_stable_pages(args.stable_pages.parse()?)?;
    let (direct, reason) = file.direct_io();
    log::info!("{shown}: direct-io {}: {reason}", if direct { "on" } else { "off" });
    Ok(Served { name: spec.name.clone(), shown, identity, read_only: args.cache.read_only, file })
}

fn raw(cache: &Cache, spec: &ImageSpec, args: &ExportArgs) -> Outcome<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(!args.cache.read_only);
    options.direct_io(args.cache.direct_io.parse()?).offset(args.offset);
    if let Some(bytes) = args.size_limit {
        options.size_limit(bytes);
    }
    if let Some(bytes) = args.block_size {
        options.block_size(u32::try_from(bytes).expect("checked to be 4 KiB at most"));
    }
    Ok(options.open(cache, &spec.path)?)
}

fn inside(cache: &Cache, spec: &ImageSpec, path: &Path, args: &ExportArgs) -> Outcome<File> {
    let options = VolumeOptions::default()
        .read_only(args.cache.read_only)
        .direct_io(args.cache.direct_io.parse()?)
        .alloc(args.alloc.as_deref().map_or(Ok(AllocMode::default()), str::parse)?);
    let volume = cache
        .open_volume(&spec.path, &options)
        .map_err(|e| at::in_use(&spec.path, path.as_os_str().as_bytes(), e))?;
    let named = |e: forebay::Error| {
        let failure = Failure::from(e);
        let text = format!("{}:{}: {}", spec.path.display(), path.display(), failure.message);
        Failure { message: text, ..failure }
    };
    let file = OpenOptions::new().read(true).write(!args.cache.read_only).open_in(&volume, path);
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
