//! The sectors of a simulated disk: sparse, and cheap to copy.
//!
//! Invariants: I1 an absent sector reads as zeros. I2 copies share a page until one of them changes
//! a sector of it, so a crash state stores the pages that it changes, and no others. I3 images that
//! read the same have the same sum.
//!
//! No locks: the disk's own lock covers it.

use forebay_base::checksum::crc32c;
use forebay_base::world::split_mix;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Sectors of a page.
const PAGE: u64 = 32;

/// One sector: a slice of the buffer it was written from.
#[derive(Clone, Debug)]
pub struct Sector {
    buf: Arc<[u8]>,
    at: u32,
    len: u32,
    /// A digest of its bytes; 0 for zeros.
    sum: u64,
}

impl Sector {
    fn new(buf: Arc<[u8]>, at: usize, len: usize) -> Self {
        let (front, back) = buf[at..at + len].split_at(len / 2);
        let zero = buf[at..at + len].iter().fold(0, |all, b| all | *b) == 0;
        let sum = u64::from(crc32c(front)) << 32 | u64::from(crc32c(back));
        let sum = if zero { 0 } else { sum };
        Self { buf, at: at as u32, len: len as u32, sum }
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.buf[self.at as usize..(self.at + self.len) as usize]
    }

    /// Its summand in the sum of an image, as sector `number` (image.I3).
    pub(crate) fn share(&self, number: u64) -> u64 {
        let mut word = self.sum ^ number.rotate_left(40);
        if self.sum == 0 { 0 } else { split_mix(&mut word) }
    }
}

/// Sector number and content; `None` is a hole, which reads as zeros.
pub type Change = (u64, Option<Sector>);

/// Cuts `data`, whose length is a multiple of `size`, into sectors from number `first` on.
pub fn split(first: u64, data: Vec<u8>, size: usize) -> Vec<Change> {
    let buf: Arc<[u8]> = data.into();
    (0..buf.len() / size)
        .map(|i| (first + i as u64, Some(Sector::new(buf.clone(), i * size, size))))
        .collect()
}

type Page = [Option<Sector>; PAGE as usize];

/// All sectors of a disk at one moment.
#[derive(Clone, Debug)]
pub struct Image {
    size: usize,
    pages: Arc<BTreeMap<u64, Arc<Page>>>,
    allocated: u64,
    sum: u64,
}

impl Image {
    /// All zeros, in sectors of `size` bytes.
    pub fn new(size: usize) -> Self {
        Self { size, pages: Arc::default(), allocated: 0, sum: 0 }
    }

    /// Bytes of a sector.
    pub(crate) fn sector_bytes(&self) -> u64 {
        self.size as u64
    }

    /// The sector, if it is not a hole.
    pub fn get(&self, number: u64) -> Option<&Sector> {
        self.pages.get(&(number / PAGE))?[(number % PAGE) as usize].as_ref()
    }

    /// Puts one sector.
    pub fn set(&mut self, change: Change) {
        let (number, content) = change;
        let pages = Arc::make_mut(&mut self.pages);
        let page = pages.entry(number / PAGE).or_default();
        let place = &mut Arc::make_mut(page)[(number % PAGE) as usize];
        let share = |sector: &Option<Sector>| sector.as_ref().map_or(0, |s| s.share(number));
        self.sum ^= share(place) ^ share(&content);
        self.allocated += u64::from(content.is_some());
        self.allocated -= u64::from(place.is_some());
        *place = content;
    }

    /// The number of sectors that are not holes.
    pub fn allocated(&self) -> u64 {
        self.allocated
    }

    /// A digest of its content as reads see it (image.I3).
    pub fn sum(&self) -> u64 {
        self.sum
    }

    /// The summand of sectors `first..first + count`: a digest of their content as reads see it
    /// (image.I3).
    pub(crate) fn sum_of(&self, first: u64, count: u64) -> u64 {
        let share = |number| self.get(number).map_or(0, |sector| sector.share(number));
        (first..first + count).fold(0, |sum, number| sum ^ share(number))
    }

    /// Whether sector `number` is still shared with `other`, of which this image was once a copy.
    pub(crate) fn is_from(&self, other: &Self, number: u64) -> bool {
        match (self.get(number), other.get(number)) {
            (Some(this), Some(that)) => Arc::ptr_eq(&this.buf, &that.buf) && this.at == that.at,
            (None, None) => true,
            _ => false,
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
        let pages = self.pages.iter();
        let sectors = pages.flat_map(|(page, sectors)| (page * PAGE..).zip(sectors.iter()));
        sectors.filter(|(_, sector)| sector.is_some()).map(|(number, _)| number).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// I1: holes read as zeros, and reads cross sectors and pages.
    #[test]
    fn reads_across_sectors_and_holes() {
        let mut image = Image::new(512);
        split(1, vec![7; 1024], 512).into_iter().for_each(|c| image.set(c));
        let copy = image.clone();
        image.set((2, None));
        let mut out = [9; 1500];
        image.read(500, &mut out);
        assert!(out[..12].iter().all(|b| *b == 0) && out[12..524].iter().all(|b| *b == 7));
        assert!(out[524..].iter().all(|b| *b == 0));
        assert_eq!((image.allocated(), copy.allocated()), (1, 2));
        assert_eq!((image.numbers(), copy.numbers()), (vec![1], vec![1, 2]));
    }

    /// I2: a copy shares all pages but the one that it changes. The other image stays as it was.
    #[test]
    fn i2_copy_shares_pages_that_it_does_not_change() {
        let mut image = Image::new(512);
        split(0, vec![7; 512 * 10 * PAGE as usize], 512).into_iter().for_each(|c| image.set(c));
        let mut copy = image.clone();
        assert!(Arc::ptr_eq(&image.pages, &copy.pages), "I2: a copy that changes nothing");
        split(3 * PAGE, vec![8; 1024], 512).into_iter().for_each(|c| copy.set(c));
        let pairs = image.pages.values().zip(copy.pages.values());
        assert_eq!(pairs.filter(|(this, that)| Arc::ptr_eq(this, that)).count(), 9, "I2");
        let first_of = |image: &Image| image.get(3 * PAGE).map(|sector| sector.bytes()[0]);
        assert_eq!((first_of(&image), first_of(&copy)), (Some(7), Some(8)));
    }

    /// I3: the sum does not depend on how an image got its content.
    #[test]
    fn images_that_read_alike_have_equal_sums() {
        let with = |changes: &[(u64, u8)]| {
            let mut image = Image::new(512);
            let set = changes.iter().flat_map(|(n, byte)| split(*n, vec![*byte; 512], 512));
            set.for_each(|c| image.set(c));
            image.sum()
        };
        assert_eq!(with(&[(1, 7), (90, 8), (1, 9)]), with(&[(90, 8), (5, 0), (1, 9)]));
        assert_ne!(with(&[(1, 7), (2, 8)]), with(&[(1, 8), (2, 7)]));
        assert_eq!((with(&[]), with(&[(3, 0)])), (0, 0));
    }
}
