//! What is served under one name: an image, or a file of a volume.

use super::args::ExportArgs;
use super::spec::ImageSpec;
use crate::behaviours;
use crate::failure::{Failure, Outcome};
use crate::volume::at;
use forebay::{Cache, File, LiveMode, OpenOptions, Residency, Result};
use forebay_vfs::Export;
use std::fs::Metadata;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// An open image, or an open file of a volume, that clients know by an export name.
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
    pub file: behaviours::Served,
    /// The file behind `file`, with the calls of its own type.
    opened: File,
}

impl Served {
    /// Bytes.
    pub fn size(&self) -> u64 {
        // Opening the file loaded its attributes: this reads memory.
        self.opened.size().unwrap_or(0)
    }

    /// For clients.
    pub fn export(&self, mode: &LiveMode) -> Result<Arc<dyn Export>> {
        self.opened.export_live(mode)
    }

    /// What is in the cache.
    pub fn residency(&self) -> Result<Residency> {
        self.opened.residency(0, self.opened.size()?)
    }
}

/// Checks an image before the cache is created; returns its metadata.
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
    let (direct, reason) = file.direct_io();
    log::info!("{shown}: direct-io {}: {reason}", if direct { "on" } else { "off" });
    let (name, read_only) = (spec.name.clone(), args.cache.read_only);
    let opened = file.clone();
    Ok(Served { name, shown, identity, read_only, file: behaviours::Served::File(file), opened })
}

fn raw(cache: &Cache, spec: &ImageSpec, args: &ExportArgs) -> Outcome<File> {
    let mut options = args.cache.behaviours.open_options();
    options.read(true).write(!args.cache.read_only).offset(args.offset);
    if let Some(bytes) = args.size_limit {
        options.size_limit(bytes);
    }
    Ok(options.open(cache, &spec.path)?)
}

fn inside(cache: &Cache, spec: &ImageSpec, path: &Path, args: &ExportArgs) -> Outcome<File> {
    let options = args.cache.behaviours.volume_options().read_only(args.cache.read_only);
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
    // Refuses an inode without content, such as a directory, and names it in the error.
    file.stable_pages().map_err(named)?;
    Ok(file)
}

fn absolute(path: &Path) -> PathBuf {
    std::fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf())
}
