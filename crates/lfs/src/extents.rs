//! Where the content of files is, for people and programs that look: `forebay extents`, the bench.
//!
//! Lock: the state lock in turn; never across a wait.

use crate::alloc::AllocStats;
use crate::pending::{Piece, Where};
use crate::space::Need;
use crate::state::State;
use crate::volume::{Inner, Volume};
use forebay_base::{ErrorKind, Result};
use forebay_vfs::Ino;
use forebay_vfs::rules::refuse;

/// Pieces looked at together.
const PIECES: usize = 1024;

/// A run of a file that is one run on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileExtent {
    /// First byte in the file.
    pub logical: u64,
    /// First byte on the device; none while its record is not durable: then it is in memory.
    pub physical: Option<u64>,
    /// Bytes, whole blocks.
    pub len: u64,
    /// It lies in a record of the log, as little that was synced does.
    pub inline: bool,
}

impl FileExtent {
    fn goes_on(&self, next: &Self) -> bool {
        let behind = match (self.physical, next.physical) {
            (Some(at), Some(next)) => at + self.len == next,
            (None, None) => true,
            _ => false,
        };
        behind && self.logical + self.len == next.logical && self.inline == next.inline
    }
}

/// What is free, and in how many runs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FreeSpace {
    /// Bytes in free segments, at the open end, in windows and left over.
    pub bytes: u64,
    /// Runs that nothing lies between.
    pub runs: u64,
    /// Bytes of data segments that were begun.
    pub data_bytes: u64,
    /// Of these, bytes behind the open end: the next request has them.
    pub open_bytes: u64,
}

impl Inner {
    /// Pieces from block `from` on, and where to go on.
    async fn pieces_from(
        &self,
        data_id: u64,
        mut from: u64,
    ) -> Result<(Vec<(u64, Piece)>, Option<u64>)> {
        let mut pieces = Vec::new();
        while pieces.len() < PIECES {
            let (piece, _) = self.piece_at(data_id, from).await?;
            let blocks = piece.blocks;
            if piece.at != Where::Hole {
                pieces.push((from, piece));
            }
            match from.checked_add(blocks).filter(|next| *next < self.layout.geometry.max_blocks())
            {
                Some(next) => from = next,
                None => return Ok((pieces, None)),
            }
        }
        Ok((pieces, Some(from)))
    }
}

impl State {
    fn extent(&self, block: u64, piece: &Piece) -> FileExtent {
        let unit = self.layout.block_bytes();
        let (logical, len) = (block * unit, piece.blocks * unit);
        match piece.at {
            Where::Run(place) => {
                let physical = Some(self.layout.device_offset(place));
                FileExtent { logical, physical, len, inline: self.space.is_log(place.segment) }
            }
            Where::Staged(_) | Where::Hole => {
                FileExtent { logical, physical: None, len, inline: true }
            }
        }
    }
}

impl Volume {
    /// All extents of a file, in order; what is dirty in the cache has none yet.
    pub async fn extents(&self, ino: Ino) -> Result<Vec<FileExtent>> {
        let mut extents: Vec<FileExtent> = Vec::new();
        let mut from = Some(0);
        while let Some(at) = from {
            let state = self.0.state.lock();
            let Some(node) = state.nodes.get(&ino.0) else {
                return refuse(ErrorKind::NotFound, "extents", format!("{ino:?}"));
            };
            let data_id = node.inode.data_id;
            drop(state);
            let (pieces, next) = self.0.pieces_from(data_id, at).await?;
            let state = self.0.state.lock();
            for (block, piece) in pieces {
                let extent = state.extent(block, &piece);
                match extents.last_mut() {
                    Some(last) if last.goes_on(&extent) => last.len += extent.len,
                    _ => extents.push(extent),
                }
            }
            from = next;
        }
        Ok(extents)
    }

    /// What is free.
    pub fn free_space(&self) -> FreeSpace {
        let state = self.0.state.lock();
        let (segments, runs) = state.space.free_runs();
        let segment = state.layout.segment_bytes();
        let (room, open) = (&state.room, state.space.data_left());
        FreeSpace {
            bytes: segments * segment + open + room.bytes(),
            runs: runs + u64::from(open > 0) + room.runs(),
            data_bytes: state.space.data_segments() * segment,
            open_bytes: open,
        }
    }

    /// What was given out since the volume was opened.
    pub fn alloc_stats(&self) -> AllocStats {
        self.0.state.lock().room.stats()
    }

    /// From how many pages of 4 KiB on a direct write takes its turn, with `serialized`: requests to come.
    pub fn set_serialized_dio_pages(&self, pages: u32) {
        self.0.alloc.set_pages(pages);
    }

    /// See [`Volume::set_serialized_dio_pages`].
    pub fn serialized_dio_pages(&self) -> u32 {
        self.0.alloc.pages()
    }

    /// Bytes that may be written as things are, windows included.
    pub fn room_bytes(&self) -> u64 {
        self.0.state.lock().data_room(Need::New)
    }
}
