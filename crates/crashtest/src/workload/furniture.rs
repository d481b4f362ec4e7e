//! The files of a volume from which short workloads start.
//!
//! No locks.

use forebay_testkit::fs_check::op::Make;
use forebay_testkit::fs_check::{Op, Path, Target};
use forebay_vfs::{OpenFlags, SetXattr};

/// Mode and owner of the files that workloads make.
pub const MAKE: Make = Make { perm: 0o644, owner: (0, 0) };

/// The steps that make the content of a furnished volume: `/0` with three blocks of 4 KiB and an
/// attribute, `/1` with less than a block, `/3/2` in a directory, an empty directory `/4`.
pub fn furniture() -> Vec<Op> {
    let flags = OpenFlags::READ | OpenFlags::WRITE;
    let create =
        |path: &[u8], slot| Op::Create { path: Path(path.to_vec()), make: MAKE, slot, flags };
    let write = |slot, len, fill| Op::write_at(slot, 0, len, fill);
    let of = Target::Path(Path(vec![0]));
    vec![
        create(&[0], 0),
        write(0, 9001, 11),
        Op::SetXattr { of, name: 0, len: 30, fill: 5, how: SetXattr::Any },
        create(&[1], 1),
        write(1, 701, 12),
        Op::Mkdir { path: Path(vec![3]), make: MAKE },
        create(&[3, 2], 2),
        write(2, 301, 13),
        Op::Mkdir { path: Path(vec![4]), make: MAKE },
        Op::SyncFs,
    ]
}
