//! Maps of files, while other processes use the same files.
//!
//! `FOREBAY_MAP_MIB` and `FOREBAY_OPENS` set the size of the map and the number of openings.
//!
//! No locks.

use crate::harness::{Lab, may_run};
use forebay_fuse::{CacheMode, Options};
use forebay_testkit::mem_fs::MemFs;
use std::process::Command;
use std::sync::Arc;

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
}

/// Each opening of a file over 128 KiB made the kernel drop the pages of all processes that had it
/// mapped: the reply did not say that the kernel's pages are still right. So a program of a mount
/// read its text again.
#[test]
fn opening_a_mapped_file_leaves_its_pages_mapped() {
    if !may_run() {
        return;
    }
    let (mib, opens) = (number("FOREBAY_MAP_MIB", 64), number("FOREBAY_OPENS", 1000));
    for mode in [CacheMode::Own, CacheMode::Small, CacheMode::Kernel] {
        let lab =
            Lab::new(Arc::new(MemFs::default()), &Options { cache: mode, ..Options::default() });
        let mut python = Command::new("python3");
        python.args(["-c", include_str!("mapped.py")]).arg(lab.path().join("file"));
        python.args([mib.to_string(), opens.to_string()]);
        let done = python.output().expect("python3");
        let text = [done.stdout, done.stderr].concat();
        let text = String::from_utf8_lossy(&text);
        println!("{mode:?}: {text}");
        assert!(done.status.success(), "{mode:?}: {text}");
    }
}
