//! The byte model: what a subject's bytes must be now, and what they may be after a crash.
//!
//! Invariants: Y1 `bytes` is the newest content. Y2 per block, the legal contents now are that of
//! `bytes` and `alts`; more than one only after a failed write or a trim. Y3 per block, `durable`
//! holds every content that a crash may leave: the one at the last successful sync, and each one
//! since. Y4 a block is the unit that a crash does not tear.
//!
//! No locks.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

/// What a trimmed range reads as, until it is written again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TrimReads {
    /// Zeros.
    Zeros,
    /// Per block the old content or zeros.
    OldOrZeros,
    /// Whole blocks anything; parts of blocks old or zeros.
    Anything,
}

/// How a change ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// It happened.
    Done,
    /// It happened and is durable.
    Durable,
    /// It failed: each block is old or new.
    Maybe,
}

type Content = Arc<[u8]>;

/// More legal contents than this at once count as "anything".
const ALTS_MAX: usize = 8;
/// More contents since the last sync than this count as "anything" after a crash.
const DURABLE_MAX: usize = 256;

#[derive(Clone, Default)]
struct Block {
    alts: Vec<Content>,
    unknown: bool,
    durable: Vec<Content>,
    durable_unknown: bool,
}

/// What the bytes of a subject must be now, and may be after a crash.
#[derive(Clone)]
pub struct ByteModel {
    block: usize,
    bytes: Vec<u8>,
    blocks: Vec<Block>,
    /// Blocks that changed since the last sync, or have alternatives.
    dirty: BTreeSet<usize>,
    /// Blocks changed past the cache since the last sync: no cache holds a copy if a flush fails.
    past_cache: BTreeSet<usize>,
    /// Lowest block that a truncate has removed bytes of since the last sync.
    cut: usize,
    /// Legal sizes after a crash: from the smallest to the largest since the last sync.
    sizes: (u64, u64),
}

/// What is wrong at which byte.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wrong {
    /// The byte.
    pub offset: u64,
    /// What it should be: the newest content.
    pub expected: u8,
    /// What it is.
    pub got: u8,
    /// How many contents would have been right for the block.
    pub legal: usize,
}

fn add(list: &mut Vec<Content>, content: Content) {
    if !list.contains(&content) {
        list.push(content);
    }
}

impl ByteModel {
    /// A model of durable `bytes`; `block` is the unit of Y4.
    pub fn new(block: u64, bytes: Vec<u8>) -> Self {
        let sizes = (bytes.len() as u64, bytes.len() as u64);
        let mut model = Self {
            block: block as usize,
            bytes,
            blocks: Vec::new(),
            past_cache: BTreeSet::new(),
            dirty: BTreeSet::new(),
            cut: usize::MAX,
            sizes,
        };
        model.blocks.resize(model.bytes.len().div_ceil(model.block), Block::default());
        for i in 0..model.blocks.len() {
            model.blocks[i].durable = vec![model.current(i)];
        }
        model
    }

    /// Size in bytes.
    pub fn size(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// The newest content.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The newest content of block `i`, padded with zeros.
    fn current(&self, i: usize) -> Content {
        let start = i * self.block;
        let end = (start + self.block).min(self.bytes.len());
        let mut content = vec![0; self.block];
        content[..end - start].copy_from_slice(&self.bytes[start..end]);
        content.into()
    }

    /// How many bytes a read of `len` bytes at `offset` must return.
    pub fn readable(&self, offset: u64, len: u64) -> usize {
        self.size().saturating_sub(offset).min(len) as usize
    }

    /// Block numbers of a byte range, and the part of each, relative to the block.
    fn parts(&self, range: Range<u64>) -> impl Iterator<Item = (usize, Range<usize>)> + use<> {
        let block = self.block as u64;
        let last = if range.is_empty() { range.start / block } else { range.end.div_ceil(block) };
        (range.start / block..last).map(move |i| {
            let from = range.start.saturating_sub(i * block);
            let to = (range.end - i * block).min(block);
            (i as usize, from as usize..to as usize)
        })
    }

    /// Checks what a read returned; all of it must lie inside the size.
    pub fn check_read(&self, offset: u64, got: &[u8]) -> Result<(), Wrong> {
        let start = offset as usize;
        if self.bytes.get(start..start + got.len()) == Some(got) {
            return Ok(());
        }
        for (i, part) in self.parts(offset..offset + got.len() as u64) {
            let at = i * self.block + part.start;
            let piece = &got[at - start..at - start + part.len()];
            let newest = &self.bytes[at..at + part.len()];
            let block = &self.blocks[i];
            let legal = block.unknown
                || piece == newest
                || block.alts.iter().any(|alt| &alt[part.clone()] == piece);
            if !legal {
                return Err(wrong(at as u64, newest, piece, 1 + block.alts.len()));
            }
        }
        Ok(())
    }

    /// Lets the size be `size` from now on; new bytes are zeros.
    pub fn set_size(&mut self, size: u64) {
        let old_blocks = self.blocks.len();
        self.bytes.resize(size as usize, 0);
        let fresh = Block { durable: vec![vec![0; self.block].into()], ..Block::default() };
        self.blocks.resize(self.bytes.len().div_ceil(self.block), fresh);
        for i in old_blocks.max(self.cut)..self.blocks.len() {
            self.blocks[i].durable_unknown = true;
        }
        self.dirty.retain(|i| *i < self.blocks.len());
        self.past_cache.retain(|i| *i < self.blocks.len());
        self.dirty.extend(old_blocks..self.blocks.len());
        self.sizes = (self.sizes.0.min(size), self.sizes.1.max(size));
    }

    /// Moves the end: bytes behind it are gone, and read as zeros if the file grows again. A crash
    /// may leave any size since the last sync, and any bytes where the file was truncated.
    pub fn set_len(&mut self, size: u64) {
        let (old, first) = (self.size(), (size / self.block as u64) as usize);
        if size >= old {
            return self.set_size(size);
        }
        self.cut = self.cut.min(first);
        self.set_size(size);
        let keep = (size % self.block as u64) as usize;
        if let Some(last) = self.blocks.get_mut(first) {
            last.alts.iter_mut().for_each(|alt| {
                let mut new = alt.to_vec();
                new[keep..].fill(0);
                *alt = new.into();
            });
            last.durable_unknown = true;
            self.dirty.insert(first);
        }
    }

    /// A write of `data`. With `Maybe` it must lie inside the size.
    pub fn write(&mut self, offset: u64, data: &[u8], effect: Effect) {
        let end = offset + data.len() as u64;
        if end > self.size() && !data.is_empty() {
            self.set_size(end);
        }
        for (i, part) in self.parts(offset..end) {
            let at = (i * self.block + part.start) as u64 - offset;
            let piece = &data[at as usize..at as usize + part.len()];
            self.change(i, part, piece, effect);
        }
        if effect == Effect::Durable && !data.is_empty() {
            // A durable write makes the size durable as far as the end of the write.
            self.sizes.0 = self.sizes.0.max(end);
        }
    }

    /// Zeroes the range, which lies inside the size.
    pub fn zero(&mut self, offset: u64, len: u64, effect: Effect) {
        self.write(offset, &vec![0; len as usize], effect);
    }

    /// Trims the range, which lies inside the size.
    pub fn trim(&mut self, offset: u64, len: u64, reads: TrimReads, ok: bool) {
        match reads {
            TrimReads::Zeros if ok => self.zero(offset, len, Effect::Done),
            _ => self.zero(offset, len, Effect::Maybe),
        }
        if reads == TrimReads::Anything {
            for (i, part) in self.parts(offset..offset + len) {
                if part.len() == self.block {
                    self.blocks[i].unknown = true;
                    self.blocks[i].durable_unknown = true;
                }
            }
        }
    }

    fn change(&mut self, i: usize, part: Range<usize>, piece: &[u8], effect: Effect) {
        let whole = part.len() == self.block;
        let patch = |old: &Content| -> Content {
            let mut new = old.to_vec();
            new[part.clone()].copy_from_slice(piece);
            new.into()
        };
        let newest = self.current(i);
        let block = &mut self.blocks[i];
        let mut olds = vec![newest];
        block.alts.drain(..).for_each(|alt| add(&mut olds, alt));
        let mut news: Vec<Content> = Vec::new();
        olds.iter().for_each(|old| add(&mut news, patch(old)));
        match effect {
            Effect::Done | Effect::Durable => {
                let start = i * self.block + part.start;
                self.bytes[start..start + piece.len()].copy_from_slice(piece);
                block.alts = news[1..].to_vec();
                block.unknown &= !whole;
            }
            Effect::Maybe => {
                block.alts = olds[1..].to_vec();
                for new in &news {
                    if *new != olds[0] {
                        add(&mut block.alts, new.clone());
                    }
                }
            }
        }
        if effect == Effect::Durable {
            // The range is durable; what surrounds it in the block is as old as it was, or newer.
            let mut durable = Vec::new();
            block.durable.iter().chain(&olds).for_each(|old| add(&mut durable, patch(old)));
            block.durable = durable;
            block.durable_unknown = !whole && (block.durable_unknown || block.unknown);
        } else {
            news.into_iter().for_each(|new| add(&mut block.durable, new));
            block.durable_unknown |= block.unknown;
        }
        if block.alts.len() > ALTS_MAX {
            (block.unknown, block.alts) = (true, Vec::new());
            block.durable_unknown = true;
        }
        block.durable_unknown |= block.durable.len() > DURABLE_MAX;
        self.dirty.insert(i);
    }

    /// Notes that the range was changed past the cache. Or through it: then the cache has its full
    /// blocks again.
    pub fn note_path(&mut self, offset: u64, len: u64, past_cache: bool) {
        for (i, part) in self.parts(offset..offset + len) {
            if past_cache {
                self.past_cache.insert(i);
            } else if part.len() == self.block {
                self.past_cache.remove(&i);
            }
        }
    }

    /// The subject has said for good that bytes may be lost: no copy of what changed since the last
    /// sync is promised any more.
    pub fn marked(&mut self) {
        self.past_cache.extend(self.dirty.iter().copied());
    }

    /// A flush failed, and the subject reported it: what went past the cache since the last sync
    /// may be gone.
    pub fn flush_failed(&mut self) {
        for &i in &self.past_cache {
            let newest = self.current(i);
            let block = &mut self.blocks[i];
            block.unknown |= block.durable_unknown;
            for old in block.durable.clone() {
                if old != newest {
                    add(&mut block.alts, old);
                }
            }
        }
    }

    /// A sync succeeded: what is legal now is what a crash may leave.
    pub fn sync(&mut self) {
        self.past_cache.clear();
        self.cut = usize::MAX;
        for i in std::mem::take(&mut self.dirty) {
            let newest = self.current(i);
            let block = &mut self.blocks[i];
            block.durable = vec![newest];
            block.durable.extend(block.alts.iter().cloned());
            block.durable_unknown = block.unknown;
        }
        self.sizes = (self.size(), self.size());
    }

    /// Checks what was found after a crash, as far as its blocks touch `span`; on success that is
    /// the durable content from now on.
    pub fn crash(&mut self, found: &[u8], span: &Range<u64>) -> Result<(), Wrong> {
        let size = found.len() as u64;
        if size < self.sizes.0 || size > self.sizes.1 {
            let offset = size.min(self.sizes.0);
            return Err(Wrong { offset, expected: 0, got: 0, legal: 0 });
        }
        for (i, block) in self.blocks.iter().enumerate() {
            let start = (i * self.block).min(found.len());
            if start as u64 + self.block as u64 <= span.start || start as u64 >= span.end {
                continue;
            }
            let piece = &found[start..(start + self.block).min(found.len())];
            let legal = block.durable_unknown
                || block.durable.iter().any(|content| &content[..piece.len()] == piece);
            if !legal {
                let newest = self.current(i);
                return Err(wrong(start as u64, &newest, piece, block.durable.len()));
            }
        }
        *self = Self::new(self.block as u64, found.to_vec());
        Ok(())
    }
}

fn wrong(at: u64, newest: &[u8], piece: &[u8], legal: usize) -> Wrong {
    let first = newest.iter().zip(piece).position(|(a, b)| a != b).unwrap_or(0);
    Wrong { offset: at + first as u64, expected: newest[first], got: piece[first], legal }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn crash_ok(model: &ByteModel, found: &[u8]) -> bool {
        model.clone().crash(found, &(0..u64::MAX)).is_ok()
    }

    /// A crash leaves each block as it was at the last sync or after a later change (Y3, Y4).
    #[test]
    fn crashed_block_is_as_synced_or_newer() {
        let mut m = ByteModel::new(4, vec![0; 8]);
        m.write(0, &[1; 8], Effect::Done);
        m.write(0, &[2; 4], Effect::Done);
        for a in 0..3 {
            for b in 0..3 {
                let found = [[a; 4], [b; 4]].concat();
                assert_eq!(crash_ok(&m, &found), b < 2, "{a} {b}");
            }
        }
        assert!(!crash_ok(&m, &[1, 1, 1, 2, 1, 1, 1, 1]));
        assert!(!crash_ok(&m, &[2; 4]) && !crash_ok(&m, &[2; 9]));
        m.sync();
        assert!(crash_ok(&m, &[2, 2, 2, 2, 1, 1, 1, 1]) && !crash_ok(&m, &[1; 8]));
        m.write(3, &[5; 2], Effect::Durable);
        assert!(crash_ok(&m, &[2, 2, 2, 5, 5, 1, 1, 1]));
        assert!(!crash_ok(&m, &[2, 2, 2, 2, 5, 1, 1, 1]));
    }

    #[test]
    fn durable_part_leaves_rest_of_block_old_or_new() {
        let mut m = ByteModel::new(4, vec![0; 4]);
        m.write(0, &[1; 4], Effect::Done);
        m.write(0, &[2; 2], Effect::Durable);
        assert!(crash_ok(&m, &[2, 2, 0, 0]) && crash_ok(&m, &[2, 2, 1, 1]));
        assert!(!crash_ok(&m, &[1; 4]) && !crash_ok(&m, &[0; 4]));
    }

    /// A failed write leaves a block old or new until it is written again (Y2).
    #[test]
    fn failed_write_reads_old_or_new_until_rewritten() {
        let mut m = ByteModel::new(4, vec![0; 8]);
        m.write(2, &[1; 4], Effect::Maybe);
        for found in [[0; 8], [0, 0, 1, 1, 1, 1, 0, 0], [0, 0, 1, 1, 0, 0, 0, 0]] {
            m.check_read(0, &found).unwrap();
        }
        let e = m.check_read(0, &[0, 0, 0, 1, 0, 0, 0, 0]).unwrap_err();
        assert_eq!((e.offset, e.expected, e.got, e.legal), (3, 0, 1, 2));
        m.sync();
        assert!(crash_ok(&m, &[0; 8]) && crash_ok(&m, &[0, 0, 1, 1, 0, 0, 0, 0]));
        m.write(0, &[7; 8], Effect::Done);
        assert!(m.check_read(2, &[7, 7, 7, 1]).is_err());
    }

    #[test]
    fn growth_and_trim() {
        let mut m = ByteModel::new(4, Vec::new());
        m.write(6, &[9; 3], Effect::Done);
        m.check_read(0, &[0, 0, 0, 0, 0, 0, 9, 9, 9]).unwrap();
        assert!(crash_ok(&m, &[]) && crash_ok(&m, &[0, 0, 0, 0, 0, 0, 9]));
        assert!(!crash_ok(&m, &[1]));
        m.sync();
        assert!(!crash_ok(&m, &[]));
        m.trim(1, 7, TrimReads::Anything, true);
        m.check_read(0, &[0, 0, 0, 0, 3, 4, 5, 6, 9]).unwrap();
        assert!(m.check_read(0, &[0, 3, 0, 0]).is_err());
        m.write(4, &[1; 4], Effect::Done);
        assert!(m.check_read(4, &[2; 4]).is_err());
        let mut z = ByteModel::new(4, vec![5; 12]);
        z.set_len(2);
        z.set_len(9);
        z.check_read(0, &[5, 5, 0, 0, 0, 0, 0, 0, 0]).unwrap();
        assert!(z.check_read(0, &[5, 5, 5]).is_err() && z.check_read(8, &[5]).is_err());
        assert!(crash_ok(&z, &[5; 12]) && crash_ok(&z, &[5, 5]) && !crash_ok(&z, &[5]));
        z.sync();
        assert!(!crash_ok(&z, &[5, 5, 5, 0, 0, 0, 0, 0, 0]));
        let mut z = ByteModel::new(4, vec![5; 4]);
        z.trim(0, 4, TrimReads::Zeros, true);
        assert!(z.check_read(0, &[5; 4]).is_err());
    }
}
