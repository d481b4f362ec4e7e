//! Buffers of one event-loop thread, kept for reuse so that they are neither zeroed nor
//! allocated again for each request.
//!
//! Invariants:
//! 1. What is kept is bounded: [`CHUNKS_MAX`] chunks and [`BUF_BYTES_MAX`] bytes of buffers.
//! 2. A buffer handed out has exactly the length asked for and stale content: its user fills it
//!    whole before any byte of it is sent or stored.

use forebay_base::buf::AlignedBuf;

/// Length of a chunk of gathered replies, bytes.
pub(crate) const CHUNK_LEN: usize = 160 << 10;
const CHUNKS_MAX: usize = 16;
const BUF_BYTES_MAX: usize = 16 << 20;
const BUFS_MAX: usize = 64;

/// See the module.
#[derive(Default)]
pub(crate) struct Pool {
    chunks: Vec<Box<[u8]>>,
    bufs: Vec<AlignedBuf>,
    bytes: usize,
}

impl Pool {
    pub fn chunk(&mut self) -> Box<[u8]> {
        self.chunks.pop().unwrap_or_else(|| vec![0; CHUNK_LEN].into_boxed_slice())
    }

    pub fn put_chunk(&mut self, chunk: Box<[u8]>) {
        if self.chunks.len() < CHUNKS_MAX {
            self.chunks.push(chunk);
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
        if buf.len() > BUF_BYTES_MAX / 2 {
            return;
        }
        self.bytes += buf.len();
        self.bufs.push(buf);
        while self.bytes > BUF_BYTES_MAX || self.bufs.len() > BUFS_MAX {
            self.bytes -= self.bufs.swap_remove(0).len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reuses_by_length_and_stays_bounded() {
        let mut pool = Pool::default();
        let mut buf = pool.buf(4096);
        buf[0] = 9;
        pool.put_buf(buf);
        assert_eq!(pool.buf(8192).len(), 8192);
        assert_eq!(pool.buf(4096)[0], 9);
        for _ in 0..100 {
            pool.put_buf(AlignedBuf::new(1 << 20));
        }
        assert!(pool.bytes <= BUF_BYTES_MAX && pool.bufs.len() <= BUFS_MAX);
        assert_eq!(pool.bytes, pool.bufs.iter().map(|b| b.len()).sum::<usize>());
    }
}
