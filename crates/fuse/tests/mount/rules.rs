//! The rules of the contract through the kernel: each case of `fs_check::suite`, and random
//! operations compared with a file system in memory in process. `HostFs` makes system calls; the
//! host is ours.
//!
//! No locks.

use crate::harness::{Lab, may_run};
use forebay_fuse::options::Via;
use forebay_fuse::{CacheMode, MountKind, Options};
use forebay_testkit::fs_check::suite::{Subject, cases};
use forebay_testkit::fs_check::{Config, compare, shrink};
use forebay_testkit::host_fs::HostFs;
use forebay_testkit::mem_fs::{MemFs, MemOptions};
use forebay_testkit::mounted::{config, left_out};
use forebay_vfs::{FileSystem, ManualClock};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

#[test]
fn mount_keeps_file_system_rules() {
    if !may_run() {
        return;
    }
    let mut broken = Vec::new();
    for (via, kind) in [(Via::Block, MountKind::Block), (Via::Plain, MountKind::Plain)] {
        let options = Options { via, ..Options::default() };
        let lab = Lab::new(Arc::new(MemFs::default()), &options);
        assert_eq!(lab.kind, kind);
        for case in cases().iter().filter(|case| !case.needs_clock) {
            if let Some(why) = left_out(case.name) {
                eprintln!("not asked for {}: {why}", case.name);
                continue;
            }
            let subject = Subject { fs: Arc::new(HostFs::new(lab.path(), case.name)), clock: None };
            let run = std::panic::AssertUnwindSafe(|| (case.run)(&subject));
            match std::panic::catch_unwind(run) {
                Ok(Ok(())) => {}
                Ok(Err(e)) => broken.push(format!("{kind:?} {}: {e}", case.name)),
                Err(_) => broken.push(format!("{kind:?} {}: see above", case.name)),
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

#[test]
fn mount_agrees_with_served_file_system() {
    if !may_run() {
        return;
    }
    let number = |name: &str, default: u64| {
        std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
    };
    let (seeds, count) = (number("FOREBAY_VFS_SEEDS", 2), number("FOREBAY_VFS_OPS", 1200));
    let first = number("FOREBAY_SEED", 1);
    for mode in [CacheMode::Own, CacheMode::Small, CacheMode::Kernel] {
        let options = Options { cache: mode, ..Options::default() };
        let lab = Lab::new(Arc::new(MemFs::default()), &options);
        let serial = AtomicU64::new(0);
        let fresh = || -> (Arc<dyn FileSystem>, Arc<dyn FileSystem>, Config) {
            let clock = Arc::new(ManualClock::default());
            let ours = MemFs::new(MemOptions { clock: clock.clone(), ..MemOptions::default() });
            let name = serial.fetch_add(1, Ordering::Relaxed).to_string();
            (Arc::new(ours), Arc::new(HostFs::new(lab.path(), &name)), config(clock))
        };
        for seed in first..first + seeds {
            let (ours, theirs, config) = fresh();
            match compare(&*ours, &*theirs, &config, seed, count) {
                Ok(report) => {
                    let done = report.ops.min(report.done * 4);
                    assert!(done == report.ops, "most operations do nothing: {report:?}");
                }
                Err(mismatch) => {
                    drop((ours, theirs));
                    let short = shrink(*mismatch, &mut || fresh());
                    panic!("{mode:?}: {short}");
                }
            }
        }
    }
}
