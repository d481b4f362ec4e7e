//! The frame allocator: frames are taken from 64 KiB chunks, each with a 16-bit map of taken
//! frames. Long runs take whole chunks, so that a device transfer is one segment; single frames
//! come out of chunks that are broken already. Chunks that were never used come last and in order,
//! so that the arena is resident as far as it is used.
//!
//! Invariants: A1 a frame is free, or handed out: then it is in one folio, on its way into one, or
//! held by write-outs and pins alone. A2 a chunk that was used, with a free frame below the limit,
//! is on exactly one list: `whole` (all 16 free) or `partial`; no other is on a list. A3 frames at
//! or above the limit are not handed out. A4 no more frames are handed out than the limit, unless
//! it was lowered while more were.
//!
//! Locks: none of its own; the cache holds it behind one.

use crate::memory::arena::Frame;

/// Frames of a chunk.
pub const CHUNK_FRAMES: u32 = 16;

/// Which frames are free.
pub struct FrameAlloc {
    /// Bit set = frame taken. Zero, and not touched, as long as a chunk was never used.
    taken: Vec<u16>,
    whole: Vec<u32>,
    partial: Vec<u32>,
    /// Position of each chunk on the list it is on.
    position: Vec<u32>,
    /// The lowest chunk that was never used.
    fresh: u32,
    used: usize,
    /// Those of `used` that are at or above the limit.
    above: usize,
    limit: usize,
}

impl FrameAlloc {
    /// `limit` frames, all free; the limit can be raised to `max`. A tail shorter than a chunk is a
    /// chunk with fewer frames.
    pub fn new(limit: usize, max: usize) -> Self {
        assert!(limit <= max);
        let chunks = max.div_ceil(CHUNK_FRAMES as usize);
        Self {
            taken: vec![0; chunks],
            // Capacity for all chunks, so that giving a frame back needs no memory.
            whole: Vec::with_capacity(chunks),
            partial: Vec::with_capacity(chunks),
            position: vec![0; chunks],
            fresh: 0,
            used: 0,
            above: 0,
            limit,
        }
    }

    /// Frames that can be taken.
    pub fn free(&self) -> usize {
        self.limit.saturating_sub(self.used)
    }

    /// Frames that there may be.
    pub fn total(&self) -> usize {
        self.limit
    }

    /// Frames handed out, those above the limit included.
    pub fn used(&self) -> usize {
        self.used
    }

    /// Frames handed out that are at or above the limit.
    pub fn above(&self) -> usize {
        self.above
    }

    /// Frames of the chunks that were ever used; all frames behind these are untouched.
    pub fn touched(&self) -> usize {
        self.fresh as usize * CHUNK_FRAMES as usize
    }

    /// Takes `count` frames, appending them to `out` in an order that keeps neighbours together, or
    /// takes none and returns false.
    pub fn take(&mut self, count: usize, out: &mut impl Extend<Frame>) -> bool {
        if count > self.free() {
            return false;
        }
        self.take_below(count, out)
    }

    /// Takes `count` frames that are to replace as many above the limit, which count as used until
    /// then.
    pub fn take_below(&mut self, count: usize, out: &mut impl Extend<Frame>) -> bool {
        if count > self.limit - (self.used - self.above) {
            return false;
        }
        let mut left = count as u32;
        while left > 0 {
            let chunk = self.next_chunk(left);
            left -= self.take_from(chunk, left, out);
        }
        self.used += count;
        true
    }

    fn next_chunk(&mut self, left: u32) -> u32 {
        let broken = self.partial.last().copied();
        if let Some(chunk) = broken.filter(|_| left < CHUNK_FRAMES) {
            return chunk;
        }
        if let Some(&chunk) = self.whole.last() {
            return chunk;
        }
        if (self.fresh as usize * CHUNK_FRAMES as usize) < self.limit {
            self.fresh += 1;
            self.link(self.fresh - 1);
            return self.fresh - 1;
        }
        broken.expect("a frame below the limit is free, so a chunk has one (A2)")
    }

    fn take_from(&mut self, chunk: u32, want: u32, out: &mut impl Extend<Frame>) -> u32 {
        self.unlink(chunk);
        let (mut map, mut taken) = (self.free_map(chunk), 0);
        while taken < want && map != 0 {
            let bit = map.trailing_zeros();
            map &= map - 1;
            self.taken[chunk as usize] |= 1 << bit;
            let frame = chunk * CHUNK_FRAMES + bit;
            debug_assert!((frame as usize) < self.limit, "frame {frame} is above the limit (A3)");
            out.extend([frame]);
            taken += 1;
        }
        assert!(taken > 0, "chunk {chunk} was on a list without a free frame (A2)");
        self.link(chunk);
        taken
    }

    /// Gives a frame back.
    pub fn give(&mut self, frame: Frame) {
        let (chunk, bit) = (frame / CHUNK_FRAMES, frame % CHUNK_FRAMES);
        assert!(self.taken[chunk as usize] & (1 << bit) != 0, "frame {frame} is free already (A1)");
        self.used -= 1;
        if frame as usize >= self.limit {
            self.taken[chunk as usize] &= !(1 << bit);
            self.above -= 1;
            return;
        }
        self.unlink(chunk);
        self.taken[chunk as usize] &= !(1 << bit);
        self.link(chunk);
    }

    /// Whether a frame is handed out.
    pub fn is_taken(&self, frame: Frame) -> bool {
        self.taken[(frame / CHUNK_FRAMES) as usize] & (1 << (frame % CHUNK_FRAMES)) != 0
    }

    /// Frames below `limit` may be handed out from now on.
    pub fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
        self.whole.clear();
        self.partial.clear();
        self.above = 0;
        // In descending order: lists are used from their end, so the lowest chunks are taken first.
        for chunk in (0..self.fresh).rev() {
            let beyond = self.taken[chunk as usize] & !self.valid(chunk);
            self.above += beyond.count_ones() as usize;
            self.link(chunk);
        }
    }

    /// No frame above the limit is handed out, and their memory is given back: they count as never
    /// used.
    pub fn forget_above(&mut self) {
        assert_eq!(self.above, 0, "frames above the limit are in use (A1)");
        self.fresh = self.fresh.min((self.limit as u32).div_ceil(CHUNK_FRAMES));
    }

    /// The frames of a chunk that are below the limit.
    fn valid(&self, chunk: u32) -> u16 {
        let start = chunk as usize * CHUNK_FRAMES as usize;
        match self.limit.saturating_sub(start) {
            0 => 0,
            some if some < CHUNK_FRAMES as usize => (1 << some) - 1,
            _ => u16::MAX,
        }
    }

    fn free_map(&self, chunk: u32) -> u16 {
        !self.taken[chunk as usize] & self.valid(chunk)
    }

    fn list(&mut self, chunk: u32) -> Option<&mut Vec<u32>> {
        match self.free_map(chunk) {
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
            debug_assert_eq!(list[at], chunk, "a chunk is where its position says (A2)");
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
        let mut alloc = FrameAlloc::new(128, 128);
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
            let mut alloc = FrameAlloc::new(total, total);
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

    #[test]
    fn frames_touch_memory_only_as_used() {
        let mut alloc = FrameAlloc::new(1 << 20, 1 << 24);
        assert_eq!(alloc.touched(), 0);
        let mut held = Vec::new();
        assert!(alloc.take(100, &mut held));
        held.drain(..).for_each(|f| alloc.give(f));
        (0..50).for_each(|_| assert!(alloc.take(2, &mut held)));
        assert_eq!((alloc.touched(), *held.iter().max().unwrap()), (112, 111));
    }

    /// A1..A4 while the limit goes up and down under a load.
    #[test]
    fn frames_above_limit_are_not_handed_out() {
        for seed in 0..30u64 {
            let mut state = seed;
            let (mut alloc, mut held): (_, Vec<Frame>) = (FrameAlloc::new(100, 700), Vec::new());
            let mut limit = 100;
            for _ in 0..3000 {
                let r = split_mix(&mut state);
                match r % 8 {
                    0 if alloc.above() == 0 => alloc.forget_above(),
                    0 => {
                        limit = (r >> 8) as usize % 700 + 1;
                        alloc.set_limit(limit);
                    }
                    1..=3 => {
                        let (want, before) = ((r >> 8) as usize % 40, held.len());
                        let ok = alloc.take(want, &mut held);
                        assert_eq!(ok, want + before <= limit, "A4");
                        assert!(held[before..].iter().all(|&f| (f as usize) < limit), "A3");
                    }
                    4 if alloc.above() > 0 && alloc.used() <= limit => {
                        let at = held.iter().position(|&f| f as usize >= limit).unwrap();
                        let old = held.swap_remove(at);
                        assert!(alloc.take_below(1, &mut held));
                        alloc.give(old);
                    }
                    _ if !held.is_empty() => {
                        let at = (r >> 8) as usize % held.len();
                        alloc.give(held.swap_remove(at));
                    }
                    _ => {}
                }
                let above = held.iter().filter(|&&f| f as usize >= limit).count();
                assert_eq!((alloc.used(), alloc.above()), (held.len(), above));
            }
            held.sort_unstable();
            assert!(held.windows(2).all(|w| w[0] < w[1]), "A1");
        }
    }
}
