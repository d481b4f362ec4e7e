//! A file system in memory where a program acts right after a look-up was answered.
//!
//! Lock: the slot of the act, not held while it runs.

use super::*;
use forebay_base::task::yield_now;
use std::sync::atomic::AtomicU32;

/// What acts once, after the next look-up.
type Act = Box<dyn FnOnce() + Send>;

/// A file system with such a program.
#[derive(Default)]
pub(super) struct Hooked {
    pub fs: Arc<MemFs>,
    pub after_lookup: Mutex<Option<Act>>,
    /// So many of the next opens have to wait.
    pub late_opens: AtomicU32,
    /// Attributes are never set.
    pub is_stuck: AtomicBool,
}

impl FileSystem for Hooked {
    forebay_vfs::delegate_file_system!(
        [fs]
        statfs parent getattr create mknod mkdir symlink link unlink rmdir rename readlink
        readdir getxattr setxattr listxattr removexattr syncfs
    );

    fn lookup<'a>(&'a self, dir: Ino, name: Name<'a>) -> BoxFuture<'a, Result<Attr>> {
        Box::pin(async move {
            let found = self.fs.lookup(dir, name).await;
            let act = self.after_lookup.lock().take();
            if let Some(act) = act {
                act();
            }
            found
        })
    }
    fn open(&self, ino: Ino, flags: OpenFlags) -> BoxFuture<'_, Result<OpenFileRef>> {
        Box::pin(async move {
            let late = |left: u32| left.checked_sub(1);
            if self.late_opens.fetch_update(Ordering::Relaxed, Ordering::Relaxed, late).is_ok() {
                yield_now().await;
            }
            self.fs.open(ino, flags).await
        })
    }
    fn setattr<'a>(&'a self, ino: Ino, set: &'a SetAttr) -> BoxFuture<'a, Result<Attr>> {
        match self.is_stuck.load(Ordering::Relaxed) {
            true => Box::pin(std::future::pending()),
            false => self.fs.setattr(ino, set),
        }
    }
}
