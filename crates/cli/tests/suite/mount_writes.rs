//! Writes of several programs into one file of a mount.

use crate::common::harness::Lab;
use crate::common::place::may_run;
use forebay_fuse::CacheMode;
use rustix::fs::{Advice, fadvise};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Barrier;

/// One request each, also where the buffer is not aligned; several folios.
const LEN: usize = 512 << 10;
const ROUNDS: usize = 100;

/// Pairs of writes to the same range that left a part of either.
fn torn_pairs(mode: CacheMode, at: u64) -> usize {
    let lab = Lab::new(mode);
    std::fs::write(lab.mnt("file"), vec![0; at as usize + LEN]).unwrap();
    let (begin, end) = (Barrier::new(3), Barrier::new(3));
    let file = || File::options().read(true).write(true).open(lab.mnt("file")).unwrap();
    let writer = |byte: u8| {
        let (file, data) = (file(), vec![byte; LEN]);
        for _ in 0..ROUNDS {
            begin.wait();
            file.write_all_at(&data, at).unwrap();
            end.wait();
        }
    };
    std::thread::scope(|scope| {
        for byte in [1, 2] {
            let writer = &writer;
            let _joined_at_the_end = scope.spawn(move || writer(byte));
        }
        let (file, mut found, mut torn) = (file(), vec![0; LEN], 0);
        for _ in 0..ROUNDS {
            // The kernel has no page of the file, so it cuts a write that it caches behind the page
            // in whose middle that begins.
            fadvise(&file, 0, None, Advice::DontNeed).unwrap();
            begin.wait();
            end.wait();
            file.read_exact_at(&mut found, at).unwrap();
            let stored = lab.volume.read("file").unwrap();
            let is_torn = |bytes: &[u8]| bytes.iter().any(|byte| *byte != bytes[0]);
            torn += usize::from(is_torn(&found) || is_torn(&stored[at as usize..]));
        }
        torn
    })
}

/// With `own` and `small` the kernel sends writes to one file in parallel, and the cache takes each
/// of them folio by folio: of two that overlapped a file kept some folios of either. With `kernel`
/// the kernel has one write at a time, also where it sends a write as two requests.
#[test]
fn overlapping_writes_of_one_request_leave_one_of_them() {
    if !may_run() {
        return;
    }
    for mode in [CacheMode::Own, CacheMode::Small, CacheMode::Kernel] {
        for at in [0, 100] {
            let torn = torn_pairs(mode, at);
            assert_eq!(torn, 0, "of {ROUNDS} pairs of writes at {at}, {mode:?}");
        }
    }
}
