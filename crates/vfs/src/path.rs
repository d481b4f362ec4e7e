//! Resolves paths to inodes, for the library and the command line, where no kernel does it.
//!
//! Invariants: P1 a walk follows at most 40 symbolic links; one more is `SymlinkLoop`. P2 it never
//! leaves the volume: an absolute target begins at the volume's root, and `..` of the root is the
//! root.
//!
//! No locks. Each step is one call of the file system, so a concurrent rename is seen before or
//! after it.

use crate::fs::FileSystem;
use crate::name::Name;
use crate::types::{Attr, FileKind, Ino};
use forebay_base::{Error, ErrorKind, Result};
use std::collections::VecDeque;

/// Most symbolic links in one walk (P1).
pub const SYMLINKS_MAX: u32 = 40;
/// Longest path, bytes.
pub const PATH_MAX: usize = 4095;

/// Whether a symbolic link at the end of a path is followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Last {
    /// It is followed.
    Follow,
    /// It is not followed, unless a slash comes after it.
    NoFollow,
}

/// A path of the form `VOLUME:/path/in/it`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VolumePath<'a> {
    /// The part before the colon: the path of the image on the host.
    pub volume: &'a [u8],
    /// The part after the colon, with its slash.
    pub path: &'a [u8],
}

impl<'a> VolumePath<'a> {
    /// Splits at the first `:/`. `None`: this is not a path in a volume. So a host path that
    /// contains `:/` cannot be expressed, except through a link to it.
    pub fn parse(text: &'a [u8]) -> Option<Self> {
        let at = text.windows(2).position(|w| w == b":/")?;
        (at > 0).then(|| Self { volume: &text[..at], path: &text[at + 1..] })
    }
}

/// Directory and name of a path's last component, which need not exist.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The directory.
    pub dir: Ino,
    /// The name in the directory, which is a valid [`Name`]. `None`: the path ends in the directory
    /// itself (`/`, `a/..`).
    pub name: Option<Box<[u8]>>,
    /// A slash follows, so the inode has to be a directory.
    pub directory: bool,
}

/// Resolves `path`, which begins at `start` unless it has a leading slash.
pub async fn resolve(fs: &dyn FileSystem, start: Ino, path: &[u8], last: Last) -> Result<Attr> {
    let mut walk = Walk::new(start, path)?;
    loop {
        let place = walk.descend(fs).await?;
        let Some(name) = &place.name else { return fs.getattr(place.dir).await };
        let attr = fs.lookup(place.dir, Name::new(name)?).await?;
        let follow = last == Last::Follow || place.directory;
        if attr.kind == FileKind::Symlink && follow {
            walk.follow(fs, place, &attr).await?;
            continue;
        }
        if place.directory && attr.kind != FileKind::Directory {
            return Err(not_directory(name));
        }
        return Ok(attr);
    }
}

/// Resolves the directory of the last component, and returns that component, which need not exist.
/// For calls that create, remove and rename.
pub async fn resolve_parent(fs: &dyn FileSystem, start: Ino, path: &[u8]) -> Result<Place> {
    let mut walk = Walk::new(start, path)?;
    let place = walk.descend(fs).await?;
    if fs.getattr(place.dir).await?.kind != FileKind::Directory {
        return Err(not_directory(path));
    }
    Ok(place)
}

fn not_directory(name: &[u8]) -> Error {
    Error::new(ErrorKind::NotDirectory, "resolve", format!("`{}`", name.escape_ascii()))
}

/// A walk: the current directory, and the remaining components.
struct Walk {
    at: Ino,
    left: VecDeque<Box<[u8]>>,
    /// The path, or the last symbolic link in it, ended in a slash.
    directory: bool,
    symlinks: u32,
}

impl Walk {
    fn new(start: Ino, path: &[u8]) -> Result<Self> {
        if path.len() > PATH_MAX {
            let text = format!("{} bytes, at most {PATH_MAX}", path.len());
            return Err(Error::new(ErrorKind::NameTooLong, "resolve", text));
        }
        let mut walk = Self { at: start, left: VecDeque::new(), directory: false, symlinks: 0 };
        walk.push_front(path)?;
        walk.directory = path.ends_with(b"/");
        Ok(walk)
    }

    fn push_front(&mut self, path: &[u8]) -> Result<()> {
        if path.is_empty() {
            return Err(Error::new(ErrorKind::NotFound, "resolve", "an empty path"));
        }
        if path.starts_with(b"/") {
            self.at = Ino::ROOT;
        }
        let parts = path.split(|b| *b == b'/').filter(|part| !part.is_empty());
        for part in parts.rev() {
            self.left.push_front(part.into());
        }
        Ok(())
    }

    /// Walks to the directory of the last component.
    async fn descend(&mut self, fs: &dyn FileSystem) -> Result<Place> {
        while let Some(part) = self.left.pop_front() {
            match &*part {
                b"." => self.expect_directory(fs).await?,
                b".." => self.at = fs.parent(self.at).await?,
                _ if self.left.is_empty() => {
                    Name::new(&part)?;
                    return Ok(Place { dir: self.at, name: Some(part), directory: self.directory });
                }
                name => {
                    let attr = fs.lookup(self.at, Name::new(name)?).await?;
                    match attr.kind {
                        FileKind::Directory => self.at = attr.ino,
                        FileKind::Symlink => self.push_target(fs, attr.ino).await?,
                        _ => return Err(not_directory(name)),
                    }
                }
            }
        }
        Ok(Place { dir: self.at, name: None, directory: true })
    }

    async fn expect_directory(&self, fs: &dyn FileSystem) -> Result<()> {
        match fs.getattr(self.at).await?.kind {
            FileKind::Directory => Ok(()),
            _ => Err(not_directory(b".")),
        }
    }

    /// Continues at the target of a symbolic link that was the last component.
    async fn follow(&mut self, fs: &dyn FileSystem, place: Place, link: &Attr) -> Result<()> {
        self.at = place.dir;
        self.push_target(fs, link.ino).await
    }

    async fn push_target(&mut self, fs: &dyn FileSystem, link: Ino) -> Result<()> {
        self.symlinks += 1;
        if self.symlinks > SYMLINKS_MAX {
            let text = format!("more than {SYMLINKS_MAX} on the way");
            return Err(Error::new(ErrorKind::SymlinkLoop, "resolve", text));
        }
        let target = fs.readlink(link).await?;
        if self.left.is_empty() && target.ends_with(b"/") {
            self.directory = true;
        }
        self.push_front(&target)
    }
}
