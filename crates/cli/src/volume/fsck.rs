//! `forebay fsck`: checks a volume and writes nothing.
//!
//! K1 Everything that can be reached is read: superblock, log, every name, every inode, every block with its
//!    checksum. What is wrong is named, with its path and offset, and the rest is checked.

use super::at::{Access, OpenVolume, open};
use super::copy::PIECE_BYTES;
use super::cp::find;
use super::inside::{Inside, Node};
use super::report::Report;
use super::side::{Content, Side};
use crate::args::{FsckArgs, Which};
use crate::failure::{Failure, Outcome, status};
use crate::output;
use forebay_base::task::block_on;
use forebay_vfs::{Attr, FileKind, Ino};
use std::collections::HashMap;

/// Runs the command.
pub fn fsck(args: &FsckArgs) -> Outcome {
    let volume = open(&args.volume, Access::Read, &Which::default())?;
    if let Some(pid) = volume.pid {
        let text = format!("{}: open in process {pid}", args.volume.display());
        let failure = Failure { message: text, hint: None, status: status::BUSY };
        return Err(failure.hint("a volume that changes cannot be judged; stop that process first"));
    }
    let mut check = Check { volume: &volume, report: Report::new("checked"), seen: HashMap::new() };
    check.tree()?;
    check.counts();
    let Check { report, .. } = check;
    if args.json {
        let mut all = report.json();
        all["volume"] = volume.about.clone();
        all["clean"] = (report.problems == 0).into();
        output::line(serde_json::to_string_pretty(&all).expect("a JSON value prints"));
    } else {
        output::line(report.line());
    }
    let (name, problems) = (args.volume.display().to_string(), report.problems);
    volume.finish()?;
    match problems {
        0 => Ok(()),
        n => Err(Failure::damaged(format!("{name}: {n} problems; they were named above"))
            .hint("`forebay recover VOLUME --to DIR` copies out what can be read")),
    }
}

/// An inode, and the names that lead to it.
struct Seen {
    attr: Attr,
    names: u64,
    /// Directories in it.
    directories: u64,
    path: Vec<u8>,
}

struct Check<'a> {
    volume: &'a OpenVolume,
    report: Report,
    seen: HashMap<Ino, Seen>,
}

impl Check<'_> {
    fn tree(&mut self) -> Outcome {
        let side = Inside(self.volume);
        let root = find(self.volume, b"/")?;
        let mut stack = vec![(root.clone(), root.ino)];
        while let Some((node, parent)) = stack.pop() {
            let show = self.volume.show(&node.path);
            self.report.tick(&show);
            let attr = match block_on(self.volume.fs.getattr(node.ino)) {
                Ok(attr) => attr,
                Err(error) => {
                    self.report.failed(&show, &error);
                    continue;
                }
            };
            let again = self.seen.get_mut(&node.ino);
            if let Some(seen) = again {
                seen.names += 1;
                self.report.links += 1;
                if attr.kind == FileKind::Directory {
                    let first = self.volume.show(&seen.path);
                    self.report.problem(&show, None, format!("the directory {first}, once more"));
                }
                continue;
            }
            let path = node.path.clone();
            self.seen.insert(node.ino, Seen { attr, names: 1, directories: 0, path });
            if let Err(error) = side.xattrs(&node) {
                self.report.failed(&show, &error);
            }
            match attr.kind {
                FileKind::Directory => self.directory(&side, &node, parent, &mut stack),
                FileKind::File => {
                    self.report.files += 1;
                    self.content(&side, &node, attr.size);
                }
                FileKind::Symlink => {
                    self.report.links += 1;
                    if let Err(error) = side.read_link(&node) {
                        self.report.failed(&show, &error);
                    }
                }
                _ => self.report.others += 1,
            }
        }
        Ok(())
    }

    fn directory(
        &mut self,
        side: &Inside<'_>,
        node: &Node,
        parent: Ino,
        stack: &mut Vec<(Node, Ino)>,
    ) {
        let show = self.volume.show(&node.path);
        self.report.directories += 1;
        if node.ino != Ino::ROOT
            && let Some(upper) = self.seen.get_mut(&parent)
        {
            upper.directories += 1;
        }
        match block_on(self.volume.fs.parent(node.ino)) {
            Ok(found) if found == parent => {}
            Ok(found) => {
                let text = format!("is in inode {}, and names {} as its parent", parent.0, found.0);
                self.report.problem(&show, None, text);
            }
            Err(error) => self.report.failed(&show, &error),
        }
        let mut names = Vec::new();
        if let Err(error) = side.names(node, &mut names) {
            self.report.failed(&show, &error);
        }
        for name in names {
            match side.child(node, &name) {
                Ok(Some(child)) => stack.push((child, node.ino)),
                Ok(None) => {
                    let name = super::ls::show(&name);
                    self.report.problem(&show, None, format!("lists `{name}`, and has it not"));
                }
                Err(error) => self.report.failed(&show, &error),
            }
        }
    }

    /// Reads all of a file: each block's checksum is looked at on the way.
    fn content(&mut self, side: &Inside<'_>, node: &Node, size: u64) {
        let show = self.volume.show(&node.path);
        let mut file = match side.open(node) {
            Ok(file) => file,
            Err(error) => return self.report.failed(&show, &error),
        };
        let mut buf = vec![0; PIECE_BYTES];
        let mut at = 0;
        loop {
            let (start, end) = match file.data(at, size) {
                Ok(Some(run)) => run,
                Ok(None) => return,
                Err(error) => return self.report.failed(&show, &error),
            };
            at = start;
            while at < end {
                let len = (end - at).min(PIECE_BYTES as u64) as usize;
                match file.read(&mut buf[..len], at) {
                    Ok(read) => self.report.bytes += read as u64,
                    Err(error) => {
                        let range = error.range().unwrap_or((at, len as u64));
                        self.report.problem(&show, Some(range), error.to_string());
                    }
                }
                at += len as u64;
                self.report.tick(&show);
            }
        }
    }

    /// Names and link counts agree.
    fn counts(&mut self) {
        for seen in self.seen.values() {
            let (wanted, what) = match seen.attr.kind {
                FileKind::Directory => (2 + seen.directories, "2 and its directories"),
                _ => (seen.names, "its names"),
            };
            if u64::from(seen.attr.nlink) != wanted {
                let text = format!("{} links, {what} are {wanted}", seen.attr.nlink);
                self.report.problem(&self.volume.show(&seen.path), None, text);
            }
        }
    }
}
