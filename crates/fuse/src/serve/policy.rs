//! The initial cache mode of an opening: from the file's policy, from the tree of processes that
//! opens it, or from the mount.
//!
//! The policy is an extended attribute of the file. The policy of a directory is for what is
//! created in it: new files and directories get a copy.
//!
//! Invariants: K1 a file without the attribute has the mode of the mount. K2 a new file gets its
//! directory's policy before its creator is answered. If setting the policy fails, the file is
//! created without it.
//!
//! No locks.

use super::{Core, fail};
use crate::POLICY_ATTRIBUTE;
use crate::ioctl::{MODE_CACHED, MODE_DIRECT, MODE_UNCACHED};
use crate::trees::look;
use forebay_base::{ErrorKind, Result};
use forebay_vfs::{Attr, FileKind, Ino, SetXattr, XattrName};

/// The values of the attribute.
const WORDS: [(&[u8], u32); 3] =
    [(b"cached", MODE_CACHED), (b"uncached", MODE_UNCACHED), (b"direct", MODE_DIRECT)];

pub(super) fn name() -> XattrName<'static> {
    XattrName::new(POLICY_ATTRIBUTE.as_bytes()).expect("a valid name")
}

/// Refuses an unknown value of the attribute.
pub(super) fn check(name: &[u8], value: &[u8]) -> Result<()> {
    match name != POLICY_ATTRIBUTE.as_bytes() || WORDS.iter().any(|(word, _)| *word == value) {
        true => Ok(()),
        false => fail(ErrorKind::Unsupported, "setxattr", "no such policy"),
    }
}

impl Core {
    /// The policy of an inode, if it has one that can be read.
    pub(super) fn policy_of(ino: Ino, found: Result<Option<Vec<u8>>>) -> Option<Vec<u8>> {
        found.unwrap_or_else(|e| {
            log::warn!("the policy of {ino:?} cannot be read, it has that of the mount: {e}");
            None
        })
    }

    /// The initial mode of an opening (K1): that of the file, else that of the tree of processes
    /// that opens it, else that of the mount. A tree's mode overrides the policy `cached`.
    pub(super) fn mode(&self, policy: Option<&[u8]>, pid: u32) -> u32 {
        let known = WORDS.iter().find(|(word, _)| policy == Some(word));
        match known.map(|(_, mode)| *mode) {
            Some(mode) if mode != MODE_CACHED => mode,
            own => {
                let of_tree = self.trees.mode_of(pid, look);
                of_tree.or(own).unwrap_or_else(|| self.mount_mode.get())
            }
        }
    }

    /// Gives a new inode the policy of `dir` (K2), if its kind can have one. Returns its attributes
    /// after that, and the policy.
    pub(super) async fn inherit(&self, dir: Ino, made: Attr) -> (Attr, Option<Vec<u8>>) {
        if !matches!(made.kind, FileKind::File | FileKind::Directory) {
            return (made, None);
        }
        let policy = Self::policy_of(dir, self.fs.find_xattr(dir, name()).await);
        (self.set_policy(made, policy.as_deref()).await, policy)
    }

    /// Sets the policy of a new inode (K2); returns its attributes after that.
    pub(super) async fn set_policy(&self, made: Attr, policy: Option<&[u8]>) -> Attr {
        let Some(value) = policy else { return made };
        let set = self.fs.setxattr(made.ino, name(), value, SetXattr::Create).await;
        match set {
            Ok(()) => self.fs.getattr(made.ino).await.unwrap_or(made),
            // Another caller has set a policy on it already.
            Err(e) if e.kind() == ErrorKind::Exists => made,
            Err(e) => {
                log::warn!("{:?} has not got the policy of its directory: {e}", made.ino);
                made
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ioctl::MountMode;
    use crate::options::Options;
    use forebay_base::task::block_on;
    use forebay_base::world::RealWorld;
    use forebay_testkit::mem_fs::MemFs;
    use forebay_vfs::{Name, NewInode};
    use std::sync::Arc;

    /// K1: the mode of the mount holds for files without a policy, from their next opening on.
    #[test]
    fn file_without_policy_has_mode_of_mount() {
        let options = Options { mode: MountMode::default(), ..Options::default() };
        let core =
            Core::new(Arc::new(MemFs::default()), RealWorld::new(), Default::default(), &options);
        let new = NewInode::of(FileKind::File, 0o600);
        let made = |file: &[u8], policy: Option<&[u8]>| {
            let ino =
                block_on(core.fs.mknod(Ino::ROOT, Name::new(file).unwrap(), &new)).unwrap().ino;
            if let Some(policy) = policy {
                block_on(core.fs.setxattr(ino, name(), policy, SetXattr::Create)).unwrap();
            }
            ino
        };
        let (plain, cached) = (made(b"plain", None), made(b"cached", Some(b"cached")));
        let direct = made(b"direct", Some(b"direct"));
        for mode in [MODE_CACHED, MODE_UNCACHED, MODE_DIRECT] {
            assert!(options.mode.set(mode));
            let modes = [plain, cached, direct].map(|ino| {
                let policy = Core::policy_of(ino, block_on(core.fs.find_xattr(ino, name())));
                core.mode(policy.as_deref(), 0)
            });
            assert_eq!(modes, [mode, MODE_CACHED, MODE_DIRECT]);
        }
        assert!(!options.mode.set(3), "no such mode");
    }
}
