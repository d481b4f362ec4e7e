//! Workloads of files that replace others.
//!
//! No locks.

use super::furniture::MAKE;
use forebay_base::world::split_mix;
use forebay_testkit::fs_check::{Op, Path};
use forebay_vfs::{OpenFlags, RenameFlags};

/// Files replace others, by a rename, or by a truncation to 0 bytes and a new write. In between,
/// syncs of an unrelated file.
pub fn replacing(seed: u64) -> Vec<Op> {
    let mut rng = seed ^ 0x4e9;
    let mut pick = |n: u64| split_mix(&mut rng) % n;
    let both = OpenFlags::READ | OpenFlags::WRITE;
    let create = |name: u8, slot: u8, flags: OpenFlags| {
        let path = Path(vec![name]);
        Op::Create { path, make: MAKE, slot, flags: both | flags }
    };
    let none = OpenFlags::empty();
    let mut ops = vec![create(0, 0, none), create(1, 1, none), Op::SyncFs];
    for _ in 0..6 {
        let (len, fill) = (1 + pick(9000) as u32, pick(u64::MAX));
        let write = |slot| Op::write_at(slot, 0, len, fill);
        let (from, to) = (Path(vec![2]), Path(vec![1]));
        match pick(3) {
            0 => ops.extend([write(1), Op::Sync { slot: 1, data_only: true }]),
            1 => {
                // With every other seed some are exchanged.
                let exchange = seed.is_multiple_of(2) && len % 2 == 0;
                let flags = if exchange { RenameFlags::EXCHANGE } else { RenameFlags::empty() };
                ops.extend([create(2, 1, none), write(1), Op::Rename { from, to, flags }]);
            }
            _ => ops.extend([create(1, 1, OpenFlags::TRUNCATE), write(1), Op::Close { slot: 1 }]),
        }
        ops.extend([create(1, 1, none), Op::Sync { slot: 0, data_only: pick(2) == 0 }]);
    }
    ops
}
