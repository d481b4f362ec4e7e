//! Random operations on a file through the kernel: buffered, direct, mapped, by several openings
//! with modes of their own. `FOREBAY_FSX_RUNS` sets the number of runs (default 4 for each way of
//! caching), `FOREBAY_SEED` the first seed.
//!
//! No locks.

use crate::harness::{Lab, may_run};
use forebay_fuse::{CacheMode, Options};
use forebay_testkit::mem_fs::MemFs;
use std::process::{Command, Stdio};
use std::sync::Arc;

#[test]
fn mounted_file_agrees_with_model() {
    if !may_run() {
        return;
    }
    let number = |name: &str, default: u64| {
        std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
    };
    let (first, runs) = (number("FOREBAY_SEED", 1), number("FOREBAY_FSX_RUNS", 4));
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/mount/fsx.py");
    for mode in [CacheMode::Own, CacheMode::Small, CacheMode::Kernel] {
        let options = Options { cache: mode, ..Options::default() };
        let lab = Lab::new(Arc::new(MemFs::default()), &options);
        for seed in first..first + runs {
            let mut command = Command::new("python3");
            command.arg(script).arg(lab.path().join(format!("file-{seed}")));
            command.arg(seed.to_string()).arg("2000").stdin(Stdio::null());
            let done = command.output().expect("python3; see `cargo xtask requires`");
            let said = String::from_utf8_lossy(&done.stdout).into_owned();
            let errors = String::from_utf8_lossy(&done.stderr).into_owned();
            assert!(done.status.success(), "{mode:?}: {said}{errors}");
        }
    }
}
