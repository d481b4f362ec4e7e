//! Copies a tree from one side to the other: content with its holes, permissions, owners, times,
//! extended attributes, symbolic links as links, several names of one file as hard links.
//!
//! D1 What could not be copied is named, and the rest is copied. D2 With `salvage` a file's bad
//! ranges are named and left as holes; without it, of a file that cannot be read to its end nothing
//! is left at the target.
//! D3 A directory gets its times after its entries were copied.

use super::report::Report;
use super::side::{Content, Meta, Side};
use forebay_base::{Error, ErrorKind, Result};
use forebay_vfs::FileKind;
use std::collections::HashMap;

/// Bytes that are read and written at a time.
pub const PIECE_BYTES: usize = 1 << 20;

/// How a tree is copied.
#[derive(Debug, Clone, Copy)]
pub struct How {
    /// Directories, too.
    pub recursive: bool,
    /// If set, the readable parts of damaged files are copied: the unit of unreadable ranges, bytes
    /// (D2).
    pub salvage: Option<u32>,
    /// Both sides are one volume.
    pub same: bool,
}

/// Copies trees from one side to the other, and recognises a further name of a copied file.
pub struct Copier<'a, S: Side, T: Side> {
    source: &'a S,
    target: &'a T,
    how: How,
    /// Copied files with several names, by their identity at the source.
    links: HashMap<(u64, u64), T::Node>,
    /// Identity of the first directory made at the target, which must not be copied into itself.
    made: Option<(u64, u64)>,
    buf: Vec<u8>,
}

enum Step<S: Side, T: Side> {
    /// Copy a node to a name in a directory.
    Enter(S::Node, T::Node, Vec<u8>),
    /// Set the attributes of a directory whose entries were copied (D3).
    Leave(S::Node, T::Node, Meta),
}

impl<'a, S: Side, T: Side> Copier<'a, S, T> {
    /// From `source` to `target`.
    pub fn new(source: &'a S, target: &'a T, how: How) -> Self {
        let buf = vec![0; PIECE_BYTES];
        Self { source, target, how, links: HashMap::new(), made: None, buf }
    }

    /// Copies `node`, with all that is in it, to `name` in `dir`.
    pub fn copy(&mut self, node: S::Node, dir: T::Node, name: Vec<u8>, report: &mut Report) {
        let mut steps: Vec<Step<S, T>> = vec![Step::Enter(node, dir, name)];
        self.run(&mut steps, report);
    }

    /// Copies what is in the directory `node` into the directory `dir`.
    pub fn copy_into(&mut self, node: S::Node, dir: T::Node, report: &mut Report) {
        match self.source.meta(&node) {
            Ok(meta) => {
                let mut steps = vec![Step::Leave(node.clone(), dir.clone(), meta)];
                report.directories += 1;
                self.list(&node, &dir, &mut steps, report);
                self.run(&mut steps, report);
            }
            Err(error) => report.failed(&self.source.show(&node), &error),
        }
    }

    fn run(&mut self, steps: &mut Vec<Step<S, T>>, report: &mut Report) {
        while let Some(step) = steps.pop() {
            let (node, done) = match step {
                Step::Enter(node, dir, name) => {
                    let done = self.enter(&node, &dir, &name, steps, report);
                    (node, done)
                }
                Step::Leave(node, made, meta) => {
                    let done = self.finish(&node, &made, &meta, report);
                    (node, done)
                }
            };
            let show = self.source.show(&node);
            report.tick(&show);
            if let Err(error) = done {
                report.failed(&show, &error);
            }
        }
    }

    fn enter(
        &mut self,
        node: &S::Node,
        dir: &T::Node,
        name: &[u8],
        steps: &mut Vec<Step<S, T>>,
        report: &mut Report,
    ) -> Result<()> {
        let meta = self.source.meta(node)?;
        let old = self.target.child(dir, name)?;
        if meta.kind == FileKind::Directory {
            return self.directory(node, (dir, name), meta, old, steps, report);
        }
        if let Some(old) = &old {
            let found = self.target.meta(old)?;
            if self.how.same && found.id == meta.id {
                return Err(Error::new(ErrorKind::InvalidInput, "copy", "onto itself"));
            }
            if found.kind == FileKind::Directory {
                let text = format!("{} is a directory", self.target.show(old));
                return Err(Error::new(ErrorKind::IsDirectory, "replace", text));
            }
            self.target.remove(dir, name)?;
        }
        if meta.nlink > 1
            && let Some(first) = self.links.get(&meta.id)
        {
            self.target.link(first, dir, name)?;
            report.links += 1;
            return Ok(());
        }
        let made = match meta.kind {
            FileKind::File => self.file(node, dir, name, &meta, report)?,
            FileKind::Symlink => {
                let target = self.source.read_link(node)?;
                report.links += 1;
                self.target.make(dir, name, &meta, &target)?
            }
            _ => {
                report.others += 1;
                self.target.make(dir, name, &meta, b"")?
            }
        };
        if meta.nlink > 1 {
            self.links.insert(meta.id, made.clone());
        }
        self.finish(node, &made, &meta, report)
    }

    fn directory(
        &mut self,
        node: &S::Node,
        (dir, name): (&T::Node, &[u8]),
        meta: Meta,
        old: Option<T::Node>,
        steps: &mut Vec<Step<S, T>>,
        report: &mut Report,
    ) -> Result<()> {
        if !self.how.recursive {
            let text = "a directory; --recursive copies what is in it";
            return Err(Error::new(ErrorKind::IsDirectory, "copy", text));
        }
        if self.how.same && self.made == Some(meta.id) {
            return Err(Error::new(ErrorKind::InvalidInput, "copy", "into itself"));
        }
        let made = match old {
            Some(old) if self.target.meta(&old)?.kind == FileKind::Directory => old,
            Some(_) => {
                let text = "there is something else of that name";
                return Err(Error::new(ErrorKind::NotDirectory, "make a directory", text));
            }
            None => self.target.make(dir, name, &meta, b"")?,
        };
        if self.how.same && self.made.is_none() {
            self.made = Some(self.target.meta(&made)?.id);
        }
        report.directories += 1;
        steps.push(Step::Leave(node.clone(), made.clone(), meta));
        self.list(node, &made, steps, report);
        Ok(())
    }

    fn list(
        &self,
        node: &S::Node,
        made: &T::Node,
        steps: &mut Vec<Step<S, T>>,
        report: &mut Report,
    ) {
        let mut names = Vec::new();
        if let Err(error) = self.source.names(node, &mut names) {
            report.failed(&self.source.show(node), &error);
        }
        names.sort_unstable();
        for name in names.into_iter().rev() {
            match self.source.child(node, &name) {
                Ok(Some(child)) => steps.push(Step::Enter(child, made.clone(), name)),
                // It went meanwhile.
                Ok(None) => {}
                Err(error) => report.failed(&self.source.show(node), &error),
            }
        }
    }

    /// Copies the attributes, after the content.
    fn finish(
        &self,
        node: &S::Node,
        made: &T::Node,
        meta: &Meta,
        report: &mut Report,
    ) -> Result<()> {
        match self.source.xattrs(node) {
            Ok(xattrs) => {
                for (name, value) in xattrs {
                    match self.target.set_xattr(made, &name, &value) {
                        Err(e) if e.kind() == ErrorKind::Unsupported => {
                            let name = String::from_utf8_lossy(&name).into_owned();
                            log::info!("{}: {name} left out: {e}", self.source.show(node));
                            report.left_out += 1;
                        }
                        set => set?,
                    }
                }
            }
            Err(error) if self.how.salvage.is_some() => {
                report.failed(&self.source.show(node), &error);
            }
            Err(error) => return Err(error),
        }
        self.target.set_meta(made, meta)
    }

    fn file(
        &mut self,
        node: &S::Node,
        dir: &T::Node,
        name: &[u8],
        meta: &Meta,
        report: &mut Report,
    ) -> Result<T::Node> {
        let mut from = self.source.open(node)?;
        let (made, mut to) = self.target.create(dir, name)?;
        let show = self.source.show(node);
        let copied = self.content(&mut from, &mut to, meta.size, &show, report);
        drop(to);
        match copied {
            Ok(()) => {
                report.files += 1;
                Ok(made)
            }
            Err(error) => {
                // D2: the incomplete file is removed.
                self.target.remove(dir, name)?;
                Err(error)
            }
        }
    }

    fn content(
        &mut self,
        from: &mut S::Content,
        to: &mut T::Content,
        size: u64,
        show: &str,
        report: &mut Report,
    ) -> Result<()> {
        let (mut at, mut written) = (0, 0);
        loop {
            let run = match from.data(at, size) {
                Err(error) if self.how.salvage.is_some() && at < size => {
                    log::info!("{show}: where it has holes cannot be said: {error}");
                    Some((at, size))
                }
                run => run?,
            };
            let Some((start, end)) = run else { break };
            at = start;
            while at < end {
                let len = (end - at).min(PIECE_BYTES as u64) as usize;
                let read = self.piece(from, to, at, len, show, report)?;
                at += read as u64;
                written = at;
                report.tick(show);
                if read < len {
                    // The file became shorter meanwhile.
                    break;
                }
            }
            if at < end {
                break;
            }
        }
        if written < size {
            to.set_len(size)?;
        }
        Ok(())
    }

    /// Copies some bytes; returns how many there were, bad ones included.
    fn piece(
        &mut self,
        from: &mut S::Content,
        to: &mut T::Content,
        at: u64,
        len: usize,
        show: &str,
        report: &mut Report,
    ) -> Result<usize> {
        let error = match from.read(&mut self.buf[..len], at) {
            Ok(read) => {
                to.write(&self.buf[..read], at)?;
                report.bytes += read as u64;
                return Ok(read);
            }
            Err(error) => error,
        };
        let Some(unit) = self.how.salvage else { return Err(error) };
        // Reads unit by unit, so that the unreadable ranges are as short as possible.
        let mut bad: Option<(u64, u64)> = None;
        let mut why = error;
        let end = at + len as u64;
        let mut offset = at;
        while offset < end {
            let next = (offset / u64::from(unit) + 1) * u64::from(unit);
            let part = (next.min(end) - offset) as usize;
            match from.read(&mut self.buf[..part], offset) {
                Ok(read) => {
                    to.write(&self.buf[..read], offset)?;
                    report.bytes += read as u64;
                    if let Some((start, len)) = bad.take() {
                        report.problem(show, Some((start, len)), why.to_string());
                    }
                }
                Err(error) => {
                    let start = bad.map_or(offset, |(start, _)| start);
                    bad = Some((start, offset + part as u64 - start));
                    why = error;
                }
            }
            offset += part as u64;
        }
        if let Some((start, len)) = bad {
            report.problem(show, Some((start, len)), why.to_string());
        }
        Ok(len)
    }
}
