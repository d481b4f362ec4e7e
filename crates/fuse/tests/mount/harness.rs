//! A mount that ends with its test, also when that fails.
//!
//! No locks.

use forebay_base::world::RealWorld;
use forebay_fuse::mount::unmount;
use forebay_fuse::notify::Notifier;
use forebay_fuse::{MountKind, Options, Session};
use forebay_vfs::FileSystem;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

/// A folder that is removed on drop; what is mounted in it is unmounted first.
pub struct Folder(pub PathBuf);

impl Folder {
    /// An empty one.
    pub fn new() -> Self {
        static SERIAL: AtomicU64 = AtomicU64::new(0);
        let name = format!(
            "forebay-fuse-{}-{}",
            std::process::id(),
            SERIAL.fetch_add(1, Ordering::Relaxed)
        );
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        while unmount(&self.0, true).is_ok() {}
        let _ = std::fs::remove_dir(&self.0);
    }
}

/// A served mount.
pub struct Lab {
    /// How it was made.
    pub kind: MountKind,
    /// Tells the kernel.
    pub notifier: Notifier,
    figures: Box<dyn Fn() -> (usize, usize)>,
    thread: Option<JoinHandle<()>>,
    folder: Folder,
}

impl Lab {
    /// Mounts `fs`.
    pub fn new(fs: Arc<dyn FileSystem>, options: &Options) -> Self {
        let folder = Folder::new();
        let mounted = forebay_fuse::mount(&folder.0, options).expect("a mount; root and /dev/fuse");
        let kind = mounted.kind;
        let session = Session::start(mounted, fs, RealWorld::new(), options).expect("a session");
        let (notifier, figures) = (session.notifier(), Box::new(session.figures()));
        let thread = std::thread::spawn(move || {
            let ending = session.wait();
            let synced = ending.sync();
            ending.finish(&synced);
            synced.expect("everything is durable");
        });
        Self { kind, notifier, figures, thread: Some(thread), folder }
    }

    /// Inodes that the kernel knows, and what it has open.
    pub fn figures(&self) -> (usize, usize) {
        (self.figures)()
    }

    /// Where.
    pub fn path(&self) -> &Path {
        &self.folder.0
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        let _ = unmount(&self.folder.0, true);
        let joined = self.thread.take().map(JoinHandle::join);
        if !std::thread::panicking() {
            assert!(matches!(joined, Some(Ok(()))), "the session ends well");
        }
    }
}

/// Whether mounts can be made here; where they cannot, a test fails unless it may be skipped.
pub fn may_run() -> bool {
    let root = rustix::process::geteuid().is_root() && Path::new("/dev/fuse").exists();
    let allowed = std::env::var("FOREBAY_ALLOW_SKIP").is_ok_and(|v| v == "1");
    assert!(root || allowed, "mounts need root and /dev/fuse");
    if !root {
        eprintln!("skipped: mounts need root and /dev/fuse");
    }
    root
}
