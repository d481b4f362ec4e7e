//! Read-ahead of small files with adjacent content. Otherwise a reader of files in the order of
//! their creation would wait for the device once for each file.
//!
//! ```text
//!   a small file's piece is looked up in the tree ── lies in what was read together ──▶ in memory
//!             │ close behind the last one that was looked up
//!             ▼
//!   as much of its segment is read from there on, twice as much each time ──▶ staged
//! ```
//! Invariants: N21 a buffer that was read ahead answers lookups in the same tree only. All content
//! to which this tree refers was on the device before, and the segment was pinned during the read.
//! So the buffer is valid for this tree; content that is written there later is found through
//! another tree. N22 there are at most [`STREAMS`] such buffers, of [`MOST_BYTES`] each, in
//! addition to those that readers still use. N23 a buffer answers for a piece only if the piece
//! matches its sums. Otherwise the reader asks the device, and the buffer is dropped.
//!
//! Lock: one, held over the staging area's; never across a wait.

use crate::device::slots::read_at;
use crate::format::superblock::TreeRoot;
use crate::log::staging::Staging;
use crate::map::lookup::Pin;
use crate::transaction::resources::Resources;
use forebay_base::checksum::crc32c;
use forebay_base::sync::Mutex;
use forebay_base::units::KIB;
use std::ops::Range;

/// Concurrent readers that are distinguished.
const STREAMS: usize = 4;
/// Bytes of the first and of the largest read.
const FEWEST_BYTES: u64 = 32 * KIB;
const MOST_BYTES: u64 = 256 * KIB;
/// Most bytes between the last piece and the next one of the same reader: records contain more than
/// content.
const GAP_BYTES: u64 = 32 * KIB;

/// A reader that visits files in the order in which they lie on the device.
struct Stream {
    /// End of the last piece, on the device.
    last: u64,
    /// Bytes of the last read-ahead; 0: none yet.
    window: u64,
    /// The tree, the range on the device, and the range in the staging area.
    held: Option<(TreeRoot, Range<u64>, Range<u64>)>,
}

/// Where a piece is found.
#[derive(Debug, PartialEq, Eq)]
enum Look {
    /// At this offset of the staging area.
    Held(u64),
    /// On the device; this many bytes should be read from there on.
    Behind(u64),
    /// On the device, without read-ahead.
    Alone,
}

/// The read-ahead buffers of all readers.
#[derive(Default)]
pub(crate) struct Near(Mutex<Vec<Stream>>);

impl Stream {
    fn find(&self, root: &TreeRoot, at: &Range<u64>) -> Option<u64> {
        let (of, device, staged) = self.held.as_ref()?;
        let inside = device.start <= at.start && at.end <= device.end;
        (of == root && inside).then(|| staged.start + (at.start - device.start))
    }

    fn goes_on(&self, at: &Range<u64>) -> bool {
        (self.last..=self.last + GAP_BYTES).contains(&at.start)
    }
}

impl Near {
    /// Looks a piece up, and records the reader's position.
    fn look(&self, root: &TreeRoot, at: &Range<u64>, staging: &Staging) -> Look {
        let mut streams = self.0.lock();
        let mine = streams.iter().position(|s| s.find(root, at).is_some() || s.goes_on(at));
        let Some(mine) = mine else {
            let dropped = (streams.len() == STREAMS).then(|| streams.pop()).flatten();
            streams.insert(0, Stream { last: at.end, window: 0, held: None });
            drop(streams);
            dropped.into_iter().filter_map(|s| s.held).for_each(|held| staging.forget(&held.2));
            return Look::Alone;
        };
        // The least recently used stream is dropped.
        streams[..=mine].rotate_right(1);
        let stream = &mut streams[0];
        stream.last = at.end;
        match stream.find(root, at) {
            Some(staged) => Look::Held(staged),
            None => {
                stream.window = (stream.window * 2).clamp(FEWEST_BYTES, MOST_BYTES);
                Look::Behind(stream.window)
            }
        }
    }

    /// Stores bytes that were read at `device` for the tree `root`; returns their staging offset.
    /// `None`: the reader's stream was dropped meanwhile, or its last piece is elsewhere.
    fn keep(
        &self,
        root: TreeRoot,
        device: Range<u64>,
        bytes: &[u8],
        staging: &Staging,
    ) -> Option<u64> {
        let mut streams = self.0.lock();
        // The stream of the reader: its last piece ends within what was read, or where that ends.
        let is_readers = |last: u64| device.start < last && last <= device.end;
        let stream = streams.iter_mut().find(|stream| is_readers(stream.last))?;
        let staged = staging.put(bytes);
        let old = stream.held.replace((root, device, staged.clone()));
        drop(streams);
        old.into_iter().for_each(|old| staging.forget(&old.2));
        Some(staged.start)
    }

    /// Drops all buffers.
    pub(crate) fn clear(&self, staging: &Staging) {
        let streams = std::mem::take(&mut *self.0.lock());
        streams.into_iter().filter_map(|s| s.held).for_each(|held| staging.forget(&held.2));
    }

    /// Drops the buffer at staging offset `staged`, which does not match its sums.
    fn drop_kept(&self, staged: u64, staging: &Staging) {
        let mut streams = self.0.lock();
        let held = |s: &&mut Stream| s.held.as_ref().is_some_and(|held| held.2.contains(&staged));
        let held = streams.iter_mut().find(held).and_then(|stream| stream.held.take());
        drop(streams);
        held.into_iter().for_each(|held| staging.forget(&held.2));
    }
}

impl Near {
    /// The staging offset at which bytes of a small file in the tree `root` can be read without
    /// waiting for the device, and a pin. The bytes are stored at `at`. `pin`: the pin of their
    /// segment. `sums`: the checksums of their blocks, if any. A buffer that does not match them is
    /// dropped (N23).
    pub(crate) async fn look_near(
        &self,
        resources: &Resources,
        root: TreeRoot,
        at: Range<u64>,
        pin: &Option<Pin>,
        sums: Option<&[u32]>,
    ) -> Option<(u64, Pin)> {
        let Resources { layout, device, .. } = resources;
        let staging = &*resources.staging;
        let staged = match self.look(&root, &at, staging) {
            Look::Alone => return None,
            Look::Held(staged) => staged,
            Look::Behind(window) => {
                debug_assert!(pin.is_some(), "N21: its segment stays as it is meanwhile");
                let place = layout.place_at(at.start)?;
                let left = layout.segment_bytes() - u64::from(place.offset);
                let end = at.start + window.max(at.end - at.start).min(left);
                let read = read_at(device, at.start, (end - at.start) as usize).await;
                // The reader gets the error when it reads the piece itself.
                let bytes = read.ok()?;
                self.keep(root, at.start..end, &bytes, staging)?
            }
        };
        // Another reader may have dropped the buffer meanwhile.
        let pin = staging.pin_at(staged, at.end - at.start)?;
        let (block, mut sound) = (layout.block_bytes() as usize, true);
        let read = staging.read_staged(staged, at.end - at.start, |bytes| {
            let sums = sums.unwrap_or_default();
            sound = bytes.chunks(block).zip(sums).all(|(bytes, sum)| crc32c(bytes) == *sum);
        });
        if read.is_err() || !sound {
            self.drop_kept(staged, staging);
            return None;
        }
        Some((staged, pin as Pin))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::btree::empty_root;
    use crate::fault::Plant;
    use crate::format::superblock::FILES_TREE;
    use forebay_block::RamDevice;
    use std::sync::Arc;

    /// The story: the read-ahead for a piece at the very end of a segment held only that piece, and
    /// was dropped. The reader read the same bytes from the device once more.
    #[test]
    fn piece_at_end_of_segment_is_kept_for_its_reader() {
        let staging = Staging::new(Arc::new(RamDevice::new(4096)), Plant::default());
        let (near, root) = (Near::default(), empty_root(FILES_TREE, 0));
        let (end, bytes) = (64 * KIB, [7; 4096]);
        let (before, last) = (end - 8192..end - 4096, end - 4096..end);
        assert_eq!(near.look(&root, &before, &staging), Look::Alone);
        assert_eq!(near.look(&root, &last, &staging), Look::Behind(FEWEST_BYTES));
        let staged = near.keep(root, last.clone(), &bytes, &staging);
        assert!(staged.is_some(), "the piece was dropped");
        assert_eq!(near.look(&root, &last, &staging), Look::Held(staged.unwrap()));
        // The stream's last piece ends where this one begins.
        let behind = near.keep(root, end..end + 4096, &bytes, &staging);
        assert_eq!(behind, None, "another reader's piece");
        near.clear(&staging);
        assert_eq!(staging.held_bytes(), 0);
    }

    /// N21, N22: a buffer of one tree is not used for the next one, and of many readers the most
    /// recent ones are kept.
    #[test]
    fn n21_n22_of_one_tree_and_for_few_readers() {
        let staging = Staging::new(Arc::new(RamDevice::new(4096)), Plant::default());
        let (near, tree) =
            (Near::default(), |n| TreeRoot { birth: n, ..empty_root(FILES_TREE, 0) });
        let look = |n, at: u64| near.look(&tree(n), &(at..at + 4096), &staging);
        assert_eq!(look(1, 0), Look::Alone);
        assert_eq!(look(1, 8192), Look::Behind(FEWEST_BYTES));
        let bytes: Vec<u8> = (0..FEWEST_BYTES).map(|n| (n / 4096) as u8).collect();
        let first = 8192..8192 + FEWEST_BYTES;
        let staged = near.keep(tree(1), first.clone(), &bytes, &staging).unwrap();
        assert_eq!(look(1, 16384), Look::Held(staged + 8192));
        let mut found = [9; 4096];
        forebay_block::BlockDevice::read_into(&staging, staged + 8192, &mut found).unwrap();
        assert_eq!(found, [2; 4096]);
        assert_eq!(look(2, 20480), Look::Behind(2 * FEWEST_BYTES), "N21");
        near.drop_kept(staged + 8192, &staging);
        assert_eq!(look(1, 24576), Look::Behind(4 * FEWEST_BYTES), "N23");
        let staged = near.keep(tree(1), first.clone(), &bytes, &staging).unwrap();
        // After that many other readers, a read that ends finds no stream for its buffer.
        let pin = staging.pin_at(staged, 4096);
        (1..=STREAMS as u64).for_each(|n| assert_eq!(look(1, n << 30), Look::Alone));
        assert_eq!(near.0.lock().len(), STREAMS, "N22");
        assert_eq!(near.keep(tree(1), first, &bytes, &staging), None);
        assert!(staging.pin_at(staged, 4096).is_none() && pin.is_some(), "N22");
        forebay_block::BlockDevice::read_into(&staging, staged, &mut found).unwrap();
        drop(pin);
        assert!(forebay_block::BlockDevice::read_into(&staging, staged, &mut found).is_err());
        assert_eq!((look(3, 0), look(3, 8192)), (Look::Alone, Look::Behind(FEWEST_BYTES)));
        near.keep(tree(3), 8192..8192 + FEWEST_BYTES, &bytes, &staging).unwrap();
        assert_eq!(staging.held_bytes(), FEWEST_BYTES);
        near.clear(&staging);
        assert_eq!(staging.held_bytes(), 0);
    }
}
