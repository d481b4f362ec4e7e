//! Received bytes that were not consumed yet.
//!
//! Invariants:
//! 1. `start <= buf.len()`; bytes before `start` are consumed. They are moved away only when they are
//!    more than those that are left, so that consuming n bytes in any steps copies at most n.
//! 2. An empty stash holds no memory.

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Stash {
    buf: Vec<u8>,
    start: usize,
}

impl Stash {
    pub fn bytes(&self) -> &[u8] {
        &self.buf[self.start..]
    }

    pub fn is_empty(&self) -> bool {
        self.start == self.buf.len()
    }

    /// What it holds, bytes of memory.
    pub fn memory(&self) -> usize {
        self.buf.capacity()
    }

    pub fn push(&mut self, bytes: &[u8]) {
        self.buf.extend_from_slice(bytes);
    }

    pub fn consume(&mut self, n: usize) {
        self.start += n;
        assert!(self.start <= self.buf.len(), "consumed more than there is (1)");
        if self.is_empty() {
            *self = Self::default();
        } else if self.start > self.buf.len() / 2 {
            self.buf.drain(..self.start);
            self.buf.shrink_to_fit();
            self.start = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_in_comes_out_and_memory_is_given_back() {
        let (mut stash, all) = (Stash::default(), (0..=255u8).cycle().take(10_000));
        let all: Vec<u8> = all.collect();
        stash.push(&all[..9000]);
        let mut seen = Vec::new();
        for step in [1, 28, 4000, 971, 3000] {
            seen.extend_from_slice(&stash.bytes()[..step]);
            stash.consume(step);
        }
        assert!(stash.memory() < 3000, "{}", stash.memory());
        stash.push(&all[9000..]);
        seen.extend_from_slice(stash.bytes());
        let left = stash.bytes().len();
        stash.consume(left);
        assert_eq!((seen, stash.memory()), (all, 0));
    }
}
