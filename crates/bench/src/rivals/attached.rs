//! Forebay as programs use it: a block device that `forebay attach` has made of an image.

use crate::rivals::mounted::{forebay, forebay_json};
use forebay_base::{Error, ErrorKind, Result};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// A device of `forebay attach`, detached on drop.
pub struct Attached(PathBuf);

impl Attached {
    /// Attaches an image. `words`: options of `attach`.
    pub fn new(image: &Path, words: &[&str]) -> Result<Self> {
        let words: Vec<&OsStr> = words.iter().map(OsStr::new).collect();
        let said = forebay(&[&["attach".as_ref(), image.as_os_str()], &words[..]].concat())?;
        let device = said.lines().next().unwrap_or_default().trim();
        if device.starts_with("/dev/") {
            return Ok(Self(device.into()));
        }
        Err(Error::new(ErrorKind::Io, "attach", said))
    }

    /// The device.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The pid of the process that serves it.
    pub fn pid(&self) -> Result<u32> {
        let all = forebay_json(&["list".as_ref(), "--json".as_ref()])?;
        let mut rows = all.as_array().into_iter().flatten();
        let ours = rows.find(|row| row["where"].as_str().is_some_and(|at| Path::new(at) == self.0));
        let pid = ours.and_then(|row| row["pid"].as_u64()).and_then(|pid| u32::try_from(pid).ok());
        pid.ok_or_else(|| Error::new(ErrorKind::NotFound, "forebay list", "no such device"))
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        let _detached = forebay(&["detach".as_ref(), self.0.as_os_str()]);
    }
}
