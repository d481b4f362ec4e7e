//! The rules of the contract on a mounted volume: each case of `fs_check::suite`, and random
//! operations compared with a file system in memory, through the kernel.

use crate::common::place::{Place, may_run};
use forebay_testkit::fs_check::compare;
use forebay_testkit::fs_check::suite::{Subject, cases};
use forebay_testkit::host_fs::HostFs;
use forebay_testkit::mem_fs::{MemFs, MemOptions};
use forebay_testkit::mounted;
use forebay_vfs::ManualClock;
use std::sync::Arc;

#[test]
fn mounted_volume_keeps_file_system_rules() {
    if !may_run() {
        return;
    }
    let place = Place::new(512 << 20);
    place.mount("");
    let mut broken = Vec::new();
    for case in cases().iter().filter(|case| !case.needs_clock) {
        if let Some(why) = mounted::left_out(case.name) {
            eprintln!("not asked for {}: {why}", case.name);
            continue;
        }
        let subject = Subject { fs: Arc::new(HostFs::new(&place.mnt(""), case.name)), clock: None };
        let run = std::panic::AssertUnwindSafe(|| (case.run)(&subject));
        match std::panic::catch_unwind(run) {
            Ok(Ok(())) => {}
            Ok(Err(e)) => broken.push(format!("{}: {e}", case.name)),
            Err(_) => broken.push(format!("{}: see above", case.name)),
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
    place.umount();
}

#[test]
fn mounted_volume_agrees_with_model() {
    if !may_run() {
        return;
    }
    let place = Place::new(512 << 20);
    place.mount("");
    let first = std::env::var("FOREBAY_SEED").map_or(1, |text| text.parse().expect("a number"));
    for seed in first..first + 3 {
        let clock = Arc::new(ManualClock::default());
        let ours = MemFs::new(MemOptions { clock: clock.clone(), ..MemOptions::default() });
        let theirs = HostFs::new(&place.mnt(""), &seed.to_string());
        let report = compare(&ours, &theirs, &mounted::config(clock), seed, 1000);
        let report = report.unwrap_or_else(|mismatch| panic!("seed {seed}: {mismatch}"));
        assert!(report.done * 4 > report.ops, "most operations do nothing: {report:?}");
    }
    place.umount();
}
