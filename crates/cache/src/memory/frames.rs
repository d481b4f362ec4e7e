//! The frame allocator: frames are taken from 64 KiB chunks, each with a 16-bit map of free
//! frames. Long runs take whole chunks, so that a device transfer is one segment; single frames
//! come out of chunks that are broken already.
//!
//! Invariants: A1 a frame is free or owned by exactly one folio or one in-flight write. A2 a chunk is
//! on exactly one list: `whole` (all free), `partial` (some free) or none (all taken).

use crate::memory::arena::Frame;

/// Frames of a chunk.
pub const CHUNK_FRAMES: u32 = 16;

/// Which frames are free.
pub struct FrameAlloc {
    /// Bit set = frame free.
    maps: Vec<u16>,
    whole: Vec<u32>,
    partial: Vec<u32>,
    /// Position of each chunk on the list it is on.
    position: Vec<u32>,
    free: usize,
    total: usize,
}

impl FrameAlloc {
    /// All of `frames` free. A tail shorter than a chunk is a chunk with fewer frames.
    pub fn new(frames: usize) -> Self {
        let chunks = frames.div_ceil(CHUNK_FRAMES as usize);
        let mut maps = vec![u16::MAX; chunks];
        let tail = frames % CHUNK_FRAMES as usize;
        let mut alloc = Self {
            whole: Vec::with_capacity(chunks),
            partial: Vec::with_capacity(chunks),
            position: vec![0; chunks],
            maps: Vec::new(),
            free: frames,
            total: frames,
        };
        if tail != 0 {
            maps[chunks - 1] = (1u16 << tail) - 1;
        }
        alloc.maps = maps;
        for chunk in (0..chunks as u32).rev() {
            alloc.link(chunk);
        }
        alloc
    }

    /// Free frames.
    pub fn free(&self) -> usize {
        self.free
    }

    /// All frames.
    pub fn total(&self) -> usize {
        self.total
    }

    /// Takes `count` frames, appending them to `out` in an order that keeps neighbours together,
    /// or takes none and says false.
    pub fn take(&mut self, count: usize, out: &mut Vec<Frame>) -> bool {
        if count > self.free {
            return false;
        }
        let mut left = count as u32;
        while left > 0 {
            let broken_would_do = left < CHUNK_FRAMES && !self.partial.is_empty();
            let chunk = if broken_would_do || self.whole.is_empty() {
                *self.partial.last().expect("free > 0, so a chunk has a free frame (A2)")
            } else {
                *self.whole.last().expect("checked above")
            };
            left -= self.take_from(chunk, left, out);
        }
        self.free -= count;
        true
    }

    fn take_from(&mut self, chunk: u32, want: u32, out: &mut Vec<Frame>) -> u32 {
        self.unlink(chunk);
        let map = &mut self.maps[chunk as usize];
        let mut taken = 0;
        while taken < want && *map != 0 {
            let bit = map.trailing_zeros();
            *map &= *map - 1;
            out.push(chunk * CHUNK_FRAMES + bit);
            taken += 1;
        }
        self.link(chunk);
        taken
    }

    /// Gives a frame back.
    pub fn give(&mut self, frame: Frame) {
        let (chunk, bit) = (frame / CHUNK_FRAMES, frame % CHUNK_FRAMES);
        assert!(self.maps[chunk as usize] & (1 << bit) == 0, "frame {frame} is free already (A1)");
        self.unlink(chunk);
        self.maps[chunk as usize] |= 1 << bit;
        self.link(chunk);
        self.free += 1;
    }

    fn list(&mut self, chunk: u32) -> Option<&mut Vec<u32>> {
        match self.maps[chunk as usize] {
            0 => None,
            u16::MAX => Some(&mut self.whole),
            _ => Some(&mut self.partial),
        }
    }

    fn link(&mut self, chunk: u32) {
        if let Some(list) = self.list(chunk) {
            list.push(chunk);
            let at = list.len() as u32 - 1;
            self.position[chunk as usize] = at;
        }
    }

    fn unlink(&mut self, chunk: u32) {
        let at = self.position[chunk as usize] as usize;
        if let Some(list) = self.list(chunk) {
            debug_assert_eq!(list[at], chunk);
            list.swap_remove(at);
            if let Some(&moved) = list.get(at) {
                self.position[moved as usize] = at as u32;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_base::world::split_mix;

    #[test]
    fn long_runs_are_contiguous() {
        let mut alloc = FrameAlloc::new(128);
        let mut one = Vec::new();
        assert!(alloc.take(1, &mut one));
        let mut run = Vec::new();
        assert!(alloc.take(32, &mut run));
        let breaks = run.windows(2).filter(|w| w[1] != w[0] + 1).count();
        assert!(breaks <= 1, "{run:?}");
        let mut two = Vec::new();
        assert!(alloc.take(2, &mut two));
        assert_eq!(two[0] / 16, one[0] / 16, "single frames come from broken chunks");
    }

    #[test]
    fn every_frame_has_one_owner() {
        for total in [1usize, 7, 16, 17, 100, 256] {
            let mut alloc = FrameAlloc::new(total);
            let (mut held, mut seed) = (Vec::new(), total as u64);
            for _ in 0..5000 {
                let r = split_mix(&mut seed);
                if r & 1 == 0 {
                    let want = (r >> 8) as usize % 20;
                    let before = held.len();
                    let ok = alloc.take(want, &mut held);
                    assert_eq!(ok, before + want <= total);
                } else if !held.is_empty() {
                    let at = (r >> 8) as usize % held.len();
                    alloc.give(held.swap_remove(at));
                }
                assert_eq!(alloc.free() + held.len(), total);
            }
            let mut sorted = held.clone();
            sorted.sort_unstable();
            sorted.dedup();
            assert_eq!(sorted.len(), held.len());
        }
    }
}
