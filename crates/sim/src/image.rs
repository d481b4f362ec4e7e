//! The sectors of a simulated disk: sparse, and cheap to copy.
//!
//! Invariants: I1 a sector that is absent reads as zeros. I2 `base` is shared by copies and never
//! changes; changes go to `over`. So a crash state costs what it changes, not what the disk holds.
//!
//! No locks: the disk's own lock covers it.

use std::collections::BTreeMap;
use std::sync::Arc;

/// One sector: a slice of the buffer it was written from.
#[derive(Clone, Debug)]
pub struct Sector {
    buf: Arc<[u8]>,
    at: usize,
    len: usize,
}

impl Sector {
    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.buf[self.at..self.at + self.len]
    }
}

/// Sector number and content; `None` is a hole, which reads as zeros.
pub type Change = (u64, Option<Sector>);

/// Cuts `data`, whose length is a multiple of `size`, into sectors from number `first` on.
pub fn split(first: u64, data: Vec<u8>, size: usize) -> Vec<Change> {
    let buf: Arc<[u8]> = data.into();
    (0..buf.len() / size)
        .map(|i| (first + i as u64, Some(Sector { buf: buf.clone(), at: i * size, len: size })))
        .collect()
}

/// All sectors of a disk at one moment.
#[derive(Clone, Debug)]
pub struct Image {
    size: usize,
    base: Arc<BTreeMap<u64, Sector>>,
    over: BTreeMap<u64, Option<Sector>>,
    allocated: u64,
}

impl Image {
    /// All zeros, in sectors of `size` bytes.
    pub fn new(size: usize) -> Self {
        Self { size, base: Arc::default(), over: BTreeMap::new(), allocated: 0 }
    }

    /// The sector, if it is not a hole.
    pub fn get(&self, number: u64) -> Option<&Sector> {
        match self.over.get(&number) {
            Some(changed) => changed.as_ref(),
            None => self.base.get(&number),
        }
    }

    /// Puts one sector.
    pub fn set(&mut self, change: Change) {
        let (number, content) = change;
        let before = u64::from(self.get(number).is_some());
        self.allocated = self.allocated + u64::from(content.is_some()) - before;
        self.over.insert(number, content);
    }

    /// How many sectors are not holes.
    pub fn allocated(&self) -> u64 {
        self.allocated
    }

    /// Moves all changes into the shared base, so that clones from now on cost nothing.
    pub fn freeze(&mut self) {
        if self.over.is_empty() {
            return;
        }
        let base = Arc::make_mut(&mut self.base);
        for (number, content) in std::mem::take(&mut self.over) {
            match content {
                Some(sector) => base.insert(number, sector),
                None => base.remove(&number),
            };
        }
    }

    /// Copies bytes out; `offset` may lie anywhere.
    pub fn read(&self, offset: u64, dst: &mut [u8]) {
        let size = self.size as u64;
        let mut done = 0;
        while done < dst.len() {
            let at = offset + done as u64;
            let skip = (at % size) as usize;
            let take = (self.size - skip).min(dst.len() - done);
            let part = &mut dst[done..done + take];
            match self.get(at / size) {
                Some(sector) => part.copy_from_slice(&sector.bytes()[skip..skip + take]),
                None => part.fill(0),
            }
            done += take;
        }
    }

    /// Numbers of the sectors that are not holes, in order.
    pub fn numbers(&self) -> Vec<u64> {
        let mut all: Vec<u64> = self.base.keys().chain(self.over.keys()).copied().collect();
        all.sort_unstable();
        all.dedup();
        all.retain(|n| self.get(*n).is_some());
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_across_sectors_and_holes() {
        let mut image = Image::new(512);
        split(1, vec![7; 1024], 512).into_iter().for_each(|c| image.set(c));
        image.freeze();
        let copy = image.clone();
        image.set((2, None));
        let mut out = [9; 1500];
        image.read(500, &mut out);
        assert!(out[..12].iter().all(|b| *b == 0) && out[12..524].iter().all(|b| *b == 7));
        assert!(out[524..].iter().all(|b| *b == 0));
        assert_eq!((image.allocated(), copy.allocated()), (1, 2));
        assert_eq!((image.numbers(), copy.numbers()), (vec![1], vec![1, 2]));
    }
}
