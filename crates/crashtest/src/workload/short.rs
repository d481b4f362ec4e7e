//! All short workloads: sequences of one or two operations, each followed by a sync or not, in the
//! manner of bounded black-box testing. Most known crash bugs of file systems need no more.
//!
//! Invariant: B1 a number determines the sequence, and every sequence of one or two operations has
//! a number.
//!
//! No locks.

use super::furniture::MAKE;
use forebay_testkit::fs_check::{Op, Path, Target};
use forebay_vfs::{Fallocate, FileKind, OpenFlags, Privileges, RenameFlags, SetAttr, SetXattr};

/// Number of choices for one position: the operations times three ways to sync after them.
const LETTERS: u64 = 30;
const SYNCS: u64 = 3;
const KINDS: u64 = LETTERS * SYNCS;

/// Sequences of one.
pub const SINGLES: u64 = KINDS;
/// Sequences of two.
pub const PAIRS: u64 = KINDS * KINDS;

/// The file that is open in slot 0, another one in slot 1.
fn opened() -> Vec<Op> {
    let flags = OpenFlags::READ | OpenFlags::WRITE;
    let open = |name, slot| Op::Open { path: Path(vec![name]), slot, flags };
    vec![open(0, 0), open(1, 1)]
}

/// Sequence `number` of one (below [`SINGLES`]).
pub fn single(number: u64) -> Vec<Op> {
    let mut ops = opened();
    step(number % KINDS, 0, &mut ops);
    ops
}

/// Sequence `number` of two (below [`PAIRS`]).
pub fn pair(number: u64) -> Vec<Op> {
    let mut ops = opened();
    step(number / KINDS % KINDS, 0, &mut ops);
    step(number % KINDS, 1, &mut ops);
    ops
}

fn step(kind: u64, place: u64, ops: &mut Vec<Op>) {
    letter(kind / SYNCS, place, ops);
    match kind % SYNCS {
        0 => {}
        1 => ops.push(Op::Sync { slot: 0, data_only: place == 1 }),
        _ => ops.push(Op::SyncFs),
    }
}

fn path(parts: &[u8]) -> Path {
    Path(parts.to_vec())
}

fn rename(from: &[u8], to: &[u8], flags: RenameFlags) -> Op {
    Op::Rename { from: path(from), to: path(to), flags }
}

fn allocate(how: Fallocate, offset: u64, len: u64) -> Op {
    Op::Fallocate { slot: 0, how, offset, len, privileges: Privileges::Keep }
}

fn resize(slot: u8, size: u64) -> Op {
    let set = SetAttr { privileges: Privileges::Keep, ..SetAttr::size(size) };
    Op::Setattr { of: Target::Slot(slot), set }
}

fn create(parts: &[u8], slot: u8, more: OpenFlags) -> Op {
    let flags = OpenFlags::READ | OpenFlags::WRITE | more;
    Op::Create { path: path(parts), make: MAKE, slot, flags }
}

/// One operation. `place` is 0 or 1: the second one of a pair writes other bytes.
fn letter(number: u64, place: u64, ops: &mut Vec<Op>) {
    let fill = 100 * (place + 1) + number;
    let none = RenameFlags::empty();
    match number {
        0..10 => content(number, fill, ops),
        10..20 => replacement(number, fill, none, ops),
        20 => ops.push(Op::Link { from: Target::Path(path(&[0])), to: path(&[3, 5]) }),
        21 => ops.push(Op::Unlink { path: path(&[0]) }),
        22 => ops.extend([Op::Unlink { path: path(&[0]) }, Op::Close { slot: 0 }]),
        23 => ops.push(Op::Mkdir { path: path(&[3, 4]), make: MAKE }),
        24 => ops.push(Op::Rmdir { path: path(&[4]) }),
        25 => ops.push(Op::Symlink { path: path(&[3, 6]), target_len: 40, make: MAKE }),
        26 => {
            let (path, kind) = (path(&[7]), FileKind::Fifo);
            ops.push(Op::Mknod { path, kind, make: MAKE });
        }
        27 => {
            let (of, how) = (Target::Path(path(&[0])), SetXattr::Any);
            ops.push(Op::SetXattr { of, name: place as u8, len: 200, fill: fill as u8, how });
        }
        28 => ops.push(Op::RemoveXattr { of: Target::Path(path(&[0])), name: 0 }),
        _ => {
            let privileges = Privileges::Keep;
            let set = SetAttr { perm: Some(0o600), uid: Some(7), privileges, ..SetAttr::default() };
            ops.push(Op::Setattr { of: Target::Path(path(&[3])), set });
        }
    }
}

/// Operations that change the content of the open files.
fn content(number: u64, fill: u64, ops: &mut Vec<Op>) {
    let append = |slot, len| Op::Write {
        slot,
        offset: 0,
        len,
        fill,
        append: true,
        privileges: Privileges::Keep,
    };
    match number {
        0 => ops.push(Op::write_at(0, 0, 4097, fill)),
        1 => ops.push(Op::write_at(0, 4096 + 100, 301, fill)),
        2 => ops.push(append(0, 5001)),
        3 => ops.push(Op::write_at(0, 20_000, 4001, fill)),
        4 => ops.push(resize(0, 5000)),
        5 => ops.push(resize(0, 0)),
        6 => ops.push(resize(0, 30_000)),
        7 => ops.push(allocate(Fallocate::PunchHole, 4096, 4096)),
        8 => ops.push(allocate(Fallocate::ZeroRange { keep_size: false }, 8000, 8000)),
        _ => ops.extend([Op::write_at(1, 100, 101, fill), append(1, 6001)]),
    }
}

/// Operations that replace one file by another.
fn replacement(number: u64, fill: u64, none: RenameFlags, ops: &mut Vec<Op>) {
    match number {
        10 => ops.extend([create(&[2], 2, OpenFlags::EXCLUSIVE), Op::write_at(2, 0, 3001, fill)]),
        11 => ops.push(rename(&[0], &[1], none)),
        12 => ops.push(rename(&[0], &[3, 0], none)),
        13 => ops.push(rename(&[3], &[4], none)),
        14 => ops.push(rename(&[0], &[3, 2], RenameFlags::EXCHANGE)),
        15 => ops.push(rename(&[1], &[5], RenameFlags::NOREPLACE)),
        // A new file is written and renamed over the old one.
        16 => ops.extend([
            create(&[2], 2, OpenFlags::empty()),
            Op::write_at(2, 0, 6001, fill),
            rename(&[2], &[1], none),
        ]),
        // A file is truncated to 0 bytes and written again.
        17 => ops.extend([
            create(&[1], 2, OpenFlags::TRUNCATE),
            Op::write_at(2, 0, 5001, fill),
            Op::Close { slot: 2 },
        ]),
        18 => {
            let len = 6000;
            ops.push(Op::Copy { from: 0, from_offset: 0, to: 1, to_offset: 2048, len });
        }
        _ => ops.extend([
            Op::Tmpfile { dir: path(&[3]), make: MAKE, slot: 3 },
            Op::write_at(3, 0, 2001, fill),
            Op::Link { from: Target::Slot(3), to: path(&[3, 8]) },
        ]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::{Base, Script, Setup};
    use std::collections::BTreeSet;

    /// B1, and each operation has an effect on the existing files.
    #[test]
    fn each_number_is_another_sequence_and_does_something() {
        let setup = Setup { syncs_concurrently: false, ..Setup::with_content(1) };
        let base = Base::furnished(&setup).unwrap();
        let mut texts = BTreeSet::new();
        for number in 0..SINGLES {
            let ops = single(number);
            texts.insert(format!("{ops:?}"));
            let wanted = ops.len();
            let script = Script::of(&setup, &base.fs, ops);
            let done = script.outcomes.iter().filter(|outcome| outcome.answer.is_ok()).count();
            assert_eq!(done, wanted, "{number}: {:?} {:?}", script.ops, script.outcomes);
        }
        assert_eq!(texts.len() as u64, SINGLES);
        let pairs: BTreeSet<_> = (0..PAIRS).map(|number| format!("{:?}", pair(number))).collect();
        assert_eq!(pairs.len() as u64, PAIRS);
    }
}
