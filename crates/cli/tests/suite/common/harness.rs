//! A volume that is open in the process of the test, and mounted by it.

use super::Folder;
use forebay::{Cache, CacheConfig, CreateVolume, Volume, VolumeOptions};
use forebay_base::world::RealWorld;
use forebay_fuse::mount::unmount;
use forebay_fuse::{CacheMode, Options, Session};
use std::path::PathBuf;
use std::thread::JoinHandle;

/// A volume that is open here and mounted; it ends with its test.
pub struct Lab {
    /// The volume.
    pub volume: Volume,
    thread: Option<JoinHandle<()>>,
    /// Its folder.
    pub folder: Folder,
}

impl Lab {
    /// With this setting of the kernel's cache.
    pub fn new(mode: CacheMode) -> Self {
        let folder = Folder::new();
        let image = folder.path("vol");
        let making = CreateVolume::default().size(256 << 20);
        Volume::create(&image, &making).unwrap();
        // Smaller than what is used, so that things leave the cache, too.
        let cache = Cache::new(CacheConfig::default().budget(24 << 20)).unwrap();
        let volume = Volume::open(&cache, &image, &VolumeOptions::default()).unwrap();
        let mnt = folder.path("mnt");
        std::fs::create_dir(&mnt).unwrap();
        let options = Options { cache: mode, ..Options::default() };
        let mounted = forebay_fuse::mount(&mnt, &options).expect("a mount; root and /dev/fuse");
        let world = RealWorld::new();
        let session = Session::start(mounted, volume.to_mount(), world, &options).unwrap();
        let thread = std::thread::spawn(move || {
            let ending = session.wait();
            let synced = ending.sync();
            ending.finish(&synced);
            synced.expect("everything is durable");
        });
        Self { volume, thread: Some(thread), folder }
    }

    /// A path on the mount.
    pub fn mnt(&self, name: &str) -> PathBuf {
        self.folder.path("mnt").join(name)
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        let _ = unmount(&self.folder.path("mnt"), true);
        let joined = self.thread.take().map(JoinHandle::join);
        if !std::thread::panicking() {
            assert!(matches!(joined, Some(Ok(()))), "the session ends well");
        }
    }
}
