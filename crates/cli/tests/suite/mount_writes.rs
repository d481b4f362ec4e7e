//! Writes of several programs into one file of a mount.

use crate::common::lab::Lab;
use crate::common::place::may_run;
use forebay_fuse::CacheMode;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Barrier;

/// One request each, also where the buffer is not aligned; several folios.
const LEN: usize = 512 << 10;
const ROUNDS: usize = 100;

/// With these two modes the kernel does not order the writes of one file (with `Always` it does).
/// It sends direct writes in parallel, and the cache takes each of them folio by folio: of
/// two that overlapped a file kept some folios of either.
#[test]
fn overlapping_writes_of_one_request_leave_one_of_them() {
    if !may_run() {
        return;
    }
    for mode in [CacheMode::Own, CacheMode::Small] {
        let lab = Lab::new(mode);
        std::fs::write(lab.mnt("file"), vec![0; LEN]).unwrap();
        let (begin, end) = (Barrier::new(3), Barrier::new(3));
        let file = || File::options().read(true).write(true).open(lab.mnt("file")).unwrap();
        let writer = |byte: u8| {
            let (file, data) = (file(), vec![byte; LEN]);
            for _ in 0..ROUNDS {
                begin.wait();
                file.write_all_at(&data, 0).unwrap();
                end.wait();
            }
        };
        let torn = std::thread::scope(|scope| {
            for byte in [1, 2] {
                let writer = &writer;
                let _joined_at_the_end = scope.spawn(move || writer(byte));
            }
            let (file, mut found, mut torn) = (file(), vec![0; LEN], 0);
            for _ in 0..ROUNDS {
                begin.wait();
                end.wait();
                file.read_exact_at(&mut found, 0).unwrap();
                torn += usize::from(found.iter().any(|byte| *byte != found[0]));
            }
            torn
        });
        assert_eq!(torn, 0, "of {ROUNDS} pairs of writes, {mode:?}");
    }
}
