//! The rules of the contract, on the file system in memory.
//!
//! No locks.

use forebay_testkit::fs_check::suite::{Subject, cases};
use forebay_testkit::mem_fs::{MemFs, MemOptions};
use forebay_vfs::{FileSystem, ManualClock};
use std::sync::Arc;

fn run(options: impl Fn(Arc<ManualClock>) -> MemOptions) {
    for case in cases() {
        // Where names share few hashes, each of many costs a search.
        if case.is_large && options(Arc::default()).cookie_bits < 8 {
            continue;
        }
        let clock = Arc::new(ManualClock::default());
        let memory = Arc::new(MemFs::new(options(clock.clone())));
        let fs: Arc<dyn FileSystem> = memory.clone();
        let subject = Subject { fs, clock: Some(clock) };
        if let Err(e) = (case.run)(&subject) {
            panic!("{}: {e}", case.name);
        }
        // fs.F1, fs.F2, state.M1, state.M2: its own books agree after each of them.
        memory.check();
    }
}

/// fs.F1..F8, case by case.
#[test]
fn f1_to_f8_hold() {
    run(|clock| MemOptions { clock, ..MemOptions::default() });
}

/// Many names of one hash, and reading leaves no trace.
#[test]
fn c1_few_hashes_and_noatime() {
    run(|clock| MemOptions { clock, cookie_bits: 2, noatime: true, ..MemOptions::default() });
}
