//! Listings that the kernel caches.
//!
//! No locks.

use crate::harness::{Lab, may_run};
use forebay_base::Result;
use forebay_base::task::BoxFuture;
use forebay_fuse::Options;
use forebay_testkit::mem_fs::{MemFs, MemOptions};
use forebay_vfs::{Cookie, DirEntry, FileSystem, Ino, ManualClock};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A file system that counts requests for listings.
struct Counted {
    fs: MemFs,
    listings: AtomicUsize,
}

impl FileSystem for Counted {
    forebay_vfs::delegate_file_system!(
        [fs]
        lookup statfs parent getattr getattr_listed setattr create mknod mkdir symlink link unlink
        rmdir rename remove_keeping rename_keeping readlink getxattr setxattr listxattr removexattr
        open syncfs
    );
    fn readdir(&self, dir: Ino, after: Cookie, max: usize) -> BoxFuture<'_, Result<Vec<DirEntry>>> {
        self.listings.fetch_add(1, Ordering::SeqCst);
        self.fs.readdir(dir, after, max)
    }
}

fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).unwrap();
    let name = |entry: std::io::Result<std::fs::DirEntry>| entry.unwrap().file_name();
    let mut names: Vec<_> = entries.map(|e| name(e).to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// listing.D2: the kernel serves the listing of a directory itself, once all attributes in it are
/// old enough to be kept, and sees each change that goes through the mount. With recent attributes
/// each listing goes to the daemon, and brings them.
#[test]
fn settled_directory_is_listed_from_kernel_cache() {
    if !may_run() {
        return;
    }
    for is_settled in [true, false] {
        let mut options = MemOptions::default();
        if is_settled {
            options.clock = Arc::new(ManualClock::default());
        }
        let counted = Counted { fs: MemFs::new(options), listings: AtomicUsize::new(0) };
        let counted = Arc::new(counted);
        let lab = Lab::new(counted.clone(), &Options::default());
        let dir = lab.path().join("dir");
        std::fs::create_dir(&dir).unwrap();
        let mut there: Vec<String> = (100..150).map(|n| format!("name{n}")).collect();
        there.iter().for_each(|name| std::fs::write(dir.join(name), "").unwrap());
        let asked = || counted.listings.swap(0, Ordering::SeqCst);
        for _ in 0..2 {
            assert_eq!(names(&dir), there);
            assert!(asked() > 0, "the first listing is not cached, and the second one fills");
        }
        assert_eq!(names(&dir), there);
        assert_eq!(asked() == 0, is_settled, "D2");
        std::fs::write(dir.join("name150"), "").unwrap();
        there.push("name150".into());
        assert_eq!(names(&dir), there, "a new name");
        std::fs::remove_file(dir.join("name100")).unwrap();
        there.remove(0);
        assert_eq!(names(&dir), there, "a name is gone");
        std::fs::rename(dir.join("name101"), dir.join("name151")).unwrap();
        there.remove(0);
        there.push("name151".into());
        assert_eq!(names(&dir), there, "a name has changed");
        std::fs::rename(dir.join("name102"), lab.path().join("name102")).unwrap();
        there.remove(0);
        assert_eq!(names(&dir), there, "a name went to another directory");
        asked();
        let again = (names(&dir), names(&dir));
        assert!(again.0 == there && again.1 == there);
        assert_eq!(asked() == 0, is_settled, "it is cached again");
    }
}
