//! Carries operations out on one file system, and reports each outcome in terms that can be
//! compared.
//!
//! No locks.

use super::op::{Make, Op, Path, SLOTS, Target, name, xattr_name};
use forebay_base::buf::AlignedBuf;
use forebay_base::world::split_mix;
use forebay_base::{Error, ErrorKind, IoFlags, Result};
use forebay_vfs::clock::ManualClock;
use forebay_vfs::copy::copy_range;
use forebay_vfs::fs::{FileSystem, OpenFileRef};
use forebay_vfs::name::{Name, XattrName};
use forebay_vfs::types::{
    Attr, Cookie, FileKind, Ino, NewInode, OpenFlags, Privileges, SetAttr, SetTime, Timestamp,
};
use std::collections::BTreeSet;
use std::sync::Arc;

/// How far times are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Times {
    /// Not at all.
    Ignore,
    /// Whether an operation moved `mtime` and `ctime` of what it names, and of the parent
    /// directories.
    Moved,
    /// All four, as they are: both sides have the same clock.
    Exact,
}

/// Attributes without those that each implementation chooses itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shape {
    /// File, directory, symbolic link or other.
    pub kind: FileKind,
    /// Permission, set-id and sticky bits.
    pub perm: u16,
    /// Names of the inode.
    pub nlink: u32,
    /// User and group.
    pub owner: (u32, u32),
    /// Number of a device; 0 for other kinds.
    pub rdev: u32,
    /// Bytes; 0 for a directory.
    pub size: u64,
    /// `atime`, `mtime`, `ctime`, `btime`, if they are compared.
    pub times: Option<[Timestamp; 4]>,
}

impl Shape {
    /// Of `attr`.
    pub fn of(attr: &Attr, times: Times) -> Self {
        let all = [attr.atime, attr.mtime, attr.ctime, attr.btime];
        Self {
            kind: attr.kind,
            perm: attr.perm,
            nlink: attr.nlink,
            owner: (attr.uid, attr.gid),
            rdev: attr.rdev,
            size: if attr.kind == FileKind::Directory { 0 } else { attr.size },
            times: (times == Times::Exact).then_some(all),
        }
    }
}

/// What an operation answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// Done, nothing to say.
    Done,
    /// Its slot was empty.
    Skipped,
    /// Attributes.
    Attr(Shape),
    /// Bytes: content, a target, a value.
    Bytes(Vec<u8>),
    /// Names, sorted, with their kinds.
    Names(BTreeSet<(Vec<u8>, Option<FileKind>)>),
    /// The offset of the bytes written, and their number.
    Wrote(u64, u64),
    /// An offset.
    Offset(u64),
}

/// The result of an operation, to be compared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// The answer, or the errno.
    pub answer: std::result::Result<Answer, i32>,
    /// With [`Times::Moved`], for each inode that the operation names: whether `mtime` and `ctime`
    /// moved. `None`: the inode did not exist before, or does not any more.
    pub moved: Vec<Option<(bool, bool)>>,
}

/// One file system's side of a run.
pub struct Runner {
    slots: Vec<Option<OpenFileRef>>,
    times: Times,
    clock: Option<Arc<ManualClock>>,
    write_flags: IoFlags,
}

impl Runner {
    /// A runner with no open files. `clock`: the file system's clock, if the runner has to advance
    /// it.
    pub fn new(times: Times, clock: Option<Arc<ManualClock>>) -> Self {
        let slots = vec![None; usize::from(SLOTS)];
        Self { slots, times, clock, write_flags: IoFlags::empty() }
    }

    /// Adds these flags to all writes from now on, besides `APPEND`.
    pub fn set_write_flags(&mut self, flags: IoFlags) {
        self.write_flags = flags;
    }

    /// The files that are open, as slot, inode and flags.
    pub fn open_files(&self) -> Vec<(u8, Ino, OpenFlags)> {
        let files = (0..SLOTS).zip(&self.slots);
        files.filter_map(|(slot, file)| file.as_ref().map(|f| (slot, f.ino(), f.flags()))).collect()
    }

    /// Opens an inode in a slot.
    pub async fn open_in(
        &mut self,
        fs: &dyn FileSystem,
        slot: u8,
        ino: Ino,
        flags: OpenFlags,
    ) -> Result<()> {
        let file = fs.open(ino, flags).await?;
        self.put(slot, file);
        Ok(())
    }

    /// Closes everything.
    pub fn close_all(&mut self) {
        self.slots.fill(None);
    }

    /// Carries `op` out.
    pub async fn apply(&mut self, fs: &dyn FileSystem, op: &Op) -> Outcome {
        let before = match self.times {
            Times::Moved => self.named(fs, op).await,
            _ => Vec::new(),
        };
        let answer = self.answer(fs, op).await.map_err(|e| e.errno());
        let mut moved = Vec::new();
        for attr in before {
            moved.push(match (attr, self.times) {
                (Some(old), Times::Moved) => fs
                    .getattr(old.ino)
                    .await
                    .ok()
                    .map(|new| (new.mtime != old.mtime, new.ctime != old.ctime)),
                _ => None,
            });
        }
        Outcome { answer, moved }
    }

    /// The inodes that an operation names, before it. Sets their `mtime` back.
    async fn named(&self, fs: &dyn FileSystem, op: &Op) -> Vec<Option<Attr>> {
        let mut named = Vec::new();
        for path in op.paths() {
            if let Some((dir, _)) = path.split() {
                named.push(find(fs, &dir).await.ok());
            }
            named.push(find(fs, path).await.ok());
        }
        for slot in op.slots() {
            named.push(match self.file(slot) {
                Some(file) => fs.getattr(file.ino()).await.ok(),
                None => None,
            });
        }
        // With a coarse clock two changes in a row have the same time. So `mtime` is set to the
        // past.
        let back = SetTime::To(Timestamp::new(1_000_000, 0));
        let set = SetAttr { mtime: Some(back), ..SetAttr::default() };
        for attr in named.iter().flatten() {
            let _ = fs.setattr(attr.ino, &set).await;
        }
        for attr in named.iter_mut().flatten() {
            if let Ok(now) = fs.getattr(attr.ino).await {
                *attr = now;
            }
        }
        if let Some(clock) = &self.clock {
            clock.advance(1);
        }
        named
    }

    /// The inode that is open in a slot.
    pub fn open_ino(&self, slot: u8) -> Option<Ino> {
        self.file(slot).map(|file| file.ino())
    }

    fn file(&self, slot: u8) -> Option<OpenFileRef> {
        self.slots[usize::from(slot % SLOTS)].clone()
    }

    fn put(&mut self, slot: u8, file: OpenFileRef) {
        self.slots[usize::from(slot % SLOTS)] = Some(file);
    }

    fn shape(&self, attr: &Attr) -> Answer {
        Answer::Attr(Shape::of(attr, self.times))
    }

    /// Number of the inode that `of` denotes; `None` for an empty slot.
    async fn target(&self, fs: &dyn FileSystem, of: &Target) -> Result<Option<Ino>> {
        match of {
            Target::Path(path) => Ok(Some(find(fs, path).await?.ino)),
            Target::Slot(slot) => Ok(self.file(*slot).map(|file| file.ino())),
        }
    }

    async fn answer(&mut self, fs: &dyn FileSystem, op: &Op) -> Result<Answer> {
        match op {
            Op::Create { .. }
            | Op::Tmpfile { .. }
            | Op::Mknod { .. }
            | Op::Mkdir { .. }
            | Op::Symlink { .. } => self.make(fs, op).await,
            Op::Link { .. }
            | Op::Unlink { .. }
            | Op::Rmdir { .. }
            | Op::Rename { .. }
            | Op::Readdir { .. }
            | Op::Readlink { .. } => self.names(fs, op).await,
            Op::Setattr { .. }
            | Op::Getattr { .. }
            | Op::SetXattr { .. }
            | Op::GetXattr { .. }
            | Op::ListXattr { .. }
            | Op::RemoveXattr { .. } => self.attributes(fs, op).await,
            Op::Open { path, slot, flags } => {
                let attr = find(fs, path).await?;
                // An inode of another kind is opened without access, to hold it: with access, some
                // file systems wait for the other end of a pipe.
                let plain = matches!(attr.kind, FileKind::File | FileKind::Directory);
                let flags = if plain { *flags } else { OpenFlags::empty() };
                let file = fs.open(attr.ino, flags).await?;
                self.put(*slot, file);
                Ok(self.shape(&fs.getattr(attr.ino).await?))
            }
            Op::Close { slot } => {
                self.slots[usize::from(slot % SLOTS)] = None;
                Ok(Answer::Done)
            }
            Op::SyncFs => fs.syncfs().await.map(|()| Answer::Done),
            Op::Wait { .. } => Ok(Answer::Done),
            _ => self.content(fs, op).await,
        }
    }

    async fn make(&mut self, fs: &dyn FileSystem, op: &Op) -> Result<Answer> {
        let new = |kind, make: &Make| NewInode {
            uid: make.owner.0,
            gid: make.owner.1,
            rdev: 0x103,
            ..NewInode::of(kind, make.perm)
        };
        let attr = match op {
            Op::Create { path, make, slot, flags } => {
                let (dir, name) = place(fs, path).await?;
                let new = new(FileKind::File, make);
                let (attr, file) = fs.create(dir, Name::new(name)?, &new, *flags).await?;
                self.put(*slot, file);
                attr
            }
            Op::Tmpfile { dir, make, slot } => {
                let dir = find(fs, dir).await?.ino;
                let flags = OpenFlags::READ | OpenFlags::WRITE;
                let (attr, file) = fs.tmpfile(dir, &new(FileKind::File, make), flags).await?;
                self.put(*slot, file);
                attr
            }
            Op::Mknod { path, kind, make } => {
                let (dir, name) = place(fs, path).await?;
                fs.mknod(dir, Name::new(name)?, &new(*kind, make)).await?
            }
            Op::Mkdir { path, make } => {
                let (dir, name) = place(fs, path).await?;
                fs.mkdir(dir, Name::new(name)?, &new(FileKind::Directory, make)).await?
            }
            Op::Symlink { path, target_len, make } => {
                let (dir, name) = place(fs, path).await?;
                let target = vec![b't'; usize::from(*target_len)];
                let new = new(FileKind::Symlink, make);
                fs.symlink(dir, Name::new(name)?, &target, &new).await?
            }
            _ => return Ok(Answer::Skipped),
        };
        Ok(self.shape(&attr))
    }

    async fn names(&mut self, fs: &dyn FileSystem, op: &Op) -> Result<Answer> {
        match op {
            Op::Link { from, to } => {
                let Some(ino) = self.target(fs, from).await? else { return Ok(Answer::Skipped) };
                let (dir, name) = place(fs, to).await?;
                Ok(self.shape(&fs.link(ino, dir, Name::new(name)?).await?))
            }
            Op::Unlink { path } => {
                let (dir, name) = place(fs, path).await?;
                fs.unlink(dir, Name::new(name)?).await.map(|()| Answer::Done)
            }
            Op::Rmdir { path } => {
                let (dir, name) = place(fs, path).await?;
                fs.rmdir(dir, Name::new(name)?).await.map(|()| Answer::Done)
            }
            Op::Rename { from, to, flags } => {
                let ((dir, name), (new_dir, new_name)) =
                    (place(fs, from).await?, place(fs, to).await?);
                let (name, new_name) = (Name::new(name)?, Name::new(new_name)?);
                fs.rename(dir, name, new_dir, new_name, *flags).await.map(|()| Answer::Done)
            }
            Op::Readdir { path } => {
                let dir = find(fs, path).await?.ino;
                let (mut names, mut after) = (BTreeSet::new(), Cookie::START);
                loop {
                    let entries = fs.readdir(dir, after, 3).await?;
                    let Some(last) = entries.last() else { return Ok(Answer::Names(names)) };
                    after = last.cookie;
                    names.extend(entries.into_iter().map(|e| (e.name.to_vec(), Some(e.kind))));
                }
            }
            Op::Readlink { path } => {
                let ino = find(fs, path).await?.ino;
                fs.readlink(ino).await.map(Answer::Bytes)
            }
            _ => Ok(Answer::Skipped),
        }
    }

    async fn attributes(&mut self, fs: &dyn FileSystem, op: &Op) -> Result<Answer> {
        let (Op::Setattr { of, .. }
        | Op::Getattr { of }
        | Op::SetXattr { of, .. }
        | Op::GetXattr { of, .. }
        | Op::ListXattr { of }
        | Op::RemoveXattr { of, .. }) = op
        else {
            return Ok(Answer::Skipped);
        };
        let Some(ino) = self.target(fs, of).await? else { return Ok(Answer::Skipped) };
        let plain = matches!(op, Op::Setattr { .. } | Op::Getattr { .. });
        let kind = fs.getattr(ino).await?.kind;
        if !plain && !matches!(kind, FileKind::File | FileKind::Directory) {
            // The kernel refuses `user.` attributes of other kinds before it asks the file system.
            return Ok(Answer::Skipped);
        }
        match op {
            Op::Setattr { set, .. } => Ok(self.shape(&fs.setattr(ino, set).await?)),
            Op::SetXattr { name, len, fill, how, .. } => {
                let value = vec![*fill; *len as usize];
                let name = XattrName::new(xattr_name(*name))?;
                fs.setxattr(ino, name, &value, *how).await.map(|()| Answer::Done)
            }
            Op::GetXattr { name, .. } => {
                let name = XattrName::new(xattr_name(*name))?;
                fs.getxattr(ino, name).await.map(Answer::Bytes)
            }
            Op::RemoveXattr { name, .. } => {
                let name = XattrName::new(xattr_name(*name))?;
                fs.removexattr(ino, name).await.map(|()| Answer::Done)
            }
            Op::ListXattr { .. } => {
                let names = fs.listxattr(ino).await?;
                Ok(Answer::Names(names.into_iter().map(|n| (n.to_vec(), None)).collect()))
            }
            _ => Ok(self.shape(&fs.getattr(ino).await?)),
        }
    }

    async fn content(&mut self, fs: &dyn FileSystem, op: &Op) -> Result<Answer> {
        let Some(file) = op.slots().first().and_then(|slot| self.file(*slot)) else {
            return Ok(Answer::Skipped);
        };
        match op {
            Op::Read { offset, len, .. } => {
                let mut buf = AlignedBuf::new(*len as usize);
                let read = match len & 1 {
                    0 => file.read_slice(*offset, &mut buf, IoFlags::empty())?,
                    _ => {
                        let (back, read) = file.read(*offset, buf, IoFlags::empty()).await;
                        buf = back;
                        read?
                    }
                };
                Ok(Answer::Bytes(buf[..read].to_vec()))
            }
            Op::Write { offset, len, fill, append, privileges, .. } => {
                let buf = AlignedBuf::copy_of(&content(*fill, *len as usize));
                let append = if *append { IoFlags::APPEND } else { IoFlags::empty() };
                let flags = self.write_flags | append;
                let waits = IoFlags::DIRECT | IoFlags::UNCACHED | IoFlags::DSYNC | IoFlags::SYNC;
                let wrote = match len & 1 {
                    0 if !flags.intersects(waits) => {
                        file.write_slice(*offset, &buf, flags, *privileges)?
                    }
                    _ => file.write(*offset, buf, flags, *privileges).await.1?,
                };
                let at = if wrote.len == 0 { 0 } else { wrote.offset };
                Ok(Answer::Wrote(at, wrote.len as u64))
            }
            Op::Fallocate { how, offset, len, privileges, .. } => {
                file.fallocate(*how, *offset, *len, *privileges).await.map(|()| Answer::Done)
            }
            Op::Seek { what, offset, .. } => file.seek(*what, *offset).await.map(Answer::Offset),
            Op::Copy { from_offset, to, to_offset, len, .. } => {
                let Some(to) = self.file(*to) else { return Ok(Answer::Skipped) };
                let (from, to) = ((&*file, *from_offset), (&*to, *to_offset));
                let none = IoFlags::empty();
                let done = copy_range(fs, from, to, *len, none, Privileges::Keep).await?;
                Ok(Answer::Offset(done))
            }
            Op::Sync { data_only, .. } => file.sync(*data_only).await.map(|()| Answer::Done),
            _ => Ok(Answer::Skipped),
        }
    }
}

/// Bytes that follow from `fill`, so that a reader can tell which write they are from.
fn content(fill: u64, len: usize) -> Vec<u8> {
    let mut rng = fill;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        bytes.extend_from_slice(&split_mix(&mut rng).to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// Goes down a path; follows no symbolic link.
pub async fn find(fs: &dyn FileSystem, path: &Path) -> Result<Attr> {
    let mut at = fs.getattr(Ino::ROOT).await?;
    for part in &path.0 {
        at = fs.lookup(at.ino, Name::new(name(*part))?).await?;
    }
    Ok(at)
}

/// The directory of a path, and its last name.
async fn place(fs: &dyn FileSystem, path: &Path) -> Result<(Ino, &'static [u8])> {
    match path.split() {
        Some((dir, last)) => Ok((find(fs, &dir).await?.ino, name(last))),
        None => Err(Error::new(ErrorKind::InvalidInput, "place", "the root has no name")),
    }
}
