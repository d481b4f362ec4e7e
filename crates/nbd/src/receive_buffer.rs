//! Received bytes that are not consumed yet.
//!
//! Invariants:
//! 1. `start <= buf.len()`; bytes before `start` are consumed. They are removed only when they
//!    outnumber the remaining ones, so consuming n bytes in any steps copies at most n bytes.
//! 2. An empty buffer holds no memory.

/// A buffer of received bytes.
#[derive(Debug, Default)]
pub(crate) struct ReceiveBuffer {
    buf: Vec<u8>,
    start: usize,
}

impl ReceiveBuffer {
    pub fn bytes(&self) -> &[u8] {
        &self.buf[self.start..]
    }

    pub fn is_empty(&self) -> bool {
        self.start == self.buf.len()
    }

    /// The allocated memory of the buffer, bytes.
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
    fn receive_buffer_returns_bytes_and_frees_memory() {
        let (mut receive_buffer, all) =
            (ReceiveBuffer::default(), (0..=255u8).cycle().take(10_000));
        let all: Vec<u8> = all.collect();
        receive_buffer.push(&all[..9000]);
        let mut seen = Vec::new();
        for step in [1, 28, 4000, 971, 3000] {
            seen.extend_from_slice(&receive_buffer.bytes()[..step]);
            receive_buffer.consume(step);
        }
        assert!(receive_buffer.memory() < 3000, "{}", receive_buffer.memory());
        receive_buffer.push(&all[9000..]);
        seen.extend_from_slice(receive_buffer.bytes());
        let left = receive_buffer.bytes().len();
        receive_buffer.consume(left);
        assert_eq!((seen, receive_buffer.memory()), (all, 0));
    }
}
