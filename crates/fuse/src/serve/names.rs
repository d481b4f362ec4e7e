//! Lookup, creation, removal and renaming of names.
//!
//! Invariants: R3 `CREATE` opens only a file that it has created itself. The kernel checks
//! permissions on the inode that it has looked up, and another front end of the process may create
//! a file before the request arrives.
//!
//! No locks.

use super::openings::{fopen, reads_only};
use super::{Answer, BLOCK_BYTES, Core, LONG, Outcome, Undo, fail, open_flags, policy, sync_flags};
use crate::handles::{Caching, Handle};
use crate::inodes::Mark;
use crate::ioctl::MODE_CACHED;
use crate::proto::consts::{FOpen, OPEN_KILL_SUIDGID, open};
use crate::proto::reply::{Body, ENTRY_OUT_BYTES};
use crate::proto::request::Header;
use forebay_base::{ErrorKind, IoFlags, Result};
use forebay_vfs::{
    Attr, FileKind, Ino, Name, NewInode, OpenFileRef, OpenFlags, Opened, RenameFlags,
};

/// How often a `CREATE` is tried whose name alternates between taken and free.
const CREATE_TRIES: usize = 16;

/// A new inode, owned by the user of the request.
fn new_inode(header: &Header, kind: FileKind, mode: u32, rdev: u32) -> NewInode {
    let perm = (mode & 0o7777) as u16;
    NewInode { kind, perm, uid: header.uid, gid: header.gid, rdev }
}

/// Whether a truncation keeps set-id bits.
fn keeps(kill: u32) -> bool {
    kill & OPEN_KILL_SUIDGID == 0
}

impl Core {
    pub(super) async fn lookup(&self, dir: Ino, name: &[u8]) -> Result<Outcome> {
        let seen = self.epoch();
        let found = match name {
            // `.` and `..` are looked up for file handles (`open_by_handle_at`).
            b"." => self.fs.getattr(dir).await,
            b".." => match self.fs.parent(dir).await {
                Ok(parent) => self.fs.getattr(parent).await,
                Err(e) => Err(e),
            },
            name => self.fs.lookup(dir, Name::new(name)?).await,
        };
        match found {
            Ok(attr) => Ok(self.entry(&attr, seen)),
            Err(e) if e.kind() == ErrorKind::NotFound && !matches!(name, b"." | b"..") => {
                let mut body = Body::with_capacity(ENTRY_OUT_BYTES);
                body.no_entry_out(LONG);
                Ok(Outcome::body(body))
            }
            Err(e) => Err(e),
        }
    }

    pub(super) async fn mknod(
        &self,
        header: &Header,
        mode: u32,
        rdev: u32,
        name: &[u8],
    ) -> Result<Outcome> {
        let Some(kind) = FileKind::of_mode(mode) else {
            return fail(ErrorKind::InvalidInput, "mknod", "no such kind");
        };
        let new = new_inode(header, kind, mode, rdev);
        let seen = self.epoch();
        let attr = self.fs.mknod(Ino(header.node), Name::new(name)?, &new).await?;
        let (attr, _) = self.inherit(Ino(header.node), attr).await;
        Ok(self.entry(&attr, seen))
    }

    pub(super) async fn mkdir(&self, header: &Header, mode: u32, name: &[u8]) -> Result<Outcome> {
        let new = new_inode(header, FileKind::Directory, mode, 0);
        let seen = self.epoch();
        let attr = self.fs.mkdir(Ino(header.node), Name::new(name)?, &new).await?;
        let (attr, _) = self.inherit(Ino(header.node), attr).await;
        Ok(self.entry(&attr, seen))
    }

    pub(super) async fn symlink(
        &self,
        header: &Header,
        name: &[u8],
        target: &[u8],
    ) -> Result<Outcome> {
        let new = new_inode(header, FileKind::Symlink, 0o777, 0);
        let seen = self.epoch();
        let attr = self.fs.symlink(Ino(header.node), Name::new(name)?, target, &new).await?;
        Ok(self.entry(&attr, seen))
    }

    pub(super) async fn link(&self, old: Ino, dir: Ino, name: &[u8]) -> Result<Outcome> {
        let seen = self.epoch();
        let attr = self.fs.link(old, dir, Name::new(name)?).await?;
        Ok(self.entry(&attr, seen))
    }

    pub(super) async fn readlink(&self, node: Ino) -> Result<Outcome> {
        let target = self.fs.readlink(node).await?;
        let mut body = Body::new();
        body.bytes(&target);
        Ok(Outcome::body(body))
    }

    /// Whether an inode without a name is kept open: if the kernel knows it, because processes may
    /// use it on, as working directory or by an `O_PATH` descriptor.
    fn keeps(&self) -> impl Fn(Ino) -> bool + Send + Sync {
        |ino| self.inodes.knows(ino)
    }

    /// Keeps an inode that has lost its last name until the kernel forgets it.
    fn keep(&self, file: Option<OpenFileRef>) {
        if let Some(file) = file {
            self.inodes.keep(file);
        }
    }

    /// Removes a name. One call of the file system does all of it (removals.R6).
    pub(super) async fn remove(
        &self,
        header: &Header,
        name: &[u8],
        directory: bool,
    ) -> Result<Outcome> {
        let (dir, name) = (Ino(header.node), Name::new(name)?);
        let _removal = self.begin_removal(header, (dir, name), false).await?;
        let kept = self.fs.remove_keeping(dir, name, directory, &self.keeps()).await?;
        self.keep(kept);
        Ok(Outcome::done())
    }

    pub(super) async fn rename(
        &self,
        header: &Header,
        name: &[u8],
        (new_dir, new_name): (Ino, &[u8]),
        flags: u32,
    ) -> Result<Outcome> {
        let flags = RenameFlags::from_bits_retain(flags);
        flags.check()?;
        let (dir, name, new_name) = (Ino(header.node), Name::new(name)?, Name::new(new_name)?);
        let (moves, exchanges) = (dir != new_dir, flags.contains(RenameFlags::EXCHANGE));
        let _old = self.begin_removal(header, (dir, name), moves).await?;
        let _new = self.begin_removal(header, (new_dir, new_name), moves && exchanges).await?;
        let (from, to) = ((dir, name), (new_dir, new_name));
        let kept = self.fs.rename_keeping(from, to, flags, &self.keeps()).await?;
        self.keep(kept);
        Ok(Outcome::done())
    }

    /// Adds an opening and builds its reply, which includes the inode's entry if `attr` is given.
    fn opened(
        &self,
        file: OpenFileRef,
        (flags, mode): (u32, u32),
        caching: Caching,
        attr: Option<(&Attr, u64)>,
    ) -> Outcome {
        let ino = file.ino();
        let fh = self.handles.add(Handle::new(file, sync_flags(flags), mode, caching));
        let (mut body, mut undo) = (Body::with_capacity(160), Undo::default());
        if let Some((attr, seen)) = attr {
            self.told(attr.ino, &mut undo);
            body.entry_out(attr, &self.valid(attr, seen), BLOCK_BYTES);
        }
        if caching.is_cached && !reads_only(flags) {
            // Written pages stay in the kernel's cache, without a `READ`.
            self.inodes.mark(ino, Mark::Content);
        }
        body.open_out(fh, fopen(caching));
        undo.opened = Some(fh);
        Outcome { answer: Answer::Body(body), undo }
    }

    /// Creates a file and opens it (R3). If the name was taken after the kernel's look-up, the
    /// kernel has not checked the caller's permissions on that file. ESTALE makes the kernel look
    /// up and check again, once.
    pub(super) async fn create(
        &self,
        header: &Header,
        name: &[u8],
        (flags, mode, kill): (u32, u32, u32),
    ) -> Result<Outcome> {
        let new = new_inode(header, FileKind::File, mode, 0);
        let how = open_flags(flags, keeps(kill)) | OpenFlags::EXCLUSIVE;
        let (dir, name) = (Ino(header.node), Name::new(name)?);
        for _ in 0..CREATE_TRIES {
            let seen = self.epoch();
            match self.fs.create_with_xattr(dir, name, &new, how, policy::name()).await {
                Ok(Opened { file, attr, xattr }) => {
                    let policy = Self::policy_of(dir, xattr);
                    let attr = self.set_policy(attr, policy.as_deref()).await;
                    let made = (attr, policy.as_deref());
                    return Ok(self.made(header, made, (file, flags), seen));
                }
                Err(e) if e.kind() != ErrorKind::Exists || flags & open::EXCL != 0 => {
                    return Err(e);
                }
                Err(_) => match self.fs.lookup(dir, name).await {
                    Err(e) if e.kind() == ErrorKind::NotFound => {}
                    found => {
                        return found.and_then(|_| fail(ErrorKind::Stale, "create", "it exists"));
                    }
                },
            }
        }
        fail(ErrorKind::Stale, "create", "it comes and goes")
    }

    /// The reply to `CREATE` and `TMPFILE`: an opening of the new file.
    fn made(
        &self,
        header: &Header,
        (attr, policy): (Attr, Option<&[u8]>),
        (file, flags): (OpenFileRef, u32),
        seen: u64,
    ) -> Outcome {
        let mode = self.mode(policy, header.pid);
        let caching = self.caching(&attr, flags, mode);
        self.opened(file, (flags, mode), caching, Some((&attr, seen)))
    }

    pub(super) async fn tmpfile(
        &self,
        header: &Header,
        (flags, mode, kill): (u32, u32, u32),
    ) -> Result<Outcome> {
        let new = new_inode(header, FileKind::File, mode, 0);
        let how = open_flags(flags, keeps(kill));
        let seen = self.epoch();
        let (attr, file) = self.fs.tmpfile(Ino(header.node), &new, how).await?;
        let (attr, policy) = self.inherit(Ino(header.node), attr).await;
        Ok(self.made(header, (attr, policy.as_deref()), (file, flags), seen))
    }

    pub(super) async fn open(&self, header: &Header, flags: u32, kill: u32) -> Result<Outcome> {
        let node = Ino(header.node);
        let how = open_flags(flags, keeps(kill));
        let Opened { file, attr, xattr } =
            self.fs.open_with_xattr(node, how, policy::name()).await?;
        let mode = self.mode(Self::policy_of(node, xattr).as_deref(), header.pid);
        let caching = self.caching(&attr, flags, mode);
        Ok(self.opened(file, (flags, mode), caching, None))
    }

    pub(super) async fn opendir(&self, node: Ino) -> Result<Outcome> {
        let file = self.fs.open(node, OpenFlags::READ).await?;
        let fh =
            self.handles.add(Handle::new(file, IoFlags::empty(), MODE_CACHED, Caching::default()));
        let mut body = Body::new();
        let caching = match self.may_cache_listing(node) {
            true => FOpen::CACHE_DIR | FOpen::KEEP_CACHE,
            false => FOpen::empty(),
        };
        body.open_out(fh, caching);
        let undo = Undo { opened: Some(fh), ..Undo::default() };
        Ok(Outcome { answer: Answer::Body(body), undo })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Options;
    use crate::proto::consts::{opcode, open};
    use crate::serve::Work;
    use forebay_base::buf::AlignedBuf;
    use forebay_base::task::block_on;
    use forebay_base::world::RealWorld;
    use forebay_testkit::mem_fs::MemFs;
    use forebay_vfs::Privileges;
    use std::sync::Arc;

    const EEXIST: i32 = 17;
    const ESTALE: i32 = 116;

    /// The answer to a user who creates `f` in the root directory: an errno, 0 for success.
    fn create_as(core: &Arc<Core>, uid: u32, flags: u32) -> i32 {
        let mut message = vec![0; 40];
        message[4..8].copy_from_slice(&opcode::CREATE.to_le_bytes());
        message[16] = 1;
        message[24..28].copy_from_slice(&uid.to_le_bytes());
        for word in [flags, 0o644, 0, 0] {
            message.extend_from_slice(&word.to_le_bytes());
        }
        message.extend_from_slice(b"f\0");
        let len = message.len() as u32;
        message[..4].copy_from_slice(&len.to_le_bytes());
        match block_on(core.clone().serve(Work::Other(message))).answer {
            Answer::Errno(errno) => errno,
            _ => 0,
        }
    }

    /// R3. The story: the kernel found no such name and sent `CREATE`; meanwhile the library
    /// created a file of root's there. The user got an opening of that file, whose permissions the
    /// kernel had not checked, and `O_TRUNC` emptied it.
    #[test]
    fn create_that_meets_a_file_answers_estale_and_opens_nothing() {
        let fs = Arc::new(MemFs::default());
        let options = Options::default();
        let core = Core::new(fs, RealWorld::new(), Default::default(), &options);
        let name = Name::new(b"f").unwrap();
        let new = NewInode::of(FileKind::File, 0o600);
        let made = block_on(core.fs.create(Ino::ROOT, name, &new, OpenFlags::WRITE));
        let (_, file) = made.unwrap();
        let secret = AlignedBuf::copy_of(b"secret");
        block_on(file.write(0, secret, IoFlags::empty(), Privileges::Keep)).1.unwrap();
        for flags in [0, open::RDWR, open::RDWR | open::TRUNC] {
            assert_eq!(create_as(&core, 1000, flags), ESTALE, "R3: flags {flags:o}");
        }
        assert_eq!(create_as(&core, 1000, open::RDWR | open::EXCL), EEXIST);
        assert_eq!((core.handles.len(), core.inodes.len()), (0, 0), "R3: nothing is open");
        assert_eq!(block_on(core.fs.lookup(Ino::ROOT, name)).unwrap().size, 6, "nothing was cut");
        block_on(core.fs.unlink(Ino::ROOT, name)).unwrap();
        assert_eq!(create_as(&core, 1000, open::RDWR | open::TRUNC), 0, "the name is free");
        assert_eq!(block_on(core.fs.lookup(Ino::ROOT, name)).unwrap().uid, 1000);
    }
}
