//! Superblock slots.
//!
//! No locks.

use super::damage::{cut_anywhere, flip_anywhere};
use super::seeds;
use crate::format::features::Access;
use crate::format::place::sum_around;
use crate::format::superblock::{SLOT_BYTES, STATE_DAMAGED, Superblock, slot_offsets};
use crate::fuzz::make::Make;
use forebay_base::ErrorKind;

fn slot(seed: u64) -> (Superblock, Vec<u8>) {
    let superblock = Make(seed).superblock();
    let mut bytes = vec![0xaa; SLOT_BYTES];
    superblock.encode_into(&mut bytes).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    (superblock, bytes)
}

fn reseal(bytes: &mut [u8]) {
    let sum = sum_around(0, bytes, SLOT_BYTES - 4);
    bytes[SLOT_BYTES - 4..].copy_from_slice(&sum.to_le_bytes());
}

#[test]
fn superblock_reads_back_as_stored() {
    for seed in seeds(500) {
        let (superblock, bytes) = slot(seed);
        let found = Superblock::decode(&bytes, superblock.slot);
        assert_eq!(found.unwrap_or_else(|e| panic!("seed {seed}: {e}")), superblock, "seed {seed}");
    }
}

/// format.F3: a slot is refused if it is cut at any length, or if any bit is flipped.
#[test]
fn damage_is_reported() {
    let (superblock, bytes) = slot(1);
    cut_anywhere(&bytes, |b| Superblock::decode(b, superblock.slot).map(drop));
    for seed in seeds(1) {
        let (superblock, bytes) = slot(seed);
        flip_anywhere(&bytes, |b| Superblock::decode(b, superblock.slot).map(drop));
    }
}

/// superblock.B1: a slot is refused at the offset of each other slot.
#[test]
fn slot_at_offset_of_another_is_refused() {
    let (superblock, bytes) = slot(4);
    for slot in (0..8).filter(|slot| *slot != superblock.slot) {
        let error = Superblock::decode(&bytes, slot).unwrap_err();
        assert!(error.to_string().contains("lies at the place of"), "{error}");
    }
}

/// superblock.B2: an unknown feature is reported, although the slot has other errors, too.
#[test]
fn incompatible_feature_is_reported_first() {
    let (superblock, mut bytes) = slot(4);
    bytes[32] = 1 << 2;
    bytes[75] = 99;
    reseal(&mut bytes);
    let error = Superblock::decode(&bytes, superblock.slot).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("snapshots"), "{error}");
    // A later format version is reported, too, before all other errors.
    bytes[8] = 2;
    reseal(&mut bytes);
    let error = Superblock::decode(&bytes, superblock.slot).unwrap_err();
    assert!(error.to_string().contains("format version 2"), "{error}");
}

/// superblock.B3: each limit, at fields whose offsets are those of `docs/reference/format.md`.
#[test]
fn values_out_of_range_are_named() {
    let superblock = Superblock { slot: 3, ..Make(4).superblock() };
    let mut bytes = vec![0; SLOT_BYTES];
    superblock.encode_into(&mut bytes).unwrap();
    let cases: [(usize, &[u8], &str); 12] = [
        (72, &[9], "sum algorithm 9"),
        (73, &[17], "`sum width`"),
        (74, &[13], "block shift 13"),
        (75, &[11], "node shift 11"),
        (76, &[31], "segment shift 31"),
        (77, &[1], "reserved"),
        (80, &[4], "`state`"),
        (84, &[65], "65 is over 64"),
        (104, &[0xff; 8], "names no segment"),
        (124, &[0; 4], "`segments`"),
        (160, &[0; 8], "id to be given out"),
        (216, &[1], "`key area`"),
    ];
    for (at, value, text) in cases {
        let mut bytes = bytes.clone();
        bytes[at..at + value.len()].copy_from_slice(value);
        reseal(&mut bytes);
        let error = Superblock::decode(&bytes, 3).expect_err(text);
        assert!(error.to_string().contains(text), "at {at}: {error}");
    }
}

#[test]
fn superblock_that_no_decoder_accepts_is_not_stored() {
    let good = Make(4).superblock();
    let mut bytes = vec![0; SLOT_BYTES];
    let bad = Superblock { slot: 8, ..good.clone() };
    assert_eq!(bad.encode_into(&mut bytes).unwrap_err().kind(), ErrorKind::InvalidInput);
    let bad = Superblock { recorded_end_bytes: good.data_start_bytes, ..good.clone() };
    assert_eq!(bad.encode_into(&mut bytes).unwrap_err().kind(), ErrorKind::InvalidInput);
    assert_eq!(good.encode_into(&mut bytes[..4000]).unwrap_err().kind(), ErrorKind::InvalidInput);
}

#[test]
fn corruption_that_was_found_leaves_reading() {
    let damaged = Superblock { state: STATE_DAMAGED, ..Make(4).superblock() };
    assert!(matches!(damaged.access().unwrap(), Access::ReadOnly(_)));
    assert_eq!(slot_offsets(1 << 20), [0, 4096, 8192, 12288, 1032192, 1036288, 1040384, 1044480]);
}
