//! How much a volume may hold, so that what it holds can be overwritten for ever.
//!
//! ```text
//!   all segments = content | tree at its worst | nodes of checkpoints | APART | slack | room for what is new
//! ```
//! An overwrite takes a new place and makes the old one dead. Dead places come free segment by segment, by
//! moving what is live beside them, and that wants free segments first. So new content, and new names, leave
//! so many alone that there are always enough to go on with:
//!
//! Invariant: P25 when something new is accepted, `content + T + N + (APART + slack) * B <= S * B`, where S
//! segments have B bytes, T is what the tree takes if each block of the content is an extent of its own, in
//! leaves that are half full, and N what checkpoints need to replace a part of it. What overwrites stored
//! content does not change that: it is not held against it, and waits for the cleaner instead.
//!
//! Why this is enough. When what was accepted is written out, checkpoints have freed what is dead, and no
//! pass is made, the segments are: the open log segment; T + N of nodes; F free ones; and n others with the
//! content,
//! of which D bytes are dead. So `content + D = n * B`, and by P25 `F * B + D >= (APART - 1 + slack) * B`. An
//! overwrite finds room if F is at least [`KEPT_SEGMENTS`], one for content in the log, the cleaner's, and
//! one to write to: `F >= APART - 1`. If it is not, `D >= slack * B`: some segment has `slack * B / n` dead
//! bytes or
//! more. Its live bytes fit into the cleaner's segment, which nobody else takes (P15); moving them makes one
//! segment free and fills less than one, so F and the rest of the cleaner's segment grow by what was dead, D
//! shrinks by it, and the sum stays. This goes on until F is large enough, for D does not go below zero: the
//! cleaner comes to an end, and the overwrite has its room. Where the dead bytes are in a segment that is
//! open,
//! that is sealed first. A volume of fewer than [`2 * (APART + 1)`](APART) segments keeps half of them:
//! there it is likely, and not certain.
//!
//! Locks: the state lock, held by the caller.

use crate::space::admission::{BLOCK_TREE_BYTES, Growth};
use crate::space::{KEPT_SEGMENTS, Need};
use crate::transaction::state::State;

/// Segments beside content and tree: the open one of the log, those that are kept, one in the stead of a log
/// segment with content, the one that the cleaner fills and the one that it has for that, one to write to.
const APART: u64 = 1 + KEPT_SEGMENTS + 1 + 2 + 1;
/// One of so many segments is slack: the more there is dead for each that is cleaned, the less is moved.
const SLACK_SHARE: u64 = 32;
/// Bytes of the tree that an inode with a name takes: two copies, in leaves that are half full.
const INODE_TREE_BYTES: u64 = 2 * 2 * 200;
/// The part of the tree that checkpoints replace at a time where there is little room, and pairs at least.
const NODES_SHARE: u64 = 4;
const NODES_LEAST: u64 = 64;

impl State {
    /// Bytes of content that are stored, or have places: what was overwritten since the last checkpoint
    /// counts twice.
    pub fn content_bytes(&self) -> u64 {
        let fresh = self.map.fresh_bytes() + self.reservations.flying_bytes();
        self.space.segments.content_bytes() + fresh
    }

    /// Pairs of nodes that whoever overwrites leaves to checkpoints, so that what the cleaner says can be
    /// merged (P25): never more than N.
    pub fn least_nodes(&self) -> u64 {
        self.tree_nodes.min(NODES_LEAST) + 2 * self.table_nodes()
    }

    /// Bytes of segments that a volume with so much content takes so that it can be overwritten (P25).
    fn wanted_bytes(&self, content: u64, growth: Growth) -> u64 {
        let (block, segment) = (self.layout.block_bytes(), self.layout.segment_bytes());
        let pair = 2 * self.layout.geometry.node_bytes() as u64;
        // The number of inodes is what a stored root says.
        let inodes = self.nodes.count().min(u64::from(u32::MAX));
        let worst = content / block * BLOCK_TREE_BYTES + inodes * INODE_TREE_BYTES;
        let items = 4 * (self.items.bytes() + growth.bytes);
        let tree = (self.tree_nodes * pair).max(worst) + items;
        let nodes = (tree / NODES_SHARE).max(NODES_LEAST * pair).min(tree);
        let nodes = nodes + 2 * self.table_nodes() * pair;
        // The copies of a node lie in different segments.
        let tree = (tree + nodes).next_multiple_of(2 * segment);
        let segments = u64::from(self.layout.segments);
        let kept = APART + (segments / SLACK_SHARE).max(1);
        content + tree + kept.min(segments / 2) * segment
    }

    /// Whether so much new content, and what else is new in the tree, leaves enough (P25).
    pub fn has_capacity(&self, new: u64, growth: Growth) -> bool {
        let all = u64::from(self.layout.segments) * self.layout.segment_bytes();
        self.wanted_bytes(self.content_bytes() + self.dirt_bytes(new), growth) <= all
    }

    /// Bytes of new content that there is room for, which can be overwritten then: what `statfs` says.
    pub fn new_room(&self) -> u64 {
        self.data_room(Need::New).min(self.capacity_left())
    }

    /// The same wherever it may be had from.
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
