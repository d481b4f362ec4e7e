//! Compares a copy with its source: every byte, and all attributes that are copied. Other files at
//! the target are ignored.

use super::copy::PIECE_BYTES;
use super::report::Report;
use super::side::{Content, Meta, Side};
use forebay_base::Result;
use forebay_vfs::FileKind;
use std::collections::HashMap;

/// Compares trees of two sides, and adds each difference to a [`Report`].
pub struct Comparer<'a, S: Side, T: Side> {
    source: &'a S,
    target: &'a T,
    /// Owners are compared, because the copy has set them.
    owners: bool,
    /// Files with several names: the inode at the source, and that at the target.
    links: HashMap<(u64, u64), (u64, u64)>,
    bufs: [Vec<u8>; 2],
}

impl<'a, S: Side, T: Side> Comparer<'a, S, T> {
    /// Compares `source` with `target`. `owners`: owners must be equal, too.
    pub fn new(source: &'a S, target: &'a T, owners: bool) -> Self {
        let bufs = [vec![0; PIECE_BYTES], vec![0; PIECE_BYTES]];
        Self { source, target, owners, links: HashMap::new(), bufs }
    }

    /// Compares `node`, with all that is in it, with `other`.
    pub fn compare(&mut self, node: S::Node, other: T::Node, report: &mut Report) {
        let mut pairs = vec![(node, other)];
        while let Some((node, other)) = pairs.pop() {
            let show = self.source.show(&node);
            report.tick(&show);
            match self.pair(&node, &other, &mut pairs, report) {
                Ok(None) => {}
                Ok(Some(what)) => {
                    let there = self.target.show(&other);
                    report.problem(&show, None, format!("not the same as {there}: {what}"));
                }
                Err(error) => report.failed(&show, &error),
            }
        }
    }

    /// What differs.
    fn pair(
        &mut self,
        node: &S::Node,
        other: &T::Node,
        pairs: &mut Vec<(S::Node, T::Node)>,
        report: &mut Report,
    ) -> Result<Option<String>> {
        let (ours, theirs) = (self.source.meta(node)?, self.target.meta(other)?);
        if let Some(what) = self.differs(&ours, &theirs) {
            return Ok(Some(what));
        }
        if ours.nlink > 1 && ours.kind != FileKind::Directory {
            match self.links.insert(ours.id, theirs.id) {
                Some(before) if before != theirs.id => return Ok(Some("not one file".into())),
                Some(_) => {
                    report.links += 1;
                    return Ok(None);
                }
                None => {}
            }
        }
        let mut xattrs = (self.source.xattrs(node)?, self.target.xattrs(other)?);
        xattrs.0.sort_unstable();
        // Attributes that the target does not keep were counted by the copy, so only those that it
        // has are compared.
        if let Some(lost) = xattrs.1.iter().find(|have| !xattrs.0.contains(have)) {
            let name = String::from_utf8_lossy(&lost.0).into_owned();
            return Ok(Some(format!("attribute {name}")));
        }
        match ours.kind {
            FileKind::Directory => {
                report.directories += 1;
                let mut names = Vec::new();
                self.source.names(node, &mut names)?;
                for name in names {
                    let Some(child) = self.source.child(node, &name)? else { continue };
                    match self.target.child(other, &name)? {
                        Some(there) => pairs.push((child, there)),
                        None => report.problem(&self.source.show(&child), None, "missing there"),
                    }
                }
            }
            FileKind::Symlink => {
                report.links += 1;
                if self.source.read_link(node)? != self.target.read_link(other)? {
                    return Ok(Some("the link's text".into()));
                }
            }
            FileKind::File => {
                report.files += 1;
                return self.content(node, other, ours.size, report);
            }
            _ => report.others += 1,
        }
        Ok(None)
    }

    fn differs(&self, ours: &Meta, theirs: &Meta) -> Option<String> {
        if ours.kind != theirs.kind {
            return Some(format!("{:?} and {:?}", ours.kind, theirs.kind));
        }
        if ours.kind == FileKind::File && ours.size != theirs.size {
            return Some(format!("{} and {} bytes", ours.size, theirs.size));
        }
        if ours.kind != FileKind::Symlink && ours.perm != theirs.perm {
            return Some(format!("mode {:o} and {:o}", ours.perm, theirs.perm));
        }
        if self.owners && (ours.uid, ours.gid) != (theirs.uid, theirs.gid) {
            return Some("owner".into());
        }
        if ours.mtime != theirs.mtime {
            return Some(format!("times {:?} and {:?}", ours.mtime, theirs.mtime));
        }
        let device = matches!(ours.kind, FileKind::CharDevice | FileKind::BlockDevice);
        (device && ours.rdev != theirs.rdev).then(|| "device number".into())
    }

    fn content(
        &mut self,
        node: &S::Node,
        other: &T::Node,
        size: u64,
        report: &mut Report,
    ) -> Result<Option<String>> {
        let (mut ours, mut theirs) = (self.source.open(node)?, self.target.open(other)?);
        let [a, b] = &mut self.bufs;
        let mut at = 0;
        // Ranges that are holes on both sides are not read.
        while let Some(start) = next_data(&mut ours, &mut theirs, at, size)? {
            at = start;
            let read = ours.read(a, at)?;
            if theirs.read(b, at)? != read || a[..read] != b[..read] {
                let same = a.iter().zip(&*b).take_while(|(a, b)| a == b).count();
                return Ok(Some(format!("content from {} on", at + same as u64)));
            }
            report.bytes += read as u64;
            at += read as u64;
            report.tick(&self.source.show(node));
            if read == 0 {
                break;
            }
        }
        Ok(None)
    }
}

fn next_data(
    ours: &mut impl Content,
    theirs: &mut impl Content,
    at: u64,
    size: u64,
) -> Result<Option<u64>> {
    let starts = (ours.data(at, size)?, theirs.data(at, size)?);
    Ok(match starts {
        (Some(a), Some(b)) => Some(a.0.min(b.0)),
        (Some(one), None) | (None, Some(one)) => Some(one.0),
        (None, None) => None,
    })
}
