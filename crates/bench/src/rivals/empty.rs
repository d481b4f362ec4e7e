//! An empty FUSE server: the limit of the FUSE protocol itself. It uses Forebay's protocol layer
//! with as many threads as CPUs, like the real daemon, but has no cache, volume or checksums. Names
//! and sizes are in memory, writes are discarded, and every read returns the same buffer. No
//! request waits, and the kernel may cache names and attributes for a day.
//!
//! It is a separate process, like the real daemon. For each line on its standard input it mounts,
//! and prints `ready` when it serves. Its names and sizes outlive the mount, so that a second mount
//! begins with an empty kernel cache.
//!
//! It ends with its standard input, and unmounts.
//!
//! Invariant: E2 its answers are consistent for names, kinds and sizes, so that clients of a file
//! system work on it.

mod serve;
mod tree;

pub use serve::serve;

use crate::rivals::mounted::{Folder, call};
use crate::rivals::worker::program;
use forebay_base::{Error, ErrorKind, Result};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

/// First argument of the process.
pub const EMPTY: &str = "__empty";

/// An empty server and its mount; both end on drop.
pub struct Empty {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    folder: Folder,
}

impl Empty {
    /// Starts it and mounts it below `dir`, with the mount type of a volume: umount(2) and
    /// syncfs(2) reach it.
    pub fn new(dir: &Path, label: &str) -> Result<Self> {
        Self::start(dir, label, "block")
    }

    /// Like [`Empty::new`], with the mount type of `forebay attach`.
    pub fn plain(dir: &Path, label: &str) -> Result<Self> {
        Self::start(dir, label, "plain")
    }

    fn start(dir: &Path, label: &str, via: &str) -> Result<Self> {
        let none = || Error::new(ErrorKind::NotFound, "start empty server", "no program to start");
        let folder = Folder::new(dir, label)?;
        let mut command = program(EMPTY).ok_or_else(none)?;
        command.arg(folder.mount()).arg(via).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(|e| Error::from_io("start empty server", e))?;
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().expect("stdout is piped"));
        let mut this = Self { child, input, output, folder };
        this.mount()?;
        Ok(this)
    }

    /// The mount point.
    pub fn path(&self) -> PathBuf {
        self.folder.mount()
    }

    fn mount(&mut self) -> Result<()> {
        let fail = |e| Error::from_io("ask empty server", e);
        let input = self.input.as_mut().expect("open until drop");
        writeln!(input, "mount").and_then(|()| input.flush()).map_err(fail)?;
        let mut line = String::new();
        self.output.read_line(&mut line).map_err(fail)?;
        match line.trim() {
            "ready" => Ok(()),
            said => Err(Error::new(ErrorKind::Io, "empty server", said.to_string())),
        }
    }

    /// Mounts it again, with nothing cached. No file on it may be open.
    pub fn remount(&mut self) -> Result<()> {
        call("umount", &[self.path().as_os_str()])?;
        self.mount()
    }
}

impl Drop for Empty {
    fn drop(&mut self) {
        drop(self.input.take());
        let _ended = self.child.wait();
    }
}
