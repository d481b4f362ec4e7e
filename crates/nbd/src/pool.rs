//! Buffers of one event-loop thread, kept for reuse so that they are neither zeroed nor
//! allocated again for each request.
//!
//! 1. The kept memory, of chunks and buffers together, is bounded.
//! 2. A buffer has exactly the requested length and arbitrary old content: its user overwrites all
//!    of it before any byte is sent or stored.

use forebay_base::buf::AlignedBuf;

/// Length of a chunk of gathered replies, bytes.
pub(crate) const CHUNK_LEN: usize = 160 << 10;
const CHUNKS_MAX: usize = 16;
const BUFS_MAX: usize = 64;

/// The buffers that one event-loop thread keeps for reuse.
pub(crate) struct Pool {
    chunks: Vec<Box<[u8]>>,
    bufs: Vec<AlignedBuf>,
    bytes: usize,
    bytes_max: usize,
}

impl Pool {
    /// A pool that keeps at most `bytes_max` bytes.
    pub fn new(bytes_max: usize) -> Self {
        Self { chunks: Vec::new(), bufs: Vec::new(), bytes: 0, bytes_max }
    }

    /// Sets the maximum of kept memory, bytes.
    #[inline]
    pub fn limit(&mut self, bytes_max: usize) {
        if bytes_max != self.bytes_max {
            self.bytes_max = bytes_max;
            self.trim();
        }
    }

    /// The maximum of kept memory, bytes.
    pub fn bytes_max(&self) -> usize {
        self.bytes_max
    }

    /// Memory of the kept buffers, bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn chunk(&mut self) -> Box<[u8]> {
        let Some(chunk) = self.chunks.pop() else {
            return vec![0; CHUNK_LEN].into_boxed_slice();
        };
        self.bytes -= CHUNK_LEN;
        chunk
    }

    pub fn put_chunk(&mut self, chunk: Box<[u8]>) {
        if self.chunks.len() < CHUNKS_MAX {
            self.bytes += CHUNK_LEN;
            self.chunks.push(chunk);
            self.trim();
        }
    }

    pub fn buf(&mut self, len: usize) -> AlignedBuf {
        let Some(at) = self.bufs.iter().rposition(|b| b.len() == len) else {
            return AlignedBuf::new(len);
        };
        self.bytes -= len;
        self.bufs.swap_remove(at)
    }

    pub fn put_buf(&mut self, buf: AlignedBuf) {
        if buf.len() > self.bytes_max / 2 {
            return;
        }
        self.bytes += buf.len();
        self.bufs.push(buf);
        self.trim();
    }

    /// Frees buffers before chunks: every small reply needs a chunk.
    fn trim(&mut self) {
        while self.bytes > self.bytes_max || self.bufs.len() > BUFS_MAX {
            if !self.bufs.is_empty() {
                self.bytes -= self.bufs.swap_remove(0).len();
            } else if self.chunks.pop().is_some() {
                self.bytes -= CHUNK_LEN;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reuses_by_length_and_stays_bounded() {
        let limit = 16 << 20;
        let mut pool = Pool::new(limit);
        let mut buf = pool.buf(4096);
        buf[0] = 9;
        pool.put_buf(buf);
        assert_eq!(pool.buf(8192).len(), 8192);
        assert_eq!(pool.buf(4096)[0], 9);
        for _ in 0..100 {
            pool.put_buf(AlignedBuf::new(1 << 20));
        }
        (0..20).for_each(|_| pool.put_chunk(vec![0; CHUNK_LEN].into_boxed_slice()));
        assert!(pool.bytes <= limit && pool.bufs.len() <= BUFS_MAX);
        assert_eq!(pool.chunks.len(), CHUNKS_MAX);
        let bufs = pool.bufs.iter().map(|b| b.len()).sum::<usize>();
        assert_eq!(pool.bytes, bufs + CHUNKS_MAX * CHUNK_LEN);
        pool.limit(1 << 20);
        assert!(pool.bytes <= 1 << 20 && pool.bytes + CHUNK_LEN > 1 << 20);
    }
}
