//! The replies of one connection that are still to be sent, in order.
//!
//! Invariants:
//! 1. Small replies are collected in chunks. The data of a large read are sent from their own
//!    buffer, which forms one piece with the reply's header.
//! 2. Only the last piece grows. `start <= end <= len` in a chunk.
//! 3. Buffers freed by sending are passed to the caller, which does the accounting.

use crate::pool::CHUNK_LEN;
use crate::proto::READ_HEADER_MAX;
use forebay_base::buf::AlignedBuf;
use std::collections::VecDeque;
use std::io::IoSlice;

/// Most slices in one system call.
pub(crate) const SLICES_MAX: usize = 64;

enum Piece {
    Chunk { buf: Box<[u8]>, start: usize, end: usize },
    Data { head: [u8; READ_HEADER_MAX], head_len: usize, buf: AlignedBuf, sent: usize },
}

impl Piece {
    fn left(&self) -> usize {
        match self {
            Self::Chunk { start, end, .. } => end - start,
            Self::Data { head_len, buf, sent, .. } => head_len + buf.len() - sent,
        }
    }
}

/// A buffer that is no longer needed.
pub(crate) enum Freed {
    Chunk(Box<[u8]>),
    Data(AlignedBuf),
}

/// The queue of replies of a connection.
#[derive(Default)]
pub(crate) struct OutQueue {
    pieces: VecDeque<Piece>,
}

impl OutQueue {
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Free bytes at the end of the last chunk.
    pub fn room(&self) -> usize {
        match self.pieces.back() {
            Some(Piece::Chunk { buf, end, .. }) => buf.len() - end,
            _ => 0,
        }
    }

    /// The free bytes at the end of the last chunk; the caller commits those that it has filled.
    pub fn tail(&mut self) -> &mut [u8] {
        match self.pieces.back_mut() {
            Some(Piece::Chunk { buf, end, .. }) => &mut buf[*end..],
            _ => &mut [],
        }
    }

    /// Adds the first `n` bytes of the tail to the replies.
    pub fn commit(&mut self, n: usize) {
        if let Some(Piece::Chunk { buf, end, .. }) = self.pieces.back_mut() {
            *end += n;
            debug_assert!(*end <= buf.len());
        }
    }

    pub fn push_chunk(&mut self, buf: Box<[u8]>) {
        debug_assert_eq!(buf.len(), CHUNK_LEN);
        self.pieces.push_back(Piece::Chunk { buf, start: 0, end: 0 });
    }

    pub fn push_data(&mut self, head: [u8; READ_HEADER_MAX], head_len: usize, buf: AlignedBuf) {
        self.pieces.push_back(Piece::Data { head, head_len, buf, sent: 0 });
    }

    /// Fills `slices` from the front; returns their number, and their bytes.
    pub fn slices<'a>(&'a self, slices: &mut [IoSlice<'a>; SLICES_MAX]) -> (usize, usize) {
        let (mut n, mut bytes) = (0, 0);
        for piece in &self.pieces {
            if n + 2 > SLICES_MAX {
                break;
            }
            bytes += piece.left();
            match piece {
                Piece::Chunk { buf, start, end } => slices[n] = IoSlice::new(&buf[*start..*end]),
                Piece::Data { head, head_len, buf, sent } => {
                    if sent < head_len {
                        slices[n] = IoSlice::new(&head[*sent..*head_len]);
                        n += 1;
                    }
                    slices[n] = IoSlice::new(&buf[sent.saturating_sub(*head_len)..]);
                }
            }
            n += 1;
        }
        (n, bytes)
    }

    /// Removes `n` sent bytes from the front.
    pub fn advance(&mut self, mut n: usize, mut freed: impl FnMut(Freed)) {
        while let Some(front) = self.pieces.front_mut() {
            let left = front.left();
            if n < left {
                match front {
                    Piece::Chunk { start, .. } => *start += n,
                    Piece::Data { sent, .. } => *sent += n,
                }
                return;
            }
            n -= left;
            match self.pieces.pop_front() {
                Some(Piece::Chunk { buf, .. }) => freed(Freed::Chunk(buf)),
                Some(Piece::Data { buf, .. }) => freed(Freed::Data(buf)),
                None => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_is_kept_over_any_cut() {
        for cut in 1..200 {
            let mut out = OutQueue::default();
            out.push_chunk(vec![0; CHUNK_LEN].into_boxed_slice());
            out.tail()[..5].copy_from_slice(b"hello");
            out.commit(5);
            let mut head = [0; READ_HEADER_MAX];
            head[..2].copy_from_slice(b", ");
            out.push_data(head, 2, AlignedBuf::copy_of(&[b'w'; 300]));
            assert_eq!(out.room(), 0);
            out.push_chunk(vec![0; CHUNK_LEN].into_boxed_slice());
            out.tail()[..1].copy_from_slice(b"!");
            out.commit(1);
            let (mut got, mut freed) = (Vec::new(), 0);
            while !out.is_empty() {
                let mut slices = [IoSlice::new(&[]); SLICES_MAX];
                let (n, bytes) = out.slices(&mut slices);
                let all: Vec<u8> = slices[..n].iter().flat_map(|s| s.to_vec()).collect();
                assert_eq!(all.len(), bytes);
                let take = cut.min(bytes);
                got.extend_from_slice(&all[..take]);
                out.advance(take, |_| freed += 1);
            }
            assert_eq!(freed, 3);
            assert_eq!(got, [b"hello, ".as_slice(), &[b'w'; 300], b"!"].concat());
        }
    }
}
