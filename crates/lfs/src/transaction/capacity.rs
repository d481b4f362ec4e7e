//! The capacity of a volume: how much content it accepts so that this content can always be
//! overwritten.
//!
//! ```text
//!   all segments = content | tree at its worst | checkpoint nodes | APART | slack | new content
//! ```
//! An overwrite takes a new place, and its old place becomes dead. Segments with dead places become
//! free when the cleaner moves their live data, and for that it needs free segments. So new content
//! and new names leave enough segments free for the cleaner to continue.
//!
//! Invariant: P25 after new content or a new name is accepted, `content + T + N + (APART + slack) *
//! B <= S * B`. The volume has S segments of B bytes. T is the size of the tree if each block of
//! the content is an extent, in half-full leaves. N is what checkpoints need to replace a part of
//! the tree. Overwrites of stored content are not limited by this inequality. They wait for the
//! cleaner instead.
//!
//! Why this is enough. Assume that all accepted content is written out, checkpoints have freed all
//! dead segments, and no pass of the cleaner runs. Then the segments are: the open log segment, T +
//! N of nodes, F free ones, and n others with the content. D bytes in these n segments are dead, so
//! `content + D = n * B`. By P25 `F * B + D >= (APART - 1 + slack) * B`.
//!
//! An overwrite finds space if F includes [`KEPT_SEGMENTS`], one segment for content in the log,
//! the cleaner's segment, and one to write to: `F >= APART - 1`. Otherwise `D >= slack * B`, and
//! some segment has at least `slack * B / n` dead bytes. Its live bytes fit into the cleaner's
//! segment, which is kept for the cleaner (space.P15). Moving them frees one segment and fills less
//! than one. So F and the rest of the cleaner's segment grow by the dead bytes, D shrinks by them,
//! and the sum stays the same. D cannot become negative, so F becomes large enough: the cleaner
//! ends, and the overwrite has its space.
//!
//! If the dead bytes are in an open segment, it is sealed first. A volume of fewer than [`2 *
//! (APART + 1)`](APART) segments keeps half of them free. There an overwrite probably succeeds, but
//! this is not proved.
//!
//! Locks: the state lock, held by the caller.

use crate::space::admission::{BLOCK_TREE_BYTES, Growth};
use crate::space::ledger::KEPT_SEGMENTS;
use crate::space::stats::SpaceStats;
use crate::space::{Ask, Need};
use crate::transaction::state::State;

/// Segments that hold neither content nor tree: the open log segment; the kept ones; one to replace
/// a log segment with content; the one that the cleaner fills and its next one; one to write to.
const APART: u64 = 1 + KEPT_SEGMENTS + 1 + 2 + 1;
/// One in this many segments is slack. With more dead bytes per cleaned segment, the cleaner moves
/// less data.
const SLACK_SHARE: u64 = 32;
/// Bytes of the tree that an inode with one name takes: two copies, in half-full leaves.
const INODE_TREE_BYTES: u64 = 2 * 2 * 200;
/// N of P25, the nodes that checkpoints replace: the tree divided by `NODES_SHARE`, and at least
/// `NODES_LEAST` pairs.
const NODES_SHARE: u64 = 4;
const NODES_LEAST: u64 = 64;

impl State {
    /// Bytes of content that are stored or have places. Content that was overwritten since the last
    /// checkpoint counts twice.
    pub fn content_bytes(&self) -> u64 {
        let fresh = self.map.fresh_bytes() + self.space.ledger().flying_bytes();
        self.space.segments().content_bytes() + fresh
    }

    /// Pairs of nodes that overwrites leave to checkpoints, so that the records of the cleaner can
    /// be merged (P25). They are never more than N.
    pub fn least_nodes(&self) -> u64 {
        self.tree.node_count().min(NODES_LEAST) + 2 * self.table_nodes()
    }

    /// Bytes of segments that a volume needs so that `content` bytes can be overwritten (P25).
    fn wanted_bytes(&self, content: u64, growth: Growth) -> u64 {
        let (block, segment) = (self.layout.block_bytes(), self.layout.segment_bytes());
        let pair = 2 * self.layout.geometry.node_bytes() as u64;
        // The number of inodes comes from a stored root, so it is limited here.
        let inodes = self.names.inode_count().min(u64::from(u32::MAX));
        let worst = content / block * BLOCK_TREE_BYTES + inodes * INODE_TREE_BYTES;
        let items = 4 * (self.names.items().bytes() + growth.bytes);
        let tree = (self.tree.node_count() * pair).max(worst) + items;
        let nodes = (tree / NODES_SHARE).max(NODES_LEAST * pair).min(tree);
        let nodes = nodes + 2 * self.table_nodes() * pair;
        // The copies of a node lie in different segments.
        let tree = (tree + nodes).next_multiple_of(2 * segment);
        let segments = u64::from(self.layout.segments);
        let kept = APART + (segments / SLACK_SHARE).max(1);
        content + tree + kept.min(segments / 2) * segment
    }

    /// Whether `new` bytes of content and this growth of the tree leave enough free segments (P25).
    pub fn has_capacity(&self, new: u64, growth: Growth) -> bool {
        let all = u64::from(self.layout.segments) * self.layout.segment_bytes();
        self.wanted_bytes(self.content_bytes() + self.accepted_bytes(new), growth) <= all
    }

    /// Bytes of new content that the volume accepts, and that can be overwritten later: the free
    /// bytes of `statfs`.
    pub fn new_room(&self) -> u64 {
        self.data_room(Need::New).min(self.capacity_left())
    }

    /// The use of the segments, and the free space that new content does not get.
    pub fn space_stats(&self) -> SpaceStats {
        let mut stats = self.space.stats(self.balance(&Ask::default()).held_back());
        let (free, writable) = (self.data_room(Need::New), self.new_room());
        stats.open_bytes += self.space.room().bytes();
        stats.writable_bytes = writable;
        // Accepted content changes without this lock, between the two.
        stats.held_back.overwrite_bytes = free.saturating_sub(writable);
        stats
    }

    /// The most new content that P25 allows, whether or not space is free now.
    pub fn capacity_left(&self) -> u64 {
        let block = self.layout.block_bytes();
        let fits = |blocks: u64| self.has_capacity(blocks * block, Growth::default());
        let all = u64::from(self.layout.segments) * self.layout.segment_bytes();
        let (mut least, mut most) = (0, all / block);
        while least < most {
            let middle = (least + most).div_ceil(2);
            match fits(middle) {
                true => least = middle,
                false => most = middle - 1,
            }
        }
        least * block
    }
}
