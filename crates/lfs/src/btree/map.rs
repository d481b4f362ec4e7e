//! Turns an overlay of content into changes of the tree: overwritten extents are removed, partly
//! overwritten ones are split.
//!
//! ```text
//!   the tree:    [ 0 ............ 127 ][128 ... 200]   sorted pieces: 10..20 new, 50..130 hole
//!   changes:     0..10 kept   10..20 new   20..50 kept   128 removed   130..200 kept
//! ```
//! Invariants: B95 after the changes, a block that a piece covers is as in the piece, and every
//! other block is as before. B96 extents do not overlap, if they did not before. B97 bytes that no
//! extent refers to any more are reported once, block by block. B98 in memory are one piece and
//! three leaves: a hole, however long, is processed extent by extent.
//!
//! No locks.

use super::change::{Change, Changes};
use super::read::{Found, InOrder};
use super::{Tree, WHAT};
use crate::format::extent::{ENCRYPTED, Extent, Source, Sums, UNWRITTEN};
use crate::format::item::Item;
use crate::format::key::Key;
use crate::format::place::{Place, SumAlgorithm};
use crate::format::superblock::TreeRoot;
use crate::format::{MAX_EXTENT_BLOCKS, corrupt, refused, unsupported};
use forebay_base::Result;
use forebay_base::task::BoxFuture;
use std::collections::VecDeque;
use std::iter::Peekable;

/// A run of blocks in the overlay.
#[derive(Debug, Clone)]
pub struct Piece {
    /// Data id of the file, as in `Key::Extent`.
    pub data_id: u64,
    /// First block.
    pub block: u64,
    /// Number of blocks, at least 1.
    pub blocks: u64,
    /// Where they are stored; `None`: they are a hole.
    pub stored: Option<Stored>,
}

/// Where the blocks of a piece are stored, contiguous in one segment.
#[derive(Debug, Clone)]
pub struct Stored {
    /// Place of the first block.
    pub place: Place,
    /// Volume-wide sequence of their content.
    pub birth: u64,
    /// 0 or [`UNWRITTEN`].
    pub flags: u16,
    /// CRC-32Cs in stored form, one for each block; empty if the volume has none.
    pub sums: Box<[u8]>,
}

/// Stored bytes that no extent refers to any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GivenUp {
    /// Data id of the file, as in `Key::Extent`.
    pub data_id: u64,
    /// Their place.
    pub place: Place,
    /// Number of bytes.
    pub bytes: u32,
    /// Birth of their content.
    pub birth: u64,
}

/// The remaining part of an old extent: blocks `from` up to `upto`.
struct Rest {
    found: Found,
    data_id: u64,
    from: u64,
    upto: u64,
}

/// The piece that is replacing older extents.
struct Current {
    data_id: u64,
    upto: u64,
    /// Old extents that begin in the piece before this block were processed.
    next: u64,
    /// The next old extent that begins in the piece.
    next_old: Option<Found>,
    new: VecDeque<(u64, Change)>,
}

/// Generates changes from pieces, which are sorted by data id and block, without overlap.
pub struct MapChanges<'t, I: Iterator<Item = Piece>> {
    tree: &'t Tree,
    root: TreeRoot,
    pieces: Peekable<I>,
    rest: Option<Rest>,
    current: Option<Current>,
    /// The extent that begins at the start of the next piece, if it was found.
    at_start: Option<Found>,
    order: InOrder,
    given_up: &'t mut (dyn FnMut(GivenUp) + Send),
}

impl<'t, I: Iterator<Item = Piece> + Send> MapChanges<'t, I> {
    /// Changes of the tree below `root`, into which they have to be merged. Reports to `given_up`
    /// are valid only if that merge succeeds.
    pub fn new(
        tree: &'t Tree,
        root: TreeRoot,
        pieces: I,
        given_up: &'t mut (dyn FnMut(GivenUp) + Send),
    ) -> Self {
        let pieces = pieces.peekable();
        let (rest, current, at_start, order) = (None, None, None, InOrder::default());
        Self { tree, root, pieces, rest, current, at_start, order, given_up }
    }

    async fn next_change(&mut self) -> Result<Option<Change>> {
        loop {
            if self.current.is_some() {
                if let Some(change) = self.next_of_piece().await? {
                    return Ok(Some(change));
                }
                self.current = None;
            }
            let Some(piece) = self.pieces.peek() else {
                let rest = self.rest.take();
                return rest.map(|rest| self.keep(&rest.found, rest.from, rest.upto)).transpose();
            };
            let (id, block) = (piece.data_id, piece.block);
            if self.rest.is_none() {
                self.find_rest(id, block).await?;
            }
            if let Some(change) = self.keep_before(id, block)? {
                return Ok(Some(change));
            }
            if let Some(piece) = self.pieces.next() {
                self.begin(piece)?;
            }
        }
    }

    /// Finds the old extent that continues across the start of a piece.
    async fn find_rest(&mut self, data_id: u64, block: u64) -> Result<()> {
        let key = Key::Extent(data_id, block);
        let found = self.tree.floor_in_order(&self.root, key, &mut self.order).await?;
        let Some(found) = found else { return Ok(()) };
        let (Key::Extent(id, from), Item::Extent(extent)) = found.decode(&self.tree.geometry)?
        else {
            return Ok(());
        };
        let upto = from + u64::from(extent.blocks);
        if (id, from) == (data_id, block) {
            self.at_start = Some(found);
        } else if id == data_id && from < block && upto > block {
            self.rest = Some(Rest { found, data_id, from, upto });
        }
        Ok(())
    }

    /// Keeps the part of an old extent before a piece, if there is one.
    fn keep_before(&mut self, data_id: u64, block: u64) -> Result<Option<Change>> {
        let Some(mut rest) = self.rest.take() else { return Ok(None) };
        if (rest.data_id, rest.from) >= (data_id, block) {
            self.rest = Some(rest);
            return Ok(None);
        }
        let upto = if rest.data_id == data_id { rest.upto.min(block) } else { rest.upto };
        let change = self.keep(&rest.found, rest.from, upto)?;
        if upto < rest.upto {
            rest.from = upto;
            self.rest = Some(rest);
        }
        Ok(Some(change))
    }

    fn begin(&mut self, piece: Piece) -> Result<()> {
        let upto = piece.block.saturating_add(piece.blocks);
        let is_next = |id, block| id > piece.data_id || id == piece.data_id && block >= upto;
        let next = self.pieces.peek().map(|next| (next.data_id, next.block));
        if piece.blocks == 0 || next.is_some_and(|(id, block)| !is_next(id, block)) {
            let (id, block) = (piece.data_id, piece.block);
            return Err(refused(WHAT, format!("pieces overlap at block {block} of data {id}")));
        }
        if let Some(mut rest) = self.rest.take() {
            self.give_up(&rest.found, rest.from, rest.upto.min(upto))?;
            if rest.upto > upto {
                rest.from = upto;
                self.rest = Some(rest);
            }
        }
        let new = self.extents(&piece)?;
        let (data_id, next, next_old) = (piece.data_id, piece.block, self.at_start.take());
        self.current = Some(Current { data_id, upto, next, next_old, new });
        Ok(())
    }

    /// The extents of a piece.
    fn extents(&self, piece: &Piece) -> Result<VecDeque<(u64, Change)>> {
        let mut out = VecDeque::new();
        let Some(stored) = &piece.stored else { return Ok(out) };
        let g = &self.tree.geometry;
        let algorithm =
            if stored.sums.is_empty() { SumAlgorithm::None } else { SumAlgorithm::Crc32c };
        let bad = || refused(WHAT, format!("{piece:?} lies in no segment"));
        if stored.flags & !UNWRITTEN != 0 {
            return Err(refused(WHAT, format!("flags {:#x} of a piece", stored.flags)));
        }
        let mut sums =
            stored.sums.chunks(usize::from(MAX_EXTENT_BLOCKS) * algorithm.width().max(1));
        let mut done = 0;
        while done < piece.blocks {
            let blocks = (piece.blocks - done).min(u64::from(MAX_EXTENT_BLOCKS));
            let skip = u32::try_from(done << g.block_shift).map_err(|_| bad())?;
            let place = stored.place.after(skip).ok_or_else(bad)?;
            let sums = Sums { algorithm, bytes: sums.next().unwrap_or(&[]) };
            let extent = Extent::plain(Source::Run(place), blocks as u16, stored.birth, sums, g);
            let extent = Extent { flags: stored.flags, tree: self.root.tree, ..extent };
            let block = piece.block + done;
            let key = Key::Extent(piece.data_id, block);
            out.push_back((block, Change::put(key, &Item::Extent(extent), g)?));
            done += blocks;
        }
        Ok(out)
    }

    /// The next change within the piece: removes an old extent, or puts a new one, perhaps under
    /// the same key.
    async fn next_of_piece(&mut self) -> Result<Option<Change>> {
        let Some(current) = &mut self.current else { return Ok(None) };
        if current.next_old.is_none() && current.next < current.upto {
            let keys = [current.next, current.upto].map(|at| Key::Extent(current.data_id, at));
            let found = self.tree.next_in_order(&self.root, keys, &mut self.order).await?;
            current.next = if found.is_some() { current.next } else { current.upto };
            current.next_old = found;
        }
        let Some(found) = &current.next_old else {
            return Ok(current.new.pop_front().map(|(_, change)| change));
        };
        let (Key::Extent(_, from), Item::Extent(extent)) = found.decode(&self.tree.geometry)?
        else {
            return Err(corrupt(WHAT, "something else among extents"));
        };
        if current.new.front().is_some_and(|(block, _)| *block < from) {
            return Ok(current.new.pop_front().map(|(_, change)| change));
        }
        let change = match current.new.front() {
            Some((block, _)) if *block == from => current.new.pop_front().map(|(_, change)| change),
            _ => Some(Change::delete(Key::Extent(current.data_id, from))),
        };
        let (data_id, end) = (current.data_id, current.upto);
        let upto = from + u64::from(extent.blocks);
        current.next = from + 1;
        let Some(found) = current.next_old.take() else { return Ok(change) };
        self.give_up(&found, from, upto.min(end))?;
        if upto > end {
            // Two old extents reach past the piece, so they overlap. `rest` can hold only one.
            if self.rest.is_some() {
                return Err(corrupt(WHAT, format!("extents of data {data_id} overlap at {from}")));
            }
            self.rest = Some(Rest { found, data_id, from: end, upto });
        }
        Ok(change)
    }

    /// Keeps blocks `from` up to `upto` of an old extent as a separate extent.
    fn keep(&self, found: &Found, from: u64, upto: u64) -> Result<Change> {
        let g = &self.tree.geometry;
        let (Key::Extent(id, first), Item::Extent(extent)) = found.decode(g)? else {
            return Err(corrupt(WHAT, "something else among extents"));
        };
        let part = self.part(&extent, from - first, upto - from)?;
        Change::put(Key::Extent(id, from), &Item::Extent(part), g)
    }

    fn give_up(&mut self, found: &Found, from: u64, upto: u64) -> Result<()> {
        let (Key::Extent(data_id, first), Item::Extent(extent)) =
            found.decode(&self.tree.geometry)?
        else {
            return Err(corrupt(WHAT, "something else among extents"));
        };
        let part = self.part(&extent, from - first, upto - from)?;
        if let Source::Run(place) = part.source {
            let (bytes, birth) = (part.stored_bytes, part.birth);
            (self.given_up)(GivenUp { data_id, place, bytes, birth });
        }
        Ok(())
    }

    /// A part of an extent (extent.X3). `Unsupported` for a part of a compressed or encrypted one.
    fn part<'a>(&self, extent: &Extent<'a>, skip: u64, blocks: u64) -> Result<Extent<'a>> {
        if (skip, blocks) == (0, u64::from(extent.blocks)) {
            return Ok(*extent);
        }
        if extent.codec != 0 || extent.flags & ENCRYPTED != 0 {
            return Err(unsupported(WHAT, "parts of a piece that is stored as a whole"));
        }
        let shift = self.tree.geometry.block_shift;
        let outside = || corrupt(WHAT, format!("blocks {skip} + {blocks} of {extent:?}"));
        let Source::Run(place) = extent.source else { return Err(outside()) };
        let width = if extent.sums.bytes.is_empty() { 0 } else { extent.sums.algorithm.width() };
        let (skip, blocks) = (skip as usize, blocks as usize);
        let sums = extent.sums.bytes.get(skip * width..(skip + blocks) * width);
        let bytes = (blocks << shift) as u32;
        Ok(Extent {
            source: Source::Run(place.after((skip << shift) as u32).ok_or_else(outside)?),
            stored_bytes: bytes,
            decoded_bytes: bytes,
            blocks: blocks as u16,
            sums: Sums { algorithm: extent.sums.algorithm, bytes: sums.ok_or_else(outside)? },
            ..*extent
        })
    }
}

impl<I: Iterator<Item = Piece> + Send> Changes for MapChanges<'_, I> {
    fn next(&mut self) -> BoxFuture<'_, Result<Option<Change>>> {
        Box::pin(self.next_change())
    }
}
