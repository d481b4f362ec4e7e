//! Read-ahead of small files with adjacent content. Otherwise a reader of files in the order of
//! their creation would wait for the device once for each file.
//!
//! ```text
//!   a small file's piece is looked up in the tree ── lies in what was read together ──▶ in memory
//!             │ close behind the last one that was looked up
//!             ▼
//!   as much of its segment is read from there on, twice as much each time ──▶ staged
//! ```
//! A reader that visits them in another order gets windows ([`super::read_around`]), as long as the
//! cache has free frames: they displace no cached content.
//!
//! Invariants: N21 a buffer that was read ahead answers lookups in the same tree only. All content
//! to which this tree refers was on the device before, and the segment was pinned during the read.
//! So the buffer is valid for this tree; content that is written there later is found through
//! another tree. N22 there are at most [`STREAMS`] such buffers, of [`MOST_BYTES`] each, in
//! addition to those that readers still use. N23 a buffer answers for a piece only if the piece
//! matches its sums. Otherwise the reader asks the device. The buffer stays for other pieces.
//!
//! Lock: one, held over the staging area's and that of the cache's frames; never across a wait.

use super::read_around::{Around, WINDOW_BYTES, window_of};
use crate::device::slots::read_at;
use crate::format::superblock::TreeRoot;
use crate::log::staging::Staging;
use crate::map::lookup::Pin;
use crate::transaction::resources::Resources;
use forebay_base::buf::AlignedBuf;
use forebay_base::checksum::crc32c;
use forebay_base::sync::Mutex;
use forebay_base::units::{KIB, MIB};
use forebay_cache::stats::Counters;
use forebay_iomap::Extent;
use std::ops::Range;

/// Concurrent readers that are distinguished.
const STREAMS: usize = 4;
/// Bytes of the first and of the largest read.
const FEWEST_BYTES: u64 = 32 * KIB;
const MOST_BYTES: u64 = 256 * KIB;
/// Most bytes between the last piece and the next one of the same reader: records contain more than
/// content.
const GAP_BYTES: u64 = 32 * KIB;
/// The part of the cache's budget that windows around pieces may take, and the most bytes of it.
const AROUND_PART: u64 = 16;
const AROUND_MAX: u64 = 16 * MIB;

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
    /// On the device; its window should be read.
    Around,
    /// On the device, without read-ahead.
    Alone,
}

/// What [`Near`]'s lock covers.
#[derive(Default)]
struct Buffers {
    streams: Vec<Stream>,
    around: Around,
}

/// The read-ahead buffers of all readers.
#[derive(Default)]
pub(crate) struct Near(Mutex<Buffers>);

/// Bytes that windows may take. They take memory of the cache's budget, so none without a cache,
/// and none that cached content uses: `now` is what they take already.
fn around_max(resources: &Resources, now: u64) -> u64 {
    let Some(cache) = &resources.options.cache else { return 0 };
    let part = cache.budget_bytes() / AROUND_PART;
    (now + cache.free_bytes()).saturating_sub(part).min(part).min(AROUND_MAX)
}

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
    /// Looks a piece up, and records the reader's position. `around_max`: the bytes that windows
    /// may take, if they take so many now.
    fn look(
        &self,
        root: &TreeRoot,
        at: &Range<u64>,
        staging: &Staging,
        around_max: impl FnOnce(u64) -> u64,
    ) -> Look {
        let mut buffers = self.0.lock();
        let Buffers { streams, around } = &mut *buffers;
        let is_held = |s: &Stream| s.find(root, at).is_some();
        let mine = match streams.iter().position(is_held) {
            Some(mine) => Some(mine),
            None => {
                if let Some(staged) = around.find(root, at) {
                    return Look::Held(staged);
                }
                streams.iter().position(|s| s.goes_on(at))
            }
        };
        let Some(mine) = mine else {
            let dropped = (streams.len() == STREAMS).then(|| streams.pop()).flatten();
            streams.insert(0, Stream { last: at.end, window: 0, held: None });
            let may_read = around.readable(root, at, at.clone()).is_some();
            let is_due =
                may_read && around_max(around.bytes()) >= WINDOW_BYTES && around.is_due(at);
            drop(buffers);
            dropped.into_iter().filter_map(|s| s.held).for_each(|held| staging.forget(&held.2));
            return if is_due { Look::Around } else { Look::Alone };
        };
        // The least recently used stream is dropped.
        streams[..=mine].rotate_right(1);
        let stream = &mut streams[0];
        stream.last = at.end;
        match stream.find(root, at) {
            Some(staged) => Look::Held(staged),
            None if around.readable(root, at, at.clone()).is_none() => Look::Alone,
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
        let mut buffers = self.0.lock();
        // The stream of the reader: its last piece ends within what was read, or where that ends.
        let is_readers = |last: u64| device.start < last && last <= device.end;
        let stream = buffers.streams.iter_mut().find(|stream| is_readers(stream.last))?;
        let staged = staging.put(bytes);
        let old = stream.held.replace((root, device, staged.clone()));
        drop(buffers);
        old.into_iter().for_each(|old| staging.forget(&old.2));
        Some(staged.start)
    }

    /// Stores a window that was read at `device` for the tree `root`; returns its staging offset.
    fn keep_window(
        &self,
        root: TreeRoot,
        device: Range<u64>,
        bytes: &[u8],
        resources: &Resources,
    ) -> u64 {
        let staged = resources.staging.put(bytes);
        let most = |now| around_max(resources, now);
        self.changed(resources, |around| {
            around.keep(root, device, staged.clone(), most(around.bytes()))
        });
        staged.start
    }

    /// Drops windows that are of an older tree than `root`, and those for which no memory is free
    /// any more (read_around.N24).
    fn trim(&self, root: &TreeRoot, resources: &Resources) {
        self.changed(resources, |around| match around.bytes() {
            0 => Vec::new(),
            now => around.trim(root, around_max(resources, now)),
        });
    }

    /// Changes the windows by `change`, which returns staged ranges that are not used any more.
    /// Notes the memory of the windows for the next claim on the budget.
    fn changed(&self, resources: &Resources, change: impl FnOnce(&mut Around) -> Vec<Range<u64>>) {
        let mut buffers = self.0.lock();
        let before = buffers.around.bytes();
        let dropped = change(&mut buffers.around);
        let now = buffers.around.bytes();
        if now != before {
            resources.memory.set_read_ahead(now);
        }
        drop(buffers);
        dropped.iter().for_each(|old| resources.staging.forget(old));
        if now != before {
            resources.note_nodes();
        }
    }

    /// Drops all buffers.
    pub(crate) fn clear(&self, resources: &Resources) {
        self.forget_all(&resources.staging);
        resources.memory.set_read_ahead(0);
    }

    fn forget_all(&self, staging: &Staging) {
        let Buffers { streams, mut around } = std::mem::take(&mut *self.0.lock());
        let held = streams.into_iter().filter_map(|s| s.held).map(|held| held.2);
        held.chain(around.take_all()).for_each(|held| staging.forget(&held));
    }
}

/// A window that is being read. Its reader may be dropped.
struct InFlight<'a>(&'a Near, &'a Range<u64>);

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.0.lock().around.landed(self.1);
    }
}

impl Near {
    /// The staging offset at which an extent of a small file in the tree `root` can be read without
    /// waiting for the device, and a pin. `None`: the buffer does not match its sums (N23), or none
    /// was read.
    pub(crate) async fn look_near(
        &self,
        resources: &Resources,
        root: TreeRoot,
        extent: &Extent,
    ) -> Option<(u64, Pin)> {
        let Extent { len, pin, sums, .. } = extent;
        let at = extent.device_offset.map(|at| at..at + len)?;
        let staging = &*resources.staging;
        let block = resources.layout.block_bytes();
        if sums.is_some() && !(at.end - at.start).is_multiple_of(block) {
            // The sums are of whole blocks.
            return None;
        }
        self.trim(&root, resources);
        let staged = match self.look(&root, &at, staging, |now| around_max(resources, now)) {
            Look::Alone => return None,
            Look::Held(staged) => staged,
            // The reader gets an error when it reads the piece itself.
            Look::Behind(window) => {
                let segment = self.segment_of(resources, at.start, pin)?;
                let end = at.start + window.max(at.end - at.start);
                let from = at.start..end.min(segment.end);
                let (from, bytes) = self.read(resources, &root, from, &at).await?;
                self.keep(root, from, &bytes, staging)?
            }
            Look::Around => {
                let _flight = InFlight(self, &at);
                let segment = self.segment_of(resources, at.start, pin)?;
                let from = window_of(&at, &segment);
                let (from, bytes) = self.read(resources, &root, from, &at).await?;
                let skip = at.start - from.start;
                self.keep_window(root, from, &bytes, resources) + skip
            }
        };
        // Another reader may have dropped the buffer meanwhile.
        let pin = staging.pin_at(staged, at.end - at.start)?;
        let mut sound = true;
        let read = staging.read_staged(staged, at.end - at.start, |bytes| {
            let sums = sums.as_deref().unwrap_or_default();
            let blocks = bytes.chunks(block as usize);
            sound = blocks.zip(sums).all(|(bytes, sum)| crc32c(bytes) == *sum);
        });
        (read.is_ok() && sound).then_some((staged, pin as Pin))
    }

    /// The range of the segment at a device offset. `pin`: its pin.
    fn segment_of(&self, resources: &Resources, at: u64, pin: &Option<Pin>) -> Option<Range<u64>> {
        debug_assert!(pin.is_some(), "N21: its segment stays as it is meanwhile");
        let start = at - u64::from(resources.layout.place_at(at)?.offset);
        Some(start..start + resources.layout.segment_bytes())
    }

    /// Reads a range of the device that contains a piece, or the part of it that may be readable
    /// (read_around.N26), and counts it: later requests for what it contains are answered from
    /// memory, and do not count. `None`: that failed.
    async fn read(
        &self,
        resources: &Resources,
        root: &TreeRoot,
        range: Range<u64>,
        piece: &Range<u64>,
    ) -> Option<(Range<u64>, AlignedBuf)> {
        let range = self.0.lock().around.readable(root, piece, range)?;
        let len = range.end - range.start;
        let Ok(bytes) = read_at(&resources.device, range.start, len as usize).await else {
            self.0.lock().around.note_failed(*root, range);
            return None;
        };
        if let Some(cache) = &resources.options.cache {
            let wanted = piece.end - piece.start;
            Counters::add(&cache.counters.miss_bytes, wanted);
            Counters::add(&cache.counters.readahead_bytes, len - wanted);
        }
        Some((range, bytes))
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
        assert_eq!(near.look(&root, &before, &staging, |_| 0), Look::Alone);
        assert_eq!(near.look(&root, &last, &staging, |_| 0), Look::Behind(FEWEST_BYTES));
        let staged = near.keep(root, last.clone(), &bytes, &staging);
        assert!(staged.is_some(), "the piece was dropped");
        assert_eq!(near.look(&root, &last, &staging, |_| 0), Look::Held(staged.unwrap()));
        // The stream's last piece ends where this one begins.
        let behind = near.keep(root, end..end + 4096, &bytes, &staging);
        assert_eq!(behind, None, "another reader's piece");
        near.forget_all(&staging);
        assert_eq!(staging.held_bytes(), 0);
    }

    /// N21, N22: a buffer of one tree is not used for the next one, and of many readers the most
    /// recent ones are kept.
    #[test]
    fn n21_n22_of_one_tree_and_for_few_readers() {
        let staging = Staging::new(Arc::new(RamDevice::new(4096)), Plant::default());
        let (near, tree) =
            (Near::default(), |n| TreeRoot { birth: n, ..empty_root(FILES_TREE, 0) });
        let look = |n, at: u64| near.look(&tree(n), &(at..at + 4096), &staging, |_| 0);
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
        assert_eq!(look(1, 24576), Look::Held(staged + 16384));
        let staged = near.keep(tree(1), first.clone(), &bytes, &staging).unwrap();
        // After that many other readers, a read that ends finds no stream for its buffer.
        let pin = staging.pin_at(staged, 4096);
        (1..=STREAMS as u64).for_each(|n| assert_eq!(look(1, n << 30), Look::Alone));
        assert_eq!(near.0.lock().streams.len(), STREAMS, "N22");
        assert_eq!(near.keep(tree(1), first, &bytes, &staging), None);
        assert!(staging.pin_at(staged, 4096).is_none() && pin.is_some(), "N22");
        forebay_block::BlockDevice::read_into(&staging, staged, &mut found).unwrap();
        drop(pin);
        assert!(forebay_block::BlockDevice::read_into(&staging, staged, &mut found).is_err());
        assert_eq!((look(3, 0), look(3, 8192)), (Look::Alone, Look::Behind(FEWEST_BYTES)));
        near.keep(tree(3), 8192..8192 + FEWEST_BYTES, &bytes, &staging).unwrap();
        assert_eq!(staging.held_bytes(), FEWEST_BYTES);
        near.forget_all(&staging);
        assert_eq!(staging.held_bytes(), 0);
    }
}
