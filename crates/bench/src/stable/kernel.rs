//! The kernel's variants: XFS on a loop device that claims to need stable pages, and on one that
//! does not, under the same mix and under dbench.

use super::dbench;
use super::mix::{self, Flushes, Mix, Store};
use crate::harness::backing::Backing;
use crate::harness::load::{Slice, Target};
use crate::harness::options::Options;
use crate::report::model::Report;
use crate::rivals::kernel::KernelFile;
use crate::rivals::loopdev::{FsKind, LoopFs, Making};
use forebay_base::{Error, Result};
use rustix::fs::OFlags;
use std::path::PathBuf;

/// XFS on a loop device.
pub struct Kernel {
    fs: LoopFs,
}

struct OnFile(KernelFile);

impl Target for OnFile {
    fn read(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.0.read(buf, offset)
    }
    fn write(&self, buf: &[u8], offset: u64) -> Result<()> {
        self.0.write(buf, offset)
    }
}

impl Store for OnFile {
    fn flush(&self) -> Result<()> {
        self.0.file.sync_data().map_err(|e| Error::from_io("flush", e))
    }
}

impl Kernel {
    /// Makes it, with a file for the mix.
    pub fn new(options: &Options) -> Result<Self> {
        let best = Making::best(Backing::Written);
        let fs = LoopFs::with(&options.dir, "stable", 512 << 20, FsKind::Xfs, &best)?;
        let this = Self { fs };
        let fail = |e| Error::from_io("make", e).with_path(this.image());
        std::fs::write(this.image(), vec![1; mix::SIZE as usize]).map_err(fail)?;
        Ok(this)
    }

    fn image(&self) -> PathBuf {
        self.fs.path().join("image")
    }

    /// Runs one slice, with or without the claim of the device.
    pub fn slice(&self, stable: bool, mix: &Mix) -> Result<(Slice, Flushes)> {
        self.fs.stable_writes(stable)?;
        let file = OnFile(KernelFile::new(crate::harness::image::open_with(
            &self.image(),
            OFlags::empty(),
        )?));
        let done = mix::run(&file, mix)?;
        file.flush()?;
        Ok(done)
    }

    /// Runs `dbench 4`, with or without the claim of the device; adds rows from its table.
    pub fn dbench(&self, report: &mut Report, stable: bool, seconds: u64) -> Result<()> {
        self.fs.stable_writes(stable)?;
        let table = dbench::run(&self.fs.path().join("dbench"), seconds)?;
        let variant = name(stable);
        report.row(variant, "dbench_write_avg", "ms", &[table.avg("WriteX")]);
        report.row(variant, "dbench_write_max", "ms", &[table.max("WriteX")]);
        report.row(variant, "dbench_flush_avg", "ms", &[table.avg("Flush")]);
        report.row(variant, "dbench_flush_max", "ms", &[table.max("Flush")]);
        report.row(variant, "dbench_throughput", "MB/s", &[table.throughput]);
        Ok(())
    }
}

/// Name of the kernel's variant.
pub fn name(stable: bool) -> &'static str {
    if stable { "xfs-loop stable_writes=1" } else { "xfs-loop stable_writes=0" }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rivals::loopdev::tests::requires;
    use forebay::{Cache, CacheConfig, DirectIo, OpenOptions};

    /// A change of the kernel's setting reaches files on that device that are already open.
    #[test]
    fn s5_device_setting_reaches_open_files() {
        let root = rustix::process::geteuid().is_root();
        if !requires("root, to attach loop devices", root) {
            return;
        }
        let dir = std::env::temp_dir().join(format!("forebay-need-{}", std::process::id()));
        std::fs::create_dir(&dir).unwrap();
        let made = LoopFs::new(&dir, "need", 320 << 20, FsKind::Xfs, true);
        if let Ok(fs) = made {
            let cache = Cache::new(CacheConfig::with_budget(8 << 20)).unwrap();
            let direct_io = DirectIo::On;
            let options = OpenOptions::read_write()
                .create(true)
                .create_size(1 << 20)
                .direct_io(direct_io)
                .clone();
            let file = options.open(&cache, fs.path().join("image")).unwrap();
            let required = || file.stable_pages_required().unwrap();
            assert_eq!(required(), (false, "the device below does not ask"));
            for on in [true, false] {
                fs.device().stable_writes(on).unwrap();
                // An answer may be slightly out of date, so the test waits for it.
                let limit = std::time::Instant::now() + std::time::Duration::from_secs(20);
                while required().0 != on {
                    assert!(std::time::Instant::now() < limit, "still {}", !on);
                    std::thread::yield_now();
                }
            }
        } else {
            assert!(
                std::env::var("FOREBAY_ALLOW_SKIP").is_ok_and(|v| v == "1"),
                "{:?}",
                made.err()
            );
        }
        std::fs::remove_dir(&dir).expect("nothing is left in it");
    }
}
