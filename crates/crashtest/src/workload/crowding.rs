//! Workloads on a volume that is nearly full, so that the cleaner has to run: files all over the
//! volume, with little live data in each segment, and random overwrites.
//!
//! No locks.

use super::furniture::MAKE;
use forebay_base::world::split_mix;
use forebay_testkit::fs_check::{Op, Path};
use forebay_vfs::OpenFlags;

/// Number of files, and bytes of each.
const FILES: u8 = 4;
const FILE_BYTES: u64 = 72 << 10;
/// Bytes of one write while the files are made.
const STRIPE_BYTES: u64 = 8 << 10;
const BOTH: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);

fn open(slot: u8) -> Op {
    Op::Open { path: Path(vec![slot]), slot, flags: BOTH }
}

/// The steps that fill such a volume: they write the files in turns, a stripe each, and most of it
/// twice.
pub fn before() -> Vec<Op> {
    let mut ops = Vec::new();
    for slot in 0..FILES {
        ops.push(Op::Create { path: Path(vec![slot]), make: MAKE, slot, flags: BOTH });
    }
    let stripes = FILE_BYTES / STRIPE_BYTES;
    for stripe in 0..stripes {
        for slot in 0..FILES {
            let fill = 1000 + stripe * 10 + u64::from(slot);
            ops.push(Op::write_at(slot, stripe * STRIPE_BYTES, STRIPE_BYTES as u32, fill));
        }
        ops.push(Op::SyncFs);
    }
    for stripe in (0..stripes).filter(|stripe| stripe % 3 != 0) {
        for slot in 0..FILES {
            let fill = 3000 + stripe * 10 + u64::from(slot);
            ops.push(Op::write_at(slot, stripe * STRIPE_BYTES, STRIPE_BYTES as u32, fill));
        }
        ops.push(Op::SyncFs);
    }
    ops
}

/// Overwrites parts of the files, and syncs some of them.
pub fn crowding(seed: u64) -> Vec<Op> {
    let mut rng = seed ^ 0xc4d;
    let mut pick = |n: u64| split_mix(&mut rng) % n;
    let mut ops: Vec<Op> = (0..FILES).map(open).collect();
    for _ in 0..16 {
        let slot = pick(u64::from(FILES)) as u8;
        let len = 1 + pick(9000);
        ops.push(Op::write_at(slot, pick(FILE_BYTES - len), len as u32, pick(u64::MAX)));
        match pick(6) {
            0 => ops.push(Op::Sync { slot, data_only: true }),
            1 => ops.push(Op::SyncFs),
            _ => {}
        }
    }
    ops
}
