//! Content of a file: 4 KiB blocks in a map, holes left out. The caller keeps the size.
//!
//! Invariants: D1 bytes beyond the size that the caller keeps are zero in a block that exists:
//! a truncation zeroes the bytes from the new end on.
//!
//! No locks.

use std::collections::BTreeMap;
use std::sync::Arc;

/// Bytes in a block.
pub const BLOCK: u64 = 4096;

type Block = [u8; BLOCK as usize];

/// Blocks by number. A clone shares them until one is written.
#[derive(Clone, Default)]
pub struct Data {
    blocks: BTreeMap<u64, Arc<Block>>,
}

/// The pieces of `[offset, offset + len)`: block, offset in it, bytes.
fn pieces(offset: u64, len: u64) -> impl Iterator<Item = (u64, usize, usize)> {
    let (mut at, end) = (offset, offset + len);
    std::iter::from_fn(move || {
        let skip = at % BLOCK;
        let take = (BLOCK - skip).min(end - at);
        let piece = (at / BLOCK, skip as usize, take as usize);
        at += take;
        (take > 0).then_some(piece)
    })
}

impl Data {
    /// Blocks that exist.
    pub fn blocks(&self) -> u64 {
        self.blocks.len() as u64
    }

    /// Blocks that a write of the range would add.
    pub fn missing(&self, offset: u64, len: u64) -> u64 {
        if len == 0 {
            return 0;
        }
        let (first, last) = (offset / BLOCK, (offset + len - 1) / BLOCK);
        last - first + 1 - self.blocks.range(first..=last).count() as u64
    }

    /// Fills `dst` from `offset` on.
    pub fn read(&self, offset: u64, dst: &mut [u8]) {
        let mut done = 0;
        for (block, skip, take) in pieces(offset, dst.len() as u64) {
            match self.blocks.get(&block) {
                Some(bytes) => dst[done..done + take].copy_from_slice(&bytes[skip..skip + take]),
                None => dst[done..done + take].fill(0),
            }
            done += take;
        }
    }

    /// Stores `src` from `offset` on.
    pub fn write(&mut self, offset: u64, src: &[u8]) {
        let mut done = 0;
        for (block, skip, take) in pieces(offset, src.len() as u64) {
            let bytes = self.blocks.entry(block).or_insert_with(|| Arc::new([0; BLOCK as usize]));
            Arc::make_mut(bytes)[skip..skip + take].copy_from_slice(&src[done..done + take]);
            done += take;
        }
    }

    /// Zeroes `[from, to)`: whole blocks go, parts are overwritten.
    pub fn zero(&mut self, from: u64, to: u64) {
        if from >= to {
            return;
        }
        let (first_whole, end_whole) = (from.div_ceil(BLOCK), to / BLOCK);
        if first_whole < end_whole {
            let mut rest = self.blocks.split_off(&first_whole);
            self.blocks.append(&mut rest.split_off(&end_whole));
        }
        let head = (from, to.min(first_whole * BLOCK));
        let tail = (from.max(end_whole * BLOCK), to);
        for (from, to) in [head, tail] {
            if from < to
                && let Some(bytes) = self.blocks.get_mut(&(from / BLOCK))
            {
                let skip = (from % BLOCK) as usize;
                Arc::make_mut(bytes)[skip..skip + (to - from) as usize].fill(0);
            }
        }
    }

    /// The first offset from `offset` on that lies in a block.
    pub fn next_data(&self, offset: u64) -> Option<u64> {
        let (block, _) = self.blocks.range(offset / BLOCK..).next()?;
        Some(offset.max(block * BLOCK))
    }

    /// The first offset from `offset` on that lies in no block.
    pub fn next_hole(&self, offset: u64) -> u64 {
        let first = offset / BLOCK;
        let run = self.blocks.range(first..).zip(first..).take_while(|((at, _), n)| *at == n);
        match run.count() as u64 {
            0 => offset,
            blocks => (first + blocks) * BLOCK,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_base::world::split_mix;

    /// Compares all operations, and D1, with a plain vector.
    #[test]
    fn content_agrees_with_a_vector() {
        const SIZE: usize = 5 * BLOCK as usize + 77;
        let (mut data, mut plain, mut rng) = (Data::default(), vec![0u8; SIZE], 5);
        for round in 0..2000u64 {
            let from = split_mix(&mut rng) as usize % SIZE;
            let len = split_mix(&mut rng) as usize % (SIZE - from + 1);
            if split_mix(&mut rng) & 1 == 0 {
                let src = vec![round as u8 | 1; len];
                let (before, missing) = (data.blocks(), data.missing(from as u64, len as u64));
                data.write(from as u64, &src);
                assert_eq!(data.blocks(), before + missing);
                plain[from..from + len].copy_from_slice(&src);
            } else {
                data.zero(from as u64, (from + len) as u64);
                plain[from..from + len].fill(0);
            }
            let mut got = vec![0xee; SIZE];
            data.read(0, &mut got);
            assert!(got == plain, "round {round}: {from}+{len}");
            let hole = data.next_hole(from as u64);
            assert_eq!(data.missing(from as u64, hole - from as u64), 0);
            match data.next_data(from as u64) {
                Some(at) => assert!(plain[from..(at as usize).min(SIZE)].iter().all(|b| *b == 0)),
                None => assert!(plain[from..].iter().all(|b| *b == 0)),
            }
        }
    }

    #[test]
    fn write_at_largest_offset_takes_one_block() {
        let mut data = Data::default();
        data.write(i64::MAX as u64 - 3, b"end");
        assert_eq!(data.blocks(), 1);
        assert_eq!(data.next_data(0), Some((i64::MAX as u64 - 3) / BLOCK * BLOCK));
        data.zero(0, i64::MAX as u64);
        let mut got = [1; 3];
        data.read(i64::MAX as u64 - 3, &mut got);
        assert_eq!(got, [0; 3]);
    }
}
