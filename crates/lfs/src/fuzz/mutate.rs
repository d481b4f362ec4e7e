//! Mutates stored bytes, and corrects the checksums afterwards, so that the fuzzer reaches the
//! checks behind the checksums.
//!
//! No locks.

use super::make::{Make, geometry, seal};
use super::{RECORD_AT, word};
use crate::format::place::{Place, sum_around};
use crate::format::summary::summary_place;
use crate::format::superblock::SLOT_BYTES;

/// Lengths, counts and ids at which an off-by-one error may show.
const EDGES: &[u64] = &[
    0,
    1,
    2,
    63,
    64,
    127,
    128,
    129,
    254,
    255,
    256,
    1023,
    1024,
    1025,
    4095,
    4096,
    4097,
    0x7fff,
    0xffff,
    0x1_0000,
    0x1_0001,
    0x10_0000,
    0x7fff_ffff,
    0xffff_fffc,
    0xffff_fffd,
    0xffff_fffe,
    0xffff_ffff,
    0x1_0000_0000,
    (1 << 48) - 2,
    (1 << 48) - 1,
    1 << 51,
    i64::MAX as u64,
    1 << 63,
    u64::MAX - 1,
    u64::MAX,
];
const LONGEST: usize = 1 << 17;

/// Returns `input` with one to four mutations.
pub fn mutate(make: &mut Make, input: &[u8], other: &[u8]) -> Vec<u8> {
    let mut data = input.to_vec();
    for _ in 0..1 + make.below(4) * make.below(2) {
        mutate_once(make, &mut data, other);
    }
    data.truncate(LONGEST);
    data
}

/// The position of a mutation: more often near the front, where headers are.
fn somewhere(make: &mut Make, len: usize) -> usize {
    let near = if make.below(4) > 0 { 256 } else { usize::MAX };
    make.below(len.min(near).max(1) as u64) as usize
}

fn mutate_once(make: &mut Make, data: &mut Vec<u8>, other: &[u8]) {
    let at = somewhere(make, data.len());
    let width = make.pick(&[1, 2, 4, 8]).min(data.len() - at.min(data.len()));
    let len = (1 + make.below(64) as usize).min(data.len() - at.min(data.len()));
    match make.below(10) {
        0 | 1 => {
            if let Some(byte) = data.get_mut(at) {
                *byte ^= 1 << make.below(8);
            }
        }
        2 | 3 => {
            let edge = make.pick(EDGES).to_le_bytes();
            data[at..at + width].copy_from_slice(&edge[..width]);
        }
        4 | 5 => {
            // A length or a count that is off by a little.
            let mut number = [0; 8];
            number[..width].copy_from_slice(&data[at..at + width]);
            let off =
                make.pick(&[1, 2, 16, 64, 4096, u64::MAX, u64::MAX - 1, 64u64.wrapping_neg()]);
            let number = u64::from_le_bytes(number).wrapping_add(off).to_le_bytes();
            data[at..at + width].copy_from_slice(&number[..width]);
        }
        6 => {
            let from = somewhere(make, data.len());
            let len = len.min(data.len() - from.min(data.len()));
            data.copy_within(from..from + len, at);
        }
        7 if !other.is_empty() => {
            let from = somewhere(make, other.len());
            let len = len.min(other.len() - from);
            data[at..at + len].copy_from_slice(&other[from..from + len]);
        }
        8 => data.truncate(somewhere(make, data.len() + 1).max(data.len() / 2)),
        _ => match make.flip() {
            true => data.extend_from_slice(make.slice(len)),
            false => drop(data.splice(at..at, make.slice(len).iter().copied())),
        },
    }
}

fn put(data: &mut [u8], at: usize, sum: u32) {
    data[at..at + 4].copy_from_slice(&sum.to_le_bytes());
}

/// Corrects the checksum of a superblock slot.
pub fn seal_superblock(data: &mut [u8]) {
    if data.len() == SLOT_BYTES {
        put(data, SLOT_BYTES - 4, sum_around(0, data, SLOT_BYTES - 4));
    }
}

/// Corrects the checksum of a log segment header.
pub fn seal_segment(data: &mut [u8]) {
    if data.len() >= 128 {
        let sum = seal().sum(Place::new(word(data, 8), 0), &data[..128], 12);
        put(data, 12, sum);
    }
}

/// Corrects both checksums of a record, if its lengths lie within the data.
pub fn seal_record(data: &mut [u8]) {
    let (length, offset) = (word(data, 8) as usize, word(data, 68) as usize);
    if let Some(tail) = data.get(offset..length).filter(|_| data.len() >= 128) {
        let sum = seal().sum_whole(RECORD_AT, tail);
        put(data, 76, sum);
    }
    if data.len() >= 128 && (128..=data.len()).contains(&offset) {
        let sum = seal().sum(RECORD_AT, &data[..offset], 12);
        put(data, 12, sum);
    }
}

/// Corrects the checksum of a node.
pub fn seal_node(data: &mut [u8]) {
    if data.len() >= 64 {
        let sum = seal().sum(Place::new(word(data, 16), word(data, 20)), data, 4);
        put(data, 4, sum);
    }
}

/// Corrects the checksum of a summary.
pub fn seal_summary(data: &mut [u8]) {
    if data.len() >= 128 {
        let sum = seal().sum(summary_place(word(data, 8), &geometry(true)), data, 12);
        put(data, 12, sum);
    }
}
