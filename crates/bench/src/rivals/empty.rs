//! An empty FUSE server: what the kernel's protocol itself allows. It speaks by our own protocol
//! layer, with as many threads as CPUs, as ours does, and has nothing behind it: names and sizes
//! are in memory, content is thrown away, and what is read is a buffer that is always the same. No
//! cache, no volume, no checksums, no waiting, and the kernel may keep names and attributes for a
//! day.
//!
//! It is a process of its own, as ours is. It takes a line on its standard input for each mount and
//! says `ready` when it serves; what it knows outlives the mount, so that a second one begins with
//! nothing cached.
//!
//! It ends with its standard input, and takes its mount away.
//!
//! Invariant: E2 what it answers is true, as far as names, kinds and sizes go: a client that works
//! on a file system works on it.

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
    /// Starts one and mounts it below `dir`, as ours is mounted: umount(2) and syncfs(2) reach it.
    pub fn new(dir: &Path, label: &str) -> Result<Self> {
        Self::start(dir, label, "block")
    }

    /// The same as `forebay attach` mounts.
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

    /// Where it is mounted.
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

    /// Mounts it anew with nothing cached. Nothing on it may be open.
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
